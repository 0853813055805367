"""`python -m workloads` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from workloads import preset_names

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workloads", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_list_has_every_preset() -> None:
    plain, data = run("list"), run("list", "--json")
    assert plain.returncode == data.returncode == 0
    assert [line.split()[0] for line in plain.stdout.splitlines()] == preset_names()
    assert [item["name"] for item in json.loads(data.stdout)] == preset_names()


def test_show_tells_classes_lengths_and_load(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "name: mine\n"
        "classes:\n"
        "  short: {weight: 3, input-tokens: 100, output-tokens: {distribution: uniform, min: 10, max: 30}}\n"
        "  long: {input-tokens: 500, output-tokens: 60, language: zh}\n"
        "arrival: {kind: poisson, request-rate: 8}\n"
    )
    shown = run("show", str(path))
    assert shown.returncode == 0
    for expected in (
        "poisson at 8 requests/s",
        "short  75% of requests, chat, English",
        "long  25% of requests, chat, Chinese",
        "always 100",
        f"10 {21 * chr(0x2588)} 30   mean 20, p95 29",
        "per request 200 tokens in, 30 out",
        "8 requests/s, 1,600 tokens/s in, 240 out",
    ):
        assert expected in shown.stdout
    facts = json.loads(run("show", str(path), "--json").stdout)
    assert facts["offered"] == {
        "requests_per_s": 8,
        "input_tokens_per_s": 1600,
        "output_tokens_per_s": pytest.approx(240),
    }


def test_show_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,10,2\n2023-11-16 18:00:10,30,4\n")
    shown = run("show", "azure-code", "--trace", str(path))
    assert "trace      2 requests over 10.0 s, 0.20 requests/s" in shown.stdout
    facts = json.loads(run("show", "azure-code", "--trace", str(path), "--json").stdout)
    assert facts["trace"]["input_tokens"]["max"] == 30
    assert sum(facts["trace"]["requests_by_slice"]) == 2


def test_sample_prints_requests_as_they_would_be_sent() -> None:
    data = json.loads(run("sample", "chat-short", "-n", "2", "--json", "--model", "llama").stdout)
    assert [item["index"] for item in data] == [0, 1]
    assert data[0]["body"]["model"] == "llama"
    plain = run("sample", "chat-short", "-n", "2")
    assert "#1 chat /v1/chat/completions:" in plain.stdout
    assert plain.stdout.startswith("note: prompt lengths are counted in words")


def test_check_and_its_failures(tmp_path: Path) -> None:
    assert run("check", "chat-short").stdout == "chat-short: good (chat-short, 1 class)\n"
    path = tmp_path / "w.yaml"
    path.write_text("name: x\nclasses: {}\n")
    bad = run("check", str(path))
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == f"workloads: {path}:2: classes: needs at least 1, has 0; add to it\n"
    assert run("check", "chat-short", "--trace", "x").stderr == (
        "workloads: workload chat-short takes no trace; leave out --trace\n"
    )


@pytest.mark.parametrize("arguments", [("sample", "chat-short", "-n", "0"), ("draw",), ("show",), ()])
def test_a_wrong_command_line_exits_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).returncode == 2


def test_schema_names_the_keys_as_files_have_them() -> None:
    schema = json.loads(run("schema").stdout)
    assert {"name", "classes", "arrival", "warm-up", "slo"} <= schema["properties"].keys()
    assert "input-tokens" in schema["$defs"]["RequestClass"]["properties"]
    assert schema["additionalProperties"] is False


def test_the_schema_holds_for_every_preset_and_refuses_what_check_refuses() -> None:
    schema = Draft202012Validator(json.loads(run("schema").stdout))
    for name in preset_names():
        data = yaml.safe_load((ROOT / "workloads" / "presets" / f"{name}.yaml").read_text())
        assert not list(schema.iter_errors(data)), name
        data["classes"][next(iter(data["classes"]))]["input-tokns"] = 3
        assert list(schema.iter_errors(data)), name


def test_show_draws_conversations_and_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "name: w\nclasses:\n  a:\n    input-tokens: 50\n    output-tokens: 9\n"
        "    turns: {count: 4, input-tokens: 20, think-time: 2}\n"
        "arrival: {kind: constant, request-rate: 8}\n"
    )
    shown = run("show", str(path), "--seconds", "16").stdout
    for expected in ("conversations", "think time    2 s", "8 first requests/s", "128 requests, up to 8/s (seed 0)"):
        assert expected in shown
    facts = json.loads(run("show", str(path), "--seconds", "16", "--json").stdout)
    assert facts["arrivals"]["requests_by_slice"] == [4] * 32
    assert facts["classes"]["a"]["turns"]["mean"] == 4


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("frob",), "there is no 'frob'; known: list, show, check, sample, schema"),
        (("sample", "chat-short", "--seed", "-1"), "'-1' is no seed; give a whole number, 0 or more"),
        (("sample", "chat-short", "-n", "x"), "'x' is no number of requests; give 1 or more"),
        (("sample", "chat-short", "--tokenizer", "/none"), "--tokenizer: /none is not a file"),
        (("show", "azure-code", "--trace", "/none"), "/none: No such file or directory"),
        (("check", "tests"), "unknown workload 'tests'"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    ended = run(*arguments)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("workloads: ")
    assert said in ended.stderr


def test_every_command_has_help() -> None:
    for command in ("list", "show", "check", "sample", "schema"):
        helped = run(command, "--help")
        assert helped.returncode == 0
        assert "--json" in helped.stdout
