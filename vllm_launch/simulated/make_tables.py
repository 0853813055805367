"""Freezes the step-time tables in `tables/` from AIConfigurator's measured kernels. Not needed at run time.

    python -m venv V && V/bin/pip install aiconfigurator-core==0.12.0 numpy
    V/bin/python -m vllm_launch.simulated.make_tables [NAME...]

One `.npz` per (model, tensor parallel size, system), each about 22 kB, float32, times in ms:
    decode_batch (b,), decode_context (k,), decode (b, k)    a step of b decodes, each with k tokens of context
    prefill_tokens (n,), prefill_prefix (x,), prefill (n, x) a step of n tokens of one prompt after x cached ones
    shared (n,)                                              the part of a step that depends on its token count only
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

TABLES = Path(__file__).parent / "tables"
SOURCE = "aiconfigurator-core 0.12.0"

# Name of the table -> what AIConfigurator calls the model, the tensor parallel size, and its name for the system.
WANTED: dict[str, tuple[str, int, str]] = {
    "llama-3.1-8b.tp1.h100-sxm": ("meta-llama/Meta-Llama-3.1-8B", 1, "h100_sxm"),
    "qwen3-32b.tp2.h100-sxm": ("Qwen/Qwen3-32B", 2, "h100_sxm"),
    "llama-3.1-70b.tp4.h100-sxm": ("meta-llama/Meta-Llama-3.1-70B", 4, "h100_sxm"),
    "llama-3.1-8b.tp1.h200-sxm": ("meta-llama/Meta-Llama-3.1-8B", 1, "h200_sxm"),
    "llama-3.1-8b.tp1.a100-sxm": ("meta-llama/Meta-Llama-3.1-8B", 1, "a100_sxm"),
}

DECODE_BATCH = np.unique(np.r_[1:17, np.geomspace(16, 1024, 28).astype(int)])
DECODE_CONTEXT = np.unique(np.geomspace(16, 131072, 40).astype(int))
PREFILL_TOKENS = np.unique(np.r_[1, np.geomspace(8, 16384, 60).astype(int), np.arange(256, 16385, 256)])
PREFILL_PREFIX = np.r_[0, np.unique(np.geomspace(256, 131072, 20).astype(int))]


def _estimator(model: str, tp: int, system: str) -> tuple[Callable[..., float], Callable[[int], float]]:
    """A function for the time of a whole step and one for its part that is not attention, both in ms."""
    from aiconfigurator_core.sdk import EngineHandle, RustForwardPassPerfModel

    whole = RustForwardPassPerfModel.from_native(
        {
            "schema_version": 1,
            "model_name": model,
            "system_name": system,
            "backend": "vllm",
            "tp_size": tp,
            "pp_size": 1,
        }
    )
    parts = EngineHandle.compile(model, system, "vllm", tp_size=tp)
    return (
        lambda **batch: float(whole.estimate_forward_pass_time_ms({"scheduled_requests": batch})),
        lambda tokens: float(parts.mixed_step_breakdown(tokens, 0, tokens, 2)[1]),
    )


def decode_ms(step_ms: Callable[..., float], batch: int, context: int) -> float:
    """A step of `batch` decodes with `context` tokens of context each."""
    return step_ms(num_decode_requests=batch, sum_decode_kv_tokens=batch * context)


def prefill_ms(step_ms: Callable[..., float], tokens: int, prefix: int) -> float:
    """A step of `tokens` prompt tokens of one request of which `prefix` tokens were computed before."""
    return step_ms(num_prefill_requests=1, sum_prefill_tokens=tokens, sum_prefill_kv_tokens=prefix)


def make(name: str) -> Path:
    """Writes the table `name` and gives its path."""
    step_ms, shared_ms = _estimator(*WANTED[name])
    decode = [[decode_ms(step_ms, int(b), int(k)) for k in DECODE_CONTEXT] for b in DECODE_BATCH]
    prefill = [[prefill_ms(step_ms, int(n), int(x)) for x in PREFILL_PREFIX] for n in PREFILL_TOKENS]
    path = TABLES / f"{name}.npz"
    arrays = {
        "decode_batch": DECODE_BATCH,
        "decode_context": DECODE_CONTEXT,
        "decode": decode,
        "prefill_tokens": PREFILL_TOKENS,
        "prefill_prefix": PREFILL_PREFIX,
        "prefill": prefill,
        "shared": [shared_ms(int(n)) for n in PREFILL_TOKENS],
        "probes": probes(step_ms),
    }
    np.savez_compressed(path, **{key: np.asarray(value, dtype=np.float32) for key, value in arrays.items()})  # type: ignore[arg-type]
    return path


def probes(step_ms: Callable[..., float], count: int = 300) -> list[list[float]]:
    """Steps drawn at random with the source's own time for them, kept in the table so that a test can measure the
    error of the factorised tables without the source at hand: rows of (decodes, context, tokens, prefix, ms)."""
    rng = np.random.default_rng(1)
    rows = []
    for _ in range(count):
        decodes, context = int(rng.integers(1, 513)), int(np.exp(rng.uniform(np.log(64), np.log(16000))))
        tokens, prefix = int(rng.integers(16, 8193)), int(rng.integers(0, 16001)) if rng.integers(3) == 0 else 0
        kind = rng.integers(3)
        batch: dict[str, int] = {}
        if kind != 1:
            batch |= {"num_decode_requests": decodes, "sum_decode_kv_tokens": decodes * context}
        if kind != 0:
            batch |= {"num_prefill_requests": 1, "sum_prefill_tokens": tokens, "sum_prefill_kv_tokens": prefix}
        row = [decodes, context, 0, 0] if kind == 0 else [0, 0, tokens, prefix] if kind == 1 else []
        rows.append([*(row or [decodes, context, tokens, prefix]), step_ms(**batch)])
    return rows


def main(names: list[str]) -> int:
    for name in names or list(WANTED):
        path = make(name)
        print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
