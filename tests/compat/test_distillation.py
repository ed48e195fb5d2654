"""On-policy distillation as verl and Trinity configure it: the same meaning, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from strop.compat.ledger.reader import read_ignoring_placement
from strop.compat.ledger.writer import config_tree_from_values, write_dialect
from strop.compat.trinity.reader import LEDGER as TRINITY
from strop.compat.verl.ppo_trainer import LEDGER, read_verl
from strop.config.schema import Run
from strop.config.schema.algorithm import DistillationOnlyConfig, GrpoConfig
from strop.config.schema.distillation import ForwardKlConfig, SampledJsdConfig, TeacherConfig
from strop.config.schema.policy_loss import ClippedLossConfig, ImportanceSamplingLossConfig
from strop.config.semantic_diff import semantic_diff
from strop.errors import ConfigError

from .trinity_file import read

LOSS, MODELS = "distillation.distillation_loss", "distillation.teacher_models"
ROLLOUT = "actor_rollout_ref.rollout"
BASE = ("data.val_files=null", "algorithm.adv_estimator=grpo", "distillation.enabled=True")
ONE = f"{MODELS}.teacher_model.model_path=Qwen/Qwen3-32B"
ALONE = f"{LOSS}.use_task_rewards=False"


def verl(*words: str) -> Run:
    return read_verl([*BASE, *words], here=True).run


def test_verls_example_with_a_policy_gradient() -> None:
    """run_qwen3_8b_fsdp.sh: no task rewards, so that GRPO with one response per prompt is no fault."""
    run = verl(ONE, f"{ROLLOUT}.n=1", ALONE, f"{LOSS}.loss_mode=k1", f"{LOSS}.use_policy_gradient=True",
               f"{LOSS}.loss_max_clamp=10.0", f"{LOSS}.clip_ratio_high=0.3",
               "actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.entropy_coeff=0.1",
               "actor_rollout_ref.actor.policy_loss.loss_mode=gspo")  # fmt: skip
    algorithm = run.algorithm
    assert isinstance(algorithm, DistillationOnlyConfig)
    section = algorithm.distillation
    assert section.teachers == (TeacherConfig(path="Qwen/Qwen3-32B"),)
    assert section.loss is None and section.reward is not None
    assert (section.reward.divergence.estimator, section.reward.coef) == ("k1", 1.0)
    assert (section.reward.max_divergence, section.temperature) == (10.0, 1.0)
    assert algorithm.policy_loss == ClippedLossConfig(clip_low=0.2, clip_high=0.3, dual_clip=3.0)
    assert (algorithm.kl_loss, algorithm.entropy_coef, algorithm.rollouts_per_task) == (None, 0.0, 1)
    assert algorithm.aggregation == "token-mean"


def test_verls_example_with_the_top_tokens_of_the_teacher() -> None:
    """run_qwen3_8b_megatron.sh; the bound of log-probs has an effect only here."""
    words = (
        ONE,
        ALONE,
        f"{LOSS}.loss_mode=forward_kl_topk",
        f"{LOSS}.topk=64",
        f"{LOSS}.log_prob_min_clamp=-10",
    )
    section = verl(*words).algorithm.distillation
    assert section.loss.divergence == ForwardKlConfig(top_k=64, top_k_of="teacher", min_logprob=-10)


def test_verls_defaults_add_k3_to_the_loss_of_the_task() -> None:
    run = verl(ONE, f"{ROLLOUT}.n=4", f"{LOSS}.distillation_loss_coef=0.5", f"{LOSS}.log_prob_min_clamp=-10")
    assert isinstance(run.algorithm, GrpoConfig)
    section = run.algorithm.distillation
    assert section is not None and section.reward is None and section.loss is not None
    assert (section.loss.divergence.type, section.loss.divergence.estimator) == ("sampled_kl", "k3")
    assert section.loss.coef == 0.5


def test_verls_teachers_by_data_source() -> None:
    """Two entries with one model are one teacher; the name teacher_model is only that of an only teacher."""
    words = [
        f"+{MODELS}.{name}.{key}={value}"
        for name, source, path in (("a", "openai/gsm8k", "x"), ("b", "math", "y"), ("c", "aime", "x"))
        for key, value in (("key", source), ("model_path", path), ("num_replicas", "1"))
    ]
    teachers = verl(*words, ALONE).algorithm.distillation.teachers
    assert [(t.path, t.sources) for t in teachers] == [("x", ("openai/gsm8k", "aime")), ("y", ("math",))]
    with pytest.raises(ConfigError, match="the name of an only teacher, which verl drops"):
        verl(*words, ALONE, ONE)
    with pytest.raises(ConfigError, match="chosen by its data source"):
        verl(*words, ALONE, "distillation.teacher_key=task")


def test_several_updates_of_a_step_are_noted() -> None:
    words = (ONE, ALONE, f"{LOSS}.loss_mode=k1", f"{LOSS}.use_policy_gradient=True")
    sizes = ("data.train_batch_size=128", "actor_rollout_ref.actor.ppo_mini_batch_size=")
    for size, expected in ((64, True), (128, False)):
        loaded = read_verl([*BASE, *words, sizes[0], f"{sizes[1]}{size}"], here=True)
        assert any("divergence as a reward is that at the start" in note for note in loaded.notes) == expected


def run_of(distillation: dict[str, Any], **section: Any) -> Run:
    algorithm = {"type": "distillation", "distillation": distillation, **section}
    data = {"train": {"path": "t.parquet", "source": "data_source"}}
    return Run.model_validate({"model": {"path": "m"}, "data": data, "algorithm": algorithm})


TWO = [{"path": "a", "sources": ["gsm8k"]}, {"path": "b", "sources": ["math", "aime"]}]
CASES = [
    {"teachers": [{"path": "t"}], "reward": {"max_divergence": 5.0}, "temperature": 1.0},
    {"teachers": TWO, "loss": {"divergence": {"type": "forward_kl", "top_k": 16, "min_logprob": -9.0}}},
    {"teachers": [{"path": "t"}], "loss": {"divergence": {"type": "sampled_kl", "estimator": "k2"}}},
]


@pytest.mark.parametrize("distillation", CASES)
@pytest.mark.parametrize("kind", ["distillation", "grpo"])
def test_verl_reads_back_what_is_written(distillation: dict[str, Any], kind: str) -> None:
    own = {"rollouts_per_task": 4} if kind == "grpo" else {}
    run = run_of(distillation, type=kind, **own)
    written = write_dialect(LEDGER, run)
    back = read_ignoring_placement(LEDGER, config_tree_from_values(written.values))
    assert [d.field for d in semantic_diff(run, back) if d.field.startswith("algorithm")] == []


def test_what_verl_cannot_express_is_reported() -> None:
    run = run_of({"teachers": [{"path": "t"}], "loss": {"divergence": "jsd"}})
    fields = [difference.field for difference in write_dialect(LEDGER, run).unsupported]
    assert "algorithm.distillation.loss.divergence" in fields


KIND, ARGS = "algorithm.algorithm_type", "+algorithm.advantage_fn_args"
TEACHER = "+explorer.auxiliary_models=[{model_path: teacher}, {model_path: models/judge}]"


def test_trinitys_distillation_is_a_reward_of_each_token() -> None:
    """The first auxiliary model is the teacher, the others remain; defaults of OnPolicyDistillAlgorithm."""
    run = read(f"{KIND}=on_policy_distill", TEACHER, f"{ARGS}.kl_coef=0.7").run
    algorithm = run.algorithm
    assert isinstance(algorithm, DistillationOnlyConfig)
    assert (algorithm.rollouts_per_task, algorithm.old_policy, algorithm.kl_loss) == (8, "sampler", None)
    assert algorithm.policy_loss.type == "clip"
    section = algorithm.distillation
    assert section.reward is not None and section.reward.divergence.estimator == "k1"
    assert (section.reward.coef, section.temperature) == (0.7, 1.0)
    assert [teacher.path for teacher in section.teachers] == ["teacher"]
    assert [model.path for model in run.rollout.auxiliary_models] == ["models/judge"]
    loss = read(f"{KIND}=on_policy_distill", TEACHER, "+algorithm.policy_loss_fn=importance_sampling").run
    assert isinstance(loss.algorithm.policy_loss, ImportanceSamplingLossConfig)


def test_trinitys_jsd_and_its_workflows() -> None:
    at = "buffer.explorer_input"
    words = (
        f"{KIND}=jsd",
        TEACHER,
        f"{ARGS}.lambda_coef=0.3",
        f"+{at}.taskset.workflow_args={{temperature: 0.9}}",
    )
    plain = read(*words, f"{at}.taskset.default_workflow_type=on_policy_distill_workflow").run
    section = plain.algorithm.distillation
    assert section.reward.divergence == SampledJsdConfig(beta=0.3)
    assert section.temperature == 0.9
    assert (plain.rollout.workflow.name, plain.rollout.workflow.args) == ("single_turn", {})
    math = read(*words, f"{at}.taskset.default_workflow_type=on_policy_distill_math_workflow").run
    assert math.rollout.workflow.name == "math"
    assert [part.function for part in math.reward.functions] == ["trinity_math_boxed"]
    with pytest.raises(ConfigError, match="a divergence from a teacher, which is the first auxiliary model"):
        read(f"{KIND}=jsd")


@pytest.mark.parametrize("divergence", ["sampled_kl", {"type": "sampled_jsd", "beta": 0.3}])
def test_trinity_reads_back_what_is_written(divergence: Any) -> None:
    section = {"teachers": [{"path": "t"}], "reward": {"divergence": divergence, "coef": 0.5}}
    run = run_of(section, old_policy="sampler", policy_loss={"type": "clip", "dual_clip": None})
    written = write_dialect(TRINITY, run)
    assert [d.field for d in written.unsupported if d.field.startswith("algorithm")] == []
