"""Task operators that ask a language model: scores, new columns, and variants of rows."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from strop.config.redact import read_secret
from strop.config.schema.task_pipeline import (
    EndpointModelConfig,
    EngineModelConfig,
    InvalidRepliesConfig,
    LlmMapConfig,
    LlmScoreConfig,
    PassRateConfig,
    SynthesizeConfig,
)
from strop.errors import ConfigError, DataError, RewardError
from strop.pipelines.tasks.filters import outside
from strop.pipelines.tasks.operator import (
    ROW_ID,
    PipelineServices,
    Processed,
    Removal,
    Rewards,
    RowError,
    Say,
    as_text,
    column,
    kept,
    to_table,
    with_column,
)
from strop.pipelines.tasks.templates import RowTemplate
from strop.reward_comparison import reaches
from strop.rewards.judges.chat_client import (
    ChatCompletionsClient,
    JudgeCache,
    JudgeReply,
    RequestRejectedError,
    cache_key,
)
from strop.workers.json_text import parse_prefix

_INVALID = "no usable reply"
"""Reason of a row that is removed, and name of the count of rows, for which the model gave no usable reply."""
_ROWS_PER_CALL = 64
"""Number of tasks sampled together; their rewards are stored before the next ones begin."""
T = TypeVar("T")
Model = EndpointModelConfig | EngineModelConfig
_URL_VARIABLE = "OPENAI_BASE_URL"
_ROW = """\
{% for name, text in fields %}{{ name }}:
{{ text }}

