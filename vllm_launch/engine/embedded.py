"""The embedded engine for a launch config: its step times are those of measured kernels, or of a file that was fitted.

Such a file (`python -m vllm_launch fit`) holds one server's step times, found in its own runs; it stands for that very
server, with other flags, and is as simulated as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from tailgate.exits import BadInput
from vllm_launch.config import LaunchConfig
from vllm_launch.devices import find_device
from vllm_launch.engine.commands import simulated_flags
from vllm_launch.simulated import catalogue
from vllm_launch.simulated.fitted import FittedTable
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.step_time import Overhead

if TYPE_CHECKING:
    from exporters.run import Run

_MEND = "make it with: python -m vllm_launch fit RUN -o FILE"
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
_Taken = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class StepTimesFile(msgspec.Struct, forbid_unknown_fields=True):
    """What is written: a `FittedTable` without what its model and device stand in for. Times in seconds."""

    schema: Literal["tailgate.step-times/1"]
    simulated: Literal[True]
    source: str
    model: str
    device: str
    max_model_len: _Count
    tensor_parallel: _Count
    pipeline_parallel: _Count
    block_size: _Count
    kv_blocks: _Count
    per_step_s: _Taken
    per_sequence_s: _Seconds
    per_request_s: _Seconds
    per_token_s: _Seconds
    per_pair_s: _Seconds
    per_context_s: _Seconds
    error: Annotated[float, msgspec.Meta(ge=0)]


def settings(config: LaunchConfig, overhead: Overhead | None = None) -> tuple[EngineSettings, list[str]]:
    """The engine for a config, and a line for each flag that is not modelled. `overhead` replaces the table's own.

    Raises `BadInput` where there are no step times for it.
    """
    flags = simulated_flags(config)
    if config.step_times is None:
        return EngineSettings.from_flags(config.model, config.device, flags, overhead=overhead)
    table = read_step_times(config.step_times, config)
    return EngineSettings.from_fitted(replace(table, overhead=overhead or table.overhead), flags)


def stand_ins(model: str, device: str, longest: int) -> tuple[catalogue.Model, catalogue.Device]:
    """A model and a device for an engine nothing is known of but its flags: shapes matter to memory alone, and how
    much KV cache there is the engine says itself. `longest` is its context, in tokens."""
    known = find_device(device)
    shape = {"layers": 1, "kv_heads": 1, "head_dim": 1, "hidden": 1, "intermediate": 1, "vocabulary": 1}
    made = catalogue.Model(model, model, (), 0.0, **shape, max_model_len=longest)
    return made, catalogue.Device(device, known.label, 1024.0, known.max_num_batched_tokens, known.max_num_seqs)


def fitted(runs: Sequence[Run]) -> FittedTable:
    """The step times of the server that `runs` of one launch were measured on.

    Raises `BadInput` where they are of no launch, of several, or tell too little.
    """
    # Replays and statistics, which an engine that only serves need not load.
    from vllm_launch.simulated.fit_table import fit_table

    first = runs[0]
    for run in runs:
        if not run.facts.launch.get("model"):
            raise BadInput(f"{run.path}: does not say how its engine was launched", "give the runs of an experiment")
        for key in ("model", "device", "args"):
            if run.facts.launch.get(key) != first.facts.launch.get(key):
                raise BadInput(f"{run.path} and {first.path} differ in their launch's {key}", "give runs of one launch")
    launch = first.facts.launch
    args: Mapping[str, Any] = launch.get("args") or {}
    table = fit_table(runs, args, *stand_ins(launch["model"], str(launch.get("device")), _longest(launch)))
    simulated = "simulated runs: " if any(run.facts.simulated for run in runs) else ""
    return replace(table, source=f"{simulated}{launch.get('name')} ({', '.join(run.path.name for run in runs)})")


def write_step_times(table: FittedTable, path: Path) -> None:
    """Keeps a table in a file. Raises `BadInput` where that cannot be written."""
    terms = asdict(table) | asdict(table.overhead)
    names = set(StepTimesFile.__struct_fields__)
    content = {name: value for name, value in terms.items() if name in names} | {
        "schema": "tailgate.step-times/1",
        "simulated": True,
        "model": table.model.name,
        "device": table.device.key,
        "max_model_len": table.model.max_model_len,
    }
    text = msgspec.json.format(msgspec.json.encode(msgspec.convert(content, StepTimesFile)), indent=2)
    try:
        path.write_bytes(text + b"\n")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", "name a file that can be written with -o") from None


def read_step_times(path: Path, config: LaunchConfig) -> FittedTable:
    """The table in a file, for the server that `config` launches. Raises `BadInput` where it is none, or another's."""
    try:
        read = msgspec.json.decode(path.read_bytes(), type=StepTimesFile)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}", _MEND) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: holds no step times: {error}", _MEND) from None
    for key, wanted in (("model", config.model), ("device", config.device)):
        if getattr(read, key) != wanted:
            raise BadInput(
                f"{path}: holds the step times of the {key} {getattr(read, key)}, and {config.name} is for {wanted}",
                "fit a table on runs of that very launch",
            )
    return FittedTable(
        *stand_ins(read.model, read.device, read.max_model_len),
        block_size=read.block_size,
        kv_blocks=read.kv_blocks,
        overhead=Overhead(read.per_step_s, read.per_sequence_s, read.per_request_s),
        per_token_s=read.per_token_s,
        per_pair_s=read.per_pair_s,
        per_context_s=read.per_context_s,
        source=read.source,
        error=read.error,
        tensor_parallel=read.tensor_parallel,
        pipeline_parallel=read.pipeline_parallel,
    )


def _longest(launch: Mapping[str, Any]) -> int:
    """In tokens: what the engine said, since its flag may leave it to the engine (-1)."""
    told = [(launch.get(part) or {}).get("max-model-len") for part in ("effective", "args")]
    return next((length for length in told if isinstance(length, int) and length > 0), 4096)
