"""Do meta models leave others their share? `faces` asked by 32 at a time, beside steady traffic of another model.

Each answer of `faces` is compared with that of the same picture asked alone; the device time of the other model, whose
queue never runs empty, with its share by weight while all four models contend; and the executions of the first networks
with their sub-calls, which those of different requests share.
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import skimage.data
from PIL import Image

from load_tests.models import write_bundle
from load_tests.processes import Server, inference_server
from load_tests.report import machine, spread, verdict
from load_tests.treadmill import WIDTH, treadmill, turn_seconds
from load_tests.wire import infer_call, random_rows
from load_tests.wrk import background

BUNDLES = Path(__file__).parents[1] / "bundles"

STAGES = ("faces-propose", "faces-refine", "faces-landmarks")

#: Seconds that one execution of the other model takes, and its connections.
OTHER, OTHER_SECONDS, CONNECTIONS = "steady", 0.005, 16

AT_ONCE = 32


def pictures() -> list[bytes]:
    """Photographs with one face, with none, and with four, in several sizes."""
    photographs: Any = skimage.data
    astronaut, cat = photographs.astronaut(), photographs.chelsea()
    mosaic = np.tile(astronaut[:256, 100:356], (2, 2, 1))
    found = []
    for pixels in (astronaut, cat, mosaic):
        for side in (160, 220, 300):
            image = Image.fromarray(pixels)
            image.thumbnail((side, side))
            stream = io.BytesIO()
            image.save(stream, "PNG")
            found.append(stream.getvalue())
    return found


def ask(server: Server, picture: bytes) -> dict[str, Any]:
    """The outputs of `faces` for one picture, by name."""
    head = orjson.dumps(
        {
            "inputs": [
                {
                    "name": "image",
                    "shape": [1],
                    "datatype": "BYTES",
                    "parameters": {"binary_data_size": len(picture) + 4},
                }
            ]
        }
    )
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    body = head + len(picture).to_bytes(4, "little") + picture
    answer = orjson.loads(server.post("/v2/models/faces/infer", body, headers))
    return {output["name"]: output["data"] for output in answer["outputs"]}


def counters(server: Server) -> Mapping[str, Mapping[str, Any]]:
    """What `/status` counts, by model, parts of the meta model included."""
    models = server.models()
    return {each["name"]: each["serving"] for model in models for each in (model, *model["parts"]) if each["serving"]}


def same(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two answers are equal, but for what batches of another size round differently."""
    return all(
        len(left[name]) == len(right[name]) and np.allclose(left[name], right[name], rtol=1e-3, atol=1e-2)
        for name in ("boxes", "scores", "landmarks")
    )


def storm(server: Server, asked: Sequence[bytes], alone: Sequence[Mapping[str, Any]]) -> int:
    """Ask for all pictures, so many at a time; how many answers were not those of the picture alone."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = pool.map(lambda index: ask(server, asked[index % len(asked)]), range(4 * AT_ONCE))
        return sum(not same(answer, alone[index % len(alone)]) for index, answer in enumerate(answers))


def main(argv: Sequence[str] | None = None) -> int:
    """Print shares and executions; 1 when an answer was wrong, or the other model had too little of the device."""
    parser = argparse.ArgumentParser(prog="pipelines", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=0.5, help="least part of its share that the other model gets")
    arguments = parser.parse_args(argv)
    print(machine())
    asked = pictures()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        manifest = 'format_version: "1"\nbatching: {compiled_batch_sizes: [1, 2]}\n'
        write_bundle(root / "bundles", OTHER, treadmill(round(OTHER_SECONDS / turn_seconds())), manifest)
        for name in ("faces", *STAGES):
            (root / "bundles" / name).symlink_to(BUNDLES / name)
        settings = {
            "CACHE_DIR": str(root / "cache"),
            "RUNTIME_INTRA_OP_THREADS": "1",
            "SCHEDULER_DISCIPLINE": "fair",
            "META_CONCURRENCY": "8",
            "SCHEDULER_EMA_HALFLIFE_SECONDS": "2",
        }
        with inference_server(root / "bundles", **settings) as server:
            alone = [ask(server, picture) for picture in asked]
            wrong, parts = 0, []
            call = infer_call(OTHER, {"x": random_rows(1, WIDTH)})
            with background(server, call, CONNECTIONS):
                for turn in range(arguments.rounds):
                    before = counters(server)
                    wrong += storm(server, asked, alone)
                    parts.append(_told(before, counters(server), turn))
    text = (
        f"the other model got {spread(parts)} × its share by weight (limit {arguments.limit:g}); "
        f"{wrong} of {4 * AT_ONCE * arguments.rounds} answers were not those of the picture alone"
    )
    return verdict(min(parts) >= arguments.limit and not wrong, text)


def _told(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]], turn: int) -> float:
    """The part of its share that the other model got in one round; a line for each model."""
    names = (OTHER, *STAGES)
    used = {name: after[name]["compute_seconds"] - before[name]["compute_seconds"] for name in names}
    runs = {name: after[name]["dispatches"] - before[name]["dispatches"] for name in names}
    calls = {name: after[name]["requests"] - before[name]["requests"] for name in names}
    total, share = sum(used.values()), 1 / len(names)
    for name in names:
        print(
            f"round {turn + 1}  {name:>16}: {used[name] / total:6.1%} of the device time, "
            f"{calls[name] / max(runs[name], 1):.2f} requests an execution ({runs[name]})",
            flush=True,
        )
    return float(used[OTHER] / total / share)


if __name__ == "__main__":
    sys.exit(main())
