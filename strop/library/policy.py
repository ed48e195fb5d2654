"""A policy in this process, for training loops in Python: sample, forward_backward, step, save."""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from strop.config.schema import Run
from strop.config.schema.algorithm import OfflineAlgorithmConfig, ReinforceConfig
from strop.config.schema.data import DataConfig, TasksetConfig, TrainTasksetConfig
from strop.config.schema.model import LoraConfig, ModelConfig
from strop.config.schema.optimizer import OptimizerConfig
from strop.config.schema.policy_gradient import CriticConfig
from strop.config.schema.preference import BcoConfig, CpoConfig, DpoConfig, KtoConfig, OrpoConfig
from strop.config.schema.rollout import InferenceEngineConfig, RolloutConfig
from strop.config.schema.trainer import TrainerConfig
from strop.config.units import Amount
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.data.prompt_check import to_prompt
from strop.data.taskset import to_task
from strop.errors import ConfigError, DataError, ModelError, TrainingError
from strop.inference.endpoint.server import EndpointServer
from strop.library.losses import FunctionLoss, Loss, find_loss
from strop.seeds import derive_seed
from strop.types import (
    Experience,
    FloatArray,
    Message,
    Rollout,
    RolloutGroup,
    SamplingParams,
    Task,
    TrainingBatch,
)
from strop.workers.threads import EventLoopThread, gather_or_cancel
from strop.workflows.chat import WorkflowServices
from strop.workflows.registry import BoundWorkflow, load_workflow
from strop.workflows.runner import WorkflowRunner

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from strop.training.engine import CriticEngine, PolicyEngine

Prompt = str | Sequence[Message] | Mapping[str, Any] | Task
"""Text (one user message), messages, a row with a `prompt` and perhaps an `answer`, or a task of an earlier group."""
_MAX_SEQUENCE_TOKENS = 8192
_ROWS = TasksetConfig(path="memory", answer=None)


