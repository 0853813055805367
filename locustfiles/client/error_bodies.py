"""What an error reply says: JSON in any server's shape, HTML, or text → one message that groups."""

from __future__ import annotations

from typing import Any

import msgspec

from locustfiles.client.errors import groupable

_DEEPEST = 4  # objects within objects that a message is looked for


def error_message(error: Any, depth: int = 0) -> str:
    """The groupable message of an error in any of the shapes servers use: object, string, number, nested."""
    if isinstance(error, list) and error:
        error = error[0]
    if isinstance(error, dict) and depth < _DEEPEST:
        names = (error.get("type"), error.get("code"))
        name = next((name for name in names if isinstance(name, str) and name not in ("", "error")), "")
        inner = error.get("message") or error.get("detail") or error.get("error")
        parts = [name, error_message(inner, depth + 1) if inner else ""]
        return groupable(": ".join(part for part in parts if part)) or "error without a message"
    if isinstance(error, str | int | float) and not isinstance(error, bool):
        return groupable(str(error)) or "error without a message"
    return "error without a message"


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def error_in(body: bytes) -> str | None:
    """The message of the error object that `body` is, None where it is none."""
    found = _json(body)
    if not isinstance(found, dict):
        return None
    if found.get("error"):
        return error_message(found["error"])
    if found.get("object") == "error":
        return error_message(found)
    return None


def message_in(body: bytes) -> str:
    """The groupable message of an error page or object in any usual shape; empty where it has none."""
    if not body.strip():
        return ""
    found = _json(body)
    if isinstance(found, dict):
        return error_message(found.get("error") or found.get("detail") or found)
    if isinstance(found, str):
        return groupable(found)
    if b"<html" in body[:1024].lower() or body.lstrip()[:1] == b"<":
        return "HTML page"
    return groupable(body[:8192].decode("utf-8", "replace"))
