"""Writing a run directory as the run goes, so that whatever was measured survives whoever dies.

`requests.jsonl` and `engine.jsonl` are appended to, `run.json` and `summary.json` replaced whole and atomically. Each
worker also appends its records to a journal of its own; `recover` makes a run out of what is there after a crash.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from exporters.facts import RUN_SCHEMA
from exporters.record import RequestRecord, decode_records, encode_record, encode_records
from exporters.run import ENGINE, JOURNALS, REQUESTS, RUN, SUMMARY, Run, read_json
from tailgate.exits import BadInput

logger = logging.getLogger(__name__)

__all__ = ["AppendedFile", "Journal", "Run", "RunStore", "append_engine_sample", "recover", "replace_file"]


class AppendedFile:
    """A file that only grows. Where it cannot any more (a full disk), `fault` says why, and nothing further is written:
    whoever measures goes on, and decides what that means."""

    def __init__(self, path: Path) -> None:
        self.fault: str | None = None
        self._path = path
        # A last line torn by a crash is ended first, so that it cannot swallow the next one.
        self._file = path.open("ab+")
        if self._file.tell():
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def write(self, lines: bytes) -> None:
        """Appends; the lines are with the operating system when this returns, unless `fault` is set."""
        if self.fault is None:
            try:
                self._file.write(lines)
                self._file.flush()
            except OSError as error:
                self.fault = f"{self._path}: {error.strerror}"
                logger.error("%s; nothing more is written to it", self.fault)

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        # What could not be written before cannot now.
        with contextlib.suppress(OSError):
            self._file.close()


class RunStore:
    """The writer of one run directory (the master's, or the only process's)."""

    def __init__(self, directory: Path, meta: dict[str, Any], earlier: Path | None) -> None:
        self.directory = directory
        self.meta = meta
        self.earlier = earlier
        """Where a run that stood in `directory` before was moved to; say so to the user."""
        self._requests = AppendedFile(directory / REQUESTS)
        # Held until the file is closed or this process is gone, however it went: `recover` asks for it. Some network
        # file systems know no locks; a run is worth more than one.
        with contextlib.suppress(OSError):
            fcntl.flock(self._requests, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._engine = AppendedFile(directory / ENGINE)

    @classmethod
    def create(cls, directory: Path | str, meta: Mapping[str, Any]) -> RunStore:
        """A new run in `directory`; an earlier run there is moved aside. Raises `BadInput` if it cannot be written, or
        that run still goes on."""
        path = Path(directory)
        _require_ended(path, "name another directory with --results, or wait for its end")
        try:
            earlier = _move_aside(path) if (path / RUN).exists() or (path / REQUESTS).exists() else None
            path.mkdir(parents=True, exist_ok=True)
            store = cls(path, {"schema": RUN_SCHEMA, "started_utc": _now(), **meta}, earlier)
            store.update_meta()
        except OSError as error:
            raise BadInput(
                f"{error.filename or path}: {error.strerror}", "name another directory with --results"
            ) from None
        return store

    @property
    def fault(self) -> str | None:
        """Why records can no longer be written, where that is so."""
        return self._requests.fault

    def append(self, records: Iterable[RequestRecord]) -> None:
        """Appends finished requests; with the operating system when this returns, unless there is a `fault`."""
        self.append_lines(encode_records(records))

    def append_lines(self, lines: bytes) -> None:
        """As `append`, of records that are encoded already."""
        self._requests.write(lines)

    def append_engine(self, sample: Mapping[str, Any]) -> None:
        """Appends one sample of the engine; see `append_engine_sample` for its keys."""
        self._engine.write(msgspec.json.encode(sample) + b"\n")

    def update_meta(self, **changes: Any) -> None:
        """Merges `changes` into run.json's top level and replaces the file."""
        self.meta.update(changes)
        _write_json(self.directory / RUN, self.meta)

    def finish(self) -> dict[str, Any]:
        """Closes the files, writes and returns the summary."""
        self.update_meta(finished_utc=_now())
        self.close()
        summary = Run.load(self.directory).summary
        _write_json(self.directory / SUMMARY, summary)
        return summary

    def close(self) -> None:
        """Closes the files without a summary."""
        self._requests.close()
        self._engine.close()

    def __enter__(self) -> RunStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Journal:
    """One worker's own append-only copy of its records, in `journals/` of the run directory on its machine.

    `run_id` keeps it apart from those of other runs that were given the same directory, which only the leader's machine
    moves aside.
    """

    def __init__(self, directory: Path | str, worker: str, run_id: str = "") -> None:
        folder = Path(directory) / JOURNALS
        folder.mkdir(parents=True, exist_ok=True)
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in worker)
        self.path = folder / f"journal-{safe}{_journal_ending(run_id)}"
        self._file = AppendedFile(self.path)

    def append(self, record: RequestRecord) -> bytes:
        """Writes one record, which survives this process, though not the machine, nor a full disk; returns its line."""
        line = encode_record(record)
        self._file.write(line)
        return line

    def close(self) -> None:
        self._file.close()


