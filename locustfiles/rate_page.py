"""A page of Locust's web UI on which an open loop's rate is seen and changed while it runs: `/tailgate/rate`.

GET shows it (JSON where that is asked for); POST with `rate` changes it, requests/s or a trace's pace, 0 for a pause.
"""

from __future__ import annotations

from typing import Any

from flask import Response, jsonify, render_template_string, request
from locust.web import WebUI

from locustfiles.leader import Leader
from tailgate.exits import BadInput

PATH = "/tailgate/rate"
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Rate</title>
<style>body { font: 16px/1.5 sans-serif; margin: 3em auto; max-width: 32em } label, output { display: block }</style>
</head><body><h1>Rate of the fleet</h1>
<p>{{ state.text }}{% if state.rate is not none %}; now {{ "%g" % state.rate }} {{ state.unit }}{% endif %}.</p>
{% if message %}<output role="alert">{{ message }}</output>{% endif %}
{% if state.open %}<form method="post"><label>New rate ({{ state.unit }}, 0 for a pause)
<input name="rate" type="number" step="any" min="0" required autofocus></label>
<button type="submit">Change</button></form>{% endif %}
<p><a href="{{ home }}">Locust</a></p></body></html>"""


def mount(web_ui: WebUI, base_path: str, leader: Leader) -> None:
    """Adds the page to Locust's web server, behind its login where it has one."""
    assert web_ui.app is not None, "made by its constructor"

    def rate() -> Any:
        message, status = "", 200
        if request.method == "POST":
            try:
                leader.change_rate(number(request.form.get("rate", "")))
            except BadInput as error:
                message, status = str(error), 400
        state = leader.rate_state()
        if request.accept_mimetypes.best_match(("text/html", "application/json"), "text/html") != "text/html":
            answer = jsonify(state | {"success": status == 200, "message": message})
            answer.status_code = status
            return answer
        page = render_template_string(_PAGE, state=state, message=message, home=f"{base_path}/")
        return Response(page, status, content_type="text/html; charset=utf-8")

    guarded = web_ui.auth_required_if_enabled(rate)
    web_ui.app.add_url_rule(f"{base_path}{PATH}", "tailgate-rate", guarded, methods=("GET", "POST"))


def number(text: str) -> float:
    """The rate that was typed. Raises `BadInput`."""
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"'{text[:40]}' is not a rate", "give requests per second, 0 for a pause") from None
