"""JPEG or PNG files in; out, for each row, the clockwise turn in degrees and the score of every turn.

The pixels count as they are stored: an orientation noted in the file's metadata is not applied.
"""

from io import BytesIO

import numpy as np
from PIL import Image

_SIDE = 224
_CROPPED = 224 / 256  # the part of the short side that the centre crop keeps
_MAX_PIXELS = 50_000_000
_MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32) * 255
_STD = np.array([0.229, 0.224, 0.225], dtype=np.float32) * 255


def preprocess(inputs):
    """`image` BYTES [rows] to `x` FP32 [rows, 3, 224, 224]. Raises `ValueError` for what is no image."""
    images = inputs["image"]
    pixels = np.empty((len(images), _SIDE, _SIDE, 3), dtype=np.float32)
    for row, content in enumerate(images):
        pixels[row] = _read(row, content)
    return {"x": np.ascontiguousarray(((pixels - _MEAN) / _STD).transpose(0, 3, 1, 2))}


def postprocess(outputs):
    """`fetch_name_0` FP32 [rows, 4] to `angle` INT64 [rows] and `scores` FP32 [rows, 4]."""
    scores = outputs["fetch_name_0"]
    return {"angle": scores.argmax(axis=1) * 90, "scores": scores}


def _read(row, content):
    try:
        image = Image.open(BytesIO(content), formats=("JPEG", "PNG"))
        image.draft("RGB", (512, 512))  # a large JPEG is decoded at a fraction of its size
        if image.width * image.height <= _MAX_PIXELS:
            return _centre(_flat(image))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(f"image {row} cannot be read: it must be a whole JPEG or PNG file") from error
    raise ValueError(f"image {row} is {image.width} x {image.height}: at most {_MAX_PIXELS} pixels are read")


def _flat(image):
    """The image as RGB: 16-bit grey scaled, what is transparent on white."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _centre(image):
    """The centre square, 7/8 of the short side, at the size of the model."""
    side = min(image.size) * _CROPPED
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
