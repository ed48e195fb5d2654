"""Tokens of a model: those that end a response, and those that its embedding has a row for."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from strop.config.model_files import check_model_files, read_model_file
from strop.config.paths import existing_path
from strop.errors import DataError
from strop.types import IntArray

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CONFIG, _GENERATION_CONFIG = "config.json", "generation_config.json"


@dataclass(frozen=True, slots=True)
class ModelTokens:
    """End tokens and the size of the embedding of a model."""

    model: str
    """Folder or name of the model, for messages."""
    end_ids: frozenset[int]
    """Tokens at which sampling stops: see `eos_token_ids`."""
    vocab_size: int | None
    """Rows of the embedding; None where it is not known."""

    @classmethod
    def of(
        cls, model: str, config: Any, generation_config: Any, tokenizer: PreTrainedTokenizerBase
    ) -> ModelTokens:
        """The tokens of a model by its configurations; `generation_config` is None for a model without one."""
        text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
        return cls(model, eos_token_ids(config, generation_config, tokenizer), int(text_config.vocab_size))

    @classmethod
    def of_folder(cls, path: str, tokenizer: PreTrainedTokenizerBase) -> ModelTokens | None:
        """The tokens of a model folder on this machine, without torch; None where its files leave them to the model's
        class. Raises `ModelError` for files with values that no model has."""
        check_model_files(path)
        folder = existing_path(path)
        config, generation = (read_model_file(path, name) for name in (_CONFIG, _GENERATION_CONFIG))
        if folder is None or "text_config" in config or not config.get("vocab_size"):
            return None
        if not generation and ((folder / _GENERATION_CONFIG).is_file() or "eos_token_id" not in config):
            return None
        given = SimpleNamespace(**generation) if generation else None
        return cls.of(path, SimpleNamespace(**config), given, tokenizer)

    @classmethod
    def of_tokenizer(cls, tokenizer: PreTrainedTokenizerBase) -> ModelTokens:
        """The tokens of the folder that the tokenizer is in; elsewhere the tokenizer's own end token."""
        path = str(tokenizer.name_or_path)
        if (found := cls.of_folder(path, tokenizer)) is not None:
            return found
        return cls(path, eos_token_ids(None, None, tokenizer), None)

    def end_texts(self, tokenizer: PreTrainedTokenizerBase) -> dict[int, str]:
        """Text of each end token that a text can hold: those that the tokenizer takes out of a text as one token."""
        added = tokenizer.added_tokens_decoder
        texts = {number: str(added[number]) for number in sorted(self.end_ids) if number in added}
        if tokenizer.eos_token_id is not None and tokenizer.eos_token is not None:
            texts.setdefault(int(tokenizer.eos_token_id), str(tokenizer.eos_token))
        return texts

    def has_unknown(self, tokenizer: PreTrainedTokenizerBase) -> bool:
        """Whether the tokenizer has tokens that the embedding has no row for."""
        if self.vocab_size is None:
            return False
        # A vocabulary may have gaps, so that its number of tokens says less than its largest id.
        return max(tokenizer.get_vocab().values(), default=0) >= self.vocab_size

    def require_known(self, token_ids: IntArray, where: str, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raise `DataError` for a token that the embedding has no row for."""
        if self.vocab_size is None or not len(token_ids) or int(token_ids.max()) < self.vocab_size:
            return
        number = int(token_ids[token_ids >= self.vocab_size][0])
        raise DataError(
            f"{where}: the token {str(tokenizer.convert_ids_to_tokens(number))!r} has the id {number}, and the "
            f"embedding of {self.model} has {self.vocab_size} rows (ids 0 to {self.vocab_size - 1}). Give the model a "
            "row for each token of its tokenizer (model.resize_token_embeddings(len(tokenizer)) of transformers, "
            "then save it), or take the token out of the tokenizer or the row."
        )


def eos_token_ids(config: Any, generation_config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """End tokens of the generation config (of the model config if there is none) and of the tokenizer."""
    source = config if generation_config is None else generation_config
    given = getattr(source, "eos_token_id", None)
    ids = list(given) if isinstance(given, list | tuple) else [given]
    return frozenset(int(token) for token in (*ids, tokenizer.eos_token_id) if token is not None)
