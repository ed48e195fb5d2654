"""Recorder: writes a run's metrics, rollouts and sessions into its folder, and passes them to the monitors.

    run.json          sessions of the run: start, command line, host, outcome
    metrics.jsonl     one row per step
    tensorboard/      the same metrics as TensorBoard events
    rollouts/         step-000010.parquet: all rollouts of selected training steps
    eval/<name>/      step-000010.parquet: all rollouts of an evaluation

A resumed run appends to the same files. Rows and rollouts of steps after the one that it resumes from are
deleted first, so that the files end up as those of an uninterrupted run.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

import torch

from strop.config.load.loader import LoadedRun
from strop.config.redact import name_environment, redact, redact_arguments, safe_text
from strop.config.schema.run import Run
from strop.errors import Interrupted, SandboxError
from strop.printable import counted
from strop.run.recording.console import ConsoleMonitor
from strop.run.recording.monitor import Monitor, SessionInfo
from strop.run.recording.trackers import (
    MlflowMonitor,
    SwanlabMonitor,
    TensorBoardMonitor,
    TrackioMonitor,
    WandbMonitor,
)
from strop.run.state.horizon import Horizon
from strop.run.state.resume import StartPoint
from strop.runs.folder import RunFolder, reporting_write_errors
from strop.runs.formatting import format_steps
from strop.runs.held_out_scores import HeldOutScores, write_held_out_scores
from strop.runs.metrics import metric_of
from strop.runs.metrics_file import MetricsWriter
from strop.runs.rollout_file import (
    DecodePrompt,
    RolloutAdvantages,
    damaged_rollout_files,
    delete_rollouts_after,
    rollout_path,
    write_rollouts,
)
from strop.runs.sessions import SessionOutcome, begin_session, end_session, read_sessions, record_checkpoint
from strop.runs.training_examples import TrainingExample, TrainingText
from strop.runs.verdict import LearningWatch
from strop.sandbox.registry import open_sandbox
from strop.types import Experience, ExperienceGroup, RolloutGroup
from strop.workers.cleanup import keep_first_error
from strop.workers.memory import total_memory_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


MONITORS: dict[str, Callable[[], Monitor]] = {
    "console": ConsoleMonitor,
    "tensorboard": TensorBoardMonitor,
    "wandb": WandbMonitor,
    "mlflow": MlflowMonitor,
    "swanlab": SwanlabMonitor,
    "trackio": TrackioMonitor,
}
"""Monitor classes by name; each name is also a value of the schema's `record.monitors`."""


def make_monitors(names: Sequence[str]) -> tuple[Monitor, ...]:
    """Construct the monitors of a run, in the order of the registry."""
    return tuple(make() for name, make in MONITORS.items() if name in names)


_GIT_SECONDS = 5.0
_PACKAGES = ("strop", "torch", "transformers", "peft", "numpy")


