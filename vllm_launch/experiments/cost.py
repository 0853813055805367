"""What tokens cost: the price of the GPUs an engine holds, over the tokens that come out of it."""

from __future__ import annotations

from collections.abc import Sequence

from exporters.run import Run
from vllm_launch.config import LaunchConfig
from vllm_launch.experiments.file import LoadTestFile

_HOLD_GPUS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


def gpus(config: LaunchConfig) -> int:
    """How many GPUs an engine of this config holds: the product of its parallel sizes."""
    held = 1
    for flag in _HOLD_GPUS:
        held *= int(config.args.get(flag) or 1)
    return held


def per_million(gpu_hour_price: float, held: int, tokens_per_s: float) -> float | None:
    """Dollars for a million tokens at that rate; None where none came out."""
    return gpu_hour_price * held / 3600 / tokens_per_s * 1e6 if tokens_per_s > 0 else None


def output_tokens_per_s(runs: Sequence[Run]) -> float:
    """Output tokens/s over all of these runs' windows."""
    seconds = [run.window.seconds for run in runs]
    rates = [run.summary["throughput"]["output_tokens_per_s"] for run in runs]
    return float(sum(s * r for s, r in zip(seconds, rates, strict=True)) / sum(seconds))


def cost_lines(sides: Sequence[tuple[LaunchConfig, Sequence[Run]]], file: LoadTestFile) -> list[str]:
    """A line for each side's cost, as the screen shows it; none where no price is given."""
    if file.gpu_hour_price is None:
        return []
    lines = []
    for config, runs in sides:
        dollars = per_million(file.gpu_hour_price, gpus(config), output_tokens_per_s(runs))
        held = f"{gpus(config)} GPU{'s' if gpus(config) > 1 else ''} at ${file.gpu_hour_price:g} an hour"
        lines.append(f"cost: {config.name} {dollars_text(dollars)} per million output tokens ({held}, at this load)")
    return lines


def dollars_text(dollars: float | None) -> str:
    """`$0.184`, with three significant digits."""
    return "-" if dollars is None else f"${dollars:,.3g}" if dollars < 1000 else f"${dollars:,.0f}"
