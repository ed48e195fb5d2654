"""Models that are trained in addition to the policy: the critic of PPO, the process reward model of PRIME."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strop.config.schema import Run
from strop.protocols import EngineSnapshot
from strop.run.optimize.critic import CRITIC_FOLDER, Critic, open_critic
from strop.run.optimize.process_reward import PROCESS_REWARD_FOLDER, ProcessRewardModel, open_process_reward
from strop.run.state.horizon import Horizon
from strop.training.backends.registry import TrainingBackend

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class SecondModels:
    """The second models of a run; None for those that its algorithm does not have."""

    critic: Critic | None
    process_reward: ProcessRewardModel | None

    def snapshots(self) -> Mapping[str, EngineSnapshot]:
        """State of each model, by its subfolder of a checkpoint."""
        models = {CRITIC_FOLDER: self.critic, PROCESS_REWARD_FOLDER: self.process_reward}
        return {folder: model.snapshot() for folder, model in models.items() if model is not None}


def open_second_models(
    run: Run,
    engines: TrainingBackend,
    tokenizer: PreTrainedTokenizerBase,
    horizon: Horizon,
    checkpoint: Path | None,
) -> SecondModels:
    """The second models of a run, with a checkpoint's weights loaded. Raises ModelError for one that cannot be used."""
    return SecondModels(
        open_critic(run, engines, tokenizer, horizon, checkpoint),
        open_process_reward(run, engines, tokenizer, horizon, checkpoint),
    )
