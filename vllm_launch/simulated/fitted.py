"""Step times fitted on runs of one real server, for engines that no table of measured kernels stands for.

A step of b decodes with k tokens of context in all, and chunks of n prompt tokens after x computed ones, is taken to
last `per_step + per_sequence (b + prompts) + per_token sum(n) + per_pair sum(n (x + n / 2)) + per_context k`: what a
transformer's work is proportional to. The numbers are those of that server alone, whatever its hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vllm_launch.simulated.catalogue import Device, Model
from vllm_launch.simulated.step_time import Overhead


@dataclass(frozen=True, slots=True)
class FittedTable:
    """One server's step times in seconds, and its KV cache as it said itself. `error`: mean miss of the fit, a share.

    They are those of `tensor_parallel` by `pipeline_parallel` GPUs together; `source` says what it was fitted on.
    `per_pair_s` is a prompt token's attention to one token before it, `per_context_s` a decoding one's.
    """

    model: Model
    device: Device
    block_size: int
    kv_blocks: int
    overhead: Overhead
    per_token_s: float
    per_pair_s: float
    per_context_s: float
    source: str
    error: float = 0.0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1

    def arrays(self) -> dict[str, np.ndarray]:
        """The tables that `step_time.StepTimes` reads, times in ms."""
        longest = max(self.model.max_model_len, 64)
        tokens = np.unique(np.r_[1, np.geomspace(1, 2 * longest, 80).astype(int)])
        prefix = np.array([0, longest])
        batch = np.array([1, 4096])
        context = np.array([1, longest])
        shared = self.per_token_s * tokens
        pairs = tokens[:, None] * (prefix[None, :] + tokens[:, None] / 2)
        # A decoding token's share of what depends on tokens is in `per_sequence`: a step's decodes are few.
        decode = self.per_token_s * batch[:, None] + self.per_context_s * batch[:, None] * context[None, :]
        seconds = {"shared": shared, "prefill": shared[:, None] + self.per_pair_s * pairs, "decode": decode}
        axes = {"decode_batch": batch, "decode_context": context, "prefill_tokens": tokens, "prefill_prefix": prefix}
        return {**axes, **{name: 1e3 * values for name, values in seconds.items()}}
