"""What it costs to prepare requests: time and memory for ten thousand prompts of 8,192 tokens, made one by one."""

from __future__ import annotations

import resource
import time

from workloads import Workload, make_plan

_PROMPTS = 10_000
_TOKENS = 8192


def main() -> None:
    """Prints milliseconds a prompt, by language, and the process's peak memory."""
    print(f"Preparing {_PROMPTS:,} chat requests of {_TOKENS:,} tokens on one core, each made when asked for:")
    print(f"  {'language':10} {'all':>8} {'of CPU':>8} {'each':>9} {'p99':>9} {'body':>9}")
    for language in ("en", "zh", "mixed"):
        workload = Workload.model_validate(
            {
                "name": "bench",
                "classes": {"a": {"input-tokens": _TOKENS, "output-tokens": 1, "language": language}},
            }
        )
        plan = make_plan(workload, seed=1, model="m", counter=None)
        costs, size = [], 0
        cpu_before = time.process_time()
        for index in range(_PROMPTS):
            before = time.perf_counter()
            size += len(plan.request(index).body)
            costs.append(time.perf_counter() - before)
        cpu_s = time.process_time() - cpu_before
        total, p99 = sum(costs), sorted(costs)[int(0.99 * len(costs))]
        print(
            f"  {language:10} {total:6.2f} s {cpu_s:6.2f} s {total / _PROMPTS * 1e3:6.2f} ms {p99 * 1e3:6.2f} ms "
            f"{size / _PROMPTS / 1024:5.1f} KiB"
        )
    print(f"  peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
