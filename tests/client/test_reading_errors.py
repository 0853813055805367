"""Exceptions of sockets have one kind each; every kind is explained; messages keep the cause and drop the occasion."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import pytest

from locustfiles.client.error_bodies import error_message, message_in
from locustfiles.client.errors import KINDS, Failure, from_exception, groupable, http_kind


def _os(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("error", "connecting", "kind"),
    [
        (_os(errno.ECONNREFUSED), True, "connect"),
        (_os(errno.EHOSTUNREACH), True, "connect"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), True, "connect"),
        (_os(errno.ECONNRESET), True, "connect"),
        (TimeoutError(), True, "timeout_connect"),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), True, "tls"),
        (ssl.SSLError(1, "wrong version number"), True, "tls"),
        (ssl.SSLEOFError(8, "EOF occurred"), True, "tls"),
        (ssl.SSLEOFError(8, "EOF occurred"), False, "truncated"),
        (_os(errno.ECONNRESET), False, "reset"),
        (_os(errno.EPIPE), False, "reset"),
        (_os(errno.ENETDOWN), False, "reset"),
    ],
)
def test_exceptions(error: BaseException, connecting: bool, kind: str) -> None:
    failure = from_exception(error, connecting=connecting)
    assert failure.kind == kind in KINDS
    assert failure.message == groupable(failure.message) != ""


def test_statuses() -> None:
    assert (http_kind(404), http_kind(503)) == ("http_404", "http_503")
    assert Failure("http_404", "x") == Failure(http_kind(404), "x")


@pytest.mark.parametrize(
    ("text", "grouped"),
    [
        ("The model `nope` does not exist.", "The model `nope` does not exist."),
        ("Llama-3.1-8B is not here", "Llama-3.1-8B is not here"),
        ("chatcmpl-9bdd364a535d625a was lost", "ID was lost"),
        ("user48213 waits for worker3", "userN waits for worker3"),
        ("task 7f3c91aa02 failed", "task ID failed"),
        ("no answer from 10.1.2.3:8000 or [::1]:8001", "no answer from ADDRESS or ADDRESS"),
        ("http://host:8123/v1 is gone", "http://host:N/v1 is gone"),
        ("at 2026-11-29T14:31:46.120Z: 12 of 4,096 tokens, 1.5e3 ms", "at TIME: N of N tokens, N ms"),
        ("cannot read 'tell me a story'", "cannot read '…'"),
        ("{'loc': 'body.messages', 'input': [{'role': 'user'}]}", "{'loc': 'body.messages', 'input': …"),
        ("line one\n\tline two", "line one line two"),
        ("word " * 100, ("word " * 100)[:159] + "…"),
    ],
)
def test_messages(text: str, grouped: str) -> None:
    assert groupable(text) == grouped


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ({"message": "m", "type": "T", "code": 500}, "T: m"),
        ({"message": "m", "code": "c"}, "c: m"),
        ({"message": {"error": {"message": "inner"}}}, "inner"),
        ([{"message": "m"}], "m"),
        ("text", "text"),
        (503, "N"),
        ({}, "error without a message"),
        (None, "error without a message"),
        (True, "error without a message"),
    ],
)
def test_error_objects_of_any_shape(error: object, message: str) -> None:
    assert error_message(error) == message


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", ""),
        (b'{"detail": [{"msg": "x", "message": "field required"}]}', "field required"),
        (b'"just text"', "just text"),
        (b"<!DOCTYPE html><html>", "HTML page"),
        (b"upstream died after 30 s", "upstream died after N s"),
        (b"\xff\xfe", "\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_error_pages(body: bytes, message: str) -> None:
    assert message_in(body) == message
