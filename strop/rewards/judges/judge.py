"""Language models as judges: their prompt, the score in their reply, and reward components that an endpoint scores."""

from __future__ import annotations

import asyncio
import math
import re
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, TemplateError

from strop.config.redact import read_secret
from strop.config.schema.reward import JudgeCallsConfig, JudgeConfig
from strop.data.images.messages import content_text
from strop.errors import RewardError
from strop.rewards.judges.chat_client import (
    ChatCompletionsClient,
    JudgeCache,
    RequestRejectedError,
    cache_key,
)
from strop.types import Rollout, Task
from strop.workers.threads import DaemonThreadPool

_MAX_QUOTE_CHARS = 200


class Judge:
    """One reward component. Up to `judge_calls.concurrency` requests run at once, equal ones only once."""

    def __init__(
        self,
        section: JudgeConfig,
        calls: JudgeCallsConfig,
        cache: JudgeCache,
        budget: JudgeBudget,
        auxiliary: tuple[str, str] | None,
    ) -> None:
        """Raises RewardError for an invalid prompt or pattern, a missing key, and an endpoint that does not
        respond."""
        self.name, self.weight = section.name, section.weight
        self._prompt = JudgePrompt(section)
        self._url = section.url
        key: str | None
        if section.url == "auxiliary":
            url, key = _auxiliary_endpoint(section, auxiliary)
        else:
            url, key = section.url, _api_key(section)
        self._client = ChatCompletionsClient(
            url, key, calls.timeout_seconds, calls.retries, calls.backoff_seconds
        )
        self._client.check()
        self._cache = cache
        self._budget = budget
        self._threads = DaemonThreadPool(calls.concurrency, "judge")
        self._pending: dict[str, _PendingRequest] = {}

    async def score_rollout(self, task: Task, rollout: Rollout) -> float | str:
        """Score from 0 to 1, or an error message if this rollout cannot be scored.

        Raises RewardError if the judge does not respond at all or the budget is used up. For one event loop.
        """
        body = self._prompt.request_body(task, rollout)
        if isinstance(body, str):
            return body
        key = cache_key(self._url, body)
        if key not in self._pending:
            self._pending[key] = _PendingRequest(self._threads.submit(self._request_score, key, body))
        pending = self._pending[key]
        pending.callers += 1
        try:
            return await asyncio.shield(asyncio.wrap_future(pending.future))
        finally:
            pending.callers -= 1
            if not pending.callers:
                pending.future.cancel()
                self._pending.pop(key, None)

    def close(self) -> None:
        """Cancel the requests that have not begun; the process does not wait for the others at its end."""
        self._threads.close()

    def _request_score(self, key: str, body: dict[str, Any]) -> float | str:
        text = self._cache.get(key)
        if text is None:
            self._budget.spend_call()
            try:
                reply = self._client.chat(body)
            except RequestRejectedError as error:
                return str(error)
            self._budget.spend_tokens(reply.tokens)
            self._cache.put(key, reply)
            text = reply.text
        return self._prompt.parse_score(text)


class _PendingRequest:
    """A request that several rollouts may wait for."""

    def __init__(self, future: Future[float | str]) -> None:
        self.future = future
        self.callers = 0


class Judges:
    """All judges of a run, with one budget and one cache."""

    def __init__(
        self,
        judges: Sequence[JudgeConfig],
        calls: JudgeCallsConfig,
        folder: Path,
        auxiliary: tuple[str, str] | None = None,
    ) -> None:
        """`folder` is the cache folder unless `calls` names another; `auxiliary` is the address and the key
        of the run's auxiliary models. Raises what `Judge` raises."""
        self._cache = JudgeCache(Path(calls.cache).expanduser() if calls.cache else folder)
        budget = JudgeBudget(calls, self._cache.usage())
        self.parts = tuple(Judge(section, calls, self._cache, budget, auxiliary) for section in judges)

    def close(self) -> None:
        """Close the judges and the cache."""
        for judge in self.parts:
            judge.close()
        self._cache.close()


