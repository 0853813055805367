"""What an error reply says: JSON in any server's shape, HTML, or text → one message that groups."""

from __future__ import annotations

from typing import Any

import msgspec

from locustfiles.client.errors import groupable


def error_message(error: Any) -> str:
    """The groupable message of an error in any of the shapes servers use: object, string, number, nested."""
    if isinstance(error, dict):
        name = error.get("type") or error.get("code")
        inner = error.get("message") or error.get("detail") or error.get("error")
        text = error_message(inner) if inner else ""
        if isinstance(name, str) and name:
            return groupable(f"{name}: {text}") if text else groupable(name)
        return text or "error object without a message"
    if isinstance(error, list):
        return error_message(error[0]) if error else "error without a message"
    return groupable(str(error)) if error not in (None, True, "") else "error without a message"


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
        inner = found.get("error") or found.get("detail") or found.get("message")
        return error_message(inner) if inner else "error object without a message"
    if isinstance(found, str):
        return groupable(found)
    if b"<html" in body[:1024].lower() or body.lstrip()[:1] == b"<":
        return "HTML page"
    return groupable(body[:2048].decode("utf-8", "replace"))
