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
        ("max: 8", "mx: 8", ":5: the key 'classes.a.output-tokens.max' is missing; add it"),
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
        ("    weight: -1", ":6: classes.a.weight: input should be greater than 0, got -1; mend that value"),
        (
            "    extra-body: {stream: false}",
            ":6: classes.a.extra-body: 'stream' is set by the workload itself; leave it out of extra-body",
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
            "trace: {format: azur}",
            ":6: trace.format: input should be 'azure' or 'mooncake', got 'azur'; mend that value",
        ),
    ],
)
def test_an_added_line(tmp_path: Path, added: str, message: str) -> None:
    assert said(tmp_path, GOOD + added + "\n") == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("chat-shrt", "unknown workload 'chat-shrt'; did you mean 'chat-short'?"),
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
    with pytest.raises(BadInput, match=r"unknown workload 'zzz'; known: azure-code, .*shared-prefix"):
        load_workload("zzz")
