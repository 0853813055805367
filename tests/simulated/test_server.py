"""The engine as a client meets it: streams, limits, keys, leaving early, being stopped."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.waiting import eventually
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.virtual import Ask, open_loop

from .conftest import ROOT, EngineProcess
from .test_captures import CAPTURED, captured_events, shapes

Launch = Callable[..., EngineProcess]
CHAT = "/v1/chat/completions"


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


def text_of(events: list[str]) -> str:
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    return "".join(choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"])


def open_stream(engine: EngineProcess, body: dict[str, Any], receive_buffer: int | None = None) -> socket.socket:
    data = json.dumps(body | {"stream": True}).encode()
    sock = socket.socket()
    sock.settimeout(20)
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.connect(("127.0.0.1", engine.port))
    sock.sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(data)) + data)
    return sock


def read_to_end(sock: socket.socket) -> bytes:
    read = b""
    while part := sock.recv(65536):
        read += part
    return read


# -- replies --


def test_the_same_prompt_and_seed_give_the_same_reply(engine: EngineProcess) -> None:
    def said(text: str, **fields: Any) -> str:
        return engine.json(CHAT, chat(text, max_tokens=12, **fields))["choices"][0]["message"]["content"]

    assert said("hello") == said("hello")
    assert said("hello", seed=1) == said("hello", seed=1)
    assert len({said("hello"), said("other"), said("hello", seed=1)}) == 3


def test_another_process_with_the_same_seed_says_the_same(launch: Launch, engine: EngineProcess) -> None:
    other = launch("--seed", "0")
    reseeded = launch("--seed", "1")
    said = [e.json(CHAT, chat(max_tokens=12))["choices"][0]["message"]["content"] for e in (engine, other, reseeded)]
    assert said[0] == said[1] != said[2]


def test_streamed_and_whole_replies_say_the_same(engine: EngineProcess) -> None:
    body = chat(max_tokens=30, ignore_eos=True)
    whole = engine.json(CHAT, body)["choices"][0]["message"]["content"]
    assert text_of(engine.events(CHAT, body | {"stream": True})) == whole
    assert len(whole.split()) == 30


def test_replies_end_by_themselves_unless_told_to_go_on(engine: EngineProcess) -> None:
    ended = engine.json(CHAT, chat())
    assert ended["choices"][0]["finish_reason"] == "stop"
    natural = ended["usage"]["completion_tokens"]
    longer = natural + 10
    assert engine.json(CHAT, chat(min_tokens=longer))["usage"]["completion_tokens"] == longer
    forced = engine.json(CHAT, chat(ignore_eos=True, max_tokens=longer))
    assert (forced["usage"]["completion_tokens"], forced["choices"][0]["finish_reason"]) == (longer, "length")


def test_chinese_is_answered_in_chinese(engine: EngineProcess) -> None:
    answer = engine.json(CHAT, chat("今天天气怎么样", max_tokens=8))
    assert answer["usage"]["prompt_tokens"] == 7 + 10
    assert len(answer["choices"][0]["message"]["content"]) == 8


def test_a_stop_string_ends_a_reply_and_is_cut_off(engine: EngineProcess) -> None:
    body = chat(max_tokens=40, ignore_eos=True)
    words = engine.json(CHAT, body)["choices"][0]["message"]["content"].split(" ")
    stop = f"{words[10]} {words[11]}"
    whole = " ".join(words)
    for stream in (False, True):
        asked = body | {"stop": ["never said", stop], "stream": stream}
        if stream:
            events = engine.events(CHAT, asked)
            said, last = text_of(events), json.loads(events[-2])["choices"][0]
        else:
            last = engine.json(CHAT, asked)["choices"][0]
            said = last["message"]["content"]
        assert said == whole[: whole.index(stop)]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
    kept = engine.json(CHAT, body | {"stop": stop, "include_stop_str_in_output": True})
    assert kept["choices"][0]["message"]["content"].endswith(stop)


def test_completions_take_text_ids_and_several_prompts(engine: EngineProcess) -> None:
    for prompt, count, tokens in (("one two", 1, 2), ([5, 6, 7], 1, 3), (["one", "two three"], 2, 3)):
        answer = engine.json("/v1/completions", {"prompt": prompt, "max_tokens": 3})
        assert [choice["index"] for choice in answer["choices"]] == list(range(count))
        assert answer["usage"]["prompt_tokens"] == tokens
        assert answer["usage"]["completion_tokens"] == 3 * count
    assert engine.json("/v1/completions", {"prompt": "x", "ignore_eos": True})["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize("field", [{"logprobs": True}, {"response_format": {"type": "json_object"}}, {"echo": True}])
def test_what_needs_a_model_is_refused_honestly(engine: EngineProcess, field: dict[str, Any]) -> None:
    status, _, body = engine.ask(CHAT, chat(**field))
    assert status == 400
    assert "not supported by the embedded engine" in json.loads(body)["error"]["message"]


def test_token_ids_are_given_where_asked_for(engine: EngineProcess) -> None:
    events = engine.events(CHAT, chat("hello there", max_tokens=3, return_token_ids=True, stream=True, ignore_eos=True))
    first, *others = [json.loads(event) for event in events[:-1]]
    told = engine.json("/tokenize", {"messages": chat("hello there")["messages"]})
    assert first["prompt_token_ids"] == told["tokens"]
    assert [len(chunk["choices"][0]["token_ids"]) for chunk in others] == [1, 1, 1]


def test_tokenize_counts_as_generation_does(engine: EngineProcess) -> None:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is 水?"}]
    told = engine.json("/tokenize", {"model": "tiny", "messages": messages, "return_token_strs": True})
    used = engine.json(CHAT, {"messages": messages, "max_tokens": 1})["usage"]["prompt_tokens"]
    assert told["count"] == used == len(told["tokens"]) == len(told["token_strs"])
    assert list(told) == ["count", "max_model_len", "tokens", "token_strs"]
    text = engine.json("/tokenize", {"prompt": "one two"})
    assert (text["count"], text["max_model_len"], text["token_strs"]) == (2, 4096, None)
    assert engine.ask("/tokenize", {"model": "nope", "prompt": "x"})[0] == 404


# -- launch flags --


def test_cached_prompts_are_told_and_start_sooner(launch: Launch) -> None:
    engine = launch("--flag", "enable-prompt-tokens-details")
    prompt = "word " * 4000
    asked = chat(prompt, max_tokens=1)
    cached = [engine.json(CHAT, asked)["usage"]["prompt_tokens_details"]["cached_tokens"] for _ in range(2)]
    assert cached == [0, 4000]
    assert engine.metric("vllm:prefix_cache_hits_total") == 4000
    assert engine.metric("vllm:prompt_tokens_cached_total") == 4000


def test_stream_interval_bundles_tokens(launch: Launch) -> None:
    engine = launch("--flag", "stream-interval=4", "--slowdown", "0.1")
    events = engine.events(CHAT, chat(max_tokens=11, ignore_eos=True, stream=True))
    texts = [json.loads(event)["choices"][0]["delta"]["content"] for event in events[1:-1]]
    assert [text.count(" ") for text in texts] == [1, 4, 4, 2]


def test_a_full_queue_is_refused_with_503(launch: Launch) -> None:
    engine = launch("--flag", "max-num-queued-reqs=2")
    streams = [open_stream(engine, chat(str(i), max_tokens=2000, ignore_eos=True)) for i in range(2)]
    eventually(lambda: engine.metric("vllm:num_requests_running") == 2)
    status, _, body = engine.ask(CHAT, chat("third"))
    assert status == 503
    assert body.decode() == (CAPTURED / "queue_full_503.body.json").read_text().strip()
    rejections = 'vllm:admission_rejections_total{model_name="meta-llama/Llama-3.1-8B-Instruct",reason='
    assert engine.metric(rejections + '"max_num_queued_reqs"}') == 1
    for stream in streams:
        stream.close()
    eventually(lambda: engine.ask(CHAT, chat("later", max_tokens=1))[0] == 200)


def test_keys_guard_v1_only_and_are_never_shown(launch: Launch) -> None:
    secret = "sk-very-secret"
    engine = launch("--flag", f"api-key={secret}")
    from_environment = launch(env={**os.environ, "VLLM_API_KEY": secret})
    for guarded in (engine, from_environment):
        assert guarded.ask(CHAT, chat())[::2] == (401, b'{"error":"Unauthorized"}')
        assert guarded.ask("/v1/models", headers={"Authorization": "Bearer wrong"})[0] == 401
        assert guarded.ask(CHAT, chat(max_tokens=1), {"Authorization": f"Bearer {secret}"})[0] == 200
        assert guarded.ask("/health")[0] == 200
        assert secret not in guarded.ask("/metrics")[2].decode() + "".join(guarded.said)


def test_priority_lets_the_important_past_the_queue(launch: Launch) -> None:
    engine = launch("--flag", "scheduling-policy=priority", "--flag", "max-num-seqs=1", "--slowdown", "0.5")
    order: list[str] = []

    def ask(name: str, priority: int) -> None:
        tokens = 500 if name == "running" else 2
        engine.json(CHAT, chat(name, max_tokens=tokens, ignore_eos=True, priority=priority))
        order.append(name)

    def in_engine() -> float:
        return engine.metric("vllm:num_requests_running") + engine.metric("vllm:num_requests_waiting")

    threads = []
    for name, priority in (("running", 0), ("low", 9), ("high", 1)):
        threads.append(threading.Thread(target=ask, args=(name, priority)))
        threads[-1].start()
        eventually(lambda: in_engine() == len(threads))
    for thread in threads:
        thread.join()
    assert order == ["running", "high", "low"]


def test_other_names_and_request_ids_in_headers(launch: Launch) -> None:
    engine = launch("--flag", "served-model-name=mine", "--flag", "enable-request-id-headers")
    status, headers, _ = engine.ask(CHAT, chat(model="mine", max_tokens=1), {"X-Request-Id": "r-7"})
    assert (status, headers["x-request-id"]) == (200, "r-7")
    assert engine.ask(CHAT, chat(model="meta-llama/Llama-3.1-8B-Instruct"))[0] == 404


# -- coming, leaving, being stopped --


def test_a_client_that_leaves_ends_its_request(launch: Launch) -> None:
    engine = launch()
    stream = open_stream(engine, chat(max_tokens=5000, ignore_eos=True))
    assert b"data: " in stream.recv(65536)
    assert engine.metric("vllm:num_requests_running") == 1
    stream.close()
    eventually(lambda: engine.metric("vllm:num_requests_running") == 0)
    assert engine.metric("vllm:kv_cache_usage_perc") == 0
    assert engine.metric("vllm:request_success_total") == 0


def test_sigterm_ends_streams_with_abort_and_the_process_with_zero(launch: Launch) -> None:
    engine = launch("--flag", "served-model-name=tiny")
    stream = open_stream(engine, chat(max_tokens=5000, ignore_eos=True))
    first = stream.recv(65536)
    assert engine.stop() == 0
    told = (first + read_to_end(stream)).decode()
    events = [line[6:].strip() for line in told.splitlines() if line.startswith("data: ")]
    assert shapes(events[-2:]) == shapes(_captured_abort())
    assert told.endswith("0\r\n\r\n")


def _captured_abort() -> list[str]:
    text = (CAPTURED / "sigterm_midstream_done.http.txt").read_text()
    return [line[6:] for line in text.splitlines() if line.startswith("data: ")][-2:]


def test_a_connection_is_kept_and_requests_may_follow_each_other_at_once(engine: EngineProcess) -> None:
    body = json.dumps(chat(max_tokens=2, ignore_eos=True)).encode()
    one = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body
    last = one.replace(b"host: x", b"host: x\r\nconnection: close")
    with socket.create_connection(("127.0.0.1", engine.port), timeout=20) as sock:
        sock.sendall(one + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" + last)
        read = read_to_end(sock)
    assert read.count(b"HTTP/1.1 200 OK") == 3
    assert read.count(b"connection: close") == 1


def test_a_request_may_come_byte_by_byte(engine: EngineProcess) -> None:
    body = json.dumps(chat(max_tokens=1)).encode()
    raw = b"POST %b HTTP/1.1\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (CHAT.encode(), len(body)) + body
    with socket.create_connection(("127.0.0.1", engine.port), timeout=20) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(len(raw)):
            sock.sendall(raw[i : i + 1])
        assert read_to_end(sock).startswith(b"HTTP/1.1 200 OK")


def test_what_is_no_http_is_told_so(engine: EngineProcess) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), timeout=20) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        assert b"Invalid HTTP request received." in read_to_end(sock)


def test_a_slow_reader_gets_all_and_holds_up_nobody(launch: Launch) -> None:
    engine = launch("--slowdown", "0.01")
    slow = open_stream(engine, chat(max_tokens=20_000, ignore_eos=True), receive_buffer=1 << 16)
    eventually(lambda: engine.metric("vllm:generation_tokens_total") == 20_000)
    assert engine.ask(CHAT, chat(max_tokens=5))[0] == 200
    read = bytearray()
    while not read.endswith(b"0\r\n\r\n"):
        read += slow.recv(1 << 20)
    assert read.count(b'"content":" ') == 20_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--flag", "max-num-seqs=9000"], "max-num-batched-tokens"),
        (["--model", "gpt-2"], "no measured step times for the model 'gpt-2'"),
        (["--port", "{taken}"], "cannot listen on"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(engine: EngineProcess, options: list[str], message: str) -> None:
    command = [sys.executable, "-m", "vllm_launch.simulated", "--port", "0"]
    command += [option.format(taken=engine.port) for option in options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


# -- time --


def test_tokens_keep_the_pace_of_the_simulated_gpu(launch: Launch) -> None:
    """A lone stream of 200 tokens takes what its steps add up to; the engine's own figures say the same."""
    engine = launch()
    started = time.monotonic()
    engine.events(CHAT, chat(max_tokens=201, ignore_eos=True, stream=True))
    took = time.monotonic() - started
    decode = engine.metric("vllm:request_decode_time_seconds_sum")
    # Steps of 6.2 ms of kernels and 1.24 ms of host, from the table and the fitted overhead.
    assert decode == pytest.approx(200 * 0.00745, rel=0.03)
    ttft = engine.metric("vllm:time_to_first_token_seconds_sum")
    assert took >= decode + ttft - 0.001
    assert took < decode + ttft + 0.5
    assert engine.metric("vllm:inter_token_latency_seconds_count") == 200
    assert engine.metric("tailgate_simulated_lateness_seconds_count") == 201
    assert engine.metric("tailgate_simulated") == 1