{% endfor %}"""
_ANSWER = """\
Name in one sentence the main reason for your score. Then write one last line, "Score: n", where n is a number from 1
({lowest}) to 5 ({highest})."""
_QUALITY = (
    "Judge the quality of an entry of a training set for language models: is it clear, correct, complete and free of "
    "noise?\n\n" + _ROW + _ANSWER.format(lowest="unusable", highest="excellent")
)
_DIFFICULTY = (
    "Judge how difficult the task of an entry of a training set is for a language model: how much knowledge, how many "
    "steps and how much care does the right answer need?\n\n"
    + _ROW
    + _ANSWER.format(lowest="trivial", highest="for experts only")
)
SCORE_PROMPTS = {"quality": _QUALITY, "difficulty": _DIFFICULTY}
SCORE_PATTERN = r'"?[Ss]core"?\s*[:=][\s*"]*(-?\d+(?:\.\d+)?)'
"""Regular expression of a score in the reply."""


@dataclass(slots=True)
class InvalidCount:
    """Number of rows without a usable reply so far, and its limit."""

    section: InvalidRepliesConfig
    rows: int = 0
    invalid: int = 0

    def add(self, results: Sequence[Any], quotes: Sequence[str]) -> list[int]:
        """The rows without a result. Raises RowError at the first one under `treatment: error`, DataError when they
        are too many: then at least `1 / max_fraction` rows, or all of the first group, have been seen."""
        bad = [row for row, result in enumerate(results) if result is None]
        self.rows += len(results)
        self.invalid += len(bad)
        if bad and self.section.treatment == "error":
            raise RowError(
                bad[0],
                f"got no usable reply in {self.section.attempts} attempts to: {quotes[bad[0]][:200]!r}",
            )
        if self.invalid > self.section.max_fraction * self.rows:
            raise DataError(
                f"the language model gave no usable reply for {self.invalid} of {self.rows} rows, more than "
                f"invalid.max_fraction {self.section.max_fraction:g}. Correct prompt and pattern, take another model, "
                f"or raise max_fraction. The first one was: {quotes[bad[0]][:200]!r}"
            )
        return bad

    def removals(self, bad: Sequence[int]) -> list[Removal]:
        """Removals of the rows, under `treatment: drop`."""
        return [Removal(row, _INVALID) for row in bad] if self.section.treatment == "drop" else []


class LlmScore:
    """Scores rows by a language model, and keeps those with a score between bounds."""

    def __init__(self, section: LlmScoreConfig, model: LanguageModel) -> None:
        """Raises ConfigError for an invalid prompt or pattern."""
        self._section = section
        self._model = model
        self._prompt = RowTemplate(section.prompt or SCORE_PROMPTS[section.criterion], "prompt", ("fields",))
        self._pattern = _compile_pattern(section.pattern)
        self._invalid = InvalidCount(section.invalid)

    @property
    def reads(self) -> tuple[str, ...]:
        return (*self._section.input_columns, *self._prompt.reads)

    @property
    def adds(self) -> tuple[str, ...]:
        return (self._section.score_column,)

    def __call__(self, table: pa.Table) -> Processed:
        prompts = self._prompts(table)
        values = self._model.usable(prompts, self._parse, self._section.invalid)
        bad = self._invalid.add(values, prompts)
        table = with_column(table, self._section.score_column, pa.array(values, pa.float64()))
        scores = np.array([np.nan if value is None else value for value in values])
        removals = outside(
            scores, self._section.min_score, self._section.max_score, self._section.score_column
        )
        removals = sorted([*removals, *self._invalid.removals(bad)], key=lambda removal: removal.row)
        return kept(
            table,
            removals,
            {self._section.score_column: scores[~np.isnan(scores)]},
            {_INVALID: len(bad)} if bad else {},
        )

    def _prompts(self, table: pa.Table) -> list[str]:
        names = self._section.field_names or self._section.input_columns
        inputs = [column(table, name).to_pylist() for name in self._section.input_columns]
        for name, values in zip(self._section.input_columns, inputs, strict=True):
            if None in values:
                raise RowError(values.index(None), f"has no {name!r} (it is null)")
        rows = _plain_rows(table)
        return [
            self._prompt.render(
                {
                    **row,
                    "fields": [
                        (name, as_text(values[number])) for name, values in zip(names, inputs, strict=True)
                    ],
                },
                number,
            )
            for number, row in enumerate(rows)
        ]

    def _parse(self, reply: str) -> float | None:
        return scaled_score(self._pattern, self._section.scale, reply)


class LlmMap:
    """Writes a column with the replies of a language model."""

    def __init__(self, section: LlmMapConfig, model: LanguageModel) -> None:
        """Raises ConfigError for an invalid prompt or pattern."""
        self._section = section
        self._model = model
        self._prompt = RowTemplate(section.prompt, "prompt")
        self._pattern = None if section.pattern is None else _compile_pattern(section.pattern)
        self._invalid = InvalidCount(section.invalid)

    @property
    def reads(self) -> tuple[str, ...]:
        return self._prompt.reads

    @property
    def adds(self) -> tuple[str, ...]:
        return (self._section.output,)

    def __call__(self, table: pa.Table) -> Processed:
        prompts = [self._prompt.render(row, number) for number, row in enumerate(_plain_rows(table))]
        values = self._model.usable(prompts, self._parse, self._section.invalid)
        bad = self._invalid.add(values, prompts)
        table = with_column(table, self._section.output, pa.array(values, pa.string()))
        return kept(table, self._invalid.removals(bad), counts={_INVALID: len(bad)} if bad else {})

    def _parse(self, reply: str) -> str | None:
        found = reply if self._pattern is None else _last_match(self._pattern, reply)
        return found.strip() or None if found is not None else None


class Synthesize:
    """Adds variants of rows that a language model writes."""

    def __init__(self, section: SynthesizeConfig, model: LanguageModel) -> None:
        """Raises ConfigError for an invalid prompt."""
        self._section = section
        self._model = model
        self._prompt = RowTemplate(section.prompt, "prompt", ("variant",))
        self._invalid = InvalidCount(section.invalid)

    @property
    def reads(self) -> tuple[str, ...]:
        return self._prompt.reads

    @property
    def adds(self) -> tuple[str, ...]:
        return (*self._section.columns, *([self._section.output] if self._section.output else []))

    def __call__(self, table: pa.Table) -> Processed:
        rows, count = table.to_pylist(), self._section.variants
        prompts = [
            self._prompt.render({**row, "variant": variant}, number)
            for number, row in enumerate(_plain_rows(table))
            for variant in range(1, count + 1)
        ]
        values = self._model.usable(prompts, self._parse, self._section.invalid)
        bad = self._invalid.add(values, prompts)
        found: list[dict[str, Any]] = []
        parents: list[int] = []
        for number, row in enumerate(rows):
            written = values[number * count : (number + 1) * count]
            variants: list[tuple[int, dict[str, Any]]] = [(0, {})] if self._section.keep_original else []
            variants += [(n, value) for n, value in enumerate(written, 1) if value is not None]
            for variant, value in variants:
                numbered = {self._section.output: variant} if self._section.output else {}
                found.append({**row, **value, **numbered})
                parents.append(number)
        removed = sorted({*range(len(rows))} - {*parents})
        return Processed(
            to_table(found, [*table.column_names, *self.adds]),
            np.array(parents, np.int64),
            [Removal(row, "replaced by variants, and none was usable") for row in removed],
            counts={_INVALID: len(bad)} if bad else {},
        )

    def _parse(self, reply: str) -> dict[str, Any] | None:
        names = self._section.columns
        if len(names) == 1:
            return {names[0]: reply.strip()} if reply.strip() else None
        for match in re.finditer(r"\{", reply):
            try:
                value, _ = parse_prefix(reply, match.start())
            except ValueError:
                continue
            if isinstance(value, dict) and all(value.get(name) is not None for name in names):
                return {name: value[name] for name in names}
        return None


def _plain_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows without their identities."""
    return (table.drop_columns([ROW_ID]) if ROW_ID in table.column_names else table).to_pylist()


