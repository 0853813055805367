"""The shared words: exit codes, checked YAML, objectives."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from tailgate.exits import BadInput, Exit, run_command, worst
from tailgate.objectives import parse_objectives, sources_of
from tailgate.slo_presets import PRESETS
from tailgate.yaml_file import read_model


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    weight: float = 1.0


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    classes: list[Inner] = Field(default_factory=list)

    @field_validator("name")
    @classmethod
    def _short(cls, value: str) -> str:
        if len(value) > 8:
            raise ValueError("at most 8 characters")
        return value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: a\nclases: []\n", "{f}:2: unknown key 'clases'; did you mean 'classes'?"),
        ("name: a\nclasses:\n  - weigth: 2\n", "{f}:3: unknown key 'classes.0.weigth'; did you mean 'weight'?"),
        ("classes: []\n", "{f}:1: the key 'name' is missing; add it"),
        ("name: 'far too long'\n", "{f}:1: name: at most 8 characters"),
        ("name: a\nname: b\n", "{f}:2: not valid YAML: the key 'name' stands twice; keep one of them; mend that line"),
        ("- a\n", "{f}:1: expected a mapping of keys to values; write 'key: value' lines"),
        ("name: a\n# \x07\n", "{f}:2: YAML has no place for the character U+0007; remove it"),
        (
            'name: "\\ud83d\\ude00"\n',
            (
                "{f}:1: not valid YAML: '\\ud83d' is half a character, which no request can hold; "
                "write the character itself; mend that line"
            ),
        ),
        ("name: " + "[" * 2000, "{f}: nested too deeply; flatten it"),
        ("name: [\n", "{f}:2: not valid YAML: expected the node content, but found '<stream end>'; mend that line"),
        (
            "name: a\nclasses:\n  - weight: heavy\n",
            (
                "{f}:3: classes.0.weight: input should be a valid number, unable to parse string as a number, "
                "got 'heavy'; mend that value"
            ),
        ),
    ],
)
def test_a_faulty_file_is_named_with_line_key_and_mend(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        read_model(path, Outer)
    assert str(caught.value) == line.format(f=path)


def test_a_missing_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_model(tmp_path / "none.yaml", Outer)


def test_exit_codes_take_precedence_as_agreed() -> None:
    assert worst([]) == Exit.GOOD
    assert worst([0, 1, 3]) == Exit.REGRESSION
    assert worst([1, 3, 4]) == Exit.NOT_VALID
    assert worst([1, 2, 3, 4]) == Exit.BAD_INPUT


def test_bad_input_is_one_line_and_exit_two(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise BadInput("the file\nis odd", "mend it")

    assert run_command(main, "exporters") == 2
    assert capsys.readouterr().err == "exporters: the file is odd; mend it\n"


def test_objectives_are_read_in_seconds_and_shares() -> None:
    ttft, itl, plain, errors = parse_objectives("ttft_p95<1s, itl_p999<100ms,e2e<2m,error_share<1%")
    assert (ttft.metric, ttft.quantile, ttft.limit) == ("ttft", 0.95, 1.0)
    assert (itl.quantile, itl.limit) == (0.999, 0.1)
    assert (plain.metric, plain.statistic, plain.limit) == ("e2e", None, 120.0)
    assert (errors.metric, errors.limit) == ("error_share", 0.01)


def test_a_presets_name_stands_for_its_objectives_and_names_its_source() -> None:
    found = parse_objectives("mlperf-interactive, error_share<1%")
    assert [objective.text for objective in found] == ["ttft_p99<450ms", "tpot_p99<40ms", "error_share<1%"]
    assert "Llama-2-70B" in sources_of("mlperf-interactive,ttft<1s")[0]
    assert sources_of("ttft<1s") == ()
    for name, preset in PRESETS.items():
        assert parse_objectives(name) == parse_objectives(preset.objectives), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mlperf-servr", "no preset 'mlperf-servr'; known: responsive, mlperf-server"),
        ("ttft_p95<1", "names no unit"),
        ("tfft_p95<1s", "unknown metric 'tfft_p95'"),
        ("ttft_p95>1s", "cannot read the objective"),
        ("ttft_p100<1s", "'ttft_p100<1s' bounds 'p100', which is none; write p50 to p999, max or mean"),
        ("e2e_scheduled_median<1s", "bounds 'median', which is none"),
        ("error_share<1s", "needs a share"),
    ],
)
def test_unreadable_objectives_are_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_objectives(text)
