"""The image: its Dockerfile's rules, its locked packages, and its programs run in a replay of it (no engine needed)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.dockerfile import Context, read_dockerfile
from tests.support.locust_runs import ROOT, SMALL, free_port
from tests.support.openai_server import Running, serve
from tests.support.replayed_image import ReplayedImage
from tests.support.require import need

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def _pins(name: str) -> dict[str, str]:
    return {canonicalize_name(package): pin for package, pin in _PINNED.findall((ROOT / name).read_text())}


def test_the_dockerfile_keeps_its_rules() -> None:
    build, final = read_dockerfile(ROOT / "Dockerfile")
    assert build.base == final.base == "${PYTHON_IMAGE}", "one base, which a digest can pin"
    assert final.all("RUN") == [], "the final stage needs no shell and adds no layers of its own"
    for stage in (build, final):
        for instruction in ("RUN", "ENTRYPOINT", "CMD"):
            for argument in stage.all(instruction):
                assert isinstance(json.loads(argument), list), f"{instruction} in shell form: {argument}"
    user, group = final.value("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    assert "--require-hashes" in " ".join(build.all("RUN"))
    check = final.value("HEALTHCHECK")
    assert json.loads(check[check.index("[") :])[1] == "/app/docker/healthcheck.py"
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"(?i)(ADD|curl|wget|http)s?://", text)


def test_only_what_runs_goes_in() -> None:
    build, _ = read_dockerfile(ROOT / "Dockerfile")
    context = Context(ROOT)
    for sources, _destination in build.copies:
        for source in sources:
            assert list(context.files(source)), f"COPY {source}: nothing there, or left out by .dockerignore"
    for left_out in (".git/config", ".env", ".venv/bin/python", "tests/conftest.py", "results/x/run.json", "README.md"):
        assert not context.holds(left_out), left_out
    assert not context.holds("locustfiles/__pycache__/chat.cpython-311.pyc")


def test_the_locked_packages_are_those_that_are_tested_and_all_that_is_needed() -> None:
    image, tested = _pins("requirements-image.lock"), _pins("requirements.lock")
    assert image.items() <= tested.items(), "run make lock"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["parquet"], *extras["nvml"], *extras["tokenizers"]]
    for text in wanted:
        requirement = Requirement(text)
        assert requirement.specifier.contains(image[canonicalize_name(requirement.name)]), "run make lock"
    for tool in ("mypy", "ruff", "selenium", "scipy"):
        assert tool not in image
    for package, pin in image.items():
        assert version(package) == pin
    assert "--find-links" not in (ROOT / "requirements-image.lock").read_text()


@pytest.fixture(scope="module")
def image() -> Iterator[ReplayedImage]:
    need(os.geteuid() == 0, "root, to replay the image")
    made = ReplayedImage.build()
    yield made
    made.remove()


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serve() as running:
        yield running


@pytest.fixture
def results(image: ReplayedImage, tmp_path: Path) -> Path:
    volume = tmp_path / "volume"
    volume.mkdir()
    user = int(image.final.value("USER").split(":")[0])
    os.chown(volume, user, user)
    volume.chmod(0o770)
    return volume


def test_nothing_can_be_written_but_results_and_tmp(image: ReplayedImage, results: Path) -> None:
    script = (
        "import os, pathlib\n"
        "for place in ('/app/results', '/tmp', '/app', '/opt/venv', '/'):\n"
        "    try: pathlib.Path(place, 'probe').write_text('x'); print(place, 'written')\n"
        "    except OSError as error: print(place, error.strerror)\n"
        "print(os.getuid(), os.path.exists('/bin/sh'), os.path.exists('/usr/bin/env'))"
    )
    told = image.run(["python", "-c", script], results)
    assert told.stdout.splitlines() == [
        "/app/results written",
        "/tmp written",
        *(f"{place} Read-only file system" for place in ("/app", "/opt/venv", "/")),
        "10001 False False",
    ], told.stderr


def test_a_whole_run_in_a_read_only_image_without_a_shell(image: ReplayedImage, results: Path, server: Running) -> None:
    (results / "small.yaml").write_text(SMALL)
    port = free_port()
    argv = [
        *image.final.exec("ENTRYPOINT"),
        *("-f", "locustfiles/chat.py", "--headless", "--processes", "2", "-u", "4", "-r", "50", "--num-requests", "40"),
        *("-H", server.url, "--workload", "results/small.yaml", "--results", "results/run", "--only-summary"),
        *("--master-bind-port", str(port), "--master-port", str(port)),
    ]
    told = image.run(argv, results)
    # 4 where this machine was too busy for the run to be valid.
    assert told.returncode in (0, 4), told.stderr
    summary = json.loads((results / "run" / "summary.json").read_text())
    assert summary["requests"]["ok"] == 40
    assert "kernel" in json.loads((results / "run" / "run.json").read_text())["clock"]
    assert "CAP_NET_RAW" in told.stderr, "the one line that says so"
    shown = image.run(["python", "-m", "exporters", "report", "results/run", "-o", "results/report.html"], results)
    assert shown.returncode in (0, 4), shown.stderr
    assert (results / "report.html").stat().st_size > 10_000
    assert (results / "report.html").stat().st_uid == 10001


def test_the_wire_clock_of_a_user_that_is_not_root(image: ReplayedImage, results: Path, server: Running) -> None:
    (results / "small.yaml").write_text(SMALL)
    argv = [
        *("python-wire", "-m", "locust", "-f", "locustfiles/chat.py", "--headless", "-u", "2", "-r", "50"),
        *("--num-requests", "4", "-H", server.url, "--workload", "results/small.yaml", "--results", "results/wire"),
    ]
    both = ["NET_RAW", "SYS_NICE"]
    given = image.run(argv, results, capabilities=both, new_privileges=True)
    assert json.loads((results / "wire" / "run.json").read_text())["clock"] == "wire", given.stderr
    held = "import os; print(os.getuid(), *(l.split()[1] for l in open('/proc/self/status') if 'CapEff' in l))"
    told = image.run(["python-wire", "-c", held], results, capabilities=both, new_privileges=True)
    assert told.stdout.split() == ["10001", f"{1 << 13 | 1 << 23:016x}"], told.stderr
    for one in both:
        withheld = image.run(argv, results, capabilities=[one], new_privileges=True)
        assert withheld.returncode != 0
        assert "PermissionError" in withheld.stderr, "the kernel refuses to execute it"


def test_the_embedded_engine_and_the_health_check(image: ReplayedImage, results: Path) -> None:
    port = free_port()
    argv = ["python", "-m", "vllm_launch", "serve", "h100-llama-8b-baseline", "--engine", "simulated"]
    engine = image.start([*argv, "--port", str(port)], results)
    try:
        waited = image.run(["python", "/app/docker/wait_for.py", f"http://127.0.0.1:{port}/health", "30"], results)
        assert waited.returncode == 0, waited.stderr
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/version", timeout=5) as answer:
            assert json.load(answer)["simulated"] is True
    finally:
        engine.send_signal(signal.SIGTERM)
        engine.communicate(timeout=20)
    assert engine.returncode == 0
    late = image.run(["python", "/app/docker/wait_for.py", f"http://127.0.0.1:{port}/health", "1"], results)
    assert late.returncode == 2
    assert "was not ready within 1 s" in late.stderr


_ALONE = """
import socket, subprocess, sys, time
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
check = [sys.executable, sys.argv[1]]
def well(): return subprocess.run(check, capture_output=True, text=True).returncode
alone = well()
listener = socket.create_server(("127.0.0.1", 0))
connection = socket.create_connection(listener.getsockname())
taken, _ = listener.accept()
listening = well()
listener.close()
connected = well()
print(alone, listening, connected)
"""


def test_the_health_check_knows_each_part(tmp_path: Path) -> None:
    need(os.geteuid() == 0, "root, for a network of its own")
    command = ["unshare", "--net", sys.executable, "-c", _ALONE, str(ROOT / "docker/healthcheck.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["1", "0", "0"], told.stderr
