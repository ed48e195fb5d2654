"""Tokens that end an answer."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

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
        self._rows: dict[Hashable, int] = {}

    def row(self, key: Hashable, tokens: Callable[[], Iterable[int]]) -> int:
        """Where in the table the set of this name stands; `tokens` says what is in it, when it is new."""
        if key not in self._rows:
            new = self.table.new_zeros(1, self.table.shape[1])
            new[0, [token for token in tokens() if 0 <= token < self.table.shape[1]]] = True
            self.table = torch.cat((self.table, new))
            self._rows[key] = len(self._rows)
        return self._rows[key]


def ending_tokens(sampling: Sampling, end_tokens: frozenset[int]) -> frozenset[int]:
    """What ends an answer that is drawn so."""
    stops = frozenset(sampling.stop_token_ids)
    return stops if sampling.ignore_eos else stops | end_tokens
