"""Conversations with a model, or with the model of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strop.config.load.loader import is_run_folder, load_run
from strop.config.paths import existing_path, is_local
from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import NativeEngineConfig
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.encoding.reply import ChatReplyParser, ReplyDecoder
from strop.errors import RunFolderError
from strop.inference.registry import load_engine, running_engine
from strop.models.loading import load_tokenizer
from strop.protocols import InferenceEngine
from strop.run.tokenizer import load_model_tokens
from strop.runs.folder import RunFolder
from strop.seeds import derive_seed
from strop.training.device import find_device
from strop.types import Message, SampleRequest, SamplingParams
from strop.workers.threads import run_coroutine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_DEFAULT_MAX_TOKENS = 256


@dataclass(frozen=True, slots=True)
class ChatSource:
    """A model to talk with, and the form of its prompts."""

    model: ModelConfig
    chat_template: str
    """`data.chat_template` of the run; `tokenizer` for a model without a run."""
    system: str | None
    """Text of the system message; None for no system message."""
    max_tokens: int
    """Maximum length of an answer, in tokens."""
    template_args: Mapping[str, Any] = field(default_factory=dict)
    """`data.chat_template_args` of the run."""
    parser: ChatReplyParser = field(default_factory=ChatReplyParser)
    """Parsers of `rollout.endpoint` of the run."""
    images: ImagesConfig = field(default_factory=ImagesConfig)
    """`data.images` of the run."""


def find_chat_source(path: Path, *, before: bool) -> ChatSource:
    """The trained model of a run folder, or with `before` the model that the run started from; any other path is a
    model folder, a GGUF file, or a name on the Hub.

    Raises `RunFolderError` for a run without a model, and with `before` for one whose model is not here.
    """
    folder = RunFolder(path)
    if not is_run_folder(path):
        return ChatSource(ModelConfig(path=str(path)), "tokenizer", None, _DEFAULT_MAX_TOKENS)
    run = load_run(path).run
    template = run.data.chat_template
    if before:
        if is_local(run.model.path) and existing_path(run.model.path) is None:
            raise RunFolderError(
                f"The run in {path} started from {run.model.path}, which is not here. Put that model there, or talk "
                "with it where it is: `strop chat FOLDER`."
            )
        model = run.model.model_copy(update={"lora": None})
    elif (folder.model / "config.json").is_file():
        model = ModelConfig(path=str(folder.model), trust_remote_code=run.model.trust_remote_code)
        template = (
            "none" if template == "none" else "tokenizer"
        )  # the model's, wherever the template's file is
    else:
        raise RunFolderError(
            f"{path} has no trained model yet: the run writes it at its end. Write one from its last checkpoint with "
            f"`strop export {path} --to FOLDER`, and chat with that folder; `--before` selects the initial model."
        )
    endpoint = run.rollout.endpoint
    return ChatSource(
        model,
        template,
        run.data.train.system,
        run.data.max_response_tokens,
        run.data.chat_template_args,
        ChatReplyParser(endpoint.tool_call_parser, endpoint.reasoning_parser),
        run.data.images,
    )


class ModelChat:
    """One conversation; each answer is sampled after all messages before it."""

    def __init__(
        self,
        source: ChatSource,
        engine: InferenceEngine,
        tokenizer: PreTrainedTokenizerBase,
        sampling: SamplingParams,
        seed: int,
    ) -> None:
        self._encoder = PromptEncoder(tokenizer, source.chat_template, source.template_args)
        self._is_plain = source.chat_template == "none"
        self._replies = ReplyDecoder(
            tokenizer, self._encoder, load_model_tokens(source.model, tokenizer).end_ids
        )
        self._engine = engine
        self._sampling, self._seed = sampling, seed
        self._system = source.system
        self._answers = 0
        self.restart()

    def restart(self) -> None:
        """Forget the conversation."""
        system: Message = {"role": "system", "content": self._system}
        self._messages: list[Message] = [] if self._system is None else [system]

    def ask(self, text: str) -> str:
        """Sample the answer to a message. Raises `DataError` for one that the chat template cannot render."""
        if self._is_plain:
            self.restart()  # a prompt without a template is one text
        messages = [*self._messages, {"role": "user", "content": text}]
        seed = derive_seed(self._seed, "chat", self._answers)
        request = SampleRequest(
            "chat",
            self._encoder.encode(messages),
            self._sampling,
            seed,
            messages=tuple(messages),
            may_continue=not self._is_plain,
        )
        completion = run_coroutine(self._engine.sample([request]))[0]
        content = self._replies.decode_content(completion.token_ids)
        self._messages = [*messages, {"role": "assistant", "content": content}]
        self._answers += 1
        return self._replies.decode(completion.token_ids)


@contextmanager
def open_chat(source: ChatSource, sampling: SamplingParams, seed: int) -> Iterator[ModelChat]:
    """Load the model of a source."""
    tokenizer = load_tokenizer(source.model)
    engine = load_engine(NativeEngineConfig(), source.model, tokenizer, find_device("auto"))
    with running_engine(engine):
        yield ModelChat(source, engine, tokenizer, sampling, seed)
