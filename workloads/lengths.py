"""Length distributions in tokens, each given by its quantile function: one uniform number in, one length out.

With quantile functions a length depends on nothing but that number (no generator state), the histogram that
`show` draws needs no sampling, and truncation is exact instead of piling up at the bounds.
"""

from __future__ import annotations

import bisect
import itertools
import math
from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from workloads.empirical import read_lengths

Tokens = Annotated[int, Field(ge=1, le=10_000_000, strict=True)]
_STANDARD = NormalDist()
_LONGEST = 10_000_000


class _Length(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @abstractmethod
    def at(self, u: float) -> int:
        """The length below which a share `u` (0 < u < 1) of requests lies."""

    def mean(self, steps: int = 2000) -> float:
        """The expected length, by the midpoint rule over the quantile function."""
        return sum(self.at((i + 0.5) / steps) for i in range(steps)) / steps

    @abstractmethod
    def text(self) -> str:
        """The distribution in a few words."""


class _Bounded(_Length):
    @model_validator(mode="after")
    def _ordered(self) -> _Bounded:
        low, high = getattr(self, "min"), getattr(self, "max")  # noqa: B009 - declared by each subclass
        if low > high:
            raise ValueError(f"min {low} is above max {high}; swap them")
        return self


class Fixed(_Length):
    """Always the same; written as a bare number or with `distribution: fixed`."""

    distribution: Literal["fixed"] = "fixed"
    tokens: Tokens

    def at(self, u: float) -> int:
        return self.tokens

    def text(self) -> str:
        return f"{self.tokens}"


class Uniform(_Bounded):
    """Every whole number from min to max, equally often."""

    distribution: Literal["uniform"]
    min: Tokens
    max: Tokens

    def at(self, u: float) -> int:
        return min(self.min + int(u * (self.max - self.min + 1)), self.max)

    def text(self) -> str:
        return f"uniform {self.min}..{self.max}"


class Normal(_Bounded):
    """A normal distribution cut off at min and max (rescaled, not clamped)."""

    distribution: Literal["normal"]
    mean_: float = Field(alias="mean", gt=0, le=_LONGEST)
    stddev: float = Field(gt=0, le=_LONGEST)
    min: Tokens = 1
    max: Tokens = _LONGEST

    @model_validator(mode="after")
    def _reachable(self) -> Normal:
        _check_mass(_cut_mass(self._z(self.min - 0.5), self._z(self.max + 0.5)))
        return self

    def _z(self, length: float) -> float:
        return (length - self.mean_) / self.stddev

    def at(self, u: float) -> int:
        z = _cut_quantile(u, self._z(self.min - 0.5), self._z(self.max + 0.5))
        return _clamp(self.mean_ + self.stddev * z, self.min, self.max)

    def text(self) -> str:
        return f"normal mean {self.mean_:g} sd {self.stddev:g}{_bounds(self.min, self.max)}"


class LogNormal(_Bounded):
    """exp of a normal: `median` tokens, `sigma` the standard deviation of the logarithm; cut off at min and max."""

    distribution: Literal["lognormal"]
    median: float = Field(gt=0, le=_LONGEST)
    sigma: float = Field(gt=0, le=5)
    min: Tokens = 1
    max: Tokens = _LONGEST

    @model_validator(mode="after")
    def _reachable(self) -> LogNormal:
        _check_mass(_cut_mass(self._z(self.min - 0.5), self._z(self.max + 0.5)))
        return self

    def _z(self, length: float) -> float:
        return math.log(length / self.median) / self.sigma

    def at(self, u: float) -> int:
        z = _cut_quantile(u, self._z(self.min - 0.5), self._z(self.max + 0.5))
        return _clamp(self.median * math.exp(self.sigma * z), self.min, self.max)

    def text(self) -> str:
        return f"lognormal median {self.median:g} sigma {self.sigma:g}{_bounds(self.min, self.max)}"


class Choices(_Length):
    """One of the listed values, equally often or by weight."""

    distribution: Literal["choices"]
    values: tuple[Tokens, ...] = Field(min_length=1)
    weights: tuple[Annotated[float, Field(gt=0)], ...] | None = None

    @model_validator(mode="after")
    def _paired(self) -> Choices:
        if self.weights is not None and len(self.weights) != len(self.values):
            raise ValueError(f"{len(self.values)} values but {len(self.weights)} weights; give one weight a value")
        return self

    def at(self, u: float) -> int:
        weights = self.weights or (1.0,) * len(self.values)
        values, shares = zip(*sorted(zip(self.values, weights, strict=True)), strict=True)
        cumulative = list(itertools.accumulate(shares))
        return int(values[min(bisect.bisect_right(cumulative, u * cumulative[-1]), len(values) - 1)])

    def text(self) -> str:
        weights = self.weights or (1.0,) * len(self.values)
        total = sum(weights)
        return "choices " + ", ".join(f"{v} ({w / total:.0%})" for v, w in zip(self.values, weights, strict=True))


class Empirical(_Length):
    """As often as in a file of lengths: one a line, a CSV file's `column`, or that key of JSON Lines.

    `values` and `counts` are what was read, so that a worker elsewhere, or a later replay, needs no file.
    """

    distribution: Literal["empirical"]
    file: Annotated[str, Field(min_length=1)]
    column: str | None = None
    values: tuple[Tokens, ...] | None = Field(default=None, min_length=1, description="filled in from the file")
    counts: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(default=None, description="filled in from the file")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("file"), str) or data.get("values") is not None:
            return data
        directory = Path((info.context or {}).get("directory", "."))
        values, counts = read_lengths(directory / data["file"], data.get("column"))
        return data | {"values": values, "counts": counts}

    @model_validator(mode="after")
    def _paired(self) -> Empirical:
        if self.values is None or self.counts is None or len(self.values) != len(self.counts):
            raise ValueError("values and counts are filled in from the file; leave them out")
        return self

    @cached_property
    def _cumulative(self) -> list[int]:
        return list(itertools.accumulate(self.counts or ()))

    def at(self, u: float) -> int:
        assert self.values is not None, "read from the file"
        ends = self._cumulative
        return self.values[min(bisect.bisect_right(ends, u * ends[-1]), len(self.values) - 1)]

    def text(self) -> str:
        column = f" ({self.column})" if self.column else ""
        return f"empirical, {self._cumulative[-1]:,} lengths of {Path(self.file).name}{column}"


def _cut_mass(low: float, high: float) -> float:
    return _STANDARD.cdf(high) - _STANDARD.cdf(low)


def _check_mass(mass: float) -> None:
    if mass < 1e-6:
        raise ValueError("practically nothing lies between min and max; move the bounds around the centre")


def _cut_quantile(u: float, low: float, high: float) -> float:
    below = _STANDARD.cdf(low)
    share = below + u * (_STANDARD.cdf(high) - below)
    return _STANDARD.inv_cdf(min(max(share, 1e-15), 1 - 1e-15))


def _clamp(value: float, low: int, high: int) -> int:
    return min(max(round(value), low), high)


def _bounds(low: int, high: int) -> str:
    top = "" if high == _LONGEST else f"{high}"
    return f" in {low}..{top}" if low > 1 or top else ""


def _spelled_out(value: Any) -> Any:
    """`128` is short for `{distribution: fixed, tokens: 128}`."""
    return value if isinstance(value, dict | BaseModel) else {"distribution": "fixed", "tokens": value}


_AnyLength = Annotated[Fixed | Uniform | Normal | LogNormal | Choices | Empirical, Field(discriminator="distribution")]
Length = Annotated[_AnyLength, BeforeValidator(_spelled_out, json_schema_input_type=int | _AnyLength)]
