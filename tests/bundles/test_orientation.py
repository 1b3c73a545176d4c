"""The `orientation` bundle on a scanned page, turned four ways."""

import io

import numpy as np
import pytest
import skimage.data
from PIL import Image

PAGE = Image.fromarray(skimage.data.page())
ANGLES = [0, 90, 180, 270]


def _file(image: Image.Image, kind: str) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind)
    return stream.getvalue()


def _turned(angle: int) -> Image.Image:
    """The page, turned clockwise."""
    return PAGE.rotate(-angle, expand=True)


@pytest.fixture(scope="module")
def answer(serve, as_bytes):
    served = serve("orientation")
    return lambda *images: served(image=as_bytes(images))


@pytest.fixture(scope="module")
def preprocess(load, as_bytes):
    hook = load("orientation").hooks.preprocess
    return lambda *images: hook({"image": as_bytes(images)}, None)["x"]


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_page_turned_four_ways_is_recognised(answer, kind):
    outputs = answer(*[_file(_turned(angle), kind) for angle in ANGLES])
    assert outputs["angle"].tolist() == ANGLES
    assert (outputs["scores"].max(axis=1) > 0.9).all()
    np.testing.assert_allclose(outputs["scores"].sum(axis=1), 1, rtol=1e-4)


def test_labels_of_the_scores_are_the_angles(load):
    assert load("orientation").spec.labels == {"scores": ("0", "90", "180", "270")}


@pytest.mark.parametrize("angle", ANGLES)
def test_row_alone_is_answered_as_in_a_batch(answer, angle):
    together = answer(*[_file(_turned(each), "PNG") for each in ANGLES])
    alone = answer(_file(_turned(angle), "PNG"))
    np.testing.assert_allclose(alone["scores"][0], together["scores"][ANGLES.index(angle)], atol=1e-5)


def test_large_photograph_is_recognised(answer):
    large = _turned(90).resize((1910, 3840)).convert("RGB")
    assert answer(_file(large, "JPEG"))["angle"].tolist() == [90]


@pytest.mark.parametrize("mode", ["L", "RGB", "P", "1", "LA", "RGBA", "I;16"])
def test_png_of_any_kind_is_read_alike(preprocess, mode):
    pixels = np.full((300, 400), 0 if mode == "1" else 100, dtype=np.uint8)
    pixels[:, :200] = 255
    grey = Image.fromarray(pixels)
    image = Image.fromarray(pixels.astype(np.uint16) * 257) if mode == "I;16" else grey.convert(mode)
    assert image.mode == mode
    np.testing.assert_allclose(preprocess(_file(image, "PNG")), preprocess(_file(grey, "PNG")), atol=0.02)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_jpeg_of_any_kind_is_read_alike(preprocess, mode):
    grey = Image.fromarray(np.full((300, 400), 200, dtype=np.uint8))
    np.testing.assert_allclose(preprocess(_file(grey.convert(mode), "JPEG")), preprocess(_file(grey, "PNG")), atol=0.05)


def test_what_is_transparent_is_white(preprocess):
    clear = Image.new("RGBA", (300, 300), (0, 0, 0, 0))
    np.testing.assert_array_equal(
        preprocess(_file(clear, "PNG")), preprocess(_file(Image.new("L", (300, 300), 255), "PNG"))
    )


def test_pixels_are_normalised_by_channel_in_the_order_red_green_blue(preprocess):
    x = preprocess(_file(Image.new("RGB", (256, 256), (255, 0, 128)), "PNG"))
    assert x.shape == (1, 3, 224, 224)
    assert x.flags.c_contiguous
    expected = [(1 - 0.485) / 0.229, (0 - 0.456) / 0.224, (128 / 255 - 0.406) / 0.225]
    np.testing.assert_allclose(x[0, :, 100, 100], expected, rtol=1e-5)


def test_centre_square_of_seven_eighths_of_the_short_side_is_seen(preprocess):
    pixels = np.zeros((256, 512), dtype=np.uint8)
    pixels[16:240, 144:368] = 255
    white = preprocess(_file(Image.new("L", (256, 256), 255), "PNG"))
    black = preprocess(_file(Image.new("L", (256, 256), 0), "PNG"))
    np.testing.assert_array_equal(preprocess(_file(Image.fromarray(pixels), "PNG")), white)
    np.testing.assert_array_equal(preprocess(_file(Image.fromarray(255 - pixels), "PNG")), black)


@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1), (224, 224)])
def test_image_of_any_size_is_read(answer, size):
    assert answer(_file(Image.new("RGB", size, "white"), "PNG"))["angle"].shape == (1,)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an image",
        _file(PAGE, "PNG")[:1000],
        _file(PAGE, "JPEG")[:1000],
        _file(PAGE, "GIF"),
        _file(PAGE, "BMP"),
    ],
    ids=["empty", "text", "half a png", "half a jpeg", "gif", "bmp"],
)
def test_what_is_no_image_is_the_clients_error_and_names_the_row(preprocess, content):
    with pytest.raises(ValueError, match="image 1 cannot be read: it must be a whole JPEG or PNG file"):
        preprocess(_file(PAGE, "PNG"), content)


def test_image_of_too_many_pixels_is_the_clients_error(preprocess):
    huge = _file(Image.new("1", (10_000, 8_000)), "PNG")
    with pytest.raises(ValueError, match="image 0 is 10000 x 8000: at most 50000000 pixels are read"):
        preprocess(huge)


def test_decompression_bomb_is_the_clients_error(preprocess):
    bomb = _file(Image.new("1", (20_000, 10_000)), "PNG")
    with pytest.raises(ValueError, match="image 0 cannot be read"):
        preprocess(bomb)


def test_no_rows_give_no_rows(preprocess):
    assert preprocess().shape == (0, 3, 224, 224)