class Policy:
    """A language model that samples and is trained, in this process. Any thread may call; updates run one at a time.

    The sampler reads the weights of the trainer in place: a step takes effect in the next sampled token without a
    copy, and the sampler's log-probs are those of the trainer.
    """

    def __init__(
        self,
        model: str | Path | ModelConfig | PreTrainedModel,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        lora: LoraConfig | int | None = None,
        engine: str | InferenceEngineConfig = "native",
        optimizer: OptimizerConfig | None = None,
        max_grad_norm: float | None = 1.0,
        max_sequence_tokens: int | None = None,
        tokens_per_microbatch: int = 16384,
        reference: bool = False,
        chat_template: str | None = None,
        seed: int = 1,
    ) -> None:
        """
        Args:
            model: folder, name on the Hub, section `model`, or a loaded model, of which the policy trains a copy.
            tokenizer: tokenizer of a loaded model; of other models, one in place of their own.
            lora: adapter to train in place of all weights, or its rank.
            engine: engine that samples: its type, or a section `rollout.engine`.
            optimizer: section `trainer.optimizer`; AdamW by default. `step` may override its learning rate.
            max_grad_norm: maximum norm of the gradient, to which larger ones are scaled down; None for no limit.
            max_sequence_tokens: maximum length of a prompt with its responses, in tokens; by default the model's
                number of positions, at most 8192.
            tokens_per_microbatch: maximum size of a micro-batch, in tokens. It changes memory, never the gradient.
            reference: keep the initial weights, for `logprobs(reference=True)` and losses with a reference. A policy
                with `lora` has them anyway.
            chat_template: Jinja file or text, or `none` for plain text; by default the tokenizer's, and plain text
                for a tokenizer without one.
            seed: seed of sampling, of new adapter weights and of dropout.

        Raises:
            ModelError: the model or its tokenizer cannot be loaded, or the model cannot be trained.
            ConfigError: an argument has a value that is not accepted.
        """
        from strop.models.loading import load_config, load_tokenizer
        from strop.run.rollout.inference_engines import colocated_publisher, open_colocated_engine
        from strop.run.tokenizer import load_model_tokens, with_run_template
        from strop.training.engine import local_policy
        from strop.training.specs import PolicySpec

        self._opened = ExitStack()
        self._close = weakref.finalize(self, self._opened.close)
        section = self._model_section(model, tokenizer)
        if lora is not None:
            section = section.model_copy(update={"lora": _adapter(lora)})
        self.tokenizer: PreTrainedTokenizerBase = (
            tokenizer if tokenizer is not None else load_tokenizer(section)
        )
        """Tokenizer of the model."""
        if max_sequence_tokens is None:
            config = load_config(section).get_text_config()
            max_sequence_tokens = min(
                getattr(config, "max_position_embeddings", _MAX_SEQUENCE_TOKENS), _MAX_SEQUENCE_TOKENS
            )
        template = chat_template or ("tokenizer" if self.tokenizer.chat_template else "none")
        with _argument_errors("strop.Policy"):
            self._run = _policy_run(
                section,
                engine,
                optimizer,
                max_grad_norm,
                max_sequence_tokens,
                tokens_per_microbatch,
                template,
                seed,
            )
        self._has_reference = reference or section.lora is not None
        self.tokenizer = with_run_template(self.tokenizer, self._run)
        self._engine: PolicyEngine = local_policy(
            self._run, replace(PolicySpec.of(self._run), needs_reference=reference)
        )
        self._loop = EventLoopThread("policy")
        self._opened.callback(self._loop.close)
        self._sampler = self._opened.enter_context(
            open_colocated_engine(self._run, self._engine, self.tokenizer)
        )
        self._publisher = colocated_publisher(
            self._run, self._engine, self._sampler, self.tokenizer, self._loop
        )
        ends = load_model_tokens(section, self.tokenizer).end_ids
        self._encoder = TurnEncoder(self.tokenizer, template, eos_ids=ends)
        endpoint = EndpointServer()
        self._opened.callback(endpoint.close)
        self._services = WorkflowServices(endpoint, "policy")
        self._lock = threading.RLock()
        self._calls = itertools.count(1)
        self._pending = 0
        """Number of `forward_backward` calls since the last step."""
        self.version = 0
        """Number of steps so far; each rollout records that of the weights which sampled it."""
        self._publisher.publish(0)

    def sample(
        self,
        prompts: Sequence[Prompt],
        n: int = 1,
        *,
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        workflow: Callable[..., Any] | None = None,
    ) -> list[RolloutGroup]:
        """Sample `n` rollouts for each prompt: one group per prompt, in the order of the prompts.

        Args:
            prompts: texts, messages, rows or tasks.
            n: number of rollouts per prompt.
            max_tokens: maximum length of each response, in tokens.
            temperature: divisor of the logits; 0 is greedy.
            top_p: cumulative probability of the most likely tokens that are kept.
            top_k: number of most likely tokens that are kept; 0 keeps all.
            stop: text that ends a response, which is the end of its text, or several.
            seed: seed of these rollouts; by default another one in each call, derived from the policy's.
            workflow: function `(task, chat)` that turns a task into a rollout of several turns; by default one
                response.

        Raises:
            ConfigError: an argument is out of range.
            DataError: a prompt cannot be read, or leaves no space for a response.
        """
        with self._using():
            return self._loop.run(
                self._sample(prompts, n, max_tokens, temperature, top_p, top_k, stop, seed, workflow)
            )

    async def sample_async(
        self,
        prompts: Sequence[Prompt],
        n: int = 1,
        *,
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        stop: str | Sequence[str] = (),
        seed: int | None = None,
        workflow: Callable[..., Any] | None = None,
    ) -> list[RolloutGroup]:
        """`sample` for an event loop; several calls are decoded together."""
        with self._using():
            return await self._loop.run_async(
                self._sample(prompts, n, max_tokens, temperature, top_p, top_k, stop, seed, workflow)
            )

    def forward_backward(self, batch: TrainingBatch, loss: Loss = "grpo") -> dict[str, float]:
        """Add the gradient of a loss over a batch; returns `loss` and the loss's metrics.

        Args:
            batch: experiences, with advantages and the other inputs of the loss; see `strop.make_batch`.
            loss: name, section, or function `(micro_batch, outputs, counts)` that returns a tensor or a
                `strop.LossOutput`: a sum over the targets of a micro-batch divided by the counts of the batch.

        Raises:
            DataError: the batch is empty, lacks an input of the loss, or has inputs of other lengths than its
                experiences.
            TrainingError: the loss is NaN or infinite; the gradient is dropped.
            ConfigError: there is no such loss, or it needs a reference that the policy does not keep.
        """
        spec = find_loss(loss, self._run.data.max_response_tokens)
        _check_batch(batch)
        if batch.target_tokens is not None and not isinstance(spec, FunctionLoss):
            raise ConfigError(
                "batch.target_tokens gives log-probs [T, K], which only a loss of your own reads. Pass a function as "
                "loss."
            )
        with self._lock, self._using():
            batch = self._complete(batch, getattr(spec, "algorithm", None))
            try:
                metrics = dict(self._engine.forward_backward(batch, spec))
            except TrainingError:
                self._pending = 0
                raise
            except ValueError as error:  # an input of the loss that the batch does not have
                raise DataError(f"The loss cannot be computed on this batch: {error}.") from error
            self._pending += 1
        return metrics

    async def forward_backward_async(self, batch: TrainingBatch, loss: Loss = "grpo") -> dict[str, float]:
        """`forward_backward` for an event loop."""
        return await asyncio.to_thread(self.forward_backward, batch, loss)

    def step(self, lr: float | None = None) -> float:
        """Clip the gradient, update the weights, and clear the gradient; returns the norm before clipping.

        The sampler has the new weights when it returns. `lr` is the learning rate from now on; None leaves it.

        Raises:
            TrainingError: there is no gradient, or its norm is NaN or infinite; the weights are unchanged.
            ConfigError: `lr` is not above 0.
        """
        _check_lr(lr)
        with self._lock, self._using():
            if not self._pending:
                raise TrainingError("step has no gradient to apply. Call forward_backward first.")
            if lr is not None:
                self._engine.set_lr(lr)
            with self._changed_weights():
                norm = self._engine.step()
                self.version += 1
        return norm

    async def step_async(self, lr: float | None = None) -> float:
        """`step` for an event loop."""
        return await asyncio.to_thread(self.step, lr)

    def logprobs(
        self, experiences: TrainingBatch | Sequence[Experience], *, reference: bool = False
    ) -> list[FloatArray]:
        """[L] of each experience: log-probs of its targets under the current weights, in nats; 0 at other tokens.

        With `reference`, under the initial weights. Raises ConfigError for a policy without a reference.
        """
        listed = experiences.experiences if isinstance(experiences, TrainingBatch) else experiences
        if not listed:
            raise DataError("logprobs got no experiences.")
        if not all(isinstance(each, Experience) for each in listed):
            raise DataError(
                f"logprobs got a list of {type(listed[0]).__name__}. Pass experiences, for example those of "
                "strop.make_batch(groups, advantages)."
            )
        if reference:
            self._require_reference("logprobs(reference=True)")
        with self._lock, self._using():
            return self._engine.token_values(listed, "reference_logprobs" if reference else "logprobs")

    async def logprobs_async(
        self, experiences: TrainingBatch | Sequence[Experience], *, reference: bool = False
    ) -> list[FloatArray]:
        """`logprobs` for an event loop."""
        return await asyncio.to_thread(functools.partial(self.logprobs, experiences, reference=reference))

    def encode(self, prompt: Prompt, response: str, *, weight_prompt: bool = False) -> Experience:
        """A demonstration as a training sequence for `loss="sft"`, in which the tokens of `response` are targets.

        An end token follows the response. With `weight_prompt`, the prompt's tokens after the first are targets too.
        `dataclasses.replace` makes it one of a pair for preference losses: `role="chosen"` or `"rejected"`, and the
        same `pair` for both.
        """
        if not isinstance(response, str):
            raise DataError(f"encode got a response of type {type(response).__name__}. Write text.")
        task = self._task(prompt, "demonstration")
        ids = self.tokenizer(response, add_special_tokens=False)["input_ids"]
        if self.tokenizer.eos_token_id is not None:
            ids = [*ids, self.tokenizer.eos_token_id]
        token_ids = np.concatenate([task.prompt_ids, np.array(ids, np.int32)])
        mask = np.arange(len(token_ids)) >= (1 if weight_prompt else len(task.prompt_ids))
        zeros = np.zeros(len(token_ids), np.float32)
        name = f"demonstration-{next(self._calls)}"
        return Experience(
            name, task.id, name, 0, 0, token_ids, mask, zeros, None, 0.0, "ok", 1.0, (), role="sft"
        )

    def save(self, folder: str | Path) -> Path:
        """Write the model and its tokenizer as a Hugging Face folder, adapters merged and in a subfolder.

        Raises ModelError where it cannot be written.
        """
        with self._lock, self._using():
            self._engine.export(Path(folder), self.tokenizer.save_pretrained)
        return Path(folder)

    async def save_async(self, folder: str | Path) -> Path:
        """`save` for an event loop."""
        return await asyncio.to_thread(self.save, folder)

    def save_state(self, folder: str | Path) -> Path:
        """Write weights, optimizer state and random states, from which `load_state` continues exactly."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        with self._lock, self._using():
            if self._pending:
                raise TrainingError(
                    "save_state between forward_backward and step would lose the gradient. Call step first."
                )
            self._engine.snapshot().begin_write(path)()
        return path

    def load_state(self, folder: str | Path) -> None:
        """Restore what `save_state` wrote. Raises CheckpointError for the state of another model."""
        with self._lock, self._using(), self._changed_weights():
            self._engine.load(Path(folder))

    def close(self) -> None:
        """Free the engines. A second call does nothing; any other method raises ModelError after it."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"strop.Policy({self._run.model.path!r}, version={self.version})"

    @contextmanager
    def _changed_weights(self) -> Iterator[None]:
        """Hold the sampler while the weights change, and load them; the check of the load samples."""
        self._sampler.pause()
        try:
            yield
            self._publisher.load(self.version)
        finally:
            self._pending = 0
            self._sampler.resume()
        self._publisher.check_load(self.version)

    @contextmanager
    def _using(self) -> Iterator[None]:
        if not self._close.alive:
            raise ModelError("This policy is closed. Build a new one with strop.Policy.")
        yield

    async def _sample(
        self,
        prompts: Sequence[Prompt],
        n: int,
        max_tokens: int,
        temperature: float,
        top_p: float,
        top_k: int,
        stop: str | Sequence[str],
        seed: int | None,
        workflow: Callable[..., Any] | None,
    ) -> list[RolloutGroup]:
        _check_sampling(prompts, n, max_tokens, temperature, top_p, top_k)
        call = next(self._calls)
        stops = (stop,) if isinstance(stop, str) else tuple(stop)
        sampling = SamplingParams(temperature, top_p, top_k, max_tokens=max_tokens, stop=stops)
        bound = load_workflow(self._run.rollout.workflow)
        if workflow is not None:
            bound = BoundWorkflow(getattr(workflow, "__name__", "workflow"), workflow)
        runner = WorkflowRunner(
            bound,
            self._sampler,
            self._encoder,
            self._run.rollout,
            self._run.max_sequence_tokens,
            self._services,
        )
        tasks = [self._task(prompt, f"prompt-{call}-{number}") for number, prompt in enumerate(prompts)]
        drawn = (self._run.seed, "sample", call) if seed is None else (seed, "sample")
        slots = asyncio.Semaphore(runner.max_concurrent_rollouts or len(tasks) * n)

        async def one(task: Task, number: int, index: int) -> Rollout:
            async with slots:
                return await runner.run(
                    task,
                    f"{call}-{number}",
                    index,
                    sampling,
                    derive_seed(drawn[0], *drawn[1:], number, index),
                )

        found = await gather_or_cancel([one(task, i, j) for i, task in enumerate(tasks) for j in range(n)])
        return [
            RolloutGroup(f"{call}-{number}", task, tuple(found[number * n : (number + 1) * n]))
            for number, task in enumerate(tasks)
        ]

    def _task(self, prompt: Prompt, name: str) -> Task:
        if isinstance(prompt, Task):
            return prompt
        row = (
            prompt
            if isinstance(prompt, Mapping)
            else {"prompt": prompt if isinstance(prompt, str) else list(prompt)}
        )
        if "prompt" not in row:
            raise DataError(f"{name} has no column 'prompt'; it has {', '.join(map(str, row)) or 'none'}.")
        section = _ROWS.model_copy(update={"answer": "answer" if "answer" in row else None})
        read = to_prompt(row, name, section)
        ids = self._encoder.encode_prompt(read.messages, read.tools, read.reply_prefix)
        if len(ids) >= self._run.max_sequence_tokens:
            raise DataError(
                f"{name} has {len(ids)} tokens, and a sequence may have {self._run.max_sequence_tokens} "
                "(max_sequence_tokens). Shorten it, or raise the limit."
            )
        return to_task(str(row.get("id", name)), row, read, section, ids)

    def _model_section(
        self, model: str | Path | ModelConfig | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
    ) -> ModelConfig:
        if isinstance(model, str | Path):
            return ModelConfig(path=str(model))
        if isinstance(model, ModelConfig):
            return model
        folder = self._opened.enter_context(tempfile.TemporaryDirectory(prefix="strop-model-"))
        return ModelConfig(path=str(write_model(model, tokenizer, Path(folder))))

    def _require_reference(self, what: str) -> None:
        if not self._has_reference:
            raise ConfigError(
                f"{what} needs the initial weights, which this policy does not keep. Write strop.Policy(..., "
                "reference=True), or train an adapter with lora=...."
            )

    def _complete(self, batch: TrainingBatch, algorithm: Any) -> TrainingBatch:
        """The batch with the inputs that the loss of an algorithm needs and that follow from the batch."""
        from strop.run.optimize.minibatches import select_update_tokens

        if algorithm is None:
            return batch
        offline = isinstance(algorithm, OfflineAlgorithmConfig)
        if isinstance(algorithm, DpoConfig | CpoConfig | OrpoConfig) and any(
            each.pair is None for each in batch.experiences
        ):
            raise DataError(
                f"The loss {algorithm.type!r} compares the responses of pairs, and the batch has experiences without "
                "one. Give both the same pair=..., and role='chosen' or role='rejected', with dataclasses.replace."
            )
        if not offline and batch.advantages is None:
            raise DataError(
                f"The loss {algorithm.type!r} needs batch.advantages. Build the batch with strop.make_batch(groups, "
                "advantages)."
            )
        compares = (
            isinstance(algorithm, DpoConfig | KtoConfig | BcoConfig)
            if offline
            else algorithm.needs_reference_logprobs
        )
        if compares and batch.ref_logprobs is None:
            self._require_reference(f"The loss {algorithm.type!r}")
            batch = replace(
                batch, ref_logprobs=self._engine.token_values(batch.experiences, "reference_logprobs")
            )
        if offline:
            return batch
        has_old = batch.old_logprobs is not None and all(each is not None for each in batch.old_logprobs)
        if algorithm.needs_start_logprobs and not has_old:
            batch = replace(batch, old_logprobs=self._engine.token_values(batch.experiences, "logprobs"))
        if batch.selected is None:
            assert batch.advantages is not None
            advantages = [
                np.broadcast_to(np.asarray(value, np.float32), len(experience.token_ids))
                for value, experience in zip(batch.advantages, batch.experiences, strict=True)
            ]
            old = (
                None
                if batch.old_logprobs is None
                else [each for each in batch.old_logprobs if each is not None]
            )
            selected = select_update_tokens(
                algorithm,
                batch.experiences,
                advantages,
                old if old and len(old) == len(batch.experiences) else None,
                self._engine,
                seed=derive_seed(self._run.seed, "selected", self.version),
            )
            batch = replace(batch, selected=selected)
        return batch


