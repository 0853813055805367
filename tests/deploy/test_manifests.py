"""The Kubernetes manifests: built by kubectl itself, valid for each version, true to the code and the policy."""

from __future__ import annotations

import copy
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.support.deployed import (
    OVERLAYS,
    Document,
    Program,
    documents,
    faults,
    kubectl,
    kustomized,
    named,
    pods,
    programs,
    with_components,
)
from tests.support.locust_runs import ROOT
from tests.support.policy import findings
from vllm_launch.config import load_config

VERSIONS = tuple(f"1.{minor}" for minor in range(30, 37))
SCHEMAS = {
    "ServiceMonitor": "monitors-v1.json",
    "PodMonitor": "monitors-v1.json",
    "LocustTest": "locusttest-v1.json",
}


@pytest.fixture(scope="module", autouse=True)
def _kubectl() -> None:
    kubectl()


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> list[Document]:
    """Every document that any overlay or component yields, each once."""
    folder = tmp_path_factory.mktemp("user")
    built = [item for overlay in OVERLAYS for item in kustomized(f"k8s/overlays/{overlay}")]
    built += with_components(folder / "all", "h100", "wire-clock", "monitoring")
    for file in ("operator/locusttest.yaml", "reader/pod.yaml"):
        built += documents((ROOT / "k8s" / file).read_text())
    return list({json.dumps(item, sort_keys=True): item for item in built}.values())


@pytest.mark.parametrize("version", VERSIONS)
def test_valid_for_kubernetes(everything: list[Document], version: str) -> None:
    checked = [item for item in everything if item["kind"] not in SCHEMAS]
    assert len(checked) > 30
    for item in checked:
        kubernetes_validate.validate(item, version, strict=True)


