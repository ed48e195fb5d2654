"""Tensor parallelism divides the matrices of every family with a plan, and says why another cannot be divided.

What it learns is compared with one process in `test_layouts.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from strop.config.schema.model import ModelConfig
from strop.errors import ModelError
from strop.models.loading import load_model
from strop.models.lora import add_lora
from strop.models.tiny import make_model
from strop.training.backends.fsdp2 import Fsdp2Engine
from strop.training.backends.local import LocalEngine
from strop.training.parallel.tensor import divide_matrices
from strop.training.ranks.group import RankGroup
from tests.models.families import family_folder
from tests.training.test_layouts import ALL, assert_divided
from tests.training.test_local_engine import batch_of
from tests.training.test_ranks import FULL_KL, close, learn, the_run, weights


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    with closing(RankGroup(2, "cpu")) as group:
        yield group


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "gemma2", "phi3", "cohere"] if ALL else ["qwen3"])
def test_divided_matrices_learn_what_whole_ones_learn(pair: RankGroup, tmp_path: Path, family: str) -> None:
    """Norms of heads (Qwen3), scaled embeddings and softcaps (Gemma 2), joined projections (Phi-3), logit scales."""
    run = the_run(family_folder(tmp_path, family), algorithm=FULL_KL, tensor_parallel=2)
    alone, ranked = LocalEngine(run), Fsdp2Engine(pair, run)
    assert_divided(pair, ranked, run)
    close(learn(ranked, run, range(2)), learn(alone, run, range(2)), 1e-3)
    close(weights(ranked), weights(alone), 1e-3)


@pytest.mark.slow
def test_a_vocabulary_that_the_ranks_do_not_divide_stays_whole(pair: RankGroup, tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", ["one and one"], vocab_size=280, hidden_size=32, tied=False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.resize_token_embeddings(model.config.vocab_size | 1)
    model.save_pretrained(folder)
    run = the_run(folder, tensor_parallel=2)
    batch = batch_of()
    alone, ranked = LocalEngine(run), Fsdp2Engine(pair, run)
    close(learn(ranked, run, range(1)), learn(alone, run, range(1)))
    close(ranked.entropies(batch.experiences), alone.entropies(batch.experiences))


@pytest.mark.parametrize(
    ("family", "values", "message"),
    [
        ("qwen2", {"heads": 3, "kv_heads": 1, "hidden_size": 36}, "does not divide the 3 attention heads"),
        ("qwen2", {"heads": 4, "kv_heads": 1}, "does not divide the 1 key-value heads"),
        ("qwen3_moe", {}, "its plan in transformers has the styles .*experts"),
        ("lfm2", {}, "no tensor-parallel plan|has the styles"),
        ("head adapter", {}, "Add them to model.lora.exclude"),
    ],
)
def test_models_whose_matrices_cannot_be_divided_are_refused(
    tmp_path: Path, family: str, values: dict[str, Any], message: str
) -> None:
    if values:
        folder = make_model(tmp_path / "model", ["one"], vocab_size=280, **{"hidden_size": 32, **values})
    else:
        folder = family_folder(tmp_path, "qwen2" if family == "head adapter" else family)
    section = ModelConfig.model_validate({"path": str(folder), "dtype": "float32"})
    model = load_model(section, device="cpu")
    if family == "head adapter":
        lora = ModelConfig.model_validate({"path": str(folder), "lora": {"rank": 2, "targets": ["lm_head"]}})
        assert lora.lora is not None
        adapted: torch.nn.Module = add_lora(model, lora.lora, torch.float32)
    else:
        adapted = model

    class TwoRanks:
        """A mesh of two ranks, of which only the size is read before a refusal."""

        def size(self) -> int:
            return 2

    with pytest.raises(ModelError, match=message):
        divide_matrices(adapted, adapted, TwoRanks())  # type: ignore[arg-type]
