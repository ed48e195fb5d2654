"""An agent of the package smolagents, which writes Python code until it knows the answer (`smol_agent.yaml`).

It knows nothing of Strop: the environment says where the model is, and the task comes as an argument.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from smolagents import ChatMessage, CodeAgent, LogLevel, MessageRole, OpenAIServerModel

SYSTEM = "You answer by running Python code. Write one block of code that passes the answer to final_answer."
"""In place of the package's prompt, which is written for large models and has two thousand tokens."""
EXAMPLES = {"12-5=": "12 - 5", "6*3=": "6 * 3"}
"""Conversations before the task: without them a model of 135 million parameters writes no block of code."""


def message(role: MessageRole, text: str) -> ChatMessage:
    """A message of text."""
    return ChatMessage(role=role, content=[{"type": "text", "text": text}])


class ModelWithExamples(OpenAIServerModel):  # type: ignore[misc]
    """A model that reads the examples after the system message."""

    def generate(self, messages: list[ChatMessage], **options: Any) -> ChatMessage:
        """Reply to a conversation."""
        shown = []
        for task, code in EXAMPLES.items():
            shown.append(message(MessageRole.USER, f"New task:\n{task}"))
            shown.append(message(MessageRole.ASSISTANT, f"<code>\nfinal_answer({code})\n</code>"))
        return super().generate([messages[0], *shown, *messages[1:]], **options)


model = ModelWithExamples(
    os.environ["OPENAI_MODEL"],
    api_base=os.environ["OPENAI_BASE_URL"],
    api_key=os.environ["OPENAI_API_KEY"],
    max_tokens=96,
)
agent = CodeAgent(tools=[], model=model, max_steps=2, verbosity_level=LogLevel.OFF)
agent.prompt_templates["system_prompt"] = SYSTEM
print(agent.run(sys.argv[1]))
