"""Our client beside `vllm bench serve`, on one real vLLM on CPU, under the same traffic, in one run.

Both send chats of the same length at the same Poisson rate, in turn: theirs, ours, ours, theirs. Theirs is shown as it
prints it, and with its role chunk accounted for (see `exporters.formats.vllm_bench`). The engine's own averages, from
its metrics page, stand below: what both clients should see, plus the way to them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exporters.formats import vllm_bench
from exporters.run import Run
from tailgate.exits import BadInput
from vllm_launch import cpu_vllm
from vllm_launch.config import load_config
from vllm_launch.engine import api
from vllm_launch.engine.launch import launch
from vllm_launch.engine.metrics import read_sample

_ROOT = Path(__file__).resolve().parent.parent
_CONFIG = "cpu-tiny-baseline"
_INPUT, _OUTPUT, _RATE = 100, 32, 6.0
_ROWS = (("TTFT", "ttft_s"), ("ITL", "itl_s"))
_STATISTICS = ("mean", "p50", "p95", "p99")
# The module stands for the command, which that package's metadata breaks (it is not named vllm).
_BENCH = (
    "from vllm.benchmarks.serve import add_cli_args, main; from vllm.utils.argparse_utils import "
    "FlexibleArgumentParser as P; p = P(); add_cli_args(p); main(p.parse_args())"
)


@dataclass(frozen=True)
class Side:
    """One client's run. `figures`: metric -> statistic -> seconds; `engine`: the engine's own means meanwhile."""

    name: str
    figures: dict[str, dict[str, float]]
    engine: dict[str, float]


def theirs(url: str, model: Path, folder: Path, requests: int, seed: int) -> tuple[list[Side], int]:
    """`vllm bench serve` as it prints it and as corrected, and the prompt tokens that the engine counted a request."""
    before = _sample(url)
    words = ["--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions", "--model", "tiny"]
    words += ["--tokenizer", str(model), "--dataset-name", "random", "--random-input-len", str(_INPUT)]
    words += ["--random-output-len", str(_OUTPUT), "--ignore-eos", "--num-prompts", str(requests)]
    words += ["--request-rate", str(_RATE), "--seed", str(seed), "--save-result", "--save-detailed", "--disable-tqdm"]
    words += ["--result-dir", str(folder), "--result-filename", "bench.json"]
    done = subprocess.run([str(cpu_vllm.PYTHON), "-c", _BENCH, *words], capture_output=True, text=True, check=False)
    file = folder / "bench.json"
    if done.returncode or not file.is_file():
        raise BadInput(f"vllm bench serve failed: {done.stderr.strip()[-300:]}", "see its message")
    engine, prompt_tokens = _engine(before, _sample(url))
    found = json.loads(file.read_text(encoding="utf-8"))
    raw = {
        "ttft_s": _statistics(np.array(found["ttfts"])),
        "itl_s": _statistics(np.concatenate([np.array(gaps) for gaps in found["itls"]])),
    }
    corrected = _figures(vllm_bench.load(file, folder / "imported"))
    return [Side("vllm bench", raw, engine), Side("  role chunk out", corrected, engine)], prompt_tokens


def ours(url: str, folder: Path, requests: int, seed: int, prompt_tokens: int) -> Side:
    """Our client, as a user starts it."""
    workload = folder / "same.yaml"
    workload.write_text(
        f"name: same\nclasses:\n  chat: {{input-tokens: {prompt_tokens}, output-tokens: {_OUTPUT}}}\n", encoding="utf-8"
    )
    before = _sample(url)
    words = ["-f", "locustfiles/chat.py", "--headless", "-H", url, "-u", "1", "-r", "1", "-t", "300s"]
    words += ["--workload", str(workload), "--arrival", "poisson", "--request-rate", str(_RATE), "--warmup", "0"]
    words += ["--num-requests", str(requests), "--seed", str(seed), "--results", str(folder / "ours"), "--only-summary"]
    done = subprocess.run(
        [sys.executable, "-m", "locust", *words], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 4):
        raise BadInput(f"our client failed: {done.stderr.strip()[-300:]}", "see its message")
    engine, _ = _engine(before, _sample(url))
    run = Run.load(folder / "ours")
    return Side("tailgate" if run.valid else "tailgate (NOT VALID)", _figures(run), engine)


def _sample(url: str) -> dict[str, Any]:
    return read_sample(api.ask(url, "/metrics"), 0)


def _engine(before: dict[str, Any], after: dict[str, Any]) -> tuple[dict[str, float], int]:
    def grown(key: str) -> float:
        return float(after[key] - before[key])

    means = {name: grown(f"{name}_sum") / max(grown(f"{name}_count"), 1.0) for _, name in _ROWS}
    return means, round(grown("prompt_tokens_total") / max(grown("ttft_s_count"), 1.0))


def _figures(run: Run) -> dict[str, dict[str, float]]:
    columns = run.columns
    return {name: _statistics(columns.values(name, columns.ok)) for _, name in _ROWS}


def _statistics(values: Any) -> dict[str, float]:
    found = {"mean": float(np.mean(values))}
    return found | {level: float(np.quantile(values, int(level[1:]) / 100)) for level in _STATISTICS[1:]}


def main(quick: bool = False) -> None:
    cpu_vllm.require_ready()
    requests = 90 if quick else 200
    sides: list[Side] = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        with launch(load_config(_CONFIG), "vllm", log=work / "engine.log") as engine:
            model = cpu_vllm.model_path("generated:tiny-llama")
            prompt_tokens = _INPUT
            for number, who in enumerate(("theirs", "ours", "ours", "theirs"), start=1):
                folder = work / str(number)
                folder.mkdir()
                if who == "theirs":
                    found, prompt_tokens = theirs(engine.url, model, folder, requests, number)
                    sides += found
                else:
                    sides.append(ours(engine.url, folder, requests, number, prompt_tokens))
    print(f"real vLLM on CPU, {requests} chats a run of {prompt_tokens} and {_OUTPUT} tokens, {_RATE:g} requests/s")
    load = os.getloadavg()[0]
    if load > (os.cpu_count() or 1) + 1:
        print(f"THE MACHINE IS BUSY (load average {load:.1f}): these figures are of no use")
    print("ms".ljust(22) + "".join(f"{metric + ' ' + s:>11}" for metric, _ in _ROWS for s in _STATISTICS))
    for side in sides:
        cells = [f"{side.figures[name][s] * 1e3:>11.2f}" for _, name in _ROWS for s in _STATISTICS]
        print(side.name.ljust(22) + "".join(cells))
        if not side.name.startswith("vllm"):
            own = [f"{side.engine[name] * 1e3:>11.2f}" + " " * 33 for _, name in _ROWS]
            print("  the engine's own".ljust(22) + "".join(own).rstrip())


if __name__ == "__main__":
    main()
