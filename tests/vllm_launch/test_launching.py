"""Engines started and ended as real processes: ready means ready, ended means nothing is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from tailgate.exits import BadInput
from tests.support.waiting import eventually
from tests.vllm_launch.commands import end, marked, start
from tests.vllm_launch.commands import launch as command
from vllm_launch.config import load_config
from vllm_launch.engine.api import EngineUnreachable, ask, healthy
from vllm_launch.engine.launch import LaunchFailed, free_port, hint_for, launch, root_cause
from vllm_launch.engine.processes import Child

CONFIG = "h100-llama-8b-baseline"


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def read_line(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return line
    raise AssertionError(f"it never said '{word}': {process.communicate()}")


def test_a_free_port_is_none_that_an_outgoing_connection_may_be_given() -> None:
    low, high = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [free_port() for _ in range(50)]
    assert not any(low <= port <= high for port in ports)
    assert not any(listens(port) for port in ports)


@pytest.mark.parametrize(("host", "reached"), [("::1", "[::1]"), ("::", "[::1]"), ("0.0.0.0", "127.0.0.1")])
def test_an_engine_is_launched_at_any_address(tmp_path: Path, host: str, reached: str) -> None:
    with launch(load_config(CONFIG), "simulated", log=tmp_path / "e.log", host=host) as engine:
        assert engine.url.rpartition(":")[0] == f"http://{reached}"
        assert healthy(engine.url)


def test_a_host_that_is_none_is_told_by_name() -> None:
    with pytest.raises(BadInput, match=r"no-such-host\.invalid is no address of a machine"):
        free_port("no-such-host.invalid")


def test_a_launched_engine_serves_and_is_gone_afterwards(
    stub_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.setenv("TAILGATE_TEST_MARK", mark)
    monkeypatch.setenv("STUB_ENGINE", "forks strays")
    with launch(load_config(CONFIG), "vllm", log=tmp_path / "e.log", python=stub_python) as engine:
        assert (engine.model, engine.version) == ("stub", {"version": "0.32.0"})
        assert healthy(engine.url)
        port = int(engine.url.rpartition(":")[2])
        started = {process.name() for process in marked(mark)}
        assert "sleep" in started
    eventually(lambda: not [p for p in marked(mark) if "guard.py" not in " ".join(p.cmdline())], "nothing left", 5)
    assert not listens(port)


def test_an_engine_that_ignores_sigterm_is_killed_with_its_helpers(tmp_path: Path) -> None:
    deaf = "import signal, subprocess; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += "subprocess.Popen(['sleep', '600']); print('ready', flush=True); signal.pause()"
    with Child([sys.executable, "-c", deaf], tmp_path / "log") as child:
        eventually(lambda: "ready" in (tmp_path / "log").read_text(), "it started")
        helpers = psutil.Process(child.pid).children()
        assert helpers
        child.stop(grace_s=0.5)
        assert child.poll() == -signal.SIGKILL
        assert not any(helper.is_running() and helper.status() != psutil.STATUS_ZOMBIE for helper in helpers)


def test_a_polite_engine_gets_the_time_to_end_by_itself(tmp_path: Path) -> None:
    polite = "import signal, sys, time\n"
    polite += "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), print('tidied', flush=True), sys.exit(0)))\n"
    polite += "print('ready', flush=True)\nsignal.pause()"
    with Child([sys.executable, "-c", polite], tmp_path / "log") as child:
        eventually(lambda: "ready" in (tmp_path / "log").read_text(), "it started")
    assert (child.poll(), child.tail()) == (0, ["ready", "tidied"])


def test_an_engine_that_dies_at_start_shows_its_last_lines_and_what_mends_it(
    stub_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_ENGINE", "dies")
    log = tmp_path / "e.log"
    with (
        pytest.raises(LaunchFailed) as caught,
        launch(load_config(CONFIG), "vllm", log=log, python=stub_python),
    ):
        pass
    assert str(caught.value) == (
        "the engine died while starting (exit status 1): ValueError: No available memory for the cache blocks; "
        "no room for the KV cache; lower max-model-len, raise "
        f"gpu-memory-utilization, or spread over more devices (its log is {log})"
    )
    assert caught.value.log_tail == ["INFO starting", "ValueError: No available memory for the cache blocks."]


def test_an_engine_that_is_never_ready_is_given_up_and_ended(
    stub_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    monkeypatch.setenv("STUB_ENGINE", "mute")
    monkeypatch.setenv("TAILGATE_TEST_MARK", mark)
    with (
        pytest.raises(LaunchFailed, match=r"the engine was not ready after 1 s \(no answer on /health\); its log is"),
        launch(load_config(CONFIG), "vllm", log=tmp_path / "e.log", python=stub_python, timeout_s=1.0),
    ):
        pass
    assert not [p for p in marked(mark) if "stub_engine" in " ".join(p.cmdline())]


def test_an_engine_that_dies_later_is_noticed(stub_python: str, tmp_path: Path) -> None:
    with launch(load_config(CONFIG), "vllm", log=tmp_path / "e.log", python=stub_python) as engine:
        engine.check()
        with pytest.raises(EngineUnreachable):
            ask(engine.url, "/die")
        eventually(lambda: engine.child.poll() is not None, "it died", 5)
        with pytest.raises(LaunchFailed, match=r"ended by itself \(exit status 7\); the device has too little free"):
            engine.check()


def test_the_cause_is_found_under_what_it_led_to() -> None:
    """As vLLM 0.32 says it, each traceback shortened to two lines."""
    lines = [
        "(APIServer pid=1) WARNING 11-30 03:03:39 [system_utils.py:255] This can cause `OSError: [Errno 24]`",
        "(EngineCore pid=2) ERROR 11-30 03:03:57 [core.py:1510]     raise ValueError(",
        (
            "(EngineCore pid=2) ERROR 11-30 03:03:57 [core.py:1510] ValueError: Available memory on node 0 (21.16/"
            "23.54 GiB) on kv cache allocation is less than requested memory for kv (999.0 GiB)."
        ),
        "    raise RuntimeError(",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    assert (root_cause(lines) or "").startswith("ValueError: Available memory on node 0 (21.16/23.54 GiB)")
    assert "lower VLLM_CPU_KVCACHE_SPACE" in (hint_for(lines) or "")
    assert root_cause(lines[:2]) is None
    assert root_cause(["x.ValidationError: 1 error", "  Value error, too long. [type=x]"]) == "Value error, too long"


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("OSError: [Errno 98] Address already in use", "the port is taken"),
        ("api_server.py: error: unrecognized arguments: --enable-metrics", "does not take that flag"),
        ("ModuleNotFoundError: No module named 'vllm'", "not installed in that environment"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "too little free memory"),
        ("OSError: You are trying to access a gated repo.", "HF_TOKEN"),
        ("RuntimeError: Failed to infer device type", "no usable GPU"),
        ("docker: Error response from daemon: could not select device driver with gpu", "nvidia-container-toolkit"),
        ("docker: pull access denied for x, repository does not exist", "the image cannot be had"),
        ("OSError: x/y is not a local folder and is not a valid model identifier", "the model is not there"),
    ],
)
def test_known_last_words_have_a_mend(line: str, hint: str) -> None:
    assert hint in (hint_for(["INFO loading", line, "Traceback ends"]) or "")


def test_unknown_last_words_have_none() -> None:
    assert hint_for(["all is well"]) is None


@pytest.mark.parametrize(("number", "said"), [(signal.SIGTERM, "serving stub"), (signal.SIGINT, "serving stub")])
def test_serve_ends_well_when_told_to(stub_python: str, mark: str, number: signal.Signals, said: str) -> None:
    port = free_port()
    env = {"STUB_ENGINE": "forks", "TAILGATE_TEST_MARK": mark}
    process = start("serve", CONFIG, "--port", port, "--python", stub_python, env=env)
    assert said in read_line(process, "serving")
    process.send_signal(number)
    ended = end(process, 20)
    assert (ended.code, ended.err) == (0, "")
    eventually(lambda: not marked(mark), "nothing left", 5)
    assert not listens(port)


def test_when_the_launcher_is_killed_its_engine_does_not_live_on(stub_python: str, mark: str) -> None:
    port = free_port()
    env = {"STUB_ENGINE": "deaf forks", "TAILGATE_TEST_MARK": mark}
    process = start("serve", CONFIG, "--port", port, "--python", stub_python, env=env)
    read_line(process, "serving")
    process.kill()
    process.wait()
    assert listens(port), "the engine outlives its launcher for a moment, or this test shows nothing"
    eventually(lambda: not marked(mark), "the guard ended the engine", 10)
    assert not listens(port)
    process.communicate()


def test_a_taken_port_is_said_before_anything_starts(stub_python: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        ended = command("serve", CONFIG, "--port", port, "--python", stub_python)
        name = psutil.Process().name()
        assert (ended.code, ended.err) == (
            2,
            (
                f"vllm_launch: port {port} on 127.0.0.1 cannot be used: Address already in use "
                f"(held by process {os.getpid()}, {name}); give another --port\n"
            ),
        )
        simulated = command("serve", CONFIG, "--engine", "simulated", "--port", port)
        assert (simulated.code, simulated.err.count("\n")) == (2, 1)
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in simulated.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_embedded_engine_serves_a_config_and_ends_well(number: signal.Signals) -> None:
    port = free_port()
    process = start("serve", CONFIG, "--engine", "simulated", "--port", port)
    assert read_line(process, "Ready on") == f"Ready on http://127.0.0.1:{port}\n"
    assert '"simulated":true' in ask(f"http://127.0.0.1:{port}", "/version").replace(" ", "")
    process.send_signal(number)
    ended = end(process, 10)
    assert (ended.code, ended.err) == (0, "")
    assert not listens(port)


def test_an_engine_without_a_table_for_the_device_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("extends: h100-llama-8b-baseline\ndevice: b200\n")
    ended = command("serve", "c.yaml", "--engine", "simulated", "--port", free_port(), cwd=tmp_path)
    assert (ended.code, ended.err) == (
        2,
        (
            "vllm_launch: the embedded engine has no measured step times for the device 'b200'; use one of h100-sxm, "
            "h200-sxm, a100-sxm, or launch real vLLM on it\n"
        ),
    )


def test_serve_names_the_mend_too_where_the_engine_dies(stub_python: str) -> None:
    words = ["serve", CONFIG, "--port", free_port(), "--python", stub_python]
    ended = command(*words, env={"STUB_ENGINE": "dies"})
    assert ended.code == 2
    assert "ValueError: No available memory for the cache blocks." in ended.out
    assert ended.err == (
        "vllm_launch: the engine died while starting (exit status 1): ValueError: No available memory for the cache "
        "blocks; no room for the KV cache; lower max-model-len, raise gpu-memory-utilization, or spread over more "
        "devices (see its output above)\n"
    )


@pytest.mark.parametrize("port", ["0", "99999", "x"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    ended = command("serve", CONFIG, "--port", port)
    assert (ended.code, ended.err) == (
        2,
        (
            f"vllm_launch: argument --port: '{port}' is no port, give one between 1 and 65535; "
            "see: python -m vllm_launch serve --help\n"
        ),
    )


def test_an_environment_without_vllm_is_refused_in_one_line() -> None:
    ended = command("serve", CONFIG, "--python", "/nowhere/python", "--port", free_port())
    assert (ended.code, ended.err) == (
        2,
        "vllm_launch: there is no Python at /nowhere/python; name the environment that has vLLM with --python\n",
    )


def test_ending_waits_for_the_end() -> None:
    with Child(["sleep", "600"], None) as child:
        began = time.monotonic()
        child.stop()
        assert child.poll() == -signal.SIGTERM
        assert time.monotonic() - began < 5


def test_shared_memory_of_a_killed_engine_is_removed(tmp_path: Path) -> None:
    deaf = "import signal; from multiprocessing.shared_memory import SharedMemory\n"
    deaf += "signal.signal(signal.SIGTERM, signal.SIG_IGN); memory = SharedMemory(create=True, size=64)\n"
    deaf += "print(memory.name, flush=True); signal.pause()"
    with Child([sys.executable, "-c", deaf], tmp_path / "log") as child:
        eventually(lambda: (tmp_path / "log").read_text().endswith("\n"), "it started")
        segment = Path("/dev/shm") / (tmp_path / "log").read_text().strip()
        assert segment.exists()
        child.stop(grace_s=0.2)
    assert not segment.exists()


def test_what_an_engine_leaves_in_the_temporary_folder_goes_with_it(
    stub_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with launch(load_config(CONFIG), "vllm", log=tmp_path / "e.log", python=stub_python, warm=False) as engine:
        assert engine.child is not None
        scratch = psutil.Process(engine.child.pid).environ()["TMPDIR"]
        (Path(scratch) / "socket").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["e.log"]
