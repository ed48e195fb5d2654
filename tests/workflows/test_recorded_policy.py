"""Requests of an agent with images, or with long prompts."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from strop.data.encoding.reply import ChatReplyParser
from strop.errors import DataError
from strop.inference.endpoint.request import BadRequest, ChatRequest, parse_chat_request
from strop.workflows.chat import RecordedConversations, RecordedPolicy


def request_with(url: str) -> ChatRequest:
    image = {"type": "image_url", "image_url": {"url": url}}
    return parse_chat_request({"model": "policy", "messages": [{"role": "user", "content": [image]}]})


@pytest.mark.parametrize("step", ["read_images", "start"])
def test_an_image_or_a_prompt_that_takes_long_stops_no_other_rollout(step: str) -> None:
    """`start` encodes the prompt."""
    others = threading.Event()

    def take_long(*_: object) -> None:
        assert others.wait(600), "the event loop waits for the image or the prompt"
        raise DataError("it is too large")

    async def ask() -> None:
        session = SimpleNamespace(read_images=lambda messages: messages)
        setattr(session, step, take_long)
        policy = RecordedPolicy(
            session, RecordedConversations(session), asyncio.get_running_loop(), ChatReplyParser()
        )
        request = asyncio.create_task(policy.chat(request_with("https://host/image.png")))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(0.05, others.set)  # the work of another rollout
        with pytest.raises(BadRequest, match="it is too large"):
            await request

    asyncio.run(ask())


def test_a_path_of_this_machine_is_no_image_of_a_request() -> None:
    for url in ("file:///etc/passwd", "/etc/passwd", "s3://bucket/image.png", "gopher://host"):
        with pytest.raises(BadRequest, match="must begin with data:image/, http:// or https://"):
            request_with(url)
