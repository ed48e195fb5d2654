"""AzureML's components: arguments, files, DeepSpeed, outputs, packages, and the commands of the documentation."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from strop.cli.main import app
from strop.compat.azureml.component import find_model, to_argument
from strop.compat.azureml.grpo import SYSTEM_PROMPT
from strop.compat.azureml.job import install_packages, link_or_copy
from strop.compat.azureml.reader import COMPONENTS, read_component
from strop.compat.ledger.key_mapping import UNSET
from strop.config.load.loader import Job
from strop.config.machine import GIB, Machine, Node
from strop.config.save import save_resolved
from strop.config.schema.model import ModelConfig
from strop.config.schema.trainer import DeepSpeedEngineConfig
from strop.data.encoding.chat_template import PromptEncoder
from strop.errors import ConfigError, PlacementError
from strop.models.loading import load_tokenizer
from strop.models.tiny import make_model
from strop.rewards.scorer import Scorer
from tests.datasets import data_folder
from tests.rewards.builders import group

from .meaning.test_meaning import NEEDED
from .pages import page_copy


def read(name: str, *words: str, here: bool = True) -> Job:
    return read_component(name, [*NEEDED[name], *words], here=here)


def test_required_inputs() -> None:
    with pytest.raises(ConfigError, match="rft_trainer requires --data_val_files, --actor_model_path; write"):
        read_component("rft_trainer", ["--data_train_files", "t.jsonl"])
    with pytest.raises(ConfigError, match="set without dataset_validation_split"):
        read_component(
            "grpo",
            ["--dataset_train_split=t", "--model_name_or_path=m", "--deepspeed_config=ds.json"],
            here=True,
        )
    with pytest.raises(ConfigError, match="did you mean 'grpo'"):
        read_component("grppo", [])
    with pytest.raises(ConfigError, match=r"^grpo requires"):
        read_component("group_relative_policy_optimization", [])


def test_grpo_reads_a_named_dataset_by_its_splits() -> None:
    words = ["--dataset_name=some/questions", "--model_name_or_path=m", "--deepspeed_config=ds.json"]
    data = read_component("grpo", [*words, "--do_eval=true"], here=True).loaded.run.data
    assert (data.train.path, data.train.split) == ("some/questions", "train")
    assert [(part.path, part.split) for part in data.eval] == [("some/questions", "validation")]
    assert read_component("grpo", words, here=True).loaded.run.data.eval == ()


def test_optional_inputs_may_be_absent_or_empty() -> None:
    plain = read("rft_trainer").loaded.run
    assert read("rft_trainer", "--total_training_steps", "", "--pypi_packages_override=").loaded.run == plain
    assert read("rft_trainer", "--total_training_steps", "--rollout_n", "5").loaded.run == plain


def test_packages_are_read() -> None:
    job = read("rft_trainer", "--pypi_packages_override", "transformers==5.19.0, torch>=2.3,peft")
    assert job.packages == ("transformers==5.19.0", "torch>=2.3", "peft")


def test_outputs() -> None:
    job = read("rft_trainer", "--intermediate_folder=a", "--model_output=b")
    assert (job.loaded.run.folder_path, job.output_folders("model")) == (Path("a"), (Path("b"),))
    job = read("grpo", "--output_model_path=a", "--mlflow_model_folder=b")
    assert (job.loaded.run.folder_path, job.output_folders("mlflow")) == (Path("a"), (Path("b"),))


def test_sources_and_notes_use_input_names() -> None:
    job = read("rft_trainer", "--rollout_n=6", "--actor_use_kl_loss=false", "--actor_kl_loss_coef=0.5")
    sources = {field: str(source) for field, source in job.loaded.sources.items()}
    assert sources["algorithm.rollouts_per_task"] == "override --rollout_n=6"
    assert sources["trainer.tasks_per_step"] == "data_train_batch_size (documented default)"
    assert sources["trainer.optimizer.betas"].endswith("(unstated default)")
    (note,) = job.loaded.notes
    assert note == "override --actor_kl_loss_coef=0.5: inactive, because actor_use_kl_loss is False."


def test_placement_overrides_are_listed() -> None:
    with pytest.raises(PlacementError, match="trainer_nnodes=2: a single process"):
        read("rft_trainer", "--trainer_nnodes=2", here=False)
    job = read("rft_trainer", "--trainer_nnodes=2", "--actor_fsdp_param_offload=true")
    assert {item.key for item in job.loaded.overridden} == {"trainer_nnodes", "actor_fsdp_param_offload"}
    assert job.loaded.run == read("rft_trainer").loaded.run


@pytest.mark.parametrize(
    ("deepspeed", "expected"),
    [
        ({"train_micro_batch_size_per_gpu": 4}, "must equal --per_device_train_batch_size"),
        ({"gradient_clipping": 0.5}, "must equal --max_grad_norm"),
        ({"train_batch_size": 12}, "write 'auto'"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1}}}, "must equal --learning_rate"),
        ({"scheduler": {"type": "WarmupLR"}}, "lr_scheduler_type"),
        ({"train_micro_batchsize": 4}, "did you mean"),
        ([], "not a JSON object"),
    ],
)
def test_deepspeed_options_must_equal_the_inputs(deepspeed: Any, expected: str) -> None:
    Path("ds.json").write_text(json.dumps(deepspeed))
    with pytest.raises(ConfigError, match=expected):
        read("grpo")


def test_deepspeed_placement_overrides_are_listed() -> None:
    Path("ds.json").write_text(
        json.dumps(
            {
                "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
                "bf16": {"enabled": True},
                "train_micro_batch_size_per_gpu": 8,
                "gradient_clipping": "auto",
                "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
                "steps_per_print": 10,
            }
        )
    )
    keys = [item.key.removeprefix("deepspeed_config.") for item in read("grpo").loaded.overridden]
    assert keys == ["zero_optimization.stage", "zero_optimization.offload_param", "bf16.enabled"]
    Path("ds.json").write_text("{}")
    assert [item.key for item in read("grpo").loaded.overridden] == ["deepspeed_config"]
    Path("ds.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        read("grpo")


def test_the_deepspeed_file_becomes_the_engine() -> None:
    sections = {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}},
        "train_batch_size": "auto",
    }
    Path("ds.json").write_text(json.dumps(sections))
    loaded = read("grpo", here=False).loaded
    engine = loaded.run.trainer.engine
    assert engine == DeepSpeedEngineConfig(ranks=1, config=sections) and loaded.overridden == ()
    assert "deepspeed_config" in str(loaded.sources["trainer.engine.config"])
    assert loaded.run.model.compute_dtype is None
    Path("ds.json").write_text(json.dumps({"train_batch_size": 16, "bf16": {"enabled": True}}))
    run = read("grpo", "--num_generations=4", here=False).loaded.run
    assert (run.trainer.engine.ranks, run.trainer.tasks_per_step) == (2, 4), (
        "16 completions, 8 of each process"
    )
    assert run.model.compute_dtype == "bfloat16"
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"offload_param": {"device": "nvme"}}}))
    with pytest.raises(ConfigError, match="offloads to `cpu`, or `none`"):
        read("grpo", here=False)


def test_model_input_formats(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "config.json").write_text("{}")
    assert find_model(plain) == (plain, None)
    mlflow = tmp_path / "import" / "mlflow_model_folder"
    for name in ("model", "components/tokenizer"):
        (mlflow / name).mkdir(parents=True)
    (mlflow / "model" / "config.json").write_text("{}")
    (mlflow / "MLmodel").write_text("flavors: {transformers: {model_binary: model}}")
    assert find_model(mlflow.parent) == (mlflow / "model", mlflow / "components/tokenizer")
    assert find_model(tmp_path / "absent") == (tmp_path / "absent", None)
    run = read_component(
        "rft_trainer",
        ["--data_train_files=t", "--data_val_files=v", f"--actor_model_path={mlflow}"],
    ).loaded.run
    assert (run.model.path, run.model.tokenizer) == (
        str(mlflow / "model"),
        str(mlflow / "components/tokenizer"),
    )
    with pytest.raises(ConfigError, match="is not a model"):
        find_model(tmp_path / "import" / "mlflow_model_folder" / "components")


def test_grpo_prompt_and_rewards(tmp_path: Path) -> None:
    run = read("grpo").loaded.run
    tokenizer = load_tokenizer(ModelConfig(path=str(make_model(tmp_path / "tiny", ["a"]))))
    messages = [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": "Which?"}]
    text = PromptEncoder(tokenizer, run.data.chat_template).render("row 1", messages, (), prompt=True)
    end = tokenizer.eos_token
    assert text == f"<|system|>\n{SYSTEM_PROMPT}{end}\n<|user|>\nWhich?{end}\n<|assistant|>\n"
    answers = {
        "<think>\nso\n</think>\n<answer>\nFinal Answer: B\n</answer>": {"format": 1, "accuracy": 1},
        "<think>\nso\n</think>\n<answer>\nFinal Answer: C\n</answer>": {"format": 1, "accuracy": 0},
        "<think>so</think><answer>A? No: the answer is B</answer>": {"format": 0, "accuracy": 1},
        "no": {"format": 0, "accuracy": 0},
    }
    with Scorer(run.reward, None) as scorer:
        (scored,) = scorer.score([group(list(answers), "B")])
    for rollout, parts in zip(scored.rollouts, answers.values(), strict=True):
        assert rollout.reward_parts == parts and rollout.reward == sum(parts.values())


def test_images_are_read_if_rows_have_them() -> None:
    geometry = data_folder() / "geometry" / "train.parquet"
    words = [f"--data_train_files={geometry}", "--data_val_files=v", "--actor_model_path=m"]
    for given_, expected in (
        ([], "images"),
        (["--data_image_key=images"], "images"),
        (["--data_image_key=x"], None),
    ):
        job = read_component("verl_trainer", [*words, *given_], here=True)
        assert job.loaded.run.data.train.images == expected


# -- values that the pages name -----------------------------------------------------------------------------

DESCRIBED = {
    ("rft_trainer", "actor_model_target_modules"): (
        *("all-linear", "[q_proj,k_proj,v_proj,o_proj]", "[q_proj,v_proj]", ".*_proj"),
    ),
    ("rft_trainer", "rollout_temperature"): ("0.1", "2.0"),
    ("rft_trainer", "rollout_top_p"): ("0.0", "1.0"),
    ("rft_trainer", "rollout_top_k"): ("-1", "0"),
    ("rft_trainer", "pypi_packages_override"): ("transformers==4.30.0,torch==2.3.1",),
    ("verl_trainer", "data_truncation"): ("error", "left", "right", "middle"),
    ("verl_trainer", "actor_kl_loss_type"): ("low_var_kl", "kl", "abs", "mse"),
    ("grpo", "max_steps"): ("-1", "100"),
    ("grpo", "top_p"): ("1.0",),
}
"""Values that the descriptions of inputs name, in addition to enumerations and booleans; for `verl_trainer` also those
that the same inputs of `rft_trainer` enumerate."""
REFUSED = {
    *(("rft_trainer", "rollout_do_sample", "false"), ("rft_trainer", "rollout_top_p", "0.0")),
    *(("grpo", "optim", "lomo"), ("grpo", "optim", "adalomo")),
    ("grpo", "lr_scheduler_type", "reduce_lr_on_plateau"),
}
"""Values that are refused when they are the only input given beyond the required ones, by the table of inputs."""


def named_values(component: str) -> dict[str, tuple[str, ...]]:
    values = {name: DESCRIBED[of, name] for of, name in DESCRIBED if of == component}
    for name, entry in page_copy(component)["inputs"].items():
        if entry["enum"]:
            values[name] = tuple(entry["enum"])
        elif entry["type"] == "boolean":
            values[name] = ("true", "false")
    return values


def configurations(component: str) -> list[dict[str, str]]:
    """Configurations in which each value that is not refused occurs: the n-th sets every input to its n-th value."""
    kept = {
        name: [value for value in values if (component, name, value) not in REFUSED]
        for name, values in named_values(component).items()
    }
    count = max(map(len, kept.values()))
    return [{name: values[n % len(values)] for name, values in kept.items()} for n in range(count)]


def words(component: str, values: Mapping[str, str]) -> list[str]:
    return [*NEEDED[component], *(f"--{name}={value}" for name, value in values.items())]


@pytest.mark.slow
@pytest.mark.parametrize("component", COMPONENTS)
def test_every_named_value_is_read(component: str) -> None:
    for values in configurations(component):
        assert read_component(component, words(component, values), here=True).loaded.run


# -- outputs ------------------------------------------------------------------------------------------------


def test_file_is_hard_linked(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    link_or_copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "a").samefile(tmp_path / "b")


def test_file_is_copied_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "a").write_text("x")
    link_or_copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "x" and not (tmp_path / "a").samefile(tmp_path / "b")


# -- packages -----------------------------------------------------------------------------------------------

PROBE = """import os, sys
print("probe:", "torch" in sys.modules, *sys.orig_argv[1:4], flush=True)
os._exit(7)
"""
"""Module that every Python process imports at its start, if it is importable."""


def make_wheel(folder: Path) -> None:
    """Build a package with one module, `sitecustomize`."""
    folder.mkdir()
    with ZipFile(folder / "strop_probe-1.5-py3-none-any.whl", "w") as wheel:
        info = "strop_probe-1.5.dist-info"
        wheel.writestr("sitecustomize.py", PROBE)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: strop-probe\nVersion: 1.5\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def component(tmp_path: Path, packages: str) -> subprocess.CompletedProcess[str]:
    """Run `strop component` in a process whose pip has no network and installs into a separate folder."""
    words = ["rft_trainer", *NEEDED["rft_trainer"], "--here"]
    pip = {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"),
        "PIP_TARGET": str(tmp_path / "in"),
    }
    paths = [str(tmp_path / "in"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, "-m", "strop", "component", *words, f"--pypi_packages_override={packages}"],
        env=os.environ | pip | {"PYTHONPATH": os.pathsep.join(paths)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_command_restarts_with_installed_packages(tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels")
    done = component(tmp_path, "strop-probe==1.5")
    lines = done.stdout.splitlines()
    assert lines[0] == "pypi_packages_override: pip install strop-probe==1.5"
    assert any(line.startswith("Successfully installed strop-probe-1.5") for line in lines[1:-1])
    assert lines[-1] == "probe: False -m strop component"
    assert done.returncode == 7, done.stderr


def test_pip_failure_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda words, check: subprocess.CompletedProcess(words, 1))
    with pytest.raises(ConfigError, match=r"pip could not install strop-probe==2\.0 \(exit code 1\)"):
        install_packages(("strop-probe==2.0",))


def test_restarted_process_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STROP_INSTALLED", "a==1 b")
    install_packages(("a==1", "b"))
    monkeypatch.delenv("STROP_INSTALLED")
    install_packages(())


# -- first run ----------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2].resolve()


def commands(block: str) -> Iterator[list[str]]:
    """The arguments of each command in a shell block; a quoted argument may span several lines."""
    pending = ""
    for line in block.replace("\\\n", " ").splitlines():
        pending += f"{line}\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue
        pending = ""
        if words:
            yield words


@pytest.mark.slow
def test_first_run_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block, *_) = re.findall(
        r"```sh\n(.*?)```", (ROOT / "docs/coming-from/azureml.md").read_text(), re.DOTALL
    )
    monkeypatch.chdir(tmp_path)
    seen = []
    for words in commands(block):
        match words:
            case ["strop", *rest]:
                result = CliRunner().invoke(app, rest)
                assert result.exit_code == 0, result.output
            case ["python", "-c", code]:
                exec(code, {})
            case ["python", script, *rest]:
                monkeypatch.setattr(sys, "argv", [script, *rest])
                runpy.run_path(str(ROOT / script), run_name="__main__")
        seen.append(words[0])
    assert seen == ["python", "strop", "python"]
    assert "'role': 'assistant'" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_azureml_reads_the_job() -> None:
    from azure.ai.ml import load_job

    job = load_job(ROOT / "examples/azureml/job.yaml")
    step = job.jobs["grpo"]
    assert step.component.command.startswith("strop component grpo ")
    assert set(step.inputs) <= set(step.component.inputs)
    assert set(step.outputs) == set(step.component.outputs)
    assert step.environment_variables == {"STROP_HERE": "1"}


@pytest.mark.parametrize("name", COMPONENTS)
def test_defaults_need_no_here_on_the_hardware_that_they_name(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AzureML passes every input with its default."""
    machine = Machine((Node("node", 8, 80 * GIB),))
    monkeypatch.setattr("strop.config.machine._local_machine", lambda: machine)
    found = COMPONENTS[name]
    defaults = {
        part.name: to_argument(part.row.default) for part in found.inputs if part.row.default is not UNSET
    }
    needed = {part.name: "m" for part in found.inputs if part.required} | {"deepspeed_config": "ds.json"}
    needed |= {"dataset_train_split": "t.jsonl", "dataset_validation_split": "v.jsonl"}
    known = {part.name for part in found.inputs}
    words = [f"--{key}={value}" for key, value in (needed | defaults).items() if key in known]
    loaded = read_component(name, words).loaded
    engines = {"grpo": ("deepspeed", "native")}.get(name, ("fsdp2", "vllm"))
    assert (loaded.run.trainer.engine.type, loaded.run.rollout.engine.type) == engines
    assert loaded.overridden == () and not [note for note in loaded.notes if "ds.json" in note]
    if name != "grpo":
        assert (loaded.run.trainer.engine.ranks, loaded.run.rollout.engine.tensor_parallel) == (8, 2)
        assert read_component(name, words, here=True).loaded.run.rollout.engine.type == "native"


