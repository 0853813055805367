"""An engine is warm when its latency has settled, by a rule; and a running server is used, never ended."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tailgate.exits import BadInput
from tests.support.openai_server import serve
from tests.vllm_launch.commands import launch as command
from vllm_launch.config import load_config
from vllm_launch.engine import api, warm_up
from vllm_launch.engine.api import healthy
from vllm_launch.engine.launch import LaunchFailed, free_port, launch


def test_settled_means_hardly_faster_than_before() -> None:
    assert not warm_up.settled([1.0] * 9), "ten rounds at least"
    assert warm_up.settled([1.0] * 10)
    assert not warm_up.settled([1.0] * 5 + [0.85] * 5), "still getting faster"
    assert warm_up.settled([5.0, 3.0, 1.0, 1.0, 1.0, 0.95, 0.93, 0.99, 0.95, 0.94]), "a slow start is no trend"
    assert warm_up.settled([1.0] * 5 + [1.3] * 5), "slower is as settled as it gets"


def test_it_sends_until_answers_are_as_fast_as_they_get(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    now = [0.0]

    def slow_at_first(url: str, model: str, prompt: str, tokens: int) -> None:
        now[0] += max(1.0 - 0.02 * next(clock), 0.2) / warm_up.AT_ONCE

    monkeypatch.setattr(api, "stream", slow_at_first)
    monkeypatch.setattr(warm_up.time, "monotonic", lambda: now[0])
    found = warm_up.warm_up("http://nowhere", "m")
    assert found.settled
    assert found.rounds >= 10 + 3, "it took more than the least, since it got faster for that long"
    assert found.last_s < found.first_s
    assert not warm_up.warm_up("http://nowhere", "m", limit_s=0.5).settled


def test_a_running_server_is_used_and_left_running(tmp_path: Path) -> None:
    with serve() as server:
        with launch(load_config(server.url), "attach", log=None) as engine:
            assert (engine.model, engine.url, engine.child) == ("tiny", server.url, None)
            assert engine.warm_up is not None
            assert engine.warm_up.settled
            assert engine.prefix_cache == "not emptied: the server has no way to do it"
            seen = server.seen()["seen"]
            prompts = [one["prompt"] for one in seen if one["asked"]["max_tokens"] > 1]
            assert len(prompts) == engine.warm_up.rounds * warm_up.AT_ONCE
            assert len(set(prompts)) == len(prompts), "no prompt finds its like in the prefix cache"
        assert healthy(server.url)


def test_an_engine_that_fails_while_it_is_warmed_up_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(url: str, model: str, prompt: str, tokens: int) -> None:
        raise api.EngineUnreachable("/v1/completions: HTTP 500: out of memory")

    with serve() as server:
        monkeypatch.setattr(api, "stream", lambda *_: None)
        with launch(load_config(server.url), "attach", log=None, warm=False) as engine:
            assert engine.prefix_cache == "as it was"
        monkeypatch.setattr(api, "first_token", lambda *_: None)
        monkeypatch.setattr(api, "stream", dies)
        with (
            pytest.raises(LaunchFailed, match=r"failed while it was warmed up \(/v1/completions: HTTP 500: out of mem"),
            launch(load_config(server.url), "attach", log=None),
        ):
            pass


def test_a_server_that_is_not_there_is_one_line() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(LaunchFailed, match=r"no engine serves at http.* \(no answer on /health\); start it, or mend"),
        launch(load_config(url), "attach", log=None, timeout_s=0.5),
    ):
        pass


def test_a_config_without_an_address_cannot_be_attached_to() -> None:
    with (
        pytest.raises(BadInput, match=r"h100-llama-8b-baseline: does not say where the running server is; add 'url"),
        launch(load_config("h100-llama-8b-baseline"), "attach", log=None),
    ):
        pass
    ended = command("serve", "http://127.0.0.1:1")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "a server that runs already is not launched" in ended.err
