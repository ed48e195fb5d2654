"""`data`: tasksets, their order and solved examples, and the encoding of their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from strop.config.schema.base import FileName, Section, TypeShorthand
from strop.config.schema.reward import RewardConfigOrShorthand
from strop.config.schema.rollout import SamplingConfig, WorkflowConfigOrName
from strop.config.schema.task_pipeline import TaskPipelineConfig
from strop.config.units import MAX_SECONDS


class FewShotConfig(Section):
    """Solved examples in front of each prompt of a taskset, the same ones for each task. An example whose prompt is the
    task's own is left out, and the next one is used."""

    path: str
    """Dataset of the examples, as a taskset's `path`; its first rows are used."""
    split: str | None = None
    """Split of a dataset with several splits."""
    subset: str | None = None
    """Subset of a dataset with several subsets."""
    prompt: str = "prompt"
    """Column of an example's prompt, as in a taskset."""
    answer: str = "answer"
    """Column of an example's answer: the text of a complete response."""
    count: int = Field(default=4, gt=0)
    """Number of examples."""
    text: str | None = None
    """Text of one example with `{prompt}` and `{answer}`, such as "Q: {prompt}\\nA: {answer}\\n\\n"; the texts of all
    examples precede the first user message's own. Null to write each example as a user's and an assistant's message."""

    def faults(self) -> Iterator[str]:
        """A text without the example's prompt or answer."""
        for name in ("{prompt}", "{answer}"):
            if self.text is not None and name not in self.text:
                yield f"text has no {name}; write both, such as 'Q: {{prompt}}\\nA: {{answer}}\\n\\n'"


class ColumnOrderConfig(Section):
    """Tasks in the order of a column, such as a difficulty: the same curriculum in each epoch."""

    type: Literal["column"] = "column"
    column: str
    """Column with a number, or with text, which is sorted by `values` or else alphabetically."""
    descending: bool = False
    """Whether the largest value comes first."""
    values: tuple[str, ...] = ()
    """Every value of a column of text, in the order of the tasks, such as `[easy, medium, hard]`."""

    def faults(self) -> Iterator[str]:
        """Values that do not determine an order."""
        if len({*self.values}) < len(self.values):
            yield "values names a value twice"


class CurriculumOrderConfig(Section):
    """Online curriculum: tasks whose success rate is in a target band are drawn more often. The rates are measured on
    the run's own rollouts; a task without a rate is drawn by exploration."""

    type: Literal["curriculum"] = "curriculum"
    target: tuple[float, float] = (0.2, 0.8)
    """Lowest and highest success rate of the tasks that have full priority."""
    falloff: float = Field(default=0.2, ge=0, le=1)
    """Distance from the band at which the priority has fallen linearly from 1 to 0; at 0, only tasks in the band
    have priority."""
    decay: float = Field(default=0.5, ge=0, lt=1)
    """Weight of a task's earlier rate when it is drawn again: rate = decay * rate + (1 - decay) * new rate. At 0,
    only the last group counts."""
    exploration: float = Field(default=0.25, gt=0, le=1)
    """Fraction of each step's tasks, rounded up, that are drawn from all tasks in the epoch's order, whatever their
    rate. The others are drawn by priority; where too few tasks have one, exploration takes their place."""
    success_reward: float = 1.0
    """Lowest reward of a rollout that counts as a success."""

    def faults(self) -> Iterator[str]:
        """A band that is not one."""
        low, high = self.target
        if not 0 <= low <= high <= 1:
            yield f"target is [{low:g}, {high:g}]; write two success rates from 0 to 1, the lower one first"


