"""What the engine says of itself: read from a real page, and scraped through failures."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import eventually
from tests.vllm_launch.pages import answering
from vllm_launch.engine.metrics import Scraper, read_cache_config, read_sample

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.75
# TYPE vllm:request_success counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 5.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 6.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="tiny"} 7.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 8.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 8.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 1.5
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1024"} 1.0
"""


def pages(answers: list[tuple[int, str]]) -> AbstractContextManager[str]:
    """A server that answers each scrape with the next of `answers`, then with the last."""
    left = list(answers)
    return answering(lambda path: left.pop(0) if len(left) > 1 else left[0])


def samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def test_engines_add_up_but_for_the_cache_which_is_as_full_as_the_fullest() -> None:
    sample = read_sample(PAGE, 17)
    missing = sample.pop("missing")
    assert sample == {
        "time_ns": 17,
        "running": 7.0,
        "waiting": 2.0,
        "kv_cache_usage": 0.75,
        "requests_done_total": 11.0,
        "ttft_s_sum": 1.5,
        "ttft_s_count": 8.0,
        "ttft_s_buckets": {"0.1": 7.0, "+Inf": 8.0},
    }
    assert "preemptions_total" in missing
    assert "itl_s_sum" in missing
    assert not set(missing) & sample.keys()


def test_names_of_earlier_v1_engines_are_known() -> None:
    page = (
        'vllm:gpu_cache_usage_perc{engine="0"} 0.5\nvllm:gpu_prefix_cache_queries_total{engine="0"} 9\n'
        "# TYPE vllm:time_per_output_token_seconds histogram\n"
        'vllm:time_per_output_token_seconds_bucket{le="0.01"} 3\n'
        'vllm:time_per_output_token_seconds_bucket{le="+Inf"} 4\n'
        "vllm:time_per_output_token_seconds_sum 0.2\nvllm:time_per_output_token_seconds_count 4\n"
    )
    sample = read_sample(page, 1)
    assert (sample["kv_cache_usage"], sample["prefix_cache_queries_total"]) == (0.5, 9.0)
    assert (sample["itl_s_count"], sample["itl_s_buckets"]) == (4.0, {"0.01": 3.0, "+Inf": 4.0})
    both = read_sample(page + "vllm:kv_cache_usage_perc 0.75\n", 1)
    assert both["kv_cache_usage"] == 0.75, "today's name, where a page has both"


def test_sglangs_names_are_known() -> None:
    page = (
        'sglang:num_running_reqs{model_name="m"} 3\nsglang:num_queue_reqs{model_name="m"} 2\n'
        "sglang:token_usage 0.28\nsglang:cache_hit_rate 0.5\nsglang:generation_tokens_total 70\n"
        "# TYPE sglang:time_to_first_token_seconds histogram\n"
        'sglang:time_to_first_token_seconds_bucket{le="+Inf"} 4\n'
        "sglang:time_to_first_token_seconds_sum 0.8\nsglang:time_to_first_token_seconds_count 4\n"
    )
    sample = read_sample(page, 1)
    assert {key: sample[key] for key in ("running", "waiting", "kv_cache_usage", "prefix_cache_hit_share")} == {
        "running": 3.0,
        "waiting": 2.0,
        "kv_cache_usage": 0.28,
        "prefix_cache_hit_share": 0.5,
    }
    assert (sample["ttft_s_sum"], sample["generation_tokens_total"]) == (0.8, 70.0)
    assert "itl_s_sum" in sample["missing"]


def test_a_page_of_neither_yields_its_time_and_what_is_missing() -> None:
    sample = read_sample("up 1\n", 3)
    assert (sample["time_ns"], sample.keys()) == (3, {"time_ns", "missing"})


def test_the_cache_is_described_where_the_engine_does_so() -> None:
    assert read_cache_config(PAGE) == {"block_size": "16", "engine": "0", "num_gpu_blocks": "1024"}
    assert read_cache_config("") == {}


def test_failed_scrapes_are_samples_too_and_do_not_end_the_scraping(tmp_path: Path) -> None:
    answers = [(200, PAGE), (503, "busy"), (200, "not { a page\n"), (200, ""), (200, PAGE)]
    path = tmp_path / "engine.jsonl"
    with pages(answers) as url, Scraper(url, path, interval_s=0.05) as scraper:
        eventually(lambda: len(samples(path)) >= 6, "six samples")
    found = samples(path)
    assert found[0]["running"] == 7.0
    assert found[1]["error"] == "/metrics: HTTP 503: busy"
    assert "error" in found[2]
    assert "running" not in found[3]
    assert "running" in found[3]["missing"]
    assert found[4]["running"] == 7.0
    assert scraper.failures == 2
    times = [sample["time_ns"] for sample in found]
    assert times == sorted(times)


def test_an_engine_that_is_gone_is_scraped_on(tmp_path: Path) -> None:
    with pages([(200, PAGE)]) as url:
        pass
    path = tmp_path / "engine.jsonl"
    with Scraper(url, path, interval_s=0.05):
        eventually(lambda: len(samples(path)) >= 3, "three samples")
    assert all("refused" in sample["error"] for sample in samples(path))


def test_samples_wait_for_the_run_directory_and_none_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "run" / "engine.jsonl"
    with pages([(200, PAGE)]) as url, Scraper(url, path, interval_s=0.03) as scraper:
        eventually(lambda: scraper.latest, "a first sample")
        first = scraper.latest["time_ns"]
        assert not path.parent.exists(), "making the run directory is the load test's affair"
        path.parent.mkdir()
        eventually(lambda: samples(path), "they are written")
    found = samples(path)
    assert found[0]["time_ns"] <= first
    assert len({sample["time_ns"] for sample in found}) == len(found)


def test_values_that_are_none_and_buckets_without_a_bound_are_missing_and_no_more() -> None:
    page = PAGE.replace("} 3.0", "} NaN").replace("} 4.0", "} +Inf").replace('le="0.1",', "")
    sample = read_sample(page, 1)
    assert "running" in sample["missing"]
    assert sample["ttft_s_buckets"] == {"+Inf": 8.0}
    assert sample["waiting"] == 2.0


def test_samples_that_no_disk_takes_end_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with answering(lambda path: (200, PAGE)) as url, Scraper(url, Path("/dev/full"), interval_s=0.01) as scraper:
        eventually(lambda: scraper.taken > 2)
    assert caplog.messages == ["/dev/full: No space left on device; nothing more is written to it"]
