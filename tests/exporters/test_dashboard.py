"""Alert rules by promtool's own tests, and a dashboard whose every query names metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import exporters
from exporters.compare import compare
from exporters.live import Worker
from exporters.prometheus import RunMetrics
from exporters.quality import WorkerHealth
from tests.support.require import need
from tests.support.runs import queueing_records, store

HERE = Path(exporters.__file__).parent
RULES = HERE / "alerts" / "tailgate.rules.yml"
DASHBOARD = HERE / "grafana" / "dashboards" / "tailgate.json"
CAPTURED = Path(__file__).parents[1] / "simulated" / "captured" / "metrics_samples.txt"
NAME = re.compile(r"\b(?:tailgate|vllm):?[a-zA-Z_:0-9]*")


def queries() -> list[tuple[str, str]]:
    """(panel, expression) of the whole dashboard, its variables and annotations included."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    found += [(variable["name"], variable["definition"]) for variable in dashboard["templating"]["list"][1:]]
    assert all(panel.get("targets") or panel["type"] == "row" for panel in dashboard["panels"])
    return found


def recorded() -> set[str]:
    """Names that the recording rules make."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["record"] for group in groups for rule in group["rules"] if "record" in rule}


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Every name on the page of a run that is over and was compared."""
    directory = tmp_path_factory.mktemp("runs")
    base = store(directory / "a", queueing_records(1, seconds=20), slo="ttft<1s", seconds=20.0)
    run = store(directory / "b", queueing_records(1, seconds=20), slo="ttft<1s", seconds=20.0)
    metrics = RunMetrics.of(run)
    comparison = compare([base], [run])
    metrics.set_comparison(comparison)
    from exporters.compare import Measurement

    metrics.set_baseline([Measurement.of(base)])
    metrics.live.workers["w0"] = Worker(health=WorkerHealth(cpu_share=0.1, loop_lag_p99_s=0.001))
    page = metrics.exposition()[0].decode()
    return {match[1] for line in page.splitlines() if (match := re.match(r"(tailgate_\w+)[{ ]", line))}


@pytest.mark.parametrize(("panel", "expr"), queries())
def test_a_query_names_metrics_that_exist(panel: str, expr: str, ours: set[str]) -> None:
    vllm = {match[1] for line in CAPTURED.read_text().splitlines() if (match := re.match(r"(vllm:\w+)", line))}
    names = set(NAME.findall(expr))
    assert names, panel
    assert names <= ours | recorded() | vllm, f"{panel}: {names - ours - recorded() - vllm}"


def test_rules_name_metrics_that_exist(ours: set[str]) -> None:
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        assert set(NAME.findall(rule["expr"])) <= ours | recorded(), rule["expr"]
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    assert alerts == {
        "TailgateTtftTailSlow", "TailgateThroughputDrop", "TailgateRegression", "TailgateMeasurementInvalid"
    }  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ("check", "rules", RULES),
        ("check", "config", HERE / "alerts" / "prometheus.yml"),
        ("test", "rules", HERE / "alerts" / "tailgate.rules.test.yml"),
    ],
    ids=lambda words: " ".join(map(str, words[:2])),
)
def test_promtool_agrees(words: tuple[Any, ...]) -> None:
    promtool = shutil.which("promtool")
    need(promtool, "promtool, of Debian's package prometheus")
    ended = subprocess.run([promtool, *map(str, words)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_what_grafana_is_provisioned_with_is_whole() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    identities = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identities)) == len(identities)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
    provisioning = HERE / "grafana" / "provisioning"
    for name in ("datasources/prometheus.yml", "dashboards/tailgate.yml"):
        assert yaml.safe_load((provisioning / name).read_text())["apiVersion"] == 1
