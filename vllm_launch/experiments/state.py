"""What an experiment has got done, on disk after every leg, so that a crash or Ctrl-C costs one leg at most."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exporters.run import read_json
from exporters.run_store import replace_file
from tailgate.exits import BadInput, Exit
from vllm_launch.experiments.file import Experiment, Leg

STATE, LOCK = "experiment.json", ".lock"
_SCHEMA = "tailgate.experiment/1"


@dataclass(frozen=True)
class Done:
    """How a leg ended."""

    code: Exit
    outcome: str


class State:
    """The state of one experiment's directory. Made by `begin` or `resume`."""

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self.directory = directory
        self._content = content

    @staticmethod
    def begin(experiment: Experiment, results: Path) -> State:
        """A fresh directory in `results`. Raises `BadInput` where it cannot be made."""
        stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{experiment.name}"
        for suffix in ("", *(f"-{number}" for number in range(2, 100))):
            directory = results / f"{stem}{suffix}"
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise BadInput(
                    f"{directory}: {error.strerror}", "name a directory that can be written with --results"
                ) from None
            state = State(directory, {"schema": _SCHEMA, **_identity(experiment), "done": {}})
            state._write()
            return state
        raise BadInput(f"{results}: too many experiments began this second", "wait a moment")

    @staticmethod
    def resume(experiment: Experiment, directory: Path) -> State:
        """The state left in `directory`. Raises `BadInput` where it is none, or one of another plan."""
        content = read_json(directory / STATE, "name the directory of an experiment that was broken off")
        wanted = json.loads(json.dumps(_identity(experiment), default=str))
        for key, value in wanted.items():
            if content.get(key) != value:
                raise BadInput(
                    f"{directory} holds an experiment whose {key} differs from what {experiment.path} says now",
                    "run the file anew, or undo the change to it",
                )
        return State(directory, content)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Inside, nobody else runs legs in this directory. Raises `BadInput` where somebody does."""
        with (self.directory / LOCK).open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadInput(
                    f"{self.directory}: the experiment is still going on", "wait for its end, or end it"
                ) from None
            except OSError:
                pass  # Some network file systems know no locks.
            yield

    def done(self, leg: Leg) -> Done | None:
        """How the leg ended, if it has."""
        found = self._content["done"].get(leg.name)
        return Done(Exit(found["exit_code"]), found["outcome"]) if found else None

    def finish(self, leg: Leg, done: Done) -> None:
        """Keeps how the leg ended."""
        self._content["done"][leg.name] = {"exit_code": int(done.code), "outcome": done.outcome}
        self._write()

    def set_aside(self, leg: Leg, why: str) -> None:
        """Moves what there is of a leg out of the way, to be measured anew."""
        path = self.directory / leg.name
        if not path.exists():
            return
        names = (f"{leg.name}-{why}", *(f"{leg.name}-{why}-{number}" for number in range(2, 1000)))
        path.rename(next(self.directory / name for name in names if not (self.directory / name).exists()))

    def _write(self) -> None:
        text = json.dumps(self._content, indent=2, default=str) + "\n"
        replace_file(self.directory / STATE, text.encode())


def _identity(experiment: Experiment) -> dict[str, Any]:
    """What makes two plans the same: the same legs, on the same engines, sent the same."""
    file = experiment.file
    return {
        "experiment": experiment.name,
        "kind": experiment.kind,
        "engine": file.engine,
        "workload": experiment.workload,
        "duration": [file.run_time, file.warm_up, file.workers],
        "slo": file.slo,
        "legs": [
            {
                "name": leg.name,
                "config": leg.config.name,
                "model": leg.config.model,
                "device": leg.config.device,
                "args": dict(leg.config.args),
                "env": leg.config.public_env(),
                "seed": leg.seed,
                "load": leg.load,
            }
            for leg in experiment.legs
        ],
    }
