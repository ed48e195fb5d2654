"""Training engines on several workers of this machine, for a model on the CPU.

Workers are processes over one copy of the weights. They are ranks without shards: each runs the forward and backward
passes of its micro-batches by itself, and an update is the only operation of all; see
`strop.training.parallel.shared_memory`. Between operations this process is free to read and write the weights, as if it
were alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from strop.config.local_workers import LocalWorkers, with_workers, workers_obstacle
from strop.config.schema import Run
from strop.config.schema.policy_gradient import CriticConfig, ProcessRewardConfig
from strop.config.schema.trainer import LocalEngineConfig
from strop.errors import PlacementError
from strop.models.shared_weights import MappedWeights
from strop.protocols import CriticEngine, SharedWeights, TrainingEngine
from strop.training.backends.ranked import RankedCriticEngine, RankedPolicyEngine
from strop.training.ranks.group import RankGroup
from strop.workers.cleanup import closing


class LocalWorkersEngine(RankedPolicyEngine):
    """A policy's training engine on the workers of this machine."""

    collective = False

    def __init__(self, group: RankGroup, run: Run, workers: LocalWorkers) -> None:
        threads = "1 thread" if workers.threads == 1 else f"{workers.threads} threads"
        super().__init__(
            group, run, f"by {workers.count} processes of {threads} over one copy of the weights"
        )
        self._workers = workers

    def sync_reference(self, policy_weight: float) -> None:
        """Move the weights of the reference model, which all workers share, towards the policy's."""
        self.policy.sync_reference(policy_weight)

    def iter_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full weights, adapters merged, with Hugging Face names, in the compute dtype."""
        return self.policy.iter_weights()

    def shared_weights(self) -> SharedWeights:
        """Handle of the weights, which as many engines of this machine as there are workers can read in place."""
        weights, shared = self.policy.shared_weights(), self.policy.shared_tensors
        assert shared is not None
        mapped = MappedWeights.of(weights, shared, self._workers.count, self._workers.threads)
        return replace(weights, mapped=mapped)

    def export(self, folder: Path, add_files: Callable[[Path], object] = lambda folder: None) -> None:
        """Write a Hugging Face folder. Raises ModelError where it cannot be written."""
        self.policy.export(folder, add_files)

    def write_adapter(self, folder: Path) -> None:
        """Write the adapter in PEFT's format. Raises ModelError for a model without one."""
        self.policy.write_adapter(folder)


class LocalWorkersCriticEngine(RankedCriticEngine):
    """A critic's training engine on the workers of this machine."""

    collective = False


class LocalWorkersBackend:
    """Builds the engines of one run on the workers of this machine."""

    def __init__(self, run: Run, group: RankGroup, workers: LocalWorkers) -> None:
        self._run, self._group, self._workers = run, group, workers

    def policy(self) -> TrainingEngine:
        """The policy's engine."""
        return LocalWorkersEngine(self._group, self._run, self._workers)

    def critic(self, section: CriticConfig) -> CriticEngine:
        """The critic's engine."""
        return LocalWorkersCriticEngine(self._group, self._run, section)

    def process_reward(self, section: ProcessRewardConfig) -> TrainingEngine:
        """Raises PlacementError: workers have a policy and a critic, and no second language model."""
        raise PlacementError(
            f"trainer.engine.workers is {self._workers.count}, and {workers_obstacle(self._run)}. Write workers: 1."
        )


@contextmanager
def open_local_workers(run: Run, workers: LocalWorkers) -> Iterator[LocalWorkersBackend]:
    """The backend of several workers, which end with the context."""
    section = run.trainer.engine
    assert isinstance(section, LocalEngineConfig)
    run = with_workers(run, workers.count)
    threads = torch.get_num_threads()
    torch.set_num_threads(workers.threads)  # of this thread; each other worker sets its own
    group = RankGroup(
        workers.count, "cpu", hang_timeout_seconds=section.hang_timeout_seconds, threads=workers.threads
    )
    try:
        with closing(group):
            yield LocalWorkersBackend(run, group, workers)
    finally:
        torch.set_num_threads(threads)
