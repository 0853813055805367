"""Every load generator of the field that is installed beside us, against the truth, in one table with ours.

Each peer lives in an environment of its own, `.venv-peers/NAME` (vLLM's in `.venv-vllm`, which `make test-vllm` makes):

    python -m benchmarks.peers --install     makes those that are missing (several GB)
    python -m benchmarks peers               the table of those that stand

A peer is run as its own documentation says, streaming, closed loop, its figures read from the file it writes. What a
tool does not report is a dash. Client on one core, server on the other; CPU is that of the tool's whole process tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bench import TOKENS, Steady, TruthServer, cores, pinned, watch_steadily
from benchmarks.peer_tools import PEERS, Job, Peer, Quantiles
from benchmarks.suite import run_suite
from tailgate.exits import BadInput
from vllm_launch.cpu_vllm import GENERATED, make_model, require_ready

_STREAMS, _QUICK_STREAMS = (100, 300), (100,)
_SECONDS, _QUICK_SECONDS = 30.0, 12.0
_WATCH_S = 6.0
_FIRST_REQUEST_S, _SETTLE_S, _END_S = 120.0, 3.0, 240.0
_SOONEST_EVENTS_PER_S = 100.0


def main(quick: bool = False) -> None:
    tokenizer = _tokenizer()
    seconds = _QUICK_SECONDS if quick else _SECONDS
    print(f"{TOKENS} tokens an answer, 50 ms to the first, 10 ms between, +-20 %; errors against the server's times.\n")
    print(f"{'client':<17}{'streams':>8}", end="")
    for metric in ("TTFT", "ITL"):
        print("".join(f"{metric + ' ' + quantile:>10}" for quantile in ("p50", "p95", "p99")), end="")
    print(f"{'in flight':>11}{'events/s':>10}{'CPU us':>8}")
    for streams in _QUICK_STREAMS if quick else _STREAMS:
        _ours(streams, seconds)
        for peer in PEERS:
            if peer.installed:
                _measure(peer, streams, seconds, tokenizer)
    print("\n* this tool's ITL is the mean gap of each request, not a gap")
    missing = [peer.name for peer in PEERS if not peer.installed]
    if missing:
        print(f"Not installed: {', '.join(missing)} (python -m benchmarks.peers --install)")


def install() -> None:
    """Makes the environments that are missing; a peer that cannot be had is told and left out."""
    for peer in PEERS:
        if peer.installed:
            continue
        if peer.comes_with_the_tests:
            print(f"{peer.name}: make test-vllm makes its environment", flush=True)
            continue
        python = shutil.which(peer.python)
        if python is None:
            print(f"{peer.name}: needs {peer.python} on PATH", flush=True)
            continue
        print(f"{peer.name}: installing {peer.package} ...", flush=True)
        subprocess.run([python, "-m", "venv", str(peer.environment)], check=True)
        pip = [str(peer.environment / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", peer.package]
        if subprocess.run(pip, check=False).returncode:
            print(f"{peer.name}: {peer.package} cannot be installed; see above", flush=True)
        else:
            (peer.environment / ".ready").touch()


def _ours(streams: int, seconds: float) -> None:
    with TruthServer() as server:
        run = run_suite(server, streams, seconds)
    errors = {
        (metric, quantile): error
        for metric in ("TTFT", "ITL")
        for quantile in ("p50", "p95", "p99")
        if (error := run.error(metric, quantile)) is not None
    }
    _print("tailgate", streams, errors, run.steady)


def _measure(peer: Peer, streams: int, seconds: float, tokenizer: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tailgate-peer-"))
    with TruthServer() as server:
        job = Job(server.url, streams, seconds, tokenizer, folder)
        command = peer.command(job)
        variables = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"} | peer.variables
        log = (folder / "output.log").open("w")
        channels = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        # Some leave files where they are started.
        process = pinned(command, cores()[0], cwd=folder, env=variables, start_new_session=True, **channels)
        try:
            _wait_for_load(process, server)
            server.get("reset")
            steady = watch_steadily(process, server, _SETTLE_S, _WATCH_S)
            process.wait(_END_S)
        except (BadInput, subprocess.TimeoutExpired) as error:
            print(f"{peer.name:<17}{streams:>8}   {error}; its output: {folder}/output.log", flush=True)
            return
        finally:
            log.close()
            _end(process)
        true = server.get("truth")
    try:
        found = peer.read(job)
    except (OSError, KeyError, IndexError, ValueError) as error:
        print(f"{peer.name:<17}{streams:>8}   left no figures ({error!r}); its output: {folder}/output.log", flush=True)
        return
    key = {"TTFT": "ttft_ms", "ITL": "itl_ms"}
    errors = {(metric, q): value / true[key[metric]][q] - 1 for (metric, q), value in found.items()}
    _print(peer.name + ("*" if peer.calls_itl_a_mean else ""), streams, errors, steady)
    shutil.rmtree(folder, ignore_errors=True)


def _wait_for_load(process: subprocess.Popen[str], server: TruthServer) -> None:
    """Until events flow in earnest: tools take seconds to load and may send a probe first."""
    end = time.monotonic() + _FIRST_REQUEST_S
    before = server.get("counters")
    while time.monotonic() < end:
        if process.poll() is not None:
            raise BadInput(f"it ended with {process.returncode} before it sent anything", "see its output")
        time.sleep(0.5)
        now = server.get("counters")
        if (now["events"] - before["events"]) / (now["at_s"] - before["at_s"]) > _SOONEST_EVENTS_PER_S:
            return
        before = now
    raise BadInput("it sent nothing in two minutes", "see its output")


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, 9)
        process.wait()


def _print(name: str, streams: int, errors: Quantiles, steady: Steady) -> None:
    print(f"{name:<17}{streams:>8}", end="")
    for metric in ("TTFT", "ITL"):
        for quantile in ("p50", "p95", "p99"):
            error = errors.get((metric, quantile))
            print("-".rjust(10) if error is None else f"{error * 100:+.1f} %".rjust(10), end="")
    print(f"{steady.in_flight / streams:>11.1%}{steady.events_per_s:>10.0f}{steady.cpu_us_per_event:>8.0f}", flush=True)


def _tokenizer() -> Path:
    require_ready()
    return make_model(f"{GENERATED}tiny-llama")


if __name__ == "__main__":
    if sys.argv[1:] != ["--install"]:
        raise SystemExit("usage: python -m benchmarks.peers --install   (the table: python -m benchmarks peers)")
    install()
