"""Targets, framing, bodies: what needs no connection."""

import pytest

from app.api.connection import FORGETTABLE_BYTES, Body, Exchange, Repeat, forgettable, framing, infer_target
from app.api.exchange import Reply, RequestHead


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/v2/models/m/infer", ("m", None)),
        (b"/v2/models/m/versions/12/infer", ("m", "12")),
        (b"/v2/models/m/infer?a=/v2/models/x/infer", ("m", None)),
        (b"/v2/models/m/infer?", ("m", None)),
        (b"/v2/models/a%2Fb%25%C3%A9/versions/%31/infer", ("a/b%\u00e9", "1")),
        (b"/v2/models/..%2f..%2f/infer", ("../../", None)),
        (b"/v2/models/infer/infer", ("infer", None)),
        (b"/v2/models/m/infer/", None),
        (b"/v2/models//infer", None),
        (b"/v2/models/m/versions//infer", None),
        (b"/v2/models/m/versions/1/2/infer", None),
        (b"/v2/models/m", None),
        (b"/v2/models/m/inferx", None),
        (b"/v2/models/m/generate", None),
        (b"http://host/v2/models/m/infer", None),
        (b"/v2/models/\xff/infer", None),
        (b"", None),
    ],
)
def test_targets(target, expected):
    assert infer_target(target) == expected


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], (0, False)),
        ([(b"content-length", b"12 ")], (12, False)),
        ([(b"transfer-encoding", b"chunked")], (None, False)),
        ([(b"expect", b"100-Continue"), (b"content-length", b"5")], (5, True)),
        ([(b"transfer-encoding", b"chunked"), (b"expect", b"100-continue")], (None, True)),
        ([(b"expect", b"something-else")], (0, False)),
    ],
)
def test_framing(headers, expected):
    assert framing(headers) == expected


def test_only_short_bodies_that_surely_come_are_forgotten():
    assert forgettable(0, False)
    assert forgettable(0, True)
    assert forgettable(FORGETTABLE_BYTES, False)
    assert not forgettable(FORGETTABLE_BYTES + 1, False)
    assert not forgettable(1, True)
    assert not forgettable(None, False)


def test_a_body_in_one_piece_is_that_piece():
    piece = b"x" * 100
    body = Body(100)
    body.add(piece)
    assert body.missing == 0
    assert body.take() is piece


@pytest.mark.parametrize("length", [9, None])
def test_a_body_in_pieces_is_one_buffer(length):
    body = Body(length)
    for piece in (b"", b"one", b"", b"two", b"345"):
        body.add(piece)
    assert body.missing == 0
    assert body.filled == 9
    assert bytes(body.take()) == b"onetwo345"


def test_a_body_knows_what_is_missing():
    body = Body(5)
    body.add(b"ab")
    assert body.missing == 3


def exchange(length, **changes):
    made = Exchange(RequestHead("m", None, (), 0.0, length), b"/")
    for name, value in changes.items():
        setattr(made, name, value)
    return made


HEAD = b"POST / HTTP/1.1\r\ncontent-length: 6\r\n\r\n"


def test_a_request_alone_in_its_data_is_remembered():
    made = exchange(6)
    repeat = Repeat.of(made, HEAD + b"ab\r\n\r\n")
    assert repeat == Repeat(HEAD, len(HEAD) + 6, made)


def test_a_remembered_request_comes_again_without_a_trace_of_the_last_one():
    made = exchange(6, ticket=None, complete=True)
    made.head.read = object()
    read = made.head.read
    repeat = Repeat.of(made, HEAD + b"abcdef")
    made.reply, made.started, made.head.admitted = Reply(404, (), []), True, True
    assert repeat is not None
    again = repeat.again(7.0)
    assert (again.reply, again.ticket, again.started, again.keep_alive) == (None, None, False, True)
    assert (again.head.received_at, again.head.admitted, again.head.read) == (7.0, False, read)


@pytest.mark.parametrize(
    ("made", "data"),
    [
        (exchange(6), HEAD + b"abcdef\r\n"),
        (exchange(6), b"\r\n" + HEAD + b"abcdef"),
        (exchange(6), HEAD + b"abcdef" + HEAD + b"abcdef"),
        (exchange(6), b"\r\n" * 5),
        (exchange(0), b"\r\n\r\n"),
        (exchange(None), HEAD + b"abcdef"),
        (exchange(6, old=True), HEAD + b"abcdef"),
        (exchange(6, waits=True), HEAD + b"abcdef"),
        (exchange(6, keep_alive=False), HEAD + b"abcdef"),
        (exchange(6), b"POST / HTTP/1.1\r\nx: " + b"y" * 5000 + b"\r\n\r\n" + b"abcdef"),
    ],
)
def test_anything_else_is_not_remembered(made, data):
    assert Repeat.of(made, data) is None
