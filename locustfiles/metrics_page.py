"""`/metrics` for Prometheus while runs go: on the web UI's port, and on a port of its own with --prometheus-port."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flask import Response
from gevent.pywsgi import WSGIServer
from locust.web import WebUI

from exporters.compare import Comparison
from exporters.prometheus import RunMetrics
from exporters.record import RequestRecord


class MetricsPage:
    """The metrics of the current run, then of the last one; empty before the first."""

    def __init__(self) -> None:
        self._run: RunMetrics | None = None
        self._in_flight: dict[str, int] = {}
        self._server: WSGIServer | None = None

    def mount(self, web_ui: WebUI, base_path: str) -> None:
        """Adds the page to Locust's web server, which must not have started yet."""
        assert web_ui.app is not None, "made by its constructor"

        def metrics() -> Response:
            if self._run is None:
                return Response("", content_type="text/plain")
            page, kind = self._run.exposition()
            return Response(page, content_type=kind)

        web_ui.app.add_url_rule(f"{base_path}/metrics", "tailgate-metrics", metrics)

    def serve(self, port: int) -> None:
        """Serves the page on a port of its own, on all interfaces, until this process ends."""
        self._server = WSGIServer(("", port), self._answer, log=None)
        self._server.start()

    def begin(self, meta: Mapping[str, Any], workers: Iterable[str]) -> None:
        """Another run: its metrics replace the last one's."""
        self._run = RunMetrics(meta)
        self._in_flight = dict.fromkeys(workers, 0)
        self._run.set_state(in_flight=0, workers=len(self._in_flight))

    def observe(self, worker: str, records: list[RequestRecord], in_flight: int) -> None:
        """What a worker reports."""
        if self._run is not None:
            self._in_flight[worker] = in_flight
            self._run.observe(records)
            self._run.set_state(in_flight=sum(self._in_flight.values()), workers=len(self._in_flight))

    def end(self, valid: bool, comparison: Comparison | None) -> None:
        """The run is over and has been judged."""
        if self._run is not None:
            self._run.set_state(in_flight=0, valid=valid)
            if comparison is not None:
                self._run.set_comparison(comparison)

    def _answer(self, environ: Mapping[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        if self._run is None:
            start_response("200 OK", [("Content-Type", "text/plain")])
            return [b""]
        return self._run.wsgi_app(environ, start_response)
