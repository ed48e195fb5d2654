"""Places of images in messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strop.data.images.messages import content_text, media_of, mentions_images, place_images, with_image_paths
from strop.errors import DataError
from strop.types import ImageReference

A, B = (ImageReference(digest, Path(f"{digest}.png"), 8, 8) for digest in "ab")
PART_A, PART_B = ({"type": "image", "image": image} for image in (A, B))


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def place(
    *messages: dict[str, Any], images: Any = (), marker: str | None = "<image>", unmarked: Any = "error"
) -> tuple[Any, ...]:
    def read(value: Any, where: str) -> ImageReference:
        assert where == "row 4, an image in its messages"
        return {"a.png": A, "b.png": B}[value.get("path") or value["image_url"]["url"]]

    return place_images(messages, images, read, "row 4", marker=marker, unmarked=unmarked)


def test_markers_become_parts_in_order() -> None:
    (found,) = place(user("<image>Compare with <image>!"), images=[A, B])
    assert found == user([PART_A, text("Compare with "), PART_B, text("!")])
    assert media_of([found]) == (A, B)


def test_images_in_several_turns() -> None:
    reply = {"role": "assistant", "content": "I write <image> as text."}
    found = place(user("<image>What?"), reply, user("And <image>?"), images=[A, B])
    assert found[1] == reply
    assert media_of(found) == (A, B)


def test_parts_without_an_image_take_those_of_the_column() -> None:
    (found,) = place(user([{"type": "image"}, text("or <image>?")]), images=[A, B])
    assert found["content"] == [PART_A, text("or "), PART_B, text("?")]


def test_parts_with_an_image_of_their_own_are_read() -> None:
    content = [
        {"type": "image", "path": "b.png"},
        {"type": "image_url", "image_url": {"url": "a.png"}},
        PART_B,
    ]
    assert media_of(place(user(content), images=None)) == (B, A, B)


def test_rows_without_images_are_unchanged() -> None:
    messages = (user("2 + 3?"), {"role": "assistant", "content": "5", "name": "x"})
    for images in ((), None):
        assert place(*messages, images=images) == messages


@pytest.mark.parametrize(
    ("unmarked", "expected"), [("start", [PART_A, text("Why?")]), ("end", [text("Why?"), PART_A])]
)
def test_images_without_a_marker(unmarked: str, expected: list[Any]) -> None:
    system = {"role": "system", "content": "Look."}
    assert place(system, user("Why?"), images=[A], unmarked=unmarked) == (system, user(expected))
    # A marker is a place, so nothing is unmarked.
    assert place(user("Why <image>?"), images=[A], unmarked=unmarked)[0]["content"][1] == PART_A


@pytest.mark.parametrize(
    ("content", "images", "message"),
    [
        ("<image><image>", [A], "row 4: the messages have 2 places for images .* but the row has 1 image[.]"),
        ("Why?", [A], "have 0 places for images .* the row has 1 image[.]"),
        ("<image>", None, "the taskset names no column of images. Write its name as `images`"),
        ("<image>", [], "1 place for images .* the row has 0 images"),
    ],
)
def test_numbers_that_differ_name_the_row(content: str, images: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        place(user(content), images=images)


def test_without_a_marker_the_text_stays() -> None:
    assert place(user("<image>"), marker=None) == (user("<image>"),)


def test_a_reply_with_an_image_is_refused() -> None:
    with pytest.raises(DataError, match="row 4: a message of the assistant has an image"):
        place({"role": "assistant", "content": [PART_A]})


def test_mentions() -> None:
    assert mentions_images([user("a <image>")], "<image>")
    assert mentions_images([user([{"type": "image_url"}])], None)
    assert not mentions_images([user("a <image>")], None)
    assert not mentions_images([user("b"), {"role": "assistant", "content": "<image>"}], "<image>")


def test_an_image_that_was_not_read_is_refused() -> None:
    with pytest.raises(
        DataError, match="row 4 has an image in a message of the role 'user', but the model reads text"
    ):
        media_of([user([{"type": "image", "path": "a.png"}])], "row 4")


def test_forms_for_other_code() -> None:
    message = user([PART_A, text("Why?")])
    assert content_text(message["content"]) == "<image>Why?"
    assert with_image_paths([message, user("x")]) == (
        user([{"type": "image", "image": "a.png"}, text("Why?")]),
        user("x"),
    )
