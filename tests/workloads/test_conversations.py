"""Later turns repeat what was said, with the server's own answer, and add what the source says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.workloads.toys import WordTokens
from workloads import Answer, Plan, Workload, make_plan

CLASS: dict[str, Any] = {
    "input-tokens": 40,
    "output-tokens": 8,
    "turns": {
        "count": {"distribution": "uniform", "min": 2, "max": 5},
        "input-tokens": {"distribution": "uniform", "min": 3, "max": 30},
        "output-tokens": {"distribution": "uniform", "min": 4, "max": 9},
        "think-time": {"distribution": "uniform", "min": 1, "max": 3},
    },
}
CALLS = (
    {"id": "a", "type": "function", "function": {"name": "search", "arguments": "{}"}},
    {"id": "b", "type": "function", "function": {"name": "search", "arguments": "{}"}},
)
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}]


def plan(salt: str = "", **keys: Any) -> Plan:
    workload = Workload.model_validate({"name": "x", "classes": {"a": {**CLASS, **keys}}})
    return make_plan(workload, seed=3, model="m", counter=WordTokens(), salt=salt)


def test_a_turn_repeats_all_that_was_said_and_adds_its_own_words() -> None:
    made = plan()
    seen_turns, seen_lengths, seen_thoughts = set(), set(), set()
    for index in range(40):
        request = made.request(index)
        first = json.loads(request.body)
        seen_turns.add(request.turns)
        said = first["messages"]
        while not request.ends:
            answer = f" the answer to {request.turn}"
            think_s, request = made.next_turn(request, Answer(answer))
            body = json.loads(request.body)
            assert body["messages"][: len(said)] == said
            repeated, added = body["messages"][len(said) :]
            assert repeated == {"role": "assistant", "content": answer}
            assert added["role"] == "user"
            words = len(added["content"].split())
            assert 3 <= words <= 30
            assert 4 <= body["max_tokens"] == body["min_tokens"] == request.output_tokens <= 9
            assert {k: v for k, v in body.items() if k not in ("messages", "max_tokens", "min_tokens")} == {
                k: v for k, v in first.items() if k not in ("messages", "max_tokens", "min_tokens")
            }
            assert (request.index, request.prompt_tokens, request.scheduled_s) == (index, None, None)
            said = body["messages"]
            seen_lengths.add(words)
            seen_thoughts.add(think_s)
        assert request.turn + 1 == request.turns
    assert seen_turns == {2, 3, 4, 5}
    assert len(seen_lengths) > 15
    assert min(seen_thoughts) >= 1
    assert max(seen_thoughts) <= 3


def test_turns_are_the_same_on_every_worker_and_another_text_with_another_salt() -> None:
    first, second, salted = plan(), plan(), plan(salt="again")
    think_s, one = first.next_turn(first.request(7), Answer("yes"))
    assert second.next_turn(second.request(7), Answer("yes")) == (think_s, one)
    other = salted.next_turn(salted.request(7), Answer("yes"))[1]
    texts = [json.loads(request.body)["messages"][-1]["content"] for request in (one, other)]
    assert len(texts[0].split()) == len(texts[1].split())
    assert texts[0] != texts[1]


def test_completions_go_on_where_the_answer_ended() -> None:
    made = plan(endpoint="completions")
    request = made.request(0)
    before = json.loads(request.body)["prompt"]
    body = json.loads(made.next_turn(request, Answer(" and so on"))[1].body)
    assert body["prompt"].startswith(before + " and so on ")
    assert len(body["prompt"]) > len(before + " and so on ")


def test_responses_carry_their_input() -> None:
    made = plan(endpoint="responses")
    body = json.loads(made.next_turn(made.request(0), Answer("so"))[1].body)
    assert [message["role"] for message in body["input"]] == ["user", "assistant", "user"]
    assert body["max_output_tokens"] <= 9


@pytest.mark.parametrize(("calls", "roles"), [((), ["assistant", "user"]), (CALLS, ["assistant", "tool", "tool"])])
def test_a_tool_answers_the_calls_there_were(calls: Any, roles: list[str]) -> None:
    made = plan(tools=TOOLS, turns=CLASS["turns"] | {"role": "tool"})
    request = made.request(0)
    assert json.loads(request.body)["tools"] == TOOLS
    added = json.loads(made.next_turn(request, Answer("", calls))[1].body)["messages"][1:]
    assert [message["role"] for message in added] == roles
    if calls:
        assert added[0]["tool_calls"] == list(calls)
        assert [message["tool_call_id"] for message in added[1:]] == ["a", "b"]
        assert len(added[1]["content"].split()) >= 3


def test_extra_body_wins_over_the_length_of_later_turns_too() -> None:
    workload = Workload.model_validate({"name": "x", "classes": {"a": CLASS}})
    made = make_plan(workload, seed=3, model="m", counter=None, extra_body={"max_tokens": 2, "min_tokens": 1})
    body = json.loads(made.next_turn(made.request(0), Answer("a"))[1].body)
    assert (body["max_tokens"], body["min_tokens"]) == (2, 1)


def test_what_a_class_asks_for_stands_in_the_body() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    classes: dict[str, Any] = {"a": {"input-tokens": 40, "output-tokens": 8, "response-format": schema, "tools": TOOLS}}
    chat = make_plan(Workload.model_validate({"name": "x", "classes": classes}), seed=1, model="m", counter=None)
    body = json.loads(chat.request(0).body)
    assert body["response_format"] == schema
    assert "min_tokens" not in body
    assert "ignore_eos" not in body
    assert chat.request(0).demanded_tokens == 0
    classes["a"]["endpoint"] = "responses"
    responses = make_plan(Workload.model_validate({"name": "x", "classes": classes}), seed=1, model="m", counter=None)
    body = json.loads(responses.request(0).body)
    assert body["text"] == {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
    assert body["tools"] == [{"type": "function", "name": "search", "parameters": {"type": "object"}}]


def test_adapters_are_asked_for_as_often_as_zipf_says() -> None:
    lora = {"models": ["one", "two", "three"], "zipf": 1.0, "base-share": 0.25}
    workload = Workload.model_validate(
        {"name": "x", "classes": {"a": {"input-tokens": 4, "output-tokens": 2, "lora": lora}}}
    )
    made = make_plan(workload, seed=1, model="base", counter=None)
    models = [json.loads(made.request(index).body)["model"] for index in range(4000)]
    shares = {name: models.count(name) / 4000 for name in set(models)}
    total = 1 + 1 / 2 + 1 / 3
    assert workload.models == ("one", "three", "two")
    assert shares == pytest.approx(
        {"base": 0.25, "one": 0.75 / total, "two": 0.375 / total, "three": 0.25 / total}, abs=0.03
    )


def test_documents_are_whole_the_same_and_popular_by_rank() -> None:
    documents = {"count": 50, "tokens": 16, "per-request": 3, "zipf": 1.0}
    made = make_plan(
        Workload.model_validate(
            {"name": "x", "classes": {"a": {"input-tokens": 70, "output-tokens": 2, "documents": documents}}}
        ),
        seed=1,
        model="m",
        counter=WordTokens(),
    )
    counts: dict[tuple[str, ...], int] = {}
    for index in range(600):
        request = made.request(index)
        assert request.prompt_tokens == 70
        words = json.loads(request.body)["messages"][0]["content"].removeprefix("Please read this text").split()
        found = [tuple(words[i : i + 16]) for i in (0, 16, 32)]
        assert len(set(found)) == 3
        for document in found:
            counts[document] = counts.get(document, 0) + 1
    assert len(counts) <= 50, "no document but the fifty"
    ordered = sorted(counts.values(), reverse=True)
    assert ordered[0] > 2.5 * ordered[9]


def test_tools_count_towards_the_prompt() -> None:
    made = plan(tools=TOOLS, **{"input-tokens": 80})
    content = json.loads(made.request(0).body)["messages"][0]["content"]
    counter = WordTokens()
    assert counter.count_messages([{"role": "user", "content": content}], TOOLS) == 80
