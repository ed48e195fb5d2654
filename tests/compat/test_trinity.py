"""Trinity's files as a whole, its engines and workflows, and keys of versions 0.3 to 0.6."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml

import strop.api
from strop.compat.convert import convert
from strop.compat.ledger.writer import write_dialect
from strop.compat.trinity.inference_model import write_engines
from strop.compat.trinity.reader import LEDGER
from strop.compat.trinity.workflows import BOXED_PROMPT, R1_PROMPT
from strop.config.explain import explain_values
from strop.config.redact import safe_text
from strop.config.save import save_resolved
from strop.config.schema.data import DifficultyOrderConfig
from strop.config.schema.rollout import EnginePoolConfig, OpenAiEngineConfig, VllmEngineConfig, WorkflowConfig
from strop.config.schema.run import effective_reward
from strop.errors import ConfigError, PlacementError
from strop.reading import read_any
from strop.workers.signals import StopSignal
from strop.workflows.registry import load_workflow

from .trinity_file import ACTOR, BASE, BUFFER, TASKSET, read


def test_errors_name_file_and_line() -> None:
    Path("t.yaml").write_text(BASE.replace("name: test", "nam: test"))
    with pytest.raises(ConfigError, match=r"t\.yaml:9: trinity has no key .*eval_tasksets\.0\.nam; did you"):
        read()
    Path("t.yaml").write_text(BASE)
    assert str(read().sources["trainer.tasks_per_step"]) == "t.yaml:4 (buffer.batch_size)"


def test_placement() -> None:
    with pytest.raises(PlacementError, match=r"engine_type=tgi"):
        read("explorer.rollout_model.engine_type=tgi", here=False)
    loaded = read(
        "explorer.rollout_model.engine_num=2",
        "cluster.node_num=2",
        f"{ACTOR}.ulysses_sequence_parallel_size=2",
    )
    assert len(loaded.overridden) == 3 and loaded.run == read().run
    assert read("explorer.runner_per_model=32", "synchronizer.sync_method=nccl").overridden == ()


def test_further_arguments_of_an_engine_reach_it() -> None:
    arguments = (
        "explorer.rollout_model.engine_type=vllm",
        "+explorer.rollout_model.extra_engine_args.max_num_seqs=64",
    )
    run = read(*arguments, here=False).run
    assert isinstance(run.rollout.engine, VllmEngineConfig)
    assert run.rollout.engine.engine_kwargs == {"max_num_seqs": 64}
    written = write_dialect(LEDGER, run).values
    assert written["explorer.rollout_model.extra_engine_args.max_num_seqs"] == 64
    here = read(*arguments)
    assert "explorer.rollout_model.extra_engine_args.max_num_seqs" in {aside.key for aside in here.overridden}


def test_engines_and_concurrent_rollouts() -> None:
    several = (
        "explorer.rollout_model.engine_num=3",
        "explorer.runner_per_model=2",
        "algorithm.repeat_times=4",
    )
    run = read(*several, here=False).run
    assert (
        run.rollout.pool == EnginePoolConfig(engines=3) and run.rollout.max_concurrent_rollouts == 3 * 2 * 4
    )
    assert write_engines(run) == {"explorer.rollout_model.engine_num": 3, "explorer.runner_per_model": 2}
    here = read(*several)
    assert here.run.rollout.pool is None and here.run.rollout.max_concurrent_rollouts == 2 * 4
    assert [aside.key for aside in here.overridden] == ["explorer.rollout_model.engine_num"]
    assert read().run.rollout.max_concurrent_rollouts is None


@pytest.mark.parametrize("empty", ["{}", "null"])
def test_an_empty_trainer_config_keeps_all_defaults(empty: str) -> None:
    assert read(f"trainer.trainer_config={empty}").run == read().run


def test_trainer_config_path() -> None:
    inner = {"actor_rollout_ref": {"actor": {"optim": {"lr": 3e-5}, "grad_clip": 0.5}}}
    Path("inner.yaml").write_text(yaml.safe_dump(inner))
    loaded = read("trainer.trainer_config_path=inner.yaml")
    assert (loaded.run.trainer.optimizer.lr, loaded.run.trainer.max_grad_norm) == (3e-5, 0.5)
    with pytest.raises(ConfigError, match=r"both .* are set"):
        read("trainer.trainer_config_path=inner.yaml", f"{ACTOR}.grad_clip=1.0")


def test_new_run_gets_a_timestamped_name() -> None:
    assert read("continue_from_checkpoint=false").run.name == "rft"
    there = Path("checkpoints/Trinity-RFT/rft")
    there.mkdir(parents=True)
    (there / "run.yaml").touch()
    assert read("continue_from_checkpoint=false").run.name.startswith("rft_2")
    assert read().run.name == "rft"


# -- workflows and rollouts ---------------------------------------------------------------------------------

TAGS = WorkflowConfig(name="math", args={"system": R1_PROMPT})
BOXED = WorkflowConfig(name="math", args={"system": BOXED_PROMPT})
FORMAT = {"prompt_key": "question", "response_key": "answer"}
PACKAGED = WorkflowConfig(name="trinity", args={"workflow": "alfworld_workflow", "format": FORMAT})
REGISTERED = WorkflowConfig(
    name="trinity", args={"workflow": "async_talk_flow", "reward_fn": "math_reward", "format": FORMAT}
)
DOTTED = WorkflowConfig(name="trinity", args={"workflow": "my.flows.Talk", "format": FORMAT})


@pytest.mark.parametrize(
    ("workflow", "reward", "expected", "scored"),
    [
        ("simple_workflow", "countdown_reward", WorkflowConfig(), ["trinity_countdown"]),
        ("math_workflow", "countdown_reward", WorkflowConfig(), ["trinity_countdown"]),
        ("math_workflow", "math_reward", TAGS, ["trinity_math", "format"]),
        ("math_workflow", "null", TAGS, ["trinity_math", "format"]),
        ("async_math_workflow", "null", TAGS, ["trinity_math", "format"]),
        ("math_boxed_workflow", "null", BOXED, ["trinity_math_boxed"]),
        ("alfworld_workflow", "null", PACKAGED, []),
        ("async_talk_flow", "math_reward", REGISTERED, []),
        ("my.flows.Talk", "null", DOTTED, []),
        ("mine.py:talk", "null", WorkflowConfig(name="mine.py:talk"), []),
        ("mine.py:talk", "exact", WorkflowConfig(name="mine.py:talk"), ["exact"]),
    ],
)
def test_workflow_and_reward(workflow: str, reward: str, expected: WorkflowConfig, scored: list[str]) -> None:
    run = read(f"+buffer.default_workflow_type={workflow}", f"buffer.default_reward_fn_type={reward}").run
    own = {"format": {"prompt_key": "prompt"}, "is_eval": True}
    evaluation = {**expected.args, **own} if expected.name == "trinity" else None
    assert run.rollout.workflow == expected
    assert evaluation == (run.data.eval[0].workflow and run.data.eval[0].workflow.args)
    assert [part.function for part in effective_reward(run).functions] == scored
    assert write_dialect(LEDGER, run).unsupported == ()


def test_a_workflow_of_trinitys_package_is_named_before_a_run() -> None:
    with pytest.raises(ConfigError, match=r"package trinity-rft, which needs the package alfworld\."):
        load_workflow(PACKAGED)


# -- keys outside the page ----------------------------------------------------------------------------------

VERL = "trainer.trainer_config"


def test_gigpo_both_ways() -> None:
    run = read(
        "algorithm.algorithm_type=gigpo", "+algorithm.advantage_fn_args={omega: 0.5, gamma: 0.9, fnorm: std}"
    ).run
    assert run.algorithm.type == "gigpo"
    assert (run.algorithm.turn_weight, run.algorithm.gamma, run.algorithm.divide_by_std) == (0.5, 0.9, True)
    assert run.algorithm.states_over == "step"
    written = write_dialect(LEDGER, run).values
    assert written["algorithm.algorithm_type"] == "gigpo"
    assert [written[f"algorithm.advantage_fn_args.{name}"] for name in ("omega", "gamma", "fnorm")] == [
        0.5,
        0.9,
        "std",
    ]
    with pytest.raises(ConfigError, match=r"env_state_hash_key.*write these names"):
        read("algorithm.algorithm_type=gigpo", "+algorithm.advantage_fn_args.env_state_hash_key=other")


OPERATOR = "+data_processor.experience_pipeline.operators=[{name: pass_rate_calculator}]"


@pytest.mark.parametrize("section", ["task_selector", "data_selector"])
def test_difficulty_based_is_the_order_by_difficulty(section: str) -> None:
    at = f"{TASKSET}.{section}"
    kind, columns = f"+{at}.selector_type=difficulty_based", f"+{at}.feature_keys=[weak,strong]"
    loaded = read(kind, columns, OPERATOR)
    assert loaded.run.data.order == DifficultyOrderConfig(
        columns=("weak", "strong"),
        target=1.0,
        temperature=1.0,
        thompson_sampling=False,
        forgetting=0.2,
        interpolation_weight=0.2,
    )
    assert not loaded.run.data.shuffle
    assert any("updates the estimates after each step" in note for note in loaded.notes)
    kwargs = "{m: 8, lamb: 0.1, rho: 0.3, adaptive_rho: true, target_reward: 0.5, tau: 0, do_sample: true}"
    run = read(kind, columns, OPERATOR, f"+{at}.kwargs={kwargs}").run
    assert run.data.order == DifficultyOrderConfig(
        columns=("weak", "strong"), interpolation_weight=0.3, halve_weight=True, counts_per_group=8
    )
    written = write_dialect(LEDGER, run).values
    assert written[f"{TASKSET}.task_selector.selector_type"] == "difficulty_based"
    assert written[f"{TASKSET}.task_selector.feature_keys"] == ["weak", "strong"]
    assert written[f"{TASKSET}.task_selector.kwargs"] == {
        "m": 8,
        "lamb": 0.1,
        "rho": 0.3,
        "adaptive_rho": True,
        "target_reward": 0.5,
        "tau": 0,
        "do_sample": True,
    }
    assert written["data_processor.experience_pipeline.operators.0.name"] == "pass_rate_calculator"


def test_unread_keys_change_nothing() -> None:
    """Each has a notice, by the table of Trinity's keys."""
    unread = (
        *(
            f"{ACTOR}.clip_ratio=0.3",
            f"{ACTOR}.ppo_mini_batch_size=8",
            f"{ACTOR}.optim.total_training_steps=7",
        ),
        *(f"{VERL}.trainer.total_training_steps=7", f"{VERL}.algorithm.kl_penalty=low_var_kl"),
        *(f"{VERL}.custom_reward_function.path=x", f"{VERL}.trainer.logger=[wandb]"),
        *(f"{TASKSET}.repeat_times=3", f"{TASKSET}.rollout_args.n=3", f"{BUFFER}.rollout_args.n=2"),
        *("checkpoint_job_dir=x", "explorer.rollout_model.api_key=EMPTY"),
    )
    assert read(*(f"+{key}" for key in unread)).run == read().run


