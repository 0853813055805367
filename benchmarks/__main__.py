"""`make bench`: every benchmark, one after another, each printing its table.

python -m benchmarks [--quick] [PART ...]
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import time

from tailgate.command_line import Parser
from tailgate.exits import BadInput, run_command

PARTS = {
    "reading": "what reading a stream's bytes costs",
    "client_clocks": "how true each clock is, and what it costs",
    "compiled_core": "what a compiled core would bring",
    "suite_load": "the whole suite under Locust, against the truth",
    "highest_rate": "the most events a second that one core carries within 1 %, by the clock",
    "validity": "whether runs beyond that say so, and runs below never do",
    "peers": "the field's load generators against the truth (those installed; see benchmarks/peers.py)",
    "client_many": "thousands of slow streams in one process",
    "memory_growth": "what a long run leaves in memory (ten minutes)",
    "arrivals": "Poisson arrivals as they are really sent, on one worker and on four",
    "arrivals_traces": "the Azure and Mooncake traces at ten times their pace",
    "arrivals_overload": "waiting as queueing theory has it, in open loop; and how closed loop hides it",
    "prompt_preparation": "what making prompts of exact length costs",
    "big_files": "what a file of a million rows costs a worker",
    "master_capacity": "how many workers one master carries",
    "engine_lateness": "how late the embedded engine writes",
    "engine_calibration": "the embedded engine against published silicon",
    "search_limit": "the search for the highest rate against brute force, in virtual time",
    "ablation_prediction": "flags' effects on real vLLM on CPU, and as foretold (six minutes)",
    "vllm_bench_side_by_side": "our client and `vllm bench serve` on one real vLLM",
    "presets": "what each goal of the presets does on the embedded engine",
    "launch_stops": "engines launched and stopped, some launchers killed: what is left behind",
    "compare_calibration": "false alarms, power and coverage of the verdict; time for ten million gaps",
    "compare_on_engine": "the same on the embedded engine's own queue, a thousand pairs a load; ten million gaps",
    "compare_on_vllm": "ten A/A pairs on real vLLM on this machine's CPU",
}


def main() -> int:
    width = max(map(len, PARTS)) + 2
    known = "".join(f"\n  {name:<{width}}{what}" for name, what in PARTS.items())
    parser = Parser(
        prog="python -m benchmarks",
        description="Runs the benchmarks named, or all of them. Leave the machine alone meanwhile.",
        epilog=f"parts:{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements, where a part has them")
    options = parser.parse_args()
    for name in options.parts:
        if name not in PARTS:
            raise BadInput(f"unknown benchmark '{name}'", f"known: {', '.join(PARTS)}")
    for name in options.parts or PARTS:
        print(f"\n== {name}: {PARTS[name]}\n", flush=True)
        start = time.monotonic()
        run = importlib.import_module(f"benchmarks.{name}").main
        run(quick=True) if options.quick and "quick" in inspect.signature(run).parameters else run()
        print(f"\n({time.monotonic() - start:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(main, "benchmarks"))
