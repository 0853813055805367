"""A table for the screen."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table, a rule below its head; the first column stands left, all others right."""
    drawn = [head, *rows]
    widths = [max(len(row[i]) for row in drawn) for i in range(len(head))]
    lines = [
        "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in drawn
    ]
    return [lines[0].rstrip(), "-" * max(len(line.rstrip()) for line in lines), *(line.rstrip() for line in lines[1:])]