class DifficultyOrderConfig(Section):
    """Estimates of the pass rates of all tasks, of which those near a target are drawn (BOTS, arXiv 2510.26374). The
    results of a step also change the estimates of the tasks that were not in it, by interpolation between the pass
    rates of two reference models."""

    type: Literal["difficulty"] = "difficulty"
    columns: tuple[str, str]
    """Columns with the pass rates, from 0 to 1, of a weaker and of a stronger reference model."""
    target: float = Field(default=0.5, ge=0, le=1)
    """Pass rate of the tasks that are drawn first."""
    temperature: float = Field(default=0.0, ge=0)
    """Temperature of the draws, whose probabilities are proportional to exp(-distance from the target / temperature);
    at 0, the tasks nearest to the target are taken."""
    thompson_sampling: bool = True
    """Whether the distance from the target is that of a sample of each task's Beta distribution; false for its mean."""
    forgetting: float = Field(default=0.1, ge=0, le=1)
    """Fraction of the earlier counts of all tasks that is forgotten in each step."""
    interpolation_weight: float = Field(default=0.1, ge=0, le=1)
    """Weight of the interpolated pass rates, with which the tasks outside of a step are counted."""
    halve_weight: bool = False
    """Whether the weight is halved after each step whose interpolated pass rates are wrong by 0.25 or more on
    average."""
    counts_per_group: float = Field(default=16.0, gt=0)
    """Successes and failures, together, that one pass rate counts as."""
    success_reward: float | None = None
    """Lowest reward of a rollout that counts as a success; null for the group's mean reward, limited to 0 to 1, as its
    pass rate."""

    def faults(self) -> Iterator[str]:
        """Columns between which nothing can be interpolated."""
        if self.columns[0] == self.columns[1]:
            yield "columns names a column twice; write those of two reference models"


TaskOrderConfig = Annotated[
    Annotated[ColumnOrderConfig | CurriculumOrderConfig | DifficultyOrderConfig, Field(discriminator="type")],
    TypeShorthand(),
]


class CustomDatasetConfig(Section):
    """Dataset class of the user, as in verl's `data.custom_cls`: a torch Dataset over the files of `path`."""

    name: str
    """Dotted path of the class, or `file.py:Name`."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Mapping that the class gets as `config`."""


GENERATORS = ("reasoning_gym", "verifiers")
"""Packages that generate tasks: schemes of a taskset's `path`."""


class GeneratorConfig(Section):
    """Settings of a `path` that names a generator of tasks: `reasoning_gym://` or `verifiers://`."""

    size: int | None = Field(default=None, gt=0)
    """Number of tasks; null for the generator's own number."""
    seed: int = 0
    """Seed of the tasks."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the dataset (reasoning_gym), or of `load_environment` (verifiers)."""


ALPACA_PROMPTS = ("instruction", "query")
"""Prompt columns of the rows of Alpaca and ms-swift, whose prompts have `input`, `history` and `system` too."""
_UNREAD_NEXT_TO_TEXT = (
    *("prompt", "images", "tools", "system", "system_column", "template_columns", "template_args_column"),
    *("trained_turns", "train_on_prompt", "dataset", "workflow", "reward", "sampling", "rollouts_per_task"),
)


