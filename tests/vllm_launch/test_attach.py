"""An experiment on servers that run already: nothing is known of them but their addresses."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.openai_server import serve
from tests.support.waiting import eventually
from tests.vllm_launch.commands import end, launch, start
from tests.vllm_launch.pages import answering
from vllm_launch.engine.launch import free_port


def test_two_running_servers_are_compared(tmp_path: Path) -> None:
    with serve("--ttft", "0.01", "--itl", "0.002") as fast, serve("--ttft", "0.04", "--itl", "0.006") as slow:
        (tmp_path / "e.yaml").write_text(
            f"engine: attach\nbaseline: {slow.url}\ncandidate: {fast.url}\nworkload: chat-short\nusers: 4\n"
            "run-time: 4s\nwarm-up: 1s\nworkers: 1\norder: AB\nseed: 7\ngate: [itl_p50]\n"
        )
        planned = launch("experiment", "e.yaml", "--dry-run", cwd=tmp_path)
        assert f"url: {slow.url} -> {fast.url}" in planned.out
        ended = launch("experiment", "e.yaml", "--results", "results", cwd=tmp_path)
    assert ended.code in (0, 4), ended
    directory = next((tmp_path / "results").iterdir())
    for leg, url in (("1-A1", slow.url), ("2-B1", fast.url)):
        about = json.loads((directory / leg / "run.json").read_text())["launch"]
        assert (about["engine"], about["url"], about["model"]) == ("attach", url, "tiny")
        assert about["warm_up"]["settled"] in (True, False)
        assert about["prefix_cache"] == "not emptied: the server has no way to do it"
        assert "404" in (directory / leg / "engine.jsonl").read_text(), "no metrics: measured from the client alone"


def test_attach_tells_what_a_server_says_and_watches_it(tmp_path: Path) -> None:
    port = free_port()
    engine = start("serve", "h100-llama-8b-low-itl", "--engine", "simulated", "--port", port)
    try:
        assert engine.stdout is not None
        assert "Ready on" in next(line for line in engine.stdout if "Ready" in line)
        url = f"http://127.0.0.1:{port}"
        told = launch("attach", url)
        assert told.code == 0, told
        assert told.out.startswith(f"{url} serves meta-llama/Llama-3.1-8B-Instruct, ")
        assert "SIMULATED" in told.out
        assert "its metrics are known\n" in told.out
        facts = launch("attach", url, "--json").json
        assert facts["kv_cache"]["blocks"] > 1000
        assert facts["effective"]["max-model-len"] == 131072
        watch = start("attach", url, "-o", tmp_path / "w")
        eventually(lambda: (tmp_path / "w" / "engine.jsonl").is_file(), "a first sample")
        watch.send_signal(signal.SIGINT)
        ended = end(watch)
        assert ended.code == 0
        assert ended.err.endswith(" samples, 0 of them failed\n")
        assert "running" in json.loads((tmp_path / "w" / "engine.jsonl").read_text().splitlines()[0])
    finally:
        engine.send_signal(signal.SIGTERM)
        end(engine)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("http://127.0.0.1:99999", "no address of a server (port out of range 0-65535); write it like http://"),
        ("http://me:s3cr3t@127.0.0.1:8000", "credentials do not belong in an address; write it like http://"),
        ("127.0.0.1:8000", "write an address with its scheme: http://127.0.0.1:8000"),
    ],
)
def test_what_is_no_address_is_refused_in_one_line(address: str, said: str) -> None:
    ended = launch("attach", address)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert said in ended.err
    assert "s3cr3t" not in ended.err


@pytest.mark.parametrize("models", ['{"data": {"id": "x"}}', '{"data": ["x"]}', '{"data": [{"id": null}]}', "[]", "{}"])
def test_a_server_whose_models_are_no_list_of_models_is_refused_in_one_line(models: str) -> None:
    with answering(lambda path: (200, models if path == "/v1/models" else "")) as url:
        ended = launch("attach", url)
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert f"no engine serves at {url} (/v1/models: lists no model); start it, or mend the address" in ended.err


@pytest.mark.parametrize("command", ["check", "show", "serve"])
def test_what_is_not_launched_cannot_be_checked_shown_or_served(command: str) -> None:
    ended = launch(command, "http://127.0.0.1:1")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "127.0.0.1-1: a server that runs already is not launched" in ended.err


def test_attach_to_a_server_without_metrics_and_to_none() -> None:
    with serve() as server:
        told = launch("attach", server.url)
        assert "it is measured from the client alone" in told.out
        assert "it does not say which settings" in told.out
    nobody = launch("attach", server.url)
    assert (nobody.code, nobody.err.count("\n")) == (2, 1)
    assert f"no engine serves at {server.url}" in nobody.err
