"""Real traces at ten times their pace on the embedded engine: every row once, in order, as long as it was, sharing what
it shared.

The engine's steps take a hundredth of their time and its cache is large, so that it keeps up and evicts nothing: what
is measured is the replay. Azure's shortest prompts are shorter than a chat's template: it goes to the completions
endpoint. The traces are public and not part of this repository (docs/choose-arrivals.md says where from); their folder
is `../shared/traces` beside the checkout, or the environment's TAILGATE_TRACES.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import python
from exporters.record import RequestRecord, decode_records
from tailgate.exits import BadInput
from tests.support.embedded_engine import embedded_engine
from tests.support.locust_runs import free_port
from workloads import load_workload
from workloads.sources import Design

_PACE = 10.0
_SECONDS, _QUICK_SECONDS = 45.0, 12.0
_SLOWDOWN = 0.01
_TRACES = {
    "azure-code": "azure_llm_inference_2023_code.csv",
    "mooncake-conversation": "mooncake_conversation_trace.jsonl",
}
_SHORT_PROMPTS = {"azure-code"}


class Own(NamedTuple):
    """What the trace itself says of its span."""

    rows: list[Design]
    shared: float
    """Share of the prompt tokens in blocks that an earlier row began with as well."""


def main(quick: bool = False) -> None:
    seconds = _QUICK_SECONDS if quick else _SECONDS
    print(f"{seconds:.0f} s of replay at {_PACE:g} times the trace's pace; lengths as the server counted them.\n")
    print(f"{'trace':<23}{'rows':>6}{'sent':>6}{'twice':>6}{'order':>7}{'in off by':>11}{'out off by':>11}", end="")
    print(f"{'shared':>9}{'found':>9}{'lag p99':>11}  quality")
    for name, file in _TRACES.items():
        measure(name, folder_of_traces() / file, seconds)


def folder_of_traces() -> Path:
    """Where the traces lie. Raises `BadInput` where they do not."""
    folder = Path(os.environ.get("TAILGATE_TRACES") or Path(__file__).parents[2] / "shared" / "traces")
    for file in _TRACES.values():
        if not (folder / file).is_file():
            raise BadInput(f"{folder}: no {file}", "point TAILGATE_TRACES to the folder that holds the traces")
    return folder


def own(name: str, trace: Path, span_s: float) -> Own:
    """The rows of the first `span_s` seconds, and how much of them is shared if nothing is ever forgotten."""
    source = source_of(name, trace)
    length = source.length
    assert length is not None, "a trace ends"
    rows = []
    for index in range(length):
        design = source.design(index)
        if (design.offset_s or 0.0) >= span_s:
            break
        rows.append(design)
    seen: set[int] = set()
    total = shared = 0
    for row in rows:
        blocks = row.blocks or ()
        known = 0
        while known < len(blocks) and blocks[known] in seen:
            known += 1
        seen.update(blocks)
        total += row.input_tokens or 0
        shared += min(known * 512, row.input_tokens or 0)
    return Own(rows, shared / total)


def source_of(name: str, trace: Path) -> Any:
    """The trace as the suite reads it."""
    from workloads import make_plan

    return make_plan(load_workload(name), seed=0, model="m", counter=None, trace=trace)._source


def measure(name: str, trace: Path, seconds: float) -> None:
    """One replay, printed as a line."""
    truth = own(name, trace, seconds * _PACE)
    folder = Path(tempfile.mkdtemp(prefix="tailgate-bench-"))
    flags = ("num-gpu-blocks-override=4000000", "max-model-len=131072")
    with embedded_engine(*flags, slowdown=_SLOWDOWN) as url:
        port = free_port()
        locustfile = f"locustfiles/{'completions' if name in _SHORT_PROMPTS else 'replay'}.py"
        command = python("locust", "-f", locustfile, "--headless", "-H", url, "--workload", name)
        command += ["--trace", str(trace), "--time-scale", f"{_PACE:g}", "--num-requests", f"{len(truth.rows)}"]
        command += ["--drain", "120", "--results", str(folder / "run"), "--seed", "6"]
        command += ["--master-bind-port", f"{port}", "--master-port", f"{port}"]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        summary = json.loads((folder / "run" / "summary.json").read_text())
    except OSError:
        print(ended.stderr, file=sys.stderr)
        raise
    print_line(name, truth, list(decode_records(folder / "run" / "requests.jsonl")), summary)
    shutil.rmtree(folder)


def print_line(name: str, truth: Own, records: list[RequestRecord], summary: dict[str, Any]) -> None:
    """Counts, and the largest differences of length from the trace's own, in tokens and as a share."""
    by_index = {record.index: record for record in records}
    order = [record.index for record in sorted(records, key=lambda record: record.sent_ns)]
    behind = sum(b < a for a, b in itertools.pairwise(order))
    ok = [(truth.rows[i], r) for i, r in by_index.items() if r.outcome == "ok"]
    inputs = max(abs((r.prompt_tokens or 0) / max(row.input_tokens or 1, 1) - 1) for row, r in ok)
    outputs = max(abs((r.output_tokens or 0) / row.output_tokens - 1) for row, r in ok)
    found = summary["quality"]["cache_hit_share"]
    lag = summary["metrics"]["send_lag_s"]["p99"]
    print(f"{name:<23}{len(truth.rows):>6}{len(by_index):>6}{len(records) - len(by_index):>6}", end="")
    print(f"{'kept' if not behind else f'{behind} off':>7}{inputs:>11.2%}{outputs:>11.2%}", end="")
    print(f"{truth.shared:>9.1%}{found:>9.1%}{'too few' if lag is None else f'{lag * 1e3:.2f} ms':>11}", end="")
    failed = summary["requests"]["failed"]
    print(f"  {len(ok)} ok, {failed} failed; {'; '.join(summary['quality']['reasons']) or 'valid'}", flush=True)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
