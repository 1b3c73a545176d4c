"""The cost of one small request: our server against a bare uvicorn application that answers the same bytes."""

import argparse
import sys
import tempfile
import urllib.request
from pathlib import Path
from statistics import median

import numpy as np
import orjson

from load_tests.models import mlp, write_bundle
from load_tests.processes import Figures, Server, bare_echo, inference_server, wrk

PATH = "/v2/models/mlp/infer"

WIDTHS = (64, 128, 10)


def request_body(rows: int = 1) -> tuple[bytes, int]:
    """One binary V2 request, as tritonclient writes it, and the length of its JSON part."""
    values = np.random.default_rng(1).standard_normal((rows, WIDTHS[0]), dtype=np.float32).tobytes()
    head = orjson.dumps(
        {
            "parameters": {"binary_data_output": True},
            "inputs": [
                {
                    "name": "x",
                    "shape": [rows, WIDTHS[0]],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": len(values)},
                }
            ],
        }
    )
    return head + values, len(head)


def answer_of(server: Server, body: bytes, head_length: int) -> bytes:
    """The bytes that our server answers."""
    headers = {"Inference-Header-Content-Length": str(head_length)}
    with urllib.request.urlopen(urllib.request.Request(server.url + PATH, body, headers)) as response:
        return bytes(response.read())


def main() -> int:
    """Measure A B A B and print ratios; 1 when the ratio is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 32, 64])
    parser.add_argument("--limit", type=float, default=1.5, help="most CPU per request at 32 connections, × the echo's")
    arguments = parser.parse_args()
    body, head_length = request_body()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_bundle(root / "bundles", "mlp", mlp(WIDTHS))
        (root / "body").write_bytes(body)
        with inference_server(root / "bundles", CACHE_DIR=str(root / "cache"), SWITCH_INTERVAL_US="50") as ours:
            (root / "answer").write_bytes(answer_of(ours, body, head_length))
            with bare_echo(root / "answer") as echo:
                print("connections   server    req/s   p50 µs   p99 µs  CPU µs/req errors")
                ratios = {}
                for connections in arguments.connections:
                    pairs: list[tuple[Figures, Figures]] = []
                    for _ in range(arguments.rounds):
                        pair = tuple(
                            wrk(server, PATH, root / "body", head_length, connections, arguments.seconds)
                            for server in (ours, echo)
                        )
                        for name, figures in zip(("ours", "echo"), pair, strict=True):
                            print(
                                f"{connections:11} {name:>8} {figures.rate:8.0f} {figures.p50 * 1e6:8.0f} "
                                f"{figures.p99 * 1e6:8.0f} {figures.cpu * 1e6:11.1f} {figures.errors}"
                            )
                        pairs.append((pair[0], pair[1]))
                    ratios[connections] = median(a.cpu / b.cpu for a, b in pairs)
                    latency = median(a.p50 / b.p50 for a, b in pairs)
                    rate = median(a.rate / b.rate for a, b in pairs)
                    print(
                        f"{connections:11}    ratio: CPU per request {ratios[connections]:.2f} ×, p50 {latency:.2f} ×, "
                        f"requests/s {rate:.2f} × the echo's (median of {len(pairs)} pairs)"
                    )
    return 1 if ratios.get(32, 0.0) > arguments.limit else 0


if __name__ == "__main__":
    sys.exit(main())
