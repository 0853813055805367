"""The JSON of `vllm bench serve --save-detailed` (vLLM 0.32): runs written as it, and read from it.

What that format cannot hold is lost on the way out (classes, clocks, error kinds, stamps of the wall clock). On the way
in, its times are those at which its program read; such a run says so by its clock, `user`. `vllm bench serve` counts
the role-only chunk of a chat as the first token: where a result shows that (as many gaps as tokens), the first gap is
added to TTFT and left out of ITL, and `corrections` in run.json says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from exporters.columns import ABSENT, Columns
from exporters.facts import check
from exporters.figures_only import FIGURES, figures
from exporters.record import RequestRecord
from exporters.run import Run, read_json
from exporters.run_store import RunStore
from tailgate.exits import BadInput

_LISTS = ("ttfts", "itls", "output_lens", "errors")
_ROLE = "the role-only chunk was counted as the first token: its gap was added to TTFT and left out of ITL"
_LONGEST_S = 1e8
_MEND = "make one with: vllm bench serve --save-result --save-detailed"


def dump(run: Run) -> str:
    """The run as `vllm bench serve` would have written it: requests inside the window, in order; times in s and ms."""
    return json.dumps(_result(run)) + "\n"


def dump_sweep(runs: Sequence[Run]) -> str:
    """Runs as the `summary.json` of a `vllm bench sweep`, which `vllm bench sweep plot` and `plot_pareto` read: a list
    of results without their single requests, each with its launch config's flags beside the figures.
    """
    rows = []
    for run in runs:
        told = {k: v for k, v in _result(run).items() if not isinstance(v, list)}
        flags = {name.replace("-", "_"): value for name, value in (run.facts.launch.get("args") or {}).items()}
        rows.append({**flags, **told, "run_number": 0})
    return json.dumps(rows, indent=2) + "\n"


def _result(run: Run) -> dict[str, Any]:
    c, summary, facts = run.columns, run.summary, run.facts
    chosen = np.flatnonzero(c.in_window & (c.outcome != 2))
    ttft, e2e = c.per_request("ttft_s"), c.per_request("e2e_s")
    seconds = run.window.seconds
    requests, tokens = summary["requests"], summary["tokens"]
    result: dict[str, Any] = {
        "date": datetime.fromtimestamp(run.window.start_ns * 1e-9, UTC).strftime("%Y%m%d-%H%M%S"),
        "backend": "tailgate",
        "label": facts.label,
        "model_id": facts.model,
        "num_prompts": int(chosen.size),
        "request_rate": facts.rate if facts.rate is not None else "inf",
        "max_concurrency": None if facts.open_loop else facts.meta.get("users"),
        "simulated": facts.simulated,
        "duration": seconds,
        "completed": requests["ok"],
        "failed": requests["failed"],
        "total_input_tokens": tokens["prompt"],
        "total_output_tokens": tokens["output"],
        "request_throughput": requests["ok"] / seconds,
        "request_goodput": summary["goodput"]["requests_per_s"],
        "output_throughput": tokens["output"] / seconds,
        "total_token_throughput": (tokens["prompt"] + tokens["output"]) / seconds,
        "input_lens": [_known(c.prompt_tokens[i]) for i in chosen],
        "output_lens": [_known(c.output_tokens[i]) for i in chosen],
        "ttfts": [0.0 if math.isnan(ttft[i]) else float(ttft[i]) for i in chosen],
        "itls": [(c.gaps_ns[c.gap_starts[i] : c.gap_starts[i + 1]] * 1e-9).tolist() for i in chosen],
        "latencies": [0.0 if math.isnan(e2e[i]) else float(e2e[i]) for i in chosen],
        "start_times": [float(c.sent_ns[i] * 1e-9) for i in chosen],
        "errors": [c.errors[i] or "" for i in chosen],
    }
    for name, metric in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("itl", "itl_s"), ("e2el", "e2e_s")):
        values = c.values(metric, c.in_window)
        if values.size:
            result |= {
                f"mean_{name}_ms": float(values.mean() * 1e3),
                f"median_{name}_ms": float(np.median(values) * 1e3),
                f"std_{name}_ms": float(values.std() * 1e3),
                f"p99_{name}_ms": float(np.quantile(values, 0.99) * 1e3),
            }
    return result


def load(file: Path, directory: Path) -> Run:
    """A run in `directory` made of `file`. Raises `BadInput` where it is no result of `vllm bench serve`.

    One saved without details yields a run of its printed figures only, which is not valid: no interval can be had.
    """
    meta, records = _read(file, read_json(file, _MEND))
    store = RunStore.create(directory, meta)
    store.append(records)
    store.finish()
    return Run.load(directory)


def is_result(content: Mapping[str, Any]) -> bool:
    """Whether a JSON file's content looks like what `vllm bench serve` saves, with or without details."""
    return "schema" not in content and {"completed", "request_throughput"} <= content.keys()


