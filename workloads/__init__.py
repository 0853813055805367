"""What is sent, and when: workload files, exact-length prompts, arrival schedules, trace replay.

Knows nothing of Locust or HTTP and imports nothing of this suite but `tailgate`. `load_workload` reads a workload,
`make_plan` turns it into requests that any worker can make on its own.
"""

from workloads.arrivals import ArrivalSpec
from workloads.bodies import Answer
from workloads.library import load_workload, preset_names
from workloads.plan import Plan, PlannedRequest, make_plan
from workloads.sources.choice import calibrate_for, open_replayed
from workloads.spec import Workload
from workloads.tokens import Calibration, TokenCounter

__all__ = [
    "Answer",
    "ArrivalSpec",
    "Calibration",
    "Plan",
    "PlannedRequest",
    "TokenCounter",
    "Workload",
    "calibrate_for",
    "load_workload",
    "make_plan",
    "open_replayed",
    "preset_names",
]
