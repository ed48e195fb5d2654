"""Trinity's `buffer` and `data_processor`: experiences, tasks, demonstrations, stages and pipelines."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strop.compat.ledger.writer import write_dialect
from strop.compat.trinity.data_processor import write_task_pipeline
from strop.compat.trinity.reader import LEDGER
from strop.config.load.loader import LoadedRun
from strop.config.schema.buffer import CorrectnessFilterConfig
from strop.config.schema.task_pipeline import DataJuicerTasksConfig, LlmScoreConfig, OrderConfig
from strop.config.units import Amount
from strop.errors import ConfigError

from .key_tables import value_of
from .trinity_file import BASE, BUFFER, TASKSET, read

# -- experiences, tasks and demonstrations ------------------------------------------------------------------


SFT = (
    "algorithm.algorithm_type=sft",
    "mode=train",
    f"{BUFFER}.path=sft.jsonl",
    "buffer.train_batch_size=16",
)


def test_sampling_keys_are_inactive_offline() -> None:
    loaded = read(*SFT)
    assert str(loaded.sources["data.train.path"]) == f"override {BUFFER}.path=sft.jsonl"
    inactive = [note.partition("(")[2].partition(")")[0] for note in loaded.notes]
    assert {f"{TASKSET}.path", f"{TASKSET}.format.prompt_key", "algorithm.repeat_times"} <= {*inactive}
    assert str(read(f"{BUFFER}.path=b.db").sources["data.train.path"]).startswith("t.yaml:7")


# -- stages -------------------------------------------------------------------------------------------------

STAGES = """\
trainer: {total_steps: 1000}
stages:
- stage_name: sft_warmup
  mode: train
  algorithm: {algorithm_type: sft}
  buffer:
    train_batch_size: 64
    total_steps: 100
    trainer_input:
      experience_buffer: {name: sft_buffer, path: given.jsonl}
- stage_name: rft
"""


@pytest.mark.parametrize(
    ("columns", "keys", "expected"),
    [
        (("message", "tools"), (), "tools"),
        (("message",), (), None),
        (("message", "tools", "t"), (f"+{BUFFER}.format.tools_key=t",), "t"),
    ],
)
def test_tools_of_demonstrations(
    tmp_path: Path, columns: tuple[str, ...], keys: tuple[str, ...], expected: str | None
) -> None:
    """Trinity's SFT reads a column `tools` without a key that names it."""
    file = tmp_path / "sft.jsonl"
    file.write_text(json.dumps({name: [] for name in columns}) + "\n", encoding="utf-8")
    sft = (*SFT[:2], f"{BUFFER}.path={file}", SFT[3], f"+{BUFFER}.format.prompt_type=messages")
    assert read(*sft, *keys).run.data.train.tools == expected


def staged(text: str = STAGES) -> LoadedRun:
    Path("t.yaml").write_text(BASE + text)
    return read()


def test_the_pages_stages() -> None:
    loaded = staged()
    warm, rft = (each.run for each in loaded.stages)
    assert (warm.name, warm.algorithm.type, warm.trainer.duration) == (
        "rft-sft_warmup",
        "sft",
        Amount(100, "steps"),
    )
    assert (warm.data.train.path, warm.trainer.tasks_per_step, warm.model.path) == ("given.jsonl", 64, "m")
    assert (rft.name, rft.algorithm.type, rft.trainer.duration) == ("rft-rft", "grpo", Amount(1000, "steps"))
    assert rft.model.path == str(warm.folder_path / "model") and loaded.run == rft
    assert str(loaded.sources["model.path"]) == "the model of stage sft_warmup (model.model_path)"
    assert "t.yaml:18" in str(loaded.stages[0].sources["trainer.duration"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stages: [{stage_name: a}, {stage_name: a}]", "is already the name of another stage"),
        ("stages: [{mode: train}]", "expected a name, got None"),
        ("stages: [{stage_name: a, algorithms: {}}]", "did you mean 'algorithm'"),
        ("stages: [{stage_name: a, model: {}}]", "for the whole file"),
        (
            "stages: [{stage_name: a, algorithm: {repeat_tims: 3}}]",
            r"t\.yaml:11: trinity has no key algorithm",
        ),
        ("stages: 3", "must be a list of stages"),
    ],
)
def test_invalid_stages_are_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        staged(text)


def test_no_stages_are_one_run() -> None:
    assert staged("stages: []").stages == ()


# -- experience pipeline ------------------------------------------------------------------------------------

OPERATORS = "data_processor.experience_pipeline.operators"


def test_truncated_responses_without_a_loss() -> None:
    loaded = read(f"+{OPERATORS}=[{{name: mask_response_truncated}}, {{name: dapo_dynamic_sampling}}]")
    assert value_of(loaded, "algorithm.mask_truncated") is True
    assert value_of(loaded, "buffer.pipeline") == (CorrectnessFilterConfig(metric="accuracy"),)
    written = write_dialect(LEDGER, loaded.run)
    assert written.unsupported == ()
    assert "mask_response_truncated" in str(written)