class TrainableCritic:
    """A value model in this process, for losses with a critic (PPO). Its first values are 0."""

    def __init__(
        self,
        model: str | Path | ModelConfig,
        *,
        optimizer: OptimizerConfig | None = None,
        value_clip: float | None = 0.5,
        max_grad_norm: float | None = 1.0,
        tokens_per_microbatch: int = 16384,
        seed: int = 1,
    ) -> None:
        """
        Args:
            model: folder, name on the Hub or section `model` of the model that it starts from, with a new head.
            optimizer: section `algorithm.critic.optimizer`; AdamW by default.
            value_clip: maximum change of a value, relative to `batch.values`, that the loss counts; None for no limit.
            max_grad_norm: maximum norm of the gradient; None for no limit.
            tokens_per_microbatch: maximum size of a micro-batch, in tokens.
            seed: seed of new adapter weights.

        Raises:
            ModelError: the model cannot be loaded or trained.
        """
        from strop.training.engine import local_critic

        section = model if isinstance(model, ModelConfig) else ModelConfig(path=str(model))
        with _argument_errors("strop.Critic"):
            run = _policy_run(
                section,
                "native",
                None,
                max_grad_norm,
                _MAX_SEQUENCE_TOKENS,
                tokens_per_microbatch,
                "tokenizer",
                seed,
            )
            chosen = {} if optimizer is None else {"optimizer": optimizer}
            config = CriticConfig(value_clip=value_clip, max_grad_norm=max_grad_norm, **chosen)
        self._engine: CriticEngine = local_critic(run, config)
        self._value_clip = value_clip
        self._pending = False

    def values(self, experiences: TrainingBatch | Sequence[Experience]) -> list[FloatArray]:
        """[L] of each experience: value of the state before each target; 0 at other tokens."""
        listed = experiences.experiences if isinstance(experiences, TrainingBatch) else experiences
        return self._engine.values(listed)

    def forward_backward(self, batch: TrainingBatch) -> dict[str, float]:
        """Add the gradient of the value loss over a batch with `values` and `returns`; returns its metrics.

        Raises:
            DataError: the batch lacks one of them, or its inputs have other lengths than its experiences.
            TrainingError: the loss is NaN or infinite.
        """
        from strop.algorithms.losses.value_losses import ValueLoss

        _check_batch(batch)
        if batch.values is None or batch.returns is None:
            raise DataError(
                "The value loss needs batch.values and batch.returns. Set both, with values of Critic.values."
            )
        self._pending = True
        return dict(self._engine.forward_backward(batch, ValueLoss(self._value_clip)))

    def step(self, lr: float | None = None) -> float:
        """Clip the gradient, update the weights, and clear the gradient; returns the norm before clipping."""
        _check_lr(lr)
        if not self._pending:
            raise TrainingError("step has no gradient to apply. Call forward_backward first.")
        if lr is not None:
            self._engine.set_lr(lr)
        self._pending = False
        return self._engine.step()


