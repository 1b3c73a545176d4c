"""Raw file contents in, a label such as `png` or `python` and its score out, one for each row.

Contents that are too short for the model, before or after the white space around them is gone, are judged by rules
with a score of 1; so `preprocess` notes in the request's state which labels are settled.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np

_PACKAGE = Path(find_spec("magika").origin).parent  # found, not imported
_CONFIG = json.loads((_PACKAGE / "models/standard_v3_3/config.min.json").read_text("utf-8"))
_KINDS = json.loads((_PACKAGE / "config/content_types_kb.min.json").read_text("utf-8"))

_BLOCK = _CONFIG["block_size"]
_BEGIN, _END = _CONFIG["beg_size"], _CONFIG["end_size"]
_LEAST = _CONFIG["min_file_size_for_dl"]
_PADDING = _CONFIG["padding_token"]

# By index of the model's output: the label to report, the one to fall back to, and the score that separates them.
_CLASSES = _CONFIG["target_labels_space"]
_SURE = [_CONFIG["overwrite_map"].get(label, label) for label in _CLASSES]
_UNSURE = np.array([b"txt" if _KINDS[label]["is_text"] else b"unknown" for label in _SURE], dtype=object)
_THRESHOLDS = np.array([_CONFIG["thresholds"].get(label, _CONFIG["medium_confidence_threshold"]) for label in _CLASSES])
_SURE = np.array([label.encode() for label in _SURE], dtype=object)


def preprocess(inputs, context):
    """`content` BYTES [rows] to `bytes` INT32 [rows, 2048]."""
    contents = inputs["content"]
    tokens = np.full((len(contents), _BEGIN + _END), _PADDING, dtype=np.int32)
    settled = np.full(len(contents), None, dtype=object)
    for row, content in enumerate(contents):
        begin = content[:_BLOCK].lstrip()[:_BEGIN]
        end = content[-_BLOCK:].rstrip()[-_END:]
        if len(begin) < _LEAST:
            settled[row] = _by_rule(content[:_BLOCK])
        tokens[row, : len(begin)] = np.frombuffer(begin, dtype=np.uint8)
        tokens[row, _BEGIN + _END - len(end) :] = np.frombuffer(end, dtype=np.uint8)
    context.state["settled"] = settled
    return {"bytes": tokens}


def postprocess(outputs, context):
    """`target_label` FP32 [rows, classes] to `label` BYTES [rows] and `score` FP32 [rows]."""
    scores = outputs["target_label"]
    best = scores.argmax(axis=1)
    score = scores[np.arange(len(scores)), best]
    label = np.where(score.astype(np.float64) >= _THRESHOLDS[best], _SURE[best], _UNSURE[best])
    settled = context.state["settled"]
    ruled = np.not_equal(settled, None)
    return {"label": np.where(ruled, settled, label), "score": np.where(ruled, np.float32(1), score)}


def _by_rule(content):
    if not content:
        return b"empty"
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return b"unknown"
    return b"txt"
