"""Workflows for the tests' runs, named by file."""

import asyncio
import base64
import io
import os
import time
from typing import Any

from PIL import Image

from strop.types import Task
from strop.workflows import Chat, SyncChat, WorkflowResult


class Echo:
    """Wants digits, and asks once more; each reply earns its share of digits."""

    async def reset(self, task: Task) -> None:
        self.turns = 0
        await asyncio.sleep(0)

    async def step(self, reply: str) -> tuple[str | None, float]:
        self.turns += 1
        reward = sum(c.isdigit() for c in reply) / max(1, len(reply))
        return ("again" if self.turns < 2 else None), reward


def flaky(task: Task, chat: SyncChat) -> float:
    """Breaks on the first task, hangs on the second, and gives the others a reward."""
    number = int(task.id.rpartition(":")[2])
    if number == 1:
        time.sleep(60)
    reply = chat.reply()
    if number == 0:
        raise RuntimeError("no luck")
    return float(1 + len(reply))


async def breaks(task: Task, chat: Chat) -> None:
    await chat.reply()
    raise RuntimeError("no luck")


def mood(task: Task, chat: SyncChat) -> float:
    chat.reply()
    return float(os.environ["MOOD"])


async def asks_a_helper(task: Task, chat: Chat) -> WorkflowResult:
    reply = await chat.reply()
    said = await chat.ask("helper", f"how good is {reply}?", max_tokens=4)
    assert said == await chat.ask("helper", f"how good is {reply}?", max_tokens=4)
    return WorkflowResult(reward=float(len(said)), parts={"helper": 1.0})


def agent(task: Task, client: Any) -> float:
    """Knows nothing of Strop."""
    messages = list(task.messages)
    reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=4)
    messages += [reply.choices[0].message, {"role": "user", "content": "sure?"}]
    last = client.chat.completions.create(model="policy", messages=messages, max_tokens=4)
    text = last.choices[0].message.content
    return sum(c.isdigit() for c in text) / max(1, len(text))


def agent_with_images(task: Task, client: Any) -> float:
    """Sends the task's image as a data URL, and another in the next turn."""
    (image,) = task.media
    messages: list[Any] = []
    for picture in (image.path.read_bytes(), black_picture()):
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Read."}]
        messages.append({"role": "user", "content": content})
        reply = client.chat.completions.create(model="policy", messages=messages, max_tokens=2)
        messages.append(reply.choices[0].message)
    return float(len(reply.choices[0].message.content or ""))


async def tool_with_images(task: Task, chat: Chat) -> float:
    """Answers the first reply with the image of a tool."""
    await chat.reply()
    shown = [{"type": "image", "image": black_picture()}, {"type": "text", "text": "seen"}]
    return float(len(await chat.reply({"role": "tool", "content": shown})))


def black_picture() -> bytes:
    """A PNG."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, format="PNG")
    return file.getvalue()
