"""How true each clock is, and what it costs: streams of 10 ms events, client on one core, truth server on the other."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import (
    QUANTILES,
    TOKENS,
    Steady,
    TruthServer,
    compiled,
    cores,
    pinned,
    python,
    watch_steadily,
)

STREAMS = (20, 100, 300, 700, 1000)
QUICK_STREAMS = (20, 100, 300)
CLOCKS = ("wire", "kernel", "user")
_LEAD_S, _SECONDS, _TAIL_S = 3.0, 8.0, 1.0
_QUICK_SECONDS = 4.0
_LOCUST_LEAD_S = 6.0


@dataclass(frozen=True, slots=True)
class Row:
    client: str
    streams: int
    true: dict[str, Any]
    measured: dict[str, Any]
    steady: Steady
    floor_us: float


def main(quick: bool = False) -> None:
    streams = QUICK_STREAMS if quick else STREAMS
    seconds = _QUICK_SECONDS if quick else _SECONDS
    print(f"One core each for client and server; {TOKENS} tokens an answer, 50 ms to the first, 10 ms between, +-20 %.")
    print("Times in ms, measured (error). CPU in us an event, and times that of a C reader that parses nothing.\n")
    _print_head()
    for count in streams:
        with TruthServer() as server:
            floor = _bare_reader(server, count, seconds)
            for clock in CLOCKS:
                _print(_our_client(server, clock, count, seconds, floor))
            if count <= 300:
                _print(_naive(server, count, seconds, floor))
    tls = _certificate()
    if tls is None:
        print("\nTLS left out: it needs openssl and its headers.")
        return
    with TruthServer(certificate=tls) as server:
        for count in (100, 200):
            for clock in CLOCKS[:2]:
                _print(_our_client(server, clock, count, seconds, float("nan"), label=f"{clock}, TLS"))


def _bare_reader(server: TruthServer, streams: int, seconds: float) -> float:
    command = [str(compiled("bare_reader")), str(server.port), str(streams), str(_LEAD_S + seconds + 1), str(TOKENS)]
    process = pinned(command, cores()[0])
    steady = watch_steadily(process, server, _LEAD_S, seconds)
    process.wait()
    return steady.cpu_us_per_event


def _our_client(server: TruthServer, clock: str, streams: int, seconds: float, floor_us: float, label: str = "") -> Row:
    server.get("reset")
    run_s = _LEAD_S + seconds + _TAIL_S
    command = python("benchmarks.client_load", server.url, streams, run_s, clock)
    process = pinned(command, cores()[0], stdout=subprocess.PIPE)
    steady = watch_steadily(process, server, _LEAD_S, seconds)
    output, _ = process.communicate()
    measured = json.loads(output.splitlines()[-1])
    if measured["failed"]:
        print(f"{measured['failed']} requests failed", file=sys.stderr)
    return Row(label or clock, streams, server.get("truth"), measured, steady, floor_us)


def _naive(server: TruthServer, streams: int, seconds: float, floor_us: float) -> Row:
    server.get("reset")
    run_s = _LOCUST_LEAD_S + seconds + _TAIL_S
    command = python("locust", "-f", "benchmarks/naive_locust.py", "--headless", "-u", streams, "-r", streams)
    command += ["-t", f"{run_s:.0f}s", "-s", "5", "-H", server.url, "--skip-log", "--only-summary"]
    process = pinned(command, cores()[0], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    steady = watch_steadily(process, server, _LOCUST_LEAD_S, seconds)
    output, _ = process.communicate()
    measured = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return Row("naive Locust", streams, server.get("truth"), measured, steady, floor_us)


def _certificate() -> Path | None:
    """A self-signed certificate and key in one file; None where TLS cannot be had."""
    folder = Path(tempfile.mkdtemp(prefix="tailgate-bench-"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-keyout", f"{folder}/key", "-out", f"{folder}/crt", "-subj", "/CN=truth"]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    both = folder / "both.pem"
    both.write_text((folder / "crt").read_text() + (folder / "key").read_text())
    probe = subprocess.Popen([str(compiled("truth_server")), "0", "1", "1", "0", str(both)], stderr=subprocess.DEVNULL)
    try:
        probe.wait(0.3)
    except subprocess.TimeoutExpired:
        probe.kill()
        probe.wait()
        return both
    return None


def _print_head() -> None:
    quantiles = "".join(f"{name:>21}" for name in QUANTILES)
    print(
        f"{'clock':<13}{'streams':>7}      {quantiles}{'events/s':>9}{'in flight':>10}{'CPU':>6}{'x C':>6}{'late':>7}"
    )


def _print(row: Row) -> None:
    steady, health = row.steady, row.measured.get("health")
    late = f"{health['late_events'] / max(health['events'], 1):.1%}" if health else "?"
    load = f"{steady.events_per_s:>9.0f}{steady.in_flight / row.streams:>10.1%}"
    cost = f"{steady.cpu_us_per_event:>6.1f}{steady.cpu_us_per_event / row.floor_us:>6.2f}"
    print(f"{row.client:<13}{row.streams:>7} TTFT {_cells(row, 'ttft_ms')}{load}{cost}{late:>7}")
    print(f"{'':<20} ITL  {_cells(row, 'itl_ms')}", flush=True)


def _cells(row: Row, metric: str) -> str:
    cells = []
    for quantile in QUANTILES:
        measured, true = row.measured[metric][quantile], row.true[metric][quantile]
        error = (measured / true - 1) * 100 if true else float("nan")
        cells.append(f"{measured:.3f} ({error:+.1f} %)".rjust(21))
    return "".join(cells)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
