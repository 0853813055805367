"""A launch config as the embedded engine understands it: vLLM's flags, vLLM's defaults, vLLM's start-up checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tailgate.exits import BadInput
from vllm_launch.simulated.calibration import overhead_for
from vllm_launch.simulated.catalogue import GIB, Device, Model, find_device, find_model
from vllm_launch.simulated.fitted import FittedTable
from vllm_launch.simulated.generation import Limits
from vllm_launch.simulated.step_time import Overhead, StepTimes, available_tables, load_table

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

_MEMORY = ("gpu-memory-utilization", "kv-cache-dtype", "kv-cache-memory-bytes")

# Flags that change nothing this engine shows, or that other code here answers for: no note is due.
_HARMLESS = {"model", "host", "port", "seed", "dtype", "trust-remote-code", "download-dir", "disable-log-stats"}
_HARMLESS |= {
    "enable-log-requests",
    "uvicorn-log-level",
    "disable-uvicorn-access-log",
    "disable-access-log-for-endpoints",
}


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Everything the embedded engine needs to know; made by `from_flags`."""

    model: Model
    device: Device
    served_names: tuple[str, ...]
    tensor_parallel: int
    limits: Limits
    max_num_batched_tokens: int
    max_num_seqs: int
    max_num_queued_reqs: int | None
    max_num_queued_tokens: int | None
    block_size: int
    prefix_caching: bool
    kv_blocks: int
    kv_cache_dtype: str
    gpu_memory_utilization: float
    num_gpu_blocks_override: int | None
    stream_interval: int
    api_keys: tuple[str, ...]
    prompt_tokens_details: bool
    force_include_usage: bool
    request_id_headers: bool
    load_tracking: bool
    overhead: Overhead
    seed: int
    slowdown: float = 1.0
    fitted: FittedTable | None = None
    """Step times fitted on runs of one server, where no table of measured kernels stands for it."""

    @classmethod
    def from_flags(
        cls,
        model: str,
        device: str,
        flags: Mapping[str, object],
        seed: int = 0,
        overhead: Overhead | None = None,
    ) -> tuple[EngineSettings, list[str]]:
        """`flags` by vLLM's names without dashes; also gives one line for each flag that is not modelled.

        Raises `BadInput` where there is no table for the model, device and tensor parallel size, and where vLLM itself
        would refuse to start.
        """
        return _Reading(find_model(model), find_device(device), model, dict(flags)).settings(seed, overhead)

    @classmethod
    def from_fitted(
        cls, fitted: FittedTable, flags: Mapping[str, object], seed: int = 0
    ) -> tuple[EngineSettings, list[str]]:
        """As `from_flags`, for the very server whose runs `fitted` was fitted on, with flags of choice."""
        return _Reading(fitted.model, fitted.device, fitted.model.name, dict(flags), fitted).settings(
            seed, fitted.overhead
        )

    @property
    def table(self) -> str:
        return (
            f"fitted on {self.fitted.source}"
            if self.fitted
            else table_name(self.model, self.device, self.tensor_parallel)
        )

    def step_times(self) -> StepTimes:
        arrays = self.fitted.arrays() if self.fitted else load_table(self.table)
        return StepTimes(arrays, self.overhead, self.slowdown)


def table_name(model: Model, device: Device, tensor_parallel: int) -> str:
    return f"{model.key}.tp{tensor_parallel}.{device.key}"


