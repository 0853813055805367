"""What follows an answer: the next turn of its conversation, with that answer in it."""

from __future__ import annotations

from locustfiles.client.stream import Outcome
from locustfiles.feed import Ticket, digest_of
from workloads import Answer, Plan


def next_turn(plan: Plan, ticket: Ticket, outcome: Outcome | None) -> tuple[float, Ticket] | None:
    """(seconds that the user thinks, the ticket) of the turn after this one, its body made now, ahead of its time.

    None where the conversation ends: with its last turn, or with an answer that failed, which nobody can repeat.
    """
    if ticket.planned.ends or outcome is None or not outcome.ok or outcome.reading is None:
        return None
    reading = outcome.reading
    think_s, planned = plan.next_turn(ticket.planned, Answer(reading.text or "", reading.tool_calls))
    return think_s, Ticket(planned, digest_of(planned.index, planned.body))
