"""Tests that real configurations of Trinity 0.3 and 0.6 are read, and of the algorithms that they name."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from strop.config.schema.buffer import PriorityBufferConfig
from strop.config.schema.group_baselines import ImitationScheduleConfig, MixConfig
from strop.config.schema.inference_engine import OpenAiEngineConfig
from strop.config.schema.policy_gradient import KlLossConfig
from strop.config.schema.policy_loss import (
    ImportanceSamplingLossConfig,
    RecLossConfig,
    SapoLossConfig,
    SppoLossConfig,
    ToprLossConfig,
)
from strop.dialects.ledger.writer import write_dialect
from strop.dialects.trinity.reader import LEDGER, read_trinity
from strop.errors import ConfigError, StropError

from .trinity_file import read, value

CORPORA = Path(__file__).parents[3] / "shared" / "configs"
LEAST_READ = {"trinity-2025-10": 19, "trinity-2026-04": 22}
"""The other files need Data-Juicer operators, images, a model behind an API, or a plug-in."""
KIND = "algorithm.algorithm_type"
BUFFER = "+buffer.trainer_input.experience_buffer"
EXPERT = (
    "+buffer.trainer_input.auxiliary_buffers.sft_dataset={path: expert.jsonl, total_epochs: 25, schema_type: sft, "
    "format: {prompt_key: q, response_key: a}}"
)


@pytest.mark.skipif(not CORPORA.exists(), reason="the corpora are not in ../shared")
def test_the_corpora_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = "AUX_MODEL_PATH BUFFER_PATH CHECKPOINT_ROOT_DIR EVAL_TASKSET_PATH MODEL_PATH SFT_DATASET_PATH TASKSET_PATH"
    for name in names.split():
        monkeypatch.setenv(f"TRINITY_{name}", "x")
    file, found = tmp_path / "file.yaml", Counter[str]()
    for corpus in LEAST_READ:
        for line in (CORPORA / f"{corpus}.jsonl").read_text(encoding="utf-8").splitlines():
            file.write_text(json.loads(line)["yaml"], encoding="utf-8")
            try:
                read_trinity(file, here=True)
            except StropError:
                continue
            found[corpus] += 1
    assert all(found[corpus] >= least for corpus, least in LEAST_READ.items()), found


@pytest.mark.usefixtures("trinity_file")
@pytest.mark.parametrize(
    ("overrides", "field", "expected"),
    [
        ([f"{KIND}=multi_step_grpo"], "type", "grpo"),
        ([f"{KIND}=multi_step_grpo", "buffer.train_batch_size=999"], "type", "grpo"),
        ([f"{KIND}=grpo", "algorithm.advantage_fn_args.std_cal_level=batch"], "std_over", "step"),
        ([f"{KIND}=raft", "~algorithm.repeat_times"], "rollouts_per_task", 1),
        ([f"{KIND}=raft"], "policy_loss.type", "gpg"),
        ([f"{KIND}=raft"], "kl_loss", None),
        ([f"{KIND}=topr"], "type", "reinforce"),
        ([f"{KIND}=topr"], "policy_loss", ToprLossConfig()),
        (
            [f"{KIND}=sppo", "+algorithm.policy_loss_fn_args.epsilon=0.1"],
            "policy_loss",
            SppoLossConfig(clip=0.1),
        ),
        ([f"{KIND}=sppo"], "type", "opmd"),
        ([f"{KIND}=asymre"], "baseline_shift", -0.1),
        ([f"{KIND}=cispo"], "policy_loss.type", "cispo"),
        (
            [
                f"{KIND}=rec",
                "+algorithm.policy_loss_fn_args={clip_mode: one-side, weight: importance_sampling}",
            ],
            "policy_loss",
            RecLossConfig(clipping="one_side", weight="ratio"),
        ),
        (
            [f"{KIND}=sapo", "+algorithm.policy_loss_fn_args={tau_neg: 1.5}"],
            "policy_loss",
            SapoLossConfig(tau_neg=1.5, gate="weight"),
        ),
        (
            ["+algorithm.policy_loss_fn=importance_sampling"],
            "policy_loss",
            ImportanceSamplingLossConfig(),
        ),
        (
            ["+algorithm.kl_loss_fn=corrected_k3"],
            "kl_loss",
            KlLossConfig(estimator="k3", weight_by_ratio=True, max_ratio=2.0),
        ),
        ([f"{KIND}=rec"], "divide_by_std", False),
        ([], "old_policy", "sampler"),
        (["+trainer.trainer_config.algorithm.rollout_correction.bypass_mode=false"], "old_policy", "trainer"),
    ],
)
def test_algorithms(overrides: list[str], field: str, expected: Any) -> None:
    loaded = read(*overrides)
    assert value(loaded, f"algorithm.{field}") == expected
    assert write_dialect(LEDGER, loaded.run).unsupported == ()


@pytest.mark.usefixtures("trinity_file")
def test_mix_chord_has_a_schedule_and_weights() -> None:
    args = "+algorithm.policy_loss_fn_args={mu_warmup_steps: 200, mu_decay_steps: 400, mu_peak: 0.5, mu_valley: 0.02}"
    run = read(f"{KIND}=mix_chord", EXPERT, args).run
    assert isinstance(run.algorithm, MixConfig)
    assert (run.algorithm.mu, run.algorithm.expert_weight) == (0.5, "p_one_minus_p")
    assert run.algorithm.mu_schedule == ImitationScheduleConfig(warmup_steps=200, decay_steps=400, final=0.02)
    assert write_dialect(LEDGER, run).unsupported == ()


@pytest.mark.usefixtures("trinity_file")
def test_the_replay_buffer_is_a_priority_queue() -> None:
    replay = (
        "{enable: true, priority_fn: decay_limit_randomization, priority_fn_args: {decay: 0.1, sigma: 2.0}}"
    )
    run = read(f"{BUFFER}.replay_buffer={replay}", "+synchronizer.sync_style=explorer_driven").run
    assert isinstance(run.buffer, PriorityBufferConfig)
    assert (run.buffer.use_penalty, run.buffer.noise, run.buffer.max_uses) == (0.1, 2.0, 3)
    assert run.synchronizer.type == "collective" and run.synchronizer.style.type == "on_request"


@pytest.mark.usefixtures("trinity_file")
def test_parsers_of_replies_have_vllms_names() -> None:
    at = "++explorer.rollout_model"
    loaded = read(f"{at}.tool_call_parser=deepseek_v31", f"{at}.reasoning_parser=deepseek_r1")
    endpoint = loaded.run.rollout.endpoint
    assert (endpoint.tool_call_parser, endpoint.reasoning_parser) == ("deepseek", "deepseek_r1")
    written = write_dialect(LEDGER, loaded.run)
    assert written.unsupported == ()
    with pytest.raises(
        ConfigError, match=r"pythonic, a parser that Strop does not have; it has hermes, llama3_json"
    ):
        read(f"{at}.tool_call_parser=pythonic")


@pytest.mark.usefixtures("trinity_file")
def test_thinking_is_a_variable_of_the_chat_template() -> None:
    for key in ("explorer.rollout_model.enable_thinking", "model.enable_thinking"):
        run = read(f"++{key}=false").run
        assert run.data.chat_template_args == {"enable_thinking": False}
        assert write_dialect(LEDGER, run).unsupported == ()
    with pytest.raises(ConfigError, match="differ; write one of them"):
        read("++explorer.rollout_model.enable_thinking=false", "++model.enable_thinking=true")


@pytest.mark.usefixtures("trinity_file")
def test_an_external_model_is_evaluated_on_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """examples/bench/external_model.yaml (Trinity 0.6) has no taskset to train on."""
    external = "+model.external_model={enable: true, model_name: big, api_key_env: KEY}"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:8000/v1")
    run = read(external, "mode=bench", "~buffer.explorer_input.taskset").run
    assert run.rollout.engine == OpenAiEngineConfig(
        base_url="http://localhost:8000/v1", model="big", api_key_env="KEY", api="chat"
    )
    assert run.data.train.path == run.data.eval[0].path
    monkeypatch.delenv("OPENAI_BASE_URL")
    assert read(external, "mode=bench").run.rollout.engine.base_url == "https://api.openai.com/v1"
    with pytest.raises(ConfigError, match="only mode: bench supports"):
        read(external)
