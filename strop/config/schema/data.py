"""`data`: where tasks come from, and how their prompts are encoded."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from strop.config.schema.base import Section
from strop.config.schema.reward import RewardOrShort
from strop.config.schema.rollout import Sampling
from strop.config.schema.workflow import WorkflowOrName


class OwnDataset(Section):
    """A dataset class of your own, as verl's `data.custom_cls`: a torch Dataset over the files of `path`."""

    name: str
    """Its dotted path, or `file.py:Name`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """What it is given as `config`."""


class Taskset(Section):
    """Where tasks come from, and which columns hold what. A column may be a dotted path."""

    path: str | tuple[str, ...]
    """Parquet or JSONL: a file, a list of files, a directory, a `datasets` folder, a hub name, a URL; or a
    database, `sqlite:///tasks.db` or `postgresql://user:password@host/database`."""
    table: str | None = None
    """Which table of a database; its columns are the rows' columns."""
    dataset: OwnDataset | None = None
    """What reads the files, in place of Strop; null for none."""
    split: str | None = None
    """Which split, where the dataset has several; refused where it has none."""
    subset: str | None = None
    """Which subset (the hub calls it config), where the dataset has several."""
    prompt: str = "prompt"
    """Column of the prompt: a list of messages, or plain text, which becomes one user message."""
    answer: str | None = "answer"
    """Column of what the reward compares with; null when there is none."""
    source: str | None = None
    """Column that says where a row is from, by which rewards can be chosen."""
    tools: str | None = None
    """Column of the tools that the model may call: a list of JSON schemas, or its JSON text."""
    response: str | None = None
    """Column of the answer to imitate, under sft and for an expert: text or messages that go on from the
    prompt, or a whole conversation (then no prompt is read), of which all assistant turns are trained."""
    chosen: str | None = None
    """Column of the better answer, under dpo: text or messages that go on from the prompt, or a whole
    conversation, whose prompt is what it has in common with the rejected one."""
    rejected: str | None = None
    """Column of the worse answer, in the same form."""
    system: str | None = None
    """Text of a system message put before every prompt that has none."""
    system_column: str | None = None
    """Column of a row's own such text; where it is null, `system`."""
    reply_prefix: str = ""
    """Text that every sampled answer begins with; it counts to the prompt, and the reward does not see it."""
    trained_turns: Literal["all", "last"] = "all"
    """Which of the assistant's turns in `response` are trained, where that is a conversation."""
    limit_tasks: int | None = Field(None, gt=0)
    """Use only the first so many rows."""


class TaskQueue(Section):
    """What is trained on stands in a table that others fill while the run goes on: first in, first out, each
    task once. Rows have the order of the primary key, so new ones must come behind those that are there."""

    timeout_seconds: float = Field(1800.0, ge=0)
    """Longest wait for a step's tasks; after it the run stops and says so."""


class EvalTaskset(Taskset):
    """A taskset that is measured, not trained on."""

    name: str = Field("eval", pattern=r"^[^/\\.][^/\\]*$")
    """Its name in metrics and files; unique in the run."""
    rollouts_per_task: int = Field(1, gt=0)
    """Answers sampled to each task; more than one also gives pass@k."""
    sampling: Sampling = Sampling(temperature=0.0)
    """How answers are drawn; greedy unless said otherwise."""
    workflow: WorkflowOrName | None = None
    """How its tasks become rollouts; as `rollout.workflow` says when left out."""
    reward: RewardOrShort | None = None
    """How its answers are scored; as the run's `reward` says when left out."""

    @property
    def is_sampled(self) -> bool:
        """Whether answers are sampled to measure it; else the loss of the given ones is."""
        return self.response is None and self.chosen is None


class Auxiliary(Taskset):
    """Given answers, in the column `response`, that are learned before rollouts or beside them."""

    name: str = Field("answers", pattern=r"^[^/\\.][^/\\]*$")
    """What they are called elsewhere in the run file; unique in the run."""


class Data(Section):
    """Where tasks come from, and how their prompts are encoded."""

    train: Taskset
    """What is trained on."""
    eval: tuple[EvalTaskset, ...] = ()
    """What is measured, each under its name."""
    auxiliary: tuple[Auxiliary, ...] = ()
    """Given answers for algorithm mix, whose `expert` names them, and for `trainer.sample` warmup."""
    queue: TaskQueue | None = None
    """Take the tasks of `train`, a database's table, as they come; null where they are all there."""
    max_prompt_tokens: int = Field(1024, gt=0)
    """Longest prompt, chat template included."""
    max_response_tokens: int = Field(1024, gt=0)
    """Longest answer; sampling stops there and the rollout counts as truncated."""
    overlong: Literal["error", "filter", "left", "right", "middle"] = "error"
    """A longer prompt stops the run, is left out, or is cut: `left` drops its beginning, `right` its end,
    `middle` its middle."""
    overlong_workers: int = Field(1, gt=0)
    """Processes that encode prompts when tasks are loaded."""
    chat_template: str = "tokenizer"
    """`tokenizer` for its own, `none` to encode plain text as it is, a file with a Jinja template, or the
    template itself, which has `{{` or `{%` in it."""
    shuffle: bool = True
    """A new order each epoch, from `seed`."""
    incomplete_batch: Literal["drop", "keep"] = "drop"
    """The tasks left at an epoch's end that fill no step: left out, or trained on as a smaller step."""

    def answers_of(self, name: str | None) -> Auxiliary:
        """The set of given answers that is named, or the only one there is."""
        return next(answers for answers in self.auxiliary if name in (None, answers.name))


def is_template(text: str) -> bool:
    """Whether `chat_template` is the template itself."""
    return "{{" in text or "{%" in text
