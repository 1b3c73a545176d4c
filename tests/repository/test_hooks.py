"""How a bundle's own code is found and called."""

import copy
import pickle
import sys
from textwrap import dedent

import numpy as np
import pytest

from app.domain.errors import BundleError
from app.repository.hooks import HookContext, Hooks, load_hooks

CONTEXT = HookContext("example", {"mode": "fast"}, deadline=7.5)
TENSORS = {"x": np.array([1.0, 2.0])}


@pytest.fixture
def hooks(tmp_path):
    """The hooks of the given source."""

    def load(source):
        (tmp_path / "hooks.py").write_text(dedent(source))
        return load_hooks(tmp_path)

    return load


@pytest.fixture
def complaint(hooks, tmp_path):
    """What is said about the given source, without the name of the file."""

    def complaint_of(source):
        with pytest.raises(BundleError) as caught:
            hooks(source)
        file, _, text = str(caught.value).partition(": ")
        assert file == str(tmp_path / "hooks.py")
        return text

    return complaint_of


def test_bundle_without_the_file_has_no_hooks(tmp_path):
    assert load_hooks(tmp_path) == Hooks(None, None, None)


def test_hook_that_is_not_defined_is_none(hooks):
    loaded = hooks("def postprocess(outputs): return outputs")
    assert loaded.preprocess is None
    assert loaded.run is None
    assert loaded.postprocess(TENSORS, CONTEXT) is TENSORS


@pytest.mark.parametrize(
    "signature",
    ["inputs, context", "inputs, context=None", "inputs, /, context", "*args", "inputs, context, other=1"],
)
def test_hook_that_takes_two_arguments_gets_the_context(hooks, signature):
    last = "args[1]" if signature == "*args" else "context"
    loaded = hooks(f"def preprocess({signature}): return {{'context': {last}}}")
    assert loaded.preprocess(TENSORS, CONTEXT) == {"context": CONTEXT}


@pytest.mark.parametrize("signature", ["inputs", "inputs, /", "inputs, *, scale=2", "inputs, **options"])
def test_hook_that_takes_one_argument_is_called_without_the_context(hooks, signature):
    loaded = hooks(f"def preprocess({signature}): return {{'inputs': inputs}}")
    assert loaded.preprocess(TENSORS, CONTEXT) == {"inputs": TENSORS}


@pytest.mark.parametrize("signature", ["", "a, b, c", "*, inputs", "inputs, *, scale"])
def test_hook_that_cannot_be_called_so_is_refused(complaint, signature):
    assert complaint(f"def preprocess({signature}): return {{}}") == (
        f"preprocess takes ({signature}): it is called with (tensors) or (tensors, context)"
    )


def test_decorated_hook_keeps_its_signature(hooks):
    loaded = hooks(
        """
        import functools

        def logged(hook):
            @functools.wraps(hook)
            def wrapper(*args):
                return hook(*args)
            return wrapper

        @logged
        def preprocess(inputs):
            return inputs
        """
    )
    assert loaded.preprocess(TENSORS, CONTEXT) is TENSORS


def test_preprocess_and_postprocess_of_a_request_share_its_state(hooks):
    loaded = hooks(
        """
        def preprocess(inputs, context):
            context.state["rows"] = len(inputs["x"])
            return inputs

        def postprocess(outputs, context):
            return {"rows": context.state["rows"]}
        """
    )
    context = HookContext("example")
    loaded.preprocess(TENSORS, context)
    assert loaded.postprocess({}, context) == {"rows": 2}
    assert HookContext("example").state == {}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("preprocess = 3", "preprocess is a int, not a function: define it with def"),
        ("class preprocess: pass", "preprocess is a type, not a function: define it with def"),
        ("from functools import partial; postprocess = partial(dict)", "postprocess is a partial, not a function"),
        ("async def preprocess(x): return x", "preprocess must return its tensors: define it without async and yield"),
        ("def preprocess(x): yield x", "preprocess must return its tensors: define it without async and yield"),
        ("async def preprocess(x): yield x", "preprocess must return its tensors: define it without async and yield"),
        ("def run(inputs): return inputs", "run takes (inputs): it is called with (inputs, call)"),
        (
            "def pre_process(x): return x",
            "defines none of preprocess, postprocess and run: define one at the top level",
        ),
        ("", "defines none of preprocess, postprocess and run: define one at the top level or remove the file"),
    ],
)
def test_what_is_no_hook_is_refused_with_the_remedy(complaint, source, said):
    assert complaint(source).startswith(said)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("\nimport no_such_module_anywhere", "import failed at line 2: ModuleNotFoundError: No module named"),
        ("def f():\n    return 1 / 0\n\nf()", "import failed at line 2: ZeroDivisionError: division by zero"),
        ("import sys; sys.exit(3)", "import failed at line 1: SystemExit: 3"),
        ("def preprocess(:", "import failed: SyntaxError: invalid syntax (hooks.py, line 1)"),
        ("a = '\0'", "import failed: SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_failing_import_is_named_with_its_exception(complaint, source, said):
    assert complaint(source).startswith(said)


def test_dataclasses_with_deferred_annotations_work_in_hooks(hooks):
    loaded = hooks(
        """
        from __future__ import annotations
        from dataclasses import dataclass

        @dataclass
        class Box:
            side: int

        def preprocess(inputs):
            return {"side": Box(3).side}
        """
    )
    assert loaded.preprocess(TENSORS, CONTEXT) == {"side": 3}


def test_hooks_find_the_files_beside_them(hooks, tmp_path):
    (tmp_path / "words.txt").write_text("cat dog")
    loaded = hooks(
        """
        from pathlib import Path
        WORDS = Path(__file__).with_name("words.txt").read_text().split()

        def preprocess(inputs):
            return {"words": WORDS}
        """
    )
    assert loaded.preprocess(TENSORS, CONTEXT) == {"words": ["cat", "dog"]}


def test_hook_module_stays_out_of_the_import_system(hooks, tmp_path):
    modules, path = dict(sys.modules), list(sys.path)
    hooks("def preprocess(inputs): return inputs")
    assert sys.modules == modules
    assert sys.path == path
    assert [file.name for file in tmp_path.iterdir()] == ["hooks.py"]


def test_edited_hooks_are_read_anew_even_within_the_same_second(hooks):
    first = hooks("def preprocess(inputs): return 1")
    second = hooks("def preprocess(inputs): return 2")
    assert (first.preprocess(TENSORS, CONTEXT), second.preprocess(TENSORS, CONTEXT)) == (1, 2)


def test_loads_of_the_same_hooks_share_no_state(hooks):
    source = """
        seen = []

        def preprocess(inputs):
            seen.append(1)
            return len(seen)
        """
    first, second = hooks(source), hooks(source)
    assert [hook.preprocess(TENSORS, CONTEXT) for hook in (first, first, second)] == [1, 2, 1]


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, lambda context: pickle.loads(pickle.dumps(context))])
def test_a_hook_may_copy_its_context_or_hand_it_to_another_process(take):
    assert take(CONTEXT) == CONTEXT
    assert take(CONTEXT) is not CONTEXT


def test_an_author_may_build_on_the_context():
    class Named(HookContext):
        name = "mine"

    assert Named("example").model == "example"
