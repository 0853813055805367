"""A run against a server that echoes the API key and answers in HTML, driven through the web UI behind its login.

No output of it may hold the key, none of its pages the HTML as HTML, and nobody gets in without the password.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any

import pytest

from exporters.report import write_report
from exporters.run import Run
from tests.support.locust_runs import SMALL, end, free_port, start
from tests.support.openai_server import serve

KEY = "sk-tailgate-7f3a9c51d2e84b06"
PASSWORD = "correct horse battery"
MODEL = '<script>alert("model")</script>'
TAG = "<img src=x onerror=alert(1)>"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass
class Visitor:
    """A browser without a screen; `pages` are the bodies of all it was shown."""

    base: str
    cookies: CookieJar = field(default_factory=CookieJar)
    pages: dict[str, bytes] = field(default_factory=dict)

    def ask(self, path: str, **form: object) -> tuple[int, Any, bytes]:
        """(status, headers, body); redirects are not followed."""
        context = ssl._create_unverified_context()
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context),
            urllib.request.HTTPCookieProcessor(self.cookies),
            _NoRedirect(),
        )
        data = urllib.parse.urlencode(form).encode() if form else None
        try:
            with opener.open(f"{self.base}{path}", data, timeout=90) as answer:
                status, headers, body = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            status, headers, body = error.code, error.headers, error.read()
        self.pages[f"{len(self.pages)} {path}"] = body
        return status, headers, body


@dataclass
class Session:
    """What the whole visit left behind."""

    directory: Path
    stranger: Visitor
    visitor: Visitor
    prompts: list[str]
    out: str = ""
    err: str = ""
    closed: dict[str, int] = field(default_factory=dict)
    cookie: str = ""
    wrong: str = ""
    foreign: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    folder = tmp_path_factory.mktemp("visit")
    certificate, key_file = folder / "cert.pem", folder / "cert.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-keyout", str(key_file), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    (folder / "small.yaml").write_text(SMALL)
    port, workers = free_port(), free_port()
    with serve("--key", KEY, "--hostile", "--models", MODEL) as server:
        process = start(
            *("-f", "locustfiles/chat.py", "--processes", 2, "--web-host", "127.0.0.1", "--web-port", port),
            *("--web-login", "--tls-cert", certificate, "--tls-key", key_file, "-H", server.url, "--save-outputs"),
            *("--workload", folder / "small.yaml", "--results", folder / "run", "--logfile", folder / "log"),
            *("--csv", folder / "csv", "--master-bind-port", workers, "--master-port", workers),
            env={"OPENAI_API_KEY": KEY, "TAILGATE_WEB_PASSWORD": PASSWORD},
        )
        base = f"https://127.0.0.1:{port}"
        session = Session(folder, Visitor(base), Visitor(base), [])
        try:
            _play(session, folder)
            session.prompts = [item["prompt"] for item in server.seen()["seen"]]
        finally:
            os.kill(process.pid, signal.SIGTERM)
            ended = end(process, folder, timeout_s=90)
            session.out, session.err = ended.out, ended.err
        yield session


def _play(session: Session, folder: Path) -> None:
    stranger, visitor = session.stranger, session.visitor
    deadline = time.monotonic() + 90
    while True:
        try:
            if stranger.ask("/login")[0] == 200:
                break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    for path in _PATHS:
        session.closed[path] = stranger.ask(path)[0]
    session.closed["POST /swarm"] = stranger.ask("/swarm", user_count=1, spawn_rate=1)[0]
    _, headers, _ = visitor.ask("/login-submit", username="tailgate", password="wrong horse battery")
    session.wrong = headers["Location"]
    _, headers, _ = visitor.ask("/login-submit", username="tailgate", password=PASSWORD)
    session.cookie = headers["Set-Cookie"]
    while json.loads(visitor.ask("/worker-count")[2])["worker_count"] < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    session.foreign = json.loads(visitor.ask("/swarm", user_count=4, spawn_rate=50, workload="/etc/passwd")[2])
    form = {"user_count": 6, "spawn_rate": 50, "num_requests": 45, "warmup": 0, "label": "hostile"}
    started = json.loads(visitor.ask("/swarm", **form)[2])
    assert started["success"], started
    while not (folder / "run" / "summary.json").exists():
        assert time.monotonic() < deadline + 60
        time.sleep(0.2)
    time.sleep(2.2)
    for path in _PATHS:
        visitor.ask(path)
    stranger.ask("/metrics")


_PATHS = (
    *("/", "/stats/requests", "/stats/report", "/stats/failures/csv", "/stats/requests/csv", "/exceptions", "/logs"),
    *("/exceptions/csv", "/tasks", "/tail-latency/", "/tail-latency/data", "/tail-latency/report.html"),
    *("/tail-latency/summary.json", "/tail-latency/requests.csv", "/tailgate/rate"),
)


def test_nobody_enters_without_the_password(visit: Session) -> None:
    assert set(visit.closed.values()) <= {302, 401}, visit.closed
    assert visit.wrong.endswith("/login")
    for attribute in ("Secure", "HttpOnly", "SameSite=Strict"):
        assert attribute in visit.cookie
    shown = {name.split(" ", 1)[1] for name, body in visit.visitor.pages.items() if body}
    assert set(_PATHS) <= shown, "the password opens them"
    assert PASSWORD not in visit.out + visit.err


def test_a_path_from_the_form_is_not_opened(visit: Session) -> None:
    assert visit.foreign["success"] is False
    assert visit.foreign["message"].startswith("--workload: lies outside the directory")
    assert "root:" not in json.dumps(visit.foreign)


def test_no_output_holds_the_key(visit: Session) -> None:
    run = visit.directory / "run"
    requests = json.loads((run / "summary.json").read_text())["requests"]
    assert requests["ok"] > 0
    assert requests["by_error"]["http_400"] > 0, "the errors that echo the key did come"
    assert "Incorrect API key provided: Bearer REDACTED" in (run / "requests.jsonl").read_text()
    assert "REDACTED" in next((run / "outputs").iterdir()).read_text()
    outputs: dict[str, bytes] = {str(path): path.read_bytes() for path in _files(visit.directory)}
    outputs |= {f"page {name}": body for who in (visit.visitor, visit.stranger) for name, body in who.pages.items()}
    outputs |= {"standard output": visit.out.encode(), "standard error": visit.err.encode()}
    assert len(outputs) > 30
    secret = KEY.removeprefix("sk-").encode()
    assert [name for name, content in outputs.items() if secret in content] == []


def _files(directory: Path) -> Iterator[Path]:
    yield from (path for path in directory.rglob("*") if path.is_file() and path.suffix not in (".pem", ".key"))


def test_metrics_reveal_no_prompt(visit: Session) -> None:
    page = next(body for name, body in visit.stranger.pages.items() if name.endswith("/metrics")).decode()
    assert "tailgate_requests_total{" in page
    assert len(visit.prompts) >= 45
    words = {word for prompt in visit.prompts for word in re.findall(r"[A-Za-z]{5,}", prompt)}
    assert len(words) > 20
    values = " ".join(re.findall(r'="([^"]*)"', page))
    assert not {word for word in words if word in values.split()}
    assert TAG not in page


class _Elements(HTMLParser):
    """Counts what would act in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]