def _compile_pattern(text: str) -> re.Pattern[str]:
    """A regular expression with one group. Raises ConfigError for another text."""
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ConfigError(f"data.pipeline: pattern {text!r} is not a regular expression: {error}.") from error
    if pattern.groups != 1:
        raise ConfigError(
            f"data.pipeline: pattern {text!r} has {pattern.groups} groups; write one, around the value."
        )
    return pattern


def scaled_score(pattern: re.Pattern[str], scale: tuple[float, float], reply: str) -> float | None:
    """The last score in a reply, from 0 to 1; None for a reply without one, or with one outside of the scale."""
    found = _last_match(pattern, reply)
    try:
        score = float(found) if found is not None else math.nan
    except ValueError:
        return None
    lowest, highest = scale
    scaled = (score - lowest) / (highest - lowest)
    return scaled if 0 <= scaled <= 1 else None


def _last_match(pattern: re.Pattern[str], text: str) -> str | None:
    """The group of the last match; None if there is none."""
    found = pattern.findall(text)
    return found[-1] if found else None


class PassRate:
    """Adds `pass_rate`, `reward_mean` and `reward_std` of a task's answers, and filters by them."""

    reads = ()
    adds = ("pass_rate", "reward_mean", "reward_std")

    def __init__(self, section: PassRateConfig, services: PipelineServices, cache: JudgeCache) -> None:
        self._section = section
        self._services = services
        self._cache = cache
        self._rollouts = self._failed = 0
        identity = section.model_dump(include={"rollouts_per_task", "temperature"})
        self._key = [services.model_fingerprint(section.model), services.rollout_fingerprint(), identity]

    def __call__(self, table: pa.Table) -> Processed:
        rewards = self._rewards(table)
        rate, mean, deviation = np.full((3, table.num_rows), np.nan)
        for row, found in enumerate(rewards):
            if found.scored:
                values = np.array(found.scored)
                rate[row] = reaches(values, self._section.pass_reward).mean()
                mean[row], deviation[row] = values.mean(), values.std()
        for name, values in zip(self.adds, (rate, mean, deviation), strict=True):
            table = with_column(table, name, pa.array(values, from_pandas=True))
        faults = [
            Removal(row, "cannot be sampled", found.fault) for row, found in enumerate(rewards) if found.fault
        ]
        removals = {
            removal.row: removal
            for removal in outside(rate, self._section.min, self._section.max, "pass_rate")
        }
        if self._section.min_reward_std > 0:
            # rounded, because rewards are sums of floating-point numbers
            for removal in outside(np.round(deviation, 9), self._section.min_reward_std, None, "reward_std"):
                removals.setdefault(removal.row, removal)
        removals.update((removal.row, removal) for removal in faults)
        unscored = int(np.isnan(rate).sum()) - len(faults)
        counts = {"no scored answer": unscored} if unscored else {}
        ordered = [removals[row] for row in sorted(removals)]
        scores = {
            name: values[~np.isnan(values)]
            for name, values in (("pass_rate", rate), ("reward_std", deviation))
        }
        return kept(table, ordered, scores, counts)

    def _rewards(self, table: pa.Table) -> list[Rewards]:
        keys = [
            cache_key("pass_rate", {"of": self._key, "row": _identity(row)}) for row in _plain_rows(table)
        ]
        found: dict[int, Rewards] = {}
        for row, key in enumerate(keys):
            if (text := self._cache.get(key)) is not None:
                stored = json.loads(text)
                found[row] = Rewards(tuple(stored["scored"]), stored["failed"], stored["fault"])
        missing = [row for row in range(table.num_rows) if row not in found]
        ids = (
            table.column(ROW_ID).to_pylist() if ROW_ID in table.column_names else list(range(table.num_rows))
        )
        for at in range(0, len(missing), _ROWS_PER_CALL):
            rows = missing[at : at + _ROWS_PER_CALL]
            for row, rewards in zip(rows, self._sample(table, rows, ids), strict=True):
                found[row] = rewards
                stored = {"scored": rewards.scored, "failed": rewards.failed, "fault": rewards.fault}
                self._cache.put(keys[row], JudgeReply(json.dumps(stored), None))
        return [found[row] for row in range(table.num_rows)]

    def _sample(self, table: pa.Table, rows: Sequence[int], ids: Sequence[int]) -> list[Rewards]:
        rewards = self._services.rewards(
            self._section, table.take(pa.array(rows)), [ids[row] for row in rows]
        )
        self._rollouts += sum(len(each.scored) + each.failed for each in rewards)
        self._failed += sum(each.failed for each in rewards)
        if self._failed > self._section.max_failed_fraction * self._rollouts:
            raise DataError(
                f"{self._failed} of {self._rollouts} rollouts failed, more than max_failed_fraction "
                f"{self._section.max_failed_fraction:g}; look at the reward and the workflow, or raise it"
            )
        return rewards


