"""Real vLLM on this machine's CPU with a tiny model: what we believe of it, and the whole way through it."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import locust_runs
from tests.support.require import need
from tests.support.waiting import eventually
from tests.vllm_launch.commands import launch, marked
from vllm_launch import cpu_vllm, effect
from vllm_launch.config import load_config
from vllm_launch.engine.api import ask, healthy
from vllm_launch.engine.launch import RunningEngine
from vllm_launch.engine.launch import launch as launched
from vllm_launch.engine.metrics import read_sample
from vllm_launch.flags import flag_list, misbeliefs

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(560)]

WORKLOAD = """\
name: real
classes:
  short: {input-tokens: 40, output-tokens: 24}
  long: {input-tokens: 300, output-tokens: 60}
"""
KINDS = """\
name: kinds
classes:
  talk:
    input-tokens: 120
    output-tokens: 12
    turns: {count: 3, input-tokens: 20, think-time: 0.1}
  responses:
    endpoint: responses
    input-tokens: 120
    output-tokens: 12
    turns: {count: 2, input-tokens: 20}
  tools:
    input-tokens: 500
    output-tokens: 12
    turns: {count: 2, input-tokens: 20, role: tool}
    tools: [{type: function, function: {name: search, parameters: {type: object, properties: {n: {type: integer}}}}}]
    tool-choice: none
  json:
    input-tokens: 120
    output-tokens: 60
    response-format:
      type: json_schema
      json_schema:
        name: answer
        schema:
          type: object
          required: [a]
          additionalProperties: false
          properties: {a: {type: string, enum: ["yes", "no"]}}
"""
ENDLESS = "name: endless\nclasses:\n  endless: {input-tokens: 40, output-tokens: 3500}\n"

# Popular posts name these; the list is the project's record of what the real parser rejects.
REJECTED = (
    *("enable-metrics", "metrics-port", "max-batch-tokens", "max-num-partial-prefills", "max-long-partial-prefills"),
    *("swap-space", "num-scheduler-steps", "disable-log-requests", "use-v2-block-manager", "preemption-mode"),
    "max-seq-len-to-capture",
)

ASK_PARSER = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
rejected = []
for name in json.load(sys.stdin):
    for words in ([f"--{name}"], [f"--{name}", "1"], [f"--{name}", "swap"]):
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                parser.parse_args(words)
                break
            except SystemExit:
                continue
    else:
        rejected.append(name)
names = [word[2:] for action in parser._actions for word in action.option_strings if word.startswith("--")]
print(json.dumps({"rejected": rejected, "names": names}))
"""


@pytest.fixture(scope="module", autouse=True)
def _environment() -> None:
    need(cpu_vllm.ready(), "real vLLM on CPU (python -m vllm_launch.cpu_vllm)")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    log = tmp_path_factory.mktemp("vllm") / "engine.log"
    with launched(load_config("cpu-tiny-baseline"), "vllm", log=log) as running:
        yield running


def counters(url: str) -> dict[str, float]:
    return read_sample(ask(url, "/metrics"), 0)


def test_the_real_parser_rejects_what_we_refuse_and_knows_what_we_recorded() -> None:
    known = misbeliefs()
    assert set(REJECTED) <= known.keys()
    asked = subprocess.run(
        [str(cpu_vllm.PYTHON), "-c", ASK_PARSER],
        input=json.dumps(sorted(known)),
        capture_output=True,
        text=True,
        check=True,
    )
    said = json.loads(asked.stdout.splitlines()[-1])
    assert said["rejected"] == sorted(known)
    flags = flag_list("0.32")
    long_names = {name for name in (*flags.names, *flags.negatives) if len(name) > 3}
    assert {name for name in said["names"] if len(name) > 3} - {"help"} == long_names


def test_the_engine_says_who_it_is(engine: RunningEngine) -> None:
    assert engine.model == "tiny"
    assert str(engine.version["version"]).startswith("0.32")
    assert "simulated" not in engine.version
    assert counters(engine.url).get("missing") is None


