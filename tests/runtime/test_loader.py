"""The loader thread: what it brings, and how it ends."""

import concurrent.futures
import os
import threading

import pytest

from app.backends.fake import FakeBackend
from app.domain.batch_safety import BatchProbe, Beside, Deviation, Verdict
from app.domain.errors import BundleError, ShuttingDown
from app.domain.model import DEFAULT_SIZES
from app.repository.build import Builder
from app.runtime.loader import Loader
from tests.builders import write_identity_bundle


@pytest.fixture
def backend():
    return FakeBackend()


@pytest.fixture
def loader(backend):
    loader = Loader(backend)
    yield loader
    loader.stop()


def test_a_bundle_is_read_compiled_and_built(loader, backend, tmp_path):
    loaded = loader.compile(write_identity_bundle(tmp_path))
    assert loaded.bundle.spec.name == "m"
    assert loaded.entry.weight_bytes == 1000
    assert backend.compiled == ["m"]
    assert backend.loaded == []
    assert loader.build(loaded).load().weight_bytes == 1000


@pytest.fixture
def verdict(loader, backend, tmp_path, caplog):
    """The specification under which a bundle is admitted after such a probe, and what is logged."""

    def load(*deviations, padding=None, batching="", **probe):
        backend.probes["m"] = BatchProbe(deviations, **probe)
        path = write_identity_bundle(tmp_path)
        (path / "manifest.yaml").write_text(f'format_version: "1"\nbatching: {{{batching}}}\n')
        loaded = loader.compile(path, padding)
        assert loader.build(loaded).load().spec is loaded.bundle.spec
        return loaded.bundle.spec, caplog.messages

    return load


def deviation(difference, beside=Beside.NEIGHBOURS):
    return Deviation("y", beside, "variant 'default', 2 rows", difference, 1.0)


def test_a_model_whose_rows_are_independent_is_batched_without_a_word(verdict):
    spec, messages = verdict()
    assert (spec.coalescible, spec.sizes("default"), spec.batch_safety.verdict) == (True, DEFAULT_SIZES, Verdict.SAFE)
    assert messages == []


def test_an_unsafe_model_is_admitted_without_batches_and_one_line_says_why(verdict):
    spec, messages = verdict(deviation(0.5))
    assert (spec.coalescible, spec.sizes("default"), spec.largest("default")) == (False, (), None)
    assert spec.variants[0].compiled_sizes == ()
    assert spec.batch_safety.verdict is Verdict.UNSAFE
    assert messages == [f"model m: batches are unsafe: {spec.batching_reason}"]


@pytest.mark.parametrize(
    ("batching", "expected", "lines"), [("verify: warn", Verdict.UNSAFE, 1), ("verify: off", Verdict.OFF, 0)]
)
def test_warn_and_off_change_no_behaviour(verdict, batching, expected, lines):
    spec, messages = verdict(deviation(0.5), batching=batching)
    assert (spec.coalescible, spec.sizes("default"), spec.batch_safety.verdict) == (True, DEFAULT_SIZES, expected)
    assert len(messages) == lines


def test_tolerances_of_the_manifest_decide(verdict):
    assert verdict(deviation(0.5), batching="rtol: 0.4")[0].batch_safety.verdict is Verdict.UNSAFE
    assert verdict(deviation(0.5), batching="rtol: 0.4, atol: 0.1")[0].batch_safety.verdict is Verdict.SAFE


def test_an_approximation_is_batched_with_a_warning_that_states_the_figure(verdict):
    spec, messages = verdict(deviation(0.0123), quantised=True)
    assert (spec.coalescible, spec.batch_safety.figure) == (True, 0.0123)
    assert len(messages) == 1
    assert "approximate" in messages[0]
    assert "0.012 of its range" in messages[0]


def test_what_could_not_be_tried_is_batched_with_a_warning(verdict):
    spec, messages = verdict(failure="Gather: index out of range")
    assert (spec.coalescible, spec.batch_safety.verdict) == (True, Verdict.UNVERIFIED)
    assert "Gather: index out of range" in messages[0]


