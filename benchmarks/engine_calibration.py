"""The embedded engine against published silicon, in virtual time: Qwen3-32B on two H100s, closed loop."""

from __future__ import annotations

from vllm_launch.simulated.calibration import (
    BEYOND,
    FITTED,
    HELD_OUT,
    PUBLISHED,
    TWO_FITTED,
    Published,
    errors,
    published_settings,
    replay,
)


def main() -> None:
    print("embedded engine against published silicon: Qwen3-32B TP2, 2 x H100, 2048 batched tokens, 256 sequences")
    print(
        f"host overhead: {1e3 * FITTED.per_step_s:.2f} ms a step, {1e6 * FITTED.per_sequence_s:.0f} us a sequence, "
        f"{1e3 * FITTED.per_request_s:.0f} ms a request (fitted on the first table only)"
    )
    _print(PUBLISHED, "fitted")
    for table in HELD_OUT:
        _print(table, "held out")
    _print(BEYOND, "held out: long prompts, and a KV cache too small for the last two rows")
    _print_two()


def _print(table: Published, role: str) -> None:
    checked = replay(table, published_settings())
    print(f"\n{table.prompt_tokens} in / {table.output_tokens} out, 10 requests a user ({role})")
    print("users   TPOT silicon  simulated    off   TTFT silicon  simulated    off  x real time of a core")
    for row in checked:
        point = row.published
        print(
            f"{point.users:>5}{1e3 * point.tpot_s:>12.2f} ms{1e3 * row.tpot_s:>8.2f} ms{_off(row.tpot_s, point.tpot_s)}"
            f"{1e3 * point.ttft_s:>12.0f} ms{1e3 * row.ttft_s:>8.0f} ms{_off(row.ttft_s, point.ttft_s)}"
            f"{row.speed:>14.0f}"
        )
    tpot, ttft = errors(checked)
    print(f"mean absolute error: TPOT {100 * tpot:.1f} %, TTFT {100 * ttft:.1f} %")


def _print_two() -> None:
    """Whether the step's constant is needed at all."""
    print(
        f"\nwith two terms alone ({1e6 * TWO_FITTED.per_sequence_s:.1f} us a sequence, "
        f"{1e3 * TWO_FITTED.per_request_s:.1f} ms a request, no constant a step)"
    )
    for table, role in ((PUBLISHED, "fitted"), *((held_out, "held out") for held_out in HELD_OUT)):
        tpot, ttft = errors(replay(table, published_settings(TWO_FITTED)))
        shape = f"{table.prompt_tokens} in / {table.output_tokens} out ({role})"
        print(f"  {shape:<32}mean absolute error: TPOT {100 * tpot:.1f} %, TTFT {100 * ttft:.1f} %")


def _off(simulated: float, published: float) -> str:
    return f"{100 * (simulated / published - 1):>+6.1f}%"


if __name__ == "__main__":
    main()
