"""Values of images in rows, and the folder that stores them."""

from __future__ import annotations

import base64
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from strop.data.images import prompt_images as values
from strop.data.images.prompt_images import image_bytes
from strop.data.images.store import ImageStore
from strop.errors import DataError
from tests.data.images.pictures import encoded, prompt_images

RED = encoded("red")
DATA_URL = "data:image/png;base64," + base64.b64encode(RED).decode()


def read(value: Any, base: str = "", *, allow_urls: bool = False) -> bytes:
    return image_bytes(value, "row 1, image 2", base=base, allow_urls=allow_urls)


@pytest.mark.parametrize(
    "value",
    [
        RED,
        memoryview(RED),
        {"bytes": RED, "path": None},
        {"bytes": RED, "path": "name-in-the-dataset.png"},
        {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}},
        {"type": "image", "image": RED},
        DATA_URL,
    ],
)
def test_forms_that_hold_the_image(value: Any) -> None:
    assert read(value) == RED


def test_a_pil_image_becomes_png() -> None:
    image = Image.open(BytesIO(encoded("red", format="JPEG")))
    assert Image.open(BytesIO(read(image))).format == "PNG"


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures/a.png").write_bytes(RED)
    for value in ("pictures/a.png", {"path": "pictures/a.png", "bytes": None}, {"image": "pictures/a.png"}):
        assert read(value, base=str(tmp_path)) == RED
    for value in (str(tmp_path / "pictures/a.png"), f"file://{tmp_path}/pictures/a.png"):
        assert read(value, base="/elsewhere") == RED
    monkeypatch.chdir(tmp_path)
    assert read("pictures/a.png") == RED


def test_urls_are_read_only_if_allowed() -> None:
    import fsspec

    with fsspec.open("memory://pictures/a.png", "wb") as file:
        file.write(RED)
    assert read("memory://pictures/a.png", allow_urls=True) == RED
    url = r"row 1, image 2 is the URL memory://pictures/a\.png, and data\.images\.allow"
    with pytest.raises(DataError, match=url):
        read("memory://pictures/a.png")


class Answers(BaseHTTPRequestHandler):
    """A server of images, by the path of the request."""

    def do_GET(self) -> None:
        match self.path:
            case "/image":
                self.answer(RED)
            case "/short":
                self.answer(RED, size=len(RED) + 1)
            case "/endless":
                self.answer(b"", size=10**15)
                try:
                    while True:
                        self.wfile.write(bytes(1 << 16))
                except OSError:  # the client has enough
                    self.close_connection = True
            case "/file":
                self.send_response(302)
                self.send_header("Location", "file:///etc/hostname")
                self.end_headers()
            case "/broken":
                self.send_error(500)
            case _:
                self.send_error(404)

    def answer(self, body: bytes, size: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) if size is None else size))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def image_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_an_answer_of_a_server_is_an_image_or_one_paragraph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_BYTES", 1 << 20)
    refused = {
        "/missing": "there is no file http://",
        "/broken": "cannot be read .ClientResponseError: 500",
        "/short": "cannot be read .ClientPayloadError: ",
        "/file": "cannot be read .NonHttpUrlRedirectClientError: file:///etc/hostname",
        "/endless": "has more than 1,048,576 bytes, and Strop reads no larger image",
    }
    with image_server() as url:
        assert read(f"{url}/image", allow_urls=True) == RED
        for path, message in refused.items():
            with pytest.raises(DataError, match=f"row 1, image 2.* {message}"):
                read(f"{url}{path}", allow_urls=True)


def test_a_path_to_something_else_than_a_file_neither_waits_nor_fills_the_memory(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero"), Path("/proc/kmsg")):
        with pytest.raises(DataError, match="it is not a regular file"):
            read(f"file://{path}")


def test_the_encoded_size_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_BYTES", len(RED) - 1)
    (tmp_path / "a.png").write_bytes(RED)
    for value in (RED, DATA_URL, str(tmp_path / "a.png")):
        with pytest.raises(DataError, match=r"row 1, image 2 has more than .* bytes"):
            read(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nope.png", "row 1, image 2: there is no file nope.png"),
        (3, "row 1, image 2 has the type int. An image must be encoded bytes"),
        ({"bytes": None, "path": None}, "row 1, image 2 has no image: its keys are bytes, path"),
        ({"image": RED, "max_pixels": 100}, "row 1, image 2 has the key 'max_pixels'"),
        ("data:image/png,abc", "without base64"),
        ("data:image/png;base64,%%%", "is not base64"),
        ("data:image/png;base64,\u00e9", "is not base64"),
        ("a\0b", "cannot be read .*embedded null"),
        ("a" * 5000, "cannot be read .*File name too long"),
    ],
)
def test_other_values_are_named_by_their_place(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(value)


def test_an_image_is_stored_once(tmp_path: Path) -> None:
    store = ImageStore(tmp_path)
    first = store.add(RED, "row 1")
    assert (first.path.read_bytes(), first.width, first.height) == (RED, 8, 4)
    assert first.path.name == f"{first.digest}.png"
    assert store.add(RED, "row 2") is first
    converted = encoded((0, 0, 0, 0), mode="RGBA")
    second = store.add(converted, "row 3")
    assert len(list(tmp_path.iterdir())) == 2
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    later = ImageStore(tmp_path)
    for data, known in ((RED, first), (converted, second)):
        found = later.add(data, "row 1")
        assert (found, found.path, found.width) == (known, known.path, 8)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written


def test_an_image_that_a_crash_has_damaged_is_written_again(tmp_path: Path) -> None:
    first = ImageStore(tmp_path).add(RED, "row 1")
    first.path.write_bytes(b"")
    assert ImageStore(tmp_path).add(RED, "row 1").path.read_bytes() == RED


def test_limits(tmp_path: Path) -> None:
    images = prompt_images(tmp_path, max_images=1)
    many = r"row 1: the prompt has 2 images, more than data.images.max_images \(1\)"
    with pytest.raises(DataError, match=many):
        images.read_column([RED, RED], "row 1", "")
    with pytest.raises(DataError, match="row 1, image 1: An image is too wide"):
        images.read_column(encoded(size=(401, 4)), "row 1", "")
    assert images.read_column(None, "row 1", "") == ()
