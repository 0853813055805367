"""When requests are due: one global schedule made from the seed, of which every worker can read any part.

Gaps are drawn in chunks, each from its own counter, and summed chunk by chunk in order: the offset of request i is
the same number on every worker, and asking for it costs one chunk at most beyond those already passed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Annotated, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tailgate.exits import BadInput
from workloads.randomness import key_of, uniform_array

Kind = Literal["closed", "constant", "poisson", "gamma", "trace"]
KINDS: tuple[str, ...] = get_args(Kind)
_RATED = ("constant", "poisson", "gamma")
_CHUNK = 4096


class ArrivalSpec(BaseModel):
    """How requests come: by users who wait for their answers (closed), at a rate, or as a trace recorded it."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", "-")
    )

    kind: Kind = "closed"
    request_rate: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        default=None, description="requests per second of the whole fleet (constant, poisson, gamma)"
    )
    burstiness: Annotated[float, Field(gt=0, le=1e4)] = Field(
        default=1.0,
        description="gamma's shape: 1 is poisson, below it burstier, above it more even (as vLLM's bench has it)",
    )
    users: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        default=None, description="users the workload is meant for (closed); Locust's -u decides"
    )

    @model_validator(mode="after")
    def _rated(self) -> ArrivalSpec:
        if self.kind in _RATED and self.request_rate is None:
            raise ValueError(f"{self.kind} arrivals need a rate; add 'request-rate' (requests per second)")
        return self

    @property
    def open(self) -> bool:
        """Whether requests are due at times of their own instead of when a user is free."""
        return self.kind != "closed"

    def overridden(
        self, kind: str | None = None, request_rate: float | None = None, burstiness: float | None = None
    ) -> ArrivalSpec:
        """This, with what the command line asks for instead; a rate alone turns a closed loop into poisson.

        Raises `BadInput` where the parts do not go together.
        """
        if kind is not None and kind not in KINDS:
            raise BadInput(f"--arrival: unknown kind '{kind}'", f"choose one of {', '.join(KINDS)}")
        chosen = kind or ("poisson" if request_rate is not None and self.kind == "closed" else self.kind)
        rate = self.request_rate if request_rate is None else request_rate
        if chosen in _RATED and rate is None:
            raise BadInput(
                f"--arrival {chosen} needs a rate", "add --request-rate with the fleet's requests per second"
            )
        if rate is not None and not 0 < rate <= 1e6:
            raise BadInput(f"--request-rate: {rate:g} is not a rate", "give requests per second, above 0")
        if burstiness is not None and not 0 < burstiness <= 1e4:
            raise BadInput(f"--burstiness: {burstiness:g} is out of range", "give a number above 0; 1 is poisson")
        return ArrivalSpec(
            kind=chosen,  # type: ignore[arg-type]
            request_rate=rate if chosen in _RATED else None,
            burstiness=self.burstiness if burstiness is None else burstiness,
            users=self.users,
        )

    def text(self) -> str:
        """The arrivals in a few words."""
        if self.kind == "closed":
            return (
                f"closed loop, meant for {self.users} users" if self.users else "closed loop (users wait for answers)"
            )
        if self.kind == "trace":
            return "at the trace's own times"
        shape = f", burstiness {self.burstiness:g}" if self.kind == "gamma" else ""
        return f"{self.kind} at {self.request_rate:g} requests/s{shape}"


class Schedule(Protocol):
    """Offsets of requests from the start of sending."""

    def at(self, index: int) -> float | None:
        """Seconds after the start at which request `index` is due; None where nothing but a free user decides."""


class ClosedLoop:
    """No times: a request leaves when a user is free."""

    def at(self, index: int) -> None:
        return None


class ConstantRate:
    """Evenly spaced, the first at once."""

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def at(self, index: int) -> float:
        return index / self._rate


class Renewal:
    """Independent gamma gaps of mean 1/rate: exponential ones (a Poisson process) at shape 1."""

    def __init__(self, rate: float, shape: float, seed: int) -> None:
        self._rate = rate
        self._shape = shape
        self._key = key_of("arrivals", seed)
        self._starts = [0.0]
        self._recent: OrderedDict[int, npt.NDArray[np.float64]] = OrderedDict()

    def at(self, index: int) -> float:
        chunk, within = divmod(index, _CHUNK)
        return float(self._offsets(chunk)[within])

    def _offsets(self, chunk: int) -> npt.NDArray[np.float64]:
        if chunk in self._recent:
            return self._recent[chunk]
        while len(self._starts) <= chunk:
            behind = len(self._starts) - 1
            self._starts.append(self._starts[behind] + float(np.cumsum(self._gaps(behind))[-1]))
        offsets: npt.NDArray[np.float64] = self._starts[chunk] + np.cumsum(self._gaps(chunk))
        self._recent[chunk] = offsets
        if len(self._recent) > 4:
            self._recent.popitem(last=False)
        return offsets

    def _gaps(self, chunk: int) -> npt.NDArray[np.float64]:
        if self._shape == 1.0:
            return np.asarray(-np.log(uniform_array(self._key, chunk, _CHUNK)) / self._rate)
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(self._key[:16], "little") ^ chunk))
        return np.asarray(generator.standard_gamma(self._shape, _CHUNK) / (self._shape * self._rate))


def make_schedule(spec: ArrivalSpec, seed: int) -> Schedule:
    """The schedule of every kind but `trace`, whose times are the trace's."""
    if spec.kind == "closed":
        return ClosedLoop()
    assert spec.request_rate is not None, "checked by ArrivalSpec"
    if spec.kind == "constant":
        return ConstantRate(spec.request_rate)
    return Renewal(spec.request_rate, spec.burstiness if spec.kind == "gamma" else 1.0, seed)
