"""The loader thread: what it brings, and how it ends."""

import concurrent.futures
import threading

import pytest

from app.backends.fake import FakeBackend
from app.domain.errors import BundleError, ShuttingDown
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


def test_a_bundle_is_read_compiled_and_prepared(loader, backend, tmp_path):
    loaded = loader.prepare(write_identity_bundle(tmp_path))
    assert loaded.bundle.spec.name == "m"
    assert loaded.entry.weight_bytes == 1000
    assert backend.compiled == ["m"]
    assert backend.loaded == []
    assert loaded.prepared.load().weight_bytes == 1000


def test_a_bundle_that_is_none_is_refused_before_it_is_compiled(loader, backend, tmp_path):
    with pytest.raises(BundleError, match="nothing"):
        loader.prepare(tmp_path / "nothing")
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
    load = loader.submit(loader.prepare, write_identity_bundle(tmp_path))
    assert compiling.wait(30)
    loader.stop()
    assert isinstance(load.exception(30), ShuttingDown)


def test_a_job_after_the_end_fails_and_does_not_raise(loader):
    loader.stop()
    loader.stop()
    assert isinstance(loader.submit(lambda: None).exception(30), ShuttingDown)
    with pytest.raises(ShuttingDown):
        loader.check()
