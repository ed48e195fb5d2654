"""Several ranks learn what one process learns, and each holds only its part."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from strop.algorithms import table
from strop.algorithms.value_losses import ValueLoss
from strop.config.schema import Run
from strop.errors import CheckpointError, TrainingError
from strop.models.tiny import make_model
from strop.protocols import TrainingEngine
from strop.training.learner import Learner
from strop.training.ranks.engines import RankedEngine, RankedValueEngine
from strop.training.ranks.group import RankGroup
from strop.training.single import SingleEngine
from strop.training.value import ValueEngine
from strop.types import GlobalCounts, MicroBatch
from tests.training.test_single import make_run, micro_batches

KL = {"type": "grpo", "kl_loss": {"coef": 0.1}}
FULL_KL = {"type": "grpo", "kl_loss": {"coef": 0.1, "estimator": "full"}}
LORA = {"lora": {"rank": 4, "alpha": 8}}
CASES = {
    "full": ({}, {"type": "grpo"}),
    "reference": ({}, KL),
    "full kl": ({}, FULL_KL),
    "lora": (LORA, KL),
    "lora, full kl": (LORA, FULL_KL),
    "mixed": ({"compute_dtype": "bfloat16"}, {"type": "grpo"}),
}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    return make_model(path, ["one and one is two"], vocab_size=280, hidden_size=32)


@pytest.fixture(scope="module")
def pair() -> Iterator[RankGroup]:
    with closing(RankGroup(2, "cpu")) as group:
        yield group


def the_run(folder: Path, model: Any = None, algorithm: Any = "grpo", engine: Any = "fsdp2") -> Run:
    trainer = {"optimizer": {"type": "adamw", "lr": 0.01}, "engine": {"type": engine, "device": "cpu"}}
    return make_run(folder, model or {}, trainer=trainer, algorithm=algorithm)


def counts_of(batches: Sequence[MicroBatch]) -> GlobalCounts:
    return GlobalCounts(sum(int(batch.loss_mask.sum()) for batch in batches), 12)


def learn(engine: TrainingEngine, run: Run, seeds: range) -> list[dict[str, float]]:
    """An update for each seed: what it measured, and the norm of its gradient."""
    loss_fn, rows = table.loss_fn(run.algorithm, max_response_tokens=64), []
    divergence = run.algorithm.kl_loss is not None and run.algorithm.kl_loss.estimator == "full"
    for seed in seeds:
        batches = micro_batches(engine, seed=seed)
        if run.algorithm.kl_loss is not None and not divergence:
            reference = engine.logprobs(batches, reference=True)
            pairs = zip(batches, reference, strict=True)
            batches = [replace(batch, ref_logprobs=logprobs) for batch, logprobs in pairs]
        row = engine.forward_backward(
            batches, loss_fn, counts_of(batches), entropy=True, divergence=divergence
        )
        rows.append({**row, "grad_norm": engine.step()})
    return rows


def weights(engine: TrainingEngine) -> dict[str, Tensor]:
    return {name: weight.clone() for name, weight in engine.iter_weights()}


def close(first: Any, second: Any, tolerance: float = 1e-4) -> None:
    torch.testing.assert_close(first, second, rtol=tolerance, atol=tolerance)


def part(engine: Learner) -> int:
    """How many numbers of the trained parameters this rank holds; on each rank of a group."""
    return sum(p.to_local().numel() for p in engine.master.parameters() if p.requires_grad)


@pytest.mark.parametrize(("model", "algorithm"), CASES.values(), ids=CASES)
def test_two_ranks_learn_what_one_process_learns(pair, model_folder, model, algorithm):
    run = the_run(model_folder, model, algorithm)
    alone, ranked = SingleEngine(run), RankedEngine(pair, run)
    assert len(micro_batches(alone)) % 2 == 1  # so one rank has an idle one
    tolerance = 0.05 if "compute_dtype" in model else 1e-4
    close(learn(ranked, run, range(3)), learn(alone, run, range(3)), tolerance)
    close(weights(ranked), weights(alone), tolerance)
    batches = micro_batches(alone)[:3]
    close(ranked.logprobs(batches), alone.logprobs(batches), tolerance)
    if algorithm is FULL_KL:
        close(ranked.divergences(batches), alone.divergences(batches), tolerance)


def test_each_rank_holds_its_part_of_the_parameters(pair, model_folder):
    ranked = RankedEngine(pair, the_run(model_folder))
    whole = sum(weight.numel() for weight in weights(ranked).values())
    with pair.others("policy", part) as others:
        own = part(ranked._own)
    assert own + others[0] == whole
    assert 0.4 < own / whole < 0.6


@pytest.mark.parametrize("model", ({}, LORA), ids=("full", "lora"))
def test_what_two_ranks_saved_goes_on_with_two_and_with_one(pair, model_folder, model, tmp_path):
    run = the_run(model_folder, model)
    ranked = RankedEngine(pair, run)
    learn(ranked, run, range(2))
    ranked.snapshot().begin(tmp_path)()
    expected = learn(ranked, run, range(2, 4))
    again = RankedEngine(pair, run)
    again.load(tmp_path)
    assert learn(again, run, range(2, 4)) == expected
    alone = SingleEngine(run)
    alone.load(tmp_path)
    close(learn(alone, run, range(2, 4)), expected)


def test_dropout_goes_on_where_it_was_on_each_rank(pair, model_folder, tmp_path):
    run = the_run(model_folder, {"lora": {"rank": 4, "dropout": 0.3}})
    ranked = RankedEngine(pair, run)
    learn(ranked, run, range(1))
    ranked.snapshot().begin(tmp_path)()
    expected = learn(ranked, run, range(1, 2))
    assert learn(RankedEngine(pair, run), run, range(1, 2)) != expected
    again = RankedEngine(pair, run)
    again.load(tmp_path)
    assert learn(again, run, range(1, 2)) == expected


def test_an_export_is_the_model(pair, model_folder, tmp_path):
    run = the_run(model_folder, LORA)
    ranked = RankedEngine(pair, run)
    learn(ranked, run, range(2))
    ranked.export(AutoTokenizer.from_pretrained(model_folder), tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    held = dict(model.state_dict())
    for name, weight in weights(ranked).items():
        close(held[name], weight)
    assert (tmp_path / "out" / "adapter" / "adapter_model.safetensors").is_file()


def test_a_critic_on_two_ranks_learns_what_it_learns_on_one(pair, model_folder, tmp_path):
    run = the_run(model_folder, algorithm="ppo")
    critic, rows = run.algorithm.critic, []
    engines = (ValueEngine(run, critic), RankedValueEngine(pair, run, critic))
    for engine in engines:
        batches = [
            replace(batch, values=torch.zeros(len(batch.token_ids)), returns=torch.ones(len(batch.token_ids)))
            for batch in micro_batches(engine)
        ]
        engine.set_lr(0.01)
        for _ in range(2):
            row = dict(engine.forward_backward(batches, ValueLoss(None), counts_of(batches)))
            rows.append(row | {"grad_norm": engine.step()})
    close(rows[:2], rows[2:])
    batches = micro_batches(engines[0])
    close(engines[1].values(batches), engines[0].values(batches))
    engines[1].snapshot().begin(tmp_path)()
    engines[0].load(tmp_path)
    close(engines[1].values(batches), engines[0].values(batches), 1e-6)


def test_a_checkpoint_of_another_model_is_refused_on_all_ranks(pair, model_folder, tmp_path):
    RankedEngine(pair, the_run(model_folder)).snapshot().begin(tmp_path)()
    with pytest.raises(CheckpointError, match="other weights"):
        RankedEngine(pair, the_run(model_folder, LORA)).load(tmp_path)


def test_an_optimizer_that_looks_at_whole_parameters_is_refused(model_folder):
    trainer = {"optimizer": "adafactor", "engine": {"type": "fsdp2"}}
    with pytest.raises(ValidationError, match="adafactor looks at whole ones"):
        make_run(model_folder, trainer=trainer)


def fail(engine: Learner) -> None:
    raise TrainingError("the loss of a micro-batch is nan")


def stumble(engine: Learner) -> None:
    raise KeyError("something")


def die(engine: Learner) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


FAULTS = {
    "fail": "^the loss of a micro-batch is nan$",
    "stumble": r"^Rank 1 of the trainer failed:(.|\n)*KeyError: 'something'",
    "die": r"^Rank 1 of the trainer ended by signal 9 \(Killed\)",
}
SCRIPT = """
import sys
from contextlib import closing
from pathlib import Path
from strop.errors import StropError
from strop.training.ranks.engines import RankedEngine
from strop.training.ranks.group import RankGroup
from tests.training import test_ranks

for fault in test_ranks.FAULTS:
    with closing(RankGroup(2, "cpu")) as group:
        engine = RankedEngine(group, test_ranks.the_run(Path(sys.argv[1])))
        try:
            with group.others("policy", getattr(test_ranks, fault)):
                dict(engine._own.iter_weights())
        except StropError as error:
            print(error, end="|")
"""


def test_what_befalls_one_rank_is_said_by_the_first(model_folder, tmp_path):
    """While the first is in a collective, which would wait for the other for ever. In a process of its own,
    since a process is in one group only."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(model_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    said = done.stdout.split("|")[:-1]
    assert len(said) == len(FAULTS), done.stdout + done.stderr
    for message, expected in zip(said, FAULTS.values(), strict=True):
        assert re.search(expected, message), message
