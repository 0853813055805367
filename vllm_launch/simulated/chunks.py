"""The bytes of replies: vLLM's JSON for streamed chunks and whole answers, laid out field by field as captured.

A stream renders one chunk for each token, tens of thousands a second, so all that is constant is made once.
"""

from __future__ import annotations

import msgspec

from vllm_launch.simulated.protocol import Endpoint

DONE = b"data: [DONE]\n\n"
_TIME_FIELD = b',"created":'


def usage(prompt: int, completion: int, cached: int | None) -> dict[str, object]:
    """The usage object at a stream's end; `cached` only where `enable-prompt-tokens-details` is on."""
    counts: dict[str, object] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
    }
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return counts


class ChunkWriter:
    """Renders the chunks of one streamed request, each as an SSE event."""

    __slots__ = ("_chat", "_end", "_head", "_usage", "fingerprint", "prompt_tokens")

    def __init__(
        self,
        endpoint: Endpoint,
        request_id: str,
        created: int,
        model: str,
        fingerprint: str,
        prompt_tokens: int,
        usage: bool,
    ) -> None:
        """`usage`: whether each chunk tells the usage so far (`continuous_usage_stats`)."""
        self._chat = endpoint == "/v1/chat/completions"
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        named = msgspec.json.encode({"id": request_id, "object": kind, "created": created, "model": model})
        self._head = b"data: " + named[:-1] + b',"choices":['
        self._usage = usage
        self._end = b"}\n\n"
        self.fingerprint = b',"system_fingerprint":' + msgspec.json.encode(fingerprint)
        self.prompt_tokens = prompt_tokens

    def role(self, index: int, prompt_ids: list[int] | None) -> bytes:
        """The chunk that opens a choice of a chat; empty for completions, which have none."""
        if not self._chat:
            return b""
        return (
            self._head
            + b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]' % index
            + self._usage_so_far(0)
            + b',"prompt_token_ids":'
            + msgspec.json.encode(prompt_ids)
            + b',"prompt_text":null'
            + self._end
        )

    def text(
        self,
        index: int,
        text: bytes,
        told: int,
        finish: bytes | None = None,
        stop_reason: bytes = b"null",
        token_ids: list[int] | None = None,
        last: bool = False,
    ) -> bytes:
        """A chunk of `text` (the inside of a JSON string); `told` completion tokens so far, for the usage; `finish` is
        the finish reason where the choice ends; `last` where the whole stream does and no usage chunk follows."""
        ids = b"null" if token_ids is None else msgspec.json.encode(token_ids)
        if self._chat:
            body = b'{"index":%d,"delta":{"content":"%b"},"logprobs":null,"finish_reason":' % (index, text)
            body += (
                b'null,"token_ids":%b}]' % ids
                if finish is None
                else (b'"%b","stop_reason":%b,"token_ids":%b}]' % (finish, stop_reason, ids))
            )
        else:
            reason = b"null" if finish is None else b'"%b"' % finish
            body = (
                b'{"index":%d,"text":"%b","logprobs":null,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":null,'
                b'"token_ids":%b}]' % (index, text, reason, stop_reason, ids)
            )
        closing = self.fingerprint if last else b""
        if self._usage:
            return self._head + body + self._usage_so_far(told) + closing + self._end
        return self._head + body + closing + self._end

    def final_usage(self, completion: int, cached: int | None) -> bytes:
        counts = msgspec.json.encode(usage(self.prompt_tokens, completion, cached))
        return self._head + b'],"usage":' + counts + self.fingerprint + self._end

    def _usage_so_far(self, told: int) -> bytes:
        if not self._usage:
            return b""
        return (
            b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
            % (
                self.prompt_tokens,
                self.prompt_tokens + told,
                told,
            )
        )


def stream_error(message: str, kind: str, code: int) -> bytes:
    """An error inside a stream; unlike the rest, vLLM writes it with blanks after `:` and `,`."""
    text = msgspec.json.encode(message)
    return b'data: {"error": {"message": %b, "type": "%b", "param": null, "code": %d}}\n\n' % (
        text,
        kind.encode(),
        code,
    )


def whole_answer(
    endpoint: Endpoint,
    request_id: str,
    created: int,
    model: str,
    fingerprint: str,
    choices: list[tuple[str, str, str | None, list[int] | None]],
    prompt_tokens: int,
    completion_tokens: int,
    cached: int | None,
    prompt_ids: list[int] | None,
) -> bytes:
    """The body of a request that does not stream; `choices` as (text, finish reason, stop reason, token ids)."""
    chat = endpoint == "/v1/chat/completions"
    counts = usage(prompt_tokens, completion_tokens, None)
    counts["prompt_tokens_details"] = None if cached is None else {"cached_tokens": cached}
    counts["completion_tokens_details"] = None
    answer: dict[str, object] = {
        "id": request_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [
            _chat_choice(i, *choice) if chat else _completion_choice(i, *choice, prompt_ids)
            for i, choice in enumerate(choices)
        ],
        "service_tier": None,
        "system_fingerprint": fingerprint,
        "usage": counts,
    }
    if chat:
        answer |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
    answer |= {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}
    return msgspec.json.encode(answer)


def _chat_choice(i: int, text: str, finish: str, stop: str | None, ids: list[int] | None) -> dict[str, object]:
    message = {"role": "assistant", "content": text, "refusal": None, "annotations": None, "audio": None}
    message |= {"function_call": None, "reasoning": None}
    ending = {"finish_reason": finish, "stop_reason": stop, "token_ids": ids, "routed_experts": None}
    return {"index": i, "message": message, "logprobs": None, **ending}


def _completion_choice(
    i: int, text: str, finish: str, stop: str | None, ids: list[int] | None, prompt_ids: list[int] | None
) -> dict[str, object]:
    ending = {"finish_reason": finish, "stop_reason": stop, "token_ids": ids, "prompt_logprobs": None}
    return {
        "index": i,
        "text": text,
        "logprobs": None,
        **ending,
        "prompt_token_ids": prompt_ids,
        "routed_experts": None,
    }
