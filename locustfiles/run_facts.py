"""What `run.json` says of a run beside its options: the command, who took part, what was sent, what was launched."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import tailgate
from locustfiles.discovery import Server
from locustfiles.messages import Introduction
from locustfiles.settings import Settings
from tailgate.exits import BadInput
from workloads import Plan
from workloads.schedule import Schedule

LAUNCH_CONFIG = "TAILGATE_LAUNCH_CONFIG"
"""Environment variable with the path of a JSON file that run.json keeps under `launch`.

Whoever sets it launched the engine and watches it too.
"""


def facts_at_start(settings: Settings, users: int, server: Server, seed: int, salt: str, plan: Plan) -> dict[str, Any]:
    """All that is known of a run before its first request. Raises `BadInput`."""
    arrival = settings.arrival
    argv = redacted(sys.argv)
    return {
        "suite_version": tailgate.__version__,
        "label": settings.label,
        "argv": argv,
        "command": shlex.join(argv),
        "workload": settings.workload.resolved(),
        "seed": seed,
        "seed_drawn": settings.seed is None,
        "salt": salt,
        "arrival": {
            "kind": arrival.kind,
            "rate": arrival.request_rate,
            **arrival.model_dump(exclude_none=True, include={"rate_per_user", "stages", "wave"}),
            "burstiness": arrival.burstiness,
            "max_in_flight": settings.max_in_flight,
            "trace": str(settings.trace) if settings.trace else None,
            "time_scale": settings.time_scale,
        },
        "users": users,
        "num_requests": settings.num_requests,
        "warmup_s": settings.warmup_s,
        "drain_s": settings.drain_s,
        "slo": settings.slo,
        "stream": settings.stream,
        "retries": settings.retries,
        "extra_body": settings.extra_body,
        "target": server.url,
        "model": server.model,
        "engine": server.engine.to_dict(),
        "simulated": server.engine.simulated,
        "prompt_lengths": plan.calibration.note,
        "calibration": plan.calibration.to_dict(),
        "bodies_sha256": plan.bodies_sha256(),
        "schedule": {"sha256": plan.schedule.sha256()} if plan.schedule else None,
        "launch": launch_config(),
    }


def redacted(argv: list[str]) -> list[str]:
    """The command line without what might be a secret: values of --api-key…, and credentials inside a URL."""
    kept: list[str] = []
    hide_next = False
    for word in argv:
        name, equals, _ = word.partition("=")
        secret = name.startswith("--api-k") or name in ("--web-login-password", "--tls-key")
        if hide_next:
            kept.append("REDACTED")
        elif secret and equals:
            kept.append(f"{name}=REDACTED")
        else:
            kept.append(_without_credentials(word))
        hide_next = secret and not equals and not hide_next
    return kept


def _without_credentials(word: str) -> str:
    scheme, separator, rest = word.partition("://")
    authority = rest.split("/", 1)[0]
    if not separator or "@" not in authority:
        return word
    return f"{scheme}://REDACTED@{rest[rest.rindex('@', 0, len(authority)) + 1 :]}"


def launch_config() -> dict[str, Any] | None:
    """What whoever launched the engine left for us; None where nobody did. Raises `BadInput`."""
    path = os.environ.get(LAUNCH_CONFIG)
    if not path:
        return None
    try:
        found = msgspec.json.decode(Path(path).read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise BadInput(f"{LAUNCH_CONFIG}: {path} cannot be read ({error})", "point it to a JSON file") from None
    if not isinstance(found, dict):
        raise BadInput(f"{LAUNCH_CONFIG}: {path} holds no JSON object", "point it to one that does")
    return found


def identity(member: Introduction) -> dict[str, Any]:
    """A worker's entry before it has measured anything."""
    return {
        "host": member.host,
        "version": member.version,
        "python": member.python,
        "clock": member.clock,
        "clock_offset_s": member.clock_offset_s,
    }


def clock_of(crew: dict[str, Introduction]) -> str:
    """The worst of the workers' clocks: a run is as good as that."""
    order = ("user", "kernel", "wire")
    return min((member.clock for member in crew.values()), key=order.index)


def notes_of(crew: dict[str, Introduction]) -> list[str]:
    """What the workers have to say, each sentence once, and whose clocks are wrong."""
    said = dict.fromkeys(note for member in crew.values() for note in member.notes)
    return [*said, *(_clock_note(name, m) for name, m in crew.items() if m.clock_offset_s)]


def _clock_note(name: str, member: Introduction) -> str:
    side = "ahead of" if member.clock_offset_s > 0 else "behind"
    return (
        f"{name} on {member.host}: its wall clock is {abs(member.clock_offset_s):.2f} s {side} the master's; its "
        "records are given by the master's"
    )


class Sums(NamedTuple):
    """What a worker has sent, as its reports tell it."""

    requests: int
    bodies: int
    schedule: int


def sent_in_all(sums: Iterable[Sums]) -> dict[str, Any]:
    """What was really sent and when it was due, in a form that does not depend on the order or on who sent it."""
    known = list(sums)
    return {
        "count": sum(one.requests for one in known),
        "bodies_sum": f"{sum(one.bodies for one in known) % 2**256:064x}",
        "schedule_sum": f"{sum(one.schedule for one in known) % 2**256:064x}",
    }


def window_of_schedule(
    schedule: Schedule, began_ns: int, window_ns: tuple[int, int], limit: int | None
) -> dict[str, Any]:
    """How many requests were due in the window (epoch ns) of a run that began at `began_ns`, of `limit` in all."""
    first, end = (schedule.due_before((ns - began_ns) / 1e9) for ns in window_ns)
    return {"due_in_window": end - first if limit is None else max(min(end, limit) - first, 0)}