class JudgeBudget:
    """Counter of judge calls and tokens, including those of earlier starts. Any thread may call."""

    def __init__(self, section: JudgeCallsConfig, spent: tuple[int, int]) -> None:
        """`spent` is the number of calls and of tokens so far."""
        self._section = section
        self._calls, self._tokens = spent
        self._lock = threading.Lock()

    def spend_call(self) -> None:
        """Count one more call. Raises RewardError if the budget is used up."""
        calls, tokens = self._section.max_calls, self._section.max_tokens
        with self._lock:
            if calls is not None and self._calls >= calls:
                raise self._exhausted(f"reward.judge_calls.max_calls ({calls})")
            if tokens is not None and self._tokens >= tokens:
                raise self._exhausted(f"reward.judge_calls.max_tokens ({tokens})")
            self._calls += 1

    def spend_tokens(self, tokens: int | None) -> None:
        """Count a call's tokens. Raises RewardError if there is a limit and the endpoint reports no tokens."""
        if tokens is None and self._section.max_tokens is not None:
            raise RewardError(
                "The judge's endpoint does not report the tokens of a call (`usage`), so "
                "reward.judge_calls.max_tokens cannot be enforced. Set max_calls instead."
            )
        with self._lock:
            self._tokens += tokens or 0

    def _exhausted(self, limit: str) -> RewardError:
        return RewardError(
            f"The judges' budget is used up: {limit}, after {self._calls} calls and {self._tokens} tokens. "
            "The run stops. Increase the budget, and the same command continues from the last checkpoint; "
            "stored replies cost nothing."
        )


def _auxiliary_endpoint(section: JudgeConfig, auxiliary: tuple[str, str] | None) -> tuple[str, str]:
    if auxiliary is None:
        raise RewardError(
            f"reward {section.name!r}: its url is `auxiliary`, and this command has no run with auxiliary "
            "models. Set url to the address of an endpoint."
        )
    return auxiliary


def _api_key(section: JudgeConfig) -> str | None:
    if section.api_key_env is None:
        return None
    key = read_secret(section.api_key_env)
    if key is None:
        raise RewardError(
            f"reward {section.name!r}: the environment variable {section.api_key_env} is not set; it holds "
            "the key of the judge's endpoint. Set it, or write api_key_env: null if the endpoint needs no key."
        )
    return key


class JudgePrompt:
    """A judge's prompt template, and the pattern of its scores."""

    def __init__(self, section: JudgeConfig) -> None:
        """Raises RewardError for an invalid prompt template or pattern."""
        self._section = section
        self._template = _load_template(section)
        self._pattern = _compile_pattern(section)

    def request_body(self, task: Task, rollout: Rollout) -> dict[str, Any] | str:
        """Body of the chat completions request; an error message if the task lacks a template variable."""
        prompt = [{**message, "content": content_text(message["content"])} for message in task.messages]
        user_texts = [message["content"] for message in prompt if message["role"] == "user"]
        variables = {
            "conversation": (*prompt, *rollout.response_messages),
            **task.extra,
            "prompt": prompt,
            "question": user_texts[-1] if user_texts else "",
            "completion": rollout.text,
            "answer": task.answer,
            "source": task.source,
        }
        try:
            text = self._template.render(variables)
        except TemplateError as error:
            return f"failed to render its prompt: {error}; the task has {', '.join(sorted(variables))}"
        return {
            "model": self._section.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": self._section.temperature,
            "max_tokens": self._section.max_tokens,
        }

    def parse_score(self, reply: str) -> float | str:
        """Last score in a reply, scaled to 0..1; an error message if there is none."""
        found = self._pattern.findall(reply)
        if not found:
            return f"gave no score: nothing in its reply matches {self._section.pattern!r}: {_quoted(reply)}"
        lowest, highest = self._section.min_score, self._section.max_score
        try:
            score = (float(found[-1]) - lowest) / (highest - lowest)
        except ValueError:
            score = math.nan
        if not 0 <= score <= 1:
            return (
                f"gave the score {found[-1]}, which is not between {lowest:g} and {highest:g}: "
                f"{_quoted(reply)}"
            )
        return score


def _load_template(section: JudgeConfig) -> Template:
    text = section.prompt
    if text.endswith(".jinja"):
        path = Path(text).expanduser()
        if not path.is_file():
            raise RewardError(f"reward {section.name!r}: the prompt file {path} does not exist.")
        text = path.read_text(encoding="utf-8")
    try:
        return Environment(undefined=StrictUndefined, trim_blocks=True).from_string(text)
    except TemplateError as error:
        raise RewardError(
            f"reward {section.name!r}: the judge's prompt is not a valid Jinja template: {error}."
        ) from error


def _compile_pattern(section: JudgeConfig) -> re.Pattern[str]:
    try:
        pattern = re.compile(section.pattern, re.IGNORECASE)
    except re.error as error:
        raise RewardError(
            f"reward {section.name!r}: `pattern` is not a valid regular expression: {error}."
        ) from error
    if pattern.groups != 1:
        raise RewardError(
            f"reward {section.name!r}: `pattern` has {pattern.groups} groups; it needs one, around the score, "
            r"such as Score: (\d+)."
        )
    return pattern


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTE_CHARS else f"...{text[-_MAX_QUOTE_CHARS:]}")
