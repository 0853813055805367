"""The recorded flag lists against what vLLM itself printed, and what posts believe against what it rejects."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tailgate.exits import BadInput
from tests.support.require import need
from vllm_launch.flags import flag_list, misbeliefs, versions
from vllm_launch.record_flags import LISTS, parse_help

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "vllm-0.32"

HELP = """
ModelConfig:
  --dtype {auto,bfloat16,float16}
                        Data type. (default: auto)
  --trust-remote-code, --no-trust-remote-code
                        Trust. (default: False)
  --max-model-len MAX_MODEL_LEN
                        Length, human-readable like 1k. (default: None)
  --gpu-memory-utilization GPU_MEMORY_UTILIZATION
                        Share. (default: 0.92)
  --override-generation-config OVERRIDE_GENERATION_CONFIG
                        Should either be a valid JSON string or JSON keys. (default: {})
  --tensor-parallel-size, -tp TENSOR_PARALLEL_SIZE
                        Groups. (default: 1)
"""


def test_help_text_becomes_facts() -> None:
    assert parse_help(HELP) == {
        "dtype": {"type": "str", "choices": ["auto", "bfloat16", "float16"], "default": "auto"},
        "trust-remote-code": {"type": "bool", "negative": "no-trust-remote-code", "default": False},
        "max-model-len": {"type": "size"},
        "gpu-memory-utilization": {"type": "float", "default": 0.92},
        "override-generation-config": {"type": "json"},
        "tensor-parallel-size": {"type": "int", "aliases": ["tp"], "default": 1},
    }


@pytest.mark.parametrize(("version", "capture"), [("0.32", "serve_help.txt"), ("0.33", "serve_help_0.33.txt")])
def test_the_recorded_list_agrees_with_what_vllm_printed(version: str, capture: str) -> None:
    path = CAPTURES / capture
    need(path.is_file(), f"vLLM {version}'s help text beside the checkout")
    text = path.read_text()
    recorded = json.loads((LISTS / f"{version}.json").read_text())["flags"]
    printed = parse_help(text)
    assert recorded.keys() == printed.keys()
    for name, entry in printed.items():
        for key in ("choices", "default", "negative", "aliases"):
            assert recorded[name].get(key) == entry.get(key), f"{name}: {key}"
    # A second reading that shares nothing with the parser: no long option of the page may be unknown.
    names = flag_list(version)
    for option in set(re.findall(r"^  .*?--([a-z0-9][a-z0-9-]+[a-z0-9])(?= [A-Z{\[]|,|$)", text, re.MULTILINE)) - {
        "help",
        "version",
    }:
        assert option in names.names or option in names.negatives, option


def test_what_the_real_parser_rejected_is_refused_and_what_it_took_is_taken() -> None:
    path = CAPTURES / "flag_exists.txt"
    need(path.is_file(), "the record of flags tried on the real parser, beside the checkout")
    flags = flag_list("0.32")
    for line in path.read_text().splitlines():
        verdict, option = line.split()[:2]
        if not option.startswith("--"):
            continue
        if verdict == "ACCEPTED":
            assert flags.find(option.removeprefix("--"), "x").name == option.removeprefix("--")
        else:
            with pytest.raises(BadInput, match="has no such flag"):
                flags.find(option.removeprefix("--"), "x")


@pytest.mark.parametrize("version", versions())
def test_no_misbelief_is_true(version: str) -> None:
    flags = flag_list(version)
    for name, entry in misbeliefs().items():
        assert name not in flags.names, name
        # 0.33 took this one back, as the word that switches enable-log-requests off.
        assert name not in flags.negatives or (version, name) == ("0.33", "disable-log-requests"), name
        assert entry.get("use", "max-num-seqs") in flags.flags, f"{name}: the mend is itself unknown"


def test_values_go_to_the_command_line_as_vllm_reads_them() -> None:
    flags = flag_list()
    given = {
        "max-num-batched-tokens": "2k",
        "enable-prefix-caching": False,
        "enforce-eager": True,
        "gpu-memory-utilization": 0.9,
        "compilation-config": {"level": 3},
        "max-model-len": "auto",
    }
    checked = {name: flags.value(flags.flags[name], value, name) for name, value in given.items()}
    assert flags.argv(checked) == [
        *("--max-num-batched-tokens", "2000", "--no-enable-prefix-caching", "--enforce-eager"),
        *("--gpu-memory-utilization", "0.9", "--compilation-config", '{"level": 3}', "--max-model-len", "-1"),
    ]
