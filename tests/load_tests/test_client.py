"""The clients of the load generator: when they send, what they note, and what they make of whatever answers."""

import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from load_tests.client import ANSWERED, CLOSED, DUE, OK, OUTCOME, SENT, UNANSWERED, WHICH, Clients, Plan
from load_tests.crew import drive

ANSWER = b"HTTP/1.1 200 OK\r\nserver-timing: queue;dur=1.500\r\ncontent-length: 3\r\n\r\nabc"
REFUSAL = b'HTTP/1.1 429 Too Many\r\nContent-Length: 23\r\n\r\n{"code":"queue_full"}\r\n'

#: Ends a connection instead of an answer; answers nothing.
HANG_UP, SILENCE = b"hang up", b"silence"


def talk(client, script, size, heard):
    """Answer the requests of one connection, by the script, over and over."""
    with client:
        for number in range(1_000_000):
            data = client.recv(size, socket.MSG_WAITALL)
            if not data:
                return
            heard.append(data)
            answer = script[number % len(script)]
            for piece in answer if isinstance(answer, list) else [answer]:
                if piece == HANG_UP:
                    return
                if piece != SILENCE:
                    client.sendall(piece)


@contextmanager
def answering(*script, size=4):
    """A server of requests of `size` bytes: its port, and what it heard."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard: list[bytes] = []

    def accept():
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(client, script, size, heard), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], heard
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(10)


def plan(port, *, requests=(b"POST",), times=None, which=(0,), connections=2, seconds=30.0, **more):
    instants = None if times is None else np.array(times, np.float64)
    return Plan("127.0.0.1", port, requests, np.array(which), connections, seconds, instants, **more)


def run(planned):
    return Clients(planned).run(time.monotonic())


def outcomes(seen):
    return [seen.outcomes[int(number)] for number in seen.records[:, OUTCOME]]


def test_a_closed_loop_sends_again_when_it_is_answered_until_it_has_sent_enough():
    with answering(ANSWER) as (port, heard):
        seen = run(plan(port, stop_after=100))
    assert len(heard) == 100
    assert outcomes(seen) == [OK] * 100
    assert np.all(seen.records[:, DUE] <= seen.records[:, SENT])
    assert np.all(seen.records[:, SENT] <= seen.records[:, ANSWERED])


def test_fewer_requests_than_connections_are_no_more():
    with answering(ANSWER) as (port, heard):
        run(plan(port, stop_after=1, connections=4))
    assert len(heard) == 1


def test_an_open_loop_sends_each_request_when_it_is_due():
    times = [0.0, 0.05, 0.05, 0.2]
    with answering(ANSWER) as (port, heard):
        seen = run(plan(port, requests=(b"aaaa", b"bbbb"), times=times, which=[0, 1, 0, 1]))
    assert sorted(seen.records[:, DUE]) == pytest.approx(times)
    assert np.all(seen.records[:, SENT] >= seen.records[:, DUE])
    assert sorted(seen.records[:, WHICH]) == [0, 0, 1, 1]
    assert sorted(heard) == [b"aaaa", b"aaaa", b"bbbb", b"bbbb"]


def test_what_waits_for_a_connection_counts_from_when_it_was_due():
    """No coordinated omission: one slow answer makes everything behind it late, and all of it is seen."""
    with answering([SILENCE], ANSWER) as (port, _):
        seen = run(plan(port, times=[0.0, 0.01, 0.02], which=[0, 0, 0], connections=1, patience=0.6))
    assert outcomes(seen) == [UNANSWERED, UNANSWERED, UNANSWERED]  # each connection's first answer never comes
    latency = seen.records[:, ANSWERED] - seen.records[:, DUE]
    assert np.all(np.diff(latency) > 0.5)
    assert seen.queued == 2


def test_answers_in_pieces_are_put_together():
    pieces = [ANSWER[:5], ANSWER[5:60], ANSWER[60:-1], ANSWER[-1:]]
    with answering(pieces, [REFUSAL[:-1], REFUSAL[-1:]]) as (port, _):
        seen = run(plan(port, stop_after=10, connections=1))
    assert outcomes(seen) == [OK, "queue_full"] * 5


def test_a_long_request_leaves_in_as_many_pieces_as_the_socket_takes():
    long = b"x" * 4_000_000
    with answering(ANSWER, size=len(long)) as (port, heard):
        seen = run(plan(port, requests=(long,), stop_after=2, connections=1))
    assert outcomes(seen) == [OK] * 2
    assert heard == [long] * 2


def test_refusals_are_told_by_their_code_and_other_errors_by_their_status():
    unavailable = b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n"
    with answering(REFUSAL, unavailable, ANSWER) as (port, _):
        seen = run(plan(port, stop_after=6, connections=1))
    assert outcomes(seen) == ["queue_full", "503", OK] * 2


def test_a_connection_that_is_closed_is_opened_anew():
    with answering(ANSWER, HANG_UP) as (port, _):
        seen = run(plan(port, stop_after=8, connections=1))
    assert outcomes(seen) == [OK, CLOSED] * 4


def test_every_so_many_server_timings_are_kept():
    with answering(ANSWER) as (port, _):
        seen = run(plan(port, stop_after=100, sample=10))
    assert seen.timings == (b"queue;dur=1.500",) * 10


def test_an_answer_without_a_length_is_an_error_of_the_program():
    with answering(b"HTTP/1.1 200 OK\r\n\r\n") as (port, _), pytest.raises(RuntimeError, match="Content-Length"):
        run(plan(port, stop_after=1))


def test_several_processes_start_at_one_instant():
    ticks: list[object] = []
    with answering(ANSWER) as (port, heard):
        seen = drive(
            [plan(port, stop_after=20)] * 2, lambda: ticks.append("begun"), lambda seconds: ticks.append(seconds)
        )
    assert len(heard) == 40
    assert [len(each.records) for each in seen] == [20, 20]
    assert ticks[0] == "begun"
    assert len(ticks) > 1
