"""How a task becomes a rollout, and a rollout experiences.

`table.py` finds a workflow by its name, `runner.py` runs it under a time limit. It talks to the model
through `chat.py`, and `session.py` keeps what was said, token by token. `experiences.py` makes of that
what is trained.
"""

from strop.workflows.chat import Chat, SyncChat
from strop.workflows.outcome import Outcome, OutOfRoom

__all__ = ["Chat", "OutOfRoom", "Outcome", "SyncChat"]
