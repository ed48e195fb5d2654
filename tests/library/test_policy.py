"""The four verbs: what they sample and compute is what the engines compute, and bad input is one paragraph."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import strop
from strop.types import SampleRequest

PROMPTS = [{"prompt": f"{a}+1=", "answer": str(a + 1)} for a in range(4)]


@pytest.fixture(scope="module")
def groups(still: strop.Policy) -> list[strop.RolloutGroup]:
    return still.sample(PROMPTS, n=3, max_tokens=5, seed=7)


@pytest.fixture(scope="module")
def batch(groups: list[strop.RolloutGroup]) -> strop.TrainingBatch:
    return strop.make_batch(groups, np.linspace(-1, 1, 12).reshape(4, 3))


def test_a_seed_repeats_a_sample_and_groups_follow_the_prompts(still, groups):
    again = still.sample(PROMPTS, n=3, max_tokens=5, seed=7)
    for group, other, row in zip(groups, again, PROMPTS, strict=True):
        assert group.task.answer == row["answer"] and len(group.rollouts) == 3
        assert [r.text for r in group.rollouts] == [r.text for r in other.rollouts]
    assert (
        len(
            {rollout.text for group in still.sample(PROMPTS, n=3, max_tokens=5) for rollout in group.rollouts}
        )
        > 1
    )


def test_log_probs_are_those_of_the_sampler_and_of_transformers(still, folder, batch):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    found = still.logprobs(batch)
    reference = still.logprobs(batch, reference=True)
    for experience, own, initial, old in zip(
        batch.experiences, found, reference, batch.old_logprobs, strict=True
    ):
        ids = torch.tensor(experience.token_ids[None].astype(np.int64))
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].log_softmax(-1)
        expected = np.zeros(len(own), np.float32)
        expected[1:] = logits.gather(-1, ids[0, 1:, None])[:, 0].numpy()
        expected[~experience.loss_mask] = 0
        for values in (own, initial, old):
            np.testing.assert_allclose(values, expected, atol=1e-5)


def hand_written(micro_batch, outputs, counts):
    """Importance sampling, over the tokens of the batch."""
    targets = torch.from_numpy(micro_batch.targets)
    old = micro_batch.old_logprobs[targets]
    ratio = (outputs.logprobs[targets] - old).exp()
    return -(ratio * micro_batch.advantages[targets]).sum() / counts.tokens


def test_a_hand_written_loss_gives_the_gradient_of_the_named_one(folder, batch):
    norms = []
    for loss in (
        "importance_sampling",
        hand_written,
        strop.Reinforce(policy_loss={"type": "importance_sampling"}),
    ):
        with strop.Policy(folder) as policy:
            metrics = policy.forward_backward(batch, loss)
            norms.append((metrics["loss"], policy.step(lr=1e-3)))
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-5, atol=1e-7)
    assert norms[0] == norms[2]


def test_two_batches_before_a_step_add_up(folder, batch):
    numbers = range(len(batch.experiences))
    halves = [batch.select([i for i in numbers if i % 2 == parity]) for parity in (0, 1)]

    def mean_logprob(micro_batch, outputs, counts):
        return -outputs.logprobs.sum() / 100

    norms = []
    for parts in ([batch], halves):
        with strop.Policy(folder) as policy:
            for part in parts:
                policy.forward_backward(part, mean_logprob)
            norms.append(policy.step(lr=1e-3))
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_a_loss_reads_log_probs_of_the_tokens_that_the_batch_names(folder, still, batch):
    """Log-probs of the sampled tokens are the usual ones, with the same gradient."""
    named = [
        np.stack([each.token_ids, np.full_like(each.token_ids, 7)], axis=1) for each in batch.experiences
    ]
    found = []

    def loss(micro_batch, outputs, counts):
        targets = torch.from_numpy(micro_batch.targets)
        logprobs = outputs.logprobs[targets]
        found.append(logprobs.detach())
        return -(logprobs if logprobs.dim() == 1 else logprobs[:, 0]).sum() / counts.tokens

    norms = []
    for given in (batch, replace(batch, target_tokens=named)):
        with strop.Policy(folder) as policy:
            policy.forward_backward(given, loss)
            norms.append(policy.step(lr=1e-3))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    torch.testing.assert_close(found[1][:, 0], found[0])
    assert found[1].shape[1] == 2 and (found[1][:, 1] != found[0]).any()


NEEDS_MORE = {"mix", "prime", "online_dpo", "self_play"}
OTHER_ROLES = {"sft", "dpo", "cpo", "orpo", "kto", "bco"}


@pytest.mark.parametrize("name", sorted({*strop.loss_names()} - NEEDS_MORE - OTHER_ROLES))
def test_each_loss_of_rollouts_has_a_name(name, still, batch):
    assert np.isfinite(still.forward_backward(batch, name)["loss"])


def test_a_step_reaches_the_sampler_and_a_saved_model(folder, tmp_path, batch):
    with strop.Policy(folder, lora=4) as policy:
        before = policy.logprobs(batch)
        policy.forward_backward(batch, "grpo")
        policy.step(lr=1e-2)
        after = policy.logprobs(batch)
        assert policy.version == 1
        assert max(abs(a - b).max() for a, b in zip(after, before, strict=True)) > 1e-3
        np.testing.assert_array_equal(policy.logprobs(batch, reference=True)[0], before[0])
        sampled = policy.sample(PROMPTS, max_tokens=5)
        own = policy.logprobs(strop.make_batch(sampled, np.zeros((4, 1))))
        for group, values in zip(sampled, own, strict=True):
            turn = group.rollouts[0].turns[0]
            assert turn.version == 1
            np.testing.assert_allclose(turn.sampler_logprobs, values[len(turn.prompt_ids) :], atol=1e-5)
        policy.save(tmp_path / "model")
    with strop.Policy(tmp_path / "model") as saved:
        np.testing.assert_allclose(saved.logprobs(batch)[0], after[0], atol=1e-5)


def test_the_check_of_a_load_may_sample(folder, batch):
    """As that of engines which convert the weights does, at a step and at the load of a state."""
    with strop.Policy(folder) as policy:
        request = SampleRequest("probe", np.array([5, 6], np.int32), strop.SamplingParams(max_tokens=2), 1)
        checked = []

        def check(version):
            checked.append(policy._loop.submit(policy._sampler.sample([request])).result(timeout=60))
            return {}

        policy._publisher.check_load = check
        policy.forward_backward(batch)
        policy.step(lr=1e-3)
        policy.load_state(policy.save_state(folder.parent / "checked"))
        assert len(checked) == 2


def test_state_continues_exactly(folder, tmp_path, batch):
    def advance(policy: strop.Policy) -> list[np.ndarray]:
        policy.forward_backward(batch, "grpo")
        policy.step(lr=1e-2)
        return policy.logprobs(batch)

    with strop.Policy(folder) as policy, strop.Policy(folder) as other:
        advance(policy)
        other.load_state(policy.save_state(tmp_path / "state"))
        for one, two in zip(advance(policy), advance(other), strict=True):
            np.testing.assert_array_equal(one, two)


def test_demonstrations_are_learned(folder):
    with strop.Policy(folder) as policy:
        shown = strop.TrainingBatch([policy.encode("1+1=", "2"), policy.encode("1+2=", "3")])
        losses = []
        for _ in range(10):
            losses.append(policy.forward_backward(shown, "sft")["loss"])
            policy.step(lr=1e-2)
    assert losses[-1] < losses[0] / 2


def test_the_verbs_in_an_event_loop(folder):
    async def loop() -> tuple[list, float]:
        policy = strop.Policy(folder)
        one, two = await asyncio.gather(*(policy.sample_async(PROMPTS, 2, max_tokens=4) for _ in range(2)))
        batch = strop.make_batch([*one, *two], np.ones((8, 2)))
        await policy.forward_backward_async(batch, "reinforce")
        norm = await policy.step_async(lr=1e-3)
        assert len(await policy.logprobs_async(batch)) == 16
        policy.close()
        return [*one, *two], norm

    groups, norm = asyncio.run(loop())
    assert len({group.id for group in groups}) == 8 and norm > 0


def test_a_workflow_gives_turns_and_masks(still):
    async def twice(task, chat):
        await chat.reply()
        await chat.reply("again")
        return 0.5

    (group,) = still.sample(["1+1="], n=2, max_tokens=4, workflow=twice)
    assert [len(rollout.turns) for rollout in group.rollouts] == [2, 2]
    assert strop.group_rewards([group]) == [[0.5, 0.5]]
    experience = strop.make_batch([group], [[1.0, 1.0]]).experiences[0]
    assert experience.response_tokens == sum(len(turn.completion_ids) for turn in group.rollouts[0].turns)


def test_a_loaded_model_with_its_tokenizer(folder, batch, still):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with strop.Policy(model, tokenizer=tokenizer) as policy:
        np.testing.assert_array_equal(policy.logprobs(batch)[0], still.logprobs(batch)[0])
    with pytest.raises(strop.ModelError, match="has no tokenizer"):
        strop.Policy(model)
    with pytest.raises(strop.ModelError, match="model is a Linear"):
        strop.Policy(torch.nn.Linear(2, 2), tokenizer=tokenizer)  # type: ignore[arg-type]


def test_critic_learns_its_targets(folder, batch):
    critic = strop.Critic(folder, value_clip=None)
    values = critic.values(batch)
    assert all((each == 0).all() for each in values)
    targets = replace(batch, values=values, returns=[1.0] * len(values))
    losses = []
    for _ in range(20):
        losses.append(critic.forward_backward(targets)["loss"])
        critic.step(lr=1e-2)
    assert losses[0] == pytest.approx(0.5) and losses[-1] < 0.1
    with pytest.raises(strop.DataError, match="Set both"):
        critic.forward_backward(batch)


def nan(micro_batch, outputs, counts):
    return outputs.logprobs.sum() * float("nan")


BAD = {
    "no prompts": (lambda p, b: p.sample([]), strop.DataError, "empty list"),
    "one prompt": (lambda p, b: p.sample("1+1="), strop.ConfigError, "Write a list"),
    "a number": (lambda p, b: p.sample(5), strop.ConfigError, "Write a list"),
    "a prompt that is a number": (lambda p, b: p.sample([5]), strop.DataError, "got the prompt 5"),
    "no column": (lambda p, b: p.sample([{"question": "x"}]), strop.DataError, "no column 'prompt'"),
    "n": (lambda p, b: p.sample(["x"], n=0), strop.ConfigError, "n=0"),
    "max_tokens": (lambda p, b: p.sample(["x"], max_tokens=0), strop.ConfigError, "max_tokens=0"),
    "temperature": (lambda p, b: p.sample(["x"], temperature=-1), strop.ConfigError, "temperature=-1"),
    "long": (lambda p, b: p.sample(["x" * 9000]), strop.DataError, "max_sequence_tokens"),
    "lr": (lambda p, b: p.step(lr=0), strop.ConfigError, "lr=0"),
    "no gradient": (lambda p, b: p.step(), strop.TrainingError, "Call forward_backward first"),
    "loss name": (lambda p, b: p.forward_backward(b, "grop"), strop.ConfigError, "did you mean 'grpo'"),
    "loss type": (lambda p, b: p.forward_backward(b, 3), strop.ConfigError, "loss is of type int"),
    "no name": (lambda p, b: p.forward_backward(b, "custom"), strop.ConfigError, "Pass a function"),
    "no advantages": (
        lambda p, b: p.forward_backward(replace(b, advantages=None)),
        strop.DataError,
        "needs batch.advantages",
    ),
    "no pairs": (
        lambda p, b: p.forward_backward(b, "orpo"),
        strop.DataError,
        "compares the responses of pairs",
    ),
    "lora": (lambda p, b: strop.Policy("model", lora=0), strop.ConfigError, "lora=0"),
    "groups": (
        lambda p, b: p.logprobs([strop.RolloutGroup("g", None, ())]),
        strop.DataError,
        "Pass experiences",
    ),
    "response": (lambda p, b: p.encode("1+1=", 2), strop.DataError, "of type int"),
    "nan": (lambda p, b: p.forward_backward(b, nan), strop.TrainingError, "nan"),
    "text loss": (lambda p, b: p.forward_backward(b, lambda *a: "x"), strop.TrainingError, "returned a str"),
    "vector": (lambda p, b: p.forward_backward(b, lambda m, o, c: o.logprobs), strop.TrainingError, "shape"),
    "constant": (
        lambda p, b: p.forward_backward(b, lambda m, o, c: torch.ones(())),
        strop.TrainingError,
        "gradient",
    ),
    "no batch": (lambda p, b: p.forward_backward([1.0]), strop.DataError, "got a list"),
    "empty": (lambda p, b: p.forward_backward(strop.TrainingBatch([])), strop.DataError, "no experiences"),
    "lengths": (
        lambda p, b: p.forward_backward(replace(b, advantages=[np.ones(2)] * 12)),
        strop.DataError,
        r"advantages\[0\] has the shape \(2,\)",
    ),
    "target tokens": (
        lambda p, b: p.forward_backward(replace(b, target_tokens=[e.token_ids for e in b.experiences]), nan),
        strop.DataError,
        "with the same K",
    ),
    "target tokens of a named loss": (
        lambda p, b: p.forward_backward(
            replace(b, target_tokens=[e.token_ids[:, None] for e in b.experiences])
        ),
        strop.ConfigError,
        "Pass a function as loss",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_paragraph(case, folder, batch, bad_policy):
    call, error, message = BAD[case]
    with pytest.raises(error, match=message) as raised:
        call(bad_policy, batch)
    assert "\n" not in str(raised.value)


@pytest.fixture(scope="module")
def bad_policy(folder):
    with strop.Policy(folder) as policy:
        yield policy


def test_a_reference_that_is_not_kept_is_refused(bad_policy, batch):
    with pytest.raises(strop.ConfigError, match="reference=True"):
        bad_policy.logprobs(batch, reference=True)


def test_a_closed_policy_says_so(folder):
    policy = strop.Policy(folder)
    policy.close()
    policy.close()
    with pytest.raises(strop.ModelError, match="closed"):
        policy.sample(["x"])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("1", "a str"),
        (None, "returned None"),
        (float("nan"), "nan"),
        ([1.0, 2.0], "one number for each response"),
    ],
)
def test_a_reward_that_is_no_number_is_refused(groups, returned, message):
    with pytest.raises(strop.RewardError, match=message):
        strop.score(groups, lambda completion: returned)


def test_several_rewards_are_a_weighted_sum(groups):
    rewards = [lambda completion: 1.0, strop.Reward(lambda completion: 4.0, name="four", weight=0.5)]
    [first, *_] = strop.score(groups, rewards)[0].rollouts
    assert first.reward == 3.0 and first.reward_parts == {"<lambda>": 1.0, "four": 4.0}
    with pytest.raises(strop.RewardError, match="no reward functions"):
        strop.score(groups, [])


def test_a_stop_may_be_one_text(still):
    """Its characters are no stops of their own."""
    sample = partial(still.sample, ["1+1="], max_tokens=12, seed=3)
    whole = sample()[0].rollouts[0]
    last = next(each for each in reversed(whole.text) if each.isascii())
    same, cut = (sample(stop=stop)[0].rollouts[0] for stop in (f"~~{last}", last))
    assert same.turns[0].completion_ids.tolist() == whole.turns[0].completion_ids.tolist()
    assert last in whole.text and cut.text.index(last) == len(cut.text) - 1


@pytest.mark.parametrize("loss", ["dpo", "orpo", "cpo", "kto", "bco"])
def test_preferences_are_learned(folder, loss):
    with strop.Policy(folder, lora=4) as policy:
        role = "desirable", "undesirable"
        if loss in ("dpo", "orpo", "cpo"):
            role = "chosen", "rejected"
        both = [
            replace(
                policy.encode("1+1=", text), role=each, pair="0" if each in ("chosen", "rejected") else None
            )
            for text, each in zip(("2", "3"), role, strict=True)
        ]
        before = policy.logprobs(both)
        for _ in range(5):
            policy.forward_backward(strop.TrainingBatch(both), loss)
            policy.step(lr=1e-2)
        after = policy.logprobs(both)
    gained = [float(new.sum() - old.sum()) for new, old in zip(after, before, strict=True)]
    assert gained[0] > gained[1]


def test_advantages_have_the_shape_of_the_groups(groups):
    for advantages, message in (
        (np.zeros((3, 3)), "3 groups for 4"),
        (np.zeros((4, 2)), "2 advantages for the 3"),
        ([1.0] * 4, "one advantage for each"),
        (np.full((4, 3), np.nan), "must be finite"),
        ([[np.zeros(99)] * 3] * 4, "sampled tokens"),
    ):
        with pytest.raises(strop.DataError, match=message):
            strop.make_batch(groups, advantages)
    with pytest.raises(strop.DataError, match="has no reward"):
        strop.group_rewards(groups)
