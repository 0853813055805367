"""docker-compose.yml against the Compose specification's schema, and each of its names against what it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deployed import Program, faults
from tests.support.dockerfile import read_dockerfile
from tests.support.locust_runs import ROOT

COMPOSE = ROOT / "docker-compose.yml"
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def _plain(value: Any) -> Any:
    """With every variable at its default, as in a shell that sets none."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return _VARIABLE.sub(r"\2", value) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return dict(_plain(yaml.safe_load(COMPOSE.read_text())))


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return dict(compose["services"])


def _ours(services: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services.items() if service["image"].startswith("tailgate")}


def test_valid_by_the_compose_specification() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [str(program), "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout


def test_commands_are_ones_that_the_code_takes(services: dict[str, dict[str, Any]]) -> None:
    image = read_dockerfile(ROOT / "Dockerfile")[-1]
    for name, service in services.items():
        if name in ("prometheus", "grafana"):
            continue
        entry = service.get("entrypoint", ["vllm", "serve"] if name == "vllm" else image.exec("ENTRYPOINT"))
        program = Program(name, service["image"], (*entry, *service["command"]), service.get("environment", {}))
        assert faults(program) == []


def test_every_name_is_defined(compose: dict[str, Any], services: dict[str, dict[str, Any]]) -> None:
    aliases = {
        alias
        for service in services.values()
        if isinstance(service["networks"], dict)
        for network in service["networks"].values()
        for alias in network["aliases"]
    }
    for service in services.values():
        assert set(service["networks"]) <= set(compose["networks"])
        for volume in service.get("volumes", ()):
            source, target = volume.split(":")[:2]
            assert source in compose["volumes"] or (ROOT / source).exists(), volume
            assert target.startswith("/")
        assert set(service.get("depends_on", ())) <= set(services)
        for variable in ("LOCUST_HOST",):
            value = service.get("environment", {}).get(variable, "http://engine:8000")
            assert value.split("/")[2].split(":")[0] in aliases | set(services)
    worker = services["worker"]["command"]
    assert worker[worker.index("--master-host") + 1] in services
    assert services["demo-engine"]["networks"] == services["vllm"]["networks"]
    scraped = yaml.safe_load((ROOT / "exporters/alerts/prometheus.yml").read_text())["scrape_configs"]
    targets = {target for job in scraped for part in job["static_configs"] for target in part["targets"]}
    assert targets == {"master:8089", "engine:8000"}
    assert {target.split(":")[0] for target in targets} <= aliases | set(services)


def test_results_are_the_images_only_writable_place(services: dict[str, dict[str, Any]]) -> None:
    image = read_dockerfile(ROOT / "Dockerfile")[-1]
    place = image.exec("VOLUME")[0]
    assert place == f"{image.value('WORKDIR')}/results"
    for name, service in _ours(services).items():
        assert service["read_only"] is True, name
        assert service["tmpfs"] == ["/tmp"]
        assert service["cap_drop"] == ["ALL"]
        if name in ("master", "worker"):
            assert f"results:{place}" in service["volumes"]


def test_who_may_do_what(services: dict[str, dict[str, Any]]) -> None:
    for name, service in services.items():
        assert service.get("privileged") is None
        assert service.get("cap_add", []) == (["NET_RAW", "SYS_NICE"] if name == "worker" else [])
        hardened = "no-new-privileges:true" in service["security_opt"]
        # The worker's capability comes with its interpreter's file, which such a rule would take away.
        assert hardened is (name != "worker")
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name} is published to the world"
    published = {port.rsplit(":", 1)[1] for service in services.values() for port in service.get("ports", ())}
    assert "5557" not in published
    assert services["worker"]["entrypoint"][0] == "python-wire"


def test_profiles(services: dict[str, dict[str, Any]]) -> None:
    assert {name: service["profiles"] for name, service in services.items() if "profiles" in service} == {
        "demo-engine": ["demo"],
        "vllm": ["gpu"],
        "prometheus": ["observe"],
        "grafana": ["observe"],
    }
    assert "COMPOSE_PROFILES=demo" in (ROOT / ".env").read_text().splitlines()
    for engine in ("demo-engine", "vllm"):
        # Only one of them runs; Compose would refuse a dependency that its profiles leave out.
        assert services["master"]["depends_on"][engine]["required"] is False
    vllm = services["vllm"]
    assert vllm["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
    assert vllm["shm_size"]
    assert any(volume.startswith("models:") for volume in vllm["volumes"])
    assert "container_name" not in services["worker"], "it could not be scaled"
    assert "ports" not in services["worker"], "two of them could not have the same"


def test_no_secret_stands_in_a_file(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        for name, value in service.get("environment", {}).items():
            if re.search("KEY|TOKEN|PASSWORD", name):
                assert value == "", f"{name} has a value"
