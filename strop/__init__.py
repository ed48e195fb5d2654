"""Strop: reinforcement fine-tuning of language models.

`strop.train` trains on a run file or on data in memory, `strop.Policy` has the four verbs of a training loop, and
`strop.open_run` reads what a run wrote; docs/library.md is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from strop.algorithms.algorithm import RolloutBatch
    from strop.api import RunHandle, RunResult, evaluate, export, generate, load, start, train
    from strop.config.schema.algorithm import AsymReConfig as AsymRe
    from strop.config.schema.algorithm import CustomConfig as Custom
    from strop.config.schema.algorithm import DistillationOnlyConfig as OnPolicyDistillation
    from strop.config.schema.algorithm import GdpoConfig as Gdpo
    from strop.config.schema.algorithm import GigpoConfig as Gigpo
    from strop.config.schema.algorithm import GpgConfig as Gpg
    from strop.config.schema.algorithm import GrpoConfig as Grpo
    from strop.config.schema.algorithm import GrpoPasskConfig as GrpoPassk
    from strop.config.schema.algorithm import MixConfig as Mix
    from strop.config.schema.algorithm import OnlineDpoConfig as OnlineDpo
    from strop.config.schema.algorithm import OpmdConfig as Opmd
    from strop.config.schema.algorithm import OpoConfig as Opo
    from strop.config.schema.algorithm import OptimalTokenBaselineConfig as OptimalTokenBaseline
    from strop.config.schema.algorithm import PpoConfig as Ppo
    from strop.config.schema.algorithm import PrimeConfig as Prime
    from strop.config.schema.algorithm import RaftConfig as Raft
    from strop.config.schema.algorithm import ReinforceConfig as Reinforce
    from strop.config.schema.algorithm import ReinforcePlusPlusBaselineConfig as ReinforcePlusPlusBaseline
    from strop.config.schema.algorithm import ReinforcePlusPlusConfig as ReinforcePlusPlus
    from strop.config.schema.algorithm import RemaxConfig as Remax
    from strop.config.schema.algorithm import RlooConfig as Rloo
    from strop.config.schema.algorithm import SelfPlayConfig as SelfPlay
    from strop.config.schema.algorithm import SftConfig as Sft
    from strop.config.schema.distillation import DistillationConfig as Distillation
    from strop.config.schema.distillation import TeacherConfig as Teacher
    from strop.config.schema.model import LoraConfig as Lora
    from strop.config.schema.optimizer import AdafactorConfig as Adafactor
    from strop.config.schema.optimizer import AdamWConfig as AdamW
    from strop.config.schema.optimizer import ConstantScheduleConfig as ConstantSchedule
    from strop.config.schema.optimizer import CosineScheduleConfig as CosineSchedule
    from strop.config.schema.optimizer import LinearScheduleConfig as LinearSchedule
    from strop.config.schema.optimizer import SgdConfig as Sgd
    from strop.config.schema.optimizer import WsdScheduleConfig as WsdSchedule
    from strop.config.schema.policy_gradient import CriticConfig
    from strop.config.schema.policy_gradient import KlLossConfig as KlLoss
    from strop.config.schema.policy_gradient import KlRewardConfig as KlReward
    from strop.config.schema.preference import BcoConfig as Bco
    from strop.config.schema.preference import CpoConfig as Cpo
    from strop.config.schema.preference import DpoConfig as Dpo
    from strop.config.schema.preference import KtoConfig as Kto
    from strop.config.schema.preference import OrpoConfig as Orpo
    from strop.config.schema.preference import RewardModelingConfig as RewardModeling
    from strop.config.schema.record import CheckpointConfig as Checkpoint
    from strop.config.schema.record import EvaluateConfig as Evaluate
    from strop.config.schema.record import ExportConfig as Export
    from strop.config.schema.record import RecordConfig as Record
    from strop.config.schema.reward import JudgeConfig as Judge
    from strop.config.schema.reward import RewardConfig
    from strop.config.schema.reward import RewardFunctionConfig as RewardFunction
    from strop.config.schema.reward import RewardModelConfig as RewardModel
    from strop.config.schema.rollout import NativeEngineConfig as NativeEngine
    from strop.config.schema.rollout import RolloutConfig
    from strop.config.schema.rollout import SamplingConfig as Sampling
    from strop.config.schema.rollout import SglangEngineConfig as SglangEngine
    from strop.config.schema.rollout import VllmEngineConfig as VllmEngine
    from strop.config.schema.rollout import WorkflowConfig as Workflow
    from strop.config.schema.trainer import DeepSpeedEngineConfig as DeepSpeedEngine
    from strop.config.schema.trainer import Fsdp2EngineConfig as Fsdp2Engine
    from strop.config.schema.trainer import LocalEngineConfig as LocalEngine
    from strop.config.schema.trainer import TrainerConfig as Trainer
    from strop.config.units import Amount
    from strop.errors import (
        CallbackError,
        CheckpointError,
        ConfigError,
        DataError,
        InferenceError,
        Interrupted,
        MissingExtraError,
        ModelError,
        PlacementError,
        RewardError,
        RolloutError,
        RunFolderError,
        StropError,
        TrainingError,
    )
    from strop.library.batches import group_rewards, make_batch, score
    from strop.library.losses import loss_names
    from strop.library.policy import Policy
    from strop.library.policy import TrainableCritic as Critic
    from strop.library.run_view import Metrics, Rollouts, RunView, open_run
    from strop.library.sections import Data, EvalTaskset, Model, Taskset
    from strop.library.sections import RunDefinition as Run
    from strop.python_rewards import PythonReward as Reward
    from strop.run.drivers.callbacks import Callback, RunControl
    from strop.types import (
        Experience,
        GlobalCounts,
        LossOutput,
        MicroBatch,
        Rollout,
        RolloutGroup,
        SamplingParams,
        Task,
        TokenOutputs,
        TrainingBatch,
        Turn,
    )
    from strop.workflows.chat import Chat
    from strop.workflows.result import WorkflowResult

_NAMES = {
    "Adafactor": "strop.config.schema.optimizer:AdafactorConfig",
    "AdamW": "strop.config.schema.optimizer:AdamWConfig",
    "Amount": "strop.config.units:Amount",
    "AsymRe": "strop.config.schema.algorithm:AsymReConfig",
    "Bco": "strop.config.schema.preference:BcoConfig",
    "Callback": "strop.run.drivers.callbacks:Callback",
    "CallbackError": "strop.errors:CallbackError",
    "Chat": "strop.workflows.chat:Chat",
    "Checkpoint": "strop.config.schema.record:CheckpointConfig",
    "CheckpointError": "strop.errors:CheckpointError",
    "ConfigError": "strop.errors:ConfigError",
    "ConstantSchedule": "strop.config.schema.optimizer:ConstantScheduleConfig",
    "CosineSchedule": "strop.config.schema.optimizer:CosineScheduleConfig",
    "Cpo": "strop.config.schema.preference:CpoConfig",
    "Critic": "strop.library.policy:TrainableCritic",
    "CriticConfig": "strop.config.schema.policy_gradient:CriticConfig",
    "Custom": "strop.config.schema.algorithm:CustomConfig",
    "Data": "strop.library.sections:Data",
    "DataError": "strop.errors:DataError",
    "DeepSpeedEngine": "strop.config.schema.trainer:DeepSpeedEngineConfig",
    "Distillation": "strop.config.schema.distillation:DistillationConfig",
    "Dpo": "strop.config.schema.preference:DpoConfig",
    "EvalTaskset": "strop.library.sections:EvalTaskset",
    "Evaluate": "strop.config.schema.record:EvaluateConfig",
    "Experience": "strop.types:Experience",
    "Export": "strop.config.schema.record:ExportConfig",
    "Fsdp2Engine": "strop.config.schema.trainer:Fsdp2EngineConfig",
    "Gdpo": "strop.config.schema.algorithm:GdpoConfig",
    "Gigpo": "strop.config.schema.algorithm:GigpoConfig",
    "GlobalCounts": "strop.types:GlobalCounts",
    "Gpg": "strop.config.schema.algorithm:GpgConfig",
    "Grpo": "strop.config.schema.algorithm:GrpoConfig",
    "GrpoPassk": "strop.config.schema.algorithm:GrpoPasskConfig",
    "InferenceError": "strop.errors:InferenceError",
    "Interrupted": "strop.errors:Interrupted",
    "Judge": "strop.config.schema.reward:JudgeConfig",
    "KlLoss": "strop.config.schema.policy_gradient:KlLossConfig",
    "KlReward": "strop.config.schema.policy_gradient:KlRewardConfig",
    "Kto": "strop.config.schema.preference:KtoConfig",
    "LinearSchedule": "strop.config.schema.optimizer:LinearScheduleConfig",
    "LocalEngine": "strop.config.schema.trainer:LocalEngineConfig",
    "Lora": "strop.config.schema.model:LoraConfig",
    "LossOutput": "strop.types:LossOutput",
    "Metrics": "strop.library.run_view:Metrics",
    "MicroBatch": "strop.types:MicroBatch",
    "MissingExtraError": "strop.errors:MissingExtraError",
    "Mix": "strop.config.schema.algorithm:MixConfig",
    "Model": "strop.library.sections:Model",
    "ModelError": "strop.errors:ModelError",
    "NativeEngine": "strop.config.schema.rollout:NativeEngineConfig",
    "OnPolicyDistillation": "strop.config.schema.algorithm:DistillationOnlyConfig",
    "OnlineDpo": "strop.config.schema.algorithm:OnlineDpoConfig",
    "Opmd": "strop.config.schema.algorithm:OpmdConfig",
    "Opo": "strop.config.schema.algorithm:OpoConfig",
    "OptimalTokenBaseline": "strop.config.schema.algorithm:OptimalTokenBaselineConfig",
    "Orpo": "strop.config.schema.preference:OrpoConfig",
    "PlacementError": "strop.errors:PlacementError",
    "Policy": "strop.library.policy:Policy",
    "Ppo": "strop.config.schema.algorithm:PpoConfig",
    "Prime": "strop.config.schema.algorithm:PrimeConfig",
    "Raft": "strop.config.schema.algorithm:RaftConfig",
    "Record": "strop.config.schema.record:RecordConfig",
    "Reinforce": "strop.config.schema.algorithm:ReinforceConfig",
    "ReinforcePlusPlus": "strop.config.schema.algorithm:ReinforcePlusPlusConfig",
    "ReinforcePlusPlusBaseline": "strop.config.schema.algorithm:ReinforcePlusPlusBaselineConfig",
    "Remax": "strop.config.schema.algorithm:RemaxConfig",
    "Reward": "strop.python_rewards:PythonReward",
    "RewardConfig": "strop.config.schema.reward:RewardConfig",
    "RewardError": "strop.errors:RewardError",
    "RewardFunction": "strop.config.schema.reward:RewardFunctionConfig",
    "RewardModel": "strop.config.schema.reward:RewardModelConfig",
    "RewardModeling": "strop.config.schema.preference:RewardModelingConfig",
    "Rloo": "strop.config.schema.algorithm:RlooConfig",
    "Rollout": "strop.types:Rollout",
    "RolloutBatch": "strop.algorithms.algorithm:RolloutBatch",
    "RolloutConfig": "strop.config.schema.rollout:RolloutConfig",
    "RolloutError": "strop.errors:RolloutError",
    "RolloutGroup": "strop.types:RolloutGroup",
    "Rollouts": "strop.library.run_view:Rollouts",
    "Run": "strop.library.sections:RunDefinition",
    "RunControl": "strop.run.drivers.callbacks:RunControl",
    "RunFolderError": "strop.errors:RunFolderError",
    "RunHandle": "strop.api:RunHandle",
    "RunResult": "strop.api:RunResult",
    "RunView": "strop.library.run_view:RunView",
    "Sampling": "strop.config.schema.rollout:SamplingConfig",
    "SamplingParams": "strop.types:SamplingParams",
    "SelfPlay": "strop.config.schema.algorithm:SelfPlayConfig",
    "Sft": "strop.config.schema.algorithm:SftConfig",
    "Sgd": "strop.config.schema.optimizer:SgdConfig",
    "SglangEngine": "strop.config.schema.rollout:SglangEngineConfig",
    "StropError": "strop.errors:StropError",
    "Task": "strop.types:Task",
    "Taskset": "strop.library.sections:Taskset",
    "Teacher": "strop.config.schema.distillation:TeacherConfig",
    "TokenOutputs": "strop.types:TokenOutputs",
    "Trainer": "strop.config.schema.trainer:TrainerConfig",
    "TrainingBatch": "strop.types:TrainingBatch",
    "TrainingError": "strop.errors:TrainingError",
    "Turn": "strop.types:Turn",
    "VllmEngine": "strop.config.schema.rollout:VllmEngineConfig",
    "Workflow": "strop.config.schema.rollout:WorkflowConfig",
    "WorkflowResult": "strop.workflows.result:WorkflowResult",
    "WsdSchedule": "strop.config.schema.optimizer:WsdScheduleConfig",
    "evaluate": "strop.api:evaluate",
    "export": "strop.api:export",
    "generate": "strop.api:generate",
    "group_rewards": "strop.library.batches:group_rewards",
    "load": "strop.api:load",
    "loss_names": "strop.library.losses:loss_names",
    "make_batch": "strop.library.batches:make_batch",
    "open_run": "strop.library.run_view:open_run",
    "score": "strop.library.batches:score",
    "start": "strop.api:start",
    "train": "strop.api:train",
}
"""Module of each exported name, and its name there."""

__all__ = [
    "Adafactor",
    "AdamW",
    "Amount",
    "AsymRe",
    "Bco",
    "Callback",
    "CallbackError",
    "Chat",
    "Checkpoint",
    "CheckpointError",
    "ConfigError",
    "ConstantSchedule",
    "CosineSchedule",
    "Cpo",
    "Critic",
    "CriticConfig",
    "Custom",
    "Data",
    "DataError",
    "DeepSpeedEngine",
    "Distillation",
    "Dpo",
    "EvalTaskset",
    "Evaluate",
    "Experience",
    "Export",
    "Fsdp2Engine",
    "Gdpo",
    "Gigpo",
    "GlobalCounts",
    "Gpg",
    "Grpo",
    "GrpoPassk",
    "InferenceError",
    "Interrupted",
    "Judge",
    "KlLoss",
    "KlReward",
    "Kto",
    "LinearSchedule",
    "LocalEngine",
    "Lora",
    "LossOutput",
    "Metrics",
    "MicroBatch",
    "MissingExtraError",
    "Mix",
    "Model",
    "ModelError",
    "NativeEngine",
    "OnPolicyDistillation",
    "OnlineDpo",
    "Opmd",
    "Opo",
    "OptimalTokenBaseline",
    "Orpo",
    "PlacementError",
    "Policy",
    "Ppo",
    "Prime",
    "Raft",
    "Record",
    "Reinforce",
    "ReinforcePlusPlus",
    "ReinforcePlusPlusBaseline",
    "Remax",
    "Reward",
    "RewardConfig",
    "RewardError",
    "RewardFunction",
    "RewardModel",
    "RewardModeling",
    "Rloo",
    "Rollout",
    "RolloutBatch",
    "RolloutConfig",
    "RolloutError",
    "RolloutGroup",
    "Rollouts",
    "Run",
    "RunControl",
    "RunFolderError",
    "RunHandle",
    "RunResult",
    "RunView",
    "Sampling",
    "SamplingParams",
    "SelfPlay",
    "Sft",
    "Sgd",
    "SglangEngine",
    "StropError",
    "Task",
    "Taskset",
    "Teacher",
    "TokenOutputs",
    "Trainer",
    "TrainingBatch",
    "TrainingError",
    "Turn",
    "VllmEngine",
    "Workflow",
    "WorkflowResult",
    "WsdSchedule",
    "__version__",
    "evaluate",
    "export",
    "generate",
    "group_rewards",
    "load",
    "loss_names",
    "make_batch",
    "open_run",
    "score",
    "start",
    "train",
]


def __getattr__(name: str) -> Any:
    # Lazy, so that `import strop`, and with it `strop --help`, does not wait for torch.
    if name in _NAMES:
        module, _, attribute = _NAMES[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    if name == "__version__":
        from importlib.metadata import version

        return version("strop")
    raise AttributeError(f"module 'strop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
