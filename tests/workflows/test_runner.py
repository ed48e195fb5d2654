"""Execution of workflows: tokens, seeds, time limits, retries and errors."""

from __future__ import annotations

import asyncio
import re
import threading
import time

import numpy as np
import pytest

from strop.errors import EngineLostError
from strop.seeds import derive_seed
from strop.types import SamplingParams
from strop.workflows.experiences import rollout_to_experiences
from tests.workflows.conftest import trained_texts

WORKFLOWS = """
import asyncio, time
from pathlib import Path

import numpy as np

from strop.types import Turn
from strop.workflows import ContextLengthExceeded, WorkflowResult

async def run(task, chat):
    first = await chat.reply()
    second = await chat.reply("are you sure?")
    return float(len(second))

def run_waiting(task, chat):
    first = chat.reply()
    second = chat.reply("are you sure?")
    return float(len(second))

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

async def waits(task, chat):
    await asyncio.sleep(60)

def sleeps(task, chat):
    chat.reply()
    time.sleep(1.5)
    chat.reply()

def spins(task, chat):
    while True:
        pass

def flaky(task, chat, log):
    chat.reply()
    log = Path(log)
    times = int(log.read_text()) if log.exists() else 0
    log.write_text(str(times + 1))
    if times < 2:
        raise RuntimeError("not yet")

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

async def branches(task, chat):
    other = chat.start("another one")
    await chat.reply()
    await other.reply()
    await chat.reply("go on")
    await other.reply("go on")

async def asks(task, chat):
    return (await chat.reply()).count("e")

async def asks_and_shrugs(task, chat):
    try:
        return (await chat.reply()).count("e")
    except Exception:
        return 0.0
"""
TWO = SamplingParams(max_tokens=8)


@pytest.fixture
def file(user_file):
    return user_file(WORKFLOWS)


@pytest.fixture
def run(world, file):
    """One rollout of a function of `WORKFLOWS`."""
    return lambda engine, name, *args, **section: world.run(engine, f"{file}:{name}", *args, **section)


@pytest.mark.parametrize("name", ["run", "run_waiting"])
def test_two_turns_are_one_sequence_of_the_sampled_tokens(world, run, name):
    rollout = run(world.native(), name, sampling=TWO)
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


def test_blocking_and_async_workflows_give_the_same_rollout(world, run):
    one, other = (run(world.native(), name, sampling=TWO) for name in ("run", "run_waiting"))
    for a, b in zip(one.turns, other.turns, strict=True):
        assert np.array_equal(a.completion_ids, b.completion_ids)
        assert np.array_equal(a.sampler_logprobs, b.sampler_logprobs)


def test_seeds_of_calls(world, run):
    engine = world.says("four")
    run(engine, "run")
    assert [request.seed for request in engine.requests] == [7, derive_seed(7, "call", 1)]


def test_one_experience_per_turn(world, run):
    rollout = run(world.says("four", "yes"), "run", sequence_per="turn")
    first, second = rollout_to_experiences(rollout, "")
    assert (first.turn, second.turn) == (0, 1)
    assert second.response_tokens == len(rollout.turns[1].completion_ids)
    assert first.reward == second.reward


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raises", r"ZeroDivisionError: division by zero \(.*mine.py:\d+\)"),
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
def test_errors_fail_the_rollout_with_a_message(world, run, name, words):
    rollout = run(world.says("four"), name)
    assert (rollout.status, rollout.failure_cause, rollout.reward) == ("error", "failed", None)
    assert re.search(words, rollout.error), rollout.error
    assert "\n" not in rollout.error


@pytest.mark.parametrize("name", ["waits", "sleeps", "spins"])
def test_rollouts_beyond_the_time_limit_are_cancelled(world, run, name):
    rollout = run(world.says("four"), name, timeout_seconds=0.2)
    assert (rollout.status, rollout.failure_cause) == ("error", "timeout")
    assert "took longer than 0.2 s (rollout.timeout_seconds)" in rollout.error


def test_abandoned_thread_ends(world, run):
    run(world.says("four"), "spins", timeout_seconds=0.1)
    while any(thread.name == "spins" for thread in threading.enumerate()):
        time.sleep(0.02)


def test_failed_rollout_is_retried_with_another_seed(world, run, tmp_path):
    args, engine = {"log": str(tmp_path / "log")}, world.says("four")
    rollout = run(engine, "flaky", args, retries=1)
    assert (rollout.status, rollout.attempts) == ("error", 2)
    rollout = run(engine, "flaky", args, retries=5)
    assert (rollout.status, rollout.attempts, rollout.text) == ("ok", 1, "four")
    assert len(rollout.turns) == 1, "earlier attempts leave nothing behind"
    assert engine.requests[1].seed == derive_seed(7, "attempt", 1)


@pytest.mark.parametrize("name", ["lets_it_pass", "stops"])
def test_conversation_at_the_token_limit_is_truncated(world, run, name):
    rollout = run(world.says("four"), name, max_sequence_tokens=60)
    assert rollout.status == "truncated"
    last = rollout.turns[-1]
    assert len(last.prompt_ids) + len(last.completion_ids) <= 60
    assert rollout.reward == (len(rollout.turns) if name == "stops" else None)


def test_other_rollouts_continue_while_one_hangs(world, file):
    hanging = world.runner(world.says("four"), f"{file}:sleeps", timeout_seconds=0.3)
    quick = world.runner(world.says("four"), f"{file}:run_waiting")

    async def all_of_them():
        runs = [(hanging, 0), (quick, 1), (quick, 2), (quick, 3)]
        return await asyncio.gather(*(runner.run(world.task(), "g", i, TWO, i) for runner, i in runs))

    late, *done = asyncio.run(all_of_them())
    assert late.failure_cause == "timeout"
    assert all(rollout.status == "ok" for rollout in done)


def test_interleaved_conversations_are_separate_sequences(world, run):
    rollout = run(world.says("a", "b", "c", "d"), "branches")
    assert trained_texts(world, rollout) == ["a<|end|>c<|end|>", "b<|end|>d<|end|>"]


class Gone:
    """An engine whose process has died."""

    async def sample(self, requests):
        raise EngineLostError("engine-0 ended by signal 9")


@pytest.mark.parametrize("name", ["asks", "asks_and_shrugs"])
def test_lost_engine_raises_whatever_the_workflow_catches(run, name):
    with pytest.raises(EngineLostError, match="by signal 9"):
        run(Gone(), name, retries=2)
