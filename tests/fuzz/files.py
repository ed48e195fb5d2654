"""Damaged files other than configurations of a dialect, and what Strop reads of each before a run or after it."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import TypeAdapter

from strop.buffer.factory import open_buffer
from strop.cli import folder_commands
from strop.compat.trl.script.run import read_trl_script
from strop.compat.verl.interface.tool_files import check_classes, load_interactions, load_tools
from strop.config.deepspeed import engine_config, resolved, with_hidden_size
from strop.config.explain import explain_values, summarize
from strop.config.load.loader import load_run
from strop.config.schema.buffer import BufferConfig
from strop.config.schema.data import DataConfig, TasksetConfig
from strop.config.schema.model import ModelConfig
from strop.config.schema.rollout import NativeEngineConfig
from strop.config.schema.trainer import DeepSpeedEngineConfig
from strop.data.encoding.chat_template import PromptEncoder
from strop.data.images.store import check_image
from strop.data.offline_dataset import load_offline_dataset
from strop.data.taskset import load_taskset
from strop.inference.native.engine import NativeEngine
from strop.models.loading import load_model, load_tokenizer
from strop.models.tiny import CHAT_TEMPLATE, make_model
from strop.plan.memory import read_model_size
from strop.report.build import write_report
from strop.run.state.resume import find_start
from strop.run.tokenizer import load_model_tokens
from strop.runs.folder import RunFolder
from strop.runs.rollout_file import SCHEMA
from strop.runs.rollout_index import RolloutFilter, RolloutIndex
from strop.types import SampleRequest, SamplingParams
from strop.workflows.mcp.servers import read_servers
from tests.buffer.groups import make_groups
from tests.compat.broken_configs import REAL
from tests.fuzz.damage import damaged
from tests.fuzz.outcome import Outcome, attempt
from tests.models.gguf_files import write_gguf

CORPUS = ("What is 2 + 3?", "one two three four five six seven")
MESSAGES = ({"role": "user", "content": "2 + 3?"},)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of file."""

    write: Callable[[Path], None]
    """Writes the valid files into an empty folder."""
    damaged: tuple[str, ...]
    """Patterns of the files of which one is damaged."""
    read: Callable[[Path, str], Any]
    """Reads the files of a folder; the second argument is the damaged one."""


