"""A real Prometheus server that scrapes one address every second, with our rules and none of their waiting times."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.support.locust_runs import free_port
from tests.support.require import need


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        """`data` of one answer of its API."""
        url = f"{self._address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            answer = json.load(response)
        assert answer["status"] == "success", answer
        return answer["data"]

    def values(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """What a query comes to now."""
        return [(one["metric"], float(one["value"][1])) for one in self.get("query", query=expression)["result"]]

    def wait_for(self, expression: str, timeout_s: float = 30) -> list[tuple[dict[str, str], float]]:
        """Until the query comes to something."""
        deadline = time.monotonic() + timeout_s
        while not (found := self.values(expression)):
            assert time.monotonic() < deadline, expression
            time.sleep(0.3)
        return found


@contextmanager
def serve(directory: Path, target: str, rules: Path) -> Iterator[Prometheus]:
    """The server, its files in `directory`, scraping `http://<target>/metrics`."""
    binary = shutil.which("prometheus")
    need(binary, "Debian's package prometheus")
    directory.mkdir()
    groups = yaml.safe_load(rules.read_text())
    for group in groups["groups"]:
        group["interval"] = "1s"
        for rule in group["rules"]:
            rule.pop("for", None)
    (directory / "rules.yml").write_text(yaml.safe_dump(groups))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(directory / "rules.yml")],
        "scrape_configs": [{"job_name": "tailgate", "static_configs": [{"targets": [target]}]}],
    }
    (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        *(str(binary), f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'data'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"),
    ]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).close()
                    break
                except OSError:
                    said = (directory / "log").read_text()
                    assert process.poll() is None, said
                    assert time.monotonic() < deadline, said
                    time.sleep(0.2)
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(timeout=20)
