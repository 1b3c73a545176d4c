"""What a real server does not keep: sockets, probes and bodies leave nothing behind."""

import json
import os
import socket
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

MB = 1 << 20

ROW = [0.5] * 30


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def private_bytes(server):
    _, resident, shared, *_ = Path(f"/proc/{server.process.pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def probe(connection):
    connection.request("GET", "/v2/health/ready")
    answer = connection.getresponse()
    assert (answer.status, answer.read()) == (200, b'{"ready":true}')


def test_probes_leave_nothing_behind(either):
    """As often as a kubelet asks in two hours, over one connection and over many."""
    with closing(HTTPConnection("127.0.0.1", either.port, timeout=60)) as one:
        for _ in range(500):
            probe(one)
        before = descriptors(either), private_bytes(either)
        for _ in range(3_000):
            probe(one)
        for _ in range(200):
            with closing(HTTPConnection("127.0.0.1", either.port, timeout=60)) as another:
                probe(another)
        probe(one)
        assert descriptors(either) <= before[0] + 5  # the last of those connections may just be closing
        assert private_bytes(either) - before[1] < 4 * MB


def in_single_bytes(body):
    """A chunk for every byte."""
    return b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"


def read_answer(connection):
    """Head and body of an answer with a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head, json.loads(body)


def test_a_body_in_chunks_of_one_byte_is_a_body_and_is_not_kept(either):
    request = {"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 30], "data": ROW}]}
    body = json.dumps(request).encode().ljust(200_000)
    head = b"POST /v2/models/tabular/infer HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    message = head + in_single_bytes(body)
    levels = []
    with socket.create_connection(("127.0.0.1", either.port), timeout=60) as connection:
        for _ in range(4):
            connection.sendall(message)
            told, answer = read_answer(connection)
            assert told.startswith(b"HTTP/1.1 200")
            assert answer["model_name"] == "tabular"
            levels.append(private_bytes(either))
    assert levels[-1] - levels[0] < 4 * MB
    assert max(levels) < 400 * MB
