"""The teachers of a distillation on one rank: frozen models, each for the tasks of its data sources."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strop.config.schema.distillation import DistillationConfig
from strop.errors import ModelError
from strop.models.chunked_head import FrozenStates
from strop.models.family_traits import check_rope_limit
from strop.models.logprobs import frozen_states, sampled_logprobs
from strop.models.packed_attention.forward import base_model, can_share_prompts
from strop.training.parallel.parallelize import ModelCall, Parallelizer
from strop.transfers import Positions
from strop.types import IndexArray, MicroBatch


@dataclass(frozen=True, slots=True)
class RoutedStates:
    """A micro-batch's hidden states from several teachers, each for its own positions."""

    states: tuple[FrozenStates, ...]
    teacher: IndexArray
    """[T] Number of the teacher of each position of the hidden states, on the host; -1 where none is needed."""

    def logprobs(self, rows: Positions, temperature: Tensor) -> Tensor:
        """[n, V] float32 Log-probs of the next token at each position, by its teacher.

        V is the smallest of the teachers' vocabularies; the tokens of one tokenizer are in each of them.
        """
        numbers, parts = self.teacher[rows.on_host], []
        for number, states in enumerate(self.states):
            chosen = Positions.of(np.flatnonzero(numbers == number), temperature.device)
            own = Positions(rows.on_host[chosen.on_host], rows.on_device[chosen.on_device])
            parts.append((chosen, states.logprobs(own, temperature[chosen.on_device])))
        result = temperature.new_zeros(len(rows), min(each.shape[1] for _, each in parts))
        for chosen, each in parts:
            result[chosen.on_device] = each[:, : result.shape[1]]
        return result


class Teachers:
    """Frozen models, whole or this rank's shards. Every rank runs every teacher on each of its micro-batches.

    Raises ModelError for a model that cannot be used.
    """

    def __init__(
        self, section: DistillationConfig, parallelizer: Parallelizer, *, max_sequence_tokens: int
    ) -> None:
        self._section = section
        self._group = parallelizer.sequence_group
        self._calls: list[ModelCall] = []
        self.shared_prompts_obstacle = ""
        """Reason why a micro-batch must not hold a shared prompt; empty if it may."""
        for number, teacher in enumerate(section.teachers):
            try:
                call = parallelizer.load_reference(teacher.model)
                call(lambda model: check_rope_limit(base_model(model).config, max_sequence_tokens))
            except ModelError as error:
                raise ModelError(f"algorithm.distillation.teachers.{number}: {error}") from error
            supported, obstacle = call(can_share_prompts)
            if not supported:
                self.shared_prompts_obstacle = f"of its teacher {teacher.path}: {obstacle}"
            self._calls.append(call)

    def states(self, micro_batch: MicroBatch) -> RoutedStates:
        """Hidden states of a micro-batch, from which log-probs over the vocabulary are computed in chunks."""
        temperature = self._section.temperature
        return RoutedStates(
            tuple(call(frozen_states, micro_batch, temperature=temperature) for call in self._calls),
            self._numbers(micro_batch),
        )

    @torch.no_grad()
    def logprobs(self, micro_batch: MicroBatch) -> Tensor:
        """[T] log-probs of a micro-batch's targets."""
        return sampled_logprobs(self.states(micro_batch), micro_batch, self._group)

    def _numbers(self, micro_batch: MicroBatch) -> IndexArray:
        """[T] Number of each position's teacher; with sequence parallelism of this rank's positions."""
        numbers = [self._section.teacher_of(source) for source in micro_batch.source]
        by_segment = np.array([-1 if number is None else number for number in numbers])
        of_tokens: IndexArray = by_segment[micro_batch.segment_numbers()]
        return of_tokens if self._group is None else self._group.share(torch.from_numpy(of_tokens)).numpy()
