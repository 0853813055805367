"""The few questions we ask an engine over HTTP, with the standard library: is it up, what is it, one first token."""

from __future__ import annotations

import http.client
import json
import os
from typing import Any
from urllib.parse import urlsplit


class EngineUnreachable(Exception):
    """The engine gave no answer, or not the one asked for; the message says which."""


class Refused(EngineUnreachable):
    """The engine answered, with `status` other than 200."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def ask(url: str, path: str, *, body: dict[str, Any] | None = None, timeout_s: float = 5.0) -> str:
    """The text that `GET path` (or `POST` of `body` as JSON, {} for none) answers.

    Raises `EngineUnreachable` where none comes, `Refused` unless it is a 200.

    Goes straight to the host, whatever proxies the environment names: engines under test are near.
    """
    target = urlsplit(url)
    kind = http.client.HTTPSConnection if target.scheme == "https" else http.client.HTTPConnection
    connection = kind(target.hostname or "127.0.0.1", target.port, timeout=timeout_s)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if key := os.environ.get("VLLM_API_KEY") or os.environ.get("OPENAI_API_KEY"):
        headers["Authorization"] = f"Bearer {key}"
    try:
        method, content = ("GET", None) if body is None else ("POST", json.dumps(body) if body else "")
        connection.request(method, target.path.rstrip("/") + path, content, headers)
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise EngineUnreachable(f"{path}: {error or type(error).__name__}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise Refused(f"{path}: HTTP {response.status}: {text[:200]}", response.status)
    return text


def healthy(url: str) -> bool:
    """Whether `/health` answers 200 now, or the server answers and has no such page."""
    try:
        ask(url, "/health", timeout_s=2.0)
    except Refused as error:
        return error.status in (404, 405)
    except EngineUnreachable:
        return False
    return True


def model_name(url: str) -> str:
    """The name of the first model served."""
    if isinstance(name := model_card(url).get("id"), str):
        return name
    raise EngineUnreachable("/v1/models: lists no model")


def model_card(url: str) -> dict[str, Any]:
    """What `/v1/models` says of the first model served; empty where it lists none."""
    models = _json(url, "/v1/models").get("data")
    first = models[0] if isinstance(models, list) and models else None
    return first if isinstance(first, dict) else {}


def version(url: str) -> dict[str, Any]:
    """What `/version` says: `version`, from the embedded engine `simulated` and `engine` too; empty if silent."""
    try:
        said = _json(url, "/version")
    except EngineUnreachable:
        return {}
    return {key: value if key == "simulated" else str(value) for key, value in said.items() if value is not None}


def first_token(url: str, model: str, timeout_s: float = 120.0) -> None:
    """Streams one token, the proof that the engine serves; raises `EngineUnreachable` if none comes."""
    stream(url, model, "Hello", 1, timeout_s)


def stream(url: str, model: str, prompt: str, tokens: int, timeout_s: float = 120.0) -> None:
    """Streams `tokens` tokens to the end, from whichever of completions and chat the server has.

    Raises `EngineUnreachable` if none comes.
    """
    body: dict[str, Any] = {"model": model, "max_tokens": tokens, "temperature": 0, "stream": True}
    path = "/v1/completions"
    try:
        text = ask(url, path, body={**body, "prompt": prompt}, timeout_s=timeout_s)
    except Refused as error:
        if error.status not in (400, 404, 405, 501):
            raise
        path = "/v1/chat/completions"
        messages = [{"role": "user", "content": prompt}]
        text = ask(url, path, body={**body, "messages": messages}, timeout_s=timeout_s)
    if '"choices"' not in text:
        raise EngineUnreachable(f"{path}: no token in {text[:200]!r}")


def reset_prefix_cache(url: str) -> str | None:
    """Empties the prefix cache where the server lets one: by which path, or None.

    vLLM has its path in development mode only (VLLM_SERVER_DEV_MODE=1), SGLang always.
    """
    for path in ("/reset_prefix_cache", "/flush_cache"):
        try:
            text = ask(url, path, body={}, timeout_s=30.0)
        except EngineUnreachable:
            continue
        if '"success":false' not in text.replace(" ", "").lower():
            return path
    return None


def _json(url: str, path: str) -> dict[str, Any]:
    text = ask(url, path)
    try:
        answer = json.loads(text)
    except ValueError:
        raise EngineUnreachable(f"{path}: not JSON: {text[:80]!r}") from None
    return answer if isinstance(answer, dict) else {}
