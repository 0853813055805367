"""A verdict as GitHub's workflow commands: lines that its runner shows as annotations of the pull request.

Syntax and escapes as GitHub documents them ("Workflow commands for GitHub Actions"): `::error title=T::message`, with
%, CR and LF percent-encoded, in properties also colon and comma.
"""

from __future__ import annotations

from exporters.compare import Comparison
from exporters.gate import decisions

_LEVELS = {"failed": "error", "too few": "error", "undecided": "warning"}


def lines(comparison: Comparison) -> list[str]:
    """An error for what failed, a warning for what is undecided, and one notice with the whole verdict."""
    from exporters.wording import sentence

    simulated = "SIMULATED. " if comparison.simulated else ""
    found = [
        _line(_level(d.outcome, comparison), d.title, f"{simulated}{d.said}")
        for d in decisions(comparison)
        if d.outcome in _LEVELS
    ]
    whole = "error" if comparison.refused else "notice"
    return [*found, _line(whole, f"Tailgate: {comparison.verdict}", f"{simulated}{sentence(comparison)}")]


def _level(outcome: str, comparison: Comparison) -> str:
    # Quantiles of the usual gate that a short run cannot tell fail nobody's pipeline.
    return "warning" if outcome == "too few" and not comparison.asked else _LEVELS[outcome]


def _line(level: str, title: str, message: str) -> str:
    return f"::{level} title={_escaped(title, ':,')}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    for character in f"%\r\n{more}":
        text = text.replace(character, f"%{ord(character):02X}")
    return text
