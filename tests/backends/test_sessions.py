"""Errors in our words, and dims that really took."""

import pytest

from app.backends.entry import Layout, StoredEntry, StoredRun
from app.backends.providers import PROVIDERS
from app.backends.sessions import SessionConfig, open_entry, session_key, translate
from app.domain.errors import BundleError, ExecutionFailed, OutOfMemory
from tests.backends import models

CPU = SessionConfig(PROVIDERS["cpu"], 0, 1)


@pytest.mark.parametrize(
    "message",
    [
        "bfc_arena.cc:360 AllocateRawInternal Failed to allocate memory for requested buffer of size 17592186044416",
        "CUDA failure 2: out of memory ; GPU=0",
        "Available memory of 1 is smaller than requested bytes of 2",
        "CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED",
        "std::bad_alloc",
    ],
)
def test_a_device_without_memory_is_out_of_memory(message):
    assert isinstance(translate(RuntimeError(message)), OutOfMemory)


def test_a_host_without_memory_is_out_of_memory():
    assert isinstance(translate(MemoryError()), OutOfMemory)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("CUDA failure 700: an illegal memory access was encountered", "device_lost"),
        ("CUDA error 719: unspecified launch failure", "device_lost"),
        ("Exiting due to terminate flag being set to true.", "terminated"),
        ("Got invalid dimensions for input: x", "execution_failed"),
    ],
)
def test_other_failures_are_told_apart_by_their_code(message, code):
    error = translate(RuntimeError(message))
    assert isinstance(error, ExecutionFailed)
    assert error.code == code


def test_messages_are_one_line_and_never_empty():
    assert translate(RuntimeError("a\n  b\n")).message == "a b"
    assert translate(RuntimeError()).message == "RuntimeError"


def test_only_mapped_weights_allow_a_session_per_size():
    layout = Layout(("n",), {"v": {}})
    shared = StoredEntry("external", optimised=True, weight_bytes=1, layout=layout)
    plain = StoredEntry("plain", optimised=True, weight_bytes=1, layout=layout)
    cuda = SessionConfig(PROVIDERS["cuda"], 0, 1)
    assert session_key(shared, CPU, "v", 4) == ("v", 4)
    assert session_key(plain, CPU, "v", 4) == session_key(shared, cuda, "v", 4) == (None, 0)


@pytest.mark.parametrize(("optimised", "level"), [(True, "ORT_DISABLE_ALL"), (False, "ORT_ENABLE_ALL")])
def test_what_is_optimised_is_not_optimised_again(tmp_path, optimised, level):
    """Folding once more would copy weights into each session."""
    built, described = models.mlp()
    models.save(tmp_path, built)
    entry = StoredEntry("plain", optimised=optimised, weight_bytes=1, layout=Layout(("n",), {"default": {}}))
    session = open_entry(tmp_path, entry, described, CPU, None, 0)
    assert session.get_session_options().graph_optimization_level.name == level


def test_quick_sizes_get_one_thread(tmp_path):
    built, described = models.mlp()
    models.save(tmp_path, built)
    layout = Layout(("n",), {"default": {}})
    runs = (StoredRun("default", 1, 1e-5, quick=True), StoredRun("default", 2, 1.0, quick=False))
    entry = StoredEntry("external", optimised=True, weight_bytes=1, layout=layout, runs=runs)
    config = SessionConfig(PROVIDERS["cpu"], 0, 2)
    threads = [
        open_entry(tmp_path, entry, described, config, "default", size).get_session_options().intra_op_num_threads
        for size in (1, 2)
    ]
    assert threads == [1, 2]


@pytest.mark.parametrize("name", ["absent", ""])
def test_a_dim_that_did_not_take_is_an_error_naming_it(tmp_path, name):
    built, described = models.mlp()
    models.save(tmp_path, built)
    entry = StoredEntry("external", optimised=False, weight_bytes=1, layout=Layout((name,), {"default": {}}))
    with pytest.raises(BundleError, match="axis 0 of input 'x' could not be fixed at 4"):
        open_entry(tmp_path, entry, described, CPU, "default", 4)


def test_a_provider_that_is_not_there_is_an_error_and_no_silent_cpu(tmp_path):
    built, described = models.mlp()
    models.save(tmp_path, built)
    entry = StoredEntry("plain", optimised=False, weight_bytes=1, layout=Layout(("n",), {"default": {}}))
    absent = SessionConfig(PROVIDERS["cuda"], 63, 1)
    with pytest.raises(Exception, match=r"CUDA"):
        open_entry(tmp_path, entry, described, absent, None, 0)
