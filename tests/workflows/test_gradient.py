"""Training on a conversation of two turns gives the gradient of the manually written sequence."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM

from strop.algorithms.registry import LossSpec
from strop.config.schema import Run
from strop.config.schema.algorithm import SftConfig
from strop.training.engine import local_policy
from strop.types import SamplingParams, TrainingBatch
from strop.workflows.experiences import rollout_to_experiences

TWO_TURNS = """
async def run(task, chat):
    await chat.reply()
    await chat.reply("are you sure?")
    return 1.0
"""


@pytest.mark.parametrize("unit", ["trajectory", "turn"])
def test_gradient_equals_the_manual_one(world, user_file, unit):
    rollout = world.run(
        world.native(),
        f"{user_file(TWO_TURNS)}:run",
        sampling=SamplingParams(max_tokens=6),
        sequence_per=unit,
    )
    experiences = rollout_to_experiences(rollout, "")
    assert len(experiences) == (1 if unit == "trajectory" else 2)
    run = Run.model_validate(
        {
            "model": {"path": str(world.folder)},
            "data": {"train": {"path": "none.jsonl"}},
            "reward": "exact",
            "trainer": {"engine": {"device": "cpu"}},
        }
    )
    engine = local_policy(run)
    targets = sum(len(turn.completion_ids) for turn in rollout.turns)
    engine.forward_backward(TrainingBatch(experiences), LossSpec(SftConfig(), 400))

    by_hand = AutoModelForCausalLM.from_pretrained(world.folder)
    loss = torch.zeros(())
    for turn in rollout.turns:
        ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
        logprobs = by_hand(ids, use_cache=False).logits[0].log_softmax(-1)
        for place in range(len(turn.prompt_ids), ids.shape[1]):
            loss = loss - logprobs[place - 1, ids[0, place]] / targets
    loss.backward()
    expected = dict(by_hand.named_parameters())
    for name, parameter in engine.policy.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-6, rtol=1e-4)
