"""The unpleasant replies that a real vLLM can produce (CPU, tiny model), each read as what it is.

Two engines: one is asked everything and then told to stop (SIGTERM), one is killed in the middle of its streams.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import pytest

from locustfiles.client.choice import open_clock
from locustfiles.client.errors import EMPTY, RESET, TIMEOUT_IDLE, TRUNCATED
from locustfiles.client.exchange import Timeouts
from locustfiles.client.reading import Asked, Reading
from locustfiles.client.stream import Outcome, StreamingClient
from locustfiles.client.target import Target
from tests.support.require import need
from vllm_launch import cpu_vllm
from vllm_launch.config import load_config
from vllm_launch.engine.launch import RunningEngine, launch

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

TOKENS, PER_EVENT = 16, 4
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CONFIG = f"""
about: Few seats, a short queue, several tokens an event
extends: cpu-tiny-baseline
args:
  scheduling-policy: priority
  max-num-seqs: 4
  max-num-queued-reqs: 4
  stream-interval: {PER_EVENT}
notes:
  scheduling-policy: The priority of a request counts. Cost - none here.
  max-num-seqs: Few seats, so that a queue forms. Cost - the queue.
  max-num-queued-reqs: What does not fit is refused. Cost - refusals.
  stream-interval: Several tokens an event. Cost - coarser streams.
