"""Execution of workflows: one rollout per call, with a time limit and retries."""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from strop.config.schema.rollout import RolloutConfig
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.errors import StropError
from strop.protocols import Sampler
from strop.seeds import derive_seed
from strop.types import FailureCause, Message, Rollout, RolloutStatus, SampleRequest, SamplingParams, Task
from strop.workflows.chat import Chat, EventLoopBridge, SyncChat, WorkflowServices
from strop.workflows.registry import BoundWorkflow
from strop.workflows.result import (
    ContextLengthExceeded,
    InvalidWorkflowResult,
    WorkflowResult,
    to_workflow_result,
)
from strop.workflows.session import RolloutSession
from strop.workflows.threads import run_in_thread

_MAX_THREADS = 64
_PACKAGE_FOLDER = str(Path(__file__).parents[1])


class WorkflowRunner:
    """Runs one workflow. An error in the workflow affects its own rollout only."""

    def __init__(
        self,
        workflow: BoundWorkflow,
        engine: Sampler,
        encoder: TurnEncoder,
        section: RolloutConfig,
        max_sequence_tokens: int,
        services: WorkflowServices,
    ) -> None:
        self._workflow = workflow
        self._engine = engine
        self._encoder = encoder
        self._section = section
        self._limit = max_sequence_tokens
        self._services = services
        self._is_async = workflow.is_async
        self.max_concurrent_rollouts = section.max_concurrent_rollouts or (
            None if self._is_async else _MAX_THREADS
        )
        """Maximum number of concurrent rollouts; None for no limit."""

    async def run(self, task: Task, group: str, index: int, sampling: SamplingParams, seed: int) -> Rollout:
        """One rollout, not yet scored by the run's reward; a failed one has the error message.

        Raises EngineLostError if the inference engine is lost, which no rollout is to blame for.
        """
        attempts = self._section.retries + 1
        for attempt in range(attempts):
            # A new seed: the same samples would most likely fail in the same way.
            attempt_seed = seed if attempt == 0 else derive_seed(seed, "attempt", attempt)
            rollout = await self._attempt(task, group, index, sampling, attempt_seed)
            if rollout.status != "error":
                break
        return rollout if attempt == 0 else replace(rollout, attempts=attempt + 1)

    async def reply(self, prompt: str, sampling: SamplingParams, seed: int) -> str | None:
        """The engine's reply to a prompt that is no task's; None for one that leaves no tokens for a reply."""
        messages = ({"role": "user", "content": prompt},)
        ids = self._encoder.encode_prompt(messages)
        room = self._limit - len(ids)
        if room <= 0:
            return None
        limits = replace(sampling, max_tokens=min(sampling.max_tokens, room))
        request = SampleRequest(f"reply-{seed}", ids, limits, seed, messages=messages)
        (completion,) = await self._engine.sample([request])
        return self._encoder.replies.decode(completion.token_ids)

    async def _attempt(
        self, task: Task, group: str, index: int, sampling: SamplingParams, seed: int
    ) -> Rollout:
        name = f"{group}-{index}"
        session = RolloutSession(
            name,
            self._engine,
            self._encoder,
            sampling,
            seed,
            self._limit,
            multi_turn=self._workflow.multi_turn,
        )
        make = partial(
            Rollout,
            id=name,
            task_id=task.id,
            group=group,
            index=index,
            sampling=sampling,
            sequence_per=self._section.sequence_per,
        )
        limit = self._section.timeout_seconds
        try:
            async with asyncio.timeout(limit) as clock:
                returned = await self._call(task, session)
            rollout = _completed_rollout(make, task, session, to_workflow_result(returned))
        except TimeoutError as error:
            rollout = _failed_rollout(make, _describe_error(error), "failed")
            if clock.expired():
                what = f"took longer than {limit:g} s (rollout.timeout_seconds) and was cancelled"
                rollout = _failed_rollout(make, f"the workflow {self._workflow.name} {what}", "timeout")
        except (InvalidWorkflowResult, StropError) as error:
            rollout = _failed_rollout(make, f"{self._workflow.name}: {error}", "failed")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's workflow may raise anything; only this rollout fails
            rollout = _failed_rollout(make, _describe_error(error), "failed")
        if session.engine_error is not None:
            raise session.engine_error
        return rollout

    async def _call(self, task: Task, session: RolloutSession) -> Any:
        prompt = session.start(task.messages, task.tools, task.prompt_ids)
        chat = Chat(session, prompt, self._services)
        try:
            if self._is_async:
                return await self._workflow.function(task, chat)
            bridge = EventLoopBridge(asyncio.get_running_loop())
            try:
                return await run_in_thread(self._workflow.function, task, SyncChat(chat, bridge))
            finally:
                bridge.close()
        except ContextLengthExceeded:
            return None


def _completed_rollout(
    make: Callable[..., Rollout], task: Task, session: RolloutSession, result: WorkflowResult
) -> Rollout:
    turns = tuple(session.turns if result.turns is None else result.turns)
    if not turns:
        why = "the prompt leaves no tokens for a reply" if session.truncated else "it did not call the model"
        raise InvalidWorkflowResult(f"the workflow ended without a turn to train on: {why}")
    rewards = None if result.turn_rewards is None else tuple(map(float, result.turn_rewards))
    if rewards is not None and len(rewards) != len(turns):
        raise InvalidWorkflowResult(
            f"the workflow returned {len(rewards)} turn_rewards for {len(turns)} turns; return one per call of "
            "the model"
        )
    states = None if result.turn_states is None else tuple(map(_digest, result.turn_states))
    if states is not None and len(states) != len(turns):
        raise InvalidWorkflowResult(
            f"the workflow returned {len(states)} turn_states for {len(turns)} turns; return one per call of the model"
        )
    reward = result.reward
    if reward is None and rewards is not None:
        reward = sum(rewards)
    parts = {} if reward is None else {"workflow": float(reward)}
    status: RolloutStatus = "truncated" if session.truncated or turns[-1].finish_reason == "length" else "ok"
    text = session.decode(turns[-1]) if result.text is None else result.text
    return make(
        turns=turns,
        text=text,
        status=status,
        reward=None if reward is None else float(reward),
        reward_parts=parts | {f"workflow/{name}": float(value) for name, value in result.parts.items()},
        messages=_response_messages(task, session, text),
        turn_rewards=rewards,
        turn_states=states,
        info=dict(result.info),
    )


def _digest(state: str) -> str:
    """Digest of a state, since states may be long and are only compared."""
    return hashlib.sha256(state.encode(errors="surrogatepass")).hexdigest()[:32]


def _response_messages(task: Task, session: RolloutSession, text: str) -> tuple[Message, ...]:
    """Messages after the task's prompt; empty if that is the response text alone."""
    if not session.conversations:
        return ()
    messages = session.conversations[-1].messages
    if messages[: len(task.messages)] == task.messages:
        messages = messages[len(task.messages) :]
    return () if len(messages) == 1 and messages[0]["content"] == text else messages


def _failed_rollout(make: Callable[..., Rollout], error: str, cause: FailureCause) -> Rollout:
    return make(turns=(), text="", status="error", error=error, failure_cause=cause)


def _describe_error(error: BaseException) -> str:
    """Type and message of an exception, and the last position in the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        f for f in frames if not f.filename.startswith(_PACKAGE_FOLDER) and "site-packages" not in f.filename
    ]
    last = (user_frames or frames)[-1]
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
