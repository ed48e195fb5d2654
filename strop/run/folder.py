"""Where a run's files stand."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from strop.algorithms.plateau import Plateau
from strop.config.schema import Run
from strop.errors import RunFolderError
from strop.run.best import BestStep


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`<output>/<project>/<name>/` and what is in it."""

    path: Path

    @classmethod
    def of(cls, run: Run) -> RunFolder:
        """The folder that a run's configuration names."""
        return cls(run.folder_path)

    @property
    def run_file(self) -> Path:
        """The resolved run file, secrets redacted."""
        return self.path / "run.yaml"

    @property
    def checkpoints(self) -> Path:
        """What a run is resumed from."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model as a Hugging Face folder."""
        return self.path / "model"

    @property
    def metrics(self) -> Path:
        """One JSON row per step."""
        return self.path / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        """Rollouts of chosen steps, as Parquet."""
        return self.path / "rollouts"

    @property
    def judges(self) -> Path:
        """What the reward's judges have said, so that nothing is asked twice."""
        return self.path / "judges"

    @property
    def explorer(self) -> RunFolder:
        """What an explorer that is a process of its own writes: the same files, as far as it has them."""
        return RunFolder(self.path / "explorer")

    @property
    def report(self) -> Path:
        """The page to look at."""
        return self.path / "report.html"

    def create(self) -> None:
        """Make the folder. Raises `RunFolderError` where it cannot be written."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunFolderError(
                f"The run folder {self.path} cannot be written ({error.strerror}). "
                "Set `output` to a folder where you may write, or change its permissions."
            ) from error

    def set_aside_old(self) -> Path | None:
        """Rename a folder that holds another run's files, so that nothing is lost; returns its new path."""
        if not self.path.exists() or not any(self.path.iterdir()):
            return None
        old = self.path.with_name(f"{self.path.name}_{datetime.now():%Y%m%d-%H%M%S}")
        self.path.rename(old)
        return old


@dataclass(frozen=True, slots=True)
class RunState:
    """Where a run stands between two steps; with the engine's own state, all that a resume needs."""

    step: int = 0
    """Steps that are done."""
    updates: int = 0
    """Optimizer updates that are done."""
    position: int = 0
    """Training tasks taken so far, over all epochs."""
    kl_coef: float | None = None
    """What the coefficient of the KL penalty in the reward has come to; None where there is none."""
    expert_position: int = 0
    """Expert answers taken so far, over all epochs, under mix."""
    plateau: Plateau | None = None
    """What a schedule that follows the evaluations remembers of them."""
    best: BestStep | None = None
    """The best evaluation so far, where `checkpoint.best` asks for it."""
    taken: tuple[str, ...] = ()
    """The ids of the groups learned from since the checkpoint before, where an explorer apart samples them:
    once this one is in its place the buffer is told that they are done."""
    shift: int = 0
    """By how many those that the steps so far learned from were fewer than they are for, less those that the
    buffer or `trainer.sample` dropped: so many groups earlier, or later, the next one's turn comes."""
    owes_evaluation: bool = False
    """Whether the run was stopped in the evaluation after this step, which is then made up for."""

    def save(self, folder: Path) -> None:
        """Write `state.json` into a checkpoint."""
        (folder / "state.json").write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, folder: Path) -> RunState:
        """Read what `save` wrote."""
        values = json.loads((folder / "state.json").read_text())
        if values["plateau"] is not None:
            values["plateau"] = Plateau(**values["plateau"])
        values["taken"] = tuple(values.get("taken", ()))
        if values.get("best") is not None:
            values["best"] = BestStep(**values["best"])
        return cls(**values)
