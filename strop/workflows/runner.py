"""Runs a workflow on a task until there is a rollout: under a time limit, and again where it breaks."""

from __future__ import annotations

import asyncio
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from strop.config.schema.rollout import Rollout as Section
from strop.data.turns import TurnEncoder
from strop.errors import StropError
from strop.protocols import InferenceEngine
from strop.seeds import derive_seed
from strop.types import Cause, Message, Rollout, Sampling, Status, Task
from strop.workflows.chat import Bridge, Chat, SyncChat
from strop.workflows.outcome import BadOutcome, Outcome, OutOfRoom, to_outcome
from strop.workflows.services import Services
from strop.workflows.session import Session
from strop.workflows.table import Bound
from strop.workflows.threads import in_thread

_MOST_THREADS = 64
_STROP = str(Path(__file__).parents[1])


class Runner:
    """Makes rollouts by one workflow. Whatever the workflow does breaks its own rollout at most."""

    def __init__(
        self,
        workflow: Bound,
        engine: InferenceEngine,
        encoder: TurnEncoder,
        section: Section,
        max_sequence_tokens: int,
        services: Services,
    ) -> None:
        self._workflow = workflow
        self._engine = engine
        self._encoder = encoder
        self._section = section
        self._limit = max_sequence_tokens
        self._services = services

    @property
    def most(self) -> int | None:
        """Rollouts under way at most; None for any number."""
        return self._section.runners or (None if self._workflow.is_async else _MOST_THREADS)

    async def run(self, task: Task, group: str, index: int, sampling: Sampling, seed: int) -> Rollout:
        """One rollout, not yet scored by the run's reward; a broken one says what went wrong.

        Raises EngineLost where there is nobody to sample from any more, which is no fault of the rollout's.
        """
        attempts = self._section.retries + 1
        for attempt in range(attempts):
            # Another draw: the same one would most likely break in the same way.
            own = seed if attempt == 0 else derive_seed(seed, "attempt", attempt)
            rollout = await self._attempt(task, group, index, sampling, own)
            if rollout.status != "error":
                break
        return replace(rollout, attempts=attempt + 1)

    async def _attempt(self, task: Task, group: str, index: int, sampling: Sampling, seed: int) -> Rollout:
        name = f"{group}-{index}"
        session = Session(name, self._engine, self._encoder, sampling, seed, self._limit)
        empty = Rollout(
            id=name,
            task_id=task.id,
            group=group,
            index=index,
            turns=(),
            text="",
            status="ok",
            sampling=sampling,
            unit=self._section.experience_per,
        )
        rollout = await self._tried(task, session, empty)
        if session.lost is not None:
            raise session.lost
        return rollout

    async def _tried(self, task: Task, session: Session, empty: Rollout) -> Rollout:
        limit = self._section.timeout_seconds
        try:
            async with asyncio.timeout(limit) as clock:
                returned = await self._called(task, session)
            return _finished(empty, task, session, to_outcome(returned))
        except TimeoutError as error:
            if not clock.expired():
                return _broken(empty, _told(error), "failed")
            late = f"took longer than {limit:g} s (rollout.timeout_seconds) and was given up"
            return _broken(empty, f"the workflow {self._workflow.name} {late}", "late")
        except (BadOutcome, StropError) as error:
            return _broken(empty, f"{self._workflow.name}: {error}", "failed")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's workflow may raise anything; it breaks this rollout only
            return _broken(empty, _told(error), "failed")

    async def _called(self, task: Task, session: Session) -> Any:
        prompt = session.begin(task.messages, task.tools, task.prompt_ids)
        chat = Chat(session, prompt, self._services)
        try:
            if self._workflow.is_async:
                return await self._workflow.function(task, chat)
            bridge = Bridge(asyncio.get_running_loop())
            try:
                return await in_thread(self._workflow.function, task, SyncChat(chat, bridge))
            finally:
                bridge.close()
        except OutOfRoom:
            return None


def _finished(empty: Rollout, task: Task, session: Session, outcome: Outcome) -> Rollout:
    turns = tuple(session.turns if outcome.turns is None else outcome.turns)
    if not turns:
        why = "its prompt leaves no room for an answer" if session.cut else "it never asked the model"
        raise BadOutcome(f"the workflow ended without one turn to learn from: {why}")
    rewards = None if outcome.turn_rewards is None else tuple(map(float, outcome.turn_rewards))
    if rewards is not None and len(rewards) != len(turns):
        raise BadOutcome(
            f"the workflow gave {len(rewards)} turn_rewards for {len(turns)} turns; write one for each call "
            "of the model"
        )
    reward = outcome.reward
    if reward is None and rewards is not None:
        reward = sum(rewards)
    parts = {} if reward is None else {"workflow": float(reward)}
    status: Status = "truncated" if session.cut or turns[-1].finish == "length" else "ok"
    text = session.text(turns[-1]) if outcome.text is None else outcome.text
    return replace(
        empty,
        turns=turns,
        text=text,
        status=status,
        reward=None if reward is None else float(reward),
        reward_parts=parts | {f"workflow/{name}": float(value) for name, value in outcome.parts.items()},
        messages=_said(task, session, text),
        turn_rewards=rewards,
    )


def _said(task: Task, session: Session, text: str) -> tuple[Message, ...]:
    """What came after the task's prompt, where that is more than one answer."""
    if not session.dialogues:
        return ()
    messages = session.dialogues[-1].messages
    if messages[: len(task.messages)] == task.messages:
        messages = messages[len(task.messages) :]
    return () if len(messages) == 1 and messages[0]["content"] == text else messages


def _broken(empty: Rollout, error: str, cause: Cause) -> Rollout:
    return replace(empty, status="error", error=error, cause=cause)


def _told(error: BaseException) -> str:
    """What was raised, and where in the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith(_STROP) and "site-packages" not in f.filename]
    last = (own or frames)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
