"""Child processes that leave nothing behind: each in a process group of its own, ended surely, logged to a file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

_GUARD = Path(__file__).with_name("guard.py")
_REMOVAL_S = 60.0
_REMEMBERED = 200
# Named shared memory of Python's multiprocessing, NCCL and PyTorch, whose own tidying up dies with a killed group.
_SHARED = re.compile(r"/dev/shm/(?:psm_|sem\.mp-|nccl-|torch_)[\w.-]+")


@dataclass(frozen=True)
class After:
    """What is done once a child and all it started are ended, however that came about."""

    argv: Sequence[str] = ()
    """Is run."""
    folder: Path | None = None
    """Is removed."""

    def do(self) -> None:
        """Does it; what cannot be done is left."""
        if self.argv:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    list(self.argv),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_REMOVAL_S,
                    check=False,
                )
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def to_json(self) -> str:
        """For the guard."""
        return json.dumps({"argv": list(self.argv), "folder": str(self.folder) if self.folder else None})


class Child:
    """A started process and everything it starts. Use as a context manager: leaving it ends the whole group."""

    def __init__(
        self,
        argv: Sequence[str],
        log: Path | None,
        env: Mapping[str, str] | None = None,
        *,
        without: tuple[str, ...] = (),
        after: After | None = None,
    ) -> None:
        """Starts `argv` with `env` added to ours, less our variables that begin with a word of `without`; output goes
        to `log` (None: passed on to ours). `after` is done once it has ended. Raises `OSError`.
        """
        self._after = after or After()
        self.argv = list(argv)
        self.log = log
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(without)}
        output: IO[bytes] | None = None
        # It stands before the child does, so that hardly a moment is left in which nobody would end the child for us.
        _watch()
        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
            output = log.open("ab")
        try:
            self._process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=output or subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**inherited, "PYTHONUNBUFFERED": "1", **(env or {})},
                start_new_session=True,
            )
        except OSError:
            self._after.do()
            raise
        finally:
            if output is not None:
                output.close()
        self.pid = self._process.pid
        self._echo = _Echo(self._process.stdout) if self._process.stdout else None
        _guard("+", self.pid, self._after)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def poll(self) -> int | None:
        """The exit status (negative: the signal), or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Waits at most `timeout_s`; the exit status, or None if it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def terminate(self) -> None:
        """Asks the group to end and returns at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGTERM)

    def stop(self, grace_s: float = 10.0) -> None:
        """Ends the process and all it started: SIGTERM, then after `grace_s` SIGKILL. Returns when none is left."""
        family = self._family()
        self.terminate()
        # A helper that moved to a session of its own is out of the group's reach.
        for process in family:
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) != self.pid:
                    process.terminate()
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and (self.poll() is None or _alive(family)):
            time.sleep(0.02)
        shared = _shared_memory([self.pid, *(process.pid for process in family)])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=5)
        for path in shared:
            path.unlink(missing_ok=True)
        self._after.do()
        _guard("-", self.pid)

    def tail(self, lines: int = 12) -> list[str]:
        """The last non-empty lines of its log."""
        if self._echo is not None:
            return self._echo.last(lines)
        if self.log is None or not self.log.is_file():
            return []
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 65_536))
            text = file.read().decode("utf-8", "replace")
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def _family(self) -> list[psutil.Process]:
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.Error):
            found |= {child.pid: child for child in psutil.Process(self.pid).children(recursive=True)}
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, psutil.Error):
                if pid != self.pid and os.getpgid(pid) == self.pid:
                    found[pid] = psutil.Process(pid)
        return list(found.values())


class _Echo:
    """Passes a child's output on to ours, and remembers the end of it."""

    def __init__(self, output: IO[bytes]) -> None:
        self._lines: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._thread = threading.Thread(target=self._pass_on, args=(output,), name="engine-output", daemon=True)
        self._thread.start()

    def _pass_on(self, output: IO[bytes]) -> None:
        for line in output:
            self._lines.append(line)
            # Nobody may be reading ours any more: the child's must be read all the same, or it would stand still.
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.buffer.write(line)
                sys.stdout.flush()

    def last(self, lines: int) -> list[str]:
        # What a child said last may still be on its way; a helper that outlives it would keep the way open.
        self._thread.join(timeout=1.0)
        found = [line.decode("utf-8", "replace").rstrip() for line in list(self._lines)]
        return [line for line in found if line][-lines:]


def _alive(family: Sequence[psutil.Process]) -> bool:
    for process in family:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def _shared_memory(pids: Sequence[int]) -> set[Path]:
    """The named shared memory that these processes have mapped."""
    found: set[Path] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            found |= {Path(name) for name in _SHARED.findall(Path(f"/proc/{pid}/maps").read_text())}
    return found


_watcher: subprocess.Popen[str] | None = None
_watcher_lock = threading.Lock()


def _watch() -> subprocess.Popen[str]:
    """The guard, started where it does not run yet."""
    global _watcher
    with _watcher_lock:
        if _watcher is None or _watcher.poll() is not None:
            argv = [sys.executable, "-I", "-S", str(_GUARD)]
            _watcher = subprocess.Popen(argv, stdin=subprocess.PIPE, text=True, start_new_session=True)
        return _watcher


def _guard(sign: str, group: int, after: After | None = None) -> None:
    """Tells the guard, started with the first child, which groups it must end should we vanish."""
    watcher = _watch()
    assert watcher.stdin is not None
    with _watcher_lock, contextlib.suppress(BrokenPipeError):
        watcher.stdin.write(f"{sign}{group} {after.to_json() if after else ''}\n")
        watcher.stdin.flush()


@contextlib.contextmanager
def tidy_on_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP unwind the stack as Ctrl-C does, so that every `Child` is ended on the way out."""

    def unwind(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, unwind) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
