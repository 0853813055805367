"""The `/metrics` page: vLLM's names, labels and bucket bounds, and this engine's own measure of how late it writes.

Rendered by hand, since a scrape stalls every stream: all text but the numbers is made once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from vllm_launch.simulated.engine import Engine
from vllm_launch.simulated.exposition import Histogram, Labels, Samples, label_text
from vllm_launch.simulated.generation import Generation, Step
from vllm_launch.simulated.live import Choice

_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)
_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1,
    2.5,
    5,
    7.5,
    10,
    20,
    40,
    80,
    160,
    640,
    2560,
)
_GAP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_LONG = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_STEP = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_LATENESS_MS = (
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1,
    1.5,
    2,
    2.5,
    3,
    4,
    5,
    7.5,
    10,
    20,
    50,
    100,
    1000,
)
_LATENESS = tuple(ms / 1e3 for ms in _LATENESS_MS)
_REASONS = ("stop", "length", "abort", "error", "repetition")


class EngineMetrics:
    """What the engine counts, as vLLM's loggers do at the end of each step and of each request."""

    def __init__(self, engine: Engine, rejections: Counter[str] | None = None) -> None:
        self._engine = engine
        settings = engine.settings
        model: Labels = {"model_name": settings.served_names[0]}
        base = {"engine": "0", **model}
        self._base = base

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(f"vllm:{name}", text, bounds, base)

        self.prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a request.", _TOKENS)
        self.generation_tokens = histogram("request_generation_tokens", "Generated tokens of a request.", _TOKENS)
        self.iteration_tokens = histogram("iteration_tokens_total", "Tokens computed in a step.", _STEP)
        self.max_generation = histogram(
            "request_max_num_generation_tokens", "Most tokens any choice of a request generated.", _TOKENS
        )
        self.params_n = histogram("request_params_n", "Choices asked for.", (1, 2, 5, 10, 20))
        self.params_max_tokens = histogram("request_params_max_tokens", "Output tokens asked for.", _TOKENS)
        self.ttft = histogram("time_to_first_token_seconds", "Arrival to first token.", _TTFT)
        self.gap = histogram("inter_token_latency_seconds", "Time between two tokens of a request.", _GAP)
        self.per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time between the tokens of a request.", _GAP
        )
        self.e2e = histogram("e2e_request_latency_seconds", "Arrival to last token.", _LONG)
        self.queue_time = histogram("request_queue_time_seconds", "Time a request waited to be scheduled.", _LONG)
        self.inference_time = histogram("request_inference_time_seconds", "First scheduled to last token.", _LONG)
        self.prefill_time = histogram("request_prefill_time_seconds", "First scheduled to first token.", _LONG)
        self.decode_time = histogram("request_decode_time_seconds", "First to last token.", _LONG)
        self.preempted = histogram(
            "request_num_preemptions", "How often a request was preempted.", (1, 2, 3, 4, 5, 10, 20)
        )
        self.kv_computed = histogram(
            "request_prefill_kv_computed_tokens", "Prompt tokens computed, cached ones left out.", _TOKENS
        )
        self.lateness = Histogram(
            "tailgate_simulated_lateness_seconds",
            "How much later than the simulated GPU would have a token was written.",
            _LATENESS,
            model,
        )
        self.finished_by_reason: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter() if rejections is None else rejections
        self.prompt_total = 0
        self.cached_total = 0
        self.generated_total = 0
        self.behind_steps = 0
        self._scheduled_at: dict[Generation, float] = {}
        self._first_at: dict[Generation, float] = {}
        self._families = _engine_families(base, model)
        self._info = _cache_info(engine)

    # -- what happens -----------------------------------------------------------------------------------------------

    def admitted(self, generation: Generation, start: float) -> None:
        self._scheduled_at.setdefault(generation, start)

    def step_ended(self, step: Step, ends: float, told: Sequence[Choice], lateness: Sequence[float]) -> None:
        self.iteration_tokens.observe(step.tokens)
        self.generated_total += len(told)
        gaps: Counter[float] = Counter()
        for choice in told:
            if choice.told == 1:
                self._first_token(choice, ends)
            else:
                gaps[ends - choice.last_s] += 1
            choice.last_s = ends
        for gap, count in gaps.items():
            self.gap.observe(gap, count)
        for late in lateness:
            self.lateness.observe(late)

    def _first_token(self, choice: Choice, ends: float) -> None:
        generation = choice.generation
        self.ttft.observe(ends - choice.request.received)
        self.prompt_total += generation.prompt_tokens
        self.cached_total += generation.cached_tokens
        self._first_at[generation] = ends

    def finished(self, choice: Choice, ends: float) -> None:
        generation, request = choice.generation, choice.request
        scheduled = self._scheduled_at.pop(generation, ends)
        first = self._first_at.pop(generation, ends)
        self.finished_by_reason[choice.finish or "length"] += 1
        self.prompt_tokens.observe(generation.prompt_tokens)
        self.generation_tokens.observe(choice.told)
        self.max_generation.observe(choice.told)
        self.params_n.observe(request.n)
        self.params_max_tokens.observe(request.asked_tokens)
        self.e2e.observe(ends - request.received)
        self.queue_time.observe(max(0.0, scheduled - request.received))
        self.inference_time.observe(ends - scheduled)
        self.prefill_time.observe(first - scheduled)
        self.decode_time.observe(ends - first)
        self.per_token.observe((ends - first) / (choice.told - 1) if choice.told > 1 else 0.0)
        self.preempted.observe(generation.preemptions)
        self.kv_computed.observe(generation.prompt_tokens - generation.cached_tokens)

    def forget(self, generation: Generation) -> None:
        """A request that was given up is not counted among the finished, as in vLLM."""
        self._scheduled_at.pop(generation, None)
        self._first_at.pop(generation, None)

    # -- the page ---------------------------------------------------------------------------------------------------

    def render(self) -> str:
        scheduler, cache = self._engine.scheduler, self._engine.cache
        waiting = len(scheduler.waiting)
        computed = self.prompt_total - self.cached_total
        values: dict[str, Iterable[float]] = {
            "vllm:num_requests_running": [len(scheduler.running)],
            "vllm:num_requests_waiting": [waiting],
            "vllm:num_requests_waiting_by_reason": [waiting, 0],
            "vllm:engine_sleep_state": [1, 0, 0],
            "vllm:kv_cache_usage_perc": [cache.usage],
            "vllm:prefix_cache_queries_total": [scheduler.prefix_queries],
            "vllm:prefix_cache_hits_total": [scheduler.prefix_hits],
            "vllm:num_preemptions_total": [scheduler.preemptions],
            "vllm:prompt_tokens_total": [self.prompt_total],
            "vllm:prompt_tokens_by_source_total": [computed, self.cached_total, 0],
            "vllm:prompt_tokens_cached_total": [self.cached_total],
            "vllm:prompt_tokens_cached_by_source_total": [self.cached_total, 0, 0, 0, 0],
            "vllm:generation_tokens_total": [self.generated_total],
            "vllm:request_success_total": [self.finished_by_reason[reason] for reason in _REASONS],
            "vllm:admission_rejections_total": [
                self.rejections["max_num_queued_reqs"],
                self.rejections["max_num_queued_tokens"],
            ],
            "tailgate_simulated": [1],
            "tailgate_simulated_behind_steps_total": [self.behind_steps],
        }
        families = (
            family.render(values.get(name) or [0.0] * len(family.keys)) for name, family in self._families.items()
        )
        histograms = (
            self.prompt_tokens,
            self.generation_tokens,
            self.iteration_tokens,
            self.max_generation,
            self.params_n,
            self.params_max_tokens,
            self.ttft,
            self.gap,
            self.per_token,
            self.e2e,
            self.queue_time,
            self.inference_time,
            self.prefill_time,
            self.decode_time,
            self.preempted,
            self.kv_computed,
            self.lateness,
        )
        return "".join((*families, *(histogram.render() for histogram in histograms), self._info))


