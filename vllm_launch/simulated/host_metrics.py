"""What the HTTP layer and the process have to say on the `/metrics` page."""

from __future__ import annotations

import gc
import os
import platform
import resource
from collections import Counter

from vllm_launch.simulated.exposition import Histogram, Samples, created_lines, label_text

_HTTP = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60)


class HttpMetrics:
    """What the HTTP layer counts, by handler."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()
        self._sizes: dict[str, list[float]] = {}
        self._durations = Histogram("http_request_duration_highr_seconds", "Duration of requests.", _HTTP, {})
        self._by_handler: dict[tuple[str, str], Histogram] = {}

    def answered(self, handler: str, method: str, status: int, size: int, seconds: float) -> None:
        self._requests[handler, method, f"{status // 100}xx"] += 1
        sizes = self._sizes.setdefault(handler, [0.0, 0.0, 0.0])
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
        requests = Samples("http_requests_total", "Requests by method, status and handler.", "counter", labels)
        page = requests.render(self._requests.values())
        for name, index in (("http_request_size_bytes", 1), ("http_response_size_bytes", 2)):
            text = "Content length by handler, where it was told."
            page += f"# HELP {name} {text}\n# TYPE {name} summary\n"
            created = []
            for handler, sizes in self._sizes.items():
                label = label_text({"handler": handler})
                page += f"{name}_count{label} {sizes[0]!r}\n{name}_sum{label} {sizes[index]!r}\n"
                created.append(created_lines(name, text, {"handler": handler}))
            page += _merged(created)
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
        page += Samples(name, text, "counter", generations, created=False).render([stat[key] for stat in stats])
    major, minor, patch = platform.python_version_tuple()
    version = {"major": major, "minor": minor, "patchlevel": patch, "version": platform.python_version()}
    version["implementation"] = platform.python_implementation()
    page += Samples("python_info", "The Python that runs this.", "gauge", [version]).render([1])
    for name, kind, value in _process_figures():
        page += Samples(name, "Of this process.", kind, [{}], created=False).render([value])
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
