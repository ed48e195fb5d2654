"""A command that is refused prints one paragraph on stderr and ends with the status of the error, without a traceback.

Messages about run files have their table in tests/config/test_refusals.py; here are those that need the files of a
run, command lines, and files of other tools.
"""

from __future__ import annotations

import re
import shlex
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import typer
from safetensors.torch import save_file
from typer.testing import CliRunner

from strop.cli.command_group import StropGroup
from strop.reading import read_any
from tests.config.refused import assert_refused, has_parts, rows

from .conftest import Cli

REAL = Path(__file__).parents[1] / "compat" / "real"

MISTAKES = r"""
trainer.duration=10 & steps => quote the whole: 'trainer.duration=10 steps'
--trainer.optimizer.lr=1e-5 => have no dashes: trainer.optimizer.lr=1e-5
rollout.n=8 => there is no key rollout.n. In a run file write algorithm.rollouts_per_task=8
reward=exakt => reward 'exakt': did you mean 'exact'?
reward=mine.py:score => mine.py.
reward=null => override reward=null: reward: ... To remove the value that the file has, write ~reward
model.path=~/none => override model.path=~/none: model.path: there is no model folder ~/none.
model.path=~root/none => override model.path=~root/none: model.path: there is no model folder ~root/none.
data.train.path=[~/none.jsonl] => data.train.path: there is no file ~/none.jsonl
~reward => reward: missing, so nothing scores the responses
model.path=./models/missing => model.path: ... folder ./models/missing
mkdir models & model.path=models/small => model.path: ... folder models/small
model.path=plain => has no chat template, so messages cannot be converted to a prompt
data.chat_template=t.jinja => data.chat_template: ... t.jinja
data.train.path=tasks.jsonl => tasks.jsonl.
data.train.answer=solution => train.jsonl line 1 has no 'solution': its columns are 'prompt', 'answer'
data.max_prompt_tokens=2 => 64 of 64 prompts are too long
trainer.tasks_per_step=100 => has 64 tasks, too few for one step of 100 ... Write 64 or fewer tasks per step
output=train.jsonl => train.jsonl
"""
DAMAGES = r"""
rm run.yaml => there is no such file
rm train.jsonl => there is no file train.jsonl
empty train.jsonl => train.jsonl is empty
rm m/model.safetensors => no weights
rm m/tokenizer.json & rm m/tokenizer_config.json => no tokenizer
rm m/config.json => no config.json
mkdir models & model.path=models/small => there is no model folder models/small
model.path=./none => there is no model folder ./none
reward=exakt => override reward=exakt: reward 'exakt': did you mean 'exact'
reward=none.py:f => there is no file none.py
data.chat_template=t.jinja => there is no file t.jinja
"""

COMMAND_LINES = r"""
keys ver => did you mean 'verl'
keys verl --since new => write one such as 0.9
list nowhere => nowhere
show nowhere => nowhere
compare here => needs two or more run folders
check here => here: this is a folder, and no run has started in it
check tiny => tiny: this is a model's folder, and no run file. `strop init --model tiny` writes a run file
train rows.jsonl => rows.jsonl: this is a file of rows, and no run file. `strop init --train rows.jsonl` writes
explain ~/none.yaml => /none.yaml: there is no such file
convert none.yaml --to verl => there is no such file
verl ppo data.train_batchsize=3 => did you mean 'data.train_batch_size'
verl ppo algorithm.adv_estimator=grpo trainer.nnodes=2 => --here
verl eval data.pth=x => did you mean 'data.path'
verl eval data.path=3 => data.path must be a string
verl eval data.path=none.parquet => There is no file
verl eval data.path=answers.parquet data.response_key=prompt => must hold a list of texts
verl eval data.path=answers.parquet data.response_key=none => has no 'none'
verl eval data.path=answers.parquet data.data_source_key=responses => verl has no reward for the
verl eval data.path=answers.parquet custom_reward_function.path=none.py => there is no file
verl eval data.path=answers.parquet algorithm.gamma=1 => there is no key algorithm.gamma
verl generate --here data.n_sample=3 => did you mean 'data.n_samples'
verl generate --here data.path=p model.path=m rollout.temperature=0 => greedy responses to one prompt are identical
verl generate --here data.path=p model.path=m rollout.n=2 => write data.n_samples
verl generate --here data.path=p data.n_samples=0 => data.n_samples=0: must be greater than 0, got 0
verl generate --here data.path=p rollout.use_fire_sampling=True => first token
verl generate --here data.path=none.parquet model.path=tiny data.output_path=o.parquet => There is no file
verl generate --here data.path=p algorithm.gamma=1 => there is no key algorithm.gamma
verl merge => local_dir is missing
verl merge --local_dir none => none: the folder does not exist
verl merge --local_dir=here => here: it holds neither of these
verl merge --local_dirr=here => did you mean 'local_dir'
verl merge --local_dir=here local_dir=there => given twice
verl merge --local_dir=here --target_dir=full => full is not empty
verl merge --local_dir=here --backend megatron => does not read Megatron's shards
verl merge --local_dir=here --hf_upload_path a/b => does not upload
verl merge --local_dir=here --is-value-model => only to Megatron's shards
verl merge --local_dir=here --lora_alpha=x => lora_alpha must be a number
verl merge --local_dir => write options as --name value
component verl_trainer --here --model_output file --data_train_files=t --data_val_files=t --actor_model_path=m
    => The output folder ... file is not writable: File exists.
component grpo --here --model_name_or_path=m --deepspeed_config=ds.json --dataset_name=x/y --output_model_path=a
    --mlflow_model_folder=./a => --mlflow_model_folder and --output_model_path both name
"""

