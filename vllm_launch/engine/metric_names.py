"""The names under which engines tell the same things on their `/metrics` pages; the first that a page has is taken.

vLLM's are those of its V1 engine: today's (0.32) first, then what earlier V1 versions called them. SGLang's are of its
production metrics (served only with its --enable-metrics).
"""

from __future__ import annotations

from collections.abc import Mapping

VLLM: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions_total": ("vllm:num_preemptions_total",),
    "prefix_cache_queries_total": ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    "prefix_cache_hits_total": ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    "prompt_tokens_total": ("vllm:prompt_tokens_total",),
    "generation_tokens_total": ("vllm:generation_tokens_total",),
    "requests_done_total": ("vllm:request_success_total",),
}
VLLM_HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft_s": ("vllm:time_to_first_token_seconds",),
    "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "e2e_s": ("vllm:e2e_request_latency_seconds",),
    "queue_s": ("vllm:request_queue_time_seconds",),
    "prefill_s": ("vllm:request_prefill_time_seconds",),
    "step_tokens": ("vllm:iteration_tokens_total",),
}
SGLANG: Mapping[str, tuple[str, ...]] = {
    "running": ("sglang:num_running_reqs",),
    "waiting": ("sglang:num_queue_reqs",),
    "kv_cache_usage": ("sglang:token_usage",),
    "prefix_cache_hit_share": ("sglang:cache_hit_rate",),
    "prompt_tokens_total": ("sglang:prompt_tokens_total",),
    "generation_tokens_total": ("sglang:generation_tokens_total",),
    "requests_done_total": ("sglang:num_requests_total",),
}
SGLANG_HISTOGRAMS: Mapping[str, tuple[str, ...]] = {
    "ttft_s": ("sglang:time_to_first_token_seconds",),
    "itl_s": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    "e2e_s": ("sglang:e2e_request_latency_seconds",),
    "queue_s": ("sglang:queue_time_seconds",),
}
# The embedded engine's alone: steps that came late, which no real engine has to tell.
SIMULATED: Mapping[str, tuple[str, ...]] = {
    "simulated_behind_steps_total": ("tailgate_simulated_behind_steps_total",),
}
# Shares of each engine's own cache; everything else adds up over data-parallel engines.
LARGEST = {"kv_cache_usage", "prefix_cache_hit_share"}
# Histograms whose buckets are kept, not only sum and count.
WHOLE = {"ttft_s", "itl_s"}
