"""Contract of inference engines: every implementation of the protocol passes these tests.

A new engine is added to `contract_engines.ENGINES`. What its capabilities deny must be refused with an
`InferenceError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

from strop.config.schema.buffer import CollectiveSyncConfig
from strop.errors import InferenceError, WeightTransferError
from strop.inference import weight_transfer
from strop.inference.interruptible_sampler import continuation
from strop.inference.registry import running_engine
from strop.inference.weight_transfer import ProcessGroupBroken, WeightProcessGroup
from strop.protocols import InferenceEngine
from strop.sync.collective.sender import TRAINER_ADDRESS_FILE, CollectiveSender
from strop.types import Completion, SampleRequest, SamplingParams
from strop.workers.connection import Address
from strop.workers.waiting import StopCheck
from tests.inference.contract_engines import ENGINES, MARKS
from tests.inference.helpers import (
    assert_same,
    assert_sampled_by,
    full_logits,
    policy_logprobs,
    random_prompts,
    requests_for,
    same,
    sample,
    scaled,
    sharp_model,
)
from tests.inference.thread_worker import engines_in_threads

CPU = torch.device("cpu")
PROMPTS = random_prompts(4, 9, 15, 6)
SHORT = requests_for(PROMPTS, SamplingParams(max_tokens=12))
LONGER = requests_for(PROMPTS, SamplingParams(max_tokens=16, ignore_eos=True))
STOP_TOKENS = tuple(range(0, 300, 3))


@dataclass(frozen=True)
class Subject:
    """A started engine, and the same model in Hugging Face's implementation."""

    engine: InferenceEngine
    model: PreTrainedModel
    folder: Path

    def load_initial_weights(self, version: int = 0) -> None:
        self.engine.load(self.model.named_parameters(), version)


@pytest.fixture(scope="module", params=[pytest.param(name, marks=MARKS.get(name, ())) for name in ENGINES])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    family, build = ENGINES[request.param]
    folder = tmp_path_factory.mktemp("contract") / "model"
    # vLLM needs heads of 32 values.
    hidden_size = 128 if request.param.startswith(("vllm", "sglang")) else 64
    model = sharp_model(folder, family=family, hidden_size=hidden_size)
    workers = engines_in_threads() if "threads" in request.param else nullcontext()
    with workers, running_engine(build(folder)) as engine:
        yield Subject(engine, model, folder)


@pytest.fixture
def other(subject: Subject) -> PreTrainedModel:
    """A model of the same shape with other weights."""
    return scaled(subject.model, 0.8)


def quick(test: Callable[..., None]) -> Callable[..., None]:
    """Make `-k quick` select a test.

    CI runs `pytest -m engines -k "quick and vllm and not parallel" tests/inference/test_contract.py` with real vLLM.
    """
    test.quick = True  # type: ignore[attr-defined]
    return test


@quick
def test_describe_names_the_model_in_one_line(subject: Subject):
    description = subject.engine.describe()
    assert subject.model.config.model_type in description.lower() and "\n" not in description


def test_start_may_be_called_again(subject: Subject):
    subject.engine.start()
    assert sample(subject.engine, []) == []


@quick
def test_completions_have_the_order_of_their_requests_and_the_models_logprobs(subject: Subject):
    requests = requests_for(PROMPTS, SamplingParams(temperature=0.8, max_tokens=20), samples=3)
    completions = sample(subject.engine, requests)
    assert_sampled_by(subject.model, requests, completions)
    for completion in completions:
        np.testing.assert_array_equal(completion.sampler_logprobs, completion.policy_logprobs)


@quick
def test_concurrent_calls_get_their_own_completions(subject: Subject):
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=12), samples=2)

    async def gather() -> list[Completion]:
        calls = await asyncio.gather(*(subject.engine.sample([request]) for request in requests))
        return [completion for (completion,) in calls]

    assert_sampled_by(subject.model, requests, asyncio.run(gather()))


def test_seeds_fix_the_completions(subject: Subject):
    sampling = SamplingParams(max_tokens=16, ignore_eos=True)
    first, again = (sample(subject.engine, requests_for(PROMPTS, sampling, samples=2)) for _ in range(2))
    other = sample(subject.engine, requests_for(PROMPTS, sampling, samples=2, seed=1000))
    if subject.engine.capabilities.determinism != "none":
        assert_same(first, again)
    assert not all(map(same, first, other))


