"""`reward`: scoring of responses by functions, their processes and sandbox, by reward models and judges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.units import MAX_SECONDS, Amount, MicroBatchSize

JUDGE_PROMPT = """\
Judge how good the answer to a question is.

Question:
{{ question }}

{% if answer is not none %}
Reference answer:
{{ answer }}

{% endif %}
Answer to judge:
{{ completion }}

Say in a sentence or two what is good and what is bad about it. Then write one last line, "Score: n",
where n is a number from 0 (worthless) to 10 (perfect)."""


class JudgeConfig(Section):
    """Language model behind an OpenAI-compatible endpoint that scores each response."""

    url: str = Field(pattern=r"^(https?://|auxiliary$)")
    """Base URL of the endpoint's API, such as `http://localhost:8000/v1`; or `auxiliary` for a model of
    `rollout.auxiliary_models`."""
    model: str
    """Name of the model at the endpoint."""
    name: str = "judge"
    """Name of this part of the reward in metrics."""
    weight: float = 1.0
    """Weight of the score, which is between 0 and 1, in the sum."""
    api_key_env: str | None = None
    """Environment variable that holds the endpoint's API key; null if the endpoint requires none."""
    prompt: str = JUDGE_PROMPT
    """Jinja text or a `.jinja` file, with `question`, `completion`, `answer` and the task's columns."""
    pattern: str = r"Score:[\s*]*(-?\d+(?:\.\d+)?)"
    """Regular expression with one group; the last match in the reply is the score."""
    min_score: float = 0.0
    """Score of the judge that becomes 0."""
    max_score: float = 10.0
    """Score of the judge that becomes 1."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the judge's reply; 0 is greedy."""
    max_tokens: int = Field(default=512, gt=0)
    """Maximum length of the reply, in tokens."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.min_score == self.max_score:
            yield (
                f"min_score and max_score are both {self.max_score:g}, so all scores would be equal; write "
                "two "
                "different numbers"
            )


class JudgeCallsConfig(Section):
    """Concurrency, retries, cache and budget of calls to judges, over all judges; none of it changes a
    score."""

    concurrency: int = Field(default=8, gt=0)
    """Maximum number of concurrent calls."""
    timeout_seconds: float = Field(default=60.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of one call; after it the call is retried."""
    retries: int = Field(default=5, ge=0)
    """Maximum number of retries of a call; after the last one the run stops with an error."""
    backoff_seconds: float = Field(default=1.0, gt=0, le=MAX_SECONDS)
    """Wait before the first retry; it doubles with each further retry."""
    cache: str | None = None
    """Folder of cached replies, so that no answered request is sent again; null is a folder of the run."""
    max_calls: int | None = Field(default=None, gt=0)
    """Maximum number of replies in the cache; the run stops when another call is needed. Null for no
    limit."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum number of tokens of the requests and replies in the cache; the run stops when another call is
    needed. Null for no limit."""


WORKER_ENVIRONMENT = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "LANG", "LC_*", "TMPDIR", "XDG_*"),
    *("PYTHON*", "VIRTUAL_ENV", "CONDA_*", "LD_LIBRARY_PATH", "DYLD_*"),
    *("*_proxy", "*_PROXY", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HF_*", "HUGGINGFACE_*", "TRANSFORMERS_*", "SENTENCE_TRANSFORMERS_*", "TOKENIZERS_*", "NLTK_DATA"),
    *(
        "CUDA_*",
        "NVIDIA_*",
        "HIP_*",
        "ROCR_*",
        "TORCH*",
        "PYTORCH_*",
        "TRITON_*",
        "OMP_*",
        "MKL_*",
        "OPENBLAS_*",
    ),
    *("*_API_KEY", "*_API_BASE", "*_BASE_URL", "STROP_*"),
)


class RewardWorkerConfig(Section):
    """Resources and environment of each process that computes reward functions."""

    memory_gb: float | None = Field(default=None, gt=0)
    """Maximum private memory of one process, in GB; null is half of the machine's memory. Enforced on Linux
    only."""
    file_gb: float = Field(default=16.0, gt=0)
    """Maximum size of a file that a process writes, in GB."""
    processes: int = Field(default=4096, gt=0)
    """Maximum number of processes and threads that this user may have above the number at the worker's start.
    The kernel exempts root."""
    environment: tuple[str, ...] = WORKER_ENVIRONMENT
    """Patterns of the environment variables that functions can read; others are removed. `["*"]` keeps all."""
    more_environment: tuple[str, ...] = ()
    """Further such patterns, in addition to `environment`."""