class FileFuzz:
    """Damages the files of one kind in a folder of its own, one case after another."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = KINDS[kind]
        self._folder = folder / kind
        self._folder.mkdir(parents=True)
        self._name = kind
        with contextlib.chdir(self._folder):
            self._kind.write(self._folder)
        self._valid = {path: path.read_bytes() for path in self._folder.rglob("*") if path.is_file()}
        self._damaged = sorted({path for name in self._kind.damaged for path in self._folder.glob(name)})
        valid = self._read(self._damaged[0].name)
        assert valid.result == "read", f"the valid files of {kind} are refused: {valid}"

    def outcome(self, seed: str) -> Outcome:
        """Read the files, one of which is damaged."""
        for path in self._folder.rglob("*"):
            if path.is_file() and path not in self._valid:
                path.unlink()
        for path, content in self._valid.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        rng = random.Random(f"{self._name}:{seed}")
        chosen = rng.choice(self._damaged)
        chosen.write_bytes(damaged(chosen.name, self._valid[chosen], rng))
        return self._read(str(chosen.relative_to(self._folder)))

    def _read(self, name: str) -> Outcome:
        before = dict(os.environ)
        try:
            with (
                contextlib.chdir(self._folder),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                return attempt(lambda: self._kind.read(self._folder, name))
        finally:
            os.environ.clear()
            os.environ.update(before)


# -- configurations of engines, tools and servers ------------------------------------------------------------

_DEEPSPEED = {
    "full.json": {
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": False, "loss_scale": 0},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "overlap_comm": True,
            "reduce_bucket_size": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "gradient_clipping": "auto",
        "train_batch_size": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_num_steps": "auto"}},
    },
    "small.json": {"zero_optimization": {"stage": 1, "offload_param": {"device": "none"}}, "tensorboard": {}},
}


def _write_deepspeed(folder: Path) -> None:
    for name, config in _DEEPSPEED.items():
        (folder / name).write_text(json.dumps(config))


def _read_deepspeed(folder: Path, name: str) -> None:
    run = {
        "model": {"path": "m"},
        "data": {"train": {"path": "tasks.jsonl"}},
        "reward": "exact",
        "algorithm": {"type": "grpo", "rollouts_per_task": 4},
        "trainer": {"tasks_per_step": 8, "engine": {"type": "deepspeed", "ranks": 2, "config": name}},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(run))
    loaded = load_run(folder / "run.yaml", here=True)
    summarize(loaded)
    explain_values(loaded)
    engine = loaded.run.trainer.engine
    assert isinstance(engine, DeepSpeedEngineConfig)
    with_hidden_size(engine_config(resolved(engine), "cpu"), 64)


_SCHEMA = {
    "type": "function",
    "function": {
        "name": "calc_gsm8k_reward",
        "description": "Grade an answer.",
        "parameters": {
            "type": "object",
            "properties": {"answer": {"type": "string", "description": "The answer.", "enum": ["1", "2"]}},
            "required": ["answer"],
        },
    },
}
_GSM8K_TOOL = {
    "class_name": "verl.tools.gsm8k_tool.Gsm8kTool",
    "config": {"type": "native"},
    "tool_schema": _SCHEMA,
}
_SANDBOX_TOOL = {
    "class_name": "verl.tools.sandbox_fusion_tools.SandboxFusionTool",
    "config": {"sandbox_fusion_url": "http://127.0.0.1:9/run_code", "num_workers": 2, "default_timeout": 5},
    "tool_schema": _SCHEMA,
}


def _write_tools(folder: Path) -> None:
    (folder / "tools.yaml").write_text(yaml.safe_dump({"tools": [_GSM8K_TOOL, _SANDBOX_TOOL]}))
    interaction = {"class_name": "verl.interactions.gsm8k_interaction.Gsm8kInteraction", "config": {}}
    (folder / "interaction.yaml").write_text(
        yaml.safe_dump({"interaction": [interaction | {"name": "teacher"}]})
    )


def _read_tools(folder: Path, name: str) -> None:
    check_classes("tools.yaml", "interaction.yaml")
    for tool in load_tools("tools.yaml", "rollout"):
        json.dumps(tool.schema, default=str)
    load_interactions("interaction.yaml")


_MCP_ENTRY = {
    "class_name": "verl.tools.mcp_base_tool.MCPBaseTool",
    "config": {"type": "mcp", "rate_limit": 10, "timeout": 30},
    "mcp": {"mcp_servers_config_path": "servers.json", "tool_selected_list": ["add"]},
}
_MCP_SERVERS = {
    "calculator": {"command": "python", "args": ["server.py"], "env": {"KEY": "value"}, "cwd": "."},
    "search": {"url": "https://host/mcp", "auth_token": "t", "transport": "http", "headers": {"X": "1"}},
}


def _write_mcp(folder: Path) -> None:
    (folder / "servers.json").write_text(json.dumps({"mcpServers": _MCP_SERVERS}))
    (folder / "mcp.yaml").write_text(yaml.safe_dump({"tools": [_MCP_ENTRY]}))


def _read_mcp(folder: Path, name: str) -> None:
    check_classes("mcp.yaml", None)
    for server in read_servers("servers.json", "mcp.yaml"):
        repr(server)


# -- models ------------------------------------------------------------------------------------------------


@cache
def _model_folder() -> Path:
    """A tiny model, which lives as long as the process."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="strop-fuzz-"))
    return make_model(
        folder, CORPUS, hidden_size=16, layers=1, heads=2, kv_heads=1, vocab_size=320, max_tokens=64
    )


