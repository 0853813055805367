"""Where people look: the tab in a real browser, a real Prometheus, and six places that must tell the same figures."""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import signal
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import exporters
from exporters.histogram import RELATIVE_ERROR
from exporters.quantiles import LEVELS
from exporters.record import decode_records, encode_records
from exporters.run import Run
from exporters.wording import milliseconds
from locustfiles.console import summary_lines
from tests.support import prometheus_server
from tests.support.browser import chromium, complaints, in_shadow, prefer, resize
from tests.support.locust_runs import ROOT, end, free_port, start
from tests.support.openai_server import serve
from tests.support.waiting import eventually

# The whole story stands in one fixture, and a busy machine takes its time over it.
pytestmark = pytest.mark.timeout(420)

RULES = Path(exporters.__file__).parent / "alerts" / "tailgate.rules.yml"
CONSOLE = ("p50", "p95", "p99", "p999", "max")
DASHBOARD = Path(exporters.__file__).parent / "grafana" / "dashboards" / "tailgate.json"


@dataclass
class Seen:
    """What was seen of two runs that a person watched."""

    port: int
    directory: Path
    downloads: Path
    notes: dict[str, Any] = field(default_factory=dict)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as response:
            return str(response.read().decode())

    def data(self, cls: str = "") -> dict[str, Any]:
        return dict(json.loads(self.get(f"/tail-latency/data?{urllib.parse.urlencode({'class': cls})}")))

    def post(self, path: str, **form: object) -> None:
        data = urllib.parse.urlencode(form).encode()
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", data, timeout=90).close()


def faster(source: Path, target: Path) -> None:
    """A copy of a run whose latencies are a tenth as long, so that no busy machine can make up for it."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("journals"))
    records = list(decode_records(source / "requests.jsonl"))
    for record in records:
        for name in ("first_ns", "last_ns", "end_ns"):
            if (at := getattr(record, name)) is not None:
                setattr(record, name, record.sent_ns + (at - record.sent_ns) // 10)
        record.gaps_ns = [gap // 10 for gap in record.gaps_ns]
    (target / "requests.jsonl").write_bytes(encode_records(records))
    # What the workers measured of themselves must not make a baseline of no use where the machine was busy.
    meta = json.loads((source / "run.json").read_text())
    (target / "run.json").write_text(json.dumps(meta | {"workers": {}}))


def count_shown(browser: Any) -> int:
    """The first count in the tab's table."""
    text = in_shadow(browser, "root.querySelector('.figures tbody td.n')?.textContent")
    return int(str(text or 0).replace(",", ""))


