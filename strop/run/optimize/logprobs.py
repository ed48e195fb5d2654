"""Log-probs of a step's experiences at its start, by policy, reference and teachers; checks that these read the same
tokens; and the batch of an update, which has them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from strop.config.schema.algorithm import RolloutAlgorithmConfig
from strop.config.schema.distillation import DistillationConfig
from strop.config.schema.model import ModelConfig
from strop.data.offline_dataset import OfflineDataset
from strop.errors import DataError, ModelError, RunFolderError
from strop.models.formats.safetensors_files import save_tensors
from strop.models.loading import load_tokenizer
from strop.protocols import TokenQuantity, TrainingEngine
from strop.run.optimize.advantage_inputs import gather_targets, split_by_experience, zeros_for
from strop.run.optimize.minibatches import Minibatch
from strop.types import BoolArray, Experience, FloatArray, TrainingBatch
from strop.workers.files import atomic_path

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class StepLogprobs:
    """Log-probs [L] of each of a step's experiences, by the weights at its start; None where not needed, and 0 for an
    experience that no update reads them of."""

    old: Sequence[FloatArray] | None
    reference: Sequence[FloatArray] | None
    teacher: Sequence[FloatArray] | None


def compute_step_logprobs(
    engine: TrainingEngine, algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience]
) -> StepLogprobs:
    """Compute what advantages and corrections read of all experiences; `add_update_logprobs` adds what updates read."""
    in_reward = algorithm.reward_reads_logprobs
    teacher = in_reward and algorithm.needs_teacher_logprobs
    reference = algorithm.kl_reward is not None and algorithm.kl_reward.estimator != "full"
    return StepLogprobs(
        old=_old_logprobs(engine, algorithm, experiences),
        reference=engine.token_values(experiences, "reference_logprobs") if reference else None,
        teacher=engine.token_values(experiences, "teacher_logprobs") if teacher else None,
    )


def _old_logprobs(
    engine: TrainingEngine, algorithm: RolloutAlgorithmConfig, experiences: Sequence[Experience]
) -> list[FloatArray] | None:
    """Log-probs by the sampler, where it is the old policy and they are known, or by the weights at the start of the
    step, where a divergence in the reward or a correction is computed from those of all experiences."""
    if algorithm.old_policy == "sampler":
        known = [e.policy_logprobs for e in experiences if e.policy_logprobs is not None]
        if len(known) == len(experiences):
            return known
    if algorithm.reward_reads_logprobs or algorithm.needs_start_logprobs:
        return engine.token_values(experiences, "logprobs")
    return None


def add_update_logprobs(
    logprobs: StepLogprobs,
    engine: TrainingEngine,
    algorithm: RolloutAlgorithmConfig,
    experiences: Sequence[Experience],
    minibatches: Sequence[Minibatch],
) -> StepLogprobs:
    """The log-probs, with those that the updates' losses read of the experiences that they compute.

    In the first update the old policy's log-probs equal the current ones, so no forward pass is spent on them.

    Args:
        logprobs: those that are known, which stay.
        engine: the policy's engine, before the first update.
        algorithm: the section `algorithm`.
        experiences: those of the step.
        minibatches: the step's updates.
    """
    computed = {i for each in minibatches for i in each.computed}
    later = minibatches if algorithm.old_policy == "sampler" else minibatches[1:]
    compared = {i for each in later for i in each.compared}
    old, reference, teacher = logprobs.old, logprobs.reference, logprobs.teacher
    if old is None and compared:
        old = _of_some(engine, experiences, compared, "logprobs")
    if reference is None and computed and algorithm.needs_reference_logprobs:
        reference = _of_some(engine, experiences, computed, "reference_logprobs")
    if teacher is None and computed and algorithm.needs_teacher_logprobs:
        teacher = _of_some(engine, experiences, computed, "teacher_logprobs")
    return StepLogprobs(old, reference, teacher)


def _of_some(
    engine: TrainingEngine,
    experiences: Sequence[Experience],
    numbers: Iterable[int],
    quantity: TokenQuantity,
) -> list[FloatArray]:
    """[L] of each experience; computed for those with these numbers, and 0 for the others."""
    chosen = sorted(numbers)
    found = dict(zip(chosen, engine.token_values([experiences[i] for i in chosen], quantity), strict=True))
    return [found[i] if i in found else zeros_for(e) for i, e in enumerate(experiences)]


_TENSOR_NAME = "logprobs"

ReferenceLogprobs = Mapping[str, FloatArray]
"""[L] by the experience's id."""


def reference_logprobs(
    datasets: Sequence[OfflineDataset],
    engine: TrainingEngine,
    model: ModelConfig,
    folder: Path,
    check: Callable[[], None],
) -> ReferenceLogprobs:
    """Log-probs of every row: read from `folder` where an earlier start of the run wrote them, else computed.

    The engine must hold the run's initial weights: the reference is the initial model, and no second
    model is loaded. A cache file is named after a digest of its tokens and of the model's section, so
    that it is never used for another dataset. `check` is called between micro-batches and may raise.
    """
    found: dict[str, FloatArray] = {}
    for dataset in datasets:
        experiences = [experience for group in dataset.all_groups() for experience in group.experiences]
        path = folder / f"{_digest(experiences, model)}.safetensors"
        if not path.exists():
            computed = engine.token_values(experiences, "logprobs", check=check)
            _write(path, gather_targets(computed, experiences))
        logprobs = split_by_experience(load_file(path)[_TENSOR_NAME], experiences)
        found |= {e.id: each for e, each in zip(experiences, logprobs, strict=True)}
    return found


