"""What every manifest must keep to, as one function that tells what is wrong; empty for a good one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tests.support.deployed import Document, faults, pods, programs

# Names that hold secrets in the things that are run here; a value beside one of them is a secret in the open.
_SECRET_NAME = re.compile(r"(api[_-]?key|token|password|secret|credential)", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"(sk-[A-Za-z0-9]{8}|hf_[A-Za-z0-9]{8}|-----BEGIN|eyJ[A-Za-z0-9_-]{10})")
_AMOUNTS = ("cpu", "memory", "ephemeral-storage")


def findings(found: Sequence[Document], *, allowed_capabilities: Iterable[str] = ()) -> list[str]:
    """Every breach; `allowed_capabilities` may be added by a worker, which then may gain privileges for them."""
    return [
        *_pods(found, frozenset(allowed_capabilities)),
        *_secrets(found),
        *_network(found),
        *(fault for program in programs(found) for fault in faults(program)),
    ]


def _pods(found: Sequence[Document], allowed: frozenset[str]) -> Iterator[str]:
    for who, spec in pods(found):
        pod = spec.get("securityContext", {})
        if pod.get("runAsNonRoot") is not True or not pod.get("runAsUser"):
            yield f"{who}: may run as root"
        if pod.get("seccompProfile", {}).get("type") != "RuntimeDefault":
            yield f"{who}: has no seccomp profile"
        if spec.get("automountServiceAccountToken") is not False:
            yield f"{who}: is given a token of the cluster's"
        if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
            yield f"{who}: shares a namespace of its host"
        for volume in spec.get("volumes", ()):
            if "hostPath" in volume:
                yield f"{who}: mounts a path of its host"
            if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
                yield f"{who}: the volume {volume['name']} may fill its node"
        mounted = {volume["name"] for volume in spec.get("volumes", ())}
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            yield from _container(f"{who}/{container['name']}", container, mounted, allowed)


def _container(who: str, container: Document, volumes: set[str], allowed: frozenset[str]) -> Iterator[str]:
    own: dict[str, Any] = container.get("securityContext", {})
    added = set(own.get("capabilities", {}).get("add", ()))
    if own.get("capabilities", {}).get("drop") != ["ALL"]:
        yield f"{who}: keeps capabilities"
    if added - allowed:
        yield f"{who}: asks for {', '.join(sorted(added - allowed))}"
    if own.get("allowPrivilegeEscalation") is not (bool(added & allowed)):
        yield f"{who}: may gain privileges"
    if own.get("privileged") or own.get("runAsUser") == 0:
        yield f"{who}: runs as root"
    if container["image"].startswith("tailgate") and own.get("readOnlyRootFilesystem") is not True:
        yield f"{who}: may write to its image"
    name, _, tag = container["image"].partition(":")
    if tag in ("", "latest") and "@sha256:" not in container["image"]:
        yield f"{who}: the image {name} is of no fixed version"
    resources = container.get("resources", {})
    for kind in ("requests", "limits"):
        missing = [amount for amount in _AMOUNTS if amount not in resources.get(kind, {})]
        if missing:
            yield f"{who}: no {kind} for {', '.join(missing)}"
    if "worker" in who and resources.get("requests") != resources.get("limits"):
        yield f"{who}: a worker's requests are not its limits"
    for mount in container.get("volumeMounts", ()):
        if mount["name"] not in volumes:
            yield f"{who}: mounts {mount['name']}, which its pod has not"


def _secrets(found: Sequence[Document]) -> Iterator[str]:
    for item in found:
        who = f"{item['kind']} {item['metadata']['name']}"
        if item["kind"] == "Secret":
            yield f"{who}: a secret in a file"
        for path, value in _leaves(item, ""):
            if _SECRET_VALUE.search(value):
                yield f"{who}: {path} looks like a secret"
    for program in programs(found):
        for name, value in program.env.items():
            if value and _SECRET_NAME.search(name):
                yield f"{program.who}: the value of {name} stands in the manifest"


def _network(found: Sequence[Document]) -> Iterator[str]:
    if not any(item["kind"] == "Deployment" for item in found):
        return
    policies = [item["spec"] for item in found if item["kind"] == "NetworkPolicy"]
    closed = [spec for spec in policies if spec["podSelector"] == {} and "ingress" not in spec and "egress" not in spec]
    if not any(set(spec["policyTypes"]) == {"Ingress", "Egress"} for spec in closed):
        yield "no network policy closes what is not named"
    for item in found:
        if item["kind"] == "Service" and item["spec"].get("type", "ClusterIP") != "ClusterIP":
            yield f"Service {item['metadata']['name']}: is reached from outside the cluster"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _leaves(item, f"{path}[{number}]")
    elif isinstance(value, str):
        yield path, value
