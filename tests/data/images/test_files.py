"""Check of encoded images, and their conversion."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from strop.data.images import store
from strop.data.images.store import check_image
from strop.errors import DataError
from tests.data.images.pictures import encoded


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize(
    ("format", "mode", "suffix"), [("PNG", "RGB", "png"), ("JPEG", "L", "jpg"), ("WEBP", "RGB", "webp")]
)
def test_a_plain_image_stays_as_it_is(format: str, mode: str, suffix: str) -> None:
    data = encoded(80 if mode == "L" else "red", format=format, mode=mode)
    found = check_image(data, "row 1")
    assert (found.data, found.suffix, found.width, found.height) == (data, suffix, 8, 4)


def test_transparent_pixels_become_white() -> None:
    found = check_image(encoded((0, 0, 0, 0), mode="RGBA"), "row 1")
    assert found.suffix == "png"
    assert (pixels(found.data) == 255).all()
    half = check_image(encoded((255, 0, 0, 128), mode="RGBA"), "row 1")
    assert pixels(half.data)[0, 0].tolist() == [255, 127, 127]


def test_the_orientation_of_a_photograph_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    found = check_image(encoded(format="JPEG", exif=exif), "row 1")
    assert (found.suffix, found.width, found.height) == ("png", 4, 8)
    assert Image.open(BytesIO(found.data)).size == (4, 8)


def test_gray_of_16_bits_becomes_gray_of_8_bits() -> None:
    found = check_image(encoded(0x8000, mode="I;16"), "row 1")
    assert pixels(found.data)[0, 0].tolist() == [128] * 3


@pytest.mark.parametrize("format", ["BMP", "GIF", "TIFF"])
def test_another_format_becomes_png(format: str) -> None:
    found = check_image(encoded("blue", format=format), "row 1")
    assert (found.suffix, pixels(found.data)[0, 0].tolist()) == ("png", [0, 0, 255])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "row 3 is no image that Strop reads: its 0 bytes"),
        (b"GIF89a", "row 3 is no image|row 3 cannot be decoded"),
        (b"hello, world", "row 3 is no image that Strop reads: its 12 bytes begin with b'hello, w'"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 4\nshowpage", "row 3 is no image"),  # a program
        (encoded(size=(64, 64), format="JPEG")[:-200], "row 3 cannot be decoded .*truncated"),
        (encoded(size=(64, 64))[:60], "row 3 cannot be decoded .*truncated"),
    ],
)
def test_damaged_data_are_named_by_their_place(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_image(data, "row 3")


@pytest.mark.parametrize(
    ("module", "limit", "message"),
    [
        (store, "MAX_PIXELS", r"row 3 has 8 x 4 pixels, more than Strop decodes \(10\)"),
        (Image, "MAX_IMAGE_PIXELS", "row 3 has more pixels than Strop decodes"),  # Pillow does not open it
    ],
)
def test_a_huge_image_is_refused_before_it_is_decoded(monkeypatch, module, limit, message) -> None:
    monkeypatch.setattr(module, limit, 10)
    with pytest.raises(DataError, match=message):
        check_image(encoded(), "row 3")


def test_an_animation_is_refused() -> None:
    frames = [Image.new("RGB", (8, 4), color) for color in ("red", "blue")]
    data = BytesIO()
    frames[0].save(data, "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match="row 3 is an animation of 2 frames"):
        check_image(data.getvalue(), "row 3")