"""
Ask = Callable[..., Outcome]


@contextmanager
def _engine(folder: Path) -> Iterator[RunningEngine]:
    need(cpu_vllm.PYTHON.is_file(), "real vLLM on CPU (python -m vllm_launch.cpu_vllm)")
    path = folder / "unpleasant.yaml"
    path.write_text(CONFIG)
    with launch(load_config(str(path)), "vllm", log=folder / "engine.log", timeout_s=120) as engine:
        yield engine


@contextmanager
def _asking(url: str) -> Iterator[Ask]:
    """Asks for `TOKENS` tokens by default; keywords change the body, None takes a key out."""
    target = Target.resolve(url)
    clock, _ = open_clock("auto", target)
    client = StreamingClient(target, clock, timeouts=Timeouts(idle=10, total=60))

    def ask(path: str = CHAT, *, demanded: int | None = None, **changes: Any) -> Outcome:
        longest = "max_output_tokens" if path == RESPONSES else "max_tokens"
        body: dict[str, Any] = {"model": "tiny", "stream": True, longest: TOKENS, "ignore_eos": True}
        if path != RESPONSES:
            body |= {"min_tokens": TOKENS, "stream_options": {"include_usage": True}}
        body |= {
            CHAT: {"messages": [{"role": "user", "content": "hello there"}]},
            COMPLETIONS: {"prompt": "hello there"},
            RESPONSES: {"input": [{"role": "user", "content": "hello there"}], "store": False},
        }[path]
        body = {key: value for key, value in (body | changes).items() if value is not None}
        least = body.get("min_tokens", 0) if demanded is None else demanded
        asked = Asked(path, stream=body["stream"], min_tokens=least, n=body.get("n", 1), keep_text=True)
        return client.perform(path, json.dumps(body).encode(), asked)

    yield ask
    client.close()
    clock.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    with _engine(tmp_path_factory.mktemp("vllm")) as running:
        yield running


@pytest.fixture(scope="module")
def ask(engine: RunningEngine) -> Iterator[Ask]:
    with _asking(engine.url) as asking:
        yield asking


def _good(outcome: Outcome, tokens: int = TOKENS, finish: str = "length") -> Reading:
    reading = outcome.reading
    assert reading is not None
    assert (outcome.error, outcome.error_message) == (None, None)
    assert (reading.output_tokens, reading.tokens_source, reading.finish_reason) == (tokens, "usage", finish)
    assert (reading.notes, reading.short_output) == ((), False)
    return reading


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_events_of_several_tokens_on_each_endpoint(ask: Ask, path: str) -> None:
    reading = _good(ask(path))
    # Where its API process is busy, vLLM puts the tokens of several steps into one event.
    assert 1 <= reading.events < TOKENS
    assert reading.text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_whole_answers_on_each_endpoint(ask: Ask, path: str) -> None:
    reading = _good(ask(path, stream=False, stream_options=None))
    assert reading.events == 0
    assert reading.text


def test_usage_on_each_chunk_tells_the_tokens_of_each_event(ask: Ask) -> None:
    reading = _good(ask(stream_options={"include_usage": True, "continuous_usage_stats": True}))
    assert reading.token_counts is not None
    assert reading.token_counts[-1] == TOKENS
    assert len(reading.token_counts) == reading.events


def test_two_choices_have_twice_the_tokens(ask: Ask) -> None:
    _good(ask(n=2), tokens=2 * TOKENS)


def test_logprobs_are_read_past(ask: Ask) -> None:
    _good(ask(logprobs=True, top_logprobs=3))


def test_a_priority_is_taken(ask: Ask) -> None:
    _good(ask(priority=3))


def test_a_stop_string_ends_an_answer_that_is_then_not_short(ask: Ask) -> None:
    whole = _good(ask(temperature=0)).text or ""
    # Random weights repeat themselves: any of the text may come at once. What came before it stays visible.
    stop = whole[len(whole) // 2 :][:6]
    stopped = ask(temperature=0, stop=[stop], min_tokens=None)
    reading = stopped.reading
    assert reading is not None
    assert (stopped.error, reading.finish_reason, reading.short_output) == (None, "stop", False)
    assert reading.tokens_source == "usage"
    assert (reading.output_tokens or 0) < TOKENS
    assert stop not in (reading.text or "")


def test_an_answer_shorter_than_demanded_is_good_and_told(ask: Ask) -> None:
    whole = _good(ask(temperature=0)).text or ""
    # The stop string cuts it, while the client reads it as the answer to a request that forced all of the length.
    outcome = ask(temperature=0, stop=[whole[len(whole) // 2 :][:6]], min_tokens=None, demanded=TOKENS)
    assert outcome.reading is not None
    assert (outcome.error, outcome.reading.short_output) == (None, True)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_a_prompt_that_is_too_long(ask: Ask, path: str, stream: bool) -> None:
    text = "hello " * 6000
    prompt = {CHAT: {"messages": [{"role": "user", "content": text}]}, COMPLETIONS: {"prompt": text}}
    changes = prompt.get(path, {"input": text})
    outcome = ask(path, stream=stream, **changes, **({} if stream else {"stream_options": None}))
    assert outcome.error == "http_400"
    message = outcome.error_message or ""
    assert message.startswith("BadRequestError: This model's maximum context length is N tokens")
    assert "hello" not in message


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "nope"}, "http_404", "NotFoundError: The model `nope` does not exist."),
        ({"min_tokens": 99}, "http_400", "BadRequestError: min_tokens must be less than or equal to max_tokens=N"),
        ({"max_tokens": "many"}, "http_400", "Bad Request: N validation error: {'type': 'int_parsing'"),
    ],
)
def test_requests_that_vllm_refuses(ask: Ask, changes: dict[str, Any], error: str, message: str) -> None:
    outcome = ask(**changes)
    assert outcome.error == error
    assert (outcome.error_message or "").startswith(message)
    assert len(outcome.arrivals_ns) == 0


@pytest.mark.parametrize(("stream", "kinds"), [(True, {"api_error", "http_503"}), (False, {"http_503"})])
def test_a_full_queue_is_a_failure_even_where_the_status_says_200(ask: Ask, stream: bool, kinds: set[str]) -> None:
    """Requests that come together pass the check of the queue before it fills: their streams begin well, with HTTP 200,
    and the refusal is their only event."""
    asking = {"max_tokens": 800, "min_tokens": 800, "stream": stream}
    if not stream:
        asking["stream_options"] = None
    many = [gevent.spawn(ask, **asking) for _ in range(30)]
    gevent.joinall(many)
    outcomes = [one.value for one in many]
    counts = Counter(outcome.error for outcome in outcomes)
    assert {None} < set(counts) <= {None, *kinds}
    assert counts[None] >= 4
    messages = {(outcome.error, outcome.error_message) for outcome in outcomes if not outcome.ok}
    assert len(messages) == len(counts) - 1
    assert all("currently busy" in (message or "") for _, message in messages)
    for outcome in outcomes:
        assert outcome.reading is not None
        if outcome.ok:
            assert outcome.reading.output_tokens == 800
        else:
            assert (outcome.reading.events, len(outcome.arrivals_ns)) == (0, 0)
    _good(ask())


def _interrupted(engine: RunningEngine, ask: Ask, sign: signal.Signals) -> list[Outcome]:
    """Streams of three thousand tokens on two endpoints, in the middle of which the engine gets the signal."""
    asked = [(CHAT, "max_tokens"), (CHAT, "max_tokens"), (RESPONSES, "max_output_tokens")]
    streams = [
        gevent.spawn(ask, path, demanded=3000, **{longest: 3000}, **({} if path == RESPONSES else {"min_tokens": 3000}))
        for path, longest in asked
    ]
    gevent.sleep(2.5)
    os.kill(engine.child.pid, sign)
    gevent.joinall(streams)
    return [stream.value for stream in streams]


def _kept_or_told(outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        assert outcome.reading is not None
        assert not outcome.ok or outcome.reading.short_output
        assert 1 <= len(outcome.arrivals_ns) == outcome.reading.events < 3000 / PER_EVENT


def test_sigterm_in_mid_stream_makes_no_success(engine: RunningEngine, ask: Ask) -> None:
    """The last test of its engine. It may say that it gave up, or hang on stopping and say nothing more.

    It says that Responses are completed (its own source calls that a catch-all): only their length betrays them.
    """
    outcomes = _interrupted(engine, ask, signal.SIGTERM)
    _kept_or_told(outcomes)
    kinds = {"aborted", "api_error", TIMEOUT_IDLE, TRUNCATED, RESET}
    assert {outcome.error for outcome in outcomes[:2]} <= kinds
    assert outcomes[2].error in {None, *kinds}
    assert ask().error in ("connect", RESET, EMPTY)


def test_sigkill_in_mid_stream_truncates(tmp_path: Path) -> None:
    with _engine(tmp_path) as engine, _asking(engine.url) as ask:
        outcomes = _interrupted(engine, ask, signal.SIGKILL)
        _kept_or_told(outcomes)
        assert {outcome.error for outcome in outcomes} <= {TRUNCATED, RESET}
        assert engine.child is not None
        assert engine.child.wait(10) == -signal.SIGKILL
        # Its streams are cut before its listening socket is closed, so until it is gone a connect may still succeed.
        assert ask().error == "connect"
