"""Training on a conversation of two turns gives the gradient of the sequence written down by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from strop.algorithms.supervised import supervised_loss
from strop.config.schema import Run
from strop.config.units import Amount
from strop.data.pack import pack
from strop.training.single import SingleEngine
from strop.types import GlobalCounts, Sampling
from strop.workflows.experiences import rollout_to_experiences

TWO_TURNS = """
async def run(task, chat):
    await chat.reply()
    await chat.reply("are you sure?")
    return 1.0
"""


@pytest.mark.parametrize("unit", ["trajectory", "turn"])
def test_the_gradient_is_that_of_the_targets_by_hand(world, user_file, unit):
    rollout = world.run(
        world.native(), f"{user_file(TWO_TURNS)}:run", sampling=Sampling(max_tokens=6), experience_per=unit
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
    engine = SingleEngine(run)
    targets = sum(len(turn.completion_ids) for turn in rollout.turns)
    counts = GlobalCounts(tokens=targets, sequences=1)
    zeros = [np.zeros(len(e.token_ids), np.float32) for e in experiences]
    batches = pack(experiences, zeros, Amount(400, "tokens"), share_prompts=True, device="cpu")
    engine.forward_backward(batches, supervised_loss, counts, entropy=False)

    by_hand = AutoModelForCausalLM.from_pretrained(world.folder)
    loss = torch.zeros(())
    for turn in rollout.turns:
        ids = torch.tensor([[*turn.prompt_ids, *turn.completion_ids]])
        logprobs = by_hand(ids, use_cache=False).logits[0].log_softmax(-1)
        for place in range(len(turn.prompt_ids), ids.shape[1]):
            loss = loss - logprobs[place - 1, ids[0, place]] / targets
    loss.backward()
    expected = dict(by_hand.named_parameters())
    for name, parameter in engine.model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name].grad, atol=1e-6, rtol=1e-4)
