"""The one argument parser of every command of ours: a mistake is one line that names the mend, with exit code 2."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

from tailgate.exits import BadInput

_CHOICE = re.compile(r"invalid choice: '?([^']*?)'? \(choose from (.*)\)$")
_UNKNOWN = re.compile(r"unrecognized arguments: (-\S+)")


class Parser(argparse.ArgumentParser):
    """argparse's parser, and its subparsers', saying a mistake in one line and not below a usage of several."""

    def error(self, message: str) -> NoReturn:
        """Raises `BadInput` with argparse's message, and the nearest thing there is as its mend."""
        see = f"see: {self.prog} --help"
        if found := _CHOICE.search(message):
            known = [word.strip("'\" ") for word in found[2].split(",")]
            close = difflib.get_close_matches(found[1], known, n=1, cutoff=0.5)
            mend = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
            raise BadInput(f"{message[: found.start()].removesuffix(': ')}: there is no '{found[1]}'", mend)
        if found := _UNKNOWN.search(message):
            close = difflib.get_close_matches(found[1].split("=")[0], self._option_string_actions, n=1, cutoff=0.6)
            raise BadInput(f"unknown option {found[1]}", f"did you mean {close[0]}?" if close else see)
        raise BadInput(message, see)