def _acting(page: str) -> _Elements:
    found = _Elements()
    found.feed(page)
    return found


def test_hostile_text_stays_text(visit: Session) -> None:
    pages = {name: body.decode() for name, body in visit.visitor.pages.items()}
    shown = [body for name, body in pages.items() if body.lstrip().lower().startswith("<!doctype html")]
    assert len(shown) >= 3
    for page in shown:
        assert _acting(page).handlers == []
        assert MODEL not in page
        assert TAG not in page
    # The report shows the model's name, escaped.
    report = (visit.directory / "run" / "report.html").read_text()
    assert "&lt;script&gt;alert" in report


def test_a_report_of_hostile_names_acts_no_more_than_another(visit: Session, tmp_path: Path) -> None:
    tame = tmp_path / "tame"
    shutil.copytree(visit.directory / "run", tame)
    meta = json.loads((tame / "run.json").read_text())
    hostile = {"model": MODEL, "label": TAG, "target": f"http://x/{TAG}", "command": TAG, "argv": [TAG], "notes": [TAG]}
    counts = []
    for changes in ({}, hostile | {"workload": meta["workload"] | {"name": MODEL, "description": TAG}}):
        (tame / "run.json").write_text(json.dumps(meta | changes))
        file = tmp_path / f"{len(counts)}.html"
        write_report(file, [Run.load(tame)])
        found = _acting(file.read_text())
        assert found.handlers == []
        counts.append(found.scripts)
    assert counts[0] == counts[1]