@pytest.fixture(scope="module")
def seen(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    """Two runs watched from the form to the downloads: master, two workers, a browser, a Prometheus."""
    home = tmp_path_factory.mktemp("screens")
    downloads = home / "downloads"
    downloads.mkdir()
    seen, workers_port = Seen(free_port(), home / "run", downloads), free_port()
    with serve("--fail-every", "50") as server:
        process = start(
            *(
                "-f",
                ROOT / "locustfiles" / "chat.py",
                "--web-host",
                "127.0.0.1",
                "--web-port",
                seen.port,
                "--processes",
                2,
            ),
            *("--workload", small, "--results", seen.directory, "--warmup", 0, "--seed", 7, "-H", server.url),
            *("-u", 12, "-r", 100, "--slo", "ttft_p95<10s", "--label", "watched"),
            *("--master-bind-port", workers_port, "--master-port", workers_port),
            # The form may name a baseline below the directory that Locust was started in.
            cwd=home,
        )
        try:
            eventually(lambda: _workers(seen) == 2)
            with prometheus_server.serve(home / "prometheus", f"127.0.0.1:{seen.port}", RULES) as prometheus:
                with chromium(downloads) as browser:
                    _first_run(seen, browser)
                    faster(seen.directory, home / "baseline")
                    _second_run(seen, browser, home / "baseline", server.url, small)
                _scraped(seen, prometheus)
            seen.notes["metrics"] = seen.get("/metrics")
            seen.notes["data"] = {cls: seen.data(cls) for cls in ("", "short", "long")}
            yield seen
        finally:
            os.kill(process.pid, signal.SIGTERM)
            assert "Traceback" not in end(process, seen.directory).err


def _workers(seen: Seen) -> int:
    try:
        return int(json.loads(seen.get("/worker-count"))["worker_count"])
    except OSError:
        return 0


def _first_run(seen: Seen, browser: Any) -> None:
    browser.get(f"http://127.0.0.1:{seen.port}/")
    eventually(lambda: browser.find_elements(By.XPATH, "//button[normalize-space()='Start']"))[0].click()
    tab = eventually(lambda: browser.find_elements(By.XPATH, "//*[@role='tab'][.='Tail latency']"))[0]
    # From the keyboard alone: the chosen tab has the focus's place, arrows go along, Enter chooses.
    browser.find_element(By.CSS_SELECTOR, "[role=tab][aria-selected=true]").send_keys(Keys.END)
    assert browser.switch_to.active_element.text.upper() in ("TAIL LATENCY",)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert tab.get_attribute("aria-selected") == "true"
    first = eventually(lambda: count_shown(browser))
    seen.notes["moved"] = (first, eventually(lambda: (n := count_shown(browser)) > first and n))
    seen.notes["live"] = seen.data()
    seen.notes["roles"] = in_shadow(
        browser,
        "[...root.querySelectorAll('svg')].map(s => [s.getAttribute('role'), s.getAttribute('aria-label')])",
    )
    seen.notes["status"] = in_shadow(browser, "root.querySelector('[role=status] .validity').textContent")
    browser.execute_script("localStorage.theme = 'dark'")
    before = count_shown(browser)
    seen.post("/stats/reset")
    browser.refresh()
    eventually(lambda: in_shadow(browser, "root.host.dataset.theme") == "dark")
    seen.notes["after reset"] = (before, eventually(lambda: count_shown(browser)))
    eventually(lambda: len(seen.data()["over_time"]["itl"]) > 1)
    browser.find_elements(By.XPATH, "//button[normalize-space()='Stop']")[0].click()
    eventually(lambda: in_shadow(browser, "/ over$/.test(root.querySelector('.about').textContent)"))
    eventually(lambda: (seen.directory / "report.html").is_file(), timeout_s=120)
    seen.notes["first"] = json.loads((seen.directory / "summary.json").read_text())
    seen.notes["links"] = in_shadow(
        browser, "[...root.querySelectorAll('nav a')].filter(a => !a.hidden).map(a => a.href)"
    )
    seen.notes["complaints"] = complaints(browser)


def _second_run(seen: Seen, browser: Any, baseline: Path, url: str, small: Path) -> None:
    eventually(lambda: json.loads(seen.get("/stats/requests"))["state"] == "stopped")
    form = {"host": url, "workload": small, "baseline": baseline, "warmup": 0, "seed": 7, "request_rate": ""}
    seen.post("/swarm", user_count=12, spawn_rate=100, **form)
    seen.notes["second begins"] = eventually(lambda: (data := seen.data())["baseline"] and data)
    browser.execute_script("localStorage.removeItem('theme')")
    browser.get(f"http://127.0.0.1:{seen.port}/tail-latency/")
    for name, width, scheme in (("narrow", 390, "dark"), ("wide", 1280, "light")):
        resize(browser, width, 900)
        prefer(browser, scheme)
        browser.refresh()
        eventually(lambda: count_shown(browser))
        script = "return document.documentElement.scrollWidth <= innerWidth"
        seen.notes[name] = (browser.execute_script(script), in_shadow(browser, "root.host.dataset.theme"))
    eventually(lambda: seen.data()["requests"]["ok"] > 200, timeout_s=100)
    seen.post("/stop")
    eventually(lambda: seen.data()["run"]["over"])
    eventually(lambda: (seen.directory / "report.html").is_file(), timeout_s=120)
    eventually(lambda: in_shadow(browser, "/ over$/.test(root.querySelector('.about').textContent)"))
    cells = "[...r.children].map(c => c.firstChild?.textContent ?? '')"
    seen.notes["table"] = in_shadow(browser, f"[...root.querySelectorAll('.figures tbody tr')].map(r => {cells})")
    seen.notes["verdict"] = in_shadow(browser, "root.querySelector('.verdict').textContent")
    browser.get(f"http://127.0.0.1:{seen.port}/?tab=reports")
    for words in ("Download requests CSV", "Download each request with its latencies (Tailgate CSV)"):
        eventually(lambda words=words: browser.find_elements(By.LINK_TEXT, words))[0].click()
    eventually(lambda: len(list(seen.downloads.glob("*.csv"))) == 2)
    link = browser.find_element(By.LINK_TEXT, "Tailgate report (HTML)")
    browser.get(str(link.get_attribute("href")))
    seen.notes["report heading"] = browser.find_element(By.TAG_NAME, "h1").text
    seen.notes["complaints"] += complaints(browser)


def _scraped(seen: Seen, prometheus: prometheus_server.Prometheus) -> None:
    alert = "TailgateRegression" if seen.data()["validity"]["word"] == "valid" else "TailgateMeasurementInvalid"
    seen.notes["alert"] = prometheus.wait_for(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    seen.notes["unhealthy"] = [rule for rule in rules if rule["health"] != "ok"]
    seen.notes["scraped"] = prometheus.values('{__name__=~"tailgate_.*"}')
    seen.notes["recorded"] = {
        name: prometheus.values(f"max_over_time({name}[2m])")
        for name in ("tailgate:ttft_seconds:p99_1m", "tailgate:itl_seconds:p99_1m", "tailgate:output_tokens:rate_1m")
    }
    chosen = {"$workload": ".*", "$label": ".*", "$class": ".*", "$metric": "itl_p99", "$__rate_interval": "1m"}
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in chosen.items():
                expression = expression.replace(name, value)
            prometheus.values(expression)


def test_figures_move_and_a_reset_of_locusts_table_leaves_them(seen: Seen) -> None:
    first, later = seen.notes["moved"]
    assert 0 < first < later
    before, after = seen.notes["after reset"]
    assert after >= before
    assert seen.notes["status"] in ("Valid so far", "Not valid")
    live = seen.notes["live"]
    assert live["run"]["over"] is False
    assert [worker["name"] for worker in live["workers"]] == ["worker-0", "worker-1"]
    assert set(live["classes"]) == {"short", "long"}
    assert live["requests"]["in_flight"] > 0
    assert live["distribution"]["itl"]["bins"]


def test_the_tab_can_be_heard_and_asks_no_other_machine(seen: Seen) -> None:
    assert len(seen.notes["roles"]) == 4
    assert all((role == "img" and "TTFT" in label) or "ITL" in label for role, label in seen.notes["roles"])
    assert [entry for entry in seen.notes["complaints"] if "favicon" not in entry] == []
    assert all(link.startswith(f"http://127.0.0.1:{seen.port}/tail-latency/") for link in seen.notes["links"])
    assert len(seen.notes["links"]) == 4
    assets = [seen.get(f"/tail-latency/{name}") for name in ("", "tab.js", "charts.js", "tab.css")]
    assert not [url for text in assets for url in re.findall(r"https?://[^\"'` )]+", text) if "w3.org" not in url]


def test_it_is_dark_where_the_page_is_and_fits_a_narrow_screen(seen: Seen) -> None:
    assert seen.notes["narrow"] == [True, "dark"] or seen.notes["narrow"] == (True, "dark")
    assert tuple(seen.notes["wide"]) == (True, "light")


def test_a_second_run_begins_anew_beside_its_baseline(seen: Seen) -> None:
    began = seen.notes["second begins"]
    assert began["baseline"] == {"label": "watched"}
    assert began["requests"]["ok"] < seen.notes["first"]["requests"]["ok"]
    data = seen.notes["data"][""]
    ttft = next(row for row in data["figures"] if row["class"] == "" and row["metric"] == "ttft")
    assert ttft["p50"]["baseline"] < ttft["p50"]["value"]
    assert seen.notes["verdict"].startswith("Against the baseline: ")
    if data["validity"]["word"] == "valid":
        assert data["verdict"]["word"] == "worse"


def test_files_are_on_the_download_page(seen: Seen) -> None:
    names = sorted(path.name for path in seen.downloads.glob("*.csv"))
    assert names[0].startswith("Locust_")
    own = next(path for path in seen.downloads.glob("run-requests.csv"))
    with own.open() as file:
        lines = list(csv.DictReader(file))
    summary = json.loads((seen.directory / "summary.json").read_text())
    assert sum(line["outcome"] == "ok" and line["in_window"] == "1" for line in lines) == summary["requests"]["ok"]
    assert "watched" in seen.notes["report heading"] or "candidate" in seen.notes["report heading"]


def test_a_real_prometheus_takes_it_all_and_its_alert_fires(seen: Seen) -> None:
    assert seen.notes["alert"]
    assert seen.notes["unhealthy"] == []
    labels, _ = seen.notes["alert"][0]
    assert labels["label"] == "watched"
    assert all(values and 0 < values[0][1] < 1e6 for values in seen.notes["recorded"].values()), seen.notes["recorded"]
    ok = [v for labels, v in seen.notes["scraped"] if labels["__name__"] == "tailgate_requests_total"]
    assert sum(ok) > 0


class _Cells(HTMLParser):
    """Every table row of a page, as its cells' text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("th", "td") and self.rows:
            self.rows[-1].append("")
            self._open = True
        elif tag in ("svg", "small"):
            self._open = False

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def test_six_places_tell_the_same_figures(seen: Seen) -> None:
    """Prometheus and summary.json to the last digit; tab, console and report to four; Locust's CSV to its rank."""
    run = Run.load(seen.directory)
    summary = json.loads((seen.directory / "summary.json").read_text())
    samples = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(seen.notes["metrics"])
        for sample in family.samples
    }
    common = {"workload": "small", "label": "watched", "simulated": "true"}
    shown = {}
    for cls, title, count, *tails in seen.notes["table"]:
        shown[(cls, title)] = (count, tails)
    console = [re.split(r"\s{2,}", line) for line in summary_lines(summary, run.facts.meta, seen.directory)]
    report = _Cells((seen.directory / "report.html").read_text()).rows
    with next(path for path in seen.downloads.glob("Locust_*.csv")).open() as file:
        locust = {(row["Type"], row["Name"]): row for row in csv.DictReader(file)}

    def prometheus(name: str, **labels: str) -> float:
        return samples[(f"tailgate_{name}", frozenset((common | labels).items()))]

    for cls in ("", "short", "long"):
        part = summary if not cls else summary["classes"][cls]
        figures = {row["metric"]: row for row in seen.notes["data"][cls]["figures"] if row["class"] == cls}
        for metric, title in (("ttft", "TTFT"), ("itl", "ITL"), ("tpot", "TPOT"), ("e2e", "E2E")):
            told = part["metrics"][f"{metric}_s"]
            row = figures[metric]
            assert row["count"] == told["count"] > 0
            count, tails = shown[(cls or "all", title)]
            assert count == f"{told['count']:,}"
            for level, text in zip(("p50", "p95", "p99"), tails, strict=True):
                value = told[level]
                assert row[level]["value"] == value
                assert text == ("too few" if value is None else milliseconds(value))
            for level, share in LEVELS.items():
                key = {"request_class": cls, "metric": metric, "quantile": f"{share:g}"}
                if told[level] is None:
                    assert ("tailgate_quantile_seconds", frozenset((common | key).items())) not in samples
                else:
                    assert prometheus("quantile_seconds", **key) == told[level]
            if not cls:
                four = ["too few" if (v := told[level]) is None else milliseconds(v) for level in CONSOLE]
                assert [title, str(told["count"]), *four] in console
                continue
            assert prometheus(f"{metric}_seconds_count", request_class=cls) == told["count"]
            total = prometheus(f"{metric}_seconds_sum", request_class=cls)
            assert total == pytest.approx(told["mean"] * told["count"])
            # Locust's CSV: the observation of rank n * p, as the midpoint of its bucket, in ms to the µs.
            mine = locust[("POST", cls) if metric == "e2e" else (title, cls)]
            chosen = run.columns.in_window & (run.columns.class_code == run.columns.classes.index(cls))
            ordered = np.sort(run.columns.values(f"{metric}_s", chosen)) * 1e3
            failures = part["requests"]["failed"] if metric == "e2e" else 0
            assert int(mine["Request Count"]) == told["count"] + failures
            assert int(mine["Failure Count"]) == failures
            for percent in (50, 90, 95, 99):
                at_rank = ordered[min(int((told["count"] + failures) * percent / 100), len(ordered) - 1)]
                if not failures:
                    assert float(mine[f"{percent}%"]) == pytest.approx(at_rank, rel=RELATIVE_ERROR, abs=0.001)

    requests = summary["requests"]
    data = seen.notes["data"][""]
    outcomes: dict[str, float] = {}
    for (name, labels), value in samples.items():
        if name == "tailgate_requests_total":
            outcome = dict(labels)["outcome"]
            outcomes[outcome] = outcomes.get(outcome, 0) + value
    for outcome in ("ok", "failed"):
        assert outcomes[outcome] == requests[outcome] == data["requests"][outcome] > 0
    assert int(locust[("", "Aggregated")]["Request Count"]) == requests["ok"] + requests["failed"]
    assert int(locust[("", "Aggregated")]["Failure Count"]) == requests["failed"]
    assert prometheus("goodput_ratio", request_class="") == summary["goodput"]["share"] == data["goodput"]["share"]
    assert data["rates"]["output_tokens_per_s"] == summary["throughput"]["output_tokens_per_s"]

    counted = f"{requests['sent']} = {requests['ok']} + {requests['failed']} + {requests['cancelled']}"
    assert any(counted in row for row in report)
    by_class = {row[0]: row for row in report if row[0] in ("short", "long") and len(row) == 9}
    if summary["valid"]:
        for name, metric in (("TTFT", "ttft_s"), ("ITL", "itl_s"), ("TPOT", "tpot_s"), ("E2E", "e2e_s")):
            for level in ("p50", "p90", "p95", "p99"):
                value = summary["metrics"][metric][level]
                row = next(row for row in report if row and row[0] == f"{name} {level}")
                assert row[2] == ("too few" if value is None else f"{milliseconds(value)} ms")
    assert by_class


def test_a_change_from_nothing_is_said_in_words(tmp_path: Path) -> None:
    """Events that come together have no time between them, in a baseline too."""
    charts = base64.b64encode((Path(exporters.__file__).parent / "tab" / "charts.js").read_bytes()).decode()
    script = (
        "const [charts, pairs, done] = arguments;"
        "import('data:text/javascript;base64,' + charts).then(m => done(pairs.map(([a, b]) => m.change(a, b))));"
    )
    with chromium(tmp_path) as browser:
        browser.get("about:blank")
        said = browser.execute_async_script(script, charts, [(0.1, 0), (0, 0), (0.1, 0.05), (0.9, 1)])
    assert said == ["from none", "+0.0\u00a0%", "× 2.00", "−10.0\u00a0%"]