def test_real_time_and_virtual_time_are_one_engine(launch: Launch) -> None:
    """The engine's own figures for a lone request in real time are those that virtual time computes."""
    engine = launch()
    prompt = "word " * 500
    used = engine.json(CHAT, chat(prompt, max_tokens=40, ignore_eos=True))["usage"]
    settings, _ = EngineSettings.from_flags("llama-3.1-8b", "h100-sxm", {})
    (served,) = open_loop(settings, [Ask(used["prompt_tokens"], used["completion_tokens"])]).served
    assert engine.metric("vllm:time_to_first_token_seconds_sum") == pytest.approx(served.ttft_s, abs=1e-6)
    e2e = served.end_s - served.arrival_s
    assert engine.metric("vllm:e2e_request_latency_seconds_sum") == pytest.approx(e2e, abs=1e-6)


def test_an_engine_that_falls_behind_says_so(launch: Launch) -> None:
    """Steps a thousand times faster than any GPU: no host can keep up, and the figures must not pretend it did."""
    engine = launch("--slowdown", "0.0005")
    streams = [open_stream(engine, chat(str(i), max_tokens=3000, ignore_eos=True)) for i in range(50)]
    eventually(lambda: engine.metric("tailgate_simulated_behind_steps_total") > 0)
    page = engine.ask("/metrics")[2].decode()
    assert 'tailgate_simulated_lateness_seconds_bucket{le="+Inf"' in page
    for stream in streams:
        stream.close()


def test_shapes_of_streams_stay_whole_under_load(engine: EngineProcess) -> None:
    expected = shapes(captured_events("chat_stream_plain"))
    results: list[list[Any]] = []

    def ask(i: int) -> None:
        body = chat(f"question {i}", model="tiny", max_tokens=8, ignore_eos=True, stream=True)
        results.append(shapes(engine.events(CHAT, body)))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 64


def test_clients_that_leave_before_their_prompt_is_read_do_no_harm(
    launch: Launch, capfd: pytest.CaptureFixture[str]
) -> None:
    engine = launch()
    for _ in range(20):
        stream = open_stream(engine, chat(max_tokens=4))
        time.sleep(0.002)
        stream.close()
    eventually(lambda: engine.metric("vllm:num_requests_running") == 0)
    stream = open_stream(engine, chat(max_tokens=4))
    time.sleep(0.002)
    assert engine.stop() == 0
    stream.close()
    assert "Traceback" not in capfd.readouterr().err
