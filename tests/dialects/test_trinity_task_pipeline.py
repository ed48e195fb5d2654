"""Trinity's `data_processor.task_pipeline` as `data.pipeline`, in both directions."""

from __future__ import annotations

import pytest

from strop.config.schema.task_filters import LlmScoreConfig
from strop.config.schema.task_operators import DataJuicerTasksConfig, OrderConfig
from strop.dialects.trinity.task_operators import write_task_pipeline
from strop.errors import ConfigError

from .trinity_file import read

pytestmark = pytest.mark.usefixtures("trinity_file")
AT = "+data_processor.task_pipeline"
ARGS = "{api_or_hf_model: m, min_score: 0.2, input_keys: [question, answer], field_names: [Question, Answer]}"
DIFFICULTY = f"{AT}.operators=[{{name: llm_difficulty_score_filter, args: {ARGS}}}]"


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
