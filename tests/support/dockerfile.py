"""A Dockerfile read as its stages and instructions, and which files of the repository its build would see."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_ENV = re.compile(r'(\w+)=("[^"]*"|\S+)')


@dataclass
class Stage:
    """One FROM and what follows it: (instruction, argument) in order."""

    base: str
    name: str = ""
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [argument for kind, argument in self.steps if kind == instruction]

    def value(self, instruction: str) -> str:
        """The last one's argument."""
        return self.all(instruction)[-1]

    def exec(self, instruction: str) -> list[str]:
        """The last one's argument in exec form, which no shell reads. Raises where it is in shell form."""
        found = json.loads(self.value(instruction))
        return [str(word) for word in found]

    @property
    def env(self) -> dict[str, str]:
        return {name: value.strip('"') for line in self.all("ENV") for name, value in _ENV.findall(line)}

    @property
    def copies(self) -> list[tuple[list[str], str]]:
        """(sources, destination) of each COPY from the build context."""
        words = [line.split() for line in self.all("COPY") if "--from=" not in line]
        return [(line[:-1], line[-1]) for line in words]


def read_dockerfile(path: Path) -> list[Stage]:
    """Its stages, first to last."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^\s*#.*\n", "", path.read_text()))
    stages: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, argument = line.partition(" ")
        if instruction == "FROM":
            base, _, name = argument.partition(" AS ")
            stages.append(Stage(base, name))
        elif stages:
            stages[-1].steps.append((instruction, argument.strip()))
        else:
            stages.append(Stage("", steps=[(instruction, argument.strip())]))
    return [stage for stage in stages if stage.base]


class Context:
    """The build context: what .dockerignore leaves of a directory (its rules as far as this repository uses them)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        lines = (root / ".dockerignore").read_text().splitlines()
        self._rules = [line.strip() for line in lines if line.strip() and not line.startswith("#")]

    def holds(self, relative: str) -> bool:
        """The last rule that fits decides; a rule for a directory is one for all in it."""
        kept = True
        parts = relative.split("/")
        heads = ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]
        for rule in self._rules:
            pattern = rule.removeprefix("!")
            if pattern.startswith("**/"):
                fits = any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts)
            else:
                fits = any(
                    fnmatch.fnmatchcase(head, pattern) for head in heads if head.count("/") == pattern.count("/")
                )
            if fits:
                kept = rule.startswith("!")
        return kept

    def files(self, source: str) -> Iterator[Path]:
        """The files of one COPY source, relative to the context."""
        path = self._root / source
        found = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in found:
            relative = file.relative_to(self._root)
            if file.is_file() and self.holds(relative.as_posix()):
                yield relative
