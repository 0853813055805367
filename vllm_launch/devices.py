"""What `vllm serve` does on each device when nothing is set: a config that repeats it changes nothing."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailgate.exits import BadInput

# None in vLLM's parser stands for these; the engine fills them in for a text-generating model.
# Source: vLLM 0.32, EngineArgs._set_default_chunked_prefill_and_prefix_caching_args and the scheduler's start-up log.
RESOLVED = {"enable-chunked-prefill": True, "enable-prefix-caching": True, "async-scheduling": True}


@dataclass(frozen=True, slots=True)
class Device:
    """A device and the scheduler's defaults on it for the API server (the offline `LLM` class has others)."""

    label: str
    max_num_batched_tokens: int
    max_num_seqs: int
    family: str
    """Devices of one family share the goals of `configs/goals/FAMILY/`."""
    memory_gb: float | None = None
    """Of one device, as sold; None where it is the machine's."""
    forced: Mapping[str, Any] = field(default_factory=dict)
    """Flags that vLLM sets on this device whatever was asked (0.32: `CpuPlatform`, and seen in /server_info)."""

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults by canonical flag name."""
        return {
            **RESOLVED,
            "max-num-batched-tokens": self.max_num_batched_tokens,
            "max-num-seqs": self.max_num_seqs,
            **self.forced,
        }


# Printed by vLLM 0.32 itself for each device name and memory size (EngineArgs.get_batch_defaults): 70 GiB and more
# gives 8192/1024 unless the name has "a100" in it, 160 GiB and more 16384/1024, everything else 2048/256.
DEVICES: Mapping[str, Device] = {
    "h100-sxm": Device("NVIDIA H100 SXM 80 GB", 8192, 1024, "hopper", 80),
    "h200-sxm": Device("NVIDIA H200 SXM 141 GB", 8192, 1024, "hopper", 141),
    "b200": Device("NVIDIA B200", 16384, 1024, "blackwell", 180),
    "a100-sxm": Device("NVIDIA A100 SXM 80 GB", 2048, 256, "ampere", 80),
    "l40s": Device("NVIDIA L40S 48 GB", 2048, 256, "ada", 48),
    "a10g": Device("NVIDIA A10G 24 GB", 2048, 256, "small", 24),
    "t4": Device("NVIDIA T4 16 GB", 2048, 256, "small", 16),
    "cpu": Device("CPU", 2048, 128, "cpu", forced={"async-scheduling": False}),
}

# Where nothing is known of an engine but its address.
UNKNOWN = "unknown"


def find_device(name: str, where: str = "device") -> Device:
    """The device by name; raises `BadInput` with the nearest name, or all of them."""
    if name in DEVICES:
        return DEVICES[name]
    close = difflib.get_close_matches(name, DEVICES, n=1, cutoff=0.4)
    mend = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(DEVICES)}"
    raise BadInput(f"{where}: unknown device '{name}'", mend)
