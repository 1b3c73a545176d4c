"""A photograph in, the faces in it out: proposals at every scale, refined, then told apart and measured.

A box is left, top, right and bottom in pixels of the image as the networks see it; they see it width first.
"""

from io import BytesIO
from math import ceil

import numpy as np
from PIL import Image

_MAX_PIXELS = 50_000_000
_MAX_SIDE = 1024  # larger images are seen smaller: below it every face of 20 pixels and more is looked for
_SMALLEST_FACE = 20
_STEP = 0.709  # from one scale to the next: half the area

_WINDOW, _STRIDE = 12, 2  # of the first network, on each image of the pyramid
_REFINED, _MEASURED = 24, 48  # pixels that the second and the third see of a proposal

# How sure each network has to be. Real faces, large, small and mirrored, reached 0.997 and more in the third, and what
# was none up to 0.93.
_PROBABLE, _LIKELY, _SURE = 0.6, 0.7, 0.95


def run(inputs, call):
    """`image` BYTES [1] to `boxes` FP32 [faces, 4], `scores` [faces] and `landmarks` [faces, 5, 2].

    Raises `ValueError` for what is no image.
    """
    image, original = _read(inputs["image"][0])
    boxes = _propose(image, call)
    if len(boxes):
        boxes = _refine(image, boxes, call)
    boxes, scores, landmarks = _measure(image, boxes, call) if len(boxes) else _NOTHING
    ratio = np.divide(original, image.size)
    return {
        "boxes": (boxes * np.tile(ratio, 2)).astype(np.float32),
        "scores": scores.astype(np.float32),
        "landmarks": (landmarks * ratio).astype(np.float32),
    }


_NOTHING = np.zeros((0, 4)), np.zeros(0), np.zeros((0, 5, 2))


def _propose(image, call):
    """Squares that may be faces, from the image at all scales at which one could fill a window."""
    boxes, scores, moves = [np.zeros((0, 4))], [np.zeros(0)], [np.zeros((0, 4))]
    scale = _WINDOW / _SMALLEST_FACE
    while min(image.size) * scale >= _WINDOW:
        size = [ceil(side * scale) for side in image.size]
        outputs = call("faces-propose", {"input_1": _pixels([image.resize(size, Image.Resampling.BOX)])})
        certain = outputs["softmax"][0, :, :, 1]
        found = np.argwhere(certain > _PROBABLE)
        corners = found * _STRIDE / scale
        box = np.hstack([corners, corners + _WINDOW / scale])
        score = certain[tuple(found.T)]
        kept = _suppress(box, score, 0.5)
        boxes.append(box[kept])
        scores.append(score[kept])
        moves.append(outputs["conv2d_4"][0][tuple(found[kept].T)])
        scale *= _STEP
    boxes, scores, moves = (np.concatenate(parts) for parts in (boxes, scores, moves))
    kept = _suppress(boxes, scores, 0.7)
    return _square(_moved(boxes[kept], moves[kept]))


def _refine(image, boxes, call):
    """Those of the squares that are likely to be faces, moved to where they are."""
    outputs = call("faces-refine", {"input_2": _pixels(_cut(image, boxes, _REFINED))})
    certain = outputs["softmax_1"][:, 1]
    likely = np.flatnonzero(certain > _LIKELY)
    likely = likely[_suppress(boxes[likely], certain[likely], 0.7)]
    return _square(_moved(boxes[likely], outputs["dense_2"][likely]))


def _measure(image, boxes, call):
    """Faces among the squares, with scores and landmarks, the surest first."""
    outputs = call("faces-landmarks", {"input_3": _pixels(_cut(image, boxes, _MEASURED))})
    certain = outputs["softmax_2"][:, 1]
    sure = np.flatnonzero(certain > _SURE)
    squares, scores = boxes[sure], certain[sure]
    within = outputs["dense_6"][sure].reshape(-1, 2, 5).transpose(0, 2, 1)
    landmarks = squares[:, None, :2] + within * _sides(squares)[:, None]
    moved = _moved(squares, outputs["dense_5"][sure])
    kept = _suppress(moved, scores, 0.7, of_smaller=True)
    return moved[kept], scores[kept], landmarks[kept]


def _read(content):
    """The image in RGB, no side above the limit, and its own size."""
    try:
        image = Image.open(BytesIO(content), formats=("JPEG", "PNG"))
        original = image.size
        if original[0] * original[1] <= _MAX_PIXELS:
            image.draft("RGB", (_MAX_SIDE, _MAX_SIDE))  # a large JPEG is decoded at a fraction of its size
            return _shrunk(_flat(image)), original
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError("the image cannot be read: it must be a whole JPEG or PNG file") from error
    raise ValueError(f"the image is {original[0]} x {original[1]}: at most {_MAX_PIXELS} pixels are read")


def _flat(image):
    """The image as RGB: 16-bit grey scaled, what is transparent on white."""
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _shrunk(image):
    scale = _MAX_SIDE / max(image.size)
    if scale >= 1:
        return image
    return image.resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.BOX)


def _pixels(images):
    """Images of one size as the networks want them: FP32 [images, width, height, 3] from -1 to 1."""
    stacked = np.stack([np.asarray(image) for image in images])
    return np.ascontiguousarray((stacked.transpose(0, 2, 1, 3) - np.float32(127.5)) / np.float32(128))


def _cut(image, boxes, side):
    """The squares, `side` pixels wide; what lies outside the image is black."""
    for box in np.rint(boxes).astype(int).tolist():
        sampling = Image.Resampling.BOX if box[2] - box[0] >= side else Image.Resampling.BILINEAR
        yield image.crop(box).resize((side, side), sampling)


def _sides(boxes):
    return boxes[:, 2:] - boxes[:, :2]


def _moved(boxes, moves):
    """The boxes with their corners moved by parts of their sides."""
    return boxes + moves * np.tile(_sides(boxes), 2)


def _square(boxes):
    """Squares about the same centres, on the longer sides."""
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    half = _sides(boxes).max(axis=1, keepdims=True) / 2
    return np.hstack([centres - half, centres + half])


def _suppress(boxes, scores, most, of_smaller=False):
    """Indices of the boxes that remain, best first, when none may overlap a better one by more than `most`.

    The overlap is a part of both boxes together, or of the smaller one.
    """
    areas = _sides(boxes).prod(axis=1)
    rest = np.argsort(-scores, kind="stable")
    kept = []
    while len(rest):
        best, rest = rest[0], rest[1:]
        kept.append(best)
        shared = np.minimum(boxes[best, 2:], boxes[rest, 2:]) - np.maximum(boxes[best, :2], boxes[rest, :2])
        overlap = np.maximum(shared, 0).prod(axis=1)
        whole = np.minimum(areas[best], areas[rest]) if of_smaller else areas[best] + areas[rest] - overlap
        rest = rest[overlap <= most * whole]
    return np.array(kept, dtype=int)
