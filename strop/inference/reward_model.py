"""A reward model: reads a task and an answer in its own template, and gives one number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from strop.config.schema.model import Model
from strop.config.schema.reward import RewardModel as Section
from strop.data.chat import PromptEncoder
from strop.errors import DataError, ModelError
from strop.models.load import load_classifier, load_tokenizer
from strop.types import Rollout, Task


class RewardModel:
    """One part of the reward: what the model says of each conversation, whatever the batch."""

    def __init__(self, section: Section, device: torch.device) -> None:
        """Raises ModelError for a model that has not exactly one label, or no chat template."""
        self.name, self.weight = section.name, section.weight
        self._section = section
        self._device = device
        files = Model(
            path=section.path,
            tokenizer=section.tokenizer,
            dtype=section.dtype,
            trust_remote_code=section.trust_remote_code,
        )
        try:
            self._tokenizer = load_tokenizer(files)
            if section.chat_template == "tokenizer" and not self._tokenizer.chat_template:
                raise ModelError(
                    f"the tokenizer of {section.tokenizer or section.path} has no chat template; name a file "
                    "with the one that the model was trained with, under chat_template."
                )
            self._model: PreTrainedModel = load_classifier(files, labels=1, device=device)
        except ModelError as error:
            raise ModelError(f"reward.models ({section.name}): {error}") from error
        self._template = PromptEncoder(self._tokenizer, section.chat_template)
        self._config = self._model.config.get_text_config()
        self._own_padding: int | None = self._config.pad_token_id
        positions = getattr(self._config, "max_position_embeddings", None) or math.inf
        self._limit = section.max_tokens or positions

    def score(self, answers: Sequence[tuple[Task, Rollout]]) -> list[float | str]:
        """For each answer the model's number, or what broke."""
        read = [self._encode(task, rollout) for task, rollout in answers]
        scores: list[float | str] = [it if isinstance(it, str) else math.nan for it in read]
        encoded = {i: it for i, it in enumerate(read) if not isinstance(it, str)}
        for batch in self._batches(encoded):
            for i, value in zip(batch, self._forward([encoded[i] for i in batch]), strict=True):
                scores[i] = value if math.isfinite(value) else f"said {value}; a reward is a finite number"
        return scores

    def _encode(self, task: Task, rollout: Rollout) -> list[int] | str:
        """The conversation's tokens, or why there are none."""
        messages = [*task.messages, {"role": "assistant", "content": rollout.text}]
        try:
            text = self._template.render("the conversation", messages, task.tools, prompt=False)
        except DataError as error:
            return f"could not read it: {error}"
        # The template writes the special tokens itself.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) <= self._limit:
            return ids
        limit = int(self._limit)
        match self._section.overlong:
            case "left":
                return ids[-limit:]
            case "right":
                return ids[:limit]
            case _:
                return (
                    f"could not read it: {len(ids)} tokens are more than its {limit}. Write overlong: "
                    "left or right to have them cut, or fewer max_response_tokens"
                )

    def _batches(self, encoded: dict[int, list[int]]) -> Iterator[list[int]]:
        """Longest first, so that those of a batch are of about one length and little is padding."""
        limit, batch = self._section.batch, list[int]()
        for i in sorted(encoded, key=lambda i: -len(encoded[i])):
            each = len(encoded[batch[0]]) if batch and limit.unit == "tokens" else 1
            if batch and (len(batch) + 1) * each > limit.count:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    @torch.inference_mode()
    def _forward(self, batch: Sequence[list[int]]) -> list[float]:
        padding = self._padding(batch)
        ids = torch.full((len(batch), max(map(len, batch))), padding)
        mask = torch.zeros_like(ids)
        for row, tokens in enumerate(batch):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        outputs = self._model(input_ids=ids.to(self._device), attention_mask=mask.to(self._device))
        logits: list[float] = outputs.logits[:, 0].float().tolist()
        return logits

    def _padding(self, batch: Sequence[list[int]]) -> int:
        """The model's own padding token; where it has none, one that is nowhere in the batch, for
        transformers takes the last other token for a conversation's end."""
        if self._own_padding is not None:
            return self._own_padding
        used = {token for tokens in batch for token in tokens}
        free = next(token for token in range(self._config.vocab_size) if token not in used)
        self._config.pad_token_id = free
        return free
