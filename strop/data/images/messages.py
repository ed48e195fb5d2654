"""Images in messages: content parts that refer to them, and markers that become such parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from strop.errors import DataError
from strop.types import ImageReference, Message

IMAGE_PARTS = ("image", "image_url")
"""Types of content parts that are images."""
_OTHER_MARKERS = ("<video>", "<audio>")
ReadImage = Callable[[Any, str], ImageReference]
"""Reads the value of a content part; the text names its place."""


def media_of(messages: Sequence[Message], where: str = "The prompt") -> tuple[ImageReference, ...]:
    """Images of messages, in their order. Raises `DataError` for one that has not been read."""
    found = []
    for message in messages:
        for part in _image_parts(message):
            if not isinstance(part.get("image"), ImageReference):
                raise DataError(
                    f"{where} has an image in a message of the role {message['role']!r}, but the model reads text "
                    "only. Use a model that reads images, or remove the image."
                )
            found.append(part["image"])
    return tuple(found)


def content_text(content: Any) -> Any:
    """A message's content as text, each image as `<image>`; a content in no parts is returned unchanged."""
    if isinstance(content, list) and all(isinstance(part, Mapping) for part in content):
        return "".join(str(part.get("text", "<image>")) for part in content)
    return content


def with_image_paths(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Messages whose image parts hold the path of the file as text, for code that must not import NumPy."""
    return tuple(
        {**message, "content": [_with_path(part) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    )


def _with_path(part: Mapping[str, Any]) -> Mapping[str, Any]:
    image = part.get("image")
    return {**part, "image": str(image.path)} if isinstance(image, ImageReference) else part


def mentions_images(messages: Sequence[Message], marker: str | None) -> bool:
    """Whether messages have a content part that is an image, or the marker of one."""
    return any(True for message in messages for _ in _image_parts(message)) or any(
        marker in text for message in messages if marker is not None for text in _markable_texts(message)
    )


def is_unmarked_text(messages: Sequence[Message], marker: str | None) -> bool:
    """Whether all contents are text without any marker; a quick check that most prompts pass."""
    for message in messages:
        content = message["content"]
        if type(content) is not str or (marker is not None and marker in content):
            return False
        if "<video>" in content or "<audio>" in content:
            return False
    return True


def other_media_marker(messages: Sequence[Message]) -> str | None:
    """The marker of a video or of audio in messages, which has no meaning here; None without one."""
    texts = [text for message in messages for text in _markable_texts(message)]
    return next((marker for marker in _OTHER_MARKERS if any(marker in text for text in texts)), None)


def place_images(
    messages: Sequence[Message],
    images: Sequence[ImageReference] | None,
    read: ReadImage,
    where: str,
    *,
    marker: str | None,
    unmarked: Literal["error", "start", "end"],
) -> tuple[Message, ...]:
    """Messages whose image parts all hold a reference.

    A part with an image of its own is read. The images of the row's column (None: it has no such column) take the
    places of the markers and of the parts without an image, in order; if there is no place, `unmarked` decides.
    Markers in replies of the assistant are text. Raises `DataError` if places and images differ in number.
    """
    remaining = iter(images or ())
    places = 0

    def take() -> dict[str, Any]:
        nonlocal places
        places += 1
        return {"type": "image", "image": next(remaining, None)}

    placed = [_placed(message, marker, take, read, where) for message in messages]
    if images and places == 0 and unmarked != "error":
        return _at_edge(placed, images, unmarked, where)
    if places != len(images or ()):
        raise DataError(_mismatch(where, places, images, marker))
    return tuple(placed)


def _placed(
    message: Message, marker: str | None, take: Callable[[], dict[str, Any]], read: ReadImage, where: str
) -> Message:
    content = message["content"]
    if isinstance(content, str):
        has_marker = marker is not None and message["role"] != "assistant" and marker in content
        parts = list(_split(content, marker, take)) if marker is not None and has_marker else content
        return {**message, "content": parts}
    if not isinstance(content, list):
        return message  # a tool's result, which the template renders
    parts = []
    for part in content:
        if part["type"] not in IMAGE_PARTS:
            is_markable = marker is not None and message["role"] != "assistant"
            parts += _split(part["text"], marker, take) if marker is not None and is_markable else [part]
        elif message["role"] == "assistant":
            raise DataError(
                f"{where}: a message of the assistant has an image; models of Strop reply with text."
            )
        elif any(value is not None for key, value in part.items() if key != "type"):
            parts.append({"type": "image", "image": _own_image(part, read, where)})
        else:
            parts.append(take())
    return {**message, "content": parts}


def _own_image(part: Mapping[str, Any], read: ReadImage, where: str) -> ImageReference:
    value = part.get("image")
    return value if isinstance(value, ImageReference) else read(part, f"{where}, an image in its messages")


def _split(text: str, marker: str, take: Callable[[], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(text.split(marker)):
        if number:
            yield take()
        if piece:
            yield {"type": "text", "text": piece}


def _at_edge(
    messages: Sequence[Message],
    images: Sequence[ImageReference],
    edge: Literal["error", "start", "end"],
    where: str,
) -> tuple[Message, ...]:
    """The messages with all images at the start or the end of the first user message."""
    number = next((i for i, message in enumerate(messages) if message["role"] == "user"), None)
    if number is None:
        raise DataError(f"{where} has images, but no message of the user to place them in.")
    content = messages[number]["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    own: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    changed = {**messages[number], "content": own + parts if edge == "start" else parts + own}
    return (*messages[:number], changed, *messages[number + 1 :])


def _mismatch(where: str, places: int, images: Sequence[ImageReference] | None, marker: str | None) -> str:
    shown = f"the marker {marker!r} or " if marker else ""
    found = (
        f"{where}: the messages have {_count(places, 'place')} for images ({shown}parts of type image), but "
    )
    if images is None:
        return (
            f"{found}the taskset names no column of images. Write its name as `images` of the taskset, or, if the "
            "marker is ordinary text, data.images.marker: null."
        )
    return (
        f"{found}the row has {_count(len(images), 'image')}. Write one marker where each image belongs, or "
        "data.images.unmarked: start for rows without markers."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _image_parts(message: Message) -> Iterator[Mapping[str, Any]]:
    content = message["content"]
    if isinstance(content, list):
        yield from (part for part in content if part["type"] in IMAGE_PARTS)


def _markable_texts(message: Message) -> Iterator[str]:
    content = message["content"]
    if message["role"] == "assistant":
        return
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (part["text"] for part in content if part["type"] == "text")