class TasksetConfig(Section):
    """Source of tasks, and the columns of its rows. A column may be a dotted path."""

    path: str | tuple[str, ...]
    """Parquet, JSONL, CSV or TSV: a file, a list of files, a directory, a `datasets` folder, a Hub name, a URL; a
    database, `sqlite:///tasks.db` or `postgresql://user:password@host/database`; or a generator of tasks,
    `reasoning_gym://dataset` or `verifiers://environment`."""
    generator: GeneratorConfig | None = None
    """Settings of a generator of tasks; null for its defaults, and for data that exists already."""
    table: str | None = None
    """Table of the database; its columns are the columns of the rows."""
    dataset: CustomDatasetConfig | None = None
    """Custom dataset class that reads the files; null for Strop's own readers."""
    split: str | None = None
    """Split of a dataset with several splits; an error for a dataset without splits."""
    subset: str | None = None
    """Subset of a dataset with several subsets: on the Hub a config, in a directory a subdirectory."""
    prompt: str = "prompt"
    """Column of the prompt: a list of messages, or plain text, which becomes one user message."""
    answer: str | None = "answer"
    """Column of the reference answer for the reward; null if there is none."""
    source: str | None = None
    """Column of the row's source, by which `by_source` chooses a reward."""
    images: str | None = None
    """Column of the prompt's images: one or a list, each encoded bytes, a path (relative to the data file), a
    mapping with `bytes` or `path`, or an image of `datasets`; null if rows have none, or have them in the
    messages' contents. See `data.images`."""
    tools: str | None = None
    """Column of the tools that the model may call: a list of JSON schemas, or its JSON text."""
    response: str | None = None
    """Column of the demonstration, for sft and for the expert of mix, or of a response with a `label`: text or messages
    that continue the prompt, or a complete conversation (then no prompt is read), of which all assistant turns are
    trained."""
    label: str | None = None
    """Column of the response's label, for kto and bco: true or 1 for desirable, false or 0 for undesirable. Of `steps`
    it is a list with a label for each: true for a correct step."""
    steps: str | None = None
    """Column of the steps of a response, a list of texts, for reward_model with `loss: cross_entropy`."""
    step_separator: str = "\n"
    """Text between two steps of a response."""
    text: str | None = None
    """Column of plain text, for sft (continued pretraining): encoded without a chat template; all tokens after the
    first are trained on. It takes the place of `prompt` and `response`."""
    chosen: str | None = None
    """Column of the preferred response, for dpo, cpo and orpo: text or messages that continue the prompt, or a complete
    conversation, whose prompt is the part that it shares with the rejected one. Under kto and bco it is a desirable
    row, and the rejected response an undesirable one."""
    rejected: str | None = None
    """Column of the rejected response, in the same form as `chosen`."""
    margin: str | None = None
    """Column of the margin by which the chosen response is better, a number, for reward_model; null for no margin."""
    score: str | None = None
    """Column of the score of `response`, a number, for reward_model with `loss: squared_error`."""
    equal_pairs: Literal["error", "filter"] = "error"
    """Treatment of a pair whose responses are equal, as they are or after truncation, and so have no gradient, and of
    equal responses to one prompt with both labels: `error` stops the run, `filter` drops and counts such rows."""
    system: str | None = None
    """Text of a system message for prompts that have none; null for no system message."""
    system_column: str | None = None
    """Column of a row's own system message; `system` applies to rows in which it is null."""
    reply_prefix: str = ""
    """Text that starts every sampled response; it counts as a part of the prompt, and is hidden from
    rewards."""
    template_columns: dict[str, str] = Field(default_factory=dict)
    """Columns of a row's own variables of the chat template, by variable, such as `enable_thinking: thinking`;
    `data.chat_template_args` applies to rows in which they are null. For demonstrations and preferences."""
    template_args_column: str | None = None
    """Column of all of a row's own variables of the chat template: a mapping, or its JSON text; `template_columns` take
    precedence. For demonstrations and preferences."""
    optional_columns: tuple[str, ...] = ()
    """Columns among `images`, `tools`, `template_columns` and `template_args_column` that rows may lack, as if they
    were null."""
    final_assistant: Literal["error", "continue", "drop"] = "error"
    """Treatment of a prompt whose last message is the assistant's: `error` refuses the row, `continue` samples the
    rest of that message, `drop` removes it, as an answer that was left in. A message with `prefix: true` is always
    continued."""
    trained_turns: Literal["all", "last"] = "all"
    """Assistant turns that are trained, if `response` is a conversation: all, or only the last one."""
    train_on_prompt: bool = False
    """Whether all tokens of a row with a `response` are trained after the first: the prompt, and messages of all roles,
    as TRL trains conversations without `assistant_only_loss`."""
    few_shot: FewShotConfig | None = None
    """Solved examples in front of each prompt; null for none."""
    limit_tasks: int | None = Field(default=None, gt=0)
    """Maximum number of rows, from the first one on; null for all rows."""

    @property
    def is_offline(self) -> bool:
        """Whether the rows have responses or texts to train on; otherwise they are prompts for sampling."""
        return any(each is not None for each in (self.response, self.chosen, self.text, self.steps))

    @property
    def text_columns(self) -> frozenset[str]:
        """Columns of which Strop reads the text; in CSV they are text, whatever their values look like."""
        named = (
            self.prompt,
            self.response,
            self.text,
            self.chosen,
            self.rejected,
            self.system_column,
            self.source,
        )
        others = ("input", "system") if self.prompt in ALPACA_PROMPTS else ()
        return frozenset(column for column in (*named, *others) if column is not None)

    def faults(self) -> Iterator[str]:
        """Columns that have no meaning for this taskset."""
        if self.text is not None and (key := next(filter(self._is_changed, _UNREAD_NEXT_TO_TEXT), None)):
            yield f"{key} has no effect next to text, which is all that is read of a row; remove one of them"
        for key in ("template_columns", "template_args_column"):
            if getattr(self, key) and self.response is None and self.chosen is None and self.steps is None:
                yield (
                    f"{key} applies to demonstrations and preferences; write response or chosen, or "
                    "data.chat_template_args for prompts"
                )
        if self.final_assistant != "error" and self.is_offline:
            yield "final_assistant applies to prompts whose responses are sampled; remove it, or response and chosen"
        if self.equal_pairs != "error" and self.chosen is None and self.label is None:
            yield "equal_pairs applies to preferences; remove it, or write chosen and rejected, or label"
        if self.step_separator != "\n" and self.steps is None:
            yield "step_separator has no effect without a column of `steps`; remove it"
        if self.train_on_prompt and self.trained_turns == "last":
            yield "train_on_prompt trains all tokens, and trained_turns: last only the last turn; remove one of them"
        if self.few_shot is not None and self.is_offline:
            yield "few_shot applies to prompts whose responses are sampled; remove it, or response, chosen and text"
        named = {self.images, self.tools, self.template_args_column, *self.template_columns.values()}
        if unknown := sorted({*self.optional_columns} - named):
            yield (
                f"optional_columns names {unknown[0]!r}, which is not the column of images, tools, template_columns or "
                "template_args_column"
            )

    def _is_changed(self, key: str) -> bool:
        field = type(self).model_fields.get(key)
        return field is not None and getattr(self, key) != field.get_default(call_default_factory=True)


