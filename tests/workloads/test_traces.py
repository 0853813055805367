"""Traces are replayed row by row, in order, at their pace, and hashed blocks become shared text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tailgate.exits import BadInput
from tests.workloads.toys import WordTokens
from workloads import ArrivalSpec, Plan, load_workload, make_plan
from workloads.sources.trace import Trace, open_trace
from workloads.spec import RequestClass, TraceSource

AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def azure(tmp_path: Path, rows: str, header: str = AZURE_HEADER) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(header + rows, encoding="utf-8")
    return path


def mooncake(tmp_path: Path, rows: list[Any]) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def plan(name: str, path: Path, **keys: Any) -> Plan:
    return make_plan(load_workload(name), seed=1, model="m", counter=WordTokens(), trace=path, **keys)


def many(count: int) -> str:
    return "".join(f"2023-11-16 18:{i // 60:02}:{i % 60:02}.5000000,{100 + i},{1 + i % 50}\n" for i in range(count))


def test_every_row_once_in_order_at_its_time(tmp_path: Path) -> None:
    made = plan("azure-code", azure(tmp_path, many(900)))
    assert made.length == 900
    requests = [made.request(index) for index in range(900)]
    assert [request.prompt_tokens for request in requests] == [100 + i for i in range(900)]
    assert [request.output_tokens for request in requests] == [1 + i % 50 for i in range(900)]
    assert [request.scheduled_s for request in requests] == pytest.approx([float(i) for i in range(900)])
    for past in (900, -1):
        with pytest.raises(IndexError):
            made.request(past)
        with pytest.raises(IndexError):
            made.arrival_s(past)


def test_time_scale_ten_is_ten_times_as_fast(tmp_path: Path) -> None:
    made = plan("azure-code", azure(tmp_path, many(50)), time_scale=10)
    assert made.arrival_s(49) == pytest.approx(4.9)


def test_workers_that_jump_read_the_same_rows(tmp_path: Path) -> None:
    path = azure(tmp_path, many(1500))
    whole = plan("azure-code", path)
    workers = [plan("azure-code", path) for _ in range(5)]
    for index in [*range(0, 1500, 7), 3, 1499, 0]:
        assert workers[index % 5].request(index) == whole.request(index)


def test_windows_line_ends_blank_lines_and_other_columns(tmp_path: Path) -> None:
    path = azure(
        tmp_path,
        "7,2024-05-10 00:00:00.009930+00:00,5,chat\r\n\r\n8,2024-05-10 00:00:01.009930+00:00,6,chat\r\n",
        "GeneratedTokens,TIMESTAMP,ContextTokens,Kind\r\n",
    )
    source = Trace(open_trace(path, TraceSource(format="azure")), "a", RequestClass())
    assert [(d.input_tokens, d.output_tokens, d.offset_s) for d in map(source.design, range(2))] == [
        (5, 7, 0.0),
        (6, 8, pytest.approx(1.0)),
    ]


def test_other_arrivals_keep_the_lengths(tmp_path: Path) -> None:
    made = plan("azure-code", azure(tmp_path, many(20)), arrival=ArrivalSpec(kind="constant", request_rate=4))
    assert made.request(8).scheduled_s == 2.0
    assert made.request(8).prompt_tokens == 108
    with pytest.raises(IndexError):
        made.arrival_s(20)


def test_lengths_are_cut_only_when_told_and_that_is_said(tmp_path: Path) -> None:
    path = azure(tmp_path, "2023-11-16 18:00:00,5000,40\n2023-11-16 18:00:01,100,0\n")
    free, cut = plan("azure-code", path), plan("azure-code", path, max_model_len=1000)
    assert free.request(0).prompt_tokens == 5000
    assert (cut.request(0).prompt_tokens, cut.request(0).output_tokens) == (960, 40)
    said = "class code: requests of up to 5,040 tokens, prompt and answer, are cut to the 1,000 that the model takes"
    assert said in cut.notes
    assert not any("are cut" in note for note in (*free.notes, *plan("azure-code", path, max_model_len=6000).notes))
    assert free.request(1).output_tokens == 1
    assert any("1 rows of the trace ask for no output tokens" in note for note in free.notes)


def words_after_lead(made: Plan, index: int) -> list[str]:
    content = json.loads(made.request(index).body)["messages"][0]["content"]
    return str(content).removeprefix("Please read this text").split()


def test_equal_hash_prefixes_become_equal_text(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1300, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 1000, "input_length": 1500, "output_length": 5, "hash_ids": [1, 2, 4]},
        {"timestamp": 1000, "input_length": 1030, "output_length": 5, "hash_ids": [9, 2, 4]},
    ]
    made = plan("mooncake-conversation", mooncake(tmp_path, rows))
    assert [made.request(index).prompt_tokens for index in range(3)] == [1300, 1500, 1030]
    one, two, three = (words_after_lead(made, index) for index in range(3))
    assert one[:1024] == two[:1024]
    assert one[1024:1032] != two[1024:1032], "block 3 is not block 4"
    assert one[:16] != three[:16]
    assert one[512:1000] == three[512:1000], "the same block has the same words wherever it stands"
    assert made.request(1).scheduled_s == 1.0


@pytest.mark.parametrize("ids", [[], [7], None])
def test_what_hash_ids_leave_open_is_filled_with_own_words(tmp_path: Path, ids: list[int] | None) -> None:
    rows = [{"timestamp": at, "input_length": 1300, "output_length": 5, "hash_ids": ids} for at in (0, 1000)]
    made = plan("mooncake-conversation", mooncake(tmp_path, rows))
    assert [made.request(index).prompt_tokens for index in range(2)] == [1300, 1300]
    one, two = (words_after_lead(made, index) for index in range(2))
    shared = 512 * len(ids or ())
    assert one[:shared] == two[:shared]
    assert one[shared : shared + 8] != two[shared : shared + 8]


def test_the_salt_changes_the_blocks(tmp_path: Path) -> None:
    rows = [{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}]
    path = mooncake(tmp_path, rows)
    assert (
        words_after_lead(plan("mooncake-conversation", path), 0)[:8]
        != words_after_lead(plan("mooncake-conversation", path, salt="again"), 0)[:8]
    )


GOOD = "2023-11-16 18:00:00.5,10,10\n"


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (GOOD + "2023-11-16 18:00:01,ten,10\n", AZURE_HEADER, ":3: ContextTokens: 'ten' is no number of tokens"),
        (GOOD + "2023-11-16 18:00:01,10,-1\n", AZURE_HEADER, ":3: GeneratedTokens: '-1' is no number of tokens"),
        (
            GOOD + "2023-11-16 18:00:01,99999999,1\n",
            AZURE_HEADER,
            ":3: ContextTokens: 99999999 tokens are more than any model takes",
        ),
        (GOOD + "yesterday,10,10\n", AZURE_HEADER, ":3: TIMESTAMP: 'yesterday' is no date and time"),
        (GOOD + "\n2023-11-16 18:00:01,10\n", AZURE_HEADER, ":4: 2 cells where the header has 3"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, rows: str, header: str, message: str) -> None:
    path = azure(tmp_path, rows, header)
    with pytest.raises(BadInput) as caught:
        plan("azure-code", path)
    assert str(caught.value) == f"{path}{message}; mend or remove that line"


def test_other_faults_of_a_trace(tmp_path: Path) -> None:
    def said(path: Path, name: str = "azure-code") -> str:
        with pytest.raises(BadInput) as caught:
            plan(name, path)
        return str(caught.value)

    path = azure(tmp_path, "", "TIMESTAMP,ContextTokens\n")
    mend = "give a file in the azure format"
    assert said(path) == f"{path}:1: the column GeneratedTokens is missing from the header; {mend}"
    path = azure(tmp_path, "")
    assert said(path) == f"{path}: the trace has no rows; give a trace with at least one request"
    path = azure(tmp_path, GOOD + "2023-11-16 17:00:00,10,10\n")
    assert said(path) == f"{path}:3: earlier than the row before it; sort the trace by time"
    absent = tmp_path / "absent.csv"
    assert said(absent) == f"{absent}: No such file or directory; give the path of a trace file that can be read"
    path = mooncake(tmp_path, [{"timestamp": 0, "input_length": 5, "output_length": 5}, "{oops"])
    assert said(path, "mooncake-conversation").startswith(f"{path}:2: JSON is malformed")
    path = mooncake(tmp_path, [{"timestamp": 0, "input_length": "5", "output_length": 5}])
    assert said(path, "mooncake-conversation") == (
        f"{path}:1: expected `int`, got `str` - at `$.input_length`; mend or remove that line"
    )
