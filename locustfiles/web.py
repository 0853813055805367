"""Locust's web UI told why a run cannot start: its answer to the Start button waits for the run's own yes or no."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gevent
from flask import jsonify, request
from gevent.event import AsyncResult
from locust.runners import STATE_RUNNING, STATE_SPAWNING, MasterRunner
from locust.web import WebUI

from tailgate.exits import BadInput

_PATIENCE_S = 150.0
_SWARM = "locust.swarm"


class Admission:
    """Whether the run that was last asked for may start; None means yes, text says why not."""

    def __init__(self) -> None:
        self._answer: AsyncResult = AsyncResult()

    def ask(self) -> None:
        self._answer = AsyncResult()

    def grant(self) -> None:
        self._answer.set(None)

    def refuse(self, reason: str) -> None:
        self._answer.set(reason)

    def wait(self, timeout_s: float) -> str | None:
        """The reason against it. Raises `gevent.Timeout` where nobody decided."""
        return self._answer.get(timeout=timeout_s)


_PATHS = ("workload", "trace", "tokenizer", "results", "baseline", "tls_ca")


def foreign_path(form: Mapping[str, str], began_with: Mapping[str, str]) -> str | None:
    """Why the form may not name the paths that it names; None where it may.

    Whoever reaches the web UI chooses what is in it: a path of theirs is opened only below the directory in which
    Locust was started, or where it is the one that the command line gave.
    """
    here = Path.cwd()
    for name in _PATHS:
        value = form.get(name, "").strip()
        if not value or value == began_with[name]:
            continue
        try:
            inside = (here / Path(value).expanduser()).resolve().is_relative_to(here.resolve())
        except (OSError, RuntimeError, ValueError):
            inside = False
        if not inside:
            flag = f"--{name.replace('_', '-')}"
            return f"{flag}: lies outside the directory that Locust was started in; give it on the command line"
    return None


def announce_starts(web_ui: WebUI, admission: Admission, change_rate: Callable[[str], None]) -> None:
    """Wraps the Start button's request. Locust itself answers yes before it has tried.

    While a run goes on the same request edits it; a `request_rate` in it is then a live change of the rate.
    """
    assert web_ui.app is not None, "made by its constructor"
    start = web_ui.app.view_functions[_SWARM]
    # As text: the form writes into the same options.
    options = web_ui.environment.parsed_options
    began_with = {name: str(getattr(options, name, None) or "") for name in _PATHS}

    @web_ui.auth_required_if_enabled
    def swarm() -> Any:
        if fault := foreign_path(request.form, began_with):
            return jsonify({"success": False, "message": fault})
        runner = web_ui.environment.runner
        assert runner is not None, "there is one before a web UI"
        running = runner.state in (STATE_RUNNING, STATE_SPAWNING)
        nobody = isinstance(runner, MasterRunner) and runner.worker_count == 0
        admission.ask()
        rate = request.form.get("request_rate")
        if running and rate and rate != str(getattr(web_ui.environment.parsed_options, "request_rate", None)):
            try:
                change_rate(rate)
            except BadInput as error:
                return jsonify({"success": False, "message": str(error), "host": web_ui.environment.host})
        response = start()
        answer = response.get_json(silent=True) if hasattr(response, "get_json") else None
        if running or nobody or not answer or not answer.get("success"):
            return response
        try:
            reason = admission.wait(_PATIENCE_S)
        except gevent.Timeout:
            return response
        return response if reason is None else jsonify(answer | {"success": False, "message": reason})

    web_ui.app.view_functions[_SWARM] = swarm