class TrainTasksetConfig(TasksetConfig):
    """Taskset for training, alone or in a mixture."""

    weight: float | None = Field(default=None, gt=0)
    """Number of tasks that are drawn from this taskset, relative to the weights of the others of a mixture; null, for
    all of them, to draw each task of all tasksets once per epoch."""


def expand_train_list(data: Any) -> Any:
    """Expand the shorthand `train: [a, b, c]` to `train: a` and `mixture: [b, c]`."""
    train = data.get("train") if isinstance(data, dict) else None
    if not isinstance(train, list | tuple) or not train or data.get("mixture"):
        return data
    return {**data, "train": train[0], "mixture": list(train[1:])}


def _as_trained(value: Any) -> Any:
    """A taskset that Python code built, as one for training without a weight."""
    if isinstance(value, TasksetConfig) and not isinstance(value, TrainTasksetConfig):
        return TrainTasksetConfig.model_validate(value.model_dump(exclude_unset=True))
    return value


TrainTasksetOrList = Annotated[
    TrainTasksetConfig,
    BeforeValidator(_as_trained, json_schema_input_type=TrainTasksetConfig | tuple[TrainTasksetConfig, ...]),
]
"""A `TrainTasksetConfig`, or in the run file a list of them: `train: [a, b]` is `train: a`, `mixture: [b]`."""


class TaskQueueConfig(Section):
    """Reading of training tasks from a database table that other programs fill during the run: first in,
    first out, each task once. Rows are read in the order of the primary key, so new rows need larger keys."""

    timeout_seconds: float = Field(default=1800.0, ge=0, le=MAX_SECONDS)
    """Maximum wait for the tasks of one step; after it the run stops with an error."""


class StreamConfig(Section):
    """Reading of training tasks from the beginning of `train` as they are needed, for sources of unknown length: names
    on the hub, URLs and large files. Nothing is read before the start, and an epoch ends where the source does."""

    shuffle_rows: int = Field(default=1000, gt=0)
    """Number of consecutive rows that are shuffled among themselves under `data.shuffle`, and kept in memory."""


