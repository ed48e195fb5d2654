"""Commands of other tools that divide the training over processes, run as they stand: what they learn.

    .venv/bin/python benchmarks/scale_commands.py --vllm-python .venv-vllm/bin/python

| command | processes |
| --- | --- |
| the GRPO component with a DeepSpeed file | 2, started as AzureML starts them (`WORLD_SIZE`): ZeRO-3 with offload |
| a line of verl | 4: FSDP with offload, Ulysses of 2 |
| a YAML of Trinity-RFT | Ray with an explorer, 2 engines of vLLM, a trainer of 2 ranks with FSDP2 |

The last two train the quickstart's small model on its two-digit sums and need vLLM, Ray and so an environment of
`make engines`. The component has rewards of its own, a format and a choice of A to D, so its model is warmed up on sums
up to 38 whose tens are the choice. GPUs are logical: all processes share the CPU. Nothing is overridden by `--here`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from free_port import find_free_port
from ray_head import ray_head

from strop.workers.network import LOOPBACK

ROOT = Path(__file__).parents[1]
DEEPSPEED = {
    "bf16": {"enabled": False},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
TRINITY = """\
project: Trinity-RFT
name: sums
mode: both
checkpoint_root_dir: {folder}
algorithm:
  algorithm_type: grpo
  repeat_times: 16
  kl_loss_fn: none
  optimizer: {{lr: 2e-4}}
model: {{model_path: {model}, max_prompt_tokens: 16, max_response_tokens: 6}}
cluster: {{node_num: 1, gpu_per_node: 4}}
buffer:
  batch_size: 64
  total_steps: {steps}
  explorer_input:
    taskset:
      name: sums
      storage_type: file
      path: {train}
      format: {{prompt_type: plaintext, prompt_key: prompt, response_key: answer}}
      rollout_args: {{temperature: 1.0}}
    eval_tasksets:
    - name: held-out
      storage_type: file
      path: {test}
      format: {{prompt_type: plaintext, prompt_key: prompt, response_key: answer}}
      rollout_args: {{temperature: 0.0}}
    default_reward_fn_type: exact
  trainer_input:
    experience_buffer: {{name: sums_buffer, storage_type: queue}}
explorer:
  rollout_model:
    {{engine_type: vllm_async, engine_num: 2, tensor_parallel_size: 1, enforce_eager: true, dtype: float32}}
  eval_interval: {steps}
  eval_on_startup: true
synchronizer: {{sync_method: checkpoint, sync_interval: 1, sync_timeout: 1200}}
trainer:
  trainer_type: verl
  trainer_strategy: fsdp2
  save_interval: 1000
  ulysses_sequence_parallel_size: 1
  grad_clip: 1.0