def test_custom_resources_have_only_fields_of_theirs(everything: list[Document]) -> None:
    checked = [item for item in everything if item["kind"] in SCHEMAS]
    assert {item["kind"] for item in checked} == set(SCHEMAS)
    for item in checked:
        schema = json.loads((Path(__file__).parent / "schemas" / SCHEMAS[item["kind"]]).read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(item, schema)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_overlays_keep_to_the_policy(overlay: str) -> None:
    built = kustomized(f"k8s/overlays/{overlay}")
    assert findings(built) == []
    labels = named(built, "Namespace", "tailgate")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert {item["metadata"]["namespace"] for item in built if item["kind"] != "Namespace"} == {"tailgate"}


def test_the_reader_keeps_to_the_policy() -> None:
    assert findings(documents((ROOT / "k8s/reader/pod.yaml").read_text())) == []


def test_the_wire_clock_relaxes_what_it_needs(tmp_path: Path) -> None:
    built = with_components(tmp_path / "wire", "h100", "wire-clock")
    assert findings(built, allowed_capabilities=["NET_RAW", "SYS_NICE"]) == []
    assert findings(built) == [
        "Deployment worker/worker: asks for NET_RAW, SYS_NICE",
        "Deployment worker/worker: may gain privileges",
    ]
    labels = named(built, "Namespace", "tailgate")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    worker = next(program for program in programs(built) if program.who == "Deployment worker/worker")
    assert worker.argv[:3] == ("python-wire", "-m", "locust")


def _demo(change: dict[str, Any] | None = None, **container: Any) -> list[Document]:
    built = copy.deepcopy(list(kustomized("k8s/overlays/demo")))
    spec = named(built, "Deployment", "worker")["spec"]["template"]["spec"]
    spec |= change or {}
    spec["containers"][0] |= container
    return built


@pytest.mark.parametrize(
    ("built", "told"),
    [
        ({"change": {"securityContext": {}}}, "may run as root"),
        ({"change": {"hostNetwork": True}}, "shares a namespace of its host"),
        ({"change": {"volumes": [{"name": "journals", "hostPath": {"path": "/"}}]}}, "mounts a path of its host"),
        ({"change": {"volumes": [{"name": "journals", "emptyDir": {}}]}}, "may fill its node"),
        ({"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}}, "asks for SYS_ADMIN"),
        ({"securityContext": {}}, "keeps capabilities"),
        ({"resources": {"limits": {"cpu": "1"}}}, "no requests for cpu, memory, ephemeral-storage"),
        ({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "2"}}}, "requests are not its limits"),
        ({"env": [{"name": "OPENAI_API_KEY", "value": "x"}]}, "the value of OPENAI_API_KEY stands in the manifest"),
        ({"env": [{"name": "ANY", "value": "hf_abcdefgh1234"}]}, "looks like a secret"),
        ({"image": "tailgate:latest"}, "is of no fixed version"),
        ({"args": ["-f", "locustfiles/chat.py", "--workr"]}, "locust has no option --workr"),
        ({"args": ["-f", "locustfiles/chatt.py"]}, "no file locustfiles/chatt.py"),
        ({"env": [{"name": "LOCUST_REQUEST_RAT", "value": "1"}]}, "locust reads no variable LOCUST_REQUEST_RAT"),
        ({"command": ["python", "-m", "exporters"], "args": ["compar"]}, "there is no 'compar'"),
        ({"command": ["bash", "-c"]}, "runs bash"),
    ],
)
def test_the_policy_finds(built: dict[str, Any], told: str) -> None:
    assert any(told in fault for fault in findings(_demo(**built)))


def test_the_policy_finds_an_open_network_and_wrong_vllm_flags() -> None:
    built = [item for item in copy.deepcopy(list(kustomized("k8s/overlays/h100"))) if item["kind"] != "NetworkPolicy"]
    named(built, "Service", "master")["spec"]["type"] = "LoadBalancer"
    named(built, "Deployment", "engine")["spec"]["template"]["spec"]["containers"][0]["args"] += ["--enable-metrics"]
    found = findings(built)
    assert "no network policy closes what is not named" in found
    assert "Service master: is reached from outside the cluster" in found
    assert "Deployment engine/engine: vLLM 0.32 has no flag --enable-metrics" in found


def test_ports_services_and_policies_meet() -> None:
    """A service's named port exists in the pods it selects, and what may pass the network is what listens there."""
    for overlay in OVERLAYS:
        built = kustomized(f"k8s/overlays/{overlay}")
        templates = [
            (item["spec"]["template"]["metadata"]["labels"], item["spec"]["template"]["spec"])
            for item in built
            if item["kind"] in ("Deployment", "Job")
        ]
        numbers = set()
        for item in built:
            if item["kind"] != "Service":
                continue
            chosen = [spec for labels, spec in templates if item["spec"]["selector"].items() <= labels.items()]
            assert chosen, item["metadata"]["name"]
            for spec in chosen:
                ports = {port["name"]: port["containerPort"] for c in spec["containers"] for port in c.get("ports", ())}
                for port in item["spec"]["ports"]:
                    assert ports[port["targetPort"]] == port["port"]
                    numbers.add(port["port"])
        let_in = {
            port["port"]
            for item in built
            if item["kind"] == "NetworkPolicy"
            for rule in item["spec"].get("ingress", ())
            for port in rule["ports"]
        }
        assert numbers <= let_in, overlay


def test_every_host_that_is_named_is_a_service() -> None:
    for overlay in OVERLAYS:
        built = kustomized(f"k8s/overlays/{overlay}")
        services = {item["metadata"]["name"] for item in built if item["kind"] == "Service"}
        for program in programs(built):
            words = [*program.argv, *program.env.values()]
            hosts = {word.split("/")[2].split(":")[0] for word in words if word.startswith("http://")}
            hosts -= {"engine"} if overlay == "ab" else set()
            if "--master-host" in program.argv:
                hosts.add(program.argv[program.argv.index("--master-host") + 1])
            assert hosts <= services, program.who


def test_ab_compares_the_configs_that_it_names() -> None:
    built = kustomized("k8s/overlays/ab")
    for side in ("baseline", "tuned"):
        config = load_config(f"h100-llama-8b-{side}")
        argv = next(p.argv for p in programs(built) if p.who == f"Deployment engine-{side}/engine")
        given = dict(zip(argv[2::2], argv[3::2], strict=True))
        assert given.pop("--model") == config.model
        assert (given.pop("--host"), given.pop("--port")) == ("0.0.0.0", "8000")
        assert given == {f"--{name}": str(value) for name, value in config.args.items()}
    specs = [
        named(built, "Deployment", f"engine-{side}")["spec"]["template"]["spec"]["nodeSelector"]
        for side in ("baseline", "tuned")
    ]
    assert specs[0] == specs[1]
    job = named(built, "Job", "ab")["spec"]["template"]["spec"]
    legs = [item for item in job["initContainers"] if item["name"].startswith("leg")]
    hosts = [leg["args"][leg["args"].index("--host") + 1] for leg in legs]
    assert [host.split("-")[1].split(":")[0] for host in hosts] == ["baseline", "tuned", "tuned", "baseline"]
    written = [leg["args"][leg["args"].index("--results") + 1].removeprefix("/app/") for leg in legs]
    for container in job["containers"]:
        words = container["args"]
        read = words[words.index("--base") + 1 : words.index("--run")] + words[words.index("--run") + 1 :][:2]
        assert sorted(read) == sorted(written)


def test_the_job_waits_for_the_workers_there_are() -> None:
    built = kustomized("k8s/overlays/headless")
    job = named(built, "Job", "load-test")["spec"]
    argv = job["template"]["spec"]["containers"][0]["args"]
    assert int(argv[argv.index("--expect-workers") + 1]) == named(built, "Deployment", "worker")["spec"]["replicas"]
    assert job["backoffLimit"] == 0
    assert job["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [1, 2, 3, 4]
    volumes = {volume["name"]: volume for volume in job["template"]["spec"]["volumes"]}
    mount = next(m for m in job["template"]["spec"]["containers"][0]["volumeMounts"] if m["name"] == "results")
    assert argv[argv.index("--results") + 1].startswith(mount["mountPath"])
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] == "results"


def test_workers_spread_over_nodes_and_vllm_has_its_gpu_memory_and_minutes() -> None:
    built = kustomized("k8s/overlays/h100")
    specs = dict(pods(built))
    worker = named(built, "Deployment", "worker")["spec"]
    spread = worker["template"]["spec"]["topologySpreadConstraints"][0]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["labelSelector"]["matchLabels"].items() <= worker["template"]["metadata"]["labels"].items()
    engine = specs["Deployment engine"]["containers"][0]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "1"
    probe = engine["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1200
    assert "/dev/shm" in {mount["mountPath"] for mount in engine["volumeMounts"]}
    token = next(item for item in engine["env"] if item["name"] == "HF_TOKEN")
    assert token["valueFrom"]["secretKeyRef"]["name"] == "hf-token"


def test_the_operators_fleet_is_started_as_locust_would_take_it(tmp_path: Path) -> None:
    spec = documents((ROOT / "k8s/operator/locusttest.yaml").read_text())[0]["spec"]
    for role in ("--master", "--worker"):
        argv = ("locust", role, *shlex.split(spec["args"]))
        assert faults(Program(f"operator {role}", spec["image"], argv, {})) == []
    locustfile = tmp_path / "locustfile.py"
    locustfile.write_text(spec["locustfile"]["content"])
    command = [sys.executable, "-m", "locust", "-f", str(locustfile), "--list"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "ChatUser" in told.stdout