def _write_model(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    model = folder / "m"
    shutil.copytree(_model_folder(), model)
    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    shards: dict[str, dict[str, Any]] = {
        "model-00001-of-00002.safetensors": {},
        "model-00002-of-00002.safetensors": {},
    }
    for number, (name, tensor) in enumerate(weights.items()):
        shards[list(shards)[number % 2]][name] = tensor
    for name, tensors in shards.items():
        save_file(tensors, model / name, metadata={"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in weights.values())},
        "weight_map": {tensor: name for name, tensors in shards.items() for tensor in tensors},
    }
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    generation = {
        "eos_token_id": [1, 2],
        "pad_token_id": 0,
        "temperature": 0.7,
        "top_p": 0.9,
        "do_sample": True,
    }
    (model / "generation_config.json").write_text(json.dumps(generation))
    write_gguf(_model_folder(), folder / "model.gguf")


def _read_model(folder: Path, name: str) -> None:
    section = ModelConfig(path="model.gguf" if name.endswith("gguf") else "m")
    read_model_size(section.path)
    tokenizer = load_tokenizer(section)
    load_model_tokens(section, tokenizer)
    engine = NativeEngine.from_model(load_model(section, device="cpu"), NativeEngineConfig(), tokenizer)
    request = SampleRequest("0", np.array([5, 6, 7], np.int32), SamplingParams(max_tokens=2), seed=1)
    engine.start()
    try:
        asyncio.run(engine.sample([request]))
    finally:
        engine.close()


def _write_template(folder: Path) -> None:
    shutil.copytree(_model_folder(), folder / "m")
    (folder / "own.jinja").write_text(CHAT_TEMPLATE)
    (folder / "tasks.jsonl").write_text(json.dumps({"prompt": MESSAGES, "response": "5"}))


def _read_template(folder: Path, name: str) -> None:
    tokenizer = load_tokenizer(ModelConfig(path="m"))
    for template in ("tokenizer", "own.jinja"):
        encoder = PromptEncoder(tokenizer, template)
        encoder.encode(MESSAGES)
        encoder.renders_tools  # noqa: B018  (rendered on demand)
        encoder.renders_tool_calls  # noqa: B018
        train = TasksetConfig(path="tasks.jsonl", response="response")
        data = DataConfig(train=train, chat_template=template)
        load_offline_dataset(train, data, tokenizer, name="train", seed=1, shuffle=False)


def _write_tokenizer(folder: Path) -> None:
    shutil.copytree(_model_folder(), folder / "m")


def _read_tokenizer(folder: Path, name: str) -> None:
    section = ModelConfig(path="m")
    tokenizer = load_tokenizer(section)
    tokens = load_model_tokens(section, tokenizer)
    encoder = PromptEncoder(tokenizer, "tokenizer", tokens=tokens)
    ids = encoder.encode(MESSAGES)
    tokenizer.decode(ids)
    tokens.end_texts(tokenizer)


# -- scripts of TRL ------------------------------------------------------------------------------------------

_SCRIPT = """
import json
from datasets import Dataset
from peft import LoraConfig
from trl import {name}Config, {name}Trainer

def right(completions, **kwargs):
    return [1.0] * len(completions)

values = json.load(open("{name}.json"))
lora = LoraConfig(**values["lora"]) if values.get("lora") else None
data = Dataset.from_list(values["rows"])
{name}Trainer("m", {first}args={name}Config(**values["arguments"]), train_dataset=data, peft_config=lora).train()
"""
_LORA = {"r": 8, "lora_alpha": 16, "target_modules": "all-linear", "lora_dropout": 0.0}
_SCRIPTS: Mapping[str, tuple[str, list[dict[str, Any]]]] = {
    "GRPO": ("reward_funcs=right, ", [{"prompt": "2 + 3?"}] * 4),
    "RLOO": ("reward_funcs=right, ", [{"prompt": "2 + 3?"}] * 4),
    "SFT": ("", [{"messages": [*MESSAGES, {"role": "assistant", "content": "5"}]}] * 4),
    "DPO": ("", [{"prompt": "2 + 3?", "chosen": "5", "rejected": "6"}] * 4),
}
_CONFIG_SCRIPT = """
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser

def right(completions, **kwargs):
    return [1.0] * len(completions)

script, arguments, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config(
    ["--config", "trl.yaml"]
)
from datasets import load_dataset
data = load_dataset(script.dataset_name, data_files="rows.jsonl", split="train")
GRPOTrainer(model.model_name_or_path, reward_funcs=right, args=arguments, train_dataset=data).train()
"""


def _write_scripts(folder: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    for name, (first, rows) in _SCRIPTS.items():
        file = "trl.yaml" if name == "GRPO" else f"trl-{name.lower()}.yaml"
        lines = yaml.safe_load((REAL / file).read_text())
        known = {key: value for key, value in lines.items() if key in _COMMON}
        values = {"arguments": {"output_dir": "out"} | known, "rows": rows, "lora": _LORA}
        (folder / f"{name}.json").write_text(json.dumps(values))
        (folder / f"{name}.py").write_text(_SCRIPT.format(name=name, first=first))
    (folder / "rows.jsonl").write_text(json.dumps({"prompt": "2 + 3?"}) + "\n")
    (folder / "config.py").write_text(_CONFIG_SCRIPT)
    config = {"model_name_or_path": "m", "dataset_name": "json", "output_dir": "out", "num_generations": 4}
    (folder / "trl.yaml").write_text(
        yaml.safe_dump(config | {"logging_steps": 1, "warmup_ratio": 0.1, "env": {}})
    )


_COMMON = ("learning_rate", "num_train_epochs", "logging_steps", "warmup_steps", "max_steps", "bf16", "seed")


def _read_script(folder: Path, name: str) -> None:
    script = {"trl.yaml": "config.py"}.get(name, name.replace(".json", ".py"))
    job = read_trl_script(Path(script), here=True)
    for run in job.loaded.runs:
        summarize(run)
        explain_values(run)


# -- data ----------------------------------------------------------------------------------------------------

_ROWS = [
    {
        "prompt": [{"role": "user", "content": f"{n} + 1?"}],
        "answer": str(n + 1),
        "response": str(n + 1),
        "tools": None,
        "extra_info": {"index": n, "split": "train"},
    }
    for n in range(6)
]


def _write_data(folder: Path) -> None:
    from datasets import Dataset
    from PIL import Image

    shutil.copytree(_model_folder(), folder / "m")
    flat = [{"prompt": f"{n} + 1?", "answer": n + 1, "response": str(n)} for n in range(6)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _ROWS))
    (folder / "rows.json").write_text(json.dumps(_ROWS))
    (folder / "rows.csv").write_text(
        "prompt,answer,response\n" + "".join(f'"{n} + 1?",{n},{n}\n' for n in range(6))
    )
    pq.write_table(pa.Table.from_pylist(_ROWS), folder / "rows.parquet")
    table = pa.Table.from_pylist(_ROWS)
    with pa.ipc.new_stream(folder / "rows.arrow", table.schema) as writer:
        writer.write_table(table)
    Dataset.from_list(flat).save_to_disk(folder / "saved")
    Image.new("RGB", (8, 8), "red").save(folder / "image.png")


def _read_data(folder: Path, name: str) -> None:
    if name.endswith("png"):
        check_image((folder / name).read_bytes(), "the image")
        return
    path = "saved" if name.startswith("saved/") else name
    train = TasksetConfig(path=path)
    data = DataConfig(train=train)
    tokenizer = _tokenizer()
    taskset = load_taskset(train, data, tokenizer, seed=1, shuffle=True)
    taskset.all_tasks()
    list(taskset.notes())
    answered = TasksetConfig(path=path, response="response")
    load_offline_dataset(answered, data, tokenizer, name="train", seed=1, shuffle=False)


@cache
def _tokenizer() -> Any:
    return load_tokenizer(ModelConfig(path=str(_model_folder())))


# -- run folders -----------------------------------------------------------------------------------------------

_OLD_RUN = Path(__file__).parents[1] / "run" / "old_run"
_ROLLOUT = {
    "step": 1,
    "task_id": "train:0",
    "group": "g",
    "index": 0,
    "source": "",
    "prompt": "2 + 3?",
    "answer": "5",
    "text": "5",
    "messages": json.dumps([*MESSAGES, {"role": "assistant", "content": "5"}]),
    "reward": 1.0,
    "reward_parts": [("digits", 1.0)],
    "status": "ok",
    "error": None,
    "turns": 1,
    "response_tokens": 1,
    "versions": [0],
    "images": [],
}


def _write_run(folder: Path) -> None:
    shutil.copytree(_OLD_RUN, folder, dirs_exist_ok=True)
    run = folder / "runs" / "strop" / "old"
    rows = [_ROLLOUT | {"index": n, "reward": n / 2} for n in range(3)]
    for path in (run / "rollouts" / "step-000001.parquet", run / "eval" / "held-out" / "step-000001.parquet"):
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), path)
    example = {"prompt": "2 + 3?", "answers": [{"label": "chosen", "text": "5", "tokens": 1}]}
    (run / "training_examples.jsonl").write_text(json.dumps(example) + "\n")


