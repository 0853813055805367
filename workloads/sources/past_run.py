"""A past run of this suite as a source: its requests once more, at the times at which they were due or left.

A run directory keeps no bodies, but all that they were made of (`run.json`): workload, seed, salt, calibration. So the
same bodies are made again. Later turns of conversations follow their answers, as they did then.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tailgate.exits import BadInput
from tailgate.yaml_file import check_model
from workloads.arrivals import ArrivalSpec
from workloads.sources import Design, Source, TurnDesign
from workloads.spec import TraceSource, WarmUp, Workload
from workloads.tokens import Calibration

RUN, REQUESTS = "run.json", "requests.jsonl"


class _Record(msgspec.Struct):
    """What is needed of a line of requests.jsonl."""

    index: int
    sent_ns: int
    scheduled_ns: int | None = None
    attempt: int = 0
    turn: int = 0


_decode = msgspec.json.Decoder(_Record).decode


class PastRun:
    """What a run directory says of its plan. Raises `BadInput` where it is none, or too old to be made again."""

    def __init__(self, path: Path) -> None:
        self.directory = path if path.is_dir() else path.parent
        self.meta = _meta(self.directory / RUN)
        name = str(self.directory / RUN)
        for key in ("workload", "seed"):
            if self.meta.get(key) is None:
                raise BadInput(f"{name}: the key '{key}' is missing", "give a run directory of this suite")
        self.workload: Workload = check_model(self.meta["workload"], Workload, f"{name}: workload")
        self.seed = int(self.meta["seed"])
        self.salt = str(self.meta.get("salt") or "")
        found = self.meta.get("calibration")
        self.calibration = Calibration.from_dict(found) if isinstance(found, dict) else None
        extra = self.meta.get("extra_body")
        self.extra_body: dict[str, Any] = dict(extra) if isinstance(extra, dict) else {}
        trace = (self.meta.get("arrival") or {}).get("trace")
        self.trace = Path(trace) if trace else None
        if self.workload.trace and self.workload.trace.format == "run" and self.trace is not None:
            # A replay's own seed made nothing that was sent; its salt did where one was asked for.
            first = PastRun(self.trace)
            self.seed, self.salt = first.seed, self.salt or first.salt

    def again(self) -> Workload:
        """Its workload, with its own times for arrivals."""
        return self.workload.model_copy(
            update={
                "description": f"The requests of {self.directory.name} once more, at their own times.",
                "arrival": ArrivalSpec(kind="trace", users=self.workload.arrival.users),
                "warm_up": WarmUp(seconds=float(self.meta.get("warmup_s") or 0.0)),
                "trace": TraceSource(format="run", file=str(self.directory.resolve())),
                "grid": None,
            }
        )


class Replay:
    """The requests of a past run, in the order of their times; retries and later turns are no arrivals of their own."""

    def __init__(self, run: PastRun, made: Callable[[PastRun], Source]) -> None:
        self._source = made(run)
        self._indices, self._offsets_s, unreadable = _arrivals(run.directory / REQUESTS)
        self.span_s = self._offsets_s[-1]
        self.notes = _notes(run, len(self._indices), unreadable)

    @property
    def length(self) -> int:
        return len(self._indices)

    def design(self, index: int) -> Design:
        if not 0 <= index < len(self._indices):
            raise IndexError(index)
        then = self._indices[index]
        design = self._source.design(then)
        number = then if design.text_number is None else design.text_number
        return design._replace(offset_s=self._offsets_s[index], text_number=number)

    def turn(self, index: int, turn: int) -> TurnDesign:
        return self._source.turn(self._indices[index], turn)


def _arrivals(path: Path) -> tuple[array[int], array[float], int]:
    """(index in the past plan, seconds after the first) of each request, by time; and how many lines were torn."""
    found: list[tuple[int, int]] = []
    unreadable = 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    record = _decode(line)
                except msgspec.DecodeError:
                    unreadable += bool(line.strip())
                    continue
                if not record.attempt and not record.turn:
                    found.append((record.scheduled_ns or record.sent_ns, record.index))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "give a run directory with its requests.jsonl") from None
    if not found:
        raise BadInput(f"{path}: no request stands in it", "replay a run that kept its records (--records all)")
    found.sort()
    first_ns = found[0][0]
    return array("q", (index for _, index in found)), array("d", ((ns - first_ns) / 1e9 for ns, _ in found)), unreadable


def _notes(run: PastRun, count: int, unreadable: int) -> tuple[str, ...]:
    notes = [f"replays {count:,} requests of {run.directory.name}, seed {run.seed}"]
    if run.calibration is None:
        notes.append(
            f"{run.directory.name} is of an older version and keeps no calibration: the bodies are made anew with this "
            "server's tokenizer, and are the same where it is the same"
        )
    share = run.meta.get("records")
    if unreadable:
        notes.append(f"{unreadable} lines of its {REQUESTS} cannot be read and are left out")
    if isinstance(share, int | float) and share < 1:
        notes.append(f"that run kept {share:.0%} of its records; the rest is not sent")
    return tuple(notes)


def _meta(path: Path) -> dict[str, Any]:
    mend = "give a run directory (it holds run.json and requests.jsonl)"
    try:
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", mend) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: not valid JSON ({error})", mend) from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: holds no mapping", mend)
    return found
