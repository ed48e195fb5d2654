"""Each rank's part of a batch, and models, files and sizes that ranks cannot use."""

from __future__ import annotations

import pickle
import pickletools
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import distributed

from strop.algorithms.losses.value_losses import ValueLoss
from strop.algorithms.registry import LossSpec
from strop.config.schema.data import ImagesConfig
from strop.config.schema.model import ModelConfig
from strop.config.units import Amount
from strop.data.packing import pack, plan_micro_batches
from strop.errors import ModelError
from strop.models.loading import load_model
from strop.models.lora import add_lora
from strop.models.meta_loading import MetaLoadingUnsupported, build_on_meta
from strop.models.packed_attention.forward import split_sequences
from strop.models.packed_attention.model_ranks import SequenceGroup
from strop.models.tiny import make_model
from strop.models.vision.model_images import ModelImages
from strop.training.parallel.tensor import divide_matrices
from strop.training.ranks.process import RankCall
from strop.training.ranks.rank import POLICY, Rank
from strop.training.ranks.share import interleave, plan_rank_shares
from strop.training.specs import PolicySpec
from strop.types import GlobalCounts, MicroBatch
from tests.models.families import family_folder
from tests.training.backends import FAMILY_JOBS, JOBS, batch_for, make_runs
from tests.training.test_local_engine import batch_of, make_run

LIMIT = Amount(60, "tokens")


def test_each_rank_gets_its_own_experiences_and_makes_the_micro_batches_of_one_process() -> None:
    batch = batch_of()
    whole = pack(batch, LIMIT, share_prompts=True, device="cpu")
    plans = plan_micro_batches(batch.experiences, LIMIT, share_prompts=True)
    shares = plan_rank_shares(batch, plans, 3)
    assert sorted(n for share in shares for n in share.numbers) == list(range(len(batch.experiences)))
    images = ModelImages(ModelConfig(path="none"), ImagesConfig())
    built = [list(share.micro_batches(torch.device("cpu"), images)) for share in shares]
    assert len({len(each) for each in built}) == 1
    for found, expected in zip(interleave(built), whole, strict=False):
        for field in fields(MicroBatch):
            one, other = getattr(found, field.name), getattr(expected, field.name)
            assert np.array_equal(one, other), field.name


def test_a_rank_without_images_gets_a_placeholder() -> None:
    batch = batch_for(FAMILY_JOBS["images, frozen tower"], 0)
    plans = plan_micro_batches(batch.experiences, Amount(80, "tokens"), share_prompts=True)
    shares = plan_rank_shares(batch, plans, len(plans) + 1)
    assert all(share.needs_placeholders for share in shares)
    assert shares[-1].plans == (None,)
    text_only = batch.select([i for i, e in enumerate(batch.experiences) if not e.media])
    plans = plan_micro_batches(text_only.experiences, Amount(80, "tokens"), share_prompts=True)
    assert not any(share.needs_placeholders for share in plan_rank_shares(text_only, plans, 2))


def test_messages_carry_data_only() -> None:
    """The calls that a rank gets name an operation of its own, and contain no other function."""
    run, _ = make_runs(Path("model"), Path("teacher"), JOBS["KL"], {})
    batch = batch_of()
    plans = plan_micro_batches(batch.experiences, LIMIT, share_prompts=True)
    share = plan_rank_shares(batch, plans, 2)[0]
    counts = GlobalCounts.of(batch.experiences)
    for call in (
        RankCall(Rank.forward_backward, (share, POLICY, LossSpec(run.algorithm, 64), counts), {}),
        RankCall(Rank.critic_forward_backward, (share, ValueLoss(0.2), counts), {}),
        RankCall(Rank.token_values, (share, POLICY, "logprobs"), {}),
        RankCall(Rank.build_policy, (POLICY, PolicySpec.of(run)), {}),
    ):
        opcodes = {argument for _, argument, _ in pickletools.genops(pickle.dumps(call))}
        assert "partial" not in opcodes and "functools" not in opcodes
        assert pickle.loads(pickle.dumps(call)).operation is call.operation


def test_a_model_whose_files_have_other_names_is_not_read_by_shards(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", ["one and one"], vocab_size=280, hidden_size=32, tied=False)
    file = folder / "model.safetensors"
    tensors = {f"x.{n}" if "norm" in n else n: t for n, t in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(MetaLoadingUnsupported, match=r"no tensor named model\.layers\.0\.input_layernorm"):
        build_on_meta(make_run(folder).model)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"ranks": 4, "replicate": 3}, r"ranks \(4\) is not a multiple of replicate \(3\)"),
        ({"ranks": 4, "sequence_parallel": 3}, r"x sequence_parallel \(3\)"),
        ({"type": "deepspeed", "sequence_parallel": 3}, r"not a multiple of sequence_parallel \(3\)"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(engine: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        make_runs(Path("model"), Path("teacher"), JOBS["KL"], engine)


def test_an_optimizer_that_needs_full_parameters_is_refused() -> None:
    with pytest.raises(ValidationError, match="adafactor needs complete parameters"):
        make_run(Path("model"), trainer={"optimizer": "adafactor", "engine": {"type": "fsdp2"}})


THREE_HEADS = {"heads": 3, "kv_heads": 1, "hidden_size": 36}


def loaded(folder: Path, family: str, sizes: dict[str, int]) -> Any:
    """A model of a family, or of these sizes."""
    if sizes:
        make_model(folder / "model", ["one"], vocab_size=280, **{"hidden_size": 32, **sizes})
        path = folder / "model"
    else:
        path = family_folder(folder, family)
    return load_model(ModelConfig(path=str(path), dtype="float32"), device="cpu")


@pytest.mark.parametrize(
    ("family", "sizes", "message"),
    [
        ("qwen2", THREE_HEADS, "which does not divide the 3 attention heads"),
        ("lfm2", {}, "cannot be divided over ranks: it has layers"),
    ],
)
def test_models_whose_tokens_cannot_be_divided_are_refused(
    tmp_path: Path, family: str, sizes: dict[str, int], message: str
) -> None:
    group = SequenceGroup(distributed.GroupMember.NON_GROUP_MEMBER, rank=0, size=2)
    with pytest.raises(ModelError, match=message):
        split_sequences(loaded(tmp_path, family, sizes), group)


class TwoRanks:
    """A mesh of two ranks, of which only the size is read before a refusal."""

    def size(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("family", "sizes", "message"),
    [
        ("qwen2", THREE_HEADS, "does not divide the 3 attention heads"),
        ("qwen2", {"heads": 4, "kv_heads": 1}, "does not divide the 1 key-value heads"),
        ("qwen3_moe", {}, "its plan in transformers has the styles .*experts"),
        ("lfm2", {}, "no tensor-parallel plan|has the styles"),
        ("qwen2, adapter on the head", {}, "Add them to model.lora.exclude"),
    ],
)
def test_models_whose_matrices_cannot_be_divided_are_refused(
    tmp_path: Path, family: str, sizes: dict[str, int], message: str
) -> None:
    name, _, adapter = family.partition(", ")
    model = loaded(tmp_path, name, sizes)
    if adapter:
        section = ModelConfig.model_validate({"path": "none", "lora": {"rank": 2, "targets": ["lm_head"]}})
        model = add_lora(model, section.lora, torch.float32)
    with pytest.raises(ModelError, match=message):
        divide_matrices(model, model, TwoRanks())  # type: ignore[arg-type]