@pytest.mark.parametrize(
    ("batching", "policy", "coalescible"),
    [
        ("", None, False),
        ("padding: repeat", None, True),
        ("", "repeat", True),
        ("padding: repeat", "zeros", False),
    ],
)
def test_zeros_are_judged_where_they_will_be_the_padding(verdict, batching, policy, coalescible):
    spec, _ = verdict(deviation(0.5, Beside.ZEROS), batching=batching, padding=policy)
    assert spec.coalescible is coalescible


def test_a_model_that_the_manifest_does_not_batch_has_no_verdict(verdict):
    spec, messages = verdict(deviation(0.5), batching="enabled: false")
    assert (spec.coalescible, spec.batch_safety, messages) == (False, None, [])


def test_a_bundle_that_is_none_is_refused_before_it_is_compiled(loader, backend, tmp_path):
    with pytest.raises(BundleError, match="nothing"):
        loader.compile(tmp_path / "nothing")
    assert backend.compiled == []


def test_jobs_run_one_after_the_other_on_a_thread_of_that_name(loader):
    names = [loader.submit(lambda: threading.current_thread().name) for _ in range(3)]
    assert {name.result(30) for name in names} == {"loader_0"}


def test_what_has_not_begun_fails_at_the_end_and_nobody_waits_for_ever(loader, backend):
    """A future that an executor cancels would leave `wait` hanging: it is never told."""
    hold = threading.Event()
    entered = threading.Event()

    def work():
        entered.set()
        assert hold.wait(30)
        return "done"

    running, queued = loader.submit(work), [loader.submit(work) for _ in range(2)]
    assert entered.wait(30)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(concurrent.futures.wait, [running, *queued], 30)
        backend.close = hold.set  # the end of what the backend may be waiting for
        loader.stop()
        assert waiting.result(30).not_done == set()
    assert running.result(0) == "done"
    assert [type(future.exception(0)) for future in queued] == [ShuttingDown, ShuttingDown]


def test_a_compilation_that_the_end_interrupts_is_no_fault_of_the_bundle(loader, backend, tmp_path):
    closed = threading.Event()
    compiling = threading.Event()

    def compile_until_closed(*_):
        compiling.set()
        assert closed.wait(30)
        raise BundleError("compiling was stopped")

    backend.on_compile, backend.close = compile_until_closed, closed.set
    load = loader.submit(loader.compile, write_identity_bundle(tmp_path))
    assert compiling.wait(30)
    loader.stop()
    assert isinstance(load.exception(30), ShuttingDown)


@pytest.fixture
def building(backend, tmp_path):
    """A loader that builds models, and a bundle whose build file begins so."""
    loader = Loader(backend, Builder(tmp_path / "cache"))

    def bundle(first_lines=""):
        path = write_identity_bundle(tmp_path, manifest="file: {build: build.py, path: net}\n")
        (path / "model.onnx").rename(path / "net")
        copy = "(target / 'model.onnx').write_bytes(source.read_bytes())"
        (path / "build.py").write_text(f"{first_lines}\ndef build(source, target): {copy}\n")
        return path

    yield loader, bundle
    loader.stop()


def test_a_model_that_is_built_first_is_compiled_from_what_was_built(building, backend, tmp_path):
    loader, bundle = building
    loaded = loader.compile(bundle())
    assert loaded.bundle.model_file.is_relative_to(tmp_path / "cache")
    assert backend.compiled == ["m"]


def test_a_build_that_the_end_interrupts_is_no_fault_of_the_bundle(building, tmp_path):
    loader, bundle = building
    os.mkfifo(tmp_path / "begun")
    path = bundle(f"import signal; open({str(tmp_path / 'begun')!r}, 'w').close(); signal.pause()")
    load = loader.submit(loader.compile, path)
    (tmp_path / "begun").read_text()  # returns when it has begun
    loader.stop()
    assert isinstance(load.exception(30), ShuttingDown)


def test_a_job_after_the_end_fails_and_does_not_raise(loader):
    loader.stop()
    loader.stop()
    assert isinstance(loader.submit(lambda: None).exception(30), ShuttingDown)
    with pytest.raises(ShuttingDown):
        loader.check()
