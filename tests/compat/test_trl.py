"""TRL's configurations: command lines, images, FSDP's layouts and vLLM.

Expectations are TRL 1.16.0's: trl/trainer/{grpo,sft,dpo}_config.py, the losses and weights of grpo_trainer.py, and
transformers/training_args.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from strop.algorithms.losses.aggregation import TargetTokens, compute_importance_weights
from strop.compat.convert import convert
from strop.compat.trl.reader import TrlProgram, read_trl_arguments
from strop.config.load.loader import Job, LoadedRun
from strop.config.schema.policy_loss import ImportanceCorrectionConfig
from strop.config.schema.rollout import NativeEngineConfig, OpenAiEngineConfig, VllmEngineConfig
from strop.config.schema.trainer import Fsdp2EngineConfig, LocalEngineConfig, WrapPolicyConfig
from strop.errors import ConfigError, PlacementError
from strop.reading import read_any

BASE = ("--model_name_or_path", "m", "--dataset_name", "train.jsonl")


def read(text: str = "", program: TrlProgram = "grpo", here: bool = False) -> LoadedRun:
    return read_trl_arguments(program, [*BASE, *text.split()], here=here)


def test_rewards_of_the_current_folder() -> None:
    """trl/scripts/grpo.py puts the current folder on the path before it imports them."""
    Path("lib").mkdir()
    Path("lib/rewards.py").write_text("def right(completions, **kwargs): ...\n")
    functions = read("--reward_funcs lib.rewards.right other.short").run.reward.functions
    assert [part.function for part in functions] == ["lib/rewards.py:right", "other.short"]


@pytest.mark.parametrize("program", ["grpo", "sft", "dpo"])
@pytest.mark.parametrize("column", ["images", "image"])
def test_the_columns_of_images_are_trls(program: TrlProgram, column: str) -> None:
    """trl/data_utils.py, prepare_multimodal_messages: images come before the text of the first user message."""
    Path("train.jsonl").write_text(json.dumps({"prompt": "?", column: ["a.png"]}))
    loaded = read(program=program)
    run = loaded.run
    assert (run.data.train.images, run.data.train.optional_columns) == (column, (column,))
    assert (run.data.images.marker, run.data.images.unmarked) == (None, "start")
    Path("train.jsonl").write_text(json.dumps({"prompt": "?"}))
    plain = read(program=program).run
    assert plain.data.train.images is None and plain.data.images.marker == "<image>"


@pytest.mark.parametrize("name", ["train.jsonl", "train.parquet", "folder/a.jsonl", "saved"])
@pytest.mark.parametrize("program", ["sft", "dpo"])
def test_columns_of_the_chat_template_are_trls(program: TrlProgram, name: str) -> None:
    """trl/trainer/sft_trainer.py and dpo_trainer.py: `tools` and `chat_template_kwargs` of an example."""
    rows = [{"prompt": "?"}, {"prompt": "?", "tools": "[]", "chat_template_kwargs": {"style": "x"}}]
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows[::-1]), path)
    elif name == "saved":
        (path / "train").mkdir(parents=True)
        (path / "dataset_dict.json").write_text('{"splits": ["train"]}')
        (path / "train" / "state.json").write_text("{}")
        (path / "train" / "dataset_info.json").write_text(json.dumps({"features": rows[1]}))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = read(f"--dataset_name {path.parts[0]}", program=program)
    train = loaded.run.data.train
    assert (train.tools, train.template_args_column) == ("tools", "chat_template_kwargs")
    assert train.optional_columns == ("tools", "chat_template_kwargs")
    assert not any("are not known" in note for note in loaded.notes)


def test_a_csv_file_has_no_splits() -> None:
    Path("train.csv").write_text("prompt,images\n?,a.png\n")
    train = read("--dataset_name train.csv", program="grpo").run.data.train
    assert train.path == "train.csv" and train.split is None and train.images == "images"


def test_conversations_are_a_name_of_messages() -> None:
    talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    Path("train.jsonl").write_text(json.dumps({"conversations": talk}))
    assert read("--assistant_only_loss", program="sft").run.data.train.response == "conversations"
    Path("train.jsonl").write_text(json.dumps({"messages": []}))
    assert read("--assistant_only_loss", program="sft").run.data.train.response == "messages"


@pytest.mark.parametrize(
    ("options", "strategy", "shuffle", "overlong"),
    [
        ("--packing", "bfd", False, "right"),
        ("--packing --packing_strategy wrapped --shuffle_dataset", "wrapped", True, "error"),
        ("--packing --packing_strategy bfd_split --eval_packing True", "bfd_split", False, "error"),
    ],
)
def test_packing_both_ways(options: str, strategy: str, shuffle: bool, overlong: str) -> None:
    more = "--max_length 128 --per_device_train_batch_size 2"
    run = read(f"{options} {more}", program="sft").run
    assert run.data.packing is not None
    assert (run.data.packing.strategy, run.data.packing.shuffle) == (strategy, shuffle)
    assert run.data.overlong == overlong and str(run.trainer.microbatch) == "256 tokens"
    Path("run.yaml").write_text(yaml.safe_dump(convert(Job(read(f"{options} {more}", "sft")), "trl").values))
    assert read_any(Path("run.yaml")).loaded.run == run


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            "--packing_strategy wrapped --packing --eval_packing False --eval_strategy epoch",
            "Strop packs both",
        ),
        ("--packing --packing_strategy new", "packing_strategy must be"),
        ("--packing --max_length null", "max_length is None"),
    ],
)
def test_packing_that_is_refused(options: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read(options, program="sft")


@pytest.mark.parametrize(
    ("row", "options", "expected"),
    [
        ({"text": "a b"}, "", ("text", None)),
        ({"body": "a b"}, "--dataset_text_field body", ("body", None)),
        ({"text": "a b", "tools": "[]"}, "--completion_only_loss False", ("text", None)),
        ({"text": "a b", "prompt": "a", "completion": "b"}, "", (None, "completion")),
    ],
)
def test_the_column_of_texts_is_trls(
    row: dict[str, str], options: str, expected: tuple[str | None, str | None]
) -> None:
    """trl/trainer/sft_trainer.py, _prepare_dataset: a prompt and messages come before `dataset_text_field`."""
    Path("train.jsonl").write_text(json.dumps(row))
    train = read(options, program="sft").run.data.train
    assert (train.text, train.response) == expected


@pytest.mark.parametrize(
    ("row", "options", "response", "trains_prompt"),
    [
        ({"messages": []}, "", "messages", True),
        ({"conversations": []}, "--completion_only_loss False", "conversations", True),
        ({"messages": []}, "--assistant_only_loss", "messages", False),
        ({"prompt": "a", "completion": "b"}, "", "completion", False),
        ({"prompt": "a", "completion": "b"}, "--completion_only_loss False", "completion", True),
    ],
)
def test_what_of_a_row_is_trained_is_trls(
    row: dict[str, Any], options: str, response: str, trains_prompt: bool
) -> None:
    """trl/trainer/sft_trainer.py, build_labels; read again from the file that a conversion writes."""
    Path("train.jsonl").write_text(json.dumps(row))
    loaded = read(options, program="sft")
    train = loaded.run.data.train
    assert (train.response, train.train_on_prompt) == (response, trains_prompt)
    Path("run.yaml").write_text(yaml.safe_dump(convert(Job(loaded), "trl").values))
    assert read_any(Path("run.yaml")).loaded.run.data.train == train


@pytest.mark.parametrize("program", ["grpo", "rloo", "sft", "dpo"])
def test_the_text_of_standard_rows_is_encoded_as_it_is(program: TrlProgram) -> None:
    """trl/data_utils.py, is_conversational: only rows of messages get the chat template."""
    run = read("--reward_model_name_or_path r" if program in ("grpo", "rloo") else "", program).run
    assert run.data.text_prompts == "raw"
    assert all(model.text_prompts == "raw" for model in run.reward.models)


def test_images_of_a_data_set_on_the_hub_are_said_to_be_unknown() -> None:
    def notes(model_type: str) -> str:
        Path("m").mkdir(exist_ok=True)
        Path("m/config.json").write_text(json.dumps({"model_type": model_type}))
        return " ".join(read().notes)

    assert "its images are not used" in notes("qwen2_vl")
    assert "images" not in notes("qwen2")


@pytest.mark.parametrize(
    ("config", "written", "coefficient"),
    [
        ({"router_aux_loss_coef": 0.02}, "", 0.02),
        ({"text_config": {"router_aux_loss_coef": 0.01}}, "", 0.01),
        ({"router_aux_loss_coef": 0.02}, "--router_aux_loss_coef 0.5", 0.5),
        ({"router_aux_loss_coef": 0.02}, "--router_aux_loss_coef 0", None),
        ({}, "", None),
    ],
)
def test_the_loss_of_routers_has_the_models_coefficient(
    config: dict[str, Any], written: str, coefficient: float | None
) -> None:
    """trl/trainer/grpo_trainer.py 1.16.0, line 825: unset takes the text configuration's, 0 disables it."""
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(config))
    section = read(written).run.trainer.router_loss
    assert (None if section is None else section.balance_coef) == coefficient
    assert section is None or section.balance_over == "model"


