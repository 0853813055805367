"""What the rest needs to know out of `run.json`, read in one place and forgiving of what an older run lacks.

`run.json` is one mapping. The keys read here:

- `schema`, `suite_version`, `started_utc`, `label`, `argv` (list), `command` (the line that repeats the run)
- `workload` (`{"name": …, …resolved}` or a name), `seed`, `arrival` (`{"kind", "rate", …}`), `users`, `slo` (text)
- `target`, `model`, `engine` (`{"name", "version", "simulated"}`, `step_times` of the embedded one), `simulated`
- `clock`, `bodies_sha256`
- `launch`: `{"name", "engine", "device", "args": {flag: value}, "env": {…}, "diff": {…}}` of the engine under test
- `schedule`: `{"sha256", "due_in_window"}` and `rate_changes` (`[[seconds after the start, rate], …]`) of an open loop,
  `user_changes` of a closed one; `warmup_s`
- `prefix_cache`: `{"queried_tokens", "hit_tokens", "designed_share"}` by the engine's own counters
- `window`: `{"start_ns", "end_ns"}`, the end of the warm-up and the stop of sending
- `master`: `{"cpu_share", "loop_lag_s", "report_interval_s", "said"}` of whoever gathered the workers' reports
- `workers`: `{worker: measurements of itself}`, see `exporters.quality.WorkerHealth`
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from exporters.quality import WorkerHealth
from tailgate.exits import BadInput

RUN_SCHEMA = "tailgate.run/1"
_NEWEST = 1
_SCHEMA = re.compile(r"tailgate\.run/([1-9]\d{0,3})")
_Instant = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Settings = dict[str, Any]


class _Window(msgspec.Struct):
    start_ns: _Instant | None = None
    end_ns: _Instant | None = None


class _Arrival(msgspec.Struct):
    kind: str | None = None
    rate: float | None = None
    burstiness: float | None = None


class _Schedule(msgspec.Struct):
    due_in_window: int | None = None


class _PrefixCache(msgspec.Struct):
    queried_tokens: float | None = None
    hit_tokens: float | None = None
    designed_share: float | None = None


class _Launch(msgspec.Struct):
    args: _Settings | None = None
    effective: _Settings | None = None


class _Read(msgspec.Struct):
    """The types of what is computed with; the rest of `run.json` is only shown, whatever it is."""

    window: _Window | None = None
    arrival: _Arrival | str | None = None
    schedule: _Schedule | None = None
    prefix_cache: _PrefixCache | None = None
    launch: _Launch | None = None
    workers: dict[str, WorkerHealth] | None = None
    users: float | None = None
    warmup_s: float | None = None
    rate_changes: list[tuple[float, float]] | None = None
    user_changes: list[tuple[float, float]] | None = None


def check(meta: Mapping[str, Any], where: str, mend: str) -> None:
    """Raises `BadInput` where `meta`, which stands in `where`, is of a newer suite or holds what no suite wrote."""
    schema = meta.get("schema", RUN_SCHEMA)
    found = _SCHEMA.fullmatch(str(schema))
    if not found:
        raise BadInput(f"{where}: no run's (schema {schema!r:.60})", mend)
    if int(found[1]) > _NEWEST:
        raise BadInput(
            f"{where}: schema {schema} is newer than this suite, which reads up to {RUN_SCHEMA}", "update the suite"
        )
    try:
        msgspec.convert(meta, _Read, strict=False)
    except msgspec.ValidationError as error:
        problem, _, key = str(error).partition(" - at `$.")
        raise BadInput(f"{where}: {key.rstrip('`')}: {problem[:1].lower()}{problem[1:]}", mend) from None


@dataclass(frozen=True)
class Window:
    """The measured span, epoch ns."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        """Its length, never zero, so that it can be divided by."""
        return max((self.end_ns - self.start_ns) * 1e-9, 1e-9)

    @property
    def empty(self) -> bool:
        """Whether the run ended before its warm-up did."""
        return self.end_ns <= self.start_ns


@dataclass(frozen=True)
class Facts:
    """The parts of `run.json` that summaries, comparisons and reports use; None where the run does not say."""

    meta: Mapping[str, Any]

    def text(self, key: str, inner: str = "name") -> str | None:
        """`meta[key]` as text; the `inner` entry where it is a mapping."""
        value = self.meta.get(key)
        if isinstance(value, Mapping):
            value = value.get(inner)
        return None if value is None else str(value)

    @property
    def label(self) -> str:
        """How the run is called: its label, else its launch config, else its workload."""
        return str(self.meta.get("label") or self.text("launch") or self.text("workload") or "run")

    @property
    def workload(self) -> str | None:
        return self.text("workload")

    @property
    def model(self) -> str | None:
        return self.text("model")

    @property
    def clock(self) -> str | None:
        return self.text("clock")

    @property
    def seed(self) -> Any:
        return self.meta.get("seed")

    @property
    def arrival(self) -> str | None:
        return self.text("arrival", "kind")

    @property
    def open_loop(self) -> bool:
        """Whether requests were sent by a schedule, not by users who wait."""
        return self.arrival not in (None, "closed")

    @property
    def rate(self) -> float | None:
        """Requests/s asked of the whole fleet, in open loop; None where it was not one rate all the time."""
        arrival = self.meta.get("arrival")
        if not isinstance(arrival, Mapping) or self.meta.get("rate_changes") or arrival.get("stages"):
            return None
        rate = arrival.get("rate")
        return float(rate) if rate and self.open_loop else None

    @property
    def due(self) -> int | None:
        """How many requests the schedule had for the window, in open loop."""
        schedule = self.meta.get("schedule")
        due = schedule.get("due_in_window") if isinstance(schedule, Mapping) else None
        return None if due is None else int(due)

    @property
    def prefix_cache(self) -> Mapping[str, Any]:
        """Tokens that the engine looked for in its prefix cache and found, and the share it was designed to find."""
        value = self.meta.get("prefix_cache")
        return value if isinstance(value, Mapping) else {}

    @property
    def burstiness(self) -> float:
        """Shape of the gaps between gamma arrivals; 1 is Poisson, less comes in bursts."""
        arrival = self.meta.get("arrival")
        value = arrival.get("burstiness") if isinstance(arrival, Mapping) else None
        return float(value) if value else 1.0

    @property
    def engine(self) -> str | None:
        """Engine kind, without its version."""
        return self.text("engine")

    @property
    def engine_version(self) -> str | None:
        return self.text("engine", "version")

    @property
    def simulated(self) -> bool:
        engine = self.meta.get("engine")
        return bool(self.meta.get("simulated") or (isinstance(engine, Mapping) and engine.get("simulated")))

    @property
    def slo(self) -> str | None:
        value = self.meta.get("slo")
        return str(value) if value else None

    @property
    def launch(self) -> Mapping[str, Any]:
        value = self.meta.get("launch")
        return value if isinstance(value, Mapping) else {}

    @property
    def window(self) -> Window | None:
        value = self.meta.get("window")
        if not isinstance(value, Mapping) or value.get("start_ns") is None or value.get("end_ns") is None:
            return None
        return Window(int(value["start_ns"]), int(value["end_ns"]))

    @property
    def workers(self) -> Mapping[str, Mapping[str, Any]]:
        value = self.meta.get("workers")
        return {str(k): v for k, v in value.items() if isinstance(v, Mapping)} if isinstance(value, Mapping) else {}

    @property
    def command(self) -> str | None:
        """The command line that repeats the run, Locust by its plain name."""
        argv = self.meta.get("argv")
        if not isinstance(argv, list) or not argv:
            return str(self.meta["command"]) if self.meta.get("command") else None
        words = [str(word) for word in argv]
        if words[0].replace("\\", "/").endswith(("/locust", "/locust/__main__.py")):
            words[0] = "locust"
        return shlex.join(words)


def utc(epoch_ns: int) -> str:
    """An instant as ISO 8601 in UTC, to the ms."""
    return datetime.fromtimestamp(epoch_ns * 1e-9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
