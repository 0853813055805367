"""Hosts for real, as far as one machine has them: network namespaces with addresses of their own behind one switch.

Every host also has its own file system where results go, so that a worker's journal is really somewhere else. The
engine has two addresses: one on the switch, and one behind a slow wire (see `slow_wire`).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from exporters.record import RequestRecord, decode_records
from tests.support import slow_wire
from tests.support.locust_runs import ROOT

ENGINE_PORT = 8000
MASTER_PORT = 5557
DELAY_S, LOSS = 0.05, 0.01


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@dataclass
class Host:
    """One namespace; `disk` is what it has where results go."""

    namespace: str
    address: str
    port_at_switch: str
    switch: str
    disk: Path

    def start(
        self, *arguments: object, results: Path, env: dict[str, str] | None = None, program: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Python with these arguments on this host; `results` is where its disk is mounted."""
        inside = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
        words = [*program, sys.executable, *map(str, arguments)]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCUST_", "OPENAI_"))}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, "sh", "-c", inside, "sh", str(self.disk), str(results), *words],
            cwd=ROOT,
            env=clean | (env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cut(self) -> None:
        """Pulls its cable."""
        _do("ip", "-n", self.switch, "link", "set", self.port_at_switch, "down")

    def mend(self) -> None:
        _do("ip", "-n", self.switch, "link", "set", self.port_at_switch, "up")


@dataclass
class Lab:
    """A switch, an engine on it, and hosts made as they are asked for."""

    folder: Path
    name: str = field(default_factory=lambda: f"tg{os.getpid() % 100_000}")
    _hosts: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _namespaces: list[str] = field(default_factory=list)
    _processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def engine_url(self) -> str:
        return f"http://{self.engine.address}:{ENGINE_PORT}"

    @property
    def far_url(self) -> str:
        return f"http://10.77.1.1:{ENGINE_PORT}"

    def open(self) -> None:
        """Sets all up; the engine is ready when this returns."""
        self.switch = self._namespace("sw")
        _do("ip", "-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        _do("ip", "-n", self.switch, "addr", "add", "10.77.0.254/24", "dev", "bridge0")
        _do("ip", "-n", self.switch, "link", "set", "bridge0", "up")
        self.engine = self.host("engine")
        self._lay_slow_wire()
        results = self.folder / "engine-results"
        results.mkdir()
        engine = self.engine.start(
            *("-m", "vllm_launch.simulated", "--host", "0.0.0.0", "--port", ENGINE_PORT), results=results
        )
        self._processes.append(engine)
        probe = (
            "import sys, time, urllib.request\n"
            "for _ in range(300):\n"
            "    try: urllib.request.urlopen(sys.argv[1], timeout=1); break\n"
            "    except OSError: time.sleep(0.1)\n"
            "else: sys.exit('the engine does not answer')"
        )
        _do("ip", "netns", "exec", self.switch, sys.executable, "-c", probe, f"{self.far_url}/health")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for namespace in self._namespaces:
            subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)

    def host(self, name: str) -> Host:
        """Another machine on the switch."""
        with self._lock:
            self._hosts += 1
            number = self._hosts
        namespace, port, address = self._namespace(name), f"p{number}", f"10.77.0.{number}"
        _do("ip", "-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _do("ip", "-n", self.switch, "link", "set", port, "master", "bridge0", "up")
        _do("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "eth0")
        _do("ip", "-n", namespace, "link", "set", "eth0", "up")
        _do("ip", "-n", namespace, "route", "add", "default", "via", "10.77.0.254")
        disk = self.folder / "disks" / name
        disk.mkdir(parents=True)
        return Host(namespace, address, port, self.switch, disk)

    def _namespace(self, name: str) -> str:
        namespace = f"{self.name}-{name}"
        _do("ip", "netns", "add", namespace)
        self._namespaces.append(namespace)
        _do("ip", "-n", namespace, "link", "set", "lo", "up")
        for setting in ("net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"):
            _do("ip", "netns", "exec", namespace, "sysctl", "-qw", setting)
        return namespace

    def _lay_slow_wire(self) -> None:
        far = self.engine.namespace
        wire = subprocess.Popen(
            [sys.executable, slow_wire.__file__, self.switch, "near0", far, "far0", str(DELAY_S), str(LOSS)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes.append(wire)
        assert wire.stdout is not None
        assert wire.stdout.readline() == "ready\n"
        _do("ip", "-n", self.switch, "link", "set", "near0", "up")
        _do("ip", "-n", self.switch, "route", "add", "10.77.1.0/24", "dev", "near0")
        _do("ip", "-n", far, "addr", "add", "10.77.1.1/32", "dev", "far0")
        _do("ip", "-n", far, "link", "set", "far0", "up")
        # Answers go back the way the question came, and not over the switch.
        _do("ip", "-n", far, "route", "add", "default", "dev", "far0", "table", "100")
        _do("ip", "-n", far, "rule", "add", "from", "10.77.1.1", "lookup", "100")


@dataclass
class FleetRun:
    """A master and its workers on hosts of their own; `directory` is the run's, as the master names it."""

    lab: Lab
    name: str
    workers: int

    def __post_init__(self) -> None:
        self.results = self.lab.folder / f"results-{self.name}"
        self.results.mkdir()
        self.directory = self.results / "run"
        self.master_host = self.lab.host(f"{self.name}-m")
        self.hosts = [self.lab.host(f"{self.name}-{number}") for number in range(self.workers)]

    @property
    def masters_copy(self) -> Path:
        """The run directory on the master's disk."""
        return self.master_host.disk / "run"

    def start_master(self, url: str, *arguments: object) -> subprocess.Popen[str]:
        return self.master_host.start(
            *("-m", "locust", "-f", "locustfiles/chat.py", "--master", "--headless", "-H", url, "--only-summary"),
            *("--expect-workers", self.workers, "--results", self.directory, *arguments),
            results=self.results,
        )

    def start_worker(self, number: int, program: Sequence[str] = (), **env: str) -> subprocess.Popen[str]:
        return self.hosts[number].start(
            *("-m", "locust", "-f", "locustfiles/chat.py", "--worker", "--master-host", self.master_host.address),
            results=self.results,
            program=program,
            env=env,
        )

    def start_workers(self) -> list[subprocess.Popen[str]]:
        return [self.start_worker(number) for number in range(self.workers)]

    def wait_for_records(self, least: int, timeout_s: float = 150) -> None:
        """Until the master has written that many."""
        deadline = time.monotonic() + timeout_s
        while self.count() < least:
            assert time.monotonic() < deadline, f"{self.name}: only {self.count()} records of {least}"
            time.sleep(0.05)

    def count(self) -> int:
        with contextlib.suppress(OSError):
            return (self.masters_copy / "requests.jsonl").read_bytes().count(b"\n")
        return 0

    def journals(self) -> Iterator[tuple[int, RequestRecord]]:
        """(host, record) of what workers wrote on their own disks: what they really did."""
        for number, host in enumerate(self.hosts):
            for path in sorted(host.disk.glob("run*/journals/*.jsonl")):
                for record in decode_records(path):
                    yield number, record

    def gather_journals(self, into: Path) -> None:
        """As a user would before `exporters recover`."""
        (into / "journals").mkdir(exist_ok=True)
        for host in self.hosts:
            for path in host.disk.glob("run*/journals/*.jsonl"):
                shutil.copy(path, into / "journals" / f"journal-{host.namespace}-{path.name}")


def pid_inside(process: subprocess.Popen[str]) -> int:
    """The Python process: `ip netns exec` and the shell have become it."""
    return process.pid
