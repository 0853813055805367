"""The pure engine: the scheduler, its KV cache, and how long each of its steps takes."""

from __future__ import annotations

from vllm_launch.simulated.generation import Step
from vllm_launch.simulated.kv_cache import KVCache
from vllm_launch.simulated.scheduler import Scheduler
from vllm_launch.simulated.settings import EngineSettings


class Engine:
    """Drive it with `scheduler.add`/`abort`, `begin()` at the start of a step and `scheduler.complete(step)` at its
    end."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.cache = KVCache(settings.kv_blocks, settings.block_size, settings.prefix_caching)
        self.scheduler = Scheduler(settings.limits, self.cache)
        self.times = settings.step_times()

    def begin(self) -> tuple[Step, float] | None:
        """The next step and how long it takes, in seconds; None where there is nothing to compute."""
        if not self.scheduler.unfinished:
            return None
        step = self.scheduler.schedule()
        return step, self.times.step_s(step.decodes, step.context, step.prefill_shapes)
