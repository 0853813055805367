"""The embedded engine behind HTTP: vLLM's OpenAI-compatible routes on simulated time."""

from __future__ import annotations

import asyncio
import gc
import hmac
import logging
import os
import secrets
import signal
import socket
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec
import uvloop

from tailgate.addresses import family_of, url_of
from tailgate.exits import BadInput
from vllm_launch.simulated.alarm import Alarm
from vllm_launch.simulated.engine import Engine
from vllm_launch.simulated.host_metrics import HttpMetrics, process_page
from vllm_launch.simulated.http import Connection, HttpRequest
from vllm_launch.simulated.live import LiveRequest, request_id
from vllm_launch.simulated.metrics_page import EngineMetrics
from vllm_launch.simulated.protocol import (
    BUSY,
    ApiError,
    ChatBody,
    CompletionBody,
    Endpoint,
    RequestBody,
    TokenizeBody,
    check,
    output_limit,
    read_body,
    unknown_model,
)
from vllm_launch.simulated.realtime import Pacer
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.tokenizer import chat_tokens, token_id, tokenize

VERSION = "0.32.0"
_log = logging.getLogger("tailgate.simulated")


def serve(settings: EngineSettings, host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serves in the foreground until SIGTERM or SIGINT; then ends what runs as vLLM does, and returns.

    Says on stdout when it is ready. Raises `BadInput` where the port cannot be had.
    """
    listener = _listen(host, port)
    # A full pass of the garbage collector stalls every stream; requests untie themselves, so that few are needed.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(settings, listener, host))


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=family_of(host), backlog=4096)
    except OSError as error:
        mend = "stop what listens there or choose another port"
        raise BadInput(f"cannot listen on {host}:{port}: {error.strerror or error}", mend) from None


async def _serve(settings: EngineSettings, listener: socket.socket, host: str) -> None:
    loop = asyncio.get_running_loop()
    server = Server(settings, loop)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    listener.setblocking(False)
    loop.add_reader(listener, server.accept, listener)
    model = settings.model
    print(
        f"tailgate simulated engine: {model.name} on {settings.tensor_parallel} x {settings.device.name}, "
        f"{settings.kv_blocks * settings.block_size} KV tokens, "
        f"max-num-batched-tokens {settings.max_num_batched_tokens}, max-num-seqs {settings.max_num_seqs}; "
        "no GPU, no model: all it yields is simulated\n"
        f"Ready on {url_of(host, listener.getsockname()[1])}",
        flush=True,
    )
    await stop.wait()
    loop.remove_reader(listener)
    listener.close()
    server.shut_down()
    # What a client has not read yet gets a moment to leave.
    for _ in range(20):
        if not server.connections:
            break
        await asyncio.sleep(0.05)


Handler = Callable[[HttpRequest, Connection], None]


class Server:
    """Routes requests to the engine; one for a process."""

    def __init__(self, settings: EngineSettings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.engine = Engine(settings)
        self.metrics = EngineMetrics(self.engine)
        self.http_metrics = HttpMetrics()
        self.pacer = Pacer(self.engine, Alarm(loop), self.metrics)
        self.connections: set[Connection] = set()
        self._loop = loop
        self._created = int(time.time())
        self._model_permission = f"modelperm-{secrets.token_hex(8)}"
        keys = settings.api_keys or tuple(filter(None, [os.environ.get("VLLM_API_KEY")]))
        self._api_keys = [key.encode() for key in keys]
        named = repr(replace(settings, api_keys=())).encode()
        self._fingerprint = f"vllm-{VERSION}-{zlib.crc32(named):08x}"
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v1/chat/completions": ("POST", self._generate),
            "/v1/completions": ("POST", self._generate),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", lambda _, connection: connection.reply(200, b"")),
            "/ping": ("GET", lambda _, connection: connection.reply(200, b"")),
            "/version": ("GET", self._version),
            "/load": ("GET", self._load),
            "/metrics": ("GET", self._metrics_page),
            "/tokenize": ("POST", self._tokenize),
            "/reset_prefix_cache": ("POST", self._reset_prefix_cache),
        }

    # -- connections ------------------------------------------------------------------------------------------------

    def accept(self, listener: socket.socket) -> None:
        for _ in range(64):
            try:
                sock, _ = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                _log.error("cannot accept a connection: %s", error)
                return
            self.connections.add(Connection(sock, self._loop, self.handle, self.connections.discard))

    def shut_down(self) -> None:
        self.pacer.shut_down()
        for connection in list(self.connections):
            connection.close_when_written()

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Answers one request, at once or in time; every failure becomes a reply."""
        if self.settings.request_id_headers:
            name = request.headers.get("x-request-id") or secrets.token_hex(16)
            connection.extra_headers = b"x-request-id: " + name.encode("latin-1", "replace")
        try:
            self._route(request)(request, connection)
        except ApiError as error:
            connection.reply(error.status, error.body())
            self._count(request, error.status)
        except Exception:
            _log.exception("a request failed")
            failure = ApiError(500, "Internal server error", "InternalServerError")
            connection.reply(failure.status, failure.body())
            self._count(request, failure.status)

    def _route(self, request: HttpRequest) -> Handler:
        method, handler = self._routes.get(request.path, ("", _not_found))
        if method and not self._authorised(request):
            return _unauthorised
        if method and request.method != method:
            return _wrong_method
        return handler

    def _authorised(self, request: HttpRequest) -> bool:
        """vLLM guards `/v1` only."""
        if not self._api_keys or not request.path.startswith("/v1"):
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        given = token.encode("latin-1", "replace")
        return scheme.lower() == "bearer" and any(hmac.compare_digest(given, key) for key in self._api_keys)

    def _count(self, request: HttpRequest, status: int) -> None:
        size = len(request.body)
        self.http_metrics.answered(request.path, request.method, status, size, time.monotonic() - request.received)

    # -- generation -------------------------------------------------------------------------------------------------

    def _generate(self, request: HttpRequest, connection: Connection) -> None:
        settings = self.settings
        endpoint: Endpoint
        body: RequestBody
        prompts: list[Sequence[object]]
        if request.path == "/v1/chat/completions":
            endpoint = "/v1/chat/completions"
            body = chat = read_body(request.body, ChatBody)
            check(body, settings.served_names, settings.limits.max_model_len)
            prompts = [chat_tokens((message.role, message.text()) for message in chat.messages)]
        else:
            endpoint = "/v1/completions"
            body = completion = read_body(request.body, CompletionBody)
            check(body, settings.served_names, settings.limits.max_model_len)
            prompts = [tokenize(text) if isinstance(text, str) else text for text in completion.prompts()]
        limits = [output_limit(body, len(prompt), settings.limits.max_model_len) for prompt in prompts]
        self._admit(sum(map(len, prompts)), len(prompts) * body.n)
        name = request_id(endpoint, request.headers.get("x-request-id") or body.request_id)
        live = LiveRequest(
            settings, endpoint, body, prompts, limits, name, self._fingerprint, connection, request.received
        )
        live.on_answered = lambda: self._count(request, 200)
        self.pacer.submit(live)

    def _admit(self, tokens: int, sequences: int) -> None:
        """Turns a request away where a queue limit is reached (503)."""
        scheduler, settings = self.engine.scheduler, self.settings
        in_flight = sum(len(live.choices) for live in self.pacer.live)
        if settings.max_num_queued_reqs is not None and in_flight + sequences > settings.max_num_queued_reqs:
            self.metrics.rejections["max_num_queued_reqs"] += 1
            raise BUSY
        if settings.max_num_queued_tokens is not None and (
            scheduler.tokens_to_prefill + tokens > settings.max_num_queued_tokens
        ):
            self.metrics.rejections["max_num_queued_tokens"] += 1
            raise BUSY

    # -- the other routes -------------------------------------------------------------------------------------------

    def _models(self, request: HttpRequest, connection: Connection) -> None:
        permission = {
            "id": self._model_permission,
            "object": "model_permission",
            "created": self._created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": False,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        common = {"object": "model", "created": self._created, "owned_by": "vllm", "root": self.settings.model.name}
        common |= {"parent": None, "max_model_len": self.settings.limits.max_model_len, "permission": [permission]}
        data = [{"id": name, **common} for name in self.settings.served_names]
        connection.reply(200, msgspec.json.encode({"object": "list", "data": data}))

    def _version(self, request: HttpRequest, connection: Connection) -> None:
        answer: dict[str, object] = {"version": VERSION, "simulated": True, "engine": "tailgate-simulated"}
        answer |= {"model": self.settings.model.name, "device": self.settings.device.key, "table": self.settings.table}
        connection.reply(200, msgspec.json.encode(answer))

    def _load(self, request: HttpRequest, connection: Connection) -> None:
        load = len(self.pacer.live) if self.settings.load_tracking else 0
        connection.reply(200, b'{"server_load":%d}' % load)

    def _metrics_page(self, request: HttpRequest, connection: Connection) -> None:
        page = process_page() + self.metrics.render() + self.http_metrics.render()
        connection.reply(200, page.encode(), b"text/plain; version=1.0.0; charset=utf-8")

    def _tokenize(self, request: HttpRequest, connection: Connection) -> None:
        body = read_body(request.body, TokenizeBody)
        if body.model is not None and body.model not in self.settings.served_names:
            raise unknown_model(body.model, self.settings.served_names)
        if body.messages is not None:
            messages = ((message.role, message.text()) for message in body.messages)
            tokens = chat_tokens(messages, body.add_generation_prompt)
        else:
            tokens = tokenize(body.prompt or "")
        answer = {
            "count": len(tokens),
            "max_model_len": self.settings.limits.max_model_len,
            "tokens": [token_id(token, self.settings.model.vocabulary) for token in tokens],
            "token_strs": tokens if body.return_token_strs else None,
        }
        connection.reply(200, msgspec.json.encode(answer))

    def _reset_prefix_cache(self, request: HttpRequest, connection: Connection) -> None:
        if self.pacer.idle:
            self.engine.cache.forget()
        connection.reply(200 if self.pacer.idle else 500, b"")


def _not_found(request: HttpRequest, connection: Connection) -> None:
    connection.reply(404, b'{"detail":"Not Found"}')


def _wrong_method(request: HttpRequest, connection: Connection) -> None:
    connection.reply(405, b'{"detail":"Method Not Allowed"}')


def _unauthorised(request: HttpRequest, connection: Connection) -> None:
    connection.reply(401, b'{"error":"Unauthorized"}')