@pytest.mark.parametrize("named", [[], None, "none", ["none"]])
def test_a_report_to_nothing_is_the_console(named: Any) -> None:
    values = {"model_name_or_path": "m", "dataset_name": "train.jsonl", "report_to": named}
    Path("sft.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    assert read_trl_arguments("sft", ["--config", "sft.yaml"], here=True).run.record.monitors == ("console",)


# -- FSDP ---------------------------------------------------------------------------------------------------

FOUR = ("--num_processes", "4", "--num_generations", "4")


def read_fsdp(fsdp: Any, config: Any = None, *more: str, here: bool = False) -> LoadedRun:
    values = {"model_name_or_path": "m", "dataset_name": "train.jsonl", "fsdp": fsdp, "fsdp_config": config}
    Path("grpo.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    return read_trl_arguments("grpo", ["--config", "grpo.yaml", *FOUR, *more], here=here)


@pytest.mark.parametrize(
    ("fsdp", "config", "expected"),
    [
        (True, None, Fsdp2EngineConfig(ranks=4)),
        ("full_shard auto_wrap", None, Fsdp2EngineConfig(ranks=4)),
        (
            "shard_grad_op offload",
            None,
            Fsdp2EngineConfig(ranks=4, reshard_after_forward=False, cpu_offload=True),
        ),
        (["no_shard"], {"version": 1}, Fsdp2EngineConfig(ranks=4, replicate=4)),
        (True, {"reshard_after_forward": False}, Fsdp2EngineConfig(ranks=4, reshard_after_forward=False)),
        (
            True,
            {"fsdp_transformer_layer_cls_to_wrap": "Qwen2DecoderLayer", "fsdp_cpu_offload": True},
            Fsdp2EngineConfig(
                ranks=4, cpu_offload=True, wrap=WrapPolicyConfig(layers=("Qwen2DecoderLayer",))
            ),
        ),
        (
            True,
            {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 1000},
            Fsdp2EngineConfig(ranks=4, wrap=WrapPolicyConfig(min_parameters=1000)),
        ),
        (
            "full_shard",
            {"version": 1, "forward_prefetch": "true"},
            Fsdp2EngineConfig(ranks=4, forward_prefetch=1),
        ),
        (None, None, LocalEngineConfig()),
        ("", None, LocalEngineConfig()),
    ],
)
def test_layouts_both_ways(fsdp: Any, config: Any, expected: Any) -> None:
    loaded = read_fsdp(fsdp, config)
    assert loaded.run.trainer.engine == expected
    written = convert(Job(loaded), "trl")
    assert written.unsupported == ()
    Path("again.yaml").write_text(yaml.safe_dump(dict(written.values)), encoding="utf-8")
    assert read_any(Path("again.yaml")).loaded.run == loaded.run


def test_the_options_are_in_a_json_file() -> None:
    Path("fsdp.json").write_text(json.dumps({"cpu_offload": True}), encoding="utf-8")
    assert read_fsdp(True, "fsdp.json").run.trainer.engine == Fsdp2EngineConfig(ranks=4, cpu_offload=True)


def test_fsdps_own_recomputation() -> None:
    off = ("--gradient_checkpointing", "false")
    assert read_fsdp(True, {"activation_checkpointing": True}, *off).run.model.gradient_checkpointing is True
    assert read_fsdp(True, None, *off).run.model.gradient_checkpointing is False
    assert read_fsdp(None, {"activation_checkpointing": True}, *off).run.model.gradient_checkpointing is False


@pytest.mark.parametrize(
    ("fsdp", "config", "expected"),
    [
        (True, {"version": 1}, "FSDP2 stands in for the first version"),
        (True, {"state_dict_type": "FULL_STATE_DICT"}, "without effect, on results too: state_dict_type"),
        (True, {"forward_prefetch": True}, "without effect, on results too: forward_prefetch"),
        (None, {"cpu_offload": True}, "inactive, because fsdp is not set"),
    ],
)
def test_what_has_no_effect_is_said(fsdp: Any, config: Any, expected: str) -> None:
    assert any(expected in note for note in read_fsdp(fsdp, config).notes)


@pytest.mark.parametrize(
    ("fsdp", "config", "expected"),
    [
        ("hybrid_shard", {"version": 1}, r"a replica of the model per node; write full_shard"),
        ("fully", None, r"fsdp has 'fully'; write true"),
        (True, {"offload_params": True}, r"fsdp_config has offload_params, which is not supported"),
        (True, {"xla": True}, r"trains on TPUs"),
        (True, {"auto_wrap_policy": "NONE"}, r"auto_wrap_policy is NONE; write one of"),
        (True, {"reshard_after_forward": "often"}, r"reshard_after_forward is often"),
        (True, "missing.json", r"there is no such file"),
        (True, 3, r"write a mapping of options"),
    ],
)
def test_refused_layout(fsdp: Any, config: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read_fsdp(fsdp, config)


def test_one_engine_divides_the_model() -> None:
    with pytest.raises(ConfigError, match="fsdp and deepspeed both divide the model"):
        read_fsdp(True, None, "--deepspeed", "zero.json")


def test_here_trains_in_one_process() -> None:
    loaded = read_fsdp(True, {"cpu_offload": True}, here=True)
    assert loaded.run.trainer.engine == LocalEngineConfig()
    assert {each.key for each in loaded.overridden} == {"fsdp", "fsdp_config"}


def test_accelerates_file_is_refused_with_what_to_write() -> None:
    with pytest.raises(PlacementError, match="fsdp with its fsdp_config, or deepspeed, as options"):
        read_fsdp(None, None, "--accelerate_config", "fsdp2")


# -- vLLM ---------------------------------------------------------------------------------------------------

SERVER = "--use_vllm --vllm_mode server"


@pytest.mark.parametrize("program", ["grpo", "rloo"])
def test_colocated_vllm(program: TrlProgram) -> None:
    options = "--use_vllm --vllm_tensor_parallel_size 2 --vllm_max_model_length 900 --vllm_enable_sleep_mode"
    run = read(f"{options} --vllm_model_impl transformers", program).run
    rollout = run.rollout
    assert rollout.engine == VllmEngineConfig(
        tensor_parallel=2,
        gpu_memory_utilization=0.3,
        max_model_len=900,
        engine_kwargs={"model_impl": "transformers"},
    )
    assert rollout.release_memory is True
    assert (run.data.max_prompt_tokens, run.data.overlong) == (900 - 512, "error")


@pytest.mark.parametrize(
    ("options", "url", "retries"),
    [
        (SERVER, "http://127.0.0.1:8000/v1", 8),  # 1 + 2 + ... + 128 = 255 seconds of waiting
        (f"{SERVER} --vllm_server_host node-3 --vllm_server_port 9000", "http://node-3:9000/v1", 8),
        (f"{SERVER} --vllm_server_base_url http://localhost:9/", "http://localhost:9/v1", 8),
        (f"{SERVER} --vllm_server_timeout 7", "http://127.0.0.1:8000/v1", 3),
    ],
)
def test_server(options: str, url: str, retries: int) -> None:
    assert read(options).run.rollout.engine == OpenAiEngineConfig(
        base_url=url, model="m", weight_updates="vllm", retries=retries
    )


def test_here_replaces_vllm() -> None:
    loaded = read(f"{SERVER} --vllm_server_port 9", here=True)
    assert [item.key for item in loaded.overridden] == ["use_vllm"]
    assert isinstance(loaded.run.rollout.engine, NativeEngineConfig)
    assert loaded.run.algorithm.importance_correction is None


@pytest.mark.parametrize("options", ["", "--use_vllm --no_vllm_importance_sampling_correction"])
def test_without_correction(options: str) -> None:
    assert read(options).run.algorithm.importance_correction is None


def trl_weights(log_ratios: list[float], mode: str, low: float | None, high: float) -> list[float]:
    """The factors of one completion's tokens, as in GRPOTrainer._generate_and_score_completions."""
    difference = torch.tensor([log_ratios])
    ratio = torch.exp(difference.sum(-1, keepdim=True) if mode.startswith("sequence") else difference)
    if mode.endswith("truncate"):
        ratio = torch.clamp(ratio, min=low, max=high)
    else:
        outside = (ratio < (-torch.inf if low is None else low)) | (ratio > high)
        ratio = ratio.masked_fill(outside, value=0.0)
    return ratio.expand(1, len(log_ratios))[0].tolist()


@pytest.mark.parametrize("log_ratios", [[0.1, -0.3, 0.2], [1.5, 0.4, -0.1], [-2.0, 0.1, -3.0]])
@pytest.mark.parametrize(
    ("options", "mode", "low", "high"),
    [
        ("", "sequence_mask", None, 3.0),
        ("--vllm_importance_sampling_mode sequence_truncate", "sequence_truncate", None, 3.0),
        ("--vllm_importance_sampling_mode token_truncate", "token_truncate", None, 3.0),
        ("--vllm_importance_sampling_mode token_mask", "token_mask", None, 3.0),
        ("--vllm_importance_sampling_clip_min 0.5", "sequence_mask", 0.5, 3.0),
        (
            "--vllm_importance_sampling_mode token_mask --vllm_importance_sampling_clip_min 0.8 "
            "--vllm_importance_sampling_clip_max 1.2",
            "token_mask",
            0.8,
            1.2,
        ),
        ("--vllm_importance_sampling_cap 1.1", "sequence_mask", None, 1.1),
    ],
)
def test_weights_are_those_of_trl(
    log_ratios: list[float], options: str, mode: str, low: float | None, high: float
) -> None:
    section = read(f"--use_vllm {options}").run.algorithm.importance_correction
    assert isinstance(section, ImportanceCorrectionConfig)
    sampler = torch.tensor([-1.0, -2.0, -0.5])
    targets = TargetTokens.concatenated(torch.tensor([len(log_ratios)]))
    found = compute_importance_weights(sampler + torch.tensor(log_ratios), sampler, targets, section)
    assert found.weights.tolist() == pytest.approx(trl_weights(log_ratios, mode, low, high), rel=1e-5)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("key", ["logging_steps", "save_steps", "eval_steps", "warmup_steps", "warmup_ratio"])
def test_a_number_that_is_not_finite_is_refused(key: str, value: float) -> None:
    Path("config.yaml").write_text(
        f"output_dir: out\nmodel_name_or_path: m\ndataset_name: d\neval_strategy: steps\n{yaml.safe_dump({key: value})}"
    )
    with pytest.raises(ConfigError, match=rf"{key} must be a number"):
        read_any(Path("config.yaml"), here=True, dialect="trl-sft")
