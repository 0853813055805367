"""A launch config: one YAML file that says which model is served on which device with which flags, and why each.

`extends` takes another config (by name, or by path relative to the file) and overrides what it sets anew; a flag set
to null is taken back to the device's default. A goal (`low-ttft`, `low-itl`, `high-throughput`) is laid over a config
by `FILE.yaml:GOAL`, and over one of the suite's by name: `h100-llama-8b-low-itl` is `h100-llama-8b-baseline` with it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from tailgate.exits import BadInput
from tailgate.yaml_file import FaultAt, check_model, read_yaml
from vllm_launch.devices import UNKNOWN, find_device
from vllm_launch.engine.docker import Container
from vllm_launch.flags import DEFAULT_VERSION, FlagList, flag_list

CONFIGS = Path(__file__).parent / "configs"
GOALS = ("low-ttft", "low-itl", "high-throughput")
_BASE = "-baseline"
_WITH_GOAL = re.compile(r"(.*\.ya?ml):([\w-]+)")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


class DockerFile(BaseModel):
    """How `--engine docker` runs the image; `docker.Container` says what each key means."""

    model_config = ConfigDict(extra="forbid", alias_generator=lambda name: name.replace("_", "-"))

    image: str | None = Field(None, description="default: vLLM's own image of the config's version")
    gpus: str = Field("all", pattern=r"^(all|none|\d+(,\d+)*)$", description="all, none, or device numbers like 0,1")
    shm_size: str = Field("16g", pattern=r"^\d+[kmg]?$")
    mounts: list[str] = Field([], description="more volumes, as docker's -v takes them")

    @field_validator("gpus", mode="before")
    @classmethod
    def _number_as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class ConfigFile(BaseModel):
    """The file as written. Every key is optional where `extends` supplies it."""

    model_config = ConfigDict(extra="forbid", alias_generator=lambda name: name.replace("_", "-"))

    about: str = ""
    extends: str | None = None
    vllm: str | None = Field(None, description="vLLM version whose flags are meant, such as '0.32'")
    model: str | None = None
    served_model_name: str | None = None
    device: str | None = None
    url: str | None = Field(None, pattern=r"^https?://", description="a server that runs already, for --engine attach")
    docker: DockerFile | None = None
    args: dict[str, Any] = {}
    env: dict[str, str] = {}
    notes: dict[str, str] = {}

    @field_validator("env", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            name: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
            for name, item in value.items()
        }

    @field_validator("env")
    @classmethod
    def _can_be_set(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name + text:
                raise FaultAt((name,), "no system can set such a variable; a name has no '=', and neither part a NUL")
        return value

    @field_validator("url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value is not None and (fault := url_fault(value)):
            raise ValueError(fault)
        return value


@dataclass(frozen=True)
class LaunchConfig:
    """A config with everything it extends folded in. `args` hold canonical flag names and checked values.

    `path` loads it again; where a goal is laid over a file it ends in `:GOAL`.
    """

    name: str
    path: Path
    about: str
    version: str
    model: str
    served_model_name: str | None
    device: str
    args: Mapping[str, Any]
    env: Mapping[str, str]
    notes: Mapping[str, str]
    url: str | None = None
    docker: Container | None = None
    step_times: Path | None = None
    """What the embedded engine takes for its step times, instead of measured kernels' (see `engine.embedded`)."""

    @property
    def attached_only(self) -> bool:
        """Whether nothing is known of the engine but its address."""
        return self.device == UNKNOWN

    @property
    def flags(self) -> FlagList:
        """The flags of the vLLM version this config is for."""
        return flag_list(self.version)

    def public_env(self) -> dict[str, str]:
        """The environment this config adds, with secrets blotted out."""
        return {name: "(hidden)" if is_secret(name) else value for name, value in self.env.items()}


def is_secret(variable: str) -> bool:
    """Whether an environment variable of this name may hold a secret."""
    return bool(_SECRET_NAME.search(variable))


def names() -> list[str]:
    """The configs that come with the suite, those made by laying a goal over a baseline among them."""
    files = {path.stem for path in CONFIGS.glob("*.yaml")}
    bases = [name.removesuffix(_BASE) for name in files if name.endswith(_BASE) and name != f"cpu-tiny{_BASE}"]
    return sorted(files | {f"{base}-{goal}" for base in bases for goal in GOALS})


