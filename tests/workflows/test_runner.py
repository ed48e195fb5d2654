"""Execution of workflows: tokens, seeds, time limits, retries and errors."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from strop.errors import EngineLostError
from strop.seeds import derive_seed
from strop.types import SamplingParams
from strop.workflows.experiences import rollout_to_experiences

TWO_TURNS = """
async def run(task, chat):
    first = await chat.reply()
    second = await chat.reply("are you sure?")
    return float(len(second))

def run_waiting(task, chat):
    first = chat.reply()
    second = chat.reply("are you sure?")
    return float(len(second))
"""


@pytest.mark.parametrize("name", ["run", "run_waiting"])
def test_two_turns_are_one_sequence_of_the_sampled_tokens(world, user_file, name):
    engine = world.native()
    rollout = world.run(engine, f"{user_file(TWO_TURNS)}:{name}", sampling=SamplingParams(max_tokens=8))
    assert rollout.error is None
    first, second = rollout.turns
    shown = [*first.prompt_ids, *first.completion_ids]
    assert second.prompt_ids[: len(shown)].tolist() == shown
    assert "are you sure?" in world.tokenizer.decode(second.prompt_ids[len(shown) :])
    (experience,) = rollout_to_experiences(rollout, "")
    targets = experience.token_ids[experience.loss_mask]
    assert targets.tolist() == [*first.completion_ids, *second.completion_ids]
    assert experience.reward == rollout.reward == rollout.reward_parts["workflow"]
    assert [message["role"] for message in rollout.response_messages] == ["assistant", "user", "assistant"]
    assert rollout.response_messages[-1]["content"] == rollout.text


def test_blocking_and_async_workflows_give_the_same_rollout(world, user_file):
    file = user_file(TWO_TURNS)
    one, other = (
        world.run(world.native(), f"{file}:{name}", sampling=SamplingParams(max_tokens=8))
        for name in ("run", "run_waiting")
    )
    for a, b in zip(one.turns, other.turns, strict=True):
        assert np.array_equal(a.completion_ids, b.completion_ids)
        assert np.array_equal(a.sampler_logprobs, b.sampler_logprobs)


def test_seeds_of_calls(world, user_file):
    engine = world.says("four")
    world.run(engine, f"{user_file(TWO_TURNS)}:run")
    assert [request.seed for request in engine.requests] == [7, derive_seed(7, "call", 1)]


def test_one_experience_per_turn(world, user_file):
    rollout = world.run(world.says("four", "yes"), f"{user_file(TWO_TURNS)}:run", sequence_per="turn")
    first, second = rollout_to_experiences(rollout, "")
    assert (first.turn, second.turn) == (0, 1)
    assert second.response_tokens == len(rollout.turns[1].completion_ids)
    assert first.reward == second.reward


BROKEN = """
import time
from strop.types import Turn
from strop.workflows import WorkflowResult
import numpy as np

def raises(task, chat):
    chat.reply()
    return 1 / 0

async def exits(task, chat):
    raise SystemExit(3)

def exits_waiting(task, chat):
    raise SystemExit(3)

async def never_asks(task, chat):
    return 1.0

async def no_reward_but_a_dict(task, chat):
    await chat.reply()
    return {"reward": 1.0}

async def nan(task, chat):
    await chat.reply()
    return float("nan")

async def wrong_number_of_rewards(task, chat):
    await chat.reply()
    return WorkflowResult(turn_rewards=[1.0, 2.0])

async def wrong_lengths(task, chat):
    await chat.reply()
    ids = np.array([1, 2, 3], np.int32)
    two, three = np.zeros(2, np.float32), np.zeros(3, np.float32)
    return WorkflowResult(reward=1.0, turns=[Turn(ids, ids, two, three, "stop", 0)])

async def own_timeout(task, chat):
    raise TimeoutError("the shop is closed")
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", r"ZeroDivisionError: division by zero \(.*mine.py:9\)"),
        ("exits", "SystemExit: 3"),
        ("exits_waiting", "SystemExit: 3"),
        ("never_asks", "without a turn to train on: it did not call the model"),
        ("no_reward_but_a_dict", r"returned a dict. It may return nothing, a number \(the reward\)"),
        ("nan", "returned the reward nan; a reward is a finite number"),
        ("wrong_number_of_rewards", "2 turn_rewards for 1 turns; return one per call"),
        ("wrong_lengths", "Turn: arrays of the same tokens have different lengths"),
        ("own_timeout", "TimeoutError: the shop is closed"),
    ],
)
def test_errors_fail_the_rollout_with_a_message(world, user_file, name, words):
    rollout = world.run(world.says("four"), f"{user_file(BROKEN)}:{name}")
    assert (rollout.status, rollout.failure_cause, rollout.reward) == ("error", "failed", None)
    assert re.search(words, rollout.error), rollout.error
    assert "\n" not in rollout.error


SLOW = """
import asyncio, time

async def waits(task, chat):
    await asyncio.sleep(60)

def sleeps(task, chat):
    chat.reply()
    time.sleep(1.5)
    chat.reply()

def spins(task, chat):
    while True:
        pass
"""