FOREIGN = r"""
verl & max_prompt_length -> max_promt_length => :6: verl has no key data.max_promt_length; did you mean
verl-sft & max_length -> max_lenght => :10: verl-sft has no key data.max_lenght; did you mean 'data.max_l
trinity & repeat_times: 8 -> repeat_time: 8 => did you mean 'algorithm.repeat_times'?
trinity & max_actor_ckpt -> max_actr_ckpt => trainer_config.trainer.max_actr_ckpt_to_keep; did you mean
rft_trainer & rollout_n: -> rolout_n: => rft_trainer has no input --rolout_n; did you mean 'rollout_n'?
verl_trainer & actor_optim_lr -> actor_optm_lr => did you mean 'actor_optim_lr'?
grpo & num_generations -> num_generation => :10: grpo has no input --num_generation; did you mean
strop & rank: 64 -> rnk: 64 => model.lora.rnk: unknown key; did you mean 'rank'?
verl & trainer:\n -> buffer: {batch_size: 3}\ntrainer:\n => no key buffer. It is a key of trinity.
verl-sft & optim: -> algorithm: {adv_estimator: grpo}\noptim: => algorithm. It is a key of verl, trinity
trinity & buffer:\n -> data: {train_batch_size: 8}\nbuffer:\n => no key data. It is a key of verl, verl-sft
rft_trainer & rollout_n: -> num_generations: => no input --num_generations. It is a key of trl, trl-rloo, grpo.
grpo & beta: -> rollout_n: => no input --rollout_n. It is a key of rft_trainer, verl_trainer.
strop & overlong: -> train_batch_size:
    => It is a key of verl, verl-sft, verl-sft-engine. In a run file write trainer.tasks_per_step=
verl & batch_size: 64 -> batch_size: sixty => :5 (data.train_batch_size): data.train_batch_size must be an integer
verl & estimator: grpo -> estimator: gppo => algorithm.adv_estimator must be gae or grpo or ... , got 'gppo'
verl-sft & lr_scheduler: wsd -> lr_scheduler: wsdd => optim.lr_scheduler must be cosine or wsd, got 'wsdd'
trinity & algorithm_type: grpo -> algorithm_type: gpo => :7 (algorithm.algorithm_type): ... or sft or cpt or mix
rft_trainer & rollout_n: 5 -> rollout_n: five => --rollout_n must be an integer, got 'five'
verl_trainer & float16 -> float17 => --rollout_dtype must be float16 or bfloat16
grpo & strategy: steps -> strategy: step => --eval_strategy must be no or steps or epoch, got 'step'
strop & type: adamw -> type: adamww => `type` must be one of adamw, ... , got 'adamww'
trinity &   total_steps: 200 ->   trainer_config_path: x.yaml => both trainer.trainer_config and trainer.tr
verl_trainer & rollout_name: vllm -> rollout_name: sglang => ENGINE=vllm and --rollout_name=sglang set the same option
verl & {algorithm.adv_estimator} -> {algorithm.adv} => :59: trainer.experiment_name: interpolation key '
verl-sft & {model.lora_rank} -> {trainer.experiment_name} => recursive interpolation
trinity & {oc.env:STROP_TEST_DIR,./checkpoints} -> {oc.env:STROP_TEST_NONE} => variable 'STROP_TEST_NONE'
strop & ,buffer} -> } => the environment variable 'STROP_TEST_DB' is not set
verl &   shuffle: true ->   shuffle: [true => :11:18: this is not valid YAML:
trinity & cluster: { -> cluster: {{ => this is not valid YAML:
grpo & beta: 0.01 -> beta: 0.01\nbeta: 0.02 => duplicate key beta
verl & batch_size: 64 -> batch_size: 60 => (60) is not a multiple of ... ; the nearest divisors are 12 and
rft_trainer & mini_batch_size: 16 -> mini_batch_size: 24 => (24); the nearest divisors are 16 and 32
grpo & num_generations: 4 -> num_generations: 5
    => not a multiple of num_generations (5); the nearest multiples are
strop & update: 16 -> update: 24 => :28: trainer: tasks_per_step (64) is ... ; the nearest multiples are 48 and 72
"""
"""A dialect, and what is written into its configuration in tests/compat/real in place of another text."""