def load_config(name_or_path: str, *, version: str | None = None) -> LaunchConfig:
    """The config by name or path, checked against the flags of its vLLM version (or of `version`).

    Raises `BadInput` naming file, line, key and mend of the first fault.
    """
    if is_url(name_or_path):
        return _attached(name_or_path.rstrip("/"), version)
    return _load(_find(name_or_path, Path(), ""), version)


def is_url(text: str) -> bool:
    """Whether a config is named by the address of a server that runs already."""
    return text.startswith(("http://", "https://"))


def url_fault(url: str) -> str | None:
    """What is wrong with the address of a server; nothing that may be secret is repeated."""
    mend = "write it like http://127.0.0.1:8000"
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            return f"'{url}' is no address of a server; {mend}"
    except ValueError as error:
        return f"no address of a server ({str(error).lower()}); {mend}"
    if parts.username is not None:
        return f"credentials do not belong in an address; {mend}, and set OPENAI_API_KEY in the environment"
    return None


def _attached(url: str, version: str | None) -> LaunchConfig:
    if fault := url_fault(url):
        raise BadInput(fault)
    return LaunchConfig(
        name=re.sub(r"[^\w.-]+", "-", urlsplit(url).netloc.rpartition("@")[2]),
        path=Path(),
        about="a server that runs already",
        version=flag_list(version or DEFAULT_VERSION).version,
        model="",
        served_model_name=None,
        device=UNKNOWN,
        args={},
        env={},
        notes={},
        url=url.removesuffix("/v1"),
    )


def _find(name_or_path: str, base: Path, source: str) -> Path:
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path or _WITH_GOAL.fullmatch(name_or_path):
        return base / name_or_path
    path = CONFIGS / f"{name_or_path}.yaml"
    if path.is_file():
        return path
    for goal in GOALS:
        if name_or_path.endswith(f"-{goal}"):
            under = CONFIGS / f"{name_or_path.removesuffix(f'-{goal}')}{_BASE}.yaml"
            if under.is_file():
                return under.with_name(f"{under.name}:{goal}")
    close = difflib.get_close_matches(name_or_path, names(), n=1, cutoff=0.4)
    if re.fullmatch(r"[\w.-]+:\d+", name_or_path):
        raise BadInput(
            f"{source}there is no launch config '{name_or_path}'",
            f"write an address with its scheme: http://{name_or_path}",
        )
    mend = f"did you mean '{close[0]}'?" if close else "see: python -m vllm_launch list, or give a path ending in .yaml"
    raise BadInput(f"{source}there is no launch config '{name_or_path}'", mend)


def _load(path: Path, version: str | None) -> LaunchConfig:
    chain = _chain(path)
    settings: dict[str, Any] = {"args": {}, "env": {}, "notes": {}}
    for _, file, _ in reversed(chain):
        for key in ("vllm", "model", "served_model_name", "device", "url", "docker"):
            if (value := getattr(file, key)) is not None and key in file.model_fields_set:
                settings[key] = value
    named = next(((source, node) for source, file, node in chain if file.vllm), None)
    where = "" if version or not named else f"{_shown(named[0])}:{_line(named[1], 'vllm')}: vllm: "
    flags = flag_list(version or settings.get("vllm") or DEFAULT_VERSION, where)
    for source, file, node in reversed(chain):
        spellings: dict[str, str] = {}
        for spelled, value in file.args.items():
            where = f"{_shown(source)}:{_line(node, 'args', spelled)}: args.{spelled}"
            flag = flags.find(spelled, where)
            if other := spellings.get(flag.name):
                raise BadInput(f"{where}: the same flag as '{other}' above", "keep one of them")
            spellings[flag.name] = spelled
            if value is None:
                settings["args"].pop(flag.name, None)
                settings["notes"].pop(flag.name, None)
            else:
                settings["args"][flag.name] = flags.value(flag, value, where)
        settings["env"] |= file.env
        settings["notes"] |= {flags.canonical(name): note for name, note in file.notes.items()}
    source, _, node = next(entry for entry in chain if entry[0].parent.parent.name != "goals")
    if settings.get("url"):
        settings = {"model": "", "device": UNKNOWN, **settings}
    for key in ("model", "device"):
        if key not in settings:
            raise BadInput(f"{_shown(source)}:1: the key '{key}' is missing", "add it, or extend a config that has it")
    if settings["device"] != UNKNOWN:
        find_device(settings["device"], f"{_shown(source)}:{_line(node, 'device')}: device")
    for name in settings["notes"]:
        if name not in settings["args"] and name not in settings["env"]:
            raise BadInput(
                f"{_shown(source)}:{_line(node, 'notes', name)}: notes.{name}: a note on a flag that is not set",
                "set the flag under 'args:' or remove the note",
            )
    return LaunchConfig(
        name=_name(path),
        path=path,
        about=_about(path, chain),
        version=flags.version,
        model=settings["model"],
        served_model_name=settings.get("served_model_name"),
        device=settings["device"],
        args=settings["args"],
        env=settings["env"],
        notes=settings["notes"],
        url=settings["url"].rstrip("/").removesuffix("/v1") if settings.get("url") else None,
        docker=_container(settings.get("docker"), settings.get("vllm") or flags.version),
    )


