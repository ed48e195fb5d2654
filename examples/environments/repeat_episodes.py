"""A taskset of verifiers 0.4 with a harness of its own: say a digit, and say it again.

The harness is a program that calls the model at the address which verifiers gives it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import verifiers.v1 as vf

PROGRAM = """
import sys
from openai import OpenAI

url, key, model, prompt = sys.argv[1:]
client = OpenAI(base_url=url, api_key=key)
messages = [{"role": "user", "content": prompt}]
for _ in range(2):
    answer = client.chat.completions.create(model=model, messages=messages).choices[0].message.content
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": prompt}]
"""


class DigitData(vf.TaskData):  # type: ignore[misc]
    """A task, with the digit to say."""

    answer: str


class Digit(vf.Task[DigitData]):  # type: ignore[misc,type-arg]
    """Scores the replies."""

    @vf.reward  # type: ignore[misc]
    async def share_right(self, trace: vf.Trace) -> float:
        """Fraction of the replies that are the digit."""
        replies = [(message.content or "").strip() for message in trace.assistant_messages]
        return sum(reply == self.data.answer for reply in replies) / max(1, len(replies))


class Digits(vf.Taskset[Digit, vf.TasksetConfig]):  # type: ignore[misc,type-arg]
    """One task per digit."""

    def load(self) -> Iterable[Digit]:
        """The tasks."""
        for digit in range(2):
            yield Digit(DigitData(prompt=f"Say {digit}.", answer=str(digit)), self.config.task)


class TwoTurns(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc,type-arg]
    """Asks a second time after the first reply."""

    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: DigitData,
        tool_interception_url: str | None = None,
    ) -> Any:
        """Run the program."""
        command = [sys.executable, "-c", PROGRAM, endpoint, secret, ctx.model, str(data.prompt)]
        return await runtime.run_program(command, {})


__all__ = ["Digits", "TwoTurns"]
