"""A mistake in a workload file ends in one line that names file, line, key and mend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailgate.exits import BadInput
from workloads import load_workload

GOOD = """\
name: x
classes:
  a:
    input-tokens: 10
    output-tokens: {distribution: uniform, min: 4, max: 8}
"""


def said(tmp_path: Path, text: str) -> str:
    path = tmp_path / "w.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        load_workload(str(path))
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(str(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("input-tokens", "input-tokns", ":4: unknown key 'classes.a.input-tokns'; did you mean 'input-tokens'?"),
        ("uniform", "unifrom", ":5: classes.a.output-tokens: unknown distribution 'unifrom'; did you mean 'uniform'?"),
        ("distribution: uniform, ", "", ":5: the key 'classes.a.output-tokens.distribution' is missing; add it"),
        ("max: 8", "mx: 8", ":5: unknown key 'classes.a.output-tokens.mx'; did you mean 'max'?"),
        ("min: 4", "min: 40", ":5: classes.a.output-tokens: min 40 is above max 8; swap them"),
        (": 10", ": ten", ":4: classes.a.input-tokens: input should be a valid integer, got 'ten'; mend that value"),
        (": 10", ": true", ":4: classes.a.input-tokens: input should be a valid integer, got True; mend that value"),
        ("    input-tokens: 10\n", "", ":3: classes.a: the key 'input-tokens' is missing; add it"),
        (
            "  a:",
            "  a b:",
            ":3: classes.a b: 'a b' will not do as a name; use letters, digits, '.', '_' and '-' (64 at most)",
        ),
        (
            "name: x",
            "name: x\nname: y",
            ":2: not valid YAML: the key 'name' stands twice; keep one of them; mend that line",
        ),
        ("classes:", "clases:", ":2: unknown key 'clases'; did you mean 'classes'?"),
        ("name: x", "? [a]\n: b", ":1: not valid YAML: a key must be plain text; mend that line"),
    ],
)
def test_a_changed_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert said(tmp_path, GOOD.replace(old, new, 1)) == message


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ("arival: {}", ":6: unknown key 'arival'; did you mean 'arrival'?"),
        (
            "    sampling: {temperatur: 0}",
            ":6: unknown key 'classes.a.sampling.temperatur'; did you mean 'temperature'?",
        ),
        ("    slo: ttft_p95<1", ":6: classes.a.slo: 'ttft_p95<1' names no unit; write ttft_p95<1ms or ttft_p95<1s"),
        (
            "gate: ttft_p99<1s,throughput_rise<5%",
            ":6: gate: 'throughput_rise<5%' bounds what is no loss; write throughput_drop<5%",
        ),
        ("    weight: -1", ":6: classes.a.weight: input should be greater than 0, got -1; mend that value"),
        (
            "    extra-body: {stream: false}",
            ":6: classes.a.extra-body: 'stream' is set by the workload itself; leave it out of extra-body",
        ),
        (
            "    extra-body: {logit_bias: {a: .nan}}",
            (
                ":6: classes.a.extra-body: not JSON (Out of range float values are not JSON compliant); "
                "put dates into quotes, and use no .nan, .inf or !!set"
            ),
        ),
        (
            "    tools: [{type: function, function: {name: f, since: 2026-01-01}}]",
            (
                ":6: classes.a.tools.0: not JSON (Object of type date is not JSON serializable); "
                "put dates into quotes, and use no .nan, .inf or !!set"
            ),
        ),
        (
            "arrival: {request-rate: 5}",
            ":6: arrival: 'request-rate' goes with constant, poisson or gamma arrivals, not closed",
        ),
        (
            "arrival: {kind: poisson, request-rate: 5, burstiness: 2}",
            ":6: arrival: 'burstiness' goes with gamma arrivals, not poisson; write 'kind: gamma'",
        ),
        (
            "    shared-prefix: {tokens: 32}",
            ":4: classes.a.input-tokens: at most 10, but the shared parts alone are 32; ask for longer prompts",
        ),
        (
            "arrival: {kind: poisson}",
            ":6: arrival: poisson arrivals need a rate; add 'request-rate' (requests per second)",
        ),
        (
            "arrival: {kind: trace}",
            ":6: arrival.kind: needs a trace; add 'trace: {format: azure}' or choose another kind",
        ),
        ("trace: {format: azure}", ":4: classes.a.input-tokens: comes from the trace; leave it out"),
        (
            "trace: {format: azure, labels: {timestamp: t}}",
            ":6: trace.labels: means nothing to the azure format; leave it out",
        ),
        (
            "    documents: {count: 3, tokens: 4, per-request: 4}",
            ":6: classes.a.documents.per-request: asks for 4 of 3 documents; lower it",
        ),
        (
            "    documents: {count: 3, tokens: 4, per-request: 3}",
            (
                ":4: classes.a.input-tokens: at most 10, but the shared parts and documents alone are 12; "
                "ask for longer prompts"
            ),
        ),
        ("    turns: {count: 3}", ":6: the key 'classes.a.turns.input-tokens' is missing; add it"),
        (
            "    turns: {count: 3, input-tokens: 4, think-time: {distribution: exponentail, mean: 4}}",
            ":6: classes.a.turns.think-time: unknown distribution 'exponentail'; did you mean 'exponential'?",
        ),
        ("    tool-choice: auto", ":6: classes.a.tool-choice: there are no tools to choose; add 'tools'"),
        (
            "    tools: [{name: search}]",
            ":6: classes.a.tools: a tool is written {type: function, function: {name: …, parameters: {…}}}",
        ),
        (
            "    response-format: {type: json_schma}",
            ":6: classes.a.response-format: type 'json_schma' is unknown; write {type: json_schema, json_schema: {…}}",
        ),
        (
            "    exact-output: true\n    response-format: {type: json_object}",
            ":6: classes.a.exact-output: a grammar ends the answer where it is whole; leave exact-output out",
        ),
        ("    lora: {models: []}", ":6: classes.a.lora.models: needs at least 1, has 0; add to it"),
        (
            "trace: {format: azur}",
            ":6: trace.format: 'azur' is none of its values; did you mean 'azure'?",
        ),
    ],
)
def test_an_added_line(tmp_path: Path, added: str, message: str) -> None:
    assert said(tmp_path, GOOD + added + "\n") == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chat-shrt", "unknown workload 'chat-shrt'; did you mean 'chat-short'?"),
        (
            f"{'x' * 300}.yaml",
            f"workload {'x' * 300}.yaml: no such file; give a YAML file or a preset's name (workloads list)",
        ),
        ("a/b.yaml", "workload a/b.yaml: no such file; give a YAML file or a preset's name (workloads list)"),
        ("chat-short:c1", "workload chat-short: no grid point 'c1'; leave out the part after ':'"),
        (
            "reference-grid:c2-i1-o1",
            "workload reference-grid: no grid point 'c2-i1-o1'; choose one such as reference-grid:c1-i32-o64",
        ),
    ],
)
def test_a_wrong_name(name: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_workload(name)
    assert str(caught.value) == message


def test_an_unknown_name_far_from_any_lists_the_presets() -> None:
    with pytest.raises(BadInput, match=r"unknown workload 'zzz'; known: agent, azure-code, .*structured-output"):
        load_workload("zzz")


@pytest.mark.parametrize(
    ("content", "column", "message"),
    [
        (b"10\n20\nten\n", None, "lengths.txt:3: 'ten' is no number of tokens; mend that line"),
        (b"10\n0\n", None, "lengths.txt:2: 0 is no number of tokens (1 to 10,000,000)"),
        (b"10\n2.5\n", None, "lengths.txt:2: '2.5' is no whole number of tokens; mend that line"),
        (b"", None, "lengths.txt: holds no lengths; give a file with one a line"),
        (b"\xff\xfe\x00", None, "lengths.txt:1: not text; give a file with one length a line"),
        (b"a,b\n1,2\n", "c", "lengths.txt:1: no column 'c'; it has a, b"),
        (b"a,b\n1,2\n3\n", "b", "lengths.txt:3: 1 cells, fewer than the header's; mend that line"),
        (b'{"n": 3}\n{"m": 3}\n', "n", "lengths.txt:2: no key 'n'; mend 'column' or the line"),
        (None, None, "lengths.txt: No such file or directory; give the path of a file of lengths"),
    ],
)
def test_a_file_of_lengths(tmp_path: Path, content: bytes | None, column: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "lengths.txt").write_bytes(content)
    asked = "{distribution: empirical, file: lengths.txt" + (f", column: {column}" if column else "") + "}"
    text = GOOD.replace("input-tokens: 10", f"input-tokens: {asked}")
    assert said(tmp_path, text) == f":4: classes.a.input-tokens: {tmp_path / message}"
