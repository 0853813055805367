"""Thousands of slow streams in one process: the truth of their times, and the memory each takes."""

from __future__ import annotations

import json
import subprocess

from benchmarks.bench import TruthServer, cores, pinned, python, watch_steadily

_FEW, _MANY = 20, 2000
_ITL_MS, _TOKENS = 1000.0, 12
_LEAD_S, _SECONDS = 8.0, 3.0


def main() -> None:
    print(f"Streams of one event a second, {_TOKENS} tokens each, wire clock; errors in ms.\n")
    print(f"{'streams':>8}{'TTFT p99':>12}{'error':>9}{'ITL p99':>12}{'error':>9}{'ITL max':>12}{'error':>9}{'MB':>8}")
    memory_kb: dict[int, float] = {}
    for streams in (_FEW, _MANY):
        with TruthServer(itl_ms=_ITL_MS) as server:
            command = python("benchmarks.client_load", server.url, streams, 5, "wire", _TOKENS)
            process = pinned(command, cores()[0], stdout=subprocess.PIPE)
            memory_kb[streams] = watch_steadily(process, server, _LEAD_S, _SECONDS).memory_kb
            measured, true = json.loads(process.communicate()[0].splitlines()[-1]), server.get("truth")
        cells = ""
        for metric, quantile in (("ttft_ms", "p99"), ("itl_ms", "p99"), ("itl_ms", "max")):
            value = measured[metric][quantile]
            cells += f"{value:>12.3f}{value - true[metric][quantile]:>+9.3f}"
        print(f"{streams:>8}{cells}{memory_kb[streams] / 1024:>8.1f}")
    print(f"\nOne more stream takes {(memory_kb[_MANY] - memory_kb[_FEW]) / (_MANY - _FEW):.1f} KB.")


if __name__ == "__main__":
    main()