def write_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, folder: Path) -> Path:
    """Write a loaded model with its tokenizer as a Hugging Face folder. Raises ModelError for a model without one."""
    if not hasattr(model, "save_pretrained") or not hasattr(model, "config"):
        raise ModelError(
            f"model is a {type(model).__name__}. Write a folder, a name on the Hub, or a PreTrainedModel."
        )
    if tokenizer is None:
        raise ModelError(
            "A loaded model has no tokenizer. Pass it too: model=model, tokenizer=AutoTokenizer.from_pretrained(...)."
        )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _adapter(lora: LoraConfig | int) -> LoraConfig:
    """The section of an adapter. Raises ConfigError for what is neither one nor a rank."""
    if isinstance(lora, LoraConfig):
        return lora
    if not isinstance(lora, int) or lora < 1:
        raise ConfigError(f"strop.Policy got lora={lora!r}. Write a rank, such as lora=16, or a strop.Lora.")
    return LoraConfig(rank=lora)


def _policy_run(
    model: ModelConfig,
    engine: str | InferenceEngineConfig,
    optimizer: OptimizerConfig | None,
    max_grad_norm: float | None,
    max_sequence_tokens: int,
    tokens_per_microbatch: int,
    chat_template: str,
    seed: int,
) -> Run:
    """The configuration from which the engines are built."""
    rollout = RolloutConfig.model_validate({"engine": engine, "max_sequence_tokens": max_sequence_tokens})
    trainer = {
        "max_grad_norm": max_grad_norm,
        "microbatch": Amount(tokens_per_microbatch, "tokens"),
        **({} if optimizer is None else {"optimizer": optimizer}),
    }
    data = DataConfig(
        train=TrainTasksetConfig(path="memory"),
        max_prompt_tokens=max_sequence_tokens,
        max_response_tokens=max_sequence_tokens,
        chat_template=chat_template,
    )
    return Run(
        model=model,
        data=data,
        algorithm=ReinforceConfig(),
        rollout=rollout,
        trainer=TrainerConfig.model_validate(trainer),
        seed=seed,
    )


