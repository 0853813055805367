"""A password before the web UI: Locust's own --web-login, with one user whose password comes from the environment.

TAILGATE_WEB_PASSWORD, or TAILGATE_WEB_PASSWORD_FILE with the path of a file that holds it (a mounted Secret), switches
it on; TAILGATE_WEB_USER names the user (default: tailgate). Without them --web-login is left to whoever's locustfile
sets up a login of its own, as Locust documents.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
from flask import redirect, request, session, url_for
from flask_login import UserMixin, login_user  # type: ignore[import-untyped]
from locust.web import WebUI

from tailgate.exits import BadInput

USER, PASSWORD, PASSWORD_FILE = "TAILGATE_WEB_USER", "TAILGATE_WEB_PASSWORD", "TAILGATE_WEB_PASSWORD_FILE"
_SUBMIT = "login-submit"
# What a guess costs whoever guesses; other visitors are served meanwhile.
_PENALTY_S = 1.0
_LEAST = 8


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The one user who may enter."""

    user: str
    password: str

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Credentials | None:
        """None where no password was given. Raises `BadInput`, which never shows one."""
        path, password = environ.get(PASSWORD_FILE, ""), environ.get(PASSWORD, "")
        if path:
            try:
                password = Path(path).read_text(encoding="utf-8").strip()
            except (OSError, ValueError):
                raise BadInput(f"the file named by {PASSWORD_FILE} cannot be read", "give the path of one") from None
        if not path and not password:
            return None
        if len(password) < _LEAST:
            raise BadInput(f"the web UI's password has fewer than {_LEAST} characters", "give a longer one")
        return cls(environ.get(USER) or "tailgate", password)

    def match(self, user: str, password: str) -> bool:
        """In the same time, whatever is wrong."""
        right = hmac.compare_digest(user.encode(), self.user.encode())
        return hmac.compare_digest(password.encode(), self.password.encode()) and right


class _Visitor(UserMixin):
    def __init__(self, name: str) -> None:
        self.id = name


def require_login(web_ui: WebUI, base_path: str, credentials: Credentials) -> None:
    """Sets up Locust's login page, where it was started with --web-login. The page of metrics stays open."""
    app = web_ui.app
    assert app is not None, "made by its constructor"
    app.secret_key = secrets.token_bytes(32)
    # Strict: another site's page cannot have a visitor's browser start or stop a run.
    app.config.update(
        SESSION_COOKIE_HTTPONLY=True, SESSION_COOKIE_SAMESITE="Strict", SESSION_COOKIE_SECURE=bool(web_ui.tls_cert)
    )
    web_ui.login_manager.user_loader(lambda name: _Visitor(name) if name == credentials.user else None)
    web_ui.auth_args = {"username_password_callback": f"{base_path}/{_SUBMIT}"}

    def submit() -> Any:
        given = request.form
        if not credentials.match(given.get("username", ""), given.get("password", "")):
            gevent.sleep(_PENALTY_S)
            session["auth_error"] = "Wrong name or password"
            return redirect(url_for("locust.login"))
        login_user(_Visitor(credentials.user))
        return redirect(url_for("locust.index"))

    app.add_url_rule(f"{base_path}/{_SUBMIT}", _SUBMIT, submit, methods=["POST"])
