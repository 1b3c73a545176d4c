"""A real server for real clients, and each client's own environment, which `make test-clients` makes."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT, running
from tests.e2e.test_clients import echo

#: Model → the datatypes that it answers unchanged: input `FP32` is output `FP32_out`.
ECHOES = {"floats": ["FP32"], "several": ["FP32", "INT64", "BOOL"], "half": ["FP16"], "text": ["BYTES"]}


def environment(client) -> Path:
    """The folder of a client's environment."""
    folder: Path = ROOT / os.environ.get("CLIENTS", ".venv/clients") / client
    if not (folder / ".made").exists():
        pytest.fail(f"the environment of {client} is not there: make test-clients makes it")
    return folder


def write_echoes(bundles):
    """Models that answer what they are given; rows are coalesced and cut like any others."""
    for model, datatypes in ECHOES.items():
        (bundles / model).mkdir(parents=True)
        (bundles / model / "model.onnx").write_bytes(echo(datatypes).SerializeToString())
        (bundles / model / "manifest.yaml").write_text(
            'format_version: "1"\nbatching: {compiled_batch_sizes: [1, 2, 4]}\n'
        )


@contextmanager
def serving(folder, **settings):
    """The echoes in a process of their own."""
    bundles = folder / "bundles"
    write_echoes(bundles)
    with running(folder / "cache", bundles, **settings) as process:
        yield process


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The echoes, asked by anybody."""
    with serving(tmp_path_factory.mktemp("server")) as process:
        yield process
