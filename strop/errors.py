"""One tree of exceptions. Each message is one paragraph: what is wrong, where, what instead."""

from __future__ import annotations


class StropError(Exception):
    """Anything Strop raises on purpose. The command line prints it without a traceback."""

    exit_code = 1


class ConfigError(StropError):
    """A run file, an override or a foreign configuration that cannot be taken as it is."""

    exit_code = 2


class PlacementError(ConfigError):
    """The configuration asks for hardware or engines that this machine does not have."""


class MissingExtraError(ConfigError):
    """A feature whose optional packages are not installed; the message names the install command."""


class DataError(StropError):
    """A dataset that cannot be read, or a row in it that cannot be used."""


class ModelError(StropError):
    """A model folder or tokenizer that cannot be used."""


class RewardError(StropError):
    """A reward function that cannot be found, or whose signature is not understood."""


class RolloutError(StropError):
    """Too large a share of one step's rollouts broke."""


class InferenceError(StropError):
    """A request that an inference engine cannot take as it is."""


class EngineLost(StropError):
    """An inference engine is gone for good: no rollout's fault, and no rollout can be had of it."""


class TrainingError(StropError):
    """The update went wrong: a loss that is NaN or infinite, say."""


class RankLost(TrainingError):
    """One of the trainer's ranks was killed. From the last checkpoint the run can go on."""

    exit_code = 75  # the system's own word for: a failure that passes, try again


class WorkerDied(StropError):
    """A process that was started for the run has ended before its time."""

    def __init__(self, name: str, how: str, *, killed: bool) -> None:
        """`how` goes on from `it ended`: by which signal, with which exit code. `killed`: from outside, so
        that another in its place may do better."""
        super().__init__(f"{name} ended {how}")
        self.name = name
        self.how = how
        self.killed = killed


class StoreError(StropError):
    """An experience buffer that cannot be opened, read or written, or content that is not understood."""


class BufferEnded(StropError):
    """Nothing is left to read in an experience buffer, and nobody is left to write into it."""


class WritersGone(BufferEnded):
    """The same, and those who wrote into it had not finished."""


class CheckpointError(StropError):
    """A checkpoint that cannot be written, verified or resumed from."""


class RunFolderError(StropError):
    """A folder of a run, or of the other half of one, that belongs to another configuration or cannot be
    written."""


class Interrupted(StropError):
    """SIGINT or SIGTERM: the run has saved its state and stops. Not a fault."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
