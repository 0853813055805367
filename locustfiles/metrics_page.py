"""The run that goes, for whoever looks: `/metrics` for Prometheus, and the numbers behind the web UI's tab."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flask import Response
from gevent.pywsgi import WSGIServer
from locust.web import WebUI

from exporters.compare import Comparison, Measurement
from exporters.live import LiveRun, Worker
from exporters.prometheus import RunMetrics
from locustfiles.messages import Introduction, Report


class MetricsPage:
    """The metrics of the current run, then of the last one; empty before the first."""

    def __init__(self) -> None:
        self.live: LiveRun | None = None
        self.directory: Path | None = None
        self._page: RunMetrics | None = None
        self._server: WSGIServer | None = None
        self.shown = False
        """Whether anyone can look; where nobody can, workers need not count."""

    def mount(self, web_ui: WebUI, base_path: str) -> None:
        """Adds the page to Locust's web server, which must not have started yet."""
        assert web_ui.app is not None, "made by its constructor"
        self.shown = True

        def metrics() -> Response:
            if self._page is None:
                return Response("", content_type="text/plain")
            page, kind = self._page.exposition()
            return Response(page, content_type=kind)

        web_ui.app.add_url_rule(f"{base_path}/metrics", "tailgate-metrics", metrics)

    def serve(self, port: int) -> None:
        """Serves the page on a port of its own, on all interfaces, until this process ends."""
        self.shown = True
        self._server = WSGIServer(("", port), self._answer, log=None)
        self._server.start()

    def begin(
        self,
        meta: Mapping[str, Any],
        directory: Path,
        crew: Mapping[str, Introduction],
        lost: Callable[[], Mapping[str, str]],
        baseline: Sequence[Measurement] = (),
    ) -> None:
        """Another run: its metrics replace the last one's. `lost` tells which workers are gone, and why."""
        live = LiveRun(meta)
        live.workers = {name: Worker(host=member.host, clock=member.clock) for name, member in crew.items()}
        live.lost = lost
        self.live, self.directory, self._page = live, directory, RunMetrics(live)
        if baseline:
            self._page.set_baseline(baseline)

    def observe(self, report: Report) -> None:
        """What a worker reports."""
        live = self.live
        if live is None:
            return
        worker = live.workers.setdefault(report.worker, Worker(host=report.health.host or ""))
        worker.in_flight, worker.health = report.in_flight, report.health
        live.add(report.counted)
        live.tick()

    def see_engine(self, sample: Mapping[str, Any]) -> None:
        """A sample of the engine's own metrics."""
        if self.live is not None:
            self.live.see_engine(sample)

    def end(self, summary: Mapping[str, Any], comparison: Comparison | None) -> None:
        """The run is over and has been judged."""
        if self.live is not None:
            self.live.finish(summary, comparison)

    def _answer(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if self._page is None:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b""]
        return self._page.wsgi_app(environ, start_response)
