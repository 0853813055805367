"""What the server under test says of itself before anything is sent: there at all, which models, which engine.

Each answer that makes a run impossible is one `BadInput` line that names the mend.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from locustfiles.client.tls import TlsOptions
from tailgate.exits import BadInput
from workloads.request_class import PATHS

_TIMEOUT_S = 10.0
_START_IT = "start it, or mend -H/--host"


@dataclass(frozen=True, slots=True)
class Engine:
    """Who answers. `name` is None where the server has no `/version`."""

    name: str | None
    version: str | None
    simulated: bool
    step_times: str | None = None
    """Where the embedded engine has its step times from, as it says."""

    def to_dict(self) -> dict[str, Any]:
        said = {"step_times": self.step_times} if self.step_times else {}
        return {"name": self.name, "version": self.version, "simulated": self.simulated, **said}

    @property
    def reports_usage_per_chunk(self) -> bool:
        """Whether `continuous_usage_stats` is known to be understood: it is vLLM's own, and others may refuse it."""
        return self.version is not None


@dataclass(frozen=True, slots=True)
class Server:
    """The server as it described itself. `longest` is the model's context in tokens, where it says."""

    url: str
    model: str
    engine: Engine
    longest: int | None
    has_metrics: bool


@dataclass(slots=True)
class Api:
    """Small questions to the server, one connection each; nothing here is ever timed."""

    url: str
    tls: TlsOptions = field(default_factory=TlsOptions)
    headers: Mapping[str, str] = field(default_factory=dict)

    def get(self, path: str) -> tuple[int, bytes]:
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        return self._ask("POST", path, msgspec.json.encode(body))

    def _ask(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """(status, body). Raises `BadInput` where no HTTP answer can be had, or the server wants another key."""
        parts = urlsplit(self.url)
        host, port = parts.hostname or "", parts.port
        if parts.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=_TIMEOUT_S, context=self.tls.context()
            )
        else:
            connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
        headers = dict(self.headers) | ({"Content-Type": "application/json"} if body else {})
        try:
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise _no_answer(self.url, error) from None
        finally:
            connection.close()
        if status in (401, 403):
            sent = "refuses the API key" if "Authorization" in self.headers else "wants an API key"
            raise BadInput(f"the server {self.url} {sent} (HTTP {status})", "set OPENAI_API_KEY or give --api-key-file")
        return status, content


def server_url(host: str | None) -> str:
    """`-H` as the base URL that requests are sent to. Raises `BadInput` where it is missing or is none."""
    if not host:
        raise BadInput("no server given", "add -H http://HOST:PORT")
    mend = "write it like http://127.0.0.1:8000"
    try:
        parts = urlsplit(host)
        _ = parts.port
    except ValueError as error:
        raise BadInput(f"-H: '{host}' is no URL ({error})", mend) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(f"-H: '{host}' is no http or https URL", mend)
    if parts.username or parts.password:
        raise BadInput("-H: a user name in the URL is not sent", "set OPENAI_API_KEY or give --api-key-file")
    if parts.query or parts.fragment:
        raise BadInput("-H: what follows '?' or '#' in the URL is not sent", "leave it out")
    if not re.fullmatch(r"[!-~]*", host):
        raise BadInput(f"-H: '{host}' holds what no URL can", "write a blank as %20")
    base = host.rstrip("/")
    if endpoint := next((path for path in PATHS.values() if base.endswith(path)), None):
        raise BadInput(f"-H: {endpoint} is the workload's to say", f"write {base.removesuffix(endpoint)}")
    # A base URL copied from an OpenAI client ends in /v1; the endpoints' paths begin with it.
    return base.removesuffix("/v1")