@quick
def test_greedy_sampling_takes_the_most_likely_tokens(subject: Subject):
    requests = requests_for(PROMPTS, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    for request, completion in zip(requests, sample(subject.engine, requests), strict=True):
        logits = full_logits(subject.model, request.prompt_ids, completion.token_ids)
        assert completion.token_ids.tolist() == logits.argmax(-1).tolist()


def filtered_logprobs(
    logits: torch.Tensor, *, top_p: float = 1, top_k: int = 0, min_p: float = 0
) -> torch.Tensor:
    """[C, V] Log-probs after one filter, by its definition: sort, cut, and normalize again."""
    probabilities, order = logits.softmax(-1).sort(descending=True)
    kept = probabilities.cumsum(-1) - probabilities < top_p
    if top_k:
        kept[:, top_k:] = False
    kept &= probabilities >= min_p * probabilities[:, :1]
    filtered = torch.where(kept, probabilities, 0)
    filtered = filtered / filtered.sum(-1, keepdim=True)
    return torch.zeros_like(filtered).scatter(1, order, filtered).log()


@quick
@pytest.mark.parametrize("filters", [{"top_p": 0.7}, {"top_k": 3}, {"min_p": 0.1}], ids=str)
def test_sampler_logprobs_are_those_of_the_filtered_distribution(subject: Subject, filters: dict[str, Any]):
    sampling = SamplingParams(temperature=0.8, max_tokens=12, ignore_eos=True, **filters)
    requests = requests_for(PROMPTS, sampling)
    for request in requests:
        (completion,) = sample(subject.engine, [request])
        if subject.engine.capabilities.filtered_policy_logprobs or completion.policy_logprobs is not None:
            policy = policy_logprobs(subject.model, request, completion)
            np.testing.assert_allclose(completion.policy_logprobs, policy, atol=1e-4)
        logits = full_logits(subject.model, request.prompt_ids, completion.token_ids)
        chosen = torch.from_numpy(completion.token_ids).long()[:, None]
        expected = filtered_logprobs(logits / 0.8, **filters).gather(1, chosen)[:, 0]
        np.testing.assert_allclose(completion.sampler_logprobs, expected, atol=1e-3)


def test_max_tokens_is_the_exact_limit(subject: Subject):
    sampling = SamplingParams(max_tokens=7, ignore_eos=True)
    for completion in sample(subject.engine, requests_for(PROMPTS, sampling)):
        assert len(completion.token_ids) == 7 and completion.finish_reason == "length"


@quick
def test_stop_tokens_end_a_completion_and_are_part_of_it(subject: Subject):
    sampling = SamplingParams(max_tokens=40, stop_token_ids=STOP_TOKENS, ignore_eos=True)
    completions = sample(subject.engine, requests_for(PROMPTS, sampling, samples=3))
    for completion in completions:
        *inner, last = completion.token_ids.tolist()
        assert not set(STOP_TOKENS) & set(inner)
        assert completion.finish_reason == ("stop" if last in STOP_TOKENS else "length")
    assert any(completion.finish_reason == "stop" for completion in completions)


def test_min_tokens_delays_the_stop(subject: Subject):
    sampling = SamplingParams(max_tokens=40, min_tokens=6, stop_token_ids=STOP_TOKENS)
    for completion in sample(subject.engine, requests_for(PROMPTS, sampling, samples=3)):
        assert len(completion.token_ids) > 6
        assert not np.isin(completion.token_ids[:6], STOP_TOKENS).any()


@quick
def test_stop_strings_end_a_completion(subject: Subject):
    tokenizer = AutoTokenizer.from_pretrained(subject.folder)
    free = sample(
        subject.engine, requests_for(PROMPTS, SamplingParams(temperature=0, max_tokens=20, ignore_eos=True))
    )
    texts = [tokenizer.decode(completion.token_ids[9:11]) for completion in free]
    stop = next(text for text in texts if text and "\ufffd" not in text)
    sampling = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, stop=(stop,))
    stopped = sample(subject.engine, requests_for(PROMPTS, sampling))
    for whole, cut in zip(free, stopped, strict=True):
        assert cut.token_ids.tolist() == whole.token_ids[: len(cut.token_ids)].tolist()
        found = stop in tokenizer.decode(cut.token_ids)
        assert found == (cut.finish_reason == "stop")
    assert any(cut.finish_reason == "stop" for cut in stopped)


