"""Workflows: how a task becomes a rollout, and a rollout becomes experiences.

`registry.py` finds a workflow by its name, and `runner.py` runs it under a time limit. A workflow talks to the
model through `chat.py`; `session.py` records every call, token by token. `experiences.py` turns the recorded
turns into training sequences.
"""

from __future__ import annotations

from strop.workflows.chat import Chat, SyncChat
from strop.workflows.result import ContextLengthExceeded, WorkflowResult

__all__ = ["Chat", "ContextLengthExceeded", "SyncChat", "WorkflowResult"]