@contextmanager
def _argument_errors(what: str) -> Iterator[None]:
    """Convert the errors of a section's values into a ConfigError."""
    from pydantic import ValidationError

    try:
        yield
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"{what}: {faults}.") from None


def _check_lr(lr: float | None) -> None:
    if lr is not None and not (isinstance(lr, int | float) and math.isfinite(lr) and lr > 0):
        raise ConfigError(
            f"step got lr={lr!r}. Write a learning rate above 0, or omit it to keep the last one."
        )


def _check_sampling(
    prompts: Sequence[Prompt], n: int, max_tokens: int, temperature: float, top_p: float, top_k: int
) -> None:
    if isinstance(prompts, str | Mapping) or not hasattr(prompts, "__len__"):
        raise ConfigError("sample got one prompt. Write a list of prompts: policy.sample([prompt]).")
    if not len(prompts):
        raise DataError("sample got an empty list of prompts.")
    if wrong := [prompt for prompt in prompts if not isinstance(prompt, Sequence | Mapping | Task)]:
        raise DataError(
            f"sample got the prompt {wrong[0]!r}. A prompt is text, a list of messages, a row, or a task."
        )
    for name, value, is_right, form in (
        ("n", n, isinstance(n, int) and n > 0, "1 or more"),
        ("max_tokens", max_tokens, isinstance(max_tokens, int) and max_tokens > 0, "1 or more"),
        ("temperature", temperature, temperature >= 0, "0 or more"),
        ("top_p", top_p, 0 < top_p <= 1, "a number above 0, at most 1"),
        ("top_k", top_k, isinstance(top_k, int) and top_k >= 0, "0 or more"),
    ):
        if not is_right:
            raise ConfigError(f"sample got {name}={value!r}; write {form}.")


