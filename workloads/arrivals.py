"""How requests come, as a workload's file and the command line say it; `schedule` makes times of it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tailgate.exits import BadInput

Kind = Literal["closed", "constant", "poisson", "gamma", "trace"]
KINDS: tuple[str, ...] = get_args(Kind)
_RATED = ("constant", "poisson", "gamma")
_HIGHEST = 1e6
_LONGEST_S = 1e7
_NUMBER = r"\d+(?:\.\d+)?|\.\d+"
_LENGTH = rf"(?P<length>{_NUMBER})(?P<unit>ms|s|m|h)?"
_STAGE = re.compile(rf"{_LENGTH}:(?P<rate>{_NUMBER})$")
_WAVE = re.compile(rf"{_LENGTH}:(?P<swing>{_NUMBER})(?P<percent>%)?$")
_UNITS_S = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


class _Spec(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, alias_generator=lambda name: name.replace("_", "-")
    )


class Stage(_Spec):
    """A straight line from the rate before it; of 0 seconds, a step."""

    seconds: Annotated[float, Field(ge=0, le=_LONGEST_S)]
    to: Annotated[float, Field(ge=0, le=_HIGHEST)] = Field(description="requests per second at its end")


class Wave(_Spec):
    """A sine around `request-rate`, as a day's traffic has it."""

    period: Annotated[float, Field(gt=0, le=_LONGEST_S)] = Field(description="seconds from peak to peak")
    swing: Annotated[float, Field(ge=0, le=1)] = Field(description="how far up and down, as a share of the rate")


