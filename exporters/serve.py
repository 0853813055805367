"""A stored run's metrics for Prometheus, served until the process is ended."""

from __future__ import annotations

from collections.abc import Callable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from exporters.prometheus import RunMetrics
from tailgate.addresses import family_of, url_of
from tailgate.exits import BadInput


def serve(metrics: RunMetrics, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serves `/metrics` on `host`:`port` (0 takes a free one); `ready` hears the address. Raises `BadInput`."""
    try:
        server = make_server(host, port, metrics.wsgi_app, _Server, _Silent)
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"{host} port {port}: {reason}", "give another with --port (0: a free one)") from None
    with server:
        ready(f"{url_of(host, server.server_port)}/metrics")
        server.serve_forever()


class _Server(WSGIServer):
    """Listens at an IPv6 address too."""

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self.address_family = family_of(address[0])
        super().__init__(address, handler)


class _Silent(WSGIRequestHandler):
    """A scrape every few seconds is nothing to log."""

    def log_message(self, format: str, *arguments: object) -> None:
        pass