def _identity(row: dict[str, Any]) -> str:
    return as_text({key: as_text(value) for key, value in row.items()})


class LanguageModel:
    """A language model and the cache of its replies, so that no answered request is sent again."""

    def __init__(
        self,
        section: Model,
        services: PipelineServices | None,
        cache: JudgeCache,
        say: Say,
        owner: str = "data.pipeline",
    ) -> None:
        """`owner` is the key of the pipeline. Raises ConfigError for an endpoint without an address."""
        self._section = section
        self._services = services
        self._cache = cache
        self._client = _client(section, say, owner) if isinstance(section, EndpointModelConfig) else None

    def replies(self, prompts: Sequence[str], attempt: int) -> list[str | None]:
        """The reply to each prompt; None where the endpoint rejects the request.

        Raises DataError if the model does not answer at all. The first attempt samples as configured, further ones at
        temperature 1, each with a seed of its own.
        """
        bodies = [self._body(prompt, attempt) for prompt in prompts]
        keys = [cache_key(self._identity(), body) for body in bodies]
        found = {key: self._cache.get(key) for key in keys}
        missing = {key: n for n, key in enumerate(keys) if found[key] is None}
        try:
            new = self._ask([bodies[n] for n in missing.values()], list(missing))
        except RewardError as error:
            raise DataError(f"{error}") from error
        found.update(zip(missing, new, strict=True))
        return [found[key] for key in keys]

    def usable(
        self, prompts: Sequence[str], parse: Callable[[str], T | None], invalid: InvalidRepliesConfig
    ) -> list[T | None]:
        """Values that `parse` finds in the reply to each prompt; None where no attempt gives a usable reply."""

        def ask(numbers: Sequence[int], attempt: int) -> list[str | None]:
            return self.replies([prompts[number] for number in numbers], attempt)

        return usable_replies(ask, len(prompts), parse, invalid.attempts)

    def _identity(self) -> str:
        if self._client is not None:
            return self._client.url
        assert isinstance(self._section, EngineModelConfig) and self._services is not None
        return self._services.model_fingerprint(self._section.path)

    def _body(self, prompt: str, attempt: int) -> dict[str, Any]:
        body = {
            "model": getattr(self._section, "model", "engine"),
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 1.0 if attempt else self._section.temperature,
            "max_tokens": self._section.max_tokens,
        }
        return body | {"seed": attempt} if attempt else body

    def _ask(self, bodies: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str | None]:
        if self._client is None:
            return self._ask_engine(bodies, keys)
        client, concurrency = self._client, self._section.concurrency  # type: ignore[union-attr]

        def ask(body: dict[str, Any], key: str) -> str | None:
            try:
                reply = client.chat(body)
            except RequestRejectedError:
                return None
            self._cache.put(key, reply)
            return reply.text

        with ThreadPoolExecutor(concurrency, "pipeline-llm") as threads:
            futures = [threads.submit(ask, body, key) for body, key in zip(bodies, keys, strict=True)]
            try:
                return [future.result() for future in futures]
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _ask_engine(self, bodies: Sequence[dict[str, Any]], keys: Sequence[str]) -> list[str | None]:
        assert isinstance(self._section, EngineModelConfig) and self._services is not None
        if not bodies:
            return []
        section = self._section.model_copy(update={"temperature": bodies[0]["temperature"]})
        prompts = [body["messages"][0]["content"] for body in bodies]
        texts = self._services.complete(section, prompts, bodies[0].get("seed", 0))
        for key, text in zip(keys, texts, strict=True):
            self._cache.put(key, JudgeReply(text, None))
        return list(texts)