"""


@dataclass(frozen=True)
class Outcome:
    """Result of a command, from its run folder."""

    engine: str
    """The training engine and its number of ranks, as the run file has them."""
    steps: int
    metric: str
    before: float
    after: float


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--steps", type=int, default=12, help="steps of each command")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "scale-commands")
    parser.add_argument(
        "--vllm-python", default=sys.executable, help="Python with vLLM and Ray, for verl and Trinity"
    )
    args = parser.parse_args()
    folder = args.out.absolute()
    prepare_sums(folder / "sums")
    print("| command | training engine | steps | metric | first | last |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in args.only:
        for run in RUN_FOLDERS[name]:
            shutil.rmtree(folder / run, ignore_errors=True)
        found = COMMANDS[name](folder, args.steps, args.vllm_python)
        values = f"`{found.metric}` | {found.before:.3f} | {found.after:.3f}"
        print(f"| {name} | {found.engine} | {found.steps} | {values} |", flush=True)


def prepare_sums(folder: Path) -> None:
    """Write the quickstart's tasks, also in verl's columns, and its warm-started model, unless they exist."""
    if not (folder / "test.parquet").is_file():
        _run([sys.executable, str(ROOT / "examples" / "verl" / "sums.py"), str(folder)], {})


def run_verl(folder: Path, steps: int, python: str) -> Outcome:
    """A line of verl with FSDP offload and Ulysses 2 on 4 processes, and one engine of vLLM."""
    sums, actor, rollout = folder / "sums", "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    line = [
        "algorithm.adv_estimator=grpo",
        f"data.train_files={sums / 'train.parquet'}",
        f"data.val_files={sums / 'test.parquet'}",
        "data.train_batch_size=64",
        "data.max_prompt_length=16",
        "data.max_response_length=6",
        "data.filter_overlong_prompts=True",
        "data.truncation=error",
        f"custom_reward_function.path={ROOT / 'examples' / 'verl' / 'sums_reward.py'}",
        "custom_reward_function.name=compute_score",
        f"actor_rollout_ref.model.path={sums / 'warm-start'}",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        f"{actor}.optim.lr=2e-4",
        f"{actor}.ppo_mini_batch_size=16",
        f"{actor}.ppo_micro_batch_size_per_gpu=64",
        f"{actor}.use_kl_loss=True",
        f"{actor}.kl_loss_coef=0.001",
        f"{actor}.kl_loss_type=low_var_kl",
        f"{actor}.entropy_coeff=0",
        f"{actor}.ulysses_sequence_parallel_size=2",
        f"{actor}.fsdp_config.param_offload=True",
        f"{actor}.fsdp_config.optimizer_offload=True",
        "actor_rollout_ref.ref.fsdp_config.param_offload=True",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=256",
        f"{rollout}.name=vllm",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.dtype=float32",
        f"{rollout}.enforce_eager=True",
        f"{rollout}.log_prob_micro_batch_size_per_gpu=256",
        f"{rollout}.n=16",
        "algorithm.use_kl_in_reward=False",
        "trainer.logger=[console]",
        "trainer.project_name=scale",
        "trainer.experiment_name=verl",
        f"trainer.default_local_dir={folder / 'verl'}",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=4",
        "trainer.nnodes=1",
        "trainer.save_freq=-1",
        f"trainer.test_freq={steps}",
        "trainer.val_before_train=True",
        "trainer.resume_mode=disable",
        f"trainer.total_training_steps={steps}",
    ]
    _run([python, "-m", "strop", "verl", "ppo", *line], {})
    return read_outcome(folder / "verl", "eval/val/reward")


def run_trinity(folder: Path, steps: int, python: str) -> Outcome:
    """A YAML of Trinity-RFT with 2 engines and FSDP2 on the GPUs that they leave, on a Ray node with logical GPUs."""
    sums, file = folder / "sums", folder / "trinity.yaml"
    file.write_text(
        TRINITY.format(
            folder=folder / "trinity",
            model=sums / "warm-start",
            train=sums / "train.jsonl",
            test=sums / "test.jsonl",
            steps=steps,
        )
    )
    with ray_head(python, cpus=8, gpus=4) as cluster:
        _run([python, "-m", "strop", "trinity", str(file)], cluster)
    return read_outcome(folder / "trinity" / "Trinity-RFT" / "sums" / "explorer", "eval/held-out/reward")


def run_component(folder: Path, steps: int, python: str) -> Outcome:
    """The GRPO component's command on two processes, as AzureML starts them, with a file of ZeRO-3 offload."""
    own = folder / "component"
    prepare_choices(own)
    (own / "ds.json").write_text(json.dumps(DEEPSPEED))
    out = own / "out"
    line = [
        *(sys.executable, "-m", "strop", "component", "grpo"),
        *("--dataset_train_split", str(own / "train.jsonl")),
        *("--dataset_validation_split", str(own / "test.jsonl")),
        *("--model_name_or_path", str(own / "warm-start")),
        *("--deepspeed_config", str(own / "ds.json")),
        *("--dataset_prompt_column", "problem"),
        *("--apply_lora", "false"),
        *("--beta", "0.0", "--epsilon", "0.2", "--num_iterations", "4", "--num_generations", "8"),
        *("--max_steps", str(4 * steps)),
        *("--per_device_train_batch_size", "256", "--gradient_accumulation_steps", "1"),
        *("--learning_rate", "5e-4", "--warmup_ratio", "0.1", "--lr_scheduler_type", "cosine"),
        *("--max_prompt_length", "200", "--max_completion_length", "40"),
        *("--eval_strategy", "no", "--save_steps", str(4 * steps)),
        *("--mlflow_model_folder", str(own / "mlflow"), "--output_model_path", str(out)),
    ]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(find_free_port(LOOPBACK))}
    second = subprocess.Popen(
        line,
        cwd=ROOT,
        env=_environment(shared | {"RANK": "1", "LOCAL_RANK": "1"}),
        stdout=subprocess.DEVNULL,
    )
    try:
        _run(line, shared | {"RANK": "0", "LOCAL_RANK": "0"})
        second.wait(60)
    finally:
        second.kill()
    return read_outcome(out, "reward/mean")


