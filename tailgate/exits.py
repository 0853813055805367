"""Exit codes and the one way a command ends on a user's mistake: one clear line on stderr, no traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from enum import IntEnum


class Exit(IntEnum):
    """What every command's exit status means."""

    GOOD = 0
    REQUESTS_FAILED = 1
    BAD_INPUT = 2
    REGRESSION = 3
    NOT_VALID = 4


_PRECEDENCE = (Exit.BAD_INPUT, Exit.NOT_VALID, Exit.REGRESSION, Exit.REQUESTS_FAILED)


def worst(codes: Iterable[int]) -> Exit:
    """The one code to exit with where several apply: 2, then 4, then 3, then 1, else 0."""
    found = set(codes)
    return next((code for code in _PRECEDENCE if code in found), Exit.GOOD)


class BadInput(Exception):
    """A mistake of the user's (file, flag, server address) that ends the command with exit code 2.

    The message is one line that names the thing at fault and the mend.
    """

    def __init__(self, problem: str, mend: str = "") -> None:
        self.problem = " ".join(problem.split())
        self.mend = " ".join(mend.split())
        super().__init__(f"{self.problem}; {self.mend}" if self.mend else self.problem)


def run_command(main: Callable[[], int], name: str) -> int:
    """Runs a command's main; turns `BadInput` into its one line and exit code 2, and Ctrl-C into 130."""
    try:
        return int(main())
    except BadInput as error:
        print(f"{name}: {error}", file=sys.stderr)
        return Exit.BAD_INPUT
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output (head, less) has left: nothing to say, and nowhere to say it.
        sys.stderr.close()
        return Exit.GOOD