def machine_info() -> dict[str, Any]:
    """Describe the host and the versions of the main packages, as JSON-serializable values."""
    return {
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
        "host": {
            "name": platform.node(),
            "system": platform.platform(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "memory_gb": round(total_memory_bytes() / 1e9, 1),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
            "torch_threads": torch.get_num_threads(),
        },
    }


def source_info() -> dict[str, Any]:
    """Commit of the git repository in the current folder, and whether its files differ from it; empty without one."""
    try:
        commit, changes = (
            subprocess.run(
                ["git", *arguments], capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
            ).stdout
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
        )
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or one without a commit
        return {}
    return {"git": {"commit": commit.strip(), "modified": bool(changes.strip())}}


def sandbox_info(run: Run) -> dict[str, Any]:
    """Name and isolation level of the sandbox, for a run whose reward runs programs."""
    if not any(function.function == "code" for function in run.reward.functions):
        return {}
    try:
        sandbox = open_sandbox(run.reward.sandbox)
    except SandboxError as error:  # another machine of the run may score; its scorer has opened the sandbox
        return {"sandbox": {"name": None, "error": str(error)}}
    return {
        "sandbox": {
            "name": sandbox.name,
            "isolation": sandbox.level.label,
            "unlimited": list(sandbox.unlimited),
        }
    }


def describe_sandbox(sandbox: Mapping[str, Any]) -> str:
    """Describe the sandbox of `sandbox_info` in one sentence."""
    if "error" in sandbox:
        return str(sandbox["error"])
    unlimited = sandbox["unlimited"]
    without = f", without a limit of: {', '.join(unlimited)}" if unlimited else ""
    return f"Programs run in the sandbox {sandbox['name']!r}, at the isolation level {sandbox['isolation']}{without}."


def command_line() -> str:
    """Format the command line of this process for a shell, with secrets redacted."""
    return shlex.join([Path(sys.argv[0]).name, *redact_arguments(sys.argv[1:])])


def peak_memory_mb() -> float:
    """Measure the peak resident memory of this process, in units of 10^6 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024) / 1e6


_SAMPLED_STEPS = 10
"""Steps between those that write some groups, `record.sampled_groups`."""


class Recorder:
    """Records one session of a run, as a context manager.

    Log a step's metrics before saving its checkpoint: a run that resumes from the checkpoint expects the row.
    Every failure to write raises `RunFolderError`.
    """

    def __init__(
        self,
        folder: RunFolder,
        loaded: LoadedRun,
        length: Horizon,
        start: StartPoint,
        stream: TextIO | None = None,
        monitors: Sequence[Monitor] | None = None,
        decode: DecodePrompt | None = None,
    ) -> None:
        """`decode` gives the text of the prompts that the model read, for the files of rollouts."""
        self._folder = folder
        self._loaded = loaded
        self._length = length
        self._start = start
        self._stream = stream or sys.stdout
        self._monitors = make_monitors(loaded.run.record.monitors) if monitors is None else tuple(monitors)
        self._files = ExitStack()
        self._watch = LearningWatch()
        self._decode = decode

    def __enter__(self) -> Self:
        session = self._session_info()
        last_kept = session.first_step - 1
        with reporting_write_errors(self._folder.path):
            damage = begin_session(self._folder.path, self._session_record(session))
            delete_rollouts_after(self._folder, last_kept)
            self._rows = MetricsWriter(self._folder.metrics, last_kept)
            self._files.callback(self._rows.close)
            notes = [*session.notes, *([damage] if damage else []), *self._damage(last_kept)]
            for monitor in self._monitors:
                monitor.start(replace(session, notes=tuple(notes)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outcome: SessionOutcome = "finished" if error is None else "failed"
        if isinstance(error, Interrupted | KeyboardInterrupt):
            outcome = "interrupted"
        message = None if error is None else safe_text(str(error) or type(error).__name__)
        # An exit stack runs every callback, even after one of them has failed.
        with keep_first_error(error), reporting_write_errors(self._folder.path), ExitStack() as stack:
            stack.callback(end_session, self._folder.path, outcome, message)
            stack.callback(self._files.close)
            for monitor in reversed(self._monitors):
                stack.callback(monitor.finish, outcome, message)

    @property
    def last(self) -> Mapping[str, float]:
        """Row of the last logged step."""
        return self._rows.last

    def log_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one step's row and pass it to the monitors.

        Raises `KeyError` for a metric without a definition.
        """
        row = _row(step, metrics)
        with reporting_write_errors(self._folder.metrics):
            self._rows.append(row)
        self._notify(step, row)
        for fault in self._watch.observe(row):
            self.log_message(f"warning: {fault}")

    def add_to_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics to the row of `step`, if it is the last row; otherwise write them as a row.

        The monitors receive the added metrics only. Raises `KeyError` for a metric without a definition.
        """
        if self.last.get("step") != step:
            self.log_step(step, metrics)
            return
        row = _row(step, metrics)
        with reporting_write_errors(self._folder.metrics):
            self._rows.replace_last({**self.last, **row})
        self._notify(step, row)

    def _notify(self, step: int, row: Mapping[str, float]) -> None:
        for monitor in self._monitors:
            with reporting_write_errors(self._folder.path):
                monitor.log(step, row)

    def log_checkpoint(self, step: int) -> None:
        """Record that the checkpoint of `step` is complete; a later start without it is refused."""
        with reporting_write_errors(self._folder.path):
            record_checkpoint(self._folder.path, step)

    def log_message(self, line: str) -> None:
        """Pass a line of text to the monitors."""
        for monitor in self._monitors:
            with reporting_write_errors(self._folder.path):
                monitor.message(line)

    def groups_to_write(
        self, step: int, groups: Sequence[RolloutGroup], *, all_due: bool
    ) -> Sequence[RolloutGroup]:
        """The groups of a training step to write: all that are due, or on every tenth step some of them."""
        if all_due:
            return groups
        return groups[: self._loaded.run.record.sampled_groups] if step % _SAMPLED_STEPS == 0 else ()

    def log_rollouts(
        self, step: int, groups: Sequence[RolloutGroup], advantages: RolloutAdvantages | None = None
    ) -> None:
        """Write rollouts of a training step, with their advantages if tokens are recorded and they are known."""
        self._write_rollouts(self._folder.rollouts, step, groups, advantages)

    def log_evaluation(self, name: str, step: int, groups: Sequence[RolloutGroup]) -> None:
        """Write all rollouts of an eval taskset, and pass them to the monitors."""
        self._write_rollouts(self._folder.evaluations(name), step, groups)
        for monitor in self._monitors:
            with reporting_write_errors(self._folder.path):
                monitor.samples(name, step, groups)

    def log_held_out_scores(self, scores: Sequence[HeldOutScores]) -> None:
        """Write a reward model's scores of the eval tasksets."""
        with reporting_write_errors(self._folder.path):
            write_held_out_scores(self._folder.held_out_scores, scores)

    def _write_rollouts(
        self,
        folder: Path,
        step: int,
        groups: Sequence[RolloutGroup],
        advantages: RolloutAdvantages | None = None,
    ) -> None:
        path = rollout_path(folder, step)
        tokens = self._loaded.run.record.rollout_tokens
        with reporting_write_errors(path):
            write_rollouts(path, step, groups, tokens=tokens, advantages=advantages, decode=self._decode)

    def _damage(self, last_kept: int) -> Iterator[str]:
        """Yield a message about each record of the steps done that is missing or damaged."""
        if self._start.checkpoint is not None:
            first = min(int(session["from_step"]) for session in read_sessions(self._folder.path)) + 1
            missing = sorted(set(range(first, last_kept + 1)) - self._rows.steps_kept)
            if missing:
                yield (
                    f"{self._folder.metrics} lacks the rows of {format_steps(missing)}, which cannot be rebuilt. "
                    "The trained weights do not depend on them."
                )
        for path in damaged_rollout_files(self._folder):
            yield f"{path} is damaged and cannot be rebuilt; the report leaves it out."

    def _session_info(self) -> SessionInfo:
        done = self._start.state.step
        run = self._loaded.run
        sandbox = sandbox_info(run)
        return SessionInfo(
            run=run,
            folder=self._folder.path,
            title=self._title(),
            notes=(*self._notes(), *map(describe_sandbox, sandbox.values())),
            steps=self._length.steps,
            steps_done=done if done > 0 else 0,
            environment={
                "command": command_line(),
                "directory": str(Path.cwd()),
                **machine_info(),
                **source_info(),
                **sandbox,
            },
            stream=self._stream,
        )

    def _title(self) -> str:
        run = self._loaded.run
        size = counted(run.trainer.tasks_per_step, "task")
        if not run.algorithm.is_offline:
            size += f" x {counted(run.algorithm.rollouts_per_task, 'rollout')}"
        steps = counted(self._length.steps, "step")
        return f"{run.project} / {run.name}: {steps} of {size}, in {self._folder.path}"

    def _notes(self) -> tuple[str, ...]:
        if self._start.state.step >= self._length.steps:
            return (
                *self._start.notes,
                f"All {self._length.steps} steps are already done: nothing is left to do.",
            )
        return self._start.notes

    def _session_record(self, session: SessionInfo) -> dict[str, Any]:
        environment = dict(session.environment)
        return {
            "project": session.run.project,
            "name": session.run.name,
            "steps": session.steps,
            "from_step": session.steps_done,
            "command": environment.pop("command"),
            "notes": [*map(safe_text, (*self._loaded.notes, *self._start.notes))],
            "set_aside": [
                {
                    "key": one.key,
                    "value": name_environment(redact(one.value, one.key)),
                    "instead": one.replacement,
                }
                for one in self._loaded.overridden
            ],
            **environment,
        }


def _row(step: int, metrics: Mapping[str, float]) -> dict[str, float]:
    row = {"step": float(step), **metrics, "memory/peak_mb": peak_memory_mb()}
    for name in row:
        metric_of(name)
    return row


_LABELS = {"sft": "demonstration"}


def training_examples(
    groups: Sequence[ExperienceGroup], tokenizer: PreTrainedTokenizerBase
) -> tuple[TrainingExample, ...]:
    """Decode prompts, each with the sequences that follow it, from their first trained token on: a demonstration has
    its own prompt, and a pair has one."""

    def text_of(experience: Experience) -> TrainingText:
        text = tokenizer.decode(experience.token_ids[experience.prompt_tokens :].tolist())
        label = _LABELS.get(experience.role, experience.role)
        return TrainingText(label, str(text), int(experience.loss_mask.sum()))

    def prompt_of(experience: Experience) -> str:
        return str(tokenizer.decode(experience.token_ids[: experience.prompt_tokens].tolist()))

    return tuple(
        TrainingExample(prompt_of(same[0]), tuple(map(text_of, same)))
        for group in groups
        for same in ([group.experiences] if group.experiences[0].pair else [(e,) for e in group.experiences])
    )
