"""What an experiment or a search has got done, on disk after every leg: a crash or Ctrl-C costs one leg at most."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exporters.run import read_json
from exporters.run_store import replace_file
from tailgate.exits import BadInput, Exit
from vllm_launch.config import LaunchConfig
from vllm_launch.experiments.file import Experiment, Leg

STATE, LOCK = "experiment.json", ".lock"
_SCHEMA = "tailgate.experiment/1"


@dataclass(frozen=True)
class Done:
    """How a leg ended."""

    code: Exit
    outcome: str


class State:
    """The state of one experiment's directory. Made by `begin` or `resume`.

    Its `identity` is what makes two plans the same: the same legs, on the same engines, sent the same.
    """

    def __init__(self, directory: Path, content: dict[str, Any]) -> None:
        self.directory = directory
        self._content = content

    @staticmethod
    def open(path: Path, identity: Mapping[str, Any], results: Path, resume: Path | None) -> State:
        """That of `resume`, where one is named, else a fresh one in `results`; `path` is the experiment's file."""
        return State.resume(path, identity, resume) if resume else State.begin(path.stem, identity, results)

    @staticmethod
    def begin(name: str, identity: Mapping[str, Any], results: Path) -> State:
        """A fresh directory in `results`. Raises `BadInput` where it cannot be made."""
        stem = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{name}"
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
            state = State(directory, {"schema": _SCHEMA, **identity, "done": {}})
            state._write()
            return state
        raise BadInput(f"{results}: too many experiments began this second", "wait a moment")

    @staticmethod
    def resume(path: Path, identity: Mapping[str, Any], directory: Path) -> State:
        """What the file in `path` left in `directory`. Raises `BadInput` where it is nothing, or of another plan."""
        content = read_json(directory / STATE, "name the directory of one that was broken off")
        wanted = json.loads(json.dumps(identity, default=str))
        for key, value in wanted.items():
            if content.get(key) != value:
                raise BadInput(
                    f"{directory} holds one whose {key} differs from what {path} says now",
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
                raise BadInput(f"{self.directory}: it is still going on", "wait for its end, or end it") from None
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

    def set_aside(self, leg: str, why: str) -> None:
        """Moves what there is of a leg, by its name, out of the way, to be measured anew."""
        path = self.directory / leg
        if not path.exists():
            return
        names = (f"{leg}-{why}", *(f"{leg}-{why}-{number}" for number in range(2, 1000)))
        path.rename(next(self.directory / name for name in names if not (self.directory / name).exists()))

    def _write(self) -> None:
        text = json.dumps(self._content, indent=2, default=str) + "\n"
        replace_file(self.directory / STATE, text.encode())


def identity(experiment: Experiment) -> dict[str, Any]:
    """The experiment's, for `State`."""
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
                **of_config(leg.config),
                "seed": leg.seed,
                "load": leg.load,
            }
            for leg in experiment.legs
        ],
    }


def of_config(config: LaunchConfig) -> dict[str, Any]:
    """What of a config makes an engine the same."""
    return {
        "config": config.name,
        "model": config.model,
        "device": config.device,
        "vllm": config.version,
        "url": config.url,
        "docker": asdict(config.docker) if config.docker else None,
        "args": dict(config.args),
        "env": config.public_env(),
        **({"step_times": config.step_times.read_text(encoding="utf-8")} if config.step_times else {}),
    }