class EvalTasksetConfig(TasksetConfig):
    """Taskset for evaluation, which is never trained on."""

    name: FileName = "eval"
    """Name of the taskset in metrics and files; unique in the run."""
    rollouts_per_task: int = Field(default=1, gt=0)
    """Responses sampled per task; more than one also gives pass@k."""
    sampling: SamplingConfig = SamplingConfig(temperature=0.0)
    """Sampling of the responses; greedy by default."""
    workflow: WorkflowConfigOrName | None = None
    """Workflow of the taskset; `rollout.workflow` if omitted."""
    reward: RewardConfigOrShorthand | None = None
    """Reward of the taskset; the run's `reward` if omitted."""

    @property
    def is_sampled(self) -> bool:
        """Whether the evaluation samples responses; otherwise it computes the loss on given responses."""
        return not self.is_offline


class DemonstrationsConfig(TasksetConfig):
    """Set of demonstrations (column `response`), which are trained on before rollouts or together with
    them."""

    name: str = Field(default="answers", pattern=r"^[^/\\.][^/\\]*$")
    """Name of the set in the rest of the run file; unique in the run."""


class ImagesConfig(Section):
    """Images in prompts: their places in the messages, and limits on their number and size."""

    marker: str | None = "<image>"
    """Text in a message that stands for the next image of its row; null if it is ordinary text."""
    unmarked: Literal["error", "start", "end"] = "error"
    """Place of the images of a row without a marker: `start` or `end` of its first user message; `error` stops
    the run."""
    max_images: int | None = Field(default=None, gt=0)
    """Maximum number of images in a prompt; a row with more stops the run. Null for no limit."""
    min_pixels: int | None = Field(default=None, gt=0)
    """Number of pixels to which a smaller image is enlarged; null for the model's own."""
    max_pixels: int | None = Field(default=None, gt=0)
    """Number of pixels to which a larger image is reduced; null for the model's own."""
    allow_urls: bool = False
    """Whether images may be read from URLs in rows and messages."""

    def faults(self) -> Iterator[str]:
        """Limits that contradict each other, and a marker without text."""
        if self.marker == "":
            yield "marker is empty; write the text of the marker, or null for none"
        if self.min_pixels and self.max_pixels and self.min_pixels > self.max_pixels:
            yield f"min_pixels ({self.min_pixels}) is more than max_pixels ({self.max_pixels})"


class RowPackingConfig(Section):
    """Sequences of several rows, for sft: each counts as one task, in `trainer.tasks_per_step` and in an epoch, and has
    at most `max_prompt_tokens` + `max_response_tokens` tokens. The rows of a sequence are the same in every epoch."""

    strategy: Literal["bfd", "bfd_split", "wrapped"] = "bfd"
    """Choice of the rows of a sequence: `bfd` (best fit decreasing) puts each row, longest first, where it leaves the
    least room, and rows do not attend to each other; `bfd_split` first cuts rows that are too long into pieces;
    `wrapped` cuts the rows, one after another, into sequences of equal length, whose tokens attend to earlier rows."""
    shuffle: bool = False
    """Shuffle the rows by the run's `seed` before they are packed."""