@pytest.mark.parametrize(
    "configs",
    [
        "[null]",
        "[[a]]",
        "3",
        "[{op_type: [ADD], stats_key: a}]",
        "[{op_type: MEAN, stats_key: a}]",
        "{op_type: ADD}",
    ],
)
def test_an_item_of_reward_shaping_that_is_none_is_refused(configs: str) -> None:
    with pytest.raises(ConfigError, match="each has a stats_key, an op_type"):
        read(f"+{OPERATORS}=[{{name: reward_shaping_mapper, args: {{reward_shaping_configs: {configs}}}}}]")


# -- task pipeline ------------------------------------------------------------------------------------------

AT = "+data_processor.task_pipeline"
SCORE_ARGS = (
    "{api_or_hf_model: m, min_score: 0.2, input_keys: [question, answer], field_names: [Question, Answer]}"
)
DIFFICULTY = f"{AT}.operators=[{{name: llm_difficulty_score_filter, args: {SCORE_ARGS}}}]"


def test_fragment_of_the_page() -> None:
    run = read(
        DIFFICULTY,
        f"{AT}.num_process=32",
        f"{AT}.inputs=[raw.jsonl]",
        f"{AT}.target_fields=[question,answer]",
    ).run
    assert run.data.train.path == "raw.jsonl" and run.data.train.split is None
    pipeline = run.data.pipeline
    assert pipeline is not None and pipeline.processes == 32 and pipeline.columns == ("question", "answer")
    (score,) = pipeline.operators
    assert isinstance(score, LlmScoreConfig) and score.criterion == "difficulty" and score.min_score == 0.2
    assert score.model.type == "endpoint" and score.model.model == "m" and score.model.url is None
    assert score.input_columns == ("question", "answer") and score.field_names == ("Question", "Answer")


@pytest.mark.parametrize("processes", [1, 4])
def test_each_process_makes_one_call_at_a_time(processes: int) -> None:
    run = read(DIFFICULTY, f"{AT}.num_process={processes}").run
    assert run.data.pipeline is not None
    (score,) = run.data.pipeline.operators
    assert isinstance(score, LlmScoreConfig) and score.model.type == "endpoint"
    assert score.model.concurrency == processes
    assert write_task_pipeline(run)[f"{AT[1:]}.num_process"] == processes


def test_priority_weights_and_output() -> None:
    run = read(
        DIFFICULTY,
        f"{AT}.priority_weights.difficulty=-1",
        f"{AT}.priority_weights.quality=1",
        f"{AT}.top_k=100",
        f"{AT}.output.path=out",
    ).run
    pipeline = run.data.pipeline
    assert pipeline is not None and pipeline.export == "out/output.jsonl"
    order = pipeline.operators[1]
    assert (
        isinstance(order, OrderConfig)
        and order.weights == {"llm_difficulty_score": -1.0}
        and order.limit == 100
    )
    written = write_task_pipeline(run)
    assert written["data_processor.task_pipeline.priority_weights.difficulty"] == -1.0
    assert written["data_processor.task_pipeline.operators.0.name"] == "llm_difficulty_score_filter"
    assert written["data_processor.task_pipeline.inputs"] == ["train.jsonl"]


def test_other_operators_are_refused_or_overridden() -> None:
    other = f"{AT}.operators=[{{name: words_num_filter, args: {{}}}}]"
    with pytest.raises(ConfigError, match=r"operators\.0\.name"):
        read(other, here=False)
    loaded = read(other)
    assert loaded.run.data.pipeline is None and any(
        "operators.0.name" in str(key) for key in loaded.overridden
    )
    with pytest.raises(ConfigError, match="has response_path, which"):
        read(
            f"{AT}.operators=[{{name: llm_quality_score_filter, args: {{api_or_hf_model: m, response_path: x}}}}]"
        )
    with pytest.raises(ConfigError, match="write api_or_hf_model"):
        read(f"{AT}.operators=[{{name: llm_quality_score_filter}}]")


@pytest.mark.parametrize("operator", ["{args: {min: 1}}", "{name: null}", "{name: [a]}"])
def test_an_operator_of_data_juicer_without_a_name_is_refused(operator: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        read(f"{AT}.operators=[{operator}]", "+service.data_juicer.auto_start=true")


def test_operators_of_data_juicer_need_a_service() -> None:
    operators = "[{name: words_num_filter, args: {min_num: 3}}, {name: document_deduplicator}]"
    run = read(f"{AT}.operators={operators}", "+service.data_juicer.auto_start=true").run
    assert run.data.pipeline is not None
    (juicer,) = run.data.pipeline.operators
    assert isinstance(juicer, DataJuicerTasksConfig) and juicer.url is None
    assert juicer.operators == ({"words_num_filter": {"min_num": 3}}, {"document_deduplicator": {}})
    written = write_task_pipeline(run)
    assert written["data_processor.task_pipeline.operators.1.name"] == "document_deduplicator"
    assert written["service.data_juicer.auto_start"] is True


def test_output_to_a_database() -> None:
    run = read(DIFFICULTY, f"{AT}.output={{path: tasks.db, storage_type: sql, name: t}}").run
    assert run.data.pipeline is not None
    assert (run.data.pipeline.export, run.data.pipeline.export_table) == ("sqlite:///tasks.db", "t")
    written = write_task_pipeline(run)
    again = read(DIFFICULTY, *(f"+{key}={value}" for key, value in written.items() if ".output." in key)).run
    assert again.data.pipeline == run.data.pipeline
