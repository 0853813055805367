"""Distributions of times in seconds, by quantile function as lengths are; what a person takes to read and write."""

from __future__ import annotations

import math
from abc import abstractmethod
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

_LONGEST_S = 86_400.0
_STANDARD = NormalDist()
_Seconds = Annotated[float, Field(ge=0, le=_LONGEST_S)]


class _Duration(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @abstractmethod
    def at(self, u: float) -> float:
        """The seconds below which a share `u` (0 < u < 1) lies."""

    @abstractmethod
    def text(self) -> str:
        """The distribution in a few words."""


class FixedTime(_Duration):
    """Always the same; written as a bare number of seconds."""

    distribution: Literal["fixed"] = "fixed"
    seconds: _Seconds

    def at(self, u: float) -> float:
        return self.seconds

    def text(self) -> str:
        return f"{self.seconds:g} s"


class UniformTime(_Duration):
    """Evenly between min and max seconds."""

    distribution: Literal["uniform"]
    min: _Seconds = 0.0
    max: _Seconds

    @model_validator(mode="after")
    def _ordered(self) -> UniformTime:
        if self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}; swap them")
        return self

    def at(self, u: float) -> float:
        return self.min + u * (self.max - self.min)

    def text(self) -> str:
        return f"uniform {self.min:g}..{self.max:g} s"


class ExponentialTime(_Duration):
    """Without memory, `mean` seconds on average."""

    distribution: Literal["exponential"]
    mean: Annotated[float, Field(gt=0, le=_LONGEST_S)]
    max: _Seconds = _LONGEST_S

    def at(self, u: float) -> float:
        return min(-self.mean * math.log1p(-u), self.max)

    def text(self) -> str:
        return f"exponential mean {self.mean:g} s"


class LogNormalTime(_Duration):
    """exp of a normal: `median` seconds, `sigma` the standard deviation of the logarithm."""

    distribution: Literal["lognormal"]
    median: Annotated[float, Field(gt=0, le=_LONGEST_S)]
    sigma: Annotated[float, Field(gt=0, le=5)]
    max: _Seconds = _LONGEST_S

    def at(self, u: float) -> float:
        return min(self.median * math.exp(self.sigma * _STANDARD.inv_cdf(u)), self.max)

    def text(self) -> str:
        return f"lognormal median {self.median:g} s sigma {self.sigma:g}"


def _spelled_out(value: Any) -> Any:
    """`2.5` is short for `{distribution: fixed, seconds: 2.5}`."""
    return value if isinstance(value, dict | BaseModel) else {"distribution": "fixed", "seconds": value}


_AnyDuration = Annotated[FixedTime | UniformTime | ExponentialTime | LogNormalTime, Field(discriminator="distribution")]
Duration = Annotated[_AnyDuration, BeforeValidator(_spelled_out, json_schema_input_type=float | _AnyDuration)]