class ArrivalSpec(_Spec):
    """How requests come: by users who wait for their answers (closed), at a rate, or as a trace recorded it."""

    kind: Kind = "closed"
    request_rate: Annotated[float, Field(gt=0, le=_HIGHEST)] | None = Field(
        default=None,
        description="requests per second of the whole fleet (constant, poisson, gamma); with stages the rate before "
        "the first of them (default 0), with a wave its mean",
    )
    rate_per_user: Annotated[float, Field(gt=0, le=_HIGHEST)] | None = Field(
        default=None, description="instead of request-rate: requests per second that each of Locust's users stands for"
    )
    burstiness: Annotated[float, Field(gt=0, le=1e4)] = Field(
        default=1.0,
        description="gamma's shape: 1 is poisson, below it burstier, above it more even (as vLLM's bench has it)",
    )
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)] | None = Field(
        default=None, description="ramps and steps of the rate, one after the other; the last rate holds"
    )
    wave: Wave | None = None
    users: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        default=None, description="users the workload is meant for (closed); Locust's -u decides"
    )

    @model_validator(mode="after")
    def _rated(self) -> ArrivalSpec:
        if self.kind in _RATED and not (self.request_rate or self.rate_per_user or self.stages):
            raise ValueError(f"{self.kind} arrivals need a rate; add 'request-rate' (requests per second)")
        varied = [name for name in ("stages", "wave", "rate_per_user") if getattr(self, name) is not None]
        rated = varied or ["request_rate"] * (self.request_rate is not None)
        if rated and self.kind not in _RATED:
            raise ValueError(f"'{_key(rated[0])}' goes with constant, poisson or gamma arrivals, not {self.kind}")
        if self.burstiness != 1 and self.kind != "gamma":
            raise ValueError(f"'burstiness' goes with gamma arrivals, not {self.kind}; write 'kind: gamma'")
        if len(varied) > 1:
            raise ValueError(f"'{_key(varied[0])}' and '{_key(varied[1])}' do not go together; keep one")
        if self.wave and not self.request_rate:
            raise ValueError("a wave needs its mean; add 'request-rate' (requests per second)")
        if self.rate_per_user and self.request_rate:
            raise ValueError("'request-rate' and 'rate-per-user' do not go together; keep one")
        if self.stages and not any(stage.to for stage in self.stages) and not self.request_rate:
            raise ValueError("the stages never leave the rate 0; give one of them a rate")
        return self

    @property
    def open(self) -> bool:
        """Whether requests are due at times of their own instead of when a user is free."""
        return self.kind != "closed"

    def overridden(
        self,
        kind: str | None = None,
        request_rate: float | None = None,
        burstiness: float | None = None,
        stages: tuple[Stage, ...] | None = None,
        wave: Wave | None = None,
        rate_per_user: float | None = None,
    ) -> ArrivalSpec:
        """This, with what the command line asks for instead; a rate alone turns a closed loop into poisson.

        Raises `BadInput` where the parts do not go together.
        """
        if kind is not None and kind not in KINDS:
            raise BadInput(f"--arrival: unknown kind '{kind}'", f"choose one of {', '.join(KINDS)}")
        asked = {
            "--request-rate": request_rate,
            "--rate-stages": stages,
            "--rate-wave": wave,
            "--rate-per-user": rate_per_user,
        }
        given = [flag for flag, value in asked.items() if value is not None]
        chosen = kind or ("poisson" if given and self.kind == "closed" else self.kind)
        if given and chosen not in _RATED:
            raise BadInput(f"{given[0]} does not go with {chosen} arrivals", "choose --arrival poisson, say")
        if burstiness not in (None, 1.0) and chosen != "gamma":
            raise BadInput(f"--burstiness does not go with {chosen} arrivals", "choose --arrival gamma")
        shape = (_in_range(burstiness) or self.burstiness) if chosen == "gamma" else 1.0
        for first, second in (
            ("--rate-stages", "--rate-wave"),
            ("--rate-stages", "--rate-per-user"),
            ("--rate-wave", "--rate-per-user"),
            ("--request-rate", "--rate-per-user"),
        ):
            if first in given and second in given:
                raise BadInput(f"{first} and {second} do not go together", "keep one of them")
        if not chosen or chosen not in _RATED:
            return ArrivalSpec(
                kind=chosen,  # type: ignore[arg-type]
                users=self.users,
            )
        # Where the command line says how the rate goes, the workload's own way of it is gone.
        kept: dict[str, Any] = {} if given else {"rate_per_user": self.rate_per_user}
        if not given or given == ["--request-rate"]:
            kept |= {"stages": self.stages, "wave": self.wave}
        rate = self.request_rate if request_rate is None and rate_per_user is None else request_rate
        if given == ["--rate-stages"]:
            rate = None
        return _checked(
            kept
            | {
                key: value
                for key, value in (("stages", stages), ("wave", wave), ("rate_per_user", rate_per_user))
                if value
            }
            | {
                "kind": chosen,
                "request_rate": rate,
                "burstiness": shape,
                "users": self.users,
            }
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
        return f"{self.kind} {self._rate_text()}{shape}"

    def _rate_text(self) -> str:
        if self.rate_per_user:
            return f"at {self.rate_per_user:g} requests/s for each user"
        if self.stages:
            steps = ", ".join(f"to {stage.to:g} {_lasting(stage.seconds)}" for stage in self.stages)
            return f"from {self.request_rate or 0:g} requests/s {steps}"
        if self.wave:
            return f"at {self.request_rate:g} requests/s +/- {self.wave.swing:.0%}, period {self.wave.period:g} s"
        return f"at {self.request_rate:g} requests/s"


def parse_stages(text: str, flag: str = "--rate-stages") -> tuple[Stage, ...]:
    """`60s:200,0s:50,2m:50`: in each length of time to each rate. Raises `BadInput`."""
    found = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = _STAGE.match(part)
        if not match or float(match["rate"]) > _HIGHEST or _seconds(match) > _LONGEST_S:
            raise BadInput(f"{flag}: cannot read the stage '{part}'", "write LENGTH:RATE, such as 60s:200 or 0s:50")
        found.append(Stage(seconds=_seconds(match), to=float(match["rate"])))
    if not found:
        raise BadInput(f"{flag}: no stage in '{text}'", "write LENGTH:RATE,…, such as 60s:200,0s:50")
    return tuple(found)


def parse_wave(text: str, flag: str = "--rate-wave") -> Wave:
    """`24h:80%`: the period and how far up and down. Raises `BadInput`."""
    match = _WAVE.match(text.strip())
    swing = float(match["swing"]) / (100 if match["percent"] else 1) if match else 2.0
    if not match or swing > 1 or not 0 < _seconds(match) <= _LONGEST_S:
        raise BadInput(f"{flag}: cannot read '{text}'", "write PERIOD:SWING, such as 24h:80% (at most 100%)")
    return Wave(period=_seconds(match), swing=swing)


def _seconds(match: re.Match[str]) -> float:
    return float(match["length"]) * _UNITS_S[match["unit"]]


def _checked(keys: dict[str, Any]) -> ArrivalSpec:
    """The arrivals of these parts. Raises `BadInput` in the command line's words."""
    rate, kind = keys["request_rate"], keys["kind"]
    if rate is None and not keys.get("rate_per_user") and not keys.get("stages"):
        raise BadInput(f"--arrival {kind} needs a rate", "add --request-rate with the fleet's requests per second")
    for flag, value in (("--request-rate", rate), ("--rate-per-user", keys.get("rate_per_user"))):
        if value is not None and not 0 < value <= _HIGHEST:
            raise BadInput(
                f"{flag}: {value:g} is not a rate", f"give requests per second, above 0 (to {_HIGHEST:,.0f})"
            )
    try:
        return ArrivalSpec(**keys)
    except ValidationError as error:
        message = str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
        raise BadInput(f"--arrival {kind}: {message}") from None


def _in_range(burstiness: float | None) -> float | None:
    if burstiness is not None and not 0 < burstiness <= 1e4:
        raise BadInput(f"--burstiness: {burstiness:g} is out of range", "give a number above 0; 1 is poisson")
    return burstiness


def _lasting(seconds: float) -> str:
    return f"in {seconds:g} s" if seconds else "at once"


def _key(name: str) -> str:
    return name.replace("_", "-")
