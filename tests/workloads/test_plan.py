"""A plan is a pure function of workload, seed, salt and index: the same bytes wherever they are made."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tailgate.exits import BadInput
from workloads import ArrivalSpec, Plan, Workload, load_workload, make_plan, preset_names

ROOT = Path(__file__).parents[2]
SIZES = {"input-tokens": 40, "output-tokens": 7}


def plan(workload: Workload | None = None, **keys: Any) -> Plan:
    chosen = workload or load_workload("chat-mixed")
    return make_plan(chosen, **{"seed": 4, "model": "m", "counter": None, **keys})


def one_class(**keys: Any) -> Workload:
    return Workload.model_validate({"name": "w", "classes": {"a": {**SIZES, **keys}}})


def body(workload: Workload, **keys: Any) -> dict[str, Any]:
    return dict(json.loads(plan(workload, **keys).request(0).body))


def test_another_process_makes_the_same_bytes_and_times() -> None:
    script = (
        "from workloads import *\n"
        "p = make_plan(load_workload('chat-mixed'), seed=4, model='m', counter=None, salt='s',"
        " arrival=ArrivalSpec(kind='poisson', request_rate=30))\n"
        "print(p.bodies_sha256(200), [p.arrival_s(i) for i in (0, 1, 9999)])"
    )
    made = plan(salt="s", arrival=ArrivalSpec(kind="poisson", request_rate=30))
    expected = f"{made.bodies_sha256(200)} {[made.arrival_s(i) for i in (0, 1, 9999)]}"
    for hash_seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert ran.stdout.strip() == expected


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_any_number_of_workers_sends_the_same(workers: int) -> None:
    whole = plan()
    shares = [plan() for _ in range(workers)]
    bodies = {i: shares[k].request(i).body for k in range(workers) for i in range(k, 120, workers)}
    total = hashlib.sha256()
    for index in range(120):
        total.update(len(bodies[index]).to_bytes(8, "little") + bodies[index])
    assert total.hexdigest() == whole.bodies_sha256(120)


def test_seeds_and_salts_differ() -> None:
    hashes = {plan(seed=seed, salt=salt).bodies_sha256(20) for seed in (1, 2) for salt in ("", "x")}
    assert len(hashes) == 4


def test_the_body_of_a_streamed_chat() -> None:
    made = body(one_class())
    content = made.pop("messages")[0]["content"]
    assert len(content.split()) == 40
    assert made == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "min_tokens": 7,
        "ignore_eos": True,
    }


def test_what_options_add_to_the_body() -> None:
    assert body(one_class(), usage_per_chunk=True)["stream_options"] == {
        "include_usage": True,
        "continuous_usage_stats": True,
    }
    whole = body(one_class(), stream=False)
    assert whole["stream"] is False
    assert "stream_options" not in whole
    loose = body(one_class(**{"exact-output": False}))
    assert loose["max_tokens"] == 7
    assert not {"min_tokens", "ignore_eos"} & loose.keys()
    rich = body(
        one_class(
            sampling={"temperature": 0, "top_p": 0.9}, priority=3, model="lora", **{"extra-body": {"a": 1, "b": 1}}
        ),
        extra_body={"b": 2},
    )
    assert (rich["temperature"], rich["top_p"], rich["priority"], rich["model"]) == (0, 0.9, 3, "lora")
    assert (rich["a"], rich["b"]) == (1, 2), "the run's extra body wins"


def test_completions_and_objectives() -> None:
    workload = Workload.model_validate(
        {
            "name": "w",
            "slo": "ttft_p95<1s",
            "classes": {"a": {**SIZES, "endpoint": "completions"}, "b": {**SIZES, "slo": "e2e<2s"}},
        }
    )
    requests = {request.request_class: request for request in map(plan(workload).request, range(20))}
    assert requests["a"].endpoint == "/v1/completions"
    assert isinstance(json.loads(requests["a"].body)["prompt"], str)
    assert requests["b"].endpoint == "/v1/chat/completions"
    assert [objective.text for objective in requests["a"].slo] == ["ttft_p95<1s"]
    assert [objective.text for objective in requests["b"].slo] == ["e2e<2s"]


def test_responses_are_asked_in_their_own_words() -> None:
    keys: dict[str, Any] = {"endpoint": "responses", "system-prompt-tokens": 8, "input-tokens": 60}
    request = plan(one_class(**keys)).request(3)
    found = json.loads(request.body)
    assert request.endpoint == "/v1/responses"
    assert [message["role"] for message in found["input"]] == ["system", "user"]
    assert (found["max_output_tokens"], found["ignore_eos"], found["store"]) == (request.output_tokens, True, False)
    assert not {"messages", "prompt", "max_tokens", "min_tokens", "stream_options"} & found.keys()
    # The same prompt as chat's, which the server puts into the same template.
    chat = plan(one_class(**{**keys, "endpoint": "chat"})).request(3)
    assert found["input"] == json.loads(chat.body)["messages"]
    assert request.prompt_tokens == chat.prompt_tokens


@pytest.mark.parametrize(
    ("keys", "extra", "demanded"),
    [
        ({}, {}, 8),
        ({"exact-output": False}, {}, 0),
        ({"endpoint": "responses"}, {}, 8),
        ({}, {"n": 3}, 24),
        ({}, {"max_tokens": 20}, 20),
        ({"endpoint": "responses"}, {"max_output_tokens": 20}, 20),
        ({}, {"ignore_eos": False, "min_tokens": 2}, 2),
        ({"exact-output": False}, {"ignore_eos": True}, 8),
        ({"exact-output": False, "extra-body": {"ignore_eos": True}}, {}, 8),
        ({}, {"stop": ["x"], "min_tokens": 0}, 0),
        ({}, {"max_tokens": "many"}, 0),
    ],
)
def test_what_an_answer_must_have_at_least_is_what_the_body_forces(
    keys: dict[str, Any], extra: dict[str, Any], demanded: int
) -> None:
    made = plan(one_class(**{**keys, "output-tokens": 8}), extra_body=extra)
    assert made.request(0).demanded_tokens == demanded


def test_a_grid_point_has_its_lengths_and_users() -> None:
    workload = load_workload("reference-grid:c16-i128-o256")
    assert (workload.name, workload.arrival.users) == ("reference-grid-c16-i128-o256", 16)
    request = plan(workload).request(9)
    assert (request.prompt_tokens, request.output_tokens) == (128, 256)
    grid = load_workload("reference-grid").grid
    assert grid is not None
    assert len(grid.points()) == 4 * 3 * 3
    assert Workload.model_validate(workload.resolved()) == workload


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        (
            "reference-grid",
            {},
            "workload reference-grid is a grid of 36 points; choose one such as reference-grid:c1-i32-o64",
        ),
        ("azure-code", {}, "workload azure-code replays a trace (azure format); give its file with --trace FILE"),
        (
            "chat-short",
            {"trace": Path("x.csv")},
            "workload chat-short takes no trace; leave out --trace, or choose azure-code or mooncake-conversation",
        ),
        (
            "chat-short",
            {"arrival": ArrivalSpec(kind="trace")},
            "workload chat-short has no trace to take times from; choose another --arrival",
        ),
        (
            "chat-short",
            {"time_scale": 0},
            "--time-scale: 0 is not a pace; give a number above 0; 10 is ten times as fast",
        ),
    ],
)
def test_parts_that_do_not_fit_are_named(name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        plan(load_workload(name), **keys)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_is_named_as_its_file_and_repeats_from_run_json(name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    assert workload.description
    assert Workload.model_validate(json.loads(json.dumps(workload.resolved()))) == workload