@pytest.mark.parametrize("name", ["waits", "sleeps", "spins"])
def test_rollouts_beyond_the_time_limit_are_cancelled(world, user_file, name):
    rollout = world.run(world.says("four"), f"{user_file(SLOW)}:{name}", timeout_seconds=0.2)
    assert (rollout.status, rollout.failure_cause) == ("error", "timeout")
    assert "took longer than 0.2 s (rollout.timeout_seconds)" in rollout.error


def test_abandoned_thread_ends(world, user_file):
    world.run(world.says("four"), f"{user_file(SLOW)}:spins", timeout_seconds=0.1)
    deadline = time.monotonic() + 10
    while any(thread.name == "spins" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the thread goes on for ever"
        time.sleep(0.02)


FLAKY = """
from pathlib import Path

def run(task, chat, log):
    chat.reply()
    log = Path(log)
    times = int(log.read_text()) if log.exists() else 0
    log.write_text(str(times + 1))
    if times < 2:
        raise RuntimeError("not yet")
"""


def test_failed_rollout_is_retried_with_another_seed(world, user_file, tmp_path):
    name, args = f"{user_file(FLAKY)}:run", {"log": str(tmp_path / "log")}
    engine = world.says("four")
    rollout = world.run(engine, name, args, retries=1)
    assert (rollout.status, rollout.attempts) == ("error", 2)
    rollout = world.run(engine, name, args, retries=5)
    assert (rollout.status, rollout.attempts, rollout.text) == ("ok", 1, "four")
    assert len(rollout.turns) == 1, "earlier attempts leave nothing behind"
    assert engine.requests[1].seed == derive_seed(7, "attempt", 1)


ENDLESS = """
from strop.workflows import ContextLengthExceeded

async def lets_it_pass(task, chat):
    while True:
        await chat.reply("more")

async def stops(task, chat):
    turns = 0
    try:
        while True:
            await chat.reply("more")
            turns += 1
    except ContextLengthExceeded:
        return float(turns)
"""


@pytest.mark.parametrize("name", ["lets_it_pass", "stops"])
def test_conversation_at_the_token_limit_is_truncated(world, user_file, name):
    rollout = world.run(world.says("four"), f"{user_file(ENDLESS)}:{name}", max_sequence_tokens=60)
    assert rollout.status == "truncated"
    last = rollout.turns[-1]
    assert len(last.prompt_ids) + len(last.completion_ids) <= 60
    assert rollout.reward == (len(rollout.turns) if name == "stops" else None)


def test_other_rollouts_continue_while_one_hangs(world, user_file):
    file = user_file(SLOW + TWO_TURNS)
    hanging = world.runner(world.says("four"), f"{file}:sleeps", timeout_seconds=0.3)
    quick = world.runner(world.says("four"), f"{file}:run_waiting")

    async def all_of_them():
        task = world.task()
        sampling = SamplingParams(max_tokens=50)
        return await asyncio.gather(
            hanging.run(task, "g", 0, sampling, 1), *(quick.run(task, "g", i, sampling, i) for i in (1, 2, 3))
        )

    late, *done = asyncio.run(all_of_them())
    assert late.failure_cause == "timeout"
    assert all(rollout.status == "ok" for rollout in done)


BRANCHES = """
async def run(task, chat):
    other = chat.start("another one")
    await chat.reply()
    await other.reply()
    await chat.reply("go on")
    await other.reply("go on")
"""


def test_interleaved_conversations_are_separate_sequences(world, user_file):
    rollout = world.run(world.says("a", "b", "c", "d"), f"{user_file(BRANCHES)}:run")
    experiences = rollout_to_experiences(replace(rollout, reward=1.0), "")
    texts = [world.tokenizer.decode(e.token_ids[e.loss_mask]) for e in experiences]
    assert texts == ["a<|end|>c<|end|>", "b<|end|>d<|end|>"]


class Gone:
    """An engine whose process has died."""

    async def sample(self, requests):
        raise EngineLostError("engine-0 ended by signal 9")


ASKS = """
async def asks(task, chat):
    return (await chat.reply()).count("e")

async def asks_and_shrugs(task, chat):
    try:
        return (await chat.reply()).count("e")
    except Exception:
        return 0.0
"""


@pytest.mark.parametrize("name", ["asks", "asks_and_shrugs"])
def test_lost_engine_raises_whatever_the_workflow_catches(world, user_file, name):
    with pytest.raises(EngineLostError, match="by signal 9"):
        world.run(Gone(), f"{user_file(ASKS)}:{name}", retries=2)


OLD_NAMES = """
from strop.workflows import Outcome, OutOfRoom

async def run(task, chat):
    try:
        await chat.reply()
    except OutOfRoom:
        return 0.0
    return Outcome(reward=float(chat.room))
"""


def test_deprecated_names_work(world, user_file):
    with pytest.warns(DeprecationWarning) as caught:
        rollout = world.run(world.says("four"), f"{user_file(OLD_NAMES)}:run")
    assert rollout.error is None and rollout.reward > 0
    messages = {str(warning.message) for warning in caught}
    assert "Chat.room is deprecated; use Chat.remaining_tokens." in messages
    assert "strop.workflows.Outcome is deprecated; use strop.workflows.WorkflowResult." in messages
