"""Tokens that end an answer."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase

from strop.types import Sampling


def end_token_ids(
    config: PretrainedConfig,
    generation_config: GenerationConfig | None,
    tokenizer: PreTrainedTokenizerBase,
) -> frozenset[int]:
    """The generation config's end tokens (the model config's, where there is none), and the tokenizer's."""
    source = config if generation_config is None else generation_config
    given = getattr(source, "eos_token_id", None)
    ids = list(given) if isinstance(given, list | tuple) else [given]
    return frozenset(int(token) for token in (*ids, tokenizer.eos_token_id) if token is not None)


class TokenSets:
    """Sets of tokens as rows of one bool table [sets, V]: rows with different sets are one look-up."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self.table = torch.zeros(0, vocab_size, dtype=torch.bool, device=device)
        self._rows: dict[frozenset[int], int] = {}

    def row(self, tokens: frozenset[int]) -> int:
        """Where in the table this set stands; tokens beyond the vocabulary are never drawn, and left out."""
        if tokens not in self._rows:
            new = self.table.new_zeros(1, self.table.shape[1])
            new[0, [token for token in tokens if 0 <= token < self.table.shape[1]]] = True
            self.table = torch.cat((self.table, new))
            self._rows[tokens] = len(self._rows)
        return self._rows[tokens]


def ending_tokens(sampling: Sampling, end_tokens: frozenset[int]) -> frozenset[int]:
    """What ends an answer that is drawn so."""
    stops = frozenset(sampling.stop_token_ids)
    return stops if sampling.ignore_eos else stops | end_tokens