def _engine_families(base: Labels, model: Labels) -> dict[str, Samples]:
    def each(label: str, *values: str) -> list[Labels]:
        return [{**base, label: value} for value in values]

    sources = each("source", "local_compute", "local_cache_hit", "external_kv_transfer")
    tiers = each("source", "device", "host", "p2p", "disk", "external_unspecified")
    queues = [{**model, "reason": reason} for reason in ("max_num_queued_reqs", "max_num_queued_tokens")]
    wanted: list[tuple[str, str, str, list[Labels]]] = [
        ("vllm:estimated_flops_per_gpu_total", "counter", "Not estimated here.", [base]),
        ("vllm:estimated_read_bytes_per_gpu_total", "counter", "Not estimated here.", [base]),
        ("vllm:estimated_write_bytes_per_gpu_total", "counter", "Not estimated here.", [base]),
        ("vllm:num_requests_running", "gauge", "Sequences in the running batch.", [base]),
        ("vllm:num_requests_waiting", "gauge", "Sequences that wait to be scheduled.", [base]),
        (
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Waiting sequences by what they wait for.",
            each("reason", "capacity", "deferred"),
        ),
        (
            "vllm:engine_sleep_state",
            "gauge",
            "1 for the state the engine is in.",
            each("sleep_state", "awake", "weights_offloaded", "discard_all"),
        ),
        ("vllm:kv_cache_usage_perc", "gauge", "Share of KV-cache blocks in use, 1 is all.", [base]),
        ("vllm:prefix_cache_queries_total", "counter", "Tokens looked up in the prefix cache.", [base]),
        ("vllm:prefix_cache_hits_total", "counter", "Tokens found in the prefix cache.", [base]),
        ("vllm:external_prefix_cache_queries_total", "counter", "None here: no KV connector.", [base]),
        ("vllm:external_prefix_cache_hits_total", "counter", "None here: no KV connector.", [base]),
        ("vllm:mm_cache_queries_total", "counter", "None here: text only.", [base]),
        ("vllm:mm_cache_hits_total", "counter", "None here: text only.", [base]),
        ("vllm:num_preemptions_total", "counter", "Preemptions so far.", [base]),
        ("vllm:prompt_tokens_total", "counter", "Prompt tokens taken in.", [base]),
        ("vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by where they came from.", sources),
        ("vllm:prompt_tokens_cached_total", "counter", "Prompt tokens found in a cache.", [base]),
        ("vllm:prompt_tokens_cached_by_source_total", "counter", "Cached prompt tokens by tier.", tiers),
        ("vllm:generation_tokens_total", "counter", "Tokens generated.", [base]),
        ("vllm:request_success_total", "counter", "Finished requests by reason.", each("finished_reason", *_REASONS)),
        ("vllm:admission_rejections_total", "counter", "Requests turned away by a queue limit.", queues),
        ("tailgate_simulated", "gauge", "1: no GPU and no model stand behind these figures.", [model]),
        ("tailgate_simulated_behind_steps_total", "counter", "Steps handled over 20 ms after their end.", [model]),
    ]
    return {name: Samples(name, text, kind, labels) for name, kind, text, labels in wanted}


