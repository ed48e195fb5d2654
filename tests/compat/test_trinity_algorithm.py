"""Tests of Trinity's `algorithm` section: presets of each `algorithm_type`, functions and their arguments."""

from __future__ import annotations

from collections import Counter

import pytest

from strop.compat.ledger.writer import write_dialect
from strop.compat.trinity.reader import LEDGER
from strop.config.schema.algorithm import PpoConfig, SftConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.optimizer import AdamWConfig, ConstantScheduleConfig
from strop.config.schema.policy_gradient import CriticConfig, KlLossConfig
from strop.config.units import Amount
from strop.errors import ConfigError

from .trinity_file import read

NO_WARMUP = Amount(0.0, "%")
SFT = (
    "algorithm.algorithm_type=sft",
    "mode=train",
    "+buffer.trainer_input.experience_buffer={path: demonstrations.jsonl, storage_type: file}",
)
PPO = "algorithm.algorithm_type=ppo"
CRITIC = "trainer.trainer_config.critic"
MIX = (
    "algorithm.algorithm_type=mix",
    "+buffer.trainer_input.auxiliary_buffers.sft_dataset={path: expert.jsonl, "
    "format: {prompt_key: q, response_key: a}}",
)


def test_ppo_critic_defaults_equal_the_page() -> None:
    run = read(PPO, "~algorithm.repeat_times").run
    assert isinstance(run.algorithm, PpoConfig)
    assert (run.algorithm.rollouts_per_task, run.algorithm.gamma, run.algorithm.lam) == (1, 1.0, 1.0)
    assert run.algorithm.kl_loss == KlLossConfig(estimator="k2", coef=0.001)
    assert run.algorithm.critic == CriticConfig(
        model=ModelConfig(path="m", gradient_checkpointing=True, compute_dtype="bfloat16"),
        head="normal",
        value_clip=0.5,
        epochs_per_step=1,
        microbatch=Amount(32768, "tokens"),
        optimizer=AdamWConfig(lr=1e-5, weight_decay=0.01),
        schedule=ConstantScheduleConfig(warmup=NO_WARMUP),
        max_grad_norm=1.0,
    )


def test_inactive_keys_have_notices() -> None:
    notes = read(f"{CRITIC}.optim.lr=1e-4", "algorithm.advantage_fn_args.lam=0.9", *MIX[1:]).notes
    assert Counter(note.partition("inactive, because ")[2] for note in notes) == {
        "the advantages are grpo's.": 2,
        "algorithm_type grpo with sample_strategy default reads no demonstrations.": 3,
    }
    assert read(PPO, f"{CRITIC}.optim.lr=1e-4").notes == ()


CPT = ("algorithm.algorithm_type=cpt", *SFT[1:])


def test_continued_pretraining() -> None:
    """trinity/buffer/schema/formatter.py (CPTFormatter): the column `prompt_key`, tokenized as it is, and all
    tokens but the first trained on; trinity/algorithm/algorithm.py (CPTAlgorithm): a kind of SFTAlgorithm."""
    at = "buffer.trainer_input.experience_buffer.format"
    read_of = read(*CPT, f"+{at}.prompt_type=plaintext", f"+{at}.prompt_key=body")
    assert read_of.run.algorithm == SftConfig()
    assert read_of.run.data.train.text == "body" and read_of.run.data.train.response is None
    assert read(*CPT).run.data.train.text == "prompt"
    written = write_dialect(LEDGER, read_of.run).values
    assert written["algorithm.algorithm_type"] == "cpt" and written[f"{at}.prompt_key"] == "body"
    notes = "\n".join(map(str, read(*CPT, f"+{at}.response_key=answer").notes))
    assert f"{at}.response_key" in notes and "inactive, because algorithm_type is cpt" in notes
    with pytest.raises(ConfigError, match=r"cpt trains on plain text.*algorithm_type: sft"):
        read(*CPT, f"+{at}.messages_key=messages")
    weighted = read(*CPT, "algorithm.policy_loss_fn=sft_phi").run.algorithm
    assert weighted == SftConfig(token_weight="p_one_minus_p")
