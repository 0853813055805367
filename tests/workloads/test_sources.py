"""Files of texts and of lengths: every row once and in order, found again from anywhere, nothing of them kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailgate.exits import BadInput
from tests.workloads.toys import WordTokens
from workloads import Answer, Plan, Workload, load_workload, make_plan
from workloads.lengths import Empirical
from workloads.sources.trace import open_trace
from workloads.spec import TraceSource


def plan(path: Path, item: dict[str, Any] | None = None, counter: Any = None, **trace: Any) -> Plan:
    workload = Workload.model_validate({"name": "x", "classes": {"a": item or {}}, "trace": trace})
    return make_plan(workload, seed=1, model="m", counter=counter, trace=path)


def body(made: Plan, index: int) -> dict[str, Any]:
    return dict(json.loads(made.request(index).body))


SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "human", "value": 'Say "}]" and \\ and ünï'},
            {"from": "gpt", "value": "x" * 400},
            {"from": "human", "value": "Again"},
            {"from": "gpt", "value": "y" * 80},
        ],
    },
    {"id": "b", "conversations": [{"from": "gpt", "value": "nobody asked"}]},
    {"id": "c", "conversations": [{"from": "system", "value": "Be brief"}, {"from": "human", "value": "Hi"}]},
]


@pytest.mark.parametrize("indent", [None, 2])
def test_sharegpt(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "s.json"
    path.write_text(json.dumps(SHAREGPT, indent=indent, ensure_ascii=False), encoding="utf-8")
    made = plan(path, format="sharegpt", **{"think-time": 2})
    assert made.length == 2
    assert any("1 rows of s.json hold nothing that a user said" in note for note in made.notes)
    first = made.request(0)
    assert (first.turns, first.output_tokens, first.prompt_tokens) == (2, 100, None)
    assert body(made, 0)["messages"] == [{"role": "user", "content": 'Say "}]" and \\ and ünï'}]
    assert body(made, 1)["messages"] == [
        {"role": "system", "content": "Be brief"},
        {"role": "user", "content": "Hi"},
    ]
    think_s, second = made.next_turn(first, Answer("the server's own"))
    assert (think_s, second.output_tokens, second.ends) == (2, 20, True)
    assert json.loads(second.body)["messages"][1:] == [
        {"role": "assistant", "content": "the server's own"},
        {"role": "user", "content": "Again"},
    ]
    assert plan(path, format="sharegpt", **{"most-turns": 1}).request(0).ends


def test_answers_are_as_long_as_the_recorded_ones_by_the_tokenizers_own_measure(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    answer = "word " * 30
    said = [{"conversations": [{"from": "human", "value": "say word"}, {"from": "gpt", "value": answer}]}] * 3
    path.write_text(json.dumps(said))
    made = plan(path, format="sharegpt", counter=WordTokens())
    assert made.request(0).output_tokens == pytest.approx(len(WordTokens().tokens(answer)), rel=0.1)
    assert "answers ask for one token per" in made.notes[0]
    assert "as measured on a sample" in made.notes[0]
    fixed = plan(path, {"output-tokens": 7}, format="sharegpt")
    assert fixed.request(1).output_tokens == 7


def test_openai_conversations_alone_and_in_batch_files(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    rows: list[dict[str, Any]] = [
        {
            "messages": [
                {"role": "system", "content": "S"},
                {"role": "user", "content": [{"type": "text", "text": "parts"}]},
                {"role": "assistant", "content": None, "tool_calls": calls},
                {"role": "tool", "tool_call_id": "1", "content": "42"},
                {"role": "assistant", "content": "It is 42"},
            ]
        },
        {"custom_id": "x", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "other", "max_tokens": 33, "messages": [{"role": "user", "content": "Q"}]}},
    ]  # fmt: skip
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    made = plan(path, format="conversations")
    assert body(made, 0)["messages"] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "parts"}]},
    ]
    own = [{"id": "9", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    with_calls = json.loads(made.next_turn(made.request(0), Answer("", own))[1].body)["messages"]
    assert with_calls[-1] == {"role": "tool", "tool_call_id": "9", "content": "42"}
    without = json.loads(made.next_turn(made.request(0), Answer("no calls"))[1].body)["messages"]
    assert without[-1] == {"role": "user", "content": "42"}
    assert (body(made, 1)["max_tokens"], body(made, 1)["model"]) == (33, "m")


def test_a_developers_words_are_the_systems(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text('\n {"messages": [{"role": "developer", "content": "D"}, {"role": "user", "content": "U"}]}\n')
    said = body(plan(path, format="conversations"), 0)["messages"]
    assert said == [{"role": "system", "content": "D"}, {"role": "user", "content": "U"}]


@pytest.mark.parametrize("tokens", [-5, 0, 99_999_999])
@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_a_recorded_limit_that_is_none(tmp_path: Path, key: str, tokens: int) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "U"}], key: tokens}))
    with pytest.raises(BadInput, match=rf"c.jsonl:1: expected `int` .* at `\$.{key}`; mend or remove that line"):
        plan(path, format="conversations")


def test_vllms_custom_prompts_go_to_either_endpoint(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "One?", "output_tokens": 12}\n{"prompt": "Two?"}\n')
    chat, text = plan(path, format="prompts"), plan(path, {"endpoint": "completions"}, format="prompts")
    assert body(chat, 0)["messages"] == [{"role": "user", "content": "One?"}]
    assert (body(text, 0)["prompt"], body(text, 0)["max_tokens"]) == ("One?", 12)
    assert body(text, 1)["max_tokens"] == 256
    again = plan(path, format="prompts", repeat=True)
    assert again.length is None
    assert body(again, 5) == body(chat, 1)


def test_burstgpt_in_both_releases(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,0,1087,API log\n"
    )
    made = make_plan(load_workload("burstgpt"), seed=1, model="m", counter=WordTokens(), trace=path)
    assert [(r.prompt_tokens, r.output_tokens, r.scheduled_s) for r in map(made.request, range(2))] == [
        (472, 18, 0.0),
        (1087, 1, 40.5),
    ]
    assert any("1 rows of the trace ask for no output" in note for note in made.notes)
    path.write_text(
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
    )
    assert open_trace(path, TraceSource(format="burstgpt")).row(0).input_tokens == 906


def test_timed_traces_as_vllms_bench_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [{"at": at, "in": 57, "out": 5, "ids": [-1, 2, at]} for at in (100, 250)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    labels = {"timestamp": "at", "input-length": "in", "output-length": "out", "hash-ids": "ids"}
    made = plan(path, counter=WordTokens(), format="timed-trace", labels=labels, **{"seconds-per-unit": 0.01})
    words = [body(made, i)["messages"][0]["content"].split()[4:] for i in range(2)]
    assert words[0][:31] == words[1][:31]
    assert words[0][32:] != words[1][32:]
    open_loop = make_plan(made.workload, seed=1, model="m", counter=None, trace=path,
                          arrival=made.workload.arrival.overridden("trace"))  # fmt: skip
    assert open_loop.arrival_s(1) == pytest.approx(1.5)


def test_rows_are_found_from_anywhere_in_a_file_of_many_pieces(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    said = [[{"from": "human", "value": f"{i} {'[{' * (i % 7)} " + "z" * (i * 37 % 3000)}] for i in range(900)]
    path.write_text(json.dumps([{"conversations": item} for item in said]))
    file = open_trace(path, TraceSource(format="sharegpt"))
    assert file.length == 900
    for index in [*range(0, 900, 61), 899, 0, 450, 451]:
        conversation = file.row(index).conversation
        assert conversation is not None
        assert conversation.opening[0]["content"] == said[index][0]["value"]
    with pytest.raises(IndexError):
        file.row(900)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"conversations": []}, 5]', ":1: not an object ({…}), as every element of the array must be; "),
        ('[{"conversations": []},\n{"conversations": [', ":2: the file ends in the middle of this element; "),
        ('[{"conversations": []}', ":1: the file ends before the array does (no ']'); "),
        ('[{"conversations": []},\n\n {"conversation": []}]', ":3: object missing required field `conversations`; "),
        ('[{"conversations": [{"from": "human", "value": 5}]}]', ":1: expected `str`, got `int` - at "),
        ('\n\n[{"conversations": []},\n\n 5]', ":5: not an object ({…}), as every element of the array must be; "),
        ("[]", ": the trace has no rows; "),
        ("", ": the file is empty; give a file in the sharegpt format"),
    ],
)
def test_a_broken_file_is_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        plan(path, format="sharegpt")
    assert str(caught.value).startswith(f"{path}{message}")


def test_empirical_lengths_from_a_column_beside_the_workload(tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("in,out\n" + "".join(f"{n},{n * 2}\n" for n in (10, 10, 10, 40)))
    (tmp_path / "w.yaml").write_text(
        "name: w\nclasses:\n  a:\n    input-tokens: {distribution: empirical, file: lengths.csv, column: in}\n"
        "    output-tokens: {distribution: empirical, file: lengths.csv, column: out}\n"
    )
    workload = load_workload(str(tmp_path / "w.yaml"))
    (tmp_path / "lengths.csv").unlink()
    again = Workload.model_validate(workload.resolved())
    assert again == workload
    length = again.classes["a"].output_tokens
    assert isinstance(length, Empirical)
    assert [length.at(u) for u in (0.01, 0.74, 0.76, 0.99)] == [20, 20, 80, 80]
    assert length.mean() == pytest.approx(35, abs=0.1)


def test_many_different_lengths_are_kept_by_rank(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("tokens\n" + "".join(f"{n}\n" for n in range(1, 20_001)))
    made = Empirical.model_validate({"distribution": "empirical", "file": str(tmp_path / "lengths.txt")})
    assert len(made.values or ()) <= 4096
    for u in (0.001, 0.25, 0.5, 0.9, 0.999):
        assert made.at(u) == pytest.approx(20_000 * u, abs=6)


def test_a_past_run_is_sent_once_more_or_under_another_salt_in_other_words(tmp_path: Path) -> None:
    def kept(name: str, made: Workload, salt: str, trace: Path | None) -> Path:
        directory = tmp_path / name
        directory.mkdir()
        arrival = {"kind": "poisson", "trace": str(trace) if trace else None}
        meta = {"workload": made.model_dump(mode="json"), "seed": 7, "salt": salt, "arrival": arrival}
        (directory / "run.json").write_text(json.dumps(meta))
        lines = (json.dumps({"index": i, "sent_ns": 10**9 * (i + 1)}) for i in range(3))
        (directory / "requests.jsonl").write_text("\n".join(lines) + "\n")
        return directory

    def sent(made: Plan) -> list[bytes]:
        return [bytes(made.request(i).body) for i in range(3)]

    def again(directory: Path, **other: Any) -> list[bytes]:
        return sent(make_plan(load_workload(str(directory)), seed=1, model="m", counter=None, **other))

    chat = load_workload("chat-short")
    first = kept("first", chat, "", None)
    once = sent(make_plan(chat, seed=7, model="m", counter=None))
    assert again(first) == once
    salted = again(first, salt="x")
    assert not set(salted) & set(once)
    assert [json.loads(b)["max_tokens"] for b in salted] == [json.loads(b)["max_tokens"] for b in once]
    second = kept("second", load_workload(str(first)), "x", first)
    assert again(second) == salted
