"""Bringing a graph into one of the forms that sessions are made from. Runs in the compile child."""

import errno
import os
from pathlib import Path

import onnx
from onnx import ModelProto
from onnx.external_data_helper import load_external_data_for_model

from app.backends.align import align_weights
from app.backends.entry import BOUND, MODEL_FILE, PLAIN, PREPACKED, WEIGHTS_FILE, Layout, StoredEntry
from app.backends.extraction import take_out_weights
from app.backends.graph import external_files, read_graph
from app.backends.sessions import SessionConfig, create_session, session_options

#: Bytes. Smaller initializers stay in the graph; thresholds of 0 or 1 crash when the file is loaded.
EXTERNAL_THRESHOLD = 1024

#: How ONNX Runtime says that weights did not get onto the disk; it has no code for that.
_UNWRITTEN = "Failed to write"

#: Bytes. A protobuf message must be smaller than 2 GiB.
_LARGEST_MESSAGE = 1 << 30


def write_form(
    form: str, model: ModelProto, folder: Path, target: Path, layout: Layout, config: SessionConfig
) -> StoredEntry:
    """Write `model`, whose external data lies below `folder`, into the empty directory `target` in the given form.

    A model without large initializers ends up `plain` whatever was asked: there is nothing to share. Raises
    `UnboundError` for one that cannot be `bound`.
    """
    if form == PLAIN:
        _write_original(model, folder, target)
        return StoredEntry(PLAIN, optimised=False, weight_bytes=_size(target), layout=layout)
    _write_optimised(model, folder, target, config, prepack=form == PREPACKED)
    weights = target / WEIGHTS_FILE
    if not weights.exists():
        reason = "it has no large initializers to share"
        return StoredEntry(PLAIN, optimised=True, weight_bytes=_size(target), layout=layout, reason=reason)
    optimised = read_graph(target / MODEL_FILE)
    align_weights(optimised, weights)
    taken = take_out_weights(optimised) if form == BOUND else ()
    onnx.save(optimised, str(target / MODEL_FILE))
    return StoredEntry(form, optimised=True, weight_bytes=weights.stat().st_size, layout=layout, weights=taken)


def _write_optimised(model: ModelProto, folder: Path, target: Path, config: SessionConfig, *, prepack: bool) -> None:
    options = session_options(config)
    options.optimized_model_filepath = str(target / MODEL_FILE)
    set_entry = options.add_session_config_entry
    set_entry("session.model_external_initializers_file_folder_path", str(folder))
    set_entry("session.optimized_model_external_initializers_file_name", WEIGHTS_FILE)
    set_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(EXTERNAL_THRESHOLD))
    if prepack:
        set_entry("session.save_external_prepacked_constant_initializers", "1")
    try:
        create_session(model.SerializeToString(), options, config)
    except Exception as error:
        if _UNWRITTEN not in str(error):
            raise
        # A full disk says nothing about the form: a worse one that just fits would be kept for good.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error


def _write_original(model: ModelProto, folder: Path, target: Path) -> None:
    """The graph as it came, with its dims named, complete in `target`."""
    copy = ModelProto()
    copy.CopyFrom(model)
    external = bool(external_files(copy))
    load_external_data_for_model(copy, str(folder))
    if external or copy.ByteSize() > _LARGEST_MESSAGE:
        onnx.save_model(
            copy,
            str(target / MODEL_FILE),
            save_as_external_data=True,
            location=WEIGHTS_FILE,
            size_threshold=EXTERNAL_THRESHOLD,
        )
    else:
        onnx.save_model(copy, str(target / MODEL_FILE))


def _size(target: Path) -> int:
    return sum(file.stat().st_size for file in target.iterdir())
