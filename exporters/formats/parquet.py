"""A run as Parquet, one row a request, its gaps as a list column. Needs pyarrow, the `parquet` extra.

Columns as in the CSV (times in seconds, null where a request has none), and `gaps_s`. The file's metadata says under
`tailgate` what run it is, and whether it was simulated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from exporters.columns import ABSENT, OUTCOMES
from exporters.formats.csv_table import COUNTS, LATENCIES
from exporters.run import Run
from tailgate.exits import BadInput


def write(run: Run, path: Path) -> None:
    """Writes the file. Raises `BadInput` where pyarrow is missing, or the file cannot be written."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        raise BadInput(
            "Parquet needs pyarrow, which is not installed", "install it with: pip install pyarrow"
        ) from None
    c, facts = run.columns, run.facts

    def coded(codes: Any, names: Any) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), pa.array(list(names), pa.string()))

    columns: dict[str, Any] = {
        "index": pa.array(c.index),
        "class": coded(c.class_code, c.classes),
        "worker": coded(c.worker_code, c.workers),
        "in_window": pa.array(c.in_window),
        "outcome": coded(c.outcome, OUTCOMES),
        "error": pa.array(c.errors, pa.string()),
        "sent_ns": pa.array(c.sent_ns),
    }
    columns |= {name: _known(pa, getattr(c, name), getattr(c, name) == ABSENT) for name in COUNTS}
    columns |= {name: _known(pa, found := c.per_request(name), np.isnan(found)) for name in LATENCIES}
    gaps = pa.array(c.gaps_ns * 1e-9)
    columns["gaps_s"] = pa.LargeListArray.from_arrays(pa.array(c.gap_starts), gaps)
    about = {"label": facts.label, "workload": facts.workload, "model": facts.model, "simulated": facts.simulated}
    table = pa.table(columns).replace_schema_metadata({"tailgate": json.dumps(about)})
    try:
        pyarrow.parquet.write_table(table, path, compression="zstd")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror or error}", "name a file that can be written with -o") from None


def _known(pa: Any, values: Any, absent: Any) -> Any:
    return pa.array(values, mask=absent)