def usable_replies(
    ask: Callable[[Sequence[int], int], list[str | None]],
    count: int,
    parse: Callable[[str], T | None],
    attempts: int,
) -> list[T | None]:
    """The value of each of `count` prompts; `ask` gets the numbers of those without one, and the attempt."""
    results: list[T | None] = [None] * count
    open_ = list(range(count))
    for attempt in range(attempts):
        if not open_:
            break
        for number, reply in zip(open_, ask(open_, attempt), strict=True):
            results[number] = None if reply is None else parse(reply)
        open_ = [number for number in open_ if results[number] is None]
    return results


def endpoint_url(section: EndpointModelConfig) -> str | None:
    """Base URL of an endpoint, from its section or the environment; None where neither has one."""
    return section.url or os.environ.get(_URL_VARIABLE) or None


def _client(section: EndpointModelConfig, say: Say, owner: str) -> ChatCompletionsClient:
    url = endpoint_url(section)
    if not url:
        raise ConfigError(
            f"{owner}: the model {section.model!r} has no address. Write its url, the base URL of an "
            f"OpenAI-compatible endpoint such as http://localhost:8000/v1, or set {_URL_VARIABLE}."
        )
    key = None if section.api_key_env is None else read_secret(section.api_key_env)
    return ChatCompletionsClient(
        url,
        key,
        section.timeout_seconds,
        section.retries,
        section.backoff_seconds,
        owner=f"The language model {section.model!r}",
        keys=f"`url`, `model` and `api_key_env` of the operator in {owner}",
        on_wait=say,
    )
