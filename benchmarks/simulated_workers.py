"""Many workers' ends of Locust's protocol in one process, each with so many token events a second: a master's load.

python -m benchmarks.simulated_workers PORT COUNT EVENTS_PER_S. Ends when the master says so, or is gone; prints a JSON
object a second: how long heartbeats sent right behind reports waited for their answers (the master's lag), the bytes of
a worker's reports a second, and the interval between them. The records are made up once and sent again and again under
new report numbers.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import zmq
from locust import __version__ as LOCUST  # noqa: N812

import tailgate
from exporters.columns import Columns
from exporters.counted import count_ended
from exporters.facts import Facts
from exporters.histogram import bucket_response_time
from exporters.quality import WorkerHealth
from exporters.record import RequestRecord, encode_records
from locustfiles.fleet import ASSIGN, READY, REPORT_KEY, RHYTHM, START, STOP
from locustfiles.messages import Assignment, Introduction, Report, Rhythm, Start, pack, unpack

TOKENS = 100
_SILENT_S = 20.0


@dataclass
class _Worker:
    socket: zmq.Socket[bytes]
    name: str
    assignment: Assignment | None = None
    running: bool = False
    number: int = 0
    sent: int = 0
    due_s: float = 0.0
    report_s: float = 1.0
    asked_s: float = 0.0
    lags_s: list[float] = field(default_factory=list)
    gone: bool = False


class _Content:
    """What one report of so many requests holds."""

    def __init__(self, requests: int) -> None:
        records = _records(requests)
        self.requests = requests
        self.lines = encode_records(records)
        self.counted = count_ended(Columns.of(records), Facts({}))
        self.rows = _rows(requests)


class Crowd:
    """`count` workers in one process."""

    def __init__(self, port: int, count: int, events_per_s: float) -> None:
        self._requests_per_s = events_per_s / TOKENS
        self._contents: dict[float, _Content] = {}
        self._bytes_per_s, self._report_s = 0.0, 1.0
        self._content(self._report_s)
        context = zmq.Context()
        context.set(zmq.MAX_SOCKETS, 4 * count + 100)
        self._poller = zmq.Poller()
        self._workers: dict[Any, _Worker] = {}
        began = time.monotonic()
        for index in range(count):
            socket = context.socket(zmq.DEALER)
            name = f"simulated_{index:04d}"
            socket.setsockopt(zmq.IDENTITY, name.encode())
            socket.connect(f"tcp://127.0.0.1:{port}")
            self._poller.register(socket, zmq.POLLIN)
            self._workers[socket] = _Worker(socket, name, due_s=began + 1.0 + index / count)
            self._send(self._workers[socket], "client_ready", LOCUST)

    def run(self) -> None:
        """Until the master has told all to leave, or has not been heard of for a while."""
        told_s = heard_s = time.monotonic()
        while not all(worker.gone for worker in self._workers.values()) and time.monotonic() - heard_s < _SILENT_S:
            now = time.monotonic()
            next_due = min((w.due_s for w in self._workers.values() if not w.gone), default=now)
            for socket, _ in self._poller.poll(int(max(0.0, min(next_due - now, 0.2)) * 1000)):
                heard_s = time.monotonic()
                self._hear(self._workers[socket])
            now = time.monotonic()
            for worker in self._workers.values():
                if worker.due_s <= now and not worker.gone:
                    worker.due_s += worker.report_s if worker.running else 1.0
                    self._speak(worker)
            if now - told_s >= 1:
                told_s = now
                self._tell()

    def _tell(self) -> None:
        lags = [lag for worker in self._workers.values() for lag in worker.lags_s]
        # One whose answer is still awaited has waited so long already.
        now = time.monotonic()
        lags += [now - worker.asked_s for worker in self._workers.values() if worker.asked_s and not worker.gone]
        for worker in self._workers.values():
            worker.lags_s.clear()
        told = {"lags_s": [round(lag, 5) for lag in lags], "bytes_per_s": self._bytes_per_s, "report_s": self._report_s}
        print(json.dumps(told), flush=True)

    def _content(self, report_s: float) -> _Content:
        if report_s not in self._contents:
            self._contents[report_s] = _Content(max(1, round(self._requests_per_s * report_s)))
        return self._contents[report_s]

    def _speak(self, worker: _Worker) -> None:
        if worker.running:
            self._report(worker, final=False)
        if not worker.asked_s:
            worker.asked_s = time.monotonic()
            state = "running" if worker.running else "ready"
            heartbeat = {"state": state, "current_cpu_usage": 50, "current_memory_usage": 10**8}
            self._send(worker, "heartbeat", heartbeat)

    def _report(self, worker: _Worker, final: bool) -> None:
        assert worker.assignment is not None, "no report before a part in a run"
        content = self._content(worker.report_s)
        worker.sent += content.requests
        report = Report(
            run_id=worker.assignment.run_id,
            worker=worker.assignment.worker,
            number=worker.number,
            lines=content.lines,
            counted=content.counted if worker.assignment.live else {},
            health=WorkerHealth(
                host="simulated", version=tailgate.__version__, cpu_share=0.5, sent=worker.sent, ok=worker.sent
            ),
            in_flight=content.requests,
            bodies_sum="0" * 64,
            bodies_count=worker.sent,
            schedule_sum="0" * 64,
            done=False,
            final=final,
        )
        worker.number += 1
        data = content.rows | {REPORT_KEY: pack(report)}
        self._bytes_per_s = self._send(worker, "stats", data) / worker.report_s

    def _hear(self, worker: _Worker) -> None:
        kind, data, _ = msgpack.loads(worker.socket.recv(), raw=False, strict_map_key=False)
        if kind == "heartbeat" and worker.asked_s:
            worker.lags_s.append(time.monotonic() - worker.asked_s)
            worker.asked_s = 0.0
        elif kind == ASSIGN:
            worker.assignment = unpack(data["message"], Assignment)
            ready = Introduction(
                run_id=worker.assignment.run_id, host="simulated", version=tailgate.__version__, clock="wire"
            )
            self._send(worker, READY, {"message": pack(ready)})
        elif kind == START:
            worker.running = True
            worker.report_s = self._report_s = unpack(data["message"], Start).report_s
        elif kind == RHYTHM:
            worker.report_s = self._report_s = unpack(data["message"], Rhythm).report_s
        elif kind == "spawn":
            self._send(worker, "spawning", None)
            users = data["user_classes_count"]
            self._send(worker, "spawning_complete", {"user_classes_count": users, "user_count": sum(users.values())})
        elif kind == STOP:
            worker.running = False
            self._report(worker, final=True)
        elif kind == "quit":
            worker.gone = True

    def _send(self, worker: _Worker, kind: str, data: Any) -> int:
        packed: bytes = msgpack.dumps((kind, data, worker.name))
        worker.socket.send(packed)
        return len(packed)


def _records(count: int) -> list[RequestRecord]:
    rng = np.random.default_rng(1)
    now = time.time_ns()
    made = []
    for index in range(count):
        gaps = (rng.gamma(50, 0.0002, TOKENS - 1) * 1e9).astype(np.int64).tolist()
        first = now + 50_000_000
        made.append(
            RequestRecord(
                index=index,
                worker="worker",
                request_class="chat",
                endpoint="/v1/chat/completions",
                sent_ns=now,
                end_ns=first + sum(gaps),
                outcome="ok",
                first_ns=first,
                last_ns=first + sum(gaps),
                gaps_ns=gaps,
                events=TOKENS,
                prompt_tokens=512,
                output_tokens=TOKENS,
                asked_tokens=TOKENS,
                finish_reason="length",
                http_status=200,
                clock="wire",
                sequence=index,
            )
        )
    return made


def _rows(requests: int) -> dict[str, Any]:
    """What Locust's own listener puts into a report: four rows with their buckets, and Aggregated."""
    rng = np.random.default_rng(2)
    now = time.time()

    def row(name: str, method: str, values_ms: Any) -> dict[str, Any]:
        times: dict[float, int] = {}
        for value in values_ms.tolist():
            key = bucket_response_time(value)
            times[key] = times.get(key, 0) + 1
        count = len(values_ms)
        return {
            "name": name,
            "method": method,
            "last_request_timestamp": now,
            "start_time": now,
            "num_requests": count,
            "num_none_requests": 0,
            "num_failures": 0,
            "total_response_time": float(values_ms.sum()),
            "max_response_time": float(values_ms.max()),
            "min_response_time": float(values_ms.min()),
            "total_content_length": 0,
            "response_times": times,
            "num_reqs_per_sec": {int(now): count},
            "num_fail_per_sec": {},
        }

    gaps, whole = rng.gamma(50, 0.2, requests * (TOKENS - 1)), rng.gamma(50, 20, requests)
    rows = [
        row("chat", "POST", whole),
        row("chat", "TTFT", rng.gamma(50, 1, requests)),
        row("chat", "ITL", gaps),
        row("chat", "TPOT", rng.gamma(500, 0.02, requests)),
    ]
    total = row("Aggregated", "", whole)
    return {"stats": rows, "stats_total": total, "errors": {}, "user_classes_count": {"ChatUser": 1}, "user_count": 1}


if __name__ == "__main__":
    Crowd(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])).run()
