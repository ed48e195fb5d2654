"""End tokens and the size of the embedding, from the files of a model folder."""

from __future__ import annotations

import json

import numpy as np
import pytest

from strop.data.encoding.model_tokens import ModelTokens
from strop.errors import DataError, ModelError


@pytest.mark.parametrize(
    ("config", "generation", "found"),
    [
        ({"vocab_size": 9, "eos_token_id": 3}, None, ({1, 3}, 9)),
        ({"vocab_size": 9, "eos_token_id": [3, 4]}, None, ({1, 3, 4}, 9)),
        ({"vocab_size": 9, "eos_token_id": 3}, {"eos_token_id": [5, 6]}, ({1, 5, 6}, 9)),
        ({"vocab_size": 9, "eos_token_id": 3}, {"temperature": 1.0}, ({1}, 9)),
        ({"vocab_size": 9}, {"eos_token_id": 5}, ({1, 5}, 9)),
        # The class of the model has the rest.
        ({"vocab_size": 9}, None, None),
        ({"eos_token_id": 3}, None, None),
        ({"text_config": {"vocab_size": 9}, "vocab_size": 9, "eos_token_id": 3}, None, None),
    ],
)
def test_the_tokens_of_a_folder(tmp_path, tokenizer, config, generation, found):
    (tmp_path / "config.json").write_text(json.dumps(config))
    if generation is not None:
        text = generation if isinstance(generation, str) else json.dumps(generation)
        (tmp_path / "generation_config.json").write_text(text)
    tokens = ModelTokens.of_folder(str(tmp_path), tokenizer)
    assert (tokens and (tokens.end_ids, tokens.vocab_size)) == found


@pytest.mark.parametrize("generation", ["damaged", '{"eos_token_id": "</s>"}'])
def test_a_damaged_generation_config_is_refused(tmp_path, tokenizer, generation):
    (tmp_path / "config.json").write_text('{"vocab_size": 9, "eos_token_id": 3}')
    (tmp_path / "generation_config.json").write_text(generation)
    with pytest.raises(ModelError, match=r"generation_config\.json"):
        ModelTokens.of_folder(str(tmp_path), tokenizer)


def test_a_tokenizer_alone_has_its_own_end_token(tokenizer):
    assert ModelTokens.of_tokenizer(tokenizer).end_ids == {tokenizer.eos_token_id}
    assert ModelTokens.of_tokenizer(tokenizer).vocab_size is None


def test_a_token_without_a_row_of_the_embedding_is_named(tokenizer):
    last = len(tokenizer) - 1
    tokens = ModelTokens("model", frozenset({1}), last)
    assert tokens.has_unknown(tokenizer)
    assert not ModelTokens("model", frozenset({1}), last + 1).has_unknown(tokenizer)
    tokens.require_known(np.array([0, last - 1], np.int32), "line 1", tokenizer)
    with pytest.raises(DataError) as caught:
        tokens.require_known(np.array([0, last, last - 1], np.int32), "line 1", tokenizer)
    token = tokenizer.convert_ids_to_tokens(last)
    assert str(caught.value).startswith(
        f"line 1: the token {token!r} has the id {last}, and the embedding of model has"
    )
    assert "resize_token_embeddings" in str(caught.value)
