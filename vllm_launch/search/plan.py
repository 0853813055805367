"""What a search would do, and whether it can."""

from __future__ import annotations

from typing import Any

from tailgate.exits import BadInput
from vllm_launch.engine import embedded
from vllm_launch.experiments.plan import OVERHEAD_S, require_changeable, require_engines, require_workload
from vllm_launch.search.file import Search
from vllm_launch.search.screening import has_table


def require_searchable_engines(search: Search, python: str | None, *, virtual: bool) -> None:
    """Raises `BadInput` where the workload is unknown, an engine cannot be had, or nothing can be calibrated."""
    require_changeable(search.arms, search.file.engine, str(search.path))
    require_workload(search.workload)
    engine = "simulated" if virtual else search.file.engine
    require_engines([arm.config for arm in search.arms], engine, python)
    if search.file.step_times:
        embedded.settings(search.arms[0].config)
    screened = len(search.arms) > 1
    if screened and not has_table(search.arms[0].config) and search.file.start_rate is None:
        raise BadInput(
            f"{search.path}: the embedded engine has no measured step times for {search.arms[0].config.name}",
            "give a 'start-rate' that it surely carries, to be calibrated at",
        )


def search_plan(search: Search, *, virtual: bool) -> dict[str, Any]:
    """What would run, and how long that takes at most (seconds; virtual time is not counted)."""
    file = search.file
    configs = min(len(search.arms), file.measure + 1)
    runs = configs * file.most_runs + (1 if len(search.arms) > 1 else 0)
    return {
        "search": search.name,
        "engine": file.engine,
        "simulated": virtual or file.engine == "simulated",
        "virtual": virtual,
        "workload": file.workload,
        "slo": file.slo,
        "configs": [arm.name for arm in search.arms],
        "measured_configs": configs,
        "most_real_runs": runs,
        "expected_s": 0.0 if virtual else runs * (file.run_time + OVERHEAD_S[file.engine]),
        "tolerance": file.tolerance,
    }


def search_plan_text(planned: dict[str, Any]) -> str:
    """The plan for a person."""
    simulated = " (SIMULATED: no real hardware is measured)" if planned["simulated"] else ""
    finds = f"the most requests/s of {planned['workload']} within {planned['slo']}, to {planned['tolerance']:.0%}"
    lines = [
        f"search {planned['search']} on the {planned['engine']} engine{simulated}",
        f"  finds     {finds}",
        f"  configs   {', '.join(planned['configs'])}",
    ]
    if len(planned["configs"]) > 1:
        lines.append(f"  measures  the best {planned['measured_configs'] - 1} predicted, and the baseline")
    if planned["virtual"]:
        lines.append("  takes     seconds: all of it in virtual time")
    else:
        lines.append(f"  takes     at most {planned['most_real_runs']} runs, {planned['expected_s']:.0f} s")
    return "\n".join(lines)