def _digest(experiences: Sequence[Experience], model: ModelConfig) -> str:
    """Hash of the model's section, and of every token and its place in the loss mask."""
    digest = hashlib.blake2b(model.model_dump_json().encode(), digest_size=16)
    for experience in experiences:
        digest.update(len(experience.token_ids).to_bytes(8, "little"))
        digest.update(experience.token_ids.tobytes())
        digest.update(experience.loss_mask.tobytes())
    return digest.hexdigest()


def _write(path: Path, logprobs: torch.Tensor) -> None:
    """Write the file atomically. Raises `RunFolderError` if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            save_tensors({_TENSOR_NAME: logprobs}, temporary)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(
            f"The reference model's log-probs cannot be written to {path}: "
            f"{getattr(error, 'strerror', None) or error}. Free space on that disk or change `output`."
        ) from error


def check_same_vocabulary(key: str, model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for the model of section `key` if its tokenizer has another vocabulary than the policy's."""
    own = _vocabulary(key, model)
    if own != tokenizer.get_vocab():
        raise ModelError(
            f"{key}.model: the model reads the policy's tokens, but the tokenizer of "
            f"{model.tokenizer or model.path} has another vocabulary ({len(own)} tokens, the "
            f"policy's has {len(tokenizer)}). Name a model of the policy's family. If the tokens are the same "
            f"and only the tokenizer's files differ, set {key}.model.tokenizer to the policy's folder."
        )


def check_same_ids(key: str, model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for the teacher at `key` if its tokenizer gives a token of the policy another id.

    It may have further tokens.
    """
    own, policy = _vocabulary(key, model), tokenizer.get_vocab()
    different = [token for token, number in policy.items() if own.get(token) != number]
    if not different:
        return
    found = own.get(different[0])
    raise ModelError(
        f"{key}: the teacher reads the policy's tokens, but {len(different)} of the policy's {len(policy)} tokens are "
        f"not in the vocabulary of {model.tokenizer or model.path} under the same id: {different[0]!r} is "
        f"{policy[different[0]]} in the policy's and {'missing' if found is None else found} there. Name a "
        "teacher of the policy's family. If the tokens are the same and only the tokenizer's files differ, set "
        "the teacher's `tokenizer` to the policy's folder."
    )


def _vocabulary(key: str, model: ModelConfig) -> dict[str, int]:
    """Ids of a model's tokens. Raises ModelError, with the key, for a model without a tokenizer."""
    try:
        return load_tokenizer(model).get_vocab()
    except ModelError as error:
        raise ModelError(f"{key}: {error}") from error


def check_vocabularies(section: DistillationConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ModelError for a teacher without a tokenizer, or whose tokenizer gives a policy's token another id."""
    for number, teacher in enumerate(section.teachers):
        check_same_ids(f"algorithm.distillation.teachers.{number}", teacher.model, tokenizer)


def require_teachers(section: DistillationConfig, sources: Iterable[str]) -> None:
    """Raise DataError for tasks of a data source that no teacher has."""
    for source in sorted(set(sources)):
        if section.teacher_of(source) is None:
            listed = sorted(name for teacher in section.teachers for name in teacher.sources or ())
            raise DataError(
                f"algorithm.distillation.teachers: no teacher has the data source {source!r}, which some "
                f"training tasks have; the teachers list {', '.join(listed)}. Add it to the `sources` of a "
                "teacher, or remove the `sources` of one, which then teaches all other tasks."
            )


def make_update_batch(
    minibatch: Minibatch,
    computed: Sequence[Experience],
    expert: Sequence[Experience],
    *,
    advantages: Sequence[FloatArray],
    logprobs: StepLogprobs,
    selected: Sequence[BoolArray] | None,
) -> TrainingBatch:
    """The rollouts that an update computes, then the expert's demonstrations, with 0 for what these do not have.

    Rollouts that are not compared with the old policy have no old log-probs.

    Args:
        minibatch: indices of the rollouts among the experiences of the step.
        computed: the experiences of `minibatch.computed`.
        expert: demonstrations.
        advantages: [L] of each of `minibatch.trained`.
        logprobs: those of the step.
        selected: [L] of each of `minibatch.trained`: the tokens that the policy loss treats differently.
    """
    zeros = [zeros_for(experience) for experience in expert]
    numbers, compared = set(minibatch.computed), set(minibatch.compared)
    positions = [position for position, i in enumerate(minibatch.trained) if i in numbers]

    def picked(values: Sequence[FloatArray] | None) -> list[FloatArray] | None:
        return None if values is None else [*(values[i] for i in minibatch.computed), *zeros]

    old = logprobs.old
    old_logprobs = None if old is None else [old[i] if i in compared else None for i in minibatch.computed]
    if selected is not None:
        selected = [*(selected[position] for position in positions), *(zero > 0 for zero in zeros)]
    return TrainingBatch(
        [*computed, *expert],
        advantages=[*(advantages[position] for position in positions), *zeros],
        old_logprobs=None if old_logprobs is None else [*old_logprobs, *zeros],
        ref_logprobs=picked(logprobs.reference),
        teacher_logprobs=picked(logprobs.teacher),
        selected=selected,
    )
