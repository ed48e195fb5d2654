"""`data.pipeline`: operators that remove, change, add and order training tasks before the run, and the language models
that operators ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.units import MAX_SECONDS


class DataJuicerSection(Section):
    """Operators of Data-Juicer and the service that runs them."""

    url: str | None = Field(default=None, pattern=r"^https?://")
    """Address of a service that runs, whose token is in STROP_DATA_JUICER_TOKEN; null to start one."""
    python: str | None = None
    """Interpreter of an environment with py-data-juicer, by which Strop starts the service on this machine; null for
    the environment variable STROP_DATA_JUICER_PYTHON."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port on 127.0.0.1 of the service that Strop starts; 0 for a free one."""
    config: str | None = None
    """Data-Juicer recipe, a YAML file on the machine of the service."""
    operators: tuple[dict[str, Any], ...] | None = None
    """Operators, each a mapping from its name to its arguments."""
    processes: int = Field(default=1, gt=0)
    """Number of processes of each operator."""
    timeout_seconds: float = Field(default=600.0, gt=0, le=MAX_SECONDS)
    """Maximum time without an answer to a request."""
    wait_seconds: float = Field(default=600.0, ge=0, le=MAX_SECONDS)
    """Maximum time that a service at `url` may be away during a run; it is asked again every second."""
    max_restarts: int = Field(default=3, ge=0)
    """Maximum restarts of a service that Strop has started."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if (self.config is None) == (not self.operators):
            yield "data_juicer needs either config or operators; write one of them"
        if self.url is not None and (self.python is not None or self.port):
            yield "data_juicer has url, so Strop starts no service; remove python and port, or url"


class ReplyConfig(Section):
    """Replies of a language model, whichever runs it."""

    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the replies; 0 is greedy."""
    max_tokens: int = Field(default=1024, gt=0)
    """Maximum length of a reply, in tokens."""