class SandboxLimits(Section):
    """Limits of each program, in every kind of sandbox."""

    timeout_seconds: float = Field(default=6.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of one program, which is one test or a group of asserts."""
    memory_mb: int = Field(default=1024, gt=0)
    """Maximum memory of one program, in MB."""
    concurrency: int = Field(default=2, gt=0)
    """Number of tests of a response that run at the same time, in each worker process of `reward.workers`."""


class LocalSandboxConfig(SandboxLimits):
    """Isolated processes of this machine."""

    type: Literal["local"] = "local"
    mechanism: Literal["auto", "bubblewrap", "process"] = "auto"
    """`bubblewrap` for the program of that name, `process` for the filters of the kernel alone; `auto` for
    bubblewrap if it works here, otherwise `process`."""
    minimum: Literal["limited", "filtered", "confined", "namespaced"] = "confined"
    """Lowest acceptable isolation level; a run on a machine that does not reach it stops with an error."""
    file_mb: int = Field(default=16, gt=0)
    """Maximum size of a file that a program writes, in MB."""
    output_kb: int = Field(default=1024, gt=0)
    """Maximum size of a program's output, in KB; a program that writes more fails."""


class SandboxFusionConfig(SandboxLimits):
    """SandboxFusion server, as for verl's `sandbox_fusion`."""

    type: Literal["sandbox_fusion"] = "sandbox_fusion"
    url: str = Field(pattern=r"^https?://")
    """Address of the server's `run_code` function, such as `http://localhost:8080/run_code`."""
    retries: int = Field(default=3, ge=0)
    """Maximum number of repetitions of a request that fails on the server, or gets no answer."""


SandboxConfig = Annotated[
    LocalSandboxConfig | SandboxFusionConfig, Field(discriminator="type"), type_shorthand("local")
]


class RewardFunctionConfig(Section):
    """Part of the reward that a Python function computes."""

    function: str
    """Built-in name, a dotted path, `file.py:name`, or `by_source` to choose a function by the task's
    source."""
    name: str | None = None
    """Name of this part in metrics; the function's own name if omitted."""
    weight: float = 1.0
    """Weight of the value in the sum."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Additional keyword arguments of the function."""


class RewardModelConfig(Section):
    """Part of the reward that a model with one label computes: its logit for the whole conversation."""

    path: str
    """Hugging Face folder, or a name on the Hub, of a model for sequence classification."""
    name: str = "reward_model"
    """Name of this part in metrics."""
    weight: float = 1.0
    """Weight of the value in the sum."""
    tokenizer: str | None = None
    """Tokenizer folder, or a name on the Hub; the model's own if omitted."""
    chat_template: str = "tokenizer"
    """File with a Jinja template; `tokenizer` for the tokenizer's own."""
    text_prompts: Literal["template", "raw"] = "template"
    """Conversation of a prompt that is plain text: a user message in the chat template, or `raw`, the text with the
    response after it (TRL's standard format)."""
    append_eos: bool = False
    """Whether the tokenizer's end token follows such a text, as in the training with `algorithm.append_eos`."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the weights and matrix products."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model; `auto` is the GPU if there is one, otherwise the CPU."""
    microbatch: MicroBatchSize = Amount(16384, "tokens")
    """Size of a batch, in `tokens` (including padding) or `sequences`."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum length of a conversation, in tokens; the model's number of positions if omitted."""
    overlong: Literal["error", "left", "right"] = "error"
    """Treatment of a longer conversation: `error` fails that rollout, `left` removes its beginning, `right`
    its end."""
    trust_remote_code: bool = False
    """Run Python code from the model folder."""


class RewardConfig(Section):
    """Reward of a response: a weighted sum of parts. `reward: gsm8k` is short for one function."""

    functions: tuple[RewardFunctionConfig, ...] = ()
    """Parts that Python functions compute; `strop.train` accepts a further function from Python."""
    models: tuple[RewardModelConfig, ...] = ()
    """Parts that reward models compute."""
    judges: tuple[JudgeConfig, ...] = ()
    """Parts that language models score as judges."""
    judge_calls: JudgeCallsConfig = JudgeCallsConfig()
    """Concurrency, retries, cache and budget of calls to judges."""
    correct_at: float = 1.0
    """Reward from which a response counts as correct in `pass@k`, up to the rounding of a weighted sum."""
    timeout_seconds: float = Field(default=30.0, gt=0, le=MAX_SECONDS)
    """Maximum duration of a function on one response; after it the function is killed, and `on_timeout`
    applies."""
    on_timeout: Literal["error", "zero"] = "error"
    """Treatment of a response on which a function of the user exceeds `timeout_seconds`: `error` fails that
    rollout, `zero` sets the function's value to 0. A built-in function's value is always 0."""
    workers: int = Field(default=0, ge=0)
    """Number of processes that compute functions in parallel; 0 is one per CPU core, at most four."""
    worker: RewardWorkerConfig = RewardWorkerConfig()
    """Resources and environment of each of these processes."""
    sandbox: SandboxConfig = LocalSandboxConfig()
    """Sandbox of the programs that the built-in reward `code` runs."""

    @property
    def is_empty(self) -> bool:
        """Whether the section has no part."""
        return not (self.functions or self.models or self.judges)


def expand_reward(value: Any) -> Any:
    """Expand the shorthands `gsm8k`, `{function: ...}` and `[...]` to `{functions: [...]}`."""
    if isinstance(value, str):
        return {"functions": [{"function": value}]}
    if isinstance(value, list | tuple):
        return {"functions": [{"function": v} if isinstance(v, str) else v for v in value]}
    if isinstance(value, dict) and "function" in value:
        return {"functions": [value]}
    return value


RewardConfigOrShorthand = Annotated[
    RewardConfig,
    BeforeValidator(
        expand_reward,
        json_schema_input_type=str
        | RewardFunctionConfig
        | tuple[str | RewardFunctionConfig, ...]
        | RewardConfig,
    ),
]
"""A `RewardConfig`, or a shorthand: `reward: gsm8k` is `reward: {functions: [{function: gsm8k}]}`."""