_TOKEN_INPUTS = (
    "advantages",
    "old_logprobs",
    "ref_logprobs",
    "teacher_logprobs",
    "values",
    "returns",
    "selected",
)


def _check_batch(batch: TrainingBatch) -> None:
    """Raise DataError for a batch without experiences, and for inputs of other lengths than its experiences."""
    if not isinstance(batch, TrainingBatch):
        raise DataError(
            f"forward_backward got a {type(batch).__name__}. Build a strop.TrainingBatch, for example with "
            "strop.make_batch(groups, advantages)."
        )
    if not batch.experiences:
        raise DataError("The batch has no experiences.")
    for name in _TOKEN_INPUTS:
        for number, value in enumerate(getattr(batch, name) or ()):
            length = len(batch.experiences[number].token_ids)
            if value is not None and np.ndim(value) and np.shape(value) != (length,):
                raise DataError(
                    f"batch.{name}[{number}] has the shape {np.shape(value)}, and its experience has {length} tokens. "
                    "Write one value for each token of the sequence, prompt included."
                )
    shapes = [np.shape(tokens) for tokens in batch.target_tokens or ()]
    for number, shape in enumerate(shapes):
        if len(shape) != 2 or shape != (len(batch.experiences[number].token_ids), shapes[0][-1]):
            raise DataError(
                f"batch.target_tokens[{number}] has the shape {shape}. Write K tokens for each token of the sequence, "
                "with the same K for all experiences."
            )