class DataConfig(Section):
    """Tasksets, and the encoding of their prompts."""

    train: TrainTasksetOrList
    """Taskset for training; or a list of several, of which the first one remains here and the others are `mixture`."""
    mixture: tuple[TrainTasksetConfig, ...] = ()
    """Further tasksets for training, which are mixed with `train`."""
    pipeline: TaskPipelineConfig | None = None
    """Operators that prepare the rows of `train` before the run; null for the rows as they are."""
    eval: tuple[EvalTasksetConfig, ...] = ()
    """Tasksets for evaluation."""
    demonstrations: tuple[DemonstrationsConfig, ...] = ()
    """Sets of demonstrations: for algorithm mix, whose `expert` names one of them, and for
    `trainer.batch_selection` warmup, whose `demonstrations` names one."""
    queue: TaskQueueConfig | None = None
    """Reading of `train`, a database table, as a queue of arriving tasks; null if all tasks exist at the
    start."""
    stream: StreamConfig | None = None
    """Streaming of `train`; null to read its number of rows, and check all of them, at the start."""
    images: ImagesConfig = ImagesConfig()
    """Images in prompts."""
    max_prompt_tokens: int = Field(default=1024, gt=0)
    """Maximum length of a prompt including the chat template and the tokens of its images, in tokens."""
    max_response_tokens: int = Field(default=1024, gt=0)
    """Maximum length of a response, in tokens; at this length sampling stops and the rollout is truncated."""
    overlong: Literal["error", "filter", "left", "right", "middle"] = "error"
    """Treatment of a prompt above `max_prompt_tokens`: `error` stops the run, `filter` drops the task, `left`
    removes its beginning, `right` its end, `middle` its middle."""
    tokenize_workers: int = Field(default=1, gt=0)
    """Number of processes that encode prompts while tasks are loaded."""
    chat_template: str = "tokenizer"
    """Chat template: `tokenizer` for the tokenizer's own, `none` to encode plain text without a template, a
    file with a Jinja template, or the template itself, which contains `{{` or `{%`."""
    chat_template_args: dict[str, Any] = Field(default_factory=dict)
    """Variables of the chat template, such as `enable_thinking: false`; none by default."""
    text_prompts: Literal["template", "raw"] = "template"
    """Encoding of a prompt that is plain text: `template` makes it one user message, `raw` encodes it and its answers
    as they are, and the chat template renders only prompts that are messages (TRL's standard and conversational
    formats)."""
    shuffle: bool = True
    """Shuffle the tasks in each epoch, by the run's `seed`; under `order`, the tasks that it ranks equally."""
    order: TaskOrderConfig | None = None
    """Order of the training tasks by a column, or an online curriculum; null for that of `shuffle`."""
    packing: RowPackingConfig | None = None
    """Sequences of several rows as the tasks of sft, in training and evaluation; null for one task per row. Memory is
    never padded in either case."""
    incomplete_batch: Literal["drop", "keep"] = "drop"
    """Treatment of the tasks at an epoch's end that do not fill a step: `drop` skips them, `keep` trains on
    them in a smaller step."""

    def faults(self) -> Iterator[str]:
        """A pipeline over rows that it cannot read."""
        if self.pipeline is not None and self.train.dataset is not None:
            yield "pipeline reads files, a Hub name or a database; it cannot read train.dataset, a class of the user"
        for name in ("continue_final_message", "add_generation_prompt"):
            if name in self.chat_template_args:
                yield (
                    f"chat_template_args.{name} is no variable of the template, but decides how a conversation ends; "
                    "remove it, and write final_assistant: continue in the taskset to continue a last message"
                )
        yield from self._mixture_faults()

    @model_validator(mode="before")
    @classmethod
    def _expand_list(cls, data: Any) -> Any:
        return expand_train_list(data)

    def _mixture_faults(self) -> Iterator[str]:
        """Settings that a mixture does not have, and weights of some tasksets only."""
        weights = [section.weight for section in (self.train, *self.mixture)]
        if not self.mixture:
            if weights[0] is not None:
                yield "train.weight has no effect without a mixture of several tasksets; remove it"
            return
        for name in ("pipeline", "queue", "stream", "order"):
            if getattr(self, name) is not None:
                yield f"{name} applies to a single taskset; remove it, or train on one taskset without mixture"
        if None in weights and any(weight is not None for weight in weights):
            yield "weight is missing in some tasksets of the mixture; write a weight in each of them, or in none"
        elif None not in weights and self.incomplete_batch == "keep":
            yield "incomplete_batch: a mixture with weights has no last, incomplete batch; remove it"

    @property
    def is_prepared(self) -> bool:
        """Whether `pipeline` prepares all rows before the run, and not each one when it is read."""
        return self.pipeline is not None and self.queue is None and self.stream is None

    def training_tasksets(self) -> dict[str, TrainTasksetConfig]:
        """`train` and the tasksets of the mixture, each by its key in the run file."""
        others = {f"data.mixture.{number}": section for number, section in enumerate(self.mixture)}
        return {"data.train": self.train, **others}

    def demonstrations_named(self, name: str | None) -> DemonstrationsConfig:
        """The set of demonstrations of this name; the first one for None."""
        return next(answers for answers in self.demonstrations if name in (None, answers.name))


def is_template(text: str) -> bool:
    """Whether a `chat_template` value is the template itself."""
    return "{{" in text or "{%" in text
