"""A tiny model to talk to, and one that says what a test tells it to."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from strop.config.schema.rollout import NativeEngineConfig as NativeSection
from strop.config.schema.rollout import RolloutConfig as Section
from strop.config.schema.rollout import WorkflowConfig
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.inference.endpoint.server import EndpointServer
from strop.inference.native import NativeEngine
from strop.models.tiny import make_model
from strop.types import Completion, Rollout, SampleRequest, SamplingParams, Task
from strop.workflows.chat import WorkflowServices
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.registry import load_workflow
from strop.workflows.runner import WorkflowRunner

TOOLS_TEMPLATE = Path(__file__).parents[2] / "examples" / "workflows" / "tools.jinja"
SAMPLING = SamplingParams(temperature=1.0, max_tokens=8)


@dataclass
class Says:
    """An inference engine that says given texts, one after the other, and remembers what it was asked."""

    tokenizer: PreTrainedTokenizerFast
    texts: Sequence[str]
    requests: list[SampleRequest] = field(default_factory=list)
    seconds: float = 0.0

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        await asyncio.sleep(self.seconds)
        return [self._one(request) for request in requests]

    def _one(self, request: SampleRequest) -> Completion:
        text = self.texts[len(self.requests) % len(self.texts)]
        self.requests.append(request)
        ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"], self.tokenizer.eos_token_id]
        finish: Literal["stop", "length"] = "stop" if len(ids) <= request.sampling.max_tokens else "length"
        ids = ids[: request.sampling.max_tokens]
        logprobs = np.full(len(ids), -1.0, np.float32)
        return Completion(np.array(ids, np.int32), logprobs, logprobs, finish, 0)


@dataclass
class World:
    """A model folder, and what is made of it."""

    folder: Path
    tokenizer: PreTrainedTokenizerFast
    template: str
    max_sequence_tokens: int = 400

    @property
    def encoder(self) -> TurnEncoder:
        return TurnEncoder(self.tokenizer, self.template)

    def native(self) -> NativeEngine:
        model = AutoModelForCausalLM.from_pretrained(self.folder)
        return NativeEngine.from_model(model, NativeSection(), self.tokenizer)

    def says(self, *texts: str) -> Says:
        return Says(self.tokenizer, texts)

    def task(self, prompt: str = "two and two", **columns: Any) -> Task:
        messages = ({"role": "user", "content": prompt},)
        return Task("t", messages, self.encoder.encode_prompt(messages), **columns)

    def runner(
        self, engine: Any, workflow: str, args: dict[str, Any] | None = None, **section: Any
    ) -> WorkflowRunner:
        limit = section.pop("max_sequence_tokens", self.max_sequence_tokens)
        bound = load_workflow(WorkflowConfig(name=workflow, args=args or {}))
        return WorkflowRunner(bound, engine, self.encoder, Section(**section), limit, self.services)

    @cached_property
    def services(self) -> WorkflowServices:
        return WorkflowServices(EndpointServer(), "policy")

    def run(self, engine: Any, workflow: str, args: dict[str, Any] | None = None, **section: Any) -> Rollout:
        """One rollout of the task."""
        sampling = section.pop("sampling", SamplingParams(max_tokens=400))
        task = section.pop("task", None) or self.task()
        runner = self.runner(engine, workflow, args, **section)
        return asyncio.run(runner.run(task, "g", 0, sampling, 7))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = make_model(tmp_path_factory.mktemp("world") / "model", ["two and two is four"], vocab_size=320)
    return World(folder, PreTrainedTokenizerFast.from_pretrained(folder), "tokenizer")


@pytest.fixture(scope="session")
def tool_world(world: World) -> World:
    return World(world.folder, world.tokenizer, str(TOOLS_TEMPLATE), max_sequence_tokens=6000)


def trained_texts(world: World, rollout: Rollout) -> list[str]:
    """The text that is trained on, of each sequence of a rollout; it may have no reward."""
    experiences = rollout_to_experiences(replace(rollout, reward=1.0), "")
    return [str(world.tokenizer.decode(e.token_ids[e.loss_mask])) for e in experiences]


def call(name: str, **arguments: Any) -> str:
    """A tool call in the form of the template of `tool_world`."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture
def user_file(tmp_path: Path) -> Callable[[str], Path]:
    """Writes a user's file."""

    def write(text: str) -> Path:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return path

    return write
