"""`python -m vllm_launch.simulated --model NAME --device NAME [--flag NAME=VALUE ...]`: the embedded engine by
itself."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace

from tailgate.command_line import Parser
from tailgate.exits import BadInput, run_command
from vllm_launch.simulated.server import serve
from vllm_launch.simulated.settings import EngineSettings


def main(argv: list[str] | None = None) -> int:
    parser = Parser(prog="python -m vllm_launch.simulated", description=__doc__)
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument("--device", default="h100-sxm", help="h100-sxm, h200-sxm or a100-sxm")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free port, told on stdout")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same prompts: same replies")
    parser.add_argument(
        "--flag", action="append", default=[], metavar="NAME[=VALUE]", help="a flag of `vllm serve`; may be repeated"
    )
    parser.add_argument("--slowdown", type=float, default=1.0, help="multiplies the time of every step, for benchmarks")
    given = parser.parse_args(argv)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")

    def run() -> int:
        settings, notes = EngineSettings.from_flags(given.model, given.device, read_flags(given.flag), given.seed)
        for note in notes:
            print(f"note: {note}", file=sys.stderr)
        serve(replace(settings, slowdown=given.slowdown), given.host, given.port)
        return 0

    return run_command(run, "simulated engine")


def read_flags(texts: list[str]) -> dict[str, object]:
    """`--flag` options as flags; a name alone is a switch turned on."""
    flags: dict[str, object] = {}
    for text in texts:
        name, separator, value = text.removeprefix("--").partition("=")
        if not name:
            raise BadInput(f"--flag {text}: no name", "write it like --flag max-num-seqs=256")
        flags[name] = value if separator else True
    return flags


if __name__ == "__main__":
    sys.exit(run_command(main, "simulated engine"))
