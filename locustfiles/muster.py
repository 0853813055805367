"""Who may take part in a run, and how far a worker's clock is from the leader's, by what it says of itself."""

from __future__ import annotations

import tailgate
from locustfiles.messages import Introduction

# Below it a wall clock's difference does no harm: arrivals are off by less than a machine's own slowness.
_NOTICED_NS = 20_000_000


def fault_of(name: str, introduction: Introduction) -> str | None:
    """Why this worker cannot take part, in one line; None where it can.

    Another version is told first: what else such a worker says may rest on it.
    """
    who = f"{name} on {introduction.host}"
    if introduction.version != tailgate.__version__:
        theirs = introduction.version or "of another version"
        return f"{who} runs Tailgate {theirs}, this master {tailgate.__version__}; install the same one on both"
    return f"{who}: {introduction.fault}" if introduction.fault else None


def ahead_ns(introduction: Introduction, answered_ns: int) -> int:
    """How far the worker's wall clock is ahead of the leader's, which had this answer at `answered_ns`.

    The question's way and the answer's are taken to be equally long (NTP's reckoning, RFC 5905 section 8), so the error
    is at most half of the time that both took. 0 where a difference cannot be told from that, or is too small to
    matter.
    """
    if not introduction.received_ns:
        return 0
    there, back = introduction.received_ns - introduction.asked_ns, answered_ns - introduction.sent_ns
    ahead, doubt = (there - back) // 2, (there + back) // 2
    return ahead if abs(ahead) > max(doubt, _NOTICED_NS) else 0
