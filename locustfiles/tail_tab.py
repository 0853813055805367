"""The *Tail latency* tab in Locust's web UI, the same as a page of its own, and a run's files on the download page.

Locust's bundle draws tabs of others as plain tables only, so the tab is Locust's and a script of ours fills it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flask import Blueprint, Response, jsonify, request, send_from_directory
from locust.web import WebUI

import exporters.web_tab as web_tab
from exporters.formats import csv_table
from exporters.run import REPORT, SUMMARY, Run
from locustfiles.metrics_page import MetricsPage
from tailgate.exits import BadInput

PATH = "tail-latency"
_ASSETS = Path(web_tab.__file__).parent / "tab"
_SCRIPT = f'<script type="module" src="./{PATH}/tab.js"></script>\n  </body>'


def mount(web_ui: WebUI, base_path: str, metrics: MetricsPage) -> None:
    """Adds all of it to Locust's web server, which must not have started yet."""
    app = web_ui.app
    assert app is not None, "made by its constructor"
    pages = Blueprint("tailgate", __name__, url_prefix=f"{base_path}/{PATH}")

    def state() -> str:
        runner = web_ui.environment.runner
        return str(runner.state) if runner is not None else "missing"

    def over() -> Path | None:
        """The last run's directory, once it is summed up."""
        live = metrics.live
        return metrics.directory if live is not None and live.summary is not None else None

    @pages.get("/data")
    @web_ui.auth_required_if_enabled
    def data() -> Response:
        live = metrics.live
        if live is None:
            return jsonify(web_tab.nothing_yet(state()))
        return jsonify(web_tab.snapshot(live, state(), request.args.get("class", "")))

    @pages.get("/requests.csv")
    @web_ui.auth_required_if_enabled
    def requests_csv() -> Response:
        directory = over()
        if directory is None:
            return _not_yet()
        try:
            text = csv_table.dump(Run.load(directory))
        except BadInput as error:
            return Response(f"{error}\n", 404, content_type="text/plain; charset=utf-8")
        name = f"{directory.name}-requests.csv".replace('"', "")
        return Response(
            text,
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    @pages.get("/<any('report.html', 'summary.json'):name>")
    @web_ui.auth_required_if_enabled
    def written(name: str) -> Any:
        directory = over()
        if directory is None or not (directory / name).is_file():
            return _not_yet()
        return send_from_directory(directory, name, max_age=0)

    @pages.get("/")
    @pages.get("/<any('tab.js', 'tab.css', 'charts.js'):name>")
    @web_ui.auth_required_if_enabled
    def asset(name: str = "page.html") -> Response:
        return send_from_directory(_ASSETS, name, max_age=0)

    def add_script(response: Response) -> Response:
        if request.endpoint == "locust.index" and response.status_code == 200 and response.mimetype == "text/html":
            response.set_data(response.get_data(as_text=True).replace("</body>", _SCRIPT, 1))
        return response

    app.register_blueprint(pages)
    app.after_request(add_script)
    web_ui.template_args["extended_tabs"] = [{"title": "Tail latency", "key": PATH}]
    web_ui.template_args["extended_csv_files"] = [
        {"href": f"./{PATH}/{REPORT}", "title": "Tailgate report (HTML)"},
        {"href": f"./{PATH}/requests.csv", "title": "Download each request with its latencies (Tailgate CSV)"},
        {"href": f"./{PATH}/{SUMMARY}", "title": "Tailgate summary (JSON)"},
    ]


def _not_yet() -> Response:
    return Response("written at the end of the run\n", 404, content_type="text/plain; charset=utf-8")