def _cache_info(engine: Engine) -> str:
    """`vllm:cache_config_info`: what is known of the cache stands in its labels, the rest as vLLM's defaults."""
    settings = engine.settings
    tokens = settings.kv_blocks * settings.block_size
    known = {
        "block_size": settings.block_size,
        "cache_dtype": settings.kv_cache_dtype,
        "effective_attention_block_size": settings.block_size,
        "enable_prefix_caching": settings.prefix_caching,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "kv_cache_max_concurrency": tokens / settings.limits.max_model_len,
        "kv_cache_memory_bytes": int(
            settings.model.kv_bytes_per_token(1 if settings.kv_cache_dtype.startswith("fp8") else 2)
            * tokens
            / settings.tensor_parallel
        ),
        "kv_cache_size_tokens": tokens,
        "num_gpu_blocks": settings.kv_blocks,
        "num_gpu_blocks_override": settings.num_gpu_blocks_override,
        "user_specified_block_size": False,
    }
    defaults: dict[str, object] = {
        "_block_size_resolved": True,
        "cache_hit_alignment_tokens": None,
        "enable_mamba_shared_prefix_checkpoint": False,
        "hash_block_size": None,
        "is_attention_free": False,
        "kv_cache_dtype_skip_layers": [],
        "kv_cache_layout": None,
        "kv_offloading_backend": "native",
        "kv_offloading_size": None,
        "kv_sharing_fast_prefill": False,
        "mamba_block_size": None,
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": None,
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": None,
        "prefix_cache_retention_interval": 0,
        "prefix_caching_hash_algo": "sha256",
        "prefix_match_unit": None,
        "replayssm_buffer_len": 16,
        "skip_page_size_padded": None,
        "sliding_window": None,
        "swa_bounded_replay": True,
        "use_kda_recoverssm": False,
        "use_replayssm": False,
    }
    labels = {key: str(value) for key, value in {**defaults, **known, "engine": 0}.items()}
    name = "vllm:cache_config_info"
    return f"# HELP {name} The KV cache's configuration.\n# TYPE {name} gauge\n{name}{label_text(labels)} 1.0\n"