def test_a_list_of_one_taskset_is_the_taskset(tmp_path: Path) -> None:
    listed = BASE.replace("    taskset: {", "    tasksets: [{").replace("answer}}\n", "answer}}]\n")
    plain = read().run
    Path("t.yaml").write_text(listed, encoding="utf-8")
    assert "tasksets: [" in listed and read().run == plain
    Path("t.yaml").write_text(listed.replace("}}]", "}}, {path: b.jsonl}]"), encoding="utf-8")
    with pytest.raises(ConfigError, match="write one taskset and convert"):
        read()


# -- versions 0.3 and 0.6 -----------------------------------------------------------------------------------


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


def test_secrets_of_monitors_are_in_the_environment_of_the_run_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "s3cr3t-of-the-file"
    text = BASE + f"monitor: {{monitor_type: wandb, monitor_args: {{api_key: {secret}}}}}\n"
    Path("t.yaml").write_text(text, encoding="utf-8")
    for words in ((), (f"monitor.monitor_args.api_key={secret}",)):
        job = read_any(Path("t.yaml"), words, here=True)
        loaded = job.loaded
        assert loaded.environment == {"WANDB_API_KEY": secret}
        (told,) = [note for note in loaded.notes if "api_key" in note]
        assert "set the environment variable WANDB_API_KEY instead, and remove the key" in told
        save_resolved(loaded.run, tmp_path / "run.yaml")
        shown = (repr(loaded), *map(str, explain_values(loaded)), *loaded.notes, str(convert(job, "trinity")))
        assert secret not in "".join((*shown, (tmp_path / "run.yaml").read_text(encoding="utf-8")))
        assert safe_text(f"wandb rejects {secret}") == "wandb rejects ${oc.env:WANDB_API_KEY}"
    mlflow = read("monitor={monitor_type: mlflow, monitor_args: {username: me, password: hunter2-2}}")
    assert mlflow.environment == {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "hunter2-2"}
    started: list[str | None] = []
    monkeypatch.setattr(
        "strop.run.entry.start.start_run",
        lambda *_, **__: started.append(os.environ.get("MLFLOW_TRACKING_PASSWORD")) or Mock(stopped=True),
    )
    strop.api._train(mlflow, (), (), StopSignal())
    assert started == ["hunter2-2"] and "MLFLOW_TRACKING_PASSWORD" not in os.environ
    other = read("monitor={monitor_type: mlflow, monitor_args: {api_key: k}}")
    assert other.environment == {}
    assert any("api_key" in note and "inactive" in note for note in other.notes)


def test_a_secret_that_the_environment_has_needs_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k3y-k3y")
    loaded = read("monitor.monitor_type=wandb", "monitor.monitor_args={api_key: '${oc.env:WANDB_API_KEY}'}")
    assert loaded.environment == {"WANDB_API_KEY": "k3y-k3y"}
    assert [note for note in loaded.notes if "api_key" in note] == []