@quick
def test_an_invalid_request_fails_its_call_alone(subject: Subject):
    valid, other = requests_for(PROMPTS[:2], SamplingParams(max_tokens=8))
    invalid = SampleRequest("bad", other.prompt_ids, SamplingParams(max_tokens=0), seed=0)

    async def both():
        calls = subject.engine.sample([invalid]), subject.engine.sample([valid])
        return await asyncio.gather(*calls, return_exceptions=True)

    error, completions = asyncio.run(both())
    assert isinstance(error, InferenceError) and "request 'bad': max_tokens is 0" in str(error)
    assert len(completions) == 1


@quick
def test_load_sets_weights_and_version(subject: Subject, other: PreTrainedModel):
    subject.engine.load(other.named_parameters(), 4)
    completions = sample(subject.engine, SHORT)
    assert {completion.version for completion in completions} == {4}
    assert_sampled_by(other, SHORT, completions)
    subject.load_initial_weights(version=5)
    assert_sampled_by(subject.model, SHORT, sample(subject.engine, SHORT))


def load_meanwhile(subject: Subject, seconds: float) -> list[Completion]:
    """Completions that version 4 begins; version 5 is loaded after this time."""
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=400, ignore_eos=True))
    subject.load_initial_weights(version=4)

    async def sampled() -> list[Completion]:
        call = asyncio.create_task(subject.engine.sample(requests))
        await asyncio.sleep(seconds)
        await asyncio.to_thread(subject.load_initial_weights, 5)
        return await call

    return asyncio.run(sampled())


@quick
def test_tokens_after_a_load_have_the_new_version(subject: Subject):
    if not subject.engine.capabilities.token_versions:
        assert all(completion.token_versions is None for completion in load_meanwhile(subject, 0.1))
        return
    seconds = 0.1
    for _ in range(30):
        completions = load_meanwhile(subject, seconds)
        if any(completion.token_versions is not None for completion in completions):
            break
        seconds *= 2 if {completion.version for completion in completions} == {5} else 0.7
    else:
        pytest.fail("every load came before the first token or after the last")
    for completion in completions:
        assert completion.version in (4, 5) and len(completion.token_ids) == 400
        if (versions := completion.token_versions) is not None:
            assert versions[0] == completion.version == 4 and versions[-1] == 5
            assert (np.diff(versions) >= 0).all()


@quick
def test_aborted_requests_have_the_tokens_so_far_and_can_be_continued(subject: Subject):
    subject.load_initial_weights()
    sampling = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    requests = requests_for(PROMPTS[:2], sampling)
    whole = sample(subject.engine, requests)

    async def abort_and_continue() -> tuple[list[Completion], dict[str, Completion]]:
        call = asyncio.create_task(subject.engine.sample(requests))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(subject.engine.abort)
        parts = await call
        aborted = [  # any of them may have been faster
            continuation(request, part.token_ids)
            for request, part in zip(requests, parts, strict=True)
            if part.finish_reason == "abort"
        ]
        rests = await subject.engine.sample(aborted) if aborted else []
        return parts, {request.id: rest for request, rest in zip(aborted, rests, strict=True)}

    parts, rests = asyncio.run(abort_and_continue())
    for request, expected, part in zip(requests, whole, parts, strict=True):
        tokens, logprobs = part.token_ids.tolist(), part.policy_logprobs.tolist()
        if (rest := rests.get(request.id)) is not None:
            assert rest.finish_reason == "length"
            tokens += rest.token_ids.tolist()
            logprobs += rest.policy_logprobs.tolist()
        assert tokens == expected.token_ids.tolist()
        np.testing.assert_allclose(logprobs, expected.policy_logprobs, atol=1e-4, rtol=0)