def _read_run(folder: Path, name: str) -> None:
    run = folder / "runs" / "strop" / "old"
    folder_commands.list_runs(folder / "runs")
    folder_commands.show(run, 2)
    folder_commands.compare([run, run], run / "compare.html")
    write_report(run)
    index = RolloutIndex(RunFolder(run))
    index.refresh()
    for source in index.sources:
        index.find(RolloutFilter(source), 0, 10)
        index.spreads(RolloutFilter(source), 0, 10)
    loaded = load_run(folder / "settings.yaml", here=True)
    find_start(loaded.run, RunFolder(run), None)


# -- buffers ---------------------------------------------------------------------------------------------------

_BUFFERS: Mapping[str, dict[str, Any]] = {
    "groups.parquet": {"type": "file", "format": "parquet"},
    "groups.jsonl": {"type": "file", "format": "jsonl"},
    "backup.jsonl": {"type": "queue", "backup": "backup.jsonl"},
    "backup.db": {"type": "queue", "backup": "backup.db"},
    "buffer.db": {"type": "sql"},
}
"""The `buffer` section of each folder."""


def _buffer(folder: Path, name: str) -> Any:
    return closing(open_buffer(TypeAdapter(BufferConfig).validate_python(_BUFFERS[name]), folder / name))


def _write_buffers(folder: Path) -> None:
    for name in _BUFFERS:
        (folder / name).mkdir()
        with _buffer(folder, name) as buffer:
            buffer.put(make_groups(3))
            buffer.put(make_groups(2, prefix="h"))
            buffer.acknowledge([group.id for group in buffer.take(1)])