class EndpointModelConfig(ReplyConfig):
    """Language model behind an OpenAI-compatible endpoint."""

    type: Literal["endpoint"] = "endpoint"
    url: str | None = Field(default=None, pattern=r"^https?://")
    """Base URL of the endpoint's API, such as `http://localhost:8000/v1`; null for the environment variable
    OPENAI_BASE_URL."""
    model: str = Field(min_length=1)
    """Name of the model at the endpoint."""
    api_key_env: str | None = "OPENAI_API_KEY"
    """Environment variable with the endpoint's API key; no key is sent if it is null or the variable is not set."""
    concurrency: int = Field(default=8, gt=0)
    """Maximum number of concurrent requests."""
    timeout_seconds: float = Field(default=120.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of one request; after it the request is repeated."""
    retries: int = Field(default=8, ge=0)
    """Maximum number of repetitions of a request; after the last one the command stops, and a later one continues."""
    backoff_seconds: float = Field(default=1.0, gt=0, le=MAX_SECONDS)
    """Wait before the first repetition; it doubles with each further one."""


class EngineModelConfig(ReplyConfig):
    """Language model that the inference engine of `rollout.engine` runs, for this pipeline only."""

    type: Literal["engine"] = "engine"
    path: str | None = None
    """Folder or Hub name of the model; null for the run's own initial model."""


LanguageModelConfig = Annotated[
    Annotated[EndpointModelConfig | EngineModelConfig, Field(discriminator="type")],
    type_shorthand("endpoint"),
]


class InvalidRepliesConfig(Section):
    """Treatment of rows for which the language model gives no usable reply."""

    attempts: int = Field(default=3, gt=0)
    """Maximum number of requests for a row; further ones sample at temperature 1 with another seed."""
    treatment: Literal["keep", "drop", "error"] = "keep"
    """Rows without a usable reply: `keep` keeps them without a value, `drop` removes them, and both count them;
    `error` stops at the first one."""
    max_fraction: float = Field(default=0.1, ge=0, le=1)
    """Maximum fraction of rows without a usable reply; above it the pipeline stops."""

    def faults(self) -> Iterator[str]:
        """A fraction that `error` never reaches."""
        if self.treatment == "error" and "max_fraction" in self.model_fields_set and self.max_fraction > 0:
            yield "treatment error stops at the first row, so max_fraction has no effect; remove it"


class BoundsConfig(Section):
    """Bounds of a value, both inclusive."""

    min: float | None = None
    """Minimum value of the rows that are kept; null for no minimum."""
    max: float | None = None
    """Maximum value of the rows that are kept; null for no maximum."""

    def faults(self) -> Iterator[str]:
        """Bounds that no value satisfies."""
        if self.min is not None and self.max is not None and self.min > self.max:
            yield f"min ({self.min:g}) is more than max ({self.max:g}), so no row would be kept"


class LengthFilterConfig(BoundsConfig):
    """Removal of rows with a short or long text."""

    type: Literal["length"] = "length"
    column: str
    """Column of the text, or of a list of messages, whose contents are joined."""
    unit: Literal["characters", "words", "tokens"] = "words"
    """Unit of `min` and `max`; `tokens` are those of the run's tokenizer, without a chat template."""
    output: str | None = None
    """Column that gets the length; null for none."""


class LanguageFilterConfig(Section):
    """Removal of rows in other languages, identified by py3langid. Needs the extra `pipelines`."""

    type: Literal["language"] = "language"
    column: str
    """Column of the text, or of a list of messages."""
    languages: tuple[str, ...] = Field(default=("en",), min_length=1)
    """ISO 639-1 codes of the languages that are kept."""
    min_score: float = Field(default=0.0, ge=0, le=1)
    """Minimum probability of the identified language."""
    output: str | None = None
    """Column that gets the code of the language; null for none."""


class DeduplicateConfig(Section):
    """Removal of rows whose text another row before has already."""

    type: Literal["deduplicate"] = "deduplicate"
    columns: tuple[str, ...] = Field(min_length=1)
    """Columns that are compared together: texts, lists of messages, or other values."""
    method: Literal["exact", "minhash"] = "exact"
    """Comparison: `exact` for equal texts, `minhash` for similar ones by MinHash and locality-sensitive hashing
    (datasketch; needs the extra `pipelines`)."""
    normalize: bool = True
    """Whether letter case and white space are ignored."""
    similarity: float = Field(default=0.7, gt=0, lt=1)
    """Jaccard similarity of the sets of n-grams from which `minhash` takes two rows for duplicates."""
    ngram_words: int = Field(default=5, gt=0)
    """Number of words in an n-gram of `minhash`."""
    permutations: int = Field(default=128, gt=0)
    """Number of hash functions of `minhash`; more are more exact and slower."""

    def faults(self) -> Iterator[str]:
        """Settings of the other method."""
        written = {"similarity", "ngram_words", "permutations"} & self.model_fields_set
        if self.method == "exact" and written:
            yield f"{sorted(written)[0]} applies to method minhash; write method: minhash, or remove it"


class RangeFilterConfig(BoundsConfig):
    """Removal of rows by the value of a column, such as a score of an operator before."""

    type: Literal["range"] = "range"
    column: str
    """Column of numbers or, with `values`, of anything."""
    values: tuple[str | int | float | bool, ...] | None = None
    """Values of the rows that are kept; null if `min` or `max` decide."""
    missing: Literal["keep", "drop", "error"] = "error"
    """Rows without a value: `keep`, `drop`, or `error`, which stops at the first one."""

    def faults(self) -> Iterator[str]:
        """A filter without a condition, or with two."""
        yield from super().faults()
        bounded = self.min is not None or self.max is not None
        if bounded == (self.values is not None):
            yield "range needs one condition; write min, max or both, or values"


class LlmScoreConfig(Section):
    """Score of each row by a language model, and removal of rows with a low or high one."""

    type: Literal["llm_score"] = "llm_score"
    criterion: Literal["quality", "difficulty"] = "quality"
    """Criterion of Strop's own question to the model; without effect on a `prompt` of your own."""
    model: LanguageModelConfig
    """Language model that is asked."""
    input_columns: tuple[str, ...] = Field(min_length=1)
    """Columns that the model sees."""
    field_names: tuple[str, ...] = ()
    """Names of these columns in the question; empty for the names of the columns."""
    prompt: str | None = None
    """Jinja text or a `.jinja` file of the question, with `fields` (pairs of name and text) and the row's columns;
    null for Strop's own."""
    pattern: str = r'"?[Ss]core"?\s*[:=][\s*"]*(-?\d+(?:\.\d+)?)'
    """Regular expression with one group; the last match in the reply is the score."""
    scale: tuple[float, float] = (1.0, 5.0)
    """Scores of the model that become 0 and 1."""
    min_score: float = Field(default=0.5, ge=0, le=1)
    """Minimum score, from 0 to 1, of the rows that are kept."""
    max_score: float = Field(default=1.0, ge=0, le=1)
    """Maximum score, from 0 to 1, of the rows that are kept."""
    output: str | None = None
    """Column that gets the score; null for `llm_quality_score` or `llm_difficulty_score`."""
    invalid: InvalidRepliesConfig = InvalidRepliesConfig()
    """Treatment of rows for which the model gives no score."""

    @property
    def score_column(self) -> str:
        """The column that gets the score."""
        return self.output or f"llm_{self.criterion}_score"

    def faults(self) -> Iterator[str]:
        """Bounds and names that contradict each other."""
        if self.min_score > self.max_score:
            yield f"min_score ({self.min_score:g}) is more than max_score ({self.max_score:g})"
        if self.scale[0] == self.scale[1]:
            yield f"scale has {self.scale[0]:g} twice; write two different scores"
        if self.field_names and len(self.field_names) != len(self.input_columns):
            yield (
                f"field_names has {len(self.field_names)} names for {len(self.input_columns)} input_columns; write one "
                "for each, or none"
            )


class PassRateConfig(Section):
    """Fraction of correct answers of a model to each task, sampled by the rollout engine with the run's workflow and
    reward, and removal of tasks that are too easy, too hard, or always give the same reward."""

    type: Literal["pass_rate"] = "pass_rate"
    model: str | None = None
    """Folder or Hub name of the model; null for the run's own initial model."""
    rollouts_per_task: int = Field(default=8, gt=0)
    """Number of answers sampled per task."""
    temperature: float = Field(default=1.0, ge=0)
    """Sampling temperature."""
    pass_reward: float = 1.0
    """Minimum reward of a correct answer."""
    min: float = Field(default=0.0, ge=0, le=1)
    """Minimum pass rate of the tasks that are kept."""
    max: float = Field(default=1.0, ge=0, le=1)
    """Maximum pass rate of the tasks that are kept."""
    min_reward_std: float = Field(default=0.0, ge=0)
    """Minimum population standard deviation of a task's rewards; 0 keeps tasks whose answers all have the same."""
    max_failed_fraction: float = Field(default=0.1, ge=0, le=1)
    """Maximum fraction of failed rollouts; above it the pipeline stops. A task without a scored answer is kept, without
    values, and counted."""

    def faults(self) -> Iterator[str]:
        """Bounds that no task satisfies."""
        if self.min > self.max:
            yield f"min ({self.min:g}) is more than max ({self.max:g}), so no task would be kept"
        if self.min_reward_std > 0 and self.rollouts_per_task == 1:
            yield "min_reward_std needs two rollouts_per_task or more: one reward has no deviation"


class TemplateConfig(Section):
    """Columns written from templates."""

    type: Literal["template"] = "template"
    columns: dict[str, str] = Field(min_length=1)
    """Jinja text, or a `.jinja` file, by the column that it writes, with the row's columns as variables."""


class LlmMapConfig(Section):
    """Column written by a language model."""

    type: Literal["llm_map"] = "llm_map"
    model: LanguageModelConfig
    """Language model that is asked."""
    prompt: str = Field(min_length=1)
    """Jinja text or a `.jinja` file of the question, with the row's columns."""
    output: str = Field(min_length=1)
    """Column that gets the reply."""
    pattern: str | None = None
    """Regular expression with one group, whose last match in the reply is the value; null for the complete reply."""
    invalid: InvalidRepliesConfig = InvalidRepliesConfig()
    """Treatment of rows for which the model gives no usable reply."""


class SynthesizeConfig(Section):
    """Variants of each row, written by a language model; they follow the row that they come from."""

    type: Literal["synthesize"] = "synthesize"
    model: LanguageModelConfig
    """Language model that is asked."""
    prompt: str = Field(min_length=1)
    """Jinja text or a `.jinja` file of the question, with the row's columns, and `variant`, which counts from 1."""
    columns: tuple[str, ...] = Field(min_length=1)
    """Columns of a variant that the reply gives: the complete reply for one column, a JSON object with these keys for
    several. The other columns are those of the row."""
    variants: int = Field(default=1, gt=0)
    """Number of variants of each row."""
    keep_original: bool = True
    """Whether the row itself is kept."""
    output: str | None = None
    """Column that gets the number of the variant, 0 for the row itself; null for none."""
    invalid: InvalidRepliesConfig = InvalidRepliesConfig()
    """Treatment of variants without a usable reply: they are left out, with `keep` and `drop` alike."""


class DataJuicerTasksConfig(DataJuicerSection):
    """Operators of Data-Juicer, which its service runs on all rows: filters and deduplicators remove rows, mappers
    change them, and each statistic becomes a column."""

    type: Literal["data_juicer"] = "data_juicer"


class SampleConfig(Section):
    """Random choice of rows, without replacement; those that are chosen keep their order."""

    type: Literal["sample"] = "sample"
    count: int | None = Field(default=None, gt=0)
    """Number of rows; null if `fraction` decides. Fewer rows than that are all kept."""
    fraction: float | None = Field(default=None, gt=0, le=1)
    """Fraction of the rows; null if `count` decides."""
    weight: str | None = None
    """Column of weights, to which the probability of a row is proportional; null for equal probabilities."""
    seed: int = Field(default=0, ge=0)
    """Seed of the choice."""

    def faults(self) -> Iterator[str]:
        """A choice of no size, or of two."""
        if (self.count is None) == (self.fraction is None):
            yield "sample needs count or fraction, and not both"


class MixtureInputConfig(Section):
    """Further dataset of a mixture. It needs the columns that the operators after it read."""

    path: str | tuple[str, ...]
    """Dataset, as in `data.train.path`."""
    split: str | None = None
    """Split of a dataset with several splits."""
    subset: str | None = None
    """Subset of a dataset with several subsets."""
    table: str | None = None
    """Table of a database."""
    count: int | None = Field(default=None, gt=0)
    """Number of rows, chosen at random; null for all."""
    columns: dict[str, str] = Field(default_factory=dict)
    """New names of columns, by the names in this dataset."""


class MixtureConfig(Section):
    """Rows of further datasets."""

    type: Literal["mix"] = "mix"
    inputs: tuple[MixtureInputConfig, ...] = Field(min_length=1)
    """Further datasets."""
    shuffle: bool = True
    """Whether all rows are put into random order; otherwise the datasets follow each other."""
    output: str | None = None
    """Column that gets the number of the dataset, 0 for the one before; null for none."""
    seed: int = Field(default=0, ge=0)
    """Seed of the choice and of the order."""


class OrderConfig(Section):
    """Order of the rows, and a limit of their number. `data.shuffle` must be false for a run to follow it."""

    type: Literal["order"] = "order"
    by: tuple[str, ...] = ()
    """Columns to sort by, the first one first; empty for `weights`, or for a random order."""
    descending: bool = False
    """Whether the largest value comes first."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Weights of columns; rows are sorted by the weighted sum, the largest first, which becomes the column
    `priority`."""
    folds: int = Field(default=1, gt=0)
    """Number of passes from the first to the last rows, each over every `folds`-th row of the order
    (arXiv 2506.21545); 1 keeps it as it is."""
    limit: int | None = Field(default=None, gt=0)
    """Maximum number of rows, from the first one of the order on; null for all."""
    seed: int = Field(default=0, ge=0)
    """Seed of the random order."""

    def faults(self) -> Iterator[str]:
        """Two orders."""
        if self.by and self.weights:
            yield "order has both by and weights; write one of them"
        if self.descending and not self.by:
            yield "descending applies to by; weights put the largest first"


class CustomTaskOperatorConfig(Section):
    """Operator of the user: a class whose objects are called with a list of rows and return a list of rows."""

    type: Literal["custom"] = "custom"
    operator: str
    """Dotted path or `file.py:Class`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


TaskOperatorConfig = Annotated[
    LengthFilterConfig
    | LanguageFilterConfig
    | DeduplicateConfig
    | RangeFilterConfig
    | LlmScoreConfig
    | PassRateConfig
    | TemplateConfig
    | LlmMapConfig
    | SynthesizeConfig
    | SampleConfig
    | MixtureConfig
    | OrderConfig
    | DataJuicerTasksConfig
    | CustomTaskOperatorConfig,
    Field(discriminator="type"),
]


ROW_OPERATORS = (
    LengthFilterConfig,
    LanguageFilterConfig,
    RangeFilterConfig,
    TemplateConfig,
    LlmScoreConfig,
    LlmMapConfig,
    SynthesizeConfig,
    CustomTaskOperatorConfig,
)
"""Operators that also run on the rows of `data.queue` and `data.stream`, which are read one after another."""


EXPORT_SUFFIXES = (".jsonl", ".parquet")
"""Suffixes of the files that a result is written to."""


class TaskPipelineConfig(Section):
    """Operators on the rows of `data.train`, before the run. The result is cached, and the run reads it instead of
    `path`; the other settings of `data.train` apply to the result. The rows of `data.queue` and `data.stream`
    pass through the operators when they are read."""

    operators: tuple[TaskOperatorConfig, ...] = Field(min_length=1)
    """Operators, in order."""
    columns: tuple[str, ...] | None = None
    """Columns of the result; null for all."""
    processes: int = Field(default=1, gt=0)
    """Number of processes for operators that neither ask a model nor compare rows; 1 is this process. With
    `cluster.address` they are tasks on the nodes of the Ray cluster, one per free CPU."""
    cache: str | None = None
    """Folder of the results; null for `task_pipelines` in the folder `output`."""
    export: str | None = None
    """File (`.jsonl` or `.parquet`) or database (`sqlite:///tasks.db`) that the result is also written to; null for
    none."""
    export_table: str | None = None
    """Table of the database of `export`, which is replaced; null for a file."""

    def faults(self) -> Iterator[str]:
        """Targets of the export that nothing can be written to."""
        to_database = self.export is not None and "://" in self.export
        if to_database and self.export_table is None:
            yield "export names a database; write the table of it too, such as export_table: tasks"
        if not to_database and self.export_table is not None:
            yield "export_table needs a database in export, such as sqlite:///tasks.db"
        if self.export is None or to_database:
            return
        if PurePath(self.export).suffix not in EXPORT_SUFFIXES:
            yield f"export: {self.export} is neither a file .jsonl or .parquet nor the URL of a database"
