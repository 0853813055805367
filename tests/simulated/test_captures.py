"""What the engine says, against what a real vLLM 0.32 said to the same requests (`captured/`)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import EngineProcess

CAPTURED = Path(__file__).parent / "captured"
STREAMS = ("contusage", "maxcomp", "mintok", "plain", "usage")
ERRORS = (
    "err_badjson",
    "err_badmodel",
    "err_badtype",
    "err_bigmax",
    "err_mintok",
    "err_neg_maxtok",
    "err_nomessages",
    "err_streamopts_nostream",
    "temperature_bad",
)
# What no two servers, models or tokenizers share.
_OWN = {"id", "created", "content", "text", "prompt_tokens", "total_tokens", "system_fingerprint"}


def capture(name: str) -> tuple[int, dict[str, str], str]:
    head, _, body = (CAPTURED / name).read_text().partition("\n\n")
    status, *fields = head.splitlines()
    return int(status.split()[1]), dict(field.lower().split(": ", 1) for field in fields), body


def request(name: str) -> bytes:
    return (CAPTURED / f"{name}.request.json").read_bytes().strip()


def path_for(name: str) -> str:
    return "/v1/completions" if name.startswith("comp") else "/v1/chat/completions"


def shape(value: Any) -> Any:
    """Keys in their order, and values but for those of each server's own."""
    if isinstance(value, dict):
        return [(key, "own" if key in _OWN and inner is not None else shape(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return value


def shapes(events: list[str]) -> list[Any]:
    return [event if event == "[DONE]" else shape(json.loads(event)) for event in events]


def captured_events(name: str) -> list[str]:
    return re.findall(r"^data: (.*)$", capture(f"{name}.response.txt")[2], re.MULTILINE)


@pytest.mark.parametrize("name", [*(f"chat_stream_{kind}" for kind in STREAMS), "comp_stream", "stop_stream"])
def test_streams_have_vllms_shape(engine: EngineProcess, name: str) -> None:
    body = json.loads(request(name)) | {"ignore_eos": True}
    assert shapes(engine.events(path_for(name), body)) == shapes(captured_events(name))


def test_two_choices_share_a_stream(engine: EngineProcess) -> None:
    """The order of the choices' chunks is free; the roles come first, each choice's own chunks in order."""
    ours = engine.events("/v1/chat/completions", json.loads(request("n2_stream")) | {"ignore_eos": True})
    theirs = captured_events("n2_stream")
    assert shapes(ours)[:2] == shapes(theirs)[:2]
    assert shapes(ours)[-2:] == shapes(theirs)[-2:]

    def of(events: list[str], index: int) -> list[Any]:
        chosen = [e for e in events[:-2] if json.loads(e)["choices"][0]["index"] == index]
        return shapes(chosen)

    assert [of(ours, i) for i in (0, 1)] == [of(theirs, i) for i in (0, 1)]


@pytest.mark.parametrize("name", ["chat_nonstream", "comp_nonstream", "unknown_field"])
def test_whole_answers_have_vllms_shape(engine: EngineProcess, name: str) -> None:
    body = json.loads(request(name)) | {"ignore_eos": True}
    status, headers, read = engine.ask(path_for(name), body)
    assert status == 200
    assert shape(json.loads(read)) == shape(json.loads(capture(f"{name}.response.txt")[2]))
    assert headers["content-type"] == "application/json"
    assert headers["x-tailgate-simulated"] == "true"


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_vllms_to_the_byte(engine: EngineProcess, name: str) -> None:
    status, _, body = capture(f"{name}.response.txt")
    ours = engine.ask("/v1/chat/completions", request(name))
    assert (ours[0], ours[2].decode()) == (status, body)


def test_a_prompt_too_long_is_refused_in_vllms_words(engine: EngineProcess) -> None:
    status, _, body = capture("err_toolong.response.txt")
    asked = {"model": "tiny", "messages": [{"role": "user", "content": "word " * 6000}], "stream": True}
    ours = engine.ask("/v1/chat/completions", asked)
    assert (ours[0], ours[2].decode()) == (status, body)


def test_prompt_and_reply_together_too_long(engine: EngineProcess) -> None:
    status, _, body = engine.ask("/v1/completions", {"prompt": "word " * 100, "max_tokens": 4090})
    assert status == 400
    assert json.loads(body)["error"] == {
        "message": "This model's maximum context length is 4096 tokens. However, you requested 4090 output tokens and "
        "your prompt contains at least 7 input tokens, for a total of at least 4097 tokens. Please reduce the length "
        "of the input prompt or the number of requested output tokens. (parameter=input_tokens, value=7)",
        "type": "BadRequestError",
        "param": "input_tokens",
        "code": 400,
    }


def test_unknown_paths_and_methods(engine: EngineProcess) -> None:
    status, _, body = capture("err_404.response.txt")
    ours = engine.ask("/v1/nothing")
    assert (ours[0], ours[2].decode()) == (status, body)
    assert engine.ask("/v1/chat/completions")[::2] == (405, b'{"detail":"Method Not Allowed"}')


def test_the_small_routes(engine: EngineProcess) -> None:
    assert engine.ask("/health")[::2] == (200, b"")
    assert engine.ask("/load")[2].decode() == capture("load.txt")[2]
    models = engine.json("/v1/models")
    theirs = json.loads(capture("models.txt")[2])
    assert list(models["data"][0]) == list(theirs["data"][0])
    assert (models["data"][0]["id"], models["data"][0]["max_model_len"]) == ("tiny", 4096)
    version = engine.json("/version")
    assert (version["version"], version["simulated"], version["engine"]) == ("0.32.0", True, "tailgate-simulated")


def test_request_ids_are_the_clients_own_where_given(engine: EngineProcess) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    theirs = json.loads(capture("chat_xrequestid.response.txt")[2])["id"]
    assert engine.json("/v1/chat/completions", body, {"X-Request-Id": "abc-123"})["id"] == theirs
    assert engine.json("/v1/chat/completions", body | {"request_id": "my-req-1"})["id"] == "chatcmpl-my-req-1"


def sample_names(page: str) -> set[str]:
    """Each sample's name and labels; of `cache_config_info` and `python_info` the label names only."""
    names = set()
    for line in page.splitlines():
        if line.startswith("#"):
            names.add(" ".join(line.split()[:4]) if line.startswith("# TYPE") else "")
            continue
        name = line if line.endswith("}") or " " not in line else line.rsplit(" ", 1)[0]
        if name.startswith(("vllm:cache_config_info", "python_info")):
            name = name.split("{")[0] + str(sorted(re.findall(r'(\w+)="', name)))
        names.add(name)
    return names - {""}


def test_the_metrics_page_has_every_name_label_and_bucket_of_vllms(engine: EngineProcess) -> None:
    engine.json("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2})
    status, headers, page = engine.ask("/metrics")
    assert status == 200
    assert headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    ours = sample_names(page.decode())
    theirs = sample_names((CAPTURED / "metrics_samples.txt").read_text())
    assert theirs - ours == set()
    assert {name for name in ours - theirs if name.startswith("vllm:")} == set()
