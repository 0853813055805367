"""Why a request failed: the kinds, one reading for each exception, and messages that group.

A kind names what happened and goes into `by_error`; the message beside it says a little more and must be equal for
equal causes, or Locust's failures table would hold a line per request.
"""

from __future__ import annotations

import re
import socket
import ssl
from dataclasses import dataclass

CONNECT = "connect"
TLS = "tls"
TIMEOUT_CONNECT = "timeout_connect"
TIMEOUT_FIRST = "timeout_first"
TIMEOUT_IDLE = "timeout_idle"
TIMEOUT_TOTAL = "timeout_total"
RESET = "reset"
API_ERROR = "api_error"
ABORTED = "aborted"
TRUNCATED = "truncated"
MALFORMED = "malformed"
EMPTY = "empty"

KINDS: dict[str, str] = {
    CONNECT: "no connection: refused, unreachable, or a name that does not resolve",
    TLS: "the TLS handshake failed: certificate expired, for another name, or of an unknown issuer",
    TIMEOUT_CONNECT: "no connection within the time allowed",
    TIMEOUT_FIRST: "no first token within --first-token-timeout",
    TIMEOUT_IDLE: "nothing came for --idle-timeout in the middle of an answer",
    TIMEOUT_TOTAL: "not finished within --request-timeout",
    "http_3xx": "a redirect; it is not followed, because a second hop would be timed as the server's own work",
    "http_4xx": "refused by the server (the kind carries the status: http_429)",
    "http_5xx": "the server failed or is full (the kind carries the status: http_503)",
    API_ERROR: "an error object inside a reply that began well (HTTP 200), before or after tokens",
    ABORTED: 'the server gave up the answer (finish_reason "abort"), as vLLM does when it is told to stop',
    TRUNCATED: "the connection closed before the answer was whole",
    MALFORMED: "bytes that are not what was asked for: no HTTP, no event stream, no JSON, no UTF-8",
    EMPTY: "a reply without any answer in it, or a connection closed before any of it",
    RESET: "the connection was reset while the reply was awaited or under way",
}
"""Every kind and what it means to a reader of the failures table; `http_…` stands for its whole class."""

LONGEST_MESSAGE = 160
"""Characters kept of a message: enough to act on, too few to carry a prompt."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One reason for failing: a kind of `KINDS` (or `http_<status>`) and a message that groups."""

    kind: str
    message: str


def http_kind(status: int) -> str:
    """The kind of a reply with this status: `http_404`."""
    return f"http_{status}"


def from_exception(error: BaseException, *, connecting: bool) -> Failure:
    """The reading of a socket's exception; `connecting` until the connection (with TLS, if any) stands.

    A timeout after that is its caller's to name: only the caller knows which limit ran out.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure(
            TLS, groupable(f"certificate refused: {getattr(error, 'verify_message', '') or _tls_reason(error)}")
        )
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) and not connecting:
        return Failure(TRUNCATED, "TLS connection closed without notice")
    if isinstance(error, ssl.SSLError):
        return Failure(TLS, groupable(_tls_reason(error)))
    if isinstance(error, socket.gaierror | socket.herror):
        return Failure(CONNECT, groupable(f"name does not resolve: {error.strerror}"))
    if isinstance(error, TimeoutError):
        return Failure(TIMEOUT_CONNECT if connecting else TIMEOUT_TOTAL, "timed out")
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return Failure(CONNECT if connecting else RESET, "connection reset by the server")
    if isinstance(error, OSError):
        return Failure(CONNECT if connecting else RESET, groupable(error.strerror or type(error).__name__))
    return Failure(CONNECT if connecting else RESET, type(error).__name__)


def _tls_reason(error: ssl.SSLError) -> str:
    # Set by OpenSSL's own errors only.
    return getattr(error, "reason", None) or "handshake failed"


# What differs between two failures of one cause, and by what it is replaced. Order matters: an address holds numbers.
_VARYING: tuple[tuple[re.Pattern[str], str], ...] = (
    # Echoed input ("'input': [...]", "prompt: ..."): all that follows may be the prompt.
    (re.compile(r"""(['"]?\b(?:input|prompt|text|content|messages?_?body)\b['"]?\s*[:=]).*""", re.I | re.S), r"\1 …"),
    # Quoted runs with blanks in them, or long ones, are text rather than names.
    (re.compile(r"""(?<![\w…])(["'`])(?=(?:(?!\1).)*?\s|(?:(?!\1).){49})(?:(?!\1(?!\w)).)+(?:\1(?!\w)|$)"""), r"\1…\1"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.I), "ID"),
    (re.compile(r"\b(?:chatcmpl|cmpl|resp|req|request|call|msg|run|trace)[-_][\w-]*\d[\w-]*", re.I), "ID"),
    (re.compile(r"\[[0-9a-f:.]*:[0-9a-f:.]*\](?::\d+)?", re.I), "ADDRESS"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "ADDRESS"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"), "TIME"),
    (re.compile(r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? \d\d? \w{3} \d{4} [\d:]{8}(?: GMT)?"), "TIME"),
    (re.compile(r"\b0x[0-9a-f]+\b", re.I), "N"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", re.I), "ID"),
    (re.compile(r"(?<![\w.-])[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?", re.I), "N"),
    (re.compile(r"\d{5,}"), "N"),
)


# Far enough that a secret, which must be whole to be known, is not cut before what is kept ends.
_READ = 8192
_secrets: set[str] = set()


def keep_secret(secret: str) -> None:
    """From now on no text that passes `redacted` shows it: servers and gateways echo keys in their error bodies."""
    _secrets.add(secret)


def redacted(text: str) -> str:
    """`text` without the secrets that this process was told of."""
    for secret in _secrets:
        text = text.replace(secret, "REDACTED")
    return text


def groupable(text: str) -> str:
    """`text` on one line without what differs from request to request: ids, numbers, times, addresses, echoed prompts.

    Numbers inside names (`Llama-3.1-8B`, `max_tokens2`) stay: they are the cause, not the occasion.
    """
    # Patterns run on a bounded prefix: an error page of a megabyte must not stall the reader.
    text = _one_line(redacted(text[:_READ])[: 8 * LONGEST_MESSAGE])
    for pattern, replacement in _VARYING:
        text = pattern.sub(replacement, text)
    text = _one_line(text)
    return text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 1] + "…"


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
