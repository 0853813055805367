"""What a file of a million rows costs a worker: CPU to read it once, the memory it keeps, CPU to find one row again."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from workloads.sources.trace import open_trace
from workloads.spec import TraceSource

_ROWS = 1_000_000
_FOUND = 2000


def main(quick: bool = False) -> None:
    """Prints, for a trace in CSV, one in JSON Lines and an array of conversations: size, time, memory, time a row."""
    rows = _ROWS // 10 if quick else _ROWS
    print(f"Files of {rows:,} rows, each opened in a process of its own; memory is what that process grew by:")
    print(f"  {'format':12} {'rows':>9} {'file':>9} {'CPU to check':>12} {'peak':>9} {'kept':>9} {'one row':>9}")
    with tempfile.TemporaryDirectory() as directory:
        for name, count, write in (
            ("azure", rows, _azure),
            ("mooncake", rows, _mooncake),
            ("sharegpt", rows // 10, _sharegpt),
        ):
            path = Path(directory) / name
            write(path, count)
            command = [sys.executable, "-m", "benchmarks.big_files", name, str(path)]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            print(
                f"  {name:12} {found['rows']:9,} {path.stat().st_size / 2**20:5.0f} MiB {found['checked_s']:10.1f} s "
                f"{found['peak_mib']:5.0f} MiB {found['kept_mib']:5.0f} MiB {found['row_s'] * 1e6:6.0f} us"
            )
            path.unlink()


def measure(format_name: str, path: Path) -> dict[str, float]:
    """Opens the file in this process and reads rows in order, as a worker of a fleet of eight does."""
    before = _memory_mib("VmRSS")
    start = time.process_time()
    file = open_trace(path, TraceSource.model_validate({"format": format_name}))
    checked_s = time.process_time() - start
    step = 8
    start = time.process_time()
    for number in range(_FOUND):
        file.row(number * step % file.length)
    row_s = (time.process_time() - start) / _FOUND
    return {
        "rows": file.length,
        "checked_s": checked_s,
        "row_s": row_s,
        "peak_mib": _memory_mib("VmHWM") - before,
        "kept_mib": _memory_mib("VmRSS") - before,
    }


def _memory_mib(key: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) / 1024


def _lines(
    path: Path, count: int, line: Callable[[int], str], head: str = "", tail: str = "", between: str = "\n"
) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(head)
        for number in range(count):
            file.write(line(number) + (between if number + 1 < count else "\n"))
        file.write(tail)


def _azure(path: Path, count: int) -> None:
    start = datetime(2023, 11, 16, 18, tzinfo=UTC)

    def line(number: int) -> str:
        at = start + timedelta(milliseconds=100 * number)
        return f"{at:%Y-%m-%d %H:%M:%S.%f}0,{100 + number % 4000},{1 + number % 400}"

    _lines(path, count, line, "TIMESTAMP,ContextTokens,GeneratedTokens\n")


def _mooncake(path: Path, count: int) -> None:
    def line(number: int) -> str:
        ids = [0, *range(number, number + 12)]
        return json.dumps({"timestamp": number, "input_length": 6400, "output_length": 200, "hash_ids": ids})

    _lines(path, count, line)


def _sharegpt(path: Path, count: int) -> None:
    vocabulary = ["some", "words", "as", "people", "write", "them", "in", "a", "row", '"quoted"', "once."]
    words = random.Random(1).choices(vocabulary, k=2000)

    def line(number: int) -> str:
        text = " ".join(words[number % 997 : number % 997 + 120])
        said = [{"from": "human" if turn % 2 == 0 else "gpt", "value": f"{number} {text}"} for turn in range(6)]
        return json.dumps({"id": str(number), "conversations": said})

    _lines(path, count, line, "[", "]", ",\n")


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], Path(sys.argv[2]))))
