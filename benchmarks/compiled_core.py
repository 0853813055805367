"""What a compiled core would bring: the client beside C that reads the same streams, and that splits them as well."""

from __future__ import annotations

import subprocess

from benchmarks.bench import TOKENS, Steady, TruthServer, compiled, cores, pinned, python, watch_steadily

_STREAMS, _QUICK_STREAMS = (100, 300, 700), (300,)
_LEAD_S, _SECONDS = 3.0, 4.0


def main(quick: bool = False) -> None:
    print("CPU in us an event, client on one core, truth server on the other.\n")
    print(f"{'streams':>8}{'C reads':>10}{'C splits':>10}{'client':>10}{'x C reads':>11}{'events/s':>10}")
    for streams in _QUICK_STREAMS if quick else _STREAMS:
        with TruthServer() as server:
            reads, splits = (_reader(server, streams, *more).cpu_us_per_event for more in ((), ("split",)))
            command = python("benchmarks.client_load", server.url, streams, _LEAD_S + _SECONDS + 1, "wire")
            client = _steady(server, command)
        cost = client.cpu_us_per_event
        print(
            f"{streams:>8}{reads:>10.1f}{splits:>10.1f}{cost:>10.1f}{cost / reads:>11.2f}{client.events_per_s:>10.0f}"
        )


def _reader(server: TruthServer, streams: int, *more: str) -> Steady:
    seconds = str(_LEAD_S + _SECONDS + 1)
    return _steady(server, [str(compiled("bare_reader")), str(server.port), str(streams), seconds, str(TOKENS), *more])


def _steady(server: TruthServer, command: list[str]) -> Steady:
    process = pinned(command, cores()[0], stdout=subprocess.DEVNULL)
    steady = watch_steadily(process, server, _LEAD_S, _SECONDS)
    process.communicate()
    return steady