class _Reading:
    """One reading of a set of flags: takes the modelled ones out, and notes what is left."""

    def __init__(
        self,
        model: Model,
        device: Device,
        asked_name: str,
        flags: dict[str, object],
        fitted: FittedTable | None = None,
    ) -> None:
        self.fitted = fitted
        self.model = model
        self.device = device
        self.asked_name = asked_name
        self.flags = flags
        self.notes: list[str] = []

    def settings(self, seed: int, overhead: Overhead | None) -> tuple[EngineSettings, list[str]]:
        tp = self._tensor_parallel()
        tokens = self._count("max-num-batched-tokens", self.device.max_num_batched_tokens)
        seqs = self._count("max-num-seqs", self.device.max_num_seqs)
        max_len = self._max_model_len()
        block_size = self._count("block-size", self.fitted.block_size if self.fitted else 16)
        caching = self._switch("enable-prefix-caching", True)
        memory = [flag for flag in _MEMORY if self.flags.get(flag) is not None]
        kv_dtype = str(self.flags.pop("kv-cache-dtype", None) or "auto")
        utilization = self._share("gpu-memory-utilization", 0.92)
        kv_bytes = self._optional_count("kv-cache-memory-bytes")
        override = self._optional_count("num-gpu-blocks-override")
        if self.fitted:
            self.notes += [f"{flag}: the KV cache is that of the fitted server, it has no effect" for flag in memory]
        elif kv_dtype.startswith("fp8"):
            self.notes.append("kv-cache-dtype: halves a token's memory; attention keeps the times of a 16-bit cache")
        block_bytes = self.model.kv_bytes_per_token(1 if kv_dtype.startswith("fp8") else 2) * block_size / tp
        kv_memory = kv_bytes or _kv_memory(self.model, self.device, tp, utilization, tokens, seqs)
        if self.fitted:
            kv_memory = self.fitted.kv_blocks * self.fitted.block_size * block_bytes / block_size
        blocks = override or int(kv_memory // block_bytes)
        limits = self._limits(tokens, seqs, max_len)
        self._startup_checks(limits, tokens, seqs, blocks, block_size, kv_memory)
        settings = EngineSettings(
            model=self.model,
            device=self.device,
            served_names=self._names("served-model-name") or (self.asked_name,),
            tensor_parallel=tp,
            limits=limits,
            max_num_batched_tokens=tokens,
            max_num_seqs=seqs,
            max_num_queued_reqs=self._optional_count("max-num-queued-reqs"),
            max_num_queued_tokens=self._optional_count("max-num-queued-tokens"),
            block_size=block_size,
            prefix_caching=caching,
            kv_blocks=blocks,
            kv_cache_dtype=kv_dtype,
            gpu_memory_utilization=utilization,
            num_gpu_blocks_override=override,
            stream_interval=self._count("stream-interval", 1),
            api_keys=self._names("api-key"),
            prompt_tokens_details=self._switch("enable-prompt-tokens-details", False),
            force_include_usage=self._switch("enable-force-include-usage", False),
            request_id_headers=self._switch("enable-request-id-headers", False),
            load_tracking=self._switch("enable-server-load-tracking", False),
            overhead=overhead or overhead_for(table_name(self.model, self.device, tp)),
            seed=seed,
            fitted=self.fitted,
        )
        for flag in sorted(self.flags):
            if flag.removeprefix("no-") not in _HARMLESS:
                self.notes.append(f"{flag}: not modelled by the embedded engine, it has no effect there")
        return settings, self.notes

    def _limits(self, tokens: int, seqs: int, max_len: int) -> Limits:
        policy = str(self.flags.pop("scheduling-policy", None) or "fcfs")
        if policy not in ("fcfs", "priority"):
            raise BadInput(f"scheduling-policy: '{policy}' is not a policy", "use fcfs or priority")
        return Limits(
            max_num_scheduled_tokens=min(self._count("max-num-scheduled-tokens", tokens), tokens),
            max_num_active_seqs=min(self._count("max-num-active-seqs", seqs), seqs),
            max_model_len=max_len,
            long_prefill_token_threshold=self._count("long-prefill-token-threshold", 0, least=0),
            enable_chunked_prefill=self._switch("enable-chunked-prefill", True),
            priority_policy=policy == "priority",
            reserve_full_isl=self._switch("scheduler-reserve-full-isl", True),
            watermark=self._share("watermark", 0.0),
        )

    def _startup_checks(
        self, limits: Limits, tokens: int, seqs: int, blocks: int, block_size: int, kv_memory: float
    ) -> None:
        """What vLLM refuses at start-up, in its sense."""
        if tokens < seqs:
            raise BadInput(
                f"max-num-batched-tokens ({tokens}) must be at least max-num-seqs ({seqs})",
                "raise the one or lower the other",
            )
        if not limits.enable_chunked_prefill and tokens < limits.max_model_len:
            raise BadInput(
                f"max-num-batched-tokens ({tokens}) is below max-model-len ({limits.max_model_len}) and "
                "chunked prefill is off, so that longer prompts could never run",
                "raise max-num-batched-tokens, lower max-model-len, or leave enable-chunked-prefill on",
            )
        if kv_memory <= 0:
            raise BadInput(
                f"no memory is left for the KV cache of {self.model.name} on this device",
                "raise gpu-memory-utilization or tensor-parallel-size",
            )
        if (blocks - 1) * block_size < limits.max_model_len:
            raise BadInput(
                f"max-model-len ({limits.max_model_len}) does not fit into the KV cache of "
                f"{(blocks - 1) * block_size} tokens",
                "lower max-model-len, or give the cache more memory",
            )

    def _tensor_parallel(self) -> int:
        tp = self._count("tensor-parallel-size", 0, least=0)
        pp = self._count("pipeline-parallel-size", 1)
        if self.fitted:
            return self._as_fitted(self.fitted, tp or 1, pp)
        made = [t for t in (1, 2, 4, 8) if table_name(self.model, self.device, t) in available_tables()]
        tp = tp or (1 if 1 in made or not made else 0)
        if tp in made and pp == 1:
            return tp
        have = ", ".join(available_tables())
        layout = f"tensor-parallel-size {tp or 1}" + (f", pipeline-parallel-size {pp}" if pp != 1 else "")
        mend = f"set tensor-parallel-size: {made[0]}" if made and pp == 1 else f"tables at hand: {have}"
        raise BadInput(
            f"the embedded engine has no measured step times for {self.model.name} with {layout} on {self.device.key}",
            mend,
        )

    def _as_fitted(self, fitted: FittedTable, tp: int, pp: int) -> int:
        if (tp, pp) != (fitted.tensor_parallel, fitted.pipeline_parallel):
            raise BadInput(
                f"tensor-parallel-size {tp}, pipeline-parallel-size {pp}: the step times fitted on {fitted.source} are "
                f"those of {fitted.tensor_parallel} and {fitted.pipeline_parallel}",
                "fit a table on runs under these flags",
            )
        return tp

    def _max_model_len(self) -> int:
        asked = self.flags.pop("max-model-len", None)
        if asked in (None, -1, "-1", "auto"):
            return self.model.max_model_len
        value = _integer("max-model-len", asked, 1)
        if value > self.model.max_model_len:
            raise BadInput(
                f"max-model-len: {value} is over the {self.model.max_model_len} that {self.model.name} was made for",
                "lower it",
            )
        return value

    # -- single flags -----------------------------------------------------------------------------------------------

    def _count(self, flag: str, default: int, least: int = 1) -> int:
        value = self.flags.pop(flag, None)
        return default if value is None else _integer(flag, value, least)

    def _optional_count(self, flag: str) -> int | None:
        value = self.flags.pop(flag, None)
        return None if value is None else _integer(flag, value, 1)

    def _share(self, flag: str, default: float) -> float:
        value = self.flags.pop(flag, None)
        if value is None:
            return default
        try:
            share = float(str(value))
        except ValueError:
            share = -1.0
        if not 0 <= share <= 1:
            raise BadInput(f"{flag}: {value!r} is not a share", "give a number from 0 to 1")
        return share

    def _switch(self, flag: str, default: bool) -> bool:
        opposite = self.flags.pop(f"no-{flag}", None)
        value = self.flags.pop(flag, None)
        if opposite is not None:
            return not _boolean(f"no-{flag}", opposite)
        return default if value is None else _boolean(flag, value)

    def _names(self, flag: str) -> tuple[str, ...]:
        value = self.flags.pop(flag, None)
        if value is None:
            return ()
        return tuple(str(v) for v in value) if isinstance(value, list | tuple) else (str(value),)


def _integer(flag: str, value: object, least: int) -> int:
    """vLLM reads `8k` as 8000, `8K` as 8192, and decimals only with the first kind."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG]?)", str(value).strip())
    number = -1.0
    if match and not isinstance(value, bool):
        number = float(match[1]) * _SUFFIXES.get(match[2], 1)
    if number < least or number != int(number):
        raise BadInput(f"{flag}: {value!r} is not a whole number of at least {least}", "mend that value")
    return int(number)


def _boolean(flag: str, value: object) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false", "yes", "no", "1", "0", ""):
        raise BadInput(f"{flag}: {value!r} is neither true nor false", "mend that value")
    return text in ("true", "yes", "1", "")


def _kv_memory(model: Model, device: Device, tp: int, utilization: float, tokens: int, seqs: int) -> float:
    """Bytes a GPU has left for its KV cache: what vLLM finds by profiling a full step, estimated from shapes.

    Counted besides the weights: the widest activations of a step of `tokens` tokens, the float32 logits of `seqs`
    sequences with one copy for sampling, and 3 GiB for the CUDA context, communication buffers, CUDA graphs and
    fragments. An estimate: where 128 users outgrow the cache, published silicon lets them wait 59 s for a first token
    on average, this engine 65 s (`calibration.BEYOND`).
    """
    weights = model.parameters * 2 / tp
    activations = tokens * (8 * model.hidden + 6 * model.intermediate / tp)
    logits = seqs * model.vocabulary * 8
    return device.memory_gib * GIB * utilization - weights - activations - logits - 3.0 * GIB