def _read_buffer(folder: Path, name: str) -> None:
    with _buffer(folder, name.partition("/")[0]) as buffer:
        buffer.acknowledge([group.id for group in buffer.take(9, timeout_seconds=0)])


KINDS: Mapping[str, Kind] = {
    "deepspeed": Kind(_write_deepspeed, ("full.json", "small.json"), _read_deepspeed),
    "tools": Kind(_write_tools, ("*.yaml",), _read_tools),
    "mcp": Kind(_write_mcp, ("servers.json", "mcp.yaml"), _read_mcp),
    "model": Kind(_write_model, ("m/*.json", "m/*.safetensors", "model.gguf"), _read_model),
    "template": Kind(_write_template, ("own.jinja", "m/chat_template.jinja"), _read_template),
    "tokenizer": Kind(_write_tokenizer, ("m/tokenizer*.json",), _read_tokenizer),
    "trl-script": Kind(_write_scripts, ("*.py", "*.json", "trl.yaml"), _read_script),
    "data": Kind(_write_data, ("rows.*", "saved/*", "image.png"), _read_data),
    "buffer": Kind(
        _write_buffers, ("*/**/*.jsonl", "*/**/*.parquet", "*/**/done.txt", "*/*.db"), _read_buffer
    ),
    "run-folder": Kind(
        _write_run,
        (
            *("runs/strop/old/*.*", "runs/strop/old/**/*.parquet"),
            *("runs/strop/old/checkpoints/*/*.json", "runs/strop/old/checkpoints/*/*.safetensors"),
        ),
        _read_run,
    ),
}
"""Kinds of files by name."""
