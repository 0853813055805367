"""A request while it is answered: its choices, what each has told so far, and the bytes of what comes next."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence

import msgspec

from vllm_launch.simulated import chunks
from vllm_launch.simulated.generation import Generation
from vllm_launch.simulated.http import LAST_CHUNK, Connection, chunk
from vllm_launch.simulated.protocol import Endpoint, RequestBody
from vllm_launch.simulated.replies import Reply, ReplyHashes, reply_seed
from vllm_launch.simulated.settings import EngineSettings
from vllm_launch.simulated.tokenizer import block_hashes, is_wide, token_id


class Choice:
    """One generation of a request. `advance()` tells one more token and gives the bytes a stream sends for it."""

    __slots__ = ("_held", "_sent", "finish", "generation", "index", "last_s", "reply", "request", "stop_reason", "told")

    def __init__(self, request: LiveRequest, index: int, generation: Generation, reply: Reply) -> None:
        self.request = request
        self.index = index
        self.generation = generation
        self.reply = reply
        self.told = 0
        self.finish: str | None = None
        self.stop_reason: str | None = None
        self.last_s = 0.0
        self._held = ""
        self._sent = 0

    def advance(self) -> bytes:
        """Tells the next token; empty where the stream says nothing for it (`stream-interval`, no streaming)."""
        token = self.told
        self.told += 1
        request = self.request
        if self.told >= self.generation.output_tokens:
            self.finish = "length" if self.told >= request.output_limit else "stop"
        if request.stops:
            return self._advance_watching(token)
        if request.writer is None:
            return b""
        if self.told - self._sent < request.stream_interval and self._sent and self.finish is None:
            return b""
        text = self.reply.json_piece(token)
        if self.told - self._sent > 1:
            text = b"".join(self.reply.json_piece(i) for i in range(self._sent, self.told))
        return self._render(text)

    def _advance_watching(self, token: int) -> bytes:
        """With stop strings, as much text is held back as could still turn out to begin one."""
        request = self.request
        self._held += self.reply.piece(token)
        holding = max(map(len, request.stops)) - 1
        found = min(((at, s) for s in request.stops if (at := self._held.find(s)) >= 0), default=None)
        if found and self.told >= request.min_tokens:
            at, stop = found
            self._held = self._held[: at + len(stop) if request.include_stop else at]
            self.finish, self.stop_reason = "stop", stop
        keep = 0 if self.finish else min(holding, len(self._held))
        text, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        request.texts[self.index] += text
        return b"" if request.writer is None else self._render(msgspec.json.encode(text)[1:-1])

    def _render(self, text: bytes) -> bytes:
        request, writer = self.request, self.request.writer
        assert writer is not None
        opening = request.opening() if not request.opened else b""
        ids = None
        if request.want_ids:
            ids = [token_id(self.reply.piece(i), request.vocabulary) for i in range(self._sent, self.told)]
        self._sent = self.told
        if self.finish is None:
            return opening + chunk(writer.text(self.index, text, self.told, token_ids=ids))
        stop = msgspec.json.encode(self.stop_reason)
        last = request.ends_with(self)
        closes = last and not request.include_usage
        event = chunk(writer.text(self.index, text, self.told, self.finish.encode(), stop, ids, closes))
        return opening + event + (request.closing() if last else b"")

    def abort(self) -> bytes:
        """The bytes that end this choice early, as vLLM does on its way down."""
        self.finish = "abort"
        return b"" if self.request.writer is None else self._render(b"")

    def text(self) -> str:
        if self.request.stops:
            return self.request.texts[self.index] + self._held
        return "".join(self.reply.piece(i) for i in range(self.told))


class LiveRequest:
    """One HTTP request and its choices."""

    def __init__(
        self,
        settings: EngineSettings,
        endpoint: Endpoint,
        body: RequestBody,
        prompts: Sequence[Sequence[object]],
        limits: Sequence[int],
        request_id: str,
        fingerprint: str,
        connection: Connection,
        received: float,
    ) -> None:
        """`prompts` are token sequences (one, but for completions with several) and `limits` their longest replies."""
        self.endpoint = endpoint
        self.connection = connection
        self.received = received
        self.id = request_id
        self.created = int(time.time())
        self.model = body.model or settings.served_names[0]
        self.fingerprint = fingerprint
        self.vocabulary = settings.model.vocabulary
        self.stops = [stop for stop in body.stop_strings if stop]
        self.include_stop = body.include_stop_str_in_output
        self.min_tokens = body.min_tokens
        self.output_limit = max(limits)
        self.asked_tokens = body.asked_tokens() or self.output_limit
        self.n = body.n
        self.stream_interval = settings.stream_interval
        self.want_ids = bool(body.return_token_ids)
        self.prompt_tokens = sum(map(len, prompts))
        self._prompt_ids = [token_id(str(t), self.vocabulary) for t in prompts[0]] if self.want_ids else None
        self._details = settings.prompt_tokens_details
        options = body.stream_options
        self.include_usage = bool(options and options.include_usage) or settings.force_include_usage
        self.writer = None
        if body.stream:
            continuous = bool(self.include_usage and options and options.continuous_usage_stats)
            self.writer = chunks.ChunkWriter(
                endpoint, self.id, self.created, self.model, fingerprint, self.prompt_tokens, continuous
            )
        self.opened = False
        self.on_answered: Callable[[], None] | None = None
        self.choices: list[Choice] = []
        for prompt, limit in zip(prompts, limits, strict=True):
            self._add_choices(settings, body, prompt, limit)
        self.texts = [""] * len(self.choices)
        self.unfinished = len(self.choices)

    def _add_choices(self, settings: EngineSettings, body: RequestBody, prompt: Sequence[object], limit: int) -> None:
        caching = settings.prefix_caching
        hashes = block_hashes(prompt, settings.block_size) if caching else []
        name = "".join(map(str, prompt)).encode("utf-8", "surrogatepass")
        chinese = any(is_wide(str(token)) for token in prompt[-32:])
        for k in range(body.n):
            reply = Reply(reply_seed(settings.seed, body.seed, name, k), chinese)
            length = limit
            if not body.ignore_eos:
                length = min(limit, max(body.min_tokens, reply.natural_length()))
            known = ReplyHashes(prompt, hashes, settings.block_size, reply, length) if caching else ()
            generation = Generation(len(prompt), length, known, body.priority, self.received)
            choice = Choice(self, len(self.choices), generation, reply)
            generation.owner = choice
            self.choices.append(choice)

    @property
    def cached_tokens(self) -> int | None:
        return max(c.generation.cached_tokens for c in self.choices) if self._details else None

    @property
    def completion_tokens(self) -> int:
        return sum(choice.told for choice in self.choices)

    def ends_with(self, choice: Choice) -> bool:
        return all(other.finish is not None for other in self.choices if other is not choice)

    def let_go(self) -> None:
        """Nothing more will be asked of it: unties what refers to each other, so that no collector need find it."""
        for choice in self.choices:
            choice.generation.owner = None
        self.choices.clear()

    def opening(self) -> bytes:
        """The head of the streamed answer and the role chunks: they leave together with the first token."""
        assert self.writer is not None
        self.opened = True
        roles = (self.writer.role(i, self._prompt_ids) for i in range(len(self.choices)))
        return self.connection.start_stream() + b"".join(chunk(role) for role in roles if role)

    def closing(self) -> bytes:
        assert self.writer is not None
        final = b""
        if self.include_usage:
            final = chunk(self.writer.final_usage(self.completion_tokens, self.cached_tokens))
        return final + chunk(chunks.DONE) + LAST_CHUNK

    def whole_answer(self) -> bytes:
        answers = []
        for choice in self.choices:
            ids = None
            if self.want_ids:
                ids = [token_id(choice.reply.piece(i), self.vocabulary) for i in range(choice.told)]
            answers.append((choice.text(), choice.finish or "length", choice.stop_reason, ids))
        return chunks.whole_answer(
            self.endpoint,
            self.id,
            self.created,
            self.model,
            self.fingerprint,
            answers,
            self.prompt_tokens,
            self.completion_tokens,
            self.cached_tokens,
            self._prompt_ids,
        )


def request_id(endpoint: Endpoint, asked: str | None) -> str:
    """vLLM's name for a request: the client's own where it gave one, else random."""
    prefix = "chatcmpl-" if endpoint == "/v1/chat/completions" else "cmpl-"
    return prefix + (asked or secrets.token_hex(8))
