"""Fits the simulated host's overhead anew: on a run of your own against real vLLM, or on the published figures.

    python -m vllm_launch.simulated.calibrate RUN --model NAME --device NAME [--flag NAME=VALUE] -o overhead.json
    TAILGATE_SIMULATED_OVERHEAD=overhead.json python -m vllm_launch serve CONFIG --engine simulated

A run is replayed in virtual time, each request at the time it was really sent and with the tokens it really had; the
three terms are those that bring the simulated TTFT and TPOT of its requests closest to the measured ones.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import numpy as np

from tailgate.command_line import Parser
from tailgate.exits import BadInput, run_command
from vllm_launch.simulated.calibration import FITTED, errors, fit, published_misses, published_settings, replay
from vllm_launch.simulated.calibration import PUBLISHED as PUBLISHED_TABLE
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.step_time import Overhead
from vllm_launch.simulated.virtual import Ask, open_loop

_FEWEST = 20


class Measured(msgspec.Struct):
    """The fields of a line of `requests.jsonl` that a replay needs."""

    sent_ns: int
    outcome: str
    first_ns: int | None = None
    last_ns: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


def read_run(path: Path) -> list[Measured]:
    """The run's usable requests, in the order they were sent. Raises `BadInput` where there are too few."""
    file = path / "requests.jsonl" if path.is_dir() else path
    try:
        lines = file.read_bytes().splitlines()
        records = [msgspec.json.decode(line, type=Measured) for line in lines if line.strip()]
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInput(f"{file}: {error}", "give the directory of a run that kept its records") from None
    usable = [r for r in records if r.outcome == "ok" and r.first_ns and r.prompt_tokens and r.output_tokens]
    if len(usable) < _FEWEST:
        mend = f"give a run with at least {_FEWEST} that tells its token usage"
        raise BadInput(f"{file}: {len(usable)} requests can be replayed", mend)
    return sorted(usable, key=lambda record: record.sent_ns)


def run_misses(records: list[Measured], settings: EngineSettings) -> np.ndarray:
    """Relative errors of a replay: of the mean TTFT and TPOT of up to twenty groups of neighbouring requests."""
    start = records[0].sent_ns
    asks = [Ask(r.prompt_tokens or 1, r.output_tokens or 1, (r.sent_ns - start) / 1e9) for r in records]
    served = {id(request.ask): request for request in open_loop(settings, asks).served}
    ttft = np.array([((r.first_ns or 0) - r.sent_ns) / 1e9 for r in records])
    long = np.array([(r.output_tokens or 1) > 1 and bool(r.last_ns) for r in records])
    tpot = np.array(
        [((r.last_ns or 0) - (r.first_ns or 0)) / 1e9 / max(1, (r.output_tokens or 1) - 1) for r in records]
    )
    ttft_simulated = np.array([served[id(ask)].ttft_s for ask in asks])
    tpot_simulated = np.array([served[id(ask)].tpot_s or 0.0 for ask in asks])
    misses = []
    for group in np.array_split(np.arange(len(records)), min(20, len(records) // 5)):
        misses.append(ttft_simulated[group].mean() / ttft[group].mean() - 1)
        several = group[long[group]]
        if len(several) and tpot[several].mean() > 0:
            misses.append(tpot_simulated[several].mean() / tpot[several].mean() - 1)
    return np.array(misses)


def main(argv: list[str] | None = None) -> int:
    from vllm_launch.simulated.__main__ import read_flags

    parser = Parser(
        prog="python -m vllm_launch.simulated.calibrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", nargs="*", type=Path, metavar="RUN", help="run directories, all of one launch config")
    parser.add_argument("--published", action="store_true", help="fit on the published silicon table instead")
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B-Instruct")
    parser.add_argument("--device", default="h100-sxm")
    parser.add_argument("--flag", action="append", default=[], metavar="NAME[=VALUE]", help="a flag of `vllm serve`")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the fitted terms there")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)

    def run() -> int:
        if bool(given.run) == given.published:
            raise BadInput("nothing to fit on" if not given.run else "both a run and --published", "give one of them")
        if given.published:
            fitted = fit(published_misses)
            before, after = (errors(replay(PUBLISHED_TABLE, published_settings(o))) for o in (FITTED, fitted))
            result = {
                "tpot_error": after[0],
                "ttft_error": after[1],
                "tpot_before": before[0],
                "ttft_before": before[1],
            }
        else:
            runs = [read_run(path) for path in given.run]

            def misses(overhead: Overhead) -> np.ndarray:
                flags = read_flags(given.flag)
                settings, _ = EngineSettings.from_flags(given.model, given.device, flags, overhead=overhead)
                return np.concatenate([run_misses(records, settings) for records in runs])

            fitted = fit(misses)
            error = [float(np.abs(misses(overhead)).mean()) for overhead in (FITTED, fitted)]
            result = {"requests": float(sum(map(len, runs))), "error_before": error[0], "error": error[1]}
        if given.output:
            given.output.write_bytes(msgspec.json.encode(fitted) + b"\n")
        if given.json:
            print(msgspec.json.encode({"overhead": fitted, **result}).decode())
            return 0
        print(
            f"per step {1e3 * fitted.per_step_s:.2f} ms, per sequence {1e6 * fitted.per_sequence_s:.0f} us, "
            f"per request {1e3 * fitted.per_request_s:.1f} ms"
        )
        for name, value in result.items():
            print(f"{name}: {value:.0f}" if name == "requests" else f"{name}: {100 * value:.1f} %")
        return 0

    return run_command(run, "calibrate")


if __name__ == "__main__":
    sys.exit(run_command(main, "calibrate"))
