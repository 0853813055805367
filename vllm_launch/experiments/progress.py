"""What a person sees while an experiment runs: one line that moves on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

_BAR = 24


class Progress:
    """`step` begins a leg; `show` moves its bar; `done` leaves its last line standing."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._moving = self._stream.isatty()
        self._total = total
        self._number = 0
        self._title = ""
        self._said = ""

    def step(self, title: str) -> None:
        """Begins the next of `total` legs."""
        self._number += 1
        self._title = f"[{self._number}/{self._total}] {title}"
        self._say(f"{self._title}: starting")

    def show(self, share: float, text: str) -> None:
        """`share` (0 to 1) of the leg is over; `text` says what goes on."""
        full = round(min(max(share, 0.0), 1.0) * _BAR)
        if self._moving:
            self._say(f"{self._title} {'█' * full}{'░' * (_BAR - full)} {text}")

    def done(self, text: str) -> None:
        """Ends the leg's line with `text`."""
        self.note(text)

    def note(self, text: str) -> None:
        """Leaves a line about the leg standing; what goes on is shown below it."""
        self._say(f"{self._title}: {text}")
        if self._moving:
            self._stream.write("\n")

    def broken(self, text: str) -> None:
        """Leaves the leg's line as it stands, and says `text` below it."""
        self._stream.write(f"\n{text}\n" if self._moving else f"{text}\n")
        self._stream.flush()

    def _say(self, line: str) -> None:
        if line == self._said:
            return
        self._said = line
        self._stream.write(f"\r\x1b[K{line}" if self._moving else f"{line}\n")
        self._stream.flush()
