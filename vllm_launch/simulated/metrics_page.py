"""The `/metrics` page: vLLM's names, labels and bucket bounds, and this engine's own measure of how late it writes.

Rendered by hand, since a scrape stalls every stream: all text but the numbers is made once.
"""

from __future__ import annotations

import gc
import os
import platform
import resource
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence

from vllm_launch.simulated.engine import Engine
from vllm_launch.simulated.live import Choice
from vllm_launch.simulated.scheduler import Generation, Step

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
_HTTP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60)
_LATENESS = (5e-05, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1)
_REASONS = ("stop", "length", "abort", "error", "repetition")

Labels = dict[str, str]


def _labels(labels: Labels) -> str:
    escaped = (f'{k}="{_escape(v)}"' for k, v in sorted(labels.items()))
    return "{" + ",".join(escaped) + "}" if labels else ""


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class Histogram:
    """Counts per bucket; `observe` takes a weight, for what many tokens have in common."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], labels: Labels) -> None:
        self.bounds = [float(bound) for bound in bounds]
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self._head = f"# HELP {name} {text}\n# TYPE {name} histogram\n"
        self._keys = [f"{name}_bucket{_labels({**labels, 'le': str(le)})} " for le in (*self.bounds, "+Inf")]
        self._count_key, self._sum_key = f"{name}_count{_labels(labels)} ", f"{name}_sum{_labels(labels)} "
        self._created = _created_lines(name, text, labels)

    def observe(self, value: float, weight: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight

    def quantile(self, q: float) -> float:
        """The upper bound of the bucket that holds quantile `q`; infinite past the last bound, 0 where empty."""
        wanted, seen = q * sum(self.counts), 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return 0.0

    def render(self) -> str:
        lines = [self._head]
        total = 0
        for key, count in zip(self._keys, self.counts, strict=True):
            total += count
            lines.append(f"{key}{total}.0\n")
        lines += (f"{self._count_key}{total}.0\n", f"{self._sum_key}{float(self.sum)!r}\n", self._created)
        return "".join(lines)


def _created_lines(name: str, text: str, labels: Labels) -> str:
    name = f"{name.removesuffix('_total')}_created"
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n{name}{_labels(labels)} {time.time()!r}\n"


class _Samples:
    """Counters and gauges: one family, its samples given as (labels, value) when it is rendered."""

    def __init__(self, name: str, text: str, kind: str, labels: Iterable[Labels], created: bool = True) -> None:
        self._head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        self._keys = [f"{name}{_labels(each)} " for each in labels]
        self._created = ""
        if kind == "counter" and created:
            first, *others = (_created_lines(name, text, each) for each in labels)
            self._created = first + "".join(other.splitlines(keepends=True)[-1] for other in others)

    def render(self, values: Iterable[float]) -> str:
        lines = (f"{key}{float(value)!r}\n" for key, value in zip(self._keys, values, strict=True))
        return self._head + "".join(lines) + self._created


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
        self._info = _cache_info(engine, base)

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
            family.render(values.get(name) or [0.0] * len(family._keys)) for name, family in self._families.items()
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


def _engine_families(base: Labels, model: Labels) -> dict[str, _Samples]:
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
    return {name: _Samples(name, text, kind, labels) for name, kind, text, labels in wanted}


def _cache_info(engine: Engine, base: Labels) -> str:
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
    defaults = {
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
    labels = {key: str(value) for key, value in {**defaults, **known}.items()} | base
    name = "vllm:cache_config_info"
    return f"# HELP {name} The KV cache's configuration.\n# TYPE {name} gauge\n{name}{_labels(labels)} 1.0\n"


class HttpMetrics:
    """What the HTTP layer counts, by handler."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._sizes: dict[str, list[float]] = {}
        self._durations = Histogram("http_request_duration_highr_seconds", "Duration of requests.", _HTTP, {})
        self._by_handler: dict[tuple[str, str], Histogram] = {}

    def answered(self, handler: str, method: str, status: int, size: int, seconds: float) -> None:
        self._requests[handler, method, f"{status // 100}xx"] += 1
        sizes = self._sizes.setdefault(handler, [0.0, 0.0])
        sizes[0] += 1
        sizes[1] += size
        self._durations.observe(seconds)
        key = (handler, method)
        if key not in self._by_handler:
            name = "http_request_duration_seconds"
            labels = {"handler": handler, "method": method}
            self._by_handler[key] = Histogram(name, "Duration of requests by handler.", (0.1, 0.5, 1), labels)
        self._by_handler[key].observe(seconds)

    def render(self) -> str:
        if not self._requests:
            return ""
        labels = [{"handler": h, "method": m, "status": s} for h, m, s in self._requests]
        requests = _Samples("http_requests_total", "Requests by method, status and handler.", "counter", labels)
        page = requests.render(self._requests.values())
        for name, read in (("http_request_size_bytes", True), ("http_response_size_bytes", False)):
            page += f"# HELP {name} Content length by handler, where it was told.\n# TYPE {name} summary\n"
            for handler, (count, size) in self._sizes.items():
                label = _labels({"handler": handler})
                page += f"{name}_count{label} {count!r}\n{name}_sum{label} {size if read else 0.0!r}\n"
        page += self._durations.render()
        return page + _merged([histogram.render() for histogram in self._by_handler.values()])


def _merged(families: list[str]) -> str:
    """Several histograms of one name as one family: its HELP and TYPE lines stand once."""
    seen: set[str] = set()
    lines = []
    for line in "".join(families).splitlines(keepends=True):
        if line.startswith("#") and line in seen:
            continue
        seen.add(line)
        lines.append(line)
    return "".join(sorted(lines, key=lambda line: "_created" in line))


def process_page() -> str:
    """Python's and the process's own figures, as every Prometheus client in Python gives them."""
    stats = gc.get_stats()
    generations = [{"generation": str(i)} for i in range(len(stats))]
    page = ""
    for name, key, text in (
        ("python_gc_objects_collected_total", "collected", "Objects collected by the garbage collector."),
        ("python_gc_objects_uncollectable_total", "uncollectable", "Objects the garbage collector had to leave."),
        ("python_gc_collections_total", "collections", "Runs of the garbage collector."),
    ):
        page += _Samples(name, text, "counter", generations, created=False).render([stat[key] for stat in stats])
    major, minor, patch = platform.python_version_tuple()
    version = {"major": major, "minor": minor, "patchlevel": patch, "version": platform.python_version()}
    version["implementation"] = platform.python_implementation()
    page += _Samples("python_info", "The Python that runs this.", "gauge", [version]).render([1])
    for name, kind, value in _process_figures():
        page += _Samples(name, "Of this process.", kind, [{}], created=False).render([value])
    return page


def _process_figures() -> list[tuple[str, str, float]]:
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        with open("/proc/stat", encoding="ascii") as file:
            booted = next(float(line.split()[1]) for line in file if line.startswith("btime"))
        descriptors = len(os.listdir("/proc/self/fd"))
    except (OSError, StopIteration):
        return []
    ticks = os.sysconf("SC_CLK_TCK")
    return [
        ("process_virtual_memory_bytes", "gauge", float(fields[20])),
        ("process_resident_memory_bytes", "gauge", float(fields[21]) * resource.getpagesize()),
        ("process_start_time_seconds", "gauge", booted + float(fields[19]) / ticks),
        ("process_cpu_seconds_total", "counter", (float(fields[11]) + float(fields[12])) / ticks),
        ("process_open_fds", "gauge", float(descriptors)),
        ("process_max_fds", "gauge", float(resource.getrlimit(resource.RLIMIT_NOFILE)[0])),
    ]