def _container(asked: DockerFile | None, version: str) -> Container:
    image = f"vllm/vllm-openai:v{version if version.count('.') >= 2 else f'{version}.0'}"
    if asked is None:
        return Container(image)
    return Container(asked.image or image, asked.gpus, asked.shm_size, tuple(asked.mounts))


def _chain(path: Path) -> list[tuple[Path, ConfigFile, yaml.Node | None]]:
    """The file and all that it extends, child first."""
    chain: list[tuple[Path, ConfigFile, yaml.Node | None]] = []
    while True:
        path, goal = _split(path)
        if goal:
            chain.append(_goal(path, goal))
        data, node = read_yaml(path)
        file = check_model(data, ConfigFile, str(_shown(path)), node)
        chain.append((path, file, node))
        if file.extends is None:
            return chain
        where = f"{_shown(path)}:{_line(node, 'extends')}: extends"
        path = _find(file.extends, path.parent, f"{where}: ")
        if any(path.resolve() == seen.resolve() for seen, _, _ in chain):
            raise BadInput(f"{where}: '{file.extends}' extends this file again", "break the circle")


def _split(path: Path) -> tuple[Path, str | None]:
    """The file, and the goal that is laid over it."""
    match = _WITH_GOAL.fullmatch(path.name)
    return (path.with_name(match[1]), match[2]) if match else (path, None)


def _name(path: Path) -> str:
    file, goal = _split(path)
    return f"{file.stem.removesuffix(_BASE)}-{goal}" if goal else file.stem


def _about(path: Path, chain: list[tuple[Path, ConfigFile, yaml.Node | None]]) -> str:
    told = [file.about for _, file, _ in chain if file.about]
    if _split(path)[1] and len(told) > 1:
        return f"{told[1].partition(', device defaults')[0]}: {told[0][:1].lower()}{told[0][1:]}"
    return told[0] if told else ""


def _goal(path: Path, goal: str) -> tuple[Path, ConfigFile, yaml.Node | None]:
    """The goal's file for the device of the config in `path`."""
    if goal not in GOALS:
        raise BadInput(f"{_shown(path)}: there is no goal '{goal}'", f"known: {', '.join(GOALS)}")
    device = next((file.device for _, file, _ in _chain(path) if file.device), None)
    if device is None:
        raise BadInput(f"{_shown(path)}: names no device, and a goal is met by a device's own flags", "add 'device:'")
    family = find_device(device, f"{_shown(path)}: device").family
    found = CONFIGS / "goals" / family / f"{goal}.yaml"
    if not found.is_file():
        raise BadInput(f"{_shown(path)}: there are no goals for the device '{device}'", "write the flags yourself")
    data, node = read_yaml(found)
    return found, check_model(data, ConfigFile, str(_shown(found)), node), node


def _line(node: yaml.Node | None, *keys: str) -> int:
    """The line of a key, or of the deepest part of its path that stands in the file."""
    line = 1
    for key in keys:
        if not isinstance(node, yaml.MappingNode):
            break
        hit = next(((k, v) for k, v in node.value if k.value == key), None)
        if hit is None:
            break
        line, node = hit[0].start_mark.line + 1, hit[1]
    return line


def _shown(path: Path) -> Path:
    """The path as a user would type it."""
    try:
        return path.relative_to(Path.cwd())
    except ValueError:
        return path