def read(file: Path, content: Mapping[str, Any]) -> Run:
    """The same in memory, out of the `content` that `file` holds. Raises `BadInput` as `load`."""
    meta, records = _read(file, content)
    return Run(file, meta, Columns.of(records))


def _read(file: Path, found: Mapping[str, Any]) -> tuple[dict[str, Any], list[RequestRecord]]:
    try:
        meta, records = _converted(file, found)
    except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise BadInput(f"{file}: it holds what is no measurement ({error})", _MEND) from None
    check(meta, str(file), _MEND)
    return meta, records


def _converted(file: Path, found: Mapping[str, Any]) -> tuple[dict[str, Any], list[RequestRecord]]:
    missing = [name for name in _LISTS if not isinstance(found.get(name), list)]
    if missing == list(_LISTS) and "mean_ttft_ms" in found:
        return {**_meta(found, file, _date_ns(found.get("date"))), FIGURES: figures(found)}, []
    if missing:
        raise BadInput(f"{file}: holds no {', '.join(missing)}", f"it was saved without details; {_MEND}")
    lengths = {len(found[name]) for name in _LISTS}
    if len(lengths) != 1:
        raise BadInput(f"{file}: {', '.join(_LISTS)} differ in length", _MEND)
    start_ns = _date_ns(found.get("date"))
    records = _records(found, start_ns)
    corrections = [_ROLE] if role_chunk_counted(found) else []
    return {**_meta(found, file, start_ns), "corrections": corrections}, records


def role_chunk_counted(found: Mapping[str, Any]) -> bool:
    """Whether the role-only chunk was counted as a token: n tokens have n - 1 gaps at most, and here they have n."""
    if "chat" not in str(found.get("backend")):
        return False
    ok = [i for i, error in enumerate(found["errors"]) if not error and found["output_lens"][i]]
    return sum(len(found["itls"][i]) >= found["output_lens"][i] for i in ok) > 0.1 * len(ok)


def _records(found: Mapping[str, Any], start_ns: int) -> list[RequestRecord]:
    count = len(found["ttfts"])
    starts = found.get("start_times") or [0.0] * count
    first_start = min(starts, default=0.0)
    role = role_chunk_counted(found)
    endpoint = "/v1/chat/completions" if "chat" in str(found.get("backend")) else "/v1/completions"
    records = []
    for i in range(count):
        failed = bool(found["errors"][i])
        sent = start_ns + _ns(starts[i] - first_start)
        gaps = [_ns(gap) for gap in found["itls"][i]]
        first = sent + _ns(found["ttfts"][i])
        if role and gaps:
            first += gaps.pop(0)
        last = first + sum(gaps)
        latency = _at(found.get("latencies"), i)
        records.append(
            RequestRecord(
                index=i,
                sequence=i,
                worker="vllm-bench",
                request_class="imported",
                endpoint=endpoint,
                sent_ns=sent,
                first_ns=None if failed else first,
                last_ns=None if failed else last,
                end_ns=max(last, sent + _ns(latency)) if latency else last,
                gaps_ns=[] if failed else gaps,
                events=0 if failed else len(gaps) + 1,
                prompt_tokens=None if (length := _at(found.get("input_lens"), i)) is None else int(length),
                output_tokens=None if failed else int(found["output_lens"][i]),
                outcome="failed" if failed else "ok",
                error="imported" if failed else None,
                error_message=str(found["errors"][i])[-200:] if failed else None,
            )
        )
    return records


def _meta(found: Mapping[str, Any], file: Path, start_ns: int) -> dict[str, Any]:
    rate = found.get("request_rate")
    closed = rate in (None, "inf") or (isinstance(rate, float) and math.isinf(rate))
    return {
        "imported_from": file.name,
        "label": found.get("label") or file.stem,
        "workload": {"name": "vllm-bench", "prompts": found.get("num_prompts")},
        "model": found.get("model_id"),
        "arrival": {"kind": "closed"} if closed else {"kind": "poisson", "rate": rate},
        "users": found.get("max_concurrency"),
        "engine": {"name": "vllm", "simulated": bool(found.get("simulated"))},
        "clock": "user",
        "window": {"start_ns": start_ns, "end_ns": start_ns + _ns(float(found.get("duration") or 0.0))},
    }


def _date_ns(text: Any) -> int:
    try:
        return int(datetime.strptime(str(text), "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()) * 10**9
    except ValueError:
        return 0


def _ns(seconds: float) -> int:
    if not 0 <= seconds < _LONGEST_S:
        raise ValueError(f"{seconds!r} seconds")
    return round(seconds * 1e9)


def _at(values: Sequence[Any] | None, i: int) -> Any:
    return values[i] if values is not None and i < len(values) else None


def _known(value: Any) -> int:
    return 0 if value == ABSENT else int(value)
