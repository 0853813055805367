"""An experiment on servers that run already: nothing is known of them but their addresses."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.openai_server import serve
from tests.vllm_launch.commands import launch


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
