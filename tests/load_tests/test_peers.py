"""The peer serves the same model, and its processes are counted: needs `make .venv/peers`."""

import pytest

from load_tests.models import mlp, write_bundle
from load_tests.peers import WIDTHS, mosec, same_answers
from load_tests.processes import family, inference_server
from load_tests.wire import InferCall, infer_call, random_rows


@pytest.mark.clients
def test_mosec_computes_what_the_server_computes(tmp_path):
    model_file = write_bundle(tmp_path / "bundles", "mlp", mlp(WIDTHS))
    row = random_rows(1, WIDTHS[0])
    ours_call, raw_call = infer_call("mlp", {"x": row}), InferCall("/inference", row.tobytes())
    with (
        inference_server(tmp_path / "bundles", CACHE_DIR=str(tmp_path / "cache")) as ours,
        mosec(model_file, 8, 1) as peer,
    ):
        assert same_answers(ours, ours_call, peer, raw_call)
        assert len(family(peer.pid)) > 1
        assert sum(peer.cpu()) > 0