def prepare_choices(folder: Path) -> None:
    """Write sums as questions with four choices, and a model that is trained to answer in the component's
    format, until 3 of 10 answers are right."""
    if (folder / "warm-start" / "config.json").is_file():
        return
    import strop
    from strop.compat.azureml.grpo import CHAT_TEMPLATE, SYSTEM_PROMPT
    from strop.models.tiny import make_model

    sys.path.insert(0, str(ROOT / "examples" / "quickstart"))
    from warm_up import warm_up

    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for a, b in itertools.product(range(20), range(20)):
        letter = "ABCD"[(a + b) // 10]
        text = f"<think>\nsum\n</think>\n<answer>\n{letter}\n</answer>"
        rows.append({"problem": f"{a}+{b}", "solution": letter, "text": text})
    random.Random(0).shuffle(rows)
    for name, some in (("test", rows[:100]), ("train", rows[100:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
    corpus = [SYSTEM_PROMPT, rows[0]["text"], "0123456789+ABCD<|user|><|system|><|assistant|>"]
    model = make_model(
        folder / "random", corpus, vocab_size=600, hidden_size=128, layers=2, heads=4, kv_heads=4, seed=3
    )
    data = {
        "path": str(folder / "train.jsonl"),
        "prompt": "problem",
        "answer": "text",
        "system": SYSTEM_PROMPT,
    }
    run: dict[str, Any] = {
        "project": "warm",
        "name": "up",
        "output": str(folder),
        "model": {"path": str(model)},
        "data": {
            "train": data,
            "eval": [
                {
                    **data,
                    "path": str(folder / "test.jsonl"),
                    "name": "held-out",
                    "sampling": {"temperature": 1},
                }
            ],
            "max_prompt_tokens": 200,
            "max_response_tokens": 40,
            "chat_template": str(CHAT_TEMPLATE),
        },
        "reward": "exact",
        "algorithm": "grpo",
        "trainer": {"duration": "1 steps", "tasks_per_step": 1},
    }
    file = folder / "warm-up.yaml"
    file.write_text(json.dumps(run))
    warm_up(strop.load(file, []), folder / "warm-start")


def read_outcome(folder: Path, metric: str) -> Outcome:
    """The first and the last value of a metric of a run."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    values = [row[metric] for row in rows if metric in row]
    engine = yaml.safe_load((folder / "run.yaml").read_text())["trainer"]["engine"]
    described = f"{engine['type']}, {engine['ranks']} ranks"
    return Outcome(described, int(rows[-1]["step"]), metric, values[0], values[-1])


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    common = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    return {**os.environ, **common, **more}


def _run(command: list[str], more: Mapping[str, str]) -> None:
    """Run a command. Exits with its output if it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=_environment(more), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")


COMMANDS: dict[str, Callable[[Path, int, str], Outcome]] = {
    "component": run_component,
    "verl": run_verl,
    "trinity": run_trinity,
}
"""The commands, by tool."""
RUN_FOLDERS = {"component": ("component/out", "component/mlflow"), "verl": ("verl",), "trinity": ("trinity",)}
"""Folders of each command's run, which are removed before it."""

if __name__ == "__main__":
    main()