def refused_status(cli: Cli, expected: str, *words: object) -> int:
    """Assert that a command is refused in one paragraph with the expected parts; returns the exit status."""
    refused = cli(*words)
    assert refused.exit_code in (1, 2), refused.output
    assert refused.stdout == "" or refused.exit_code == 1 or words[0] == "train"
    assert has_parts(" ".join(refused.stderr.split()), expected), refused.stderr
    assert "Traceback" not in refused.stderr
    is_usage = refused.stderr.startswith("Usage: ")  # of the library for command lines, in three paragraphs
    assert is_usage or (refused.stderr.startswith("strop: ") and "\n\n" not in refused.stderr)
    return refused.exit_code


def damaged(folder: Path, changes: list[str]) -> list[str]:
    """Change the files of a run; returns the changes that are overrides."""
    overrides = []
    for change in changes:
        match change.split(" "):
            case ["rm", name]:
                (folder / name).unlink()
            case ["empty", name]:
                (folder / name).write_text("")
            case ["mkdir", name]:
                (folder / name).mkdir()
            case _:
                overrides.append(change)
    return overrides


@pytest.mark.parametrize("command", ["check", "train"])
@pytest.mark.parametrize(("changes", "message"), rows(MISTAKES))
def test_check_refuses_what_train_refuses(
    cli: Cli, run_file: Path, changes: list[str], message: str, command: str
) -> None:
    """Mistakes of the first hour; `plain` is the model without its chat template."""
    folder = run_file.parent
    (folder / "plain").mkdir()
    for file in (folder / "m").iterdir():
        if file.name != "chat_template.jinja":
            (folder / "plain" / file.name).hardlink_to(file)
    refused_status(cli, message, command, run_file, *damaged(folder, changes))
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(("changes", "message"), rows(DAMAGES))
def test_check_names_missing_files(cli: Cli, run_file: Path, changes: list[str], message: str) -> None:
    assert refused_status(cli, message, "check", run_file, *damaged(run_file.parent, changes)) == 2


def test_a_folder_that_cannot_be_written(cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.config.preflight.os.access", lambda path, mode: path != run_file.parent)
    output = f"output={run_file.parent}/runs"
    assert refused_status(cli, "is not writable", "check", run_file, output) == 2


@pytest.mark.parametrize(("line", "message"), rows(COMMAND_LINES))
def test_a_command_line_is_refused(
    cli: Cli, tmp_path: Path, tiny_model: Path, line: list[str], message: str
) -> None:
    for name in ("here", "full"):
        (tmp_path / name).mkdir()
    save_file({"a": torch.zeros(1)}, tmp_path / "full" / "x.safetensors")
    (tmp_path / "file").touch()
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1+1"}\n')
    (tmp_path / "tiny").symlink_to(tiny_model)
    (tmp_path / "ds.json").write_text("{}")
    row = {
        "data_source": "openai/gsm8k",
        "prompt": "?",
        "responses": ["a"],
        "reward_model": {"ground_truth": "1"},
    }
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "answers.parquet")
    refused_status(cli, message, *shlex.split(line[0]))


@pytest.mark.parametrize("command", ["train", "check", "explain", "evaluate", "serve"])
def test_a_name_that_no_file_can_have_is_refused(cli: Cli, tmp_path: Path, command: str) -> None:
    assert refused_status(cli, "can have a name of this length", command, f"{tmp_path}/{'a' * 300}.yaml") == 2


