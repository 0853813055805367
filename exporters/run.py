"""A finished (or torn) run directory, read back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from exporters.columns import Columns
from exporters.facts import Facts, Window, check
from exporters.record import decode_records
from exporters.summary import summarise
from tailgate.exits import BadInput

RUN, REQUESTS, ENGINE, SUMMARY, REPORT, JOURNALS = (
    "run.json",
    "requests.jsonl",
    "engine.jsonl",
    "summary.json",
    "report.html",
    "journals",
)


@dataclass
class Run:
    """One run: `meta` (run.json), `columns` (its requests as numpy columns), `engine` (samples), `summary`."""

    path: Path
    meta: dict[str, Any]
    columns: Columns
    engine: list[dict[str, Any]] = field(default_factory=list)
    unreadable_lines: list[int] = field(default_factory=list)

    @staticmethod
    def load(directory: Path | str) -> Run:
        """The run in `directory`. Raises `BadInput` where there is none or `run.json` is broken."""
        path = Path(directory)
        meta = read_json(path / RUN, "a run directory holds run.json and requests.jsonl")
        check(meta, str(path / RUN), "mend it, or measure anew")
        unreadable: list[int] = []
        mend = f"make it from the journals with: python -m exporters recover {path}"
        try:
            columns = Columns.of(decode_records(path / REQUESTS, unreadable))
        except FileNotFoundError:
            raise BadInput(f"{path}: no {REQUESTS}", mend) from None
        except OSError as error:
            raise BadInput(f"{path / REQUESTS}: {error.strerror}", mend) from None
        except OverflowError:
            raise BadInput(f"{path / REQUESTS}: damaged, it holds numbers of no measurement", mend) from None
        if unreadable and not len(columns):
            raise BadInput(f"{path / REQUESTS}: damaged, none of its {len(unreadable)} lines is a request", mend)
        return Run(path, meta, columns, _samples(path / ENGINE), unreadable)

    @property
    def facts(self) -> Facts:
        """What `run.json` says, by name."""
        return Facts(self.meta)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary, computed from the records (summary.json may be older than they are)."""
        return summarise(self.columns, self.meta, self.engine, self.unreadable_lines)

    @cached_property
    def window(self) -> Window:
        """The measured span; that of the records where run.json has none."""
        if self.facts.window:
            return self.facts.window
        c = self.columns
        return Window(int(c.sent_ns.min()), int(c.end_ns.max())) if len(c) else Window(0, 0)

    @property
    def valid(self) -> bool:
        return bool(self.summary["valid"])


def read_json(path: Path, mend: str) -> dict[str, Any]:
    """A JSON file that holds one mapping. Raises `BadInput`, with `mend`, for anything else."""
    try:
        found = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", mend) from None
    except msgspec.DecodeError as error:
        raise BadInput(f"{path}: not valid JSON ({error})", mend) from None
    if not isinstance(found, dict):
        raise BadInput(f"{path}: holds no mapping", mend)
    return found


def _samples(path: Path) -> list[dict[str, Any]]:
    """Every readable sample of `engine.jsonl`, none where there is no file; what is no number in one is left out."""
    if not path.exists():
        return []
    found = []
    for line in path.read_bytes().splitlines():
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(value, dict) and isinstance(value.get("time_ns"), int):
            found.append({k: v for k, v in value.items() if k == "error" or _is_told(v)})
    return found


def _is_told(value: Any) -> bool:
    """Whether it is a number, or a histogram: numbers by upper bound."""
    if isinstance(value, dict):
        return all(isinstance(one, int | float) for one in value.values())
    return isinstance(value, int | float)
