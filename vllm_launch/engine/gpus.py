"""The GPUs of this machine by NVML: memory, power, utilisation. Needs the optional extra `nvml` (nvidia-ml-py)."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """One device, and its handle in NVML."""

    index: int
    name: str
    handle: Any


class Gpus:
    """The visible GPUs; use as a context manager. None are there where there is no driver, or no NVML library.

    `only`: device numbers or UUIDs as `CUDA_VISIBLE_DEVICES` has them (None: that variable, or all).
    """

    def __init__(self, only: str | None = None) -> None:
        self._only = os.environ.get("CUDA_VISIBLE_DEVICES") if only is None else only
        self._nvml: Any = None
        self.devices: list[Gpu] = []

    def __enter__(self) -> Gpus:
        try:
            import pynvml  # type: ignore[import-untyped]

            pynvml.nvmlInit()
        except Exception:
            return self
        self._nvml = pynvml
        wanted = None if self._only is None else [word.strip() for word in self._only.split(",") if word.strip()]
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                if wanted is None or {str(index), pynvml.nvmlDeviceGetUUID(handle)} & set(wanted):
                    self.devices.append(Gpu(index, pynvml.nvmlDeviceGetName(handle), handle))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def sample(self) -> dict[str, Any]:
        """`gpu_memory_used_bytes` and `gpu_power_w` of all together, `gpu_utilisation` (0 to 1) on average, and `gpus`,
        the same of each; {} where there is none. What a device does not tell is left out.
        """
        each = [self._of(gpu) for gpu in self.devices]
        if not each:
            return {}
        sample: dict[str, Any] = {"gpus": each}
        for key, name in (("memory_used_bytes", "gpu_memory_used_bytes"), ("power_w", "gpu_power_w")):
            if told := [one[key] for one in each if key in one]:
                sample[name] = sum(told)
        if told := [one["utilisation"] for one in each if "utilisation" in one]:
            sample["gpu_utilisation"] = sum(told) / len(told)
        return sample

    def _of(self, gpu: Gpu) -> dict[str, Any]:
        nvml = self._nvml
        found: dict[str, Any] = {"index": gpu.index, "name": gpu.name}
        with contextlib.suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(gpu.handle)
            found |= {"memory_used_bytes": int(memory.used), "memory_total_bytes": int(memory.total)}
        with contextlib.suppress(nvml.NVMLError):
            found["power_w"] = nvml.nvmlDeviceGetPowerUsage(gpu.handle) / 1e3
        with contextlib.suppress(nvml.NVMLError):
            found["utilisation"] = nvml.nvmlDeviceGetUtilizationRates(gpu.handle).gpu / 100
        return found
