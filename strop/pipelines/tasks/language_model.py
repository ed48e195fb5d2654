"""Requests of task operators to a language model: an endpoint or an engine, with a cache of the replies."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from strop.config.redact import read_secret
from strop.config.schema.task_pipeline import EndpointModelConfig, EngineModelConfig, InvalidRepliesConfig
from strop.errors import ConfigError, DataError, RewardError
from strop.pipelines.tasks.protocol import PipelineServices, Say
from strop.rewards.judges.chat_client import (
    ChatCompletionsClient,
    JudgeCache,
    JudgeReply,
    RequestRejectedError,
    cache_key,
)

T = TypeVar("T")
Model = EndpointModelConfig | EngineModelConfig

URL_VARIABLE = "OPENAI_BASE_URL"


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
    return section.url or os.environ.get(URL_VARIABLE) or None


def _client(section: EndpointModelConfig, say: Say, owner: str) -> ChatCompletionsClient:
    url = endpoint_url(section)
    if not url:
        raise ConfigError(
            f"{owner}: the model {section.model!r} has no address. Write its url, the base URL of an "
            f"OpenAI-compatible endpoint such as http://localhost:8000/v1, or set {URL_VARIABLE}."
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
