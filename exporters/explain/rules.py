"""The rules as written in `rules.yaml`, checked: every figure a rule names exists, every comparison can be made."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from exporters.explain.figures import KNOWN
from tailgate.yaml_file import read_model

RULES = Path(__file__).with_name("rules.yaml")


def _known(name: str) -> str:
    if name not in KNOWN:
        close = difflib.get_close_matches(name, KNOWN, n=1)
        raise ValueError(f"no such figure '{name}'; {f'did you mean {close[0]}?' if close else 'see figures.py'}")
    return name


class Condition(BaseModel):
    """`figure` lies above, or at most at, a number or another figure (times `times`)."""

    model_config = ConfigDict(extra="forbid", alias_generator=lambda name: name.replace("_", "-"))

    figure: str
    above: float | str | None = None
    at_most: float | str | None = None
    times: Annotated[float, Field(gt=0)] = 1.0

    @field_validator("figure")
    @classmethod
    def _exists(cls, value: str) -> str:
        return _known(value)

    @model_validator(mode="after")
    def _one_comparison(self) -> Condition:
        if (self.above is None) == (self.at_most is None):
            raise ValueError("give either 'above' or 'at-most'")
        bound = self.above if self.above is not None else self.at_most
        if isinstance(bound, str):
            _known(bound)
        return self

    def bound(self, figures: Mapping[str, float]) -> float | None:
        """The number it is held against; None where the run does not tell the other figure."""
        named = self.above if self.above is not None else self.at_most
        value = figures.get(named) if isinstance(named, str) else named
        return None if value is None else value * self.times

    def holds(self, figures: Mapping[str, float]) -> bool:
        """Whether it is so; a figure that the run does not tell holds nothing."""
        value, bound = figures.get(self.figure), self.bound(figures)
        if value is None or bound is None:
            return False
        return value > bound if self.above is not None else value <= bound


class Trial(BaseModel):
    """A flag worth trying next: which way, what it should do, and what it costs."""

    model_config = ConfigDict(extra="forbid")

    flag: str
    move: Literal["raise", "lower", "set"]
    to: str | None = None
    expect: str
    cost: str


class Rule(BaseModel):
    """When `when` holds throughout, `says` is a finding; more important ones stand first in the file."""

    model_config = ConfigDict(extra="forbid")

    id: str
    when: Annotated[list[Condition], Field(min_length=1)]
    says: str
    shows: list[str] = Field([], description="further figures that belong to the evidence")
    hides: list[str] = Field([], description="rules that say less of the same, left out where this one speaks")
    advice: str = Field("", description="what helps where no flag does")
    trials: list[Trial] = Field([], alias="try")

    @field_validator("shows")
    @classmethod
    def _exist(cls, value: list[str]) -> list[str]:
        return [_known(name) for name in value]


class RulesFile(BaseModel):
    """The file as written."""

    model_config = ConfigDict(extra="forbid")

    rules: list[Rule]

    @model_validator(mode="after")
    def _own_names(self) -> RulesFile:
        names = [rule.id for rule in self.rules]
        for rule in self.rules:
            if names.count(rule.id) > 1:
                raise ValueError(f"the rule '{rule.id}' stands twice")
            if unknown := set(rule.hides) - set(names):
                raise ValueError(f"the rule '{rule.id}' hides '{min(unknown)}', which is none")
        return self


@functools.cache
def load_rules(path: Path = RULES) -> tuple[Rule, ...]:
    """The rules of a file, in its order. Raises `BadInput` naming line, key and mend."""
    return tuple(read_model(path, RulesFile).rules)