def test_prompt_logprobs_are_the_models_or_are_refused(subject: Subject):
    subject.load_initial_weights()
    (request,) = requests_for(PROMPTS[1:2], SamplingParams(max_tokens=1))
    request = replace(request, prompt_logprobs=True)
    if not subject.engine.capabilities.prompt_logprobs:
        with pytest.raises(InferenceError, match="log-probs of prompts"):
            sample(subject.engine, [request])
        return
    (completion,) = sample(subject.engine, [request])
    logprobs = full_logits(subject.model, request.prompt_ids[:1], request.prompt_ids[1:]).log_softmax(-1)
    chosen = torch.from_numpy(request.prompt_ids[1:]).long()[:, None]
    expected = logprobs.gather(1, chosen)[:, 0]
    np.testing.assert_allclose(completion.prompt_logprobs, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_the_most_likely_tokens_are_the_models_or_are_refused(subject: Subject, temperature: float):
    subject.load_initial_weights()
    sampling = SamplingParams(temperature=temperature, max_tokens=3, ignore_eos=True)
    requests = requests_for(PROMPTS[1:3], sampling)
    asked = [replace(requests[0], top_logprobs=4), requests[1]]
    if not subject.engine.capabilities.top_logprobs:
        with pytest.raises(InferenceError, match="does not report the most likely tokens"):
            sample(subject.engine, asked)
        return
    asked[0] = replace(asked[0], prompt_logprobs=True)
    completion, other = sample(subject.engine, asked)
    assert other.top_tokens is None and other.prompt_top_tokens is None
    prompt, sampled = completion.prompt_top_tokens, completion.top_tokens
    assert prompt is not None and sampled is not None
    ids = requests[0].prompt_ids
    after_first = full_logits(subject.model, ids[:1], np.concatenate([ids[1:], completion.token_ids]))
    count = len(ids) - 1
    for found, logits in ((prompt, after_first[:count]), (sampled, after_first[count:] / (temperature or 1))):
        expected = logits.float().log_softmax(-1).topk(4)
        np.testing.assert_allclose(found.logprobs, expected.values, atol=1e-4, rtol=0)
        assert found.token_ids.tolist() == expected.indices.tolist()


def test_load_path_reads_a_model_folder_or_is_refused(
    subject: Subject, other: PreTrainedModel, tmp_path: Path
):
    other.save_pretrained(tmp_path)
    if "path" not in subject.engine.capabilities.weight_transports:
        with pytest.raises(InferenceError, match="load"):
            subject.engine.load_path(tmp_path, 6)
        return
    subject.engine.load_path(tmp_path, 6)
    completions = sample(subject.engine, SHORT)
    subject.load_initial_weights()
    assert {completion.version for completion in completions} == {6}
    assert_sampled_by(other, SHORT, completions)


def test_load_adapter_is_refused_without_the_capability(subject: Subject, tmp_path: Path):
    assert not subject.engine.capabilities.adapters
    with pytest.raises(InferenceError, match="merge it, and pass the tensors to load"):
        subject.engine.load_adapter(tmp_path, 1)


@quick
def test_load_process_group(subject: Subject, other: PreTrainedModel, tmp_path: Path):
    """Engines of several processes receive each its own shard; what has not arrived is not sampled from."""
    if "process_group" not in subject.engine.capabilities.weight_transports:
        with pytest.raises(InferenceError, match=r"cannot join a process group; .* pass the tensors to load"):
            subject.engine.load_process_group(lambda: None, 1)
        return
    with closing(CollectiveSender(tmp_path, CollectiveSyncConfig(), "127.0.0.1", CPU, None)) as sender:
        sender.announce_start()
        trainer = partial(Address.load, tmp_path / TRAINER_ADDRESS_FILE)
        sender.write(6, [*other.named_parameters(), ("strop.note", torch.ones(2))])
        with pytest.raises(WeightTransferError, match="the trainer has no version 7"):
            subject.engine.load_process_group(trainer, 7)
        for _ in range(2):
            subject.engine.load_process_group(trainer, 6)
            completions = sample(subject.engine, SHORT)
            assert {completion.version for completion in completions} == {6}
            assert_sampled_by(other, SHORT, completions)
    with pytest.raises(
        WeightTransferError, match=r"the trainer cannot be reached|connection to the trainer was lost"
    ):
        subject.engine.load_process_group(trainer, 8)
    subject.load_initial_weights()


def test_nothing_is_sampled_after_half_of_a_transfer(
    subject: Subject, other: PreTrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if "process_group" not in subject.engine.capabilities.weight_transports:
        pytest.skip("this engine joins no process group")
    monkeypatch.setattr(weight_transfer, "BUCKET_BYTES", 2**16)
    broadcast = WeightProcessGroup.broadcast
    sent: list[int] = []

    def broken(group: WeightProcessGroup, data: torch.Tensor, check: StopCheck) -> None:
        sent.append(len(data))
        if len(sent) == 4:
            raise ProcessGroupBroken("the test breaks it off")
        broadcast(group, data, check)

    with closing(CollectiveSender(tmp_path, CollectiveSyncConfig(), "127.0.0.1", CPU, None)) as sender:
        sender.announce_start()
        trainer = partial(Address.load, tmp_path / TRAINER_ADDRESS_FILE)
        sender.write(8, other.named_parameters())
        sender.write(9, scaled(subject.model, 1.2).named_parameters())
        monkeypatch.setattr(WeightProcessGroup, "broadcast", broken)
        with pytest.raises(WeightTransferError, match="the transfer of version 9 of the weights failed"):
            subject.engine.load_process_group(trainer, 9)
        assert len(sent) == 4

        async def sampled_after_the_next_load() -> list[Completion]:
            call = asyncio.create_task(subject.engine.sample(SHORT))
            done, _ = await asyncio.wait([call], timeout=0.5)
            assert not done, "half of the weights are another version's"
            await asyncio.to_thread(subject.engine.load_process_group, trainer, 8)
            return await call

        completions = asyncio.run(sampled_after_the_next_load())
    assert {completion.version for completion in completions} == {8}
    assert_sampled_by(other, SHORT, completions)
    subject.load_initial_weights()


def test_pause_holds_requests_until_resume(subject: Subject):

    async def paused() -> list[Completion]:
        subject.engine.pause()
        call = asyncio.create_task(subject.engine.sample(LONGER))
        done, _ = await asyncio.wait([call], timeout=0.2)
        assert not done
        subject.engine.resume()
        return await call

    expected = sample(subject.engine, LONGER)
    completions = asyncio.run(paused())
    assert_sampled_by(subject.model, LONGER, completions)
    if subject.engine.capabilities.determinism != "none":
        assert_same(expected, completions)


@quick
def test_released_memory_is_restored(subject: Subject):
    if not subject.engine.capabilities.memory_release:
        with pytest.raises(InferenceError):
            subject.engine.release_memory()
        return
    requests = requests_for(PROMPTS, SamplingParams(temperature=0, max_tokens=16, ignore_eos=True))
    expected = sample(subject.engine, requests)

    async def released() -> list[Completion]:
        subject.engine.release_memory()
        with pytest.raises(InferenceError, match="call restore_memory first"):
            subject.load_initial_weights()
        subject.engine.restore_memory()
        subject.load_initial_weights()
        return await subject.engine.sample(requests)

    for before, after in zip(expected, asyncio.run(released()), strict=True):
        np.testing.assert_array_equal(before.token_ids, after.token_ids)
        # A prompt that was in the cache is computed again, with other roundings.
        np.testing.assert_allclose(before.policy_logprobs, after.policy_logprobs, atol=1e-5)


def require_memory_release(subject: Subject) -> None:
    if not subject.engine.capabilities.memory_release:
        pytest.skip("memory_release is not supported")


def test_requests_wait_while_memory_is_released(subject: Subject):
    require_memory_release(subject)

    async def released() -> list[Completion]:
        subject.engine.release_memory()
        call = asyncio.create_task(subject.engine.sample(LONGER))
        done, _ = await asyncio.wait([call], timeout=0.2)
        assert not done
        subject.engine.restore_memory()
        subject.load_initial_weights()
        return await call

    assert_sampled_by(subject.model, LONGER, asyncio.run(released()))


def test_memory_is_not_released_while_completions_are_running(subject: Subject):
    require_memory_release(subject)
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=200, ignore_eos=True))

    async def running() -> list[Completion]:
        call = asyncio.create_task(subject.engine.sample(requests))
        for _ in range(4):
            await asyncio.sleep(0)
        with pytest.raises(InferenceError, match=r"release_memory was called with 4 .*; await or cancel"):
            subject.engine.release_memory()
        return await call

    assert len(asyncio.run(running())) == len(requests)


@quick
def test_close_fails_pending_and_later_calls(subject: Subject):
    requests = requests_for(PROMPTS, SamplingParams(max_tokens=200, ignore_eos=True))

    async def closed() -> object:
        subject.engine.pause()
        call = asyncio.create_task(subject.engine.sample(requests))
        await asyncio.wait([call], timeout=0.1)
        subject.engine.close()
        (result,) = await asyncio.gather(call, return_exceptions=True)
        return result

    error = asyncio.run(closed())
    assert isinstance(error, InferenceError) and "has been closed" in str(error)
    with pytest.raises(InferenceError, match="has been closed"):
        sample(subject.engine, requests)
    with pytest.raises(InferenceError, match="has been closed"):
        subject.load_initial_weights()
    subject.engine.close()