def discover(api: Api, model: str | None, others: Iterable[str] = ()) -> Server:
    """Asks the server; `others` are models that some class of the workload names. Raises `BadInput`."""
    cards = _models(api)
    if cards is None:
        if model is None:
            raise BadInput(f"the server {api.url} has no /v1/models", "name the model with --model")
    else:
        model = _chosen(api.url, cards, model, others)
    status, content = api.get("/version")
    version = _mapping(content) if status == 200 else {}
    simulated = version.get("simulated") is True
    engine = Engine(
        name=str(version.get("engine") or "vllm") if version.get("version") else None,
        version=str(version["version"]) if version.get("version") else None,
        simulated=simulated,
        step_times=str(version["table"]) if simulated and version.get("table") else None,
    )
    longest = (cards or {}).get(str(model), {}).get("max_model_len")
    return Server(
        url=api.url,
        model=str(model),
        engine=engine,
        longest=longest if isinstance(longest, int) else None,
        has_metrics=api.get("/metrics")[0] == 200,
    )


class ServerTokens:
    """Counts with the server's own `/tokenize` (vLLM's), for prompts of exact length."""

    description = "server /tokenize"

    def __init__(self, api: Api, model: str) -> None:
        self._api = api
        self._model = model

    @classmethod
    def of(cls, api: Api, model: str) -> ServerTokens | None:
        """None where the server has no `/tokenize`."""
        counter = cls(api, model)
        return counter if counter._count({"prompt": "one"}) is not None else None

    def count_text(self, text: str) -> int:
        found = self._count({"prompt": text})
        if found is None:
            raise BadInput(f"the server {self._api.url} stopped answering /tokenize", "try again, or give --tokenizer")
        return found

    def count_messages(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> int | None:
        offered = {"tools": list(tools)} if tools else {}
        return self._count({"messages": list(messages), "add_generation_prompt": True, **offered})

    def _count(self, what: dict[str, Any]) -> int | None:
        status, content = self._api.post("/tokenize", {"model": self._model, **what})
        count = _mapping(content).get("count") if status == 200 else None
        return count if isinstance(count, int) else None


def _models(api: Api) -> dict[str, dict[str, Any]] | None:
    """The server's model cards by name; None where it has no such list."""
    status, content = api.get("/v1/models")
    if status == 404:
        return None
    if status != 200:
        raise BadInput(f"the server {api.url} answers /v1/models with HTTP {status}", "wait until it is ready")
    listed = _mapping(content).get("data")
    if not isinstance(listed, list):
        raise BadInput(f"the server {api.url} is no OpenAI-compatible one (/v1/models lists nothing)", "mend -H/--host")
    return {str(card["id"]): card for card in listed if isinstance(card, dict) and "id" in card}


def _chosen(url: str, cards: dict[str, dict[str, Any]], model: str | None, others: Iterable[str]) -> str:
    names = ", ".join(cards) or "none"
    for wanted in [model, *others]:
        if wanted is not None and wanted not in cards:
            raise BadInput(f"the server {url} has no model '{wanted}'", f"it has: {names}")
    if model is not None:
        return model
    # LoRA adapters are listed beside their base model and name it as their parent.
    bases = [name for name, card in cards.items() if not card.get("parent")]
    if len(bases) != 1:
        raise BadInput(f"the server {url} has {len(bases) or 'no'} models", f"choose one with --model: {names}")
    return bases[0]


def _no_answer(url: str, error: Exception) -> BadInput:
    if isinstance(error, socket.gaierror):
        return BadInput(f"the host of {url} cannot be resolved ({error.strerror})", "check -H/--host")
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or error.reason
        return BadInput(
            f"the certificate of {url} is refused ({why})", "give its authority with --tls-ca, or --tls-insecure"
        )
    if isinstance(error, ssl.SSLError):
        return BadInput(f"no TLS with {url} ({error.reason or error})", "write http:// if the server speaks no TLS")
    if isinstance(error, ConnectionRefusedError):
        return BadInput(f"no server answers at {url} (connection refused)", _START_IT)
    if isinstance(error, TimeoutError):
        return BadInput(f"no server answers at {url} (timed out after {_TIMEOUT_S:g} s)", _START_IT)
    if isinstance(error, http.client.HTTPException):
        why = "closed the connection" if isinstance(error, http.client.RemoteDisconnected) else "sent no HTTP"
        return BadInput(f"what answers at {url} {why}", "mend -H/--host; write https:// if the server speaks TLS")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return BadInput(f"no server answers at {url} ({reason})", _START_IT)


def _mapping(content: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