def test_the_engine_says_what_it_runs_with(engine: RunningEngine) -> None:
    said = engine.config
    assert said.sources == ("log", "/v1/models", "vllm:cache_config_info", "/server_info")
    expected = effect.effective(load_config("cpu-tiny-baseline"))
    for flag in ("max-num-batched-tokens", "max-num-seqs", "enable-chunked-prefill", "enable-prefix-caching", "dtype"):
        assert said.effective[flag] == expected[flag], flag
    assert (said.kv_cache["tokens"], said.kv_cache["block_tokens"]) == (2**20, 128)
    assert str(said.version).startswith("0.32")
    assert not [name for name in said.effective if "port" in name or ("token" in name.split("-") and "hf" in name)]
    assert engine.warm_up is not None
    assert engine.warm_up.rounds >= 10
    assert engine.prefix_cache == "emptied by /reset_prefix_cache"


def test_what_was_measured_agrees_with_the_engines_own_counts(engine: RunningEngine, tmp_path: Path) -> None:
    workload = tmp_path / "real.yaml"
    workload.write_text(WORKLOAD)
    before = counters(engine.url)
    ended = locust_runs.run(
        engine.url,
        tmp_path / "run",
        *("--workload", workload, "-u", 6, "-r", 6, "-t", "10s", "--warmup", 2, "--seed", 5),
    )
    after = counters(engine.url)
    # Counts are exact however busy this machine is; only its latencies would not be valid then.
    assert ended.code in (0, 4), ended.err
    delta = {key: after[key] - before[key] for key in after if isinstance(after[key], float)}
    records = ended.records
    assert len(records) > 20
    assert {record.outcome for record in records} == {"ok"}
    assert delta["requests_done_total"] == len(records)
    assert delta["generation_tokens_total"] == sum(record.output_tokens or 0 for record in records)
    assert delta["prompt_tokens_total"] == sum(record.prompt_tokens or 0 for record in records)
    assert delta["ttft_s_count"] == len(records)
    asked = {"short": (40, 24), "long": (300, 60)}
    for record in records:
        assert (record.planned_prompt_tokens, record.output_tokens) == asked[record.request_class]
        assert record.prompt_tokens == record.planned_prompt_tokens, "prompts have the length they were made for"
        assert record.finish_reason == "length"
        assert record.tokens_source == "usage"
    summary = ended.summary
    in_window = [record for record in records if record.in_window]
    assert summary["requests"]["ok"] == len(in_window)
    assert summary["metrics"]["itl_s"]["count"] == sum(record.events for record in in_window) - len(in_window)
    assert summary["simulated"] is False
    # The engine's clock starts when a request reached it and stops before its answer leaves: ours can only be longer.
    engines_mean = delta["e2e_s_sum"] / delta["e2e_s_count"]
    ours = sum(record.end_ns - record.sent_ns for record in records) / len(records) / 1e9
    assert ours >= engines_mean
    assert ours < engines_mean * 1.5 + 0.05


def test_conversations_tools_and_structured_output_are_what_vllm_takes(engine: RunningEngine, tmp_path: Path) -> None:
    workload = tmp_path / "kinds.yaml"
    workload.write_text(KINDS)
    options = ("--workload", workload, "-u", 3, "-r", 3, "--num-requests", 12, "--seed", 4, "--save-outputs")
    ended = locust_runs.run(engine.url, tmp_path / "run", *options, timeout_s=120)
    records = ended.records
    assert [(r.request_class, r.error, r.error_message) for r in records if r.outcome != "ok"] == []
    assert {record.request_class for record in records} == {"talk", "responses", "tools", "json"}
    firsts = [record for record in records if not record.turn]
    assert all(record.prompt_tokens == record.planned_prompt_tokens for record in firsts), "tools counted too"
    for first in firsts:
        turns = sorted((r for r in records if r.index == first.index), key=lambda record: record.turn)
        assert [record.turn for record in turns] == list(range(first.turns))
        lengths = [record.prompt_tokens or 0 for record in turns]
        assert lengths == sorted(lengths)
    outputs = [json.loads(line) for line in (ended.directory / "outputs" / "worker-0.jsonl").read_text().splitlines()]
    answers = {(line["index"], line["turn"]): line["text"] for line in outputs}
    for record in (record for record in records if record.request_class == "json" and record.finish_reason == "stop"):
        assert json.loads(answers[record.index, record.turn]) in ({"a": "yes"}, {"a": "no"})