def test_the_coefficient_of_a_component_is_no_difference_to_verls_page() -> None:
    for name in ("rft_trainer", "verl_trainer"):
        loaded = read(name, "--algorithm_use_kl_in_reward=true").loaded
        assert loaded.run.algorithm.kl_reward.coef == 0.001
        assert not [note for note in loaded.notes if "kl_coef" in note]


@pytest.mark.parametrize("name", COMPONENTS)
def test_jobs_in_one_working_directory_have_folders_of_their_own(name: str) -> None:
    rate = "learning_rate" if name == "grpo" else "actor_optim_lr"
    first = read(name, f"--{rate}=1e-6").loaded.run
    first.folder_path.mkdir(parents=True)
    save_resolved(first, first.folder_path / "run.yaml")
    assert read(name, f"--{rate}=1e-6").loaded.run == first
    second = read(name, f"--{rate}=2e-6").loaded
    assert second.run.folder_path.parent == first.folder_path.parent != second.run.folder_path
    assert any(str(second.run.folder_path.resolve()) in note for note in second.notes)
    assert read(name, f"--{rate}=2e-6").loaded.run == second.run
    output = {"rft_trainer": "intermediate_folder", "grpo": "output_model_path"}.get(name)
    if output:
        assert read(name, f"--{rate}=2e-6", f"--{output}={first.folder_path}").loaded.run.name == "run"


def test_messages_about_outputs_have_the_whole_path() -> None:
    (described,) = read("verl_trainer", "--model_output=out/../trained").output_descriptions
    assert f"in {Path('trained').resolve()}: the trained model" in described
