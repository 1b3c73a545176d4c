"""What is asked of ONNX Runtime by name, rather than left to defaults that change."""

import pytest

from app.backends.providers import PROVIDERS
from app.backends.sessions import SessionConfig, session_options

CPU = SessionConfig(PROVIDERS["cpu"], 0, 3)


def test_threads_are_counted_and_do_not_spin_between_runs():
    options = session_options(CPU)
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_the_cpu_is_asked_for_alone():
    assert PROVIDERS["cpu"].chain(3) == [("CPUExecutionProvider", {})]


def test_cuda_is_asked_for_first_by_its_ordinal():
    (first, options), (second, _) = PROVIDERS["cuda"].chain(3)
    assert (first, second) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["device_id"] == "3"


def test_only_sessions_that_record_are_asked_for_a_graph():
    cuda = PROVIDERS["cuda"]
    assert cuda.chain(0)[0][1]["enable_cuda_graph"] == "0"
    assert cuda.recording.chain(0)[0][1] == {**cuda.chain(0)[0][1], "enable_cuda_graph": "1"}
    assert [kind for kind, provider in PROVIDERS.items() if provider.graphs] == ["cuda"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("cudnn_conv_algo_search", "HEURISTIC"),  # EXHAUSTIVE costs a second for each new shape
        ("arena_extend_strategy", "kSameAsRequested"),
        ("do_copy_in_default_stream", "1"),
        ("enable_cuda_graph", "0"),
        ("use_tf32", "1"),
    ],
)
def test_what_the_cuda_provider_is_to_do_is_said(option, value):
    assert PROVIDERS["cuda"].chain(0)[0][1][option] == value