def test_an_engine_that_is_told_to_end_fails_its_streams_and_leaves_nothing(
    engine: RunningEngine, tmp_path: Path
) -> None:
    workload = tmp_path / "endless.yaml"
    workload.write_text(ENDLESS)
    process = locust_runs.start(
        *locust_runs.headless(engine.url, tmp_path / "run"),
        *("--workload", workload, "-u", 4, "-r", 4, "-t", "12s", "--drain", 5),
    )
    eventually(lambda: counters(engine.url)["running"] == 4, "four streams run", 60)
    time.sleep(1.0)
    family = [psutil.Process(engine.child.pid), *psutil.Process(engine.child.pid).children(recursive=True)]
    # vLLM may hang in its shutdown with its streams open, so that it is killed in the end.
    engine.child.stop(grace_s=3)
    assert not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert not healthy(engine.url)
    ended = locust_runs.end(process, tmp_path / "run", 90)
    assert ended.code in (1, 4), ended.err
    records = ended.records
    by_error = Counter(record.error for record in records if record.outcome == "failed")
    assert not [record for record in records if record.outcome == "ok"], "no stream could have been finished"
    broken = [record for record in records if record.events]
    assert len(broken) == 4
    assert {record.error for record in broken} <= {"aborted", "truncated", "reset", "api_error"}
    # While it shuts down it may still answer, with an error.
    late = {"http_500", "http_503"}
    assert by_error.keys() <= {"aborted", "truncated", "reset", "api_error", "connect", *late}, by_error
    assert ended.summary["metrics"]["ttft_s"]["count"] == 0, "failures never enter latency figures"


def test_an_experiment_on_real_vllm_from_end_to_end(tmp_path: Path, mark: str) -> None:
    (tmp_path / "short.yaml").write_text(
        "engine: vllm\nbaseline: cpu-tiny-baseline\ncandidate: cpu-tiny-tuned\nworkload: chat-and-documents-small\n"
        "users: 9\nrun-time: 14s\nwarm-up: 3s\nworkers: 1\norder: AB\nseed: 7\ngate: [itl_p99]\n"
    )
    ended = launch(
        *("experiment", "short.yaml", "--results", "results"),
        cwd=tmp_path,
        env={"TAILGATE_TEST_MARK": mark},
        timeout_s=500,
    )
    assert ended.code in (0, 3, 4), ended
    assert ended.code != 4 or "NOT VALID" in ended.err, ended
    assert "SIMULATED" not in ended.out
    assert "max-num-batched-tokens: 4096 -> 256" in ended.out
    directory = next((tmp_path / "results").iterdir())
    assert (directory / "report.html").is_file()
    for leg, tokens in (("1-A1", 4096), ("2-B1", 256)):
        meta = json.loads((directory / leg / "run.json").read_text())
        assert meta["launch"]["args"]["max-num-batched-tokens"] == tokens
        summary = json.loads((directory / leg / "summary.json").read_text())
        assert (summary["simulated"], summary["requests"]["failed"]) == (False, 0)
        assert summary["requests"]["ok"] > 20
        log = (directory / "logs" / f"{leg}-engine.log").read_text()
        assert f"max_num_batched_tokens={tokens}." in log, "the flag reached the engine"
        assert "running" in (directory / leg / "engine.jsonl").read_text()
    eventually(lambda: not marked(mark), "all processes ended", 10)
