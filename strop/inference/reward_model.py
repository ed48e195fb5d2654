"""Reward models: classifiers that score a conversation with one number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel

from strop.config.schema.model import ModelConfig
from strop.config.schema.reward import RewardModelConfig
from strop.data.encoding.chat_template import PromptEncoder
from strop.errors import DataError, ModelError
from strop.models.family_traits import rope_token_limit
from strop.models.loading import load_classifier, load_tokenizer
from strop.types import Rollout, Task


class RewardModel:
    """One component of the reward: the model's logit for each conversation, independent of the batch."""

    def __init__(self, section: RewardModelConfig, device: torch.device) -> None:
        """Load the model. Raises `ModelError` unless it has one label and a chat template."""
        self.name, self.weight = section.name, section.weight
        self._section = section
        self._device = device
        files = ModelConfig(
            path=section.path,
            tokenizer=section.tokenizer,
            dtype=section.dtype,
            trust_remote_code=section.trust_remote_code,
        )
        try:
            self._tokenizer = load_tokenizer(files)
            is_raw = section.text_prompts == "raw"
            if section.chat_template == "tokenizer" and not self._tokenizer.chat_template and not is_raw:
                raise ModelError(
                    f"the tokenizer of {section.tokenizer or section.path} has no chat template; set "
                    "chat_template to a file with the template that the model was trained with."
                )
            self._model: PreTrainedModel = load_classifier(files, device=device)
        except ModelError as error:
            raise ModelError(f"reward.models ({section.name}): {error}") from error
        self._template = PromptEncoder(self._tokenizer, section.chat_template, raw_text=is_raw)
        self._config = self._model.config.get_text_config()
        self._pad_token_id: int | None = self._config.pad_token_id
        positions = getattr(self._config, "max_position_embeddings", None) or math.inf
        (rope_limit, _) = rope_token_limit(self._config) or (math.inf, None)
        self._max_tokens = min(section.max_tokens or positions, rope_limit)

    def score(self, rollouts: Sequence[tuple[Task, Rollout]]) -> list[float | str]:
        """Score of each rollout, or the text of an error."""
        encodings = [self._encode(task, rollout) for task, rollout in rollouts]
        scores: list[float | str] = [each if isinstance(each, str) else math.nan for each in encodings]
        encoded = {i: each for i, each in enumerate(encodings) if not isinstance(each, str)}
        for batch in self._batches(encoded):
            for i, value in zip(batch, self._forward([encoded[i] for i in batch]), strict=True):
                scores[i] = (
                    value if math.isfinite(value) else f"returned {value}; a reward must be a finite number"
                )
        return scores

    def _encode(self, task: Task, rollout: Rollout) -> list[int] | str:
        """Tokens of the conversation, or the text of an error."""
        messages = [*task.messages, {"role": "assistant", "content": rollout.text}]
        try:
            if self._section.text_prompts == "raw" and isinstance(task.prompt_value, str):
                end = self._tokenizer.eos_token if self._section.append_eos else ""
                text = task.prompt_value + rollout.text + end
            else:
                text = self._template.render("the conversation", messages, task.tools, prompt=False)
        except DataError as error:
            return f"could not encode the conversation: {error}"
        # The template contains the special tokens.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if max(ids, default=0) >= self._config.vocab_size:
            return f"the conversation has token {max(ids)}, but the model's are 0 to {self._config.vocab_size - 1}"
        if len(ids) <= self._max_tokens:
            return ids
        max_tokens = int(self._max_tokens)
        match self._section.overlong:
            case "left":
                return ids[-max_tokens:]
            case "right":
                return ids[:max_tokens]
            case _:
                return (
                    f"could not encode the conversation: it has {len(ids)} tokens, and the limit is "
                    f"{max_tokens}. Set overlong to left or right to truncate it, or lower max_response_tokens"
                )

    def _batches(self, encoded: dict[int, list[int]]) -> Iterator[list[int]]:
        """Batches of indices in order of descending length, so that little padding is needed."""
        microbatch, batch = self._section.microbatch, list[int]()
        for i in sorted(encoded, key=lambda i: -len(encoded[i])):
            cost = len(encoded[batch[0]]) if batch and microbatch.unit == "tokens" else 1
            if batch and (len(batch) + 1) * cost > microbatch.count:
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
        """The model's padding token; without one, a token that is not in the batch.

        transformers takes the last token that is not padding for the end of a conversation.
        """
        if self._pad_token_id is not None:
            return self._pad_token_id
        used = {token for tokens in batch for token in tokens}
        unused = next(token for token in range(self._config.vocab_size) if token not in used)
        self._config.pad_token_id = unused
        return unused
