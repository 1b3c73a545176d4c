"""However a stream of requests is cut into reads, its answers are the same."""

import asyncio
from itertools import pairwise

import pytest
import uvloop
from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.api.doors.harness import chunked, request, serve

BODIES = st.binary(max_size=40) | st.just(b"\r\n\r\n") | st.just(b"x" * 70_000)


OFFER = b"Upgrade: h2c\r\nConnection: Upgrade\r\n"


def post(path, body, headers=b""):
    return b"POST %b HTTP/1.1\r\nHost: test\r\n%bContent-Length: %d\r\n\r\n%b" % (path, headers, len(body), body)


INFER = BODIES.map(lambda body: (request(body), (200, body)))
REQUESTS = st.one_of(
    INFER,
    INFER,
    st.lists(st.binary(min_size=1, max_size=9), max_size=4).map(lambda p: (chunked(*p), (200, b"".join(p)))),
    st.binary(max_size=9).map(lambda body: (request(body, "missing"), (404, None))),
    st.binary(max_size=9).map(lambda body: (post(b"/other", body), (200, b"asgi /other " + body))),
    st.just((b"GET /other HTTP/1.1\r\nHost: test\r\n\r\n", (200, b"asgi /other "))),
    BODIES.map(lambda body: (post(b"/other", body, OFFER), (200, b"asgi /other " + body))),
    st.just((b"GET /other HTTP/1.1\r\nHost: test\r\n" + OFFER + b"\r\n", (200, b"asgi /other "))),
    st.binary(max_size=9).map(lambda body: (request(body, "m", "Upgrade: h2c", "Connection: Upgrade"), (200, body))),
)


async def answers(reads, count):
    async with serve("fast") as server:
        client = await server.connect()
        for data in reads:
            await client.send(data)
            for _ in range(3):  # let the server read what it was sent
                await asyncio.sleep(0)
        got = [await client.response() for _ in range(count)]
        assert server.handler.in_flight == 0
    return got


@settings(max_examples=150)
@given(st.lists(REQUESTS, min_size=1, max_size=6), st.data())
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_answers_do_not_depend_on_how_requests_are_cut(run, requests, data):
    stream = b"".join(sent for sent, _ in requests)
    aligned = [0]
    for sent, _ in requests:
        aligned.append(aligned[-1] + len(sent))
    cuts = data.draw(st.sets(st.sampled_from(aligned) | st.integers(0, len(stream)), max_size=8))
    event(f"whole requests: {set(aligned) <= {0, *cuts, len(stream)}}")
    edges = [0, *sorted(cuts), len(stream)]
    got = run(answers([stream[a:b] for a, b in pairwise(edges) if a < b], len(requests)))
    for response, (_, (status, body)) in zip(got, requests, strict=True):
        assert response.status == status
        if body is not None:
            assert response.body == body
