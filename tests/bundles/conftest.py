"""Runs a bundle's real model in this process, as the server would: hooks around a plain session."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from app.domain.tensors import Tensors, TensorSpec
from app.repository.bundle import load_bundle
from app.repository.hooks import HookContext

BUNDLES = Path(__file__).parents[2] / "bundles"


@pytest.fixture(scope="session")
def load():
    """A bundle of this repository by name."""
    return lambda name: load_bundle(BUNDLES / name)


@pytest.fixture(scope="session")
def serve(load):
    """A function that answers client inputs with the named bundle, and checks every tensor against the manifest."""

    def check(specs: Iterable[TensorSpec], tensors: Tensors) -> None:
        for spec in specs:
            assert tensors[spec.name].dtype == spec.dtype
            assert spec.accepts(tensors[spec.name].shape)

    def served(name):
        bundle = load(name)
        session = onnxruntime.InferenceSession(bundle.model_file, providers=["CPUExecutionProvider"])
        names = [spec.name for spec in bundle.spec.outputs]

        def answer(**inputs):
            context = HookContext(name)
            check(bundle.spec.client_inputs, inputs)
            tensors = bundle.hooks.preprocess(inputs, context) if bundle.hooks.preprocess else inputs
            check(bundle.spec.inputs, tensors)
            outputs = dict(zip(names, session.run(names, tensors), strict=True))
            check(bundle.spec.outputs, outputs)
            outputs = bundle.hooks.postprocess(outputs, context) if bundle.hooks.postprocess else outputs
            check(bundle.spec.client_outputs, outputs)
            return outputs

        return answer

    return served


@pytest.fixture(scope="session")
def as_bytes():
    """A BYTES tensor of the given elements."""

    def tensor(elements):
        array = np.empty(len(elements), dtype=np.object_)
        array[:] = elements
        return array

    return tensor