def _journal_ending(run_id: str) -> str:
    return f"-{run_id[:12]}.jsonl" if run_id else ".jsonl"


def append_engine_sample(directory: Path | str, sample: Mapping[str, Any]) -> None:
    """Appends a sample to `engine.jsonl` from a process that does not own the `RunStore`.

    Keys: `time_ns` (epoch ns), `running`, `waiting` (requests), `kv_cache_usage` (0 to 1), and counters such as
    `preemptions_total`, `prompt_tokens_total`, `generation_tokens_total`; more may stand beside them.
    """
    with (Path(directory) / ENGINE).open("ab") as file:
        file.write(msgspec.json.encode(sample) + b"\n")


def recover(directory: Path | str) -> Run:
    """Makes `requests.jsonl` and `summary.json` of a broken run from what reached it and from its workers' journals.

    Each record counts once however often it is found. A run that never ended is marked `broken_off`; its window ends
    with the last thing known of it. Raises `BadInput` where nothing is left to recover, or the run still goes on.
    """
    path = Path(directory)
    _require_ended(path, "wait for its end, or end it")
    known = read_json(path / RUN, "mend or remove it") if (path / RUN).exists() else {}
    # Journals of another run may have been gathered too: its workers number their records as this one's do.
    journals = f"journal-*{_journal_ending(str(known.get('run_id', '')))}"
    sources = [path / REQUESTS, *sorted((path / JOURNALS).glob(journals)), *sorted(path.glob(journals))]
    sources = [source for source in sources if source.exists()]
    if not sources:
        raise BadInput(f"{path}: neither {REQUESTS} nor journals", "name a run directory")
    if not (path / RUN).exists():
        _write_json(path / RUN, {"schema": RUN_SCHEMA, "recovered": True})
    meta = read_json(path / RUN, "mend or remove it")
    seen: set[tuple[str, int, int, int]] = set()
    last_ns = 0
    fresh = path / f"{REQUESTS}.recovering"
    with fresh.open("wb") as file:
        for source in sources:
            for record in decode_records(source):
                if record.identity not in seen:
                    seen.add(record.identity)
                    last_ns = max(last_ns, record.end_ns)
                    file.write(encode_record(record))
    fresh.replace(path / REQUESTS)
    _write_json(path / RUN, meta | {"recovered": True} | _broken_off(meta, last_ns))
    run = Run.load(path)
    _write_json(path / SUMMARY, run.summary)
    return run


def _require_ended(path: Path, mend: str) -> None:
    try:
        with (path / REQUESTS).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadInput(f"{path}: a run is still being written here", mend) from None
    except OSError:
        return


def _broken_off(meta: Mapping[str, Any], last_ns: int) -> dict[str, Any]:
    """What run.json lacks where its run never ended."""
    if "started_utc" not in meta or "finished_utc" in meta:
        return {}
    found: dict[str, Any] = {"broken_off": True}
    window = meta.get("window")
    if isinstance(window, Mapping) and window.get("start_ns") is not None and window.get("end_ns") is None:
        found["window"] = {"start_ns": window["start_ns"], "end_ns": max(last_ns, window["start_ns"])}
    return found


def replace_file(path: Path, content: bytes) -> None:
    """Puts `content` at `path` in one step: a reader, or a crash, finds the old file or the new one, never a part."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_bytes(content)
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    replace_file(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def _move_aside(path: Path) -> Path:
    """Renames the run at `path` to `path.<utc of that run>` and returns the new name."""
    try:
        started = read_json(path / RUN, "").get("started_utc") or _now()
    except BadInput:
        started = _now()
    stamp = "".join(c for c in str(started) if c.isalnum())
    target = path.with_name(f"{path.name}.{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.{stamp}-{number}")
    path.rename(target)
    return target


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