@pytest.mark.parametrize(("change", "message"), rows(FOREIGN))
def test_a_file_of_another_tool_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    dialect, texts = change
    old, new = texts.replace(r"\n", "\n").split(" -> ")
    text = (REAL / f"{dialect}.yaml").read_text(encoding="utf-8")
    assert old in text
    Path("config.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    Path("ds.json").write_text("{}")
    told = assert_refused(lambda: read_any(Path("config.yaml"), here=True), message)
    assert told.startswith("config.yaml:")
    assert not message.startswith(":") or f"config.yaml{message.split()[0]} " in told


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trainer:\n", "trainer:\n  tasks_per_stp: 3\n", "did you mean 'tasks_per_step'"),
        ("prompt_key: prompt", "prompt_key: [1]", "data.prompt_key must be a string, got"),
    ],
)
def test_a_file_is_refused_with_its_line(cli: Cli, run_file: Path, old: str, new: str, message: str) -> None:
    command, name = (
        (("check",), "strop") if old == "trainer:\n" else (("verl", "eval", "--config"), "verl-eval")
    )
    text = (REAL / f"{name}.yaml").read_text(encoding="utf-8")
    Path("config.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    assert refused_status(cli, message, *command, "config.yaml") == 2


def test_names_of_no_folder_may_be_names_of_the_hub(cli: Cli, run_file: Path) -> None:
    """`check` says what the run will look for on the hub, and asks no hub."""
    result = cli("check", run_file, "model.path=a/b", "data.train.path=c/d", "trainer.optimizer.lr=3")
    assert result.exit_code == 0, result.stderr
    assert (
        "model: there is no folder a/b here, so the run loads a/b from the Hugging Face hub" in result.stdout
    )
    assert "train: not read (there is no c/d here, so the run loads it from" in result.stdout
    assert "trainer.optimizer.lr is 3." in result.stdout and "Was 3e-6 meant?" in result.stdout


def test_training_without_a_network_ends_at_the_first_attempt(
    cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's library would retry for most of a minute and print a line each time."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    told = "there is no folder a/b here, and no model could be loaded from the Hugging Face hub"
    result = cli("train", run_file, "model.path=a/b")
    (line,) = result.stderr.strip().splitlines()
    assert result.exit_code == 1 and told in line
    result = cli("check", run_file, "model.path=a/b")
    assert result.exit_code == 2 and told in result.stderr
    with socket.socket() as unheard:  # bound, and it does not listen: connections are refused
        unheard.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unheard.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        result = cli("train", run_file, "model.path=a/b")
    (line,) = result.stderr.strip().splitlines()
    assert result.exit_code == 1 and "model.path: there is no folder a/b here" in line
    assert f"{address} cannot be reached" in line


def failing(error: Exception | None) -> typer.Typer:
    """An app with a command that raises an error, or allocates more memory than there is."""
    app = typer.Typer(cls=StropGroup)

    @app.command()
    def allocate() -> None:
        if error is not None:
            raise error
        torch.empty(1 << 60, dtype=torch.uint8)

    @app.command()
    def other() -> None:
        pass

    return app


@pytest.mark.parametrize(
    "error", [None, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), MemoryError()]
)
def test_a_lack_of_memory_names_what_needs_less(error: Exception | None) -> None:
    result = CliRunner().invoke(failing(error), ["allocate"])
    assert result.exit_code == 1
    shown = " ".join(result.output.split())
    assert "strop: Out of memory" in shown and "trainer.microbatch" in shown
    assert "strop help troubleshooting#out-of-memory" in shown


def test_an_internal_error_keeps_its_traceback(
    cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = CliRunner().invoke(failing(RuntimeError("shape mismatch")), ["allocate"])
    assert isinstance(result.exception, RuntimeError) and "Out of memory" not in result.output
    monkeypatch.setattr("strop.api.train", lambda *_, **__: 1 / 0)
    result = cli("train", run_file)
    assert result.exit_code == 1 and isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize("command", ["check", "explain", "convert", "train"])
def test_notices_precede_a_refusal(cli: Cli, command: str) -> None:
    trinity = (REAL / "trinity.yaml").read_text(encoding="utf-8")
    Path("t.yaml").write_text(trinity, encoding="utf-8")
    result = cli(command, "--here", "t.yaml", "synchronizer.wait_for_checkpoint=true", "buffer.batch_size=x")
    *notes, fault = result.stderr.strip().splitlines()
    told = (
        "note: override synchronizer.wait_for_checkpoint=true: accepted without effect: a separate explorer"
    )
    assert result.exit_code == 2 and any(note.startswith(told) for note in notes)
    assert "buffer.batch_size must be an integer" in fault


def test_control_characters_and_secrets_are_not_printed(
    cli: Cli, run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words in (["check"], ["explain"], ["convert"]):
        monkeypatch.setenv("STROP_TEST_SECRET", "hunter2-hunter2")
        secrets = ["model.path=./${oc.env:STROP_TEST_SECRET}", "+reward.functions.0.args.pwd=s3cr3t"]
        result = cli(*words, run_file, *secrets)
        said = result.output + result.stderr
        assert "hunter2" not in said and "s3cr3t" not in said and "${oc.env:STROP_TEST_SECRET}" in said
    result = cli("explain", run_file, "data.train.path='x\x1b]0;title\x07.jsonl'")
    assert result.output.replace("\n", "").isprintable()
    run_file.write_text(run_file.read_text() + '"a\\e[2J\\u202eb": 1\n')
    result = cli("check", run_file)
    assert result.exit_code == 2 and r"a\x1b[2J\u202eb" in result.stderr
    assert re.sub(r"\n", "", result.stderr).isprintable()
