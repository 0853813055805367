"""Real vLLM against itself: pairs of runs on one engine, which the gate must not call different.

python -m benchmarks.compare_on_vllm [--pairs N] [--seconds S] [--gate TERMS]

A tiny model on this machine's CPU (`make test-vllm` installs what it takes), a closed loop of four users, the same
seeds on both sides, each of two runs as an experiment has them: A B B A, then B A A B … How far runs of one engine lie
apart on such a machine no single run can tell. What the gate finds is chance, or the machine was not left alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from exporters.compare import Comparison, compare
from exporters.run import Run
from tailgate.exits import BadInput, Exit, run_command
from tailgate.thresholds import parse_gate
from vllm_launch import cpu_vllm
from vllm_launch.config import load_config
from vllm_launch.engine.launch import launch

_ROOT = Path(__file__).resolve().parents[1]
_WORKLOAD = """\
name: a-against-a
classes:
  chat: {input-tokens: 64, output-tokens: 24}
"""


def main(quick: bool = False, pairs: int = 10, seconds: float = 8.0, gate: str | None = None) -> int:
    """Prints a line a pair, then the false alarms; returns their number. Raises `BadInput` where vLLM is missing."""
    if not cpu_vllm.ready():
        raise BadInput("real vLLM on CPU is not installed", "install it with: make test-vllm")
    if quick:
        pairs = 3
    alarms = valid = 0
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        (where / "workload.yaml").write_text(_WORKLOAD)
        with launch(load_config("cpu-tiny-baseline"), "vllm", log=where / "engine.log") as engine:
            _load_test(engine.url, where, "warm-up", 0, 6.0)
            for number in range(pairs):
                runs: dict[str, list[Run]] = {"A": [], "B": []}
                for side in "ABBA" if number % 2 == 0 else "BAAB":
                    repeat = len(runs[side])
                    label, seed = f"{side}{number}.{repeat}", 2 * number + repeat
                    runs[side].append(_load_test(engine.url, where, label, seed, seconds))
                found = compare(runs["A"], runs["B"], gate=parse_gate(gate) if gate else None)
                valid += not found.refused
                alarms += found.exit_code == Exit.REGRESSION
                print(f"pair {number + 1:>2}: {_said(found)}", flush=True)
    print(f"\n{alarms} false alarms in {valid} A/A pairs on real vLLM, sides of two {seconds:g}-s runs", end="")
    print(f" ({pairs - valid} not valid)")
    return alarms


def _load_test(url: str, where: Path, label: str, seed: int, seconds: float) -> Run:
    words: list[object] = [
        "-f",
        "locustfiles/chat.py",
        "--headless",
        "-u",
        "4",
        "-r",
        "4",
        "-t",
        f"{seconds:g}s",
        "-H",
        url,
    ]
    words += ["--workload", where / "workload.yaml", "--seed", seed, "--label", label, "--results", where / label]
    words += ["--only-summary", "--no-report", "--loglevel", "ERROR"]
    done = subprocess.run(
        [sys.executable, "-m", "locust", *map(str, words)], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (Exit.GOOD, Exit.REGRESSION, Exit.NOT_VALID):
        raise RuntimeError(f"the load test ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return Run.load(where / label)


def _said(found: Comparison) -> str:
    if found.refused:
        return f"not valid: {'; '.join(found.refusals)}"
    shown = [f"{m.name} x {m.ratio:.3f} ({m.verdict})" for m in found.gated if m.ratio is not None and m.unit == "s"]
    return f"{found.verdict}: {', '.join(shown)}"


def _command() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare_on_vllm", description=__doc__)
    parser.add_argument("--pairs", type=int, default=10, help="pairs of sides (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a run (default: %(default)s)")
    parser.add_argument("--gate", metavar="TERMS", help="what decides (default: the usual metrics)")
    options = parser.parse_args()
    return Exit.REGRESSION if main(False, max(options.pairs, 1), options.seconds, options.gate) else Exit.GOOD


if __name__ == "__main__":
    sys.exit(run_command(_command, "compare_on_vllm"))
