"""Recorded decoding steps compute what called ones compute, whatever joins, leaves or is loaded."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from strop.config.schema.rollout import NativeEngineConfig
from strop.inference.native import NativeEngine
from strop.inference.native.model.runner import DecodingSteps, RecordedSteps
from strop.models.shared_weights import named_weights
from strop.types import Completion, SampleRequest, SamplingParams
from tests.cases import nightly
from tests.inference.helpers import Tiny, assert_same, perturb, random_prompts, requests_for, same, sample
from tests.inference.recorded_operators import CheckedSteps, OperatorRecorder
from tests.inference.test_batching import mixed_requests
from tests.inference.test_weights import REQUESTS
from tests.training.test_local_engine import make_policy, make_run


def with_steps(engine: NativeEngine, steps: DecodingSteps) -> NativeEngine:
    engine._runner._steps = steps
    return engine


@pytest.fixture
def recorder() -> OperatorRecorder:
    return OperatorRecorder()


def recorded(engine: NativeEngine, recorder: OperatorRecorder) -> NativeEngine:
    return with_steps(engine, RecordedSteps(recorder))


@pytest.mark.parametrize(
    ("family", "max_sequences"),
    [
        ("llama", 256),
        ("mistral", 9),
        ("qwen2", 9),
        ("qwen3", 256),
        *nightly(("llama", 9), ("mistral", 256), ("qwen2", 256), ("qwen3", 9)),
    ],
)
def test_replays_give_the_same_bits(
    tiny: Callable[..., Tiny], recorder: OperatorRecorder, family: str, max_sequences: int
):
    """All requests at once, and requests that join where others have left."""
    requests = mixed_requests()
    called = with_steps(tiny(family).engine(max_sequences=max_sequences), CheckedSteps())
    replayed = recorded(tiny(family).engine(max_sequences=max_sequences), recorder)
    for _ in range(2):
        assert_same(sample(called, requests), sample(replayed, requests))
    assert sum(recorder.replays) > len(recorder.replays) > 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_cuda_graphs_give_the_same_bits(tiny: Callable[..., Tiny], family: str):
    on_gpu = Tiny(copy.deepcopy(tiny(family).model).to("cuda"), tiny(family).tokenizer)
    called = with_steps(on_gpu.engine(max_sequences=9), CheckedSteps())
    for _ in range(2):
        graphs = on_gpu.engine(max_sequences=9, cuda_graphs=True)
        assert_same(sample(called, mixed_requests()), sample(graphs, mixed_requests()))


@pytest.mark.parametrize("samples", [1, 6])
def test_rows_that_are_not_in_use_change_no_token(tiny: Callable[..., Tiny], samples: int):
    requests = requests_for(random_prompts(3, 40, 6, 25, 9), SamplingParams(max_tokens=40), samples)
    padded = with_steps(tiny().engine(), CheckedSteps())
    for one, other in zip(sample(tiny().engine(), requests), sample(padded, requests), strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        np.testing.assert_allclose(one.policy_logprobs, other.policy_logprobs, atol=1e-4)


def test_a_recording_lasts_while_a_few_rows_leave(tiny: Callable[..., Tiny], recorder: OperatorRecorder):
    (prompt,) = random_prompts(5)
    samplings = [SamplingParams(max_tokens=2 + n // 2, ignore_eos=True) for n in range(30)]
    requests = [SampleRequest(str(n), prompt, sampling, seed=n) for n, sampling in enumerate(samplings)]
    sample(recorded(tiny().engine(), recorder), requests)
    # 15 steps, which two rows leave each: 30 to 26 rows in steps for 32, then steps for 24, 16 and 8 rows.
    assert recorder.replays == [2, 3, 3, 3]


@pytest.mark.parametrize("change", ["in place", "loaded"])
def test_weights_that_change_between_two_steps_are_used(
    tiny: Callable[..., Tiny], recorder: OperatorRecorder, change: str
):
    """By an optimizer that runs next to the sampler, or by a load."""
    original = tiny("qwen2", tied=False)

    def completions(steps: DecodingSteps, *, changed: bool = True) -> list[Completion]:
        trainer = Tiny(copy.deepcopy(original.model), original.tokenizer)
        other = copy.deepcopy(trainer.model)
        torch.manual_seed(1)
        perturb(other)
        engine = with_steps(trainer.engine(), steps)

        def change_weights() -> None:
            if not changed:
                return
            if change == "loaded":
                engine.load(named_weights(other), version=1)
            else:
                trainer.model.lm_head.load_state_dict(other.lm_head.state_dict())

        return asyncio.run(changed_after_eight_steps(engine, change_weights))

    called, replayed = completions(CheckedSteps()), completions(RecordedSteps(recorder))
    assert_same(called, replayed)
    unchanged = completions(CheckedSteps(), changed=False)
    assert not any(same(one, other) for one, other in zip(called, unchanged, strict=True))
    assert recorder.replays == ([14] if change == "in place" else [6, 7])


async def changed_after_eight_steps(engine: NativeEngine, change: Callable[[], None]) -> list[Completion]:
    answers = asyncio.create_task(engine.sample(REQUESTS))
    while not answers.done() and engine.stats.generated_tokens < 8 * len(REQUESTS):
        await asyncio.sleep(0)
    change()
    return await answers


def test_an_adapter_changes_in_place_and_is_replaced(
    tiny: Callable[..., Tiny], recorder: OperatorRecorder, tmp_path: Path
):
    tiny().model.save_pretrained(tmp_path / "model")
    run = make_run(tmp_path / "model", {"lora": {"rank": 4, "alpha": 8}})

    def completions(steps: DecodingSteps) -> list[list[Completion]]:
        policy = make_policy(run)
        engine = NativeEngine.from_weights(policy.shared_weights(), NativeEngineConfig(), tiny().tokenizer)
        with_steps(engine, steps)
        torch.manual_seed(1)
        found = []
        for _ in range(2):
            perturb(policy.model)
            found.append(sample(engine, REQUESTS))
        engine.load([(name, weight.clone()) for name, weight in policy.iter_weights()], version=1)
        perturb(policy.model)
        return [*found, sample(engine, REQUESTS)]

    called, replayed = completions(CheckedSteps()), completions(RecordedSteps(recorder))
    for one, other in zip(called, replayed, strict=True):
        assert_same(one, other)
    assert not any(same(one, other) for one, other in zip(called[0], called[1], strict=True))
    assert sum(recorder.replays) > 30


def test_an_idle_engine_holds_no_recording(tiny: Callable[..., Tiny], recorder: OperatorRecorder):
    engine = recorded(tiny().engine(), recorder)
    sample(engine, REQUESTS)
    steps = engine._runner._steps
    assert isinstance(steps, RecordedSteps) and recorder.replays
    assert steps._recording is None


def test_a_recording_repeats_the_numbers_of_the_host(recorder: OperatorRecorder):
    """A step that depends on them is wrong from its second replay on: the tests above can fail."""
    numbers, memory = iter(range(1, 5)), torch.zeros(3)
    steps = RecordedSteps(recorder)
    results = [float(steps.run(lambda: memory.add_(next(numbers)).sum(), [memory])) for _ in range(4)]
    assert results == [3.0, 9.0, 15.0, 21.0]


def test_the_description_says_that_a_cpu_has_no_graphs(tiny: Callable[..., Tiny]):
    described = tiny().engine(cuda_graphs=True).describe()
    assert described.endswith("no CUDA graphs without a GPU and the native forward")
    assert "CUDA" not in tiny().engine().describe()


def test_memory_that_is_not_named_is_found():
    memory, other = torch.zeros(3), torch.ones(3)
    CheckedSteps().run(lambda: memory.add_(1).sum(), [memory])
    with pytest.raises(AssertionError, match="not in the step's memory"):
        CheckedSteps().run(lambda: memory.add_(other), [memory])
