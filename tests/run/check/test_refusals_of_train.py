"""Refusals of `train` before its first step, each of which `strop check` finds in the same words."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import strop
from strop.errors import StropError
from strop.models.tiny import make_model
from strop.run.check.stage_check import check_stages
from strop.run.check.user_code import examine
from tests.run.conftest import Values, write_rows
from tests.run.results import train
from tests.run.test_bad_runs import REFUSED_AT_THE_START, REWARDS

HERE = Path(__file__).parents[1]
BREAKS = f"{HERE / 'workflows.py'}:breaks"
MINE = """
def needs_level(completion, answer, level): return 1.0
def two(batch, more): return batch
class NoCall: pass
class Empty:
    def __init__(self, *args, **options): pass
    def __len__(self): return 0
    def __getitem__(self, index): raise IndexError(index)
"""
PART = {"function": f"{REWARDS}:length"}
QUEUE = {"data__queue": {}, "data__shuffle": False, "trainer__duration": "2 steps"}

ROLLOUTS: list[tuple[dict[str, Any], str]] = [
    # Models
    ({"model__path": "{tiny}/none"}, "model.path: there is no model folder"),
    ({"model__path": "{own}/pickled"}, r"model\.path: the weights in .*pickled are pickled \(pytorch_model\.bin\)"),
    ({"model__path": "{own}/cut"}, r"model\.path: .*model\.safetensors is damaged or incomplete: it has \d+ bytes"),
    ({"model__path": "{own}/unfinished"}, r"model\.path: .* lacks a\.safetensors, 1 of the 1 files with weights"),
    ({"model__path": "{own}/encoder"}, r"model\.path: .* is an encoder-decoder model \(t5\)"),
    ({"model__path": "{own}/quantized"}, r"model\.path: .* has quantized weights \(gptq\), and of those"),
    ({"model__path": "{own}/classifier"}, r"model\.path: .* is a classifier \(Qwen2ForSequenceClassification\)"),
    ({"model__imports": ["{own}/none.py"]}, r"model\.imports: there is no file"),
    ({"model__imports": ["no_such_module"]}, "model.imports 'no_such_module': there is no module 'no_such_module'"),
    ({"algorithm": {"type": "ppo", "critic": {"model": {"path": "{own}/other"}}}},
     "algorithm.critic.model: the model reads the policy's tokens"),
    ({"algorithm": {"type": "distillation", "distillation": {"teachers": [{"path": "{own}/other"}], "loss": {}}}},
     "algorithm.distillation.teachers.0: the teacher reads the policy's tokens"),
    ({"algorithm": {"type": "distillation", "distillation": {
        "teachers": [{"path": "{tiny}/model", "sources": ["even"]}], "loss": {}}}, "data__train__source": "answer"},
     "no teacher has the data source '0'"),
    # Rows
    ({"data__train__path": "{tiny}/none.jsonl"}, "data.train.path: there is no file"),
    ({"data__train__path": "{own}/empty.jsonl"}, r"data\.train\.path: .*empty\.jsonl is empty"),
    ({"data__train__prompt": "question"}, r"tasks\.jsonl line 1 has no 'question'"),
    ({"data__train__limit_tasks": 4}, "The taskset train has 4 tasks, too few for one step of 8"),
    ({"data__overlong": "error", "data__max_prompt_tokens": 1}, "data.max_prompt_tokens"),
    ({"data__order": {"type": "column", "column": "level"}}, r"tasks\.jsonl line 1 has no 'level'"),
    ({"data__order": {"type": "difficulty", "columns": ["prompt", "answer"]}}, "data.order difficulty needs a pass"),
    ({"data__chat_template": "{own}/none.jinja"}, "data.chat_template: there is no file"),
    ({"trainer__duration": "0.001 epochs"}, r"trainer\.duration \(0\.001 epochs\) is less than one step"),
    ({"data__train__dataset": {"name": "{own}/mine.py:None_"}}, r"data dataset .*mine\.py has no 'None_'"),
    ({"data__train__dataset": {"name": "{own}/mine.py:Empty"}}, "is empty: it has no items"),
    # Rewards
    ({"reward": "exakt"}, "did you mean 'exact'"),
    ({"reward": f"{REWARDS}:nothing"}, r"rewards\.py has no 'nothing'"),
    ({"reward": "no_package.scores.score"}, "there is no module 'no_package'"),
    ({"reward": {"functions": [PART, PART]}}, "two components are named 'length'"),
    ({"reward": "{own}/mine.py:needs_level"}, "'needs_level' requires the column 'level'"),
    ({"reward": "by_source", "data__train__source": "answer", "data__eval": []},
     "by_source has no scorer for the value '0'"),
    ({"reward": "gsm8k", "data__train__answer": "prompt"},
     "have an answer in the column 'prompt' that the reward gsm8k"),
    ({"reward": {"judges": [{"url": "http://127.0.0.1:9", "model": "m", "prompt": "{{"}]}},
     "the judge's prompt is not a valid Jinja template"),
    ({"reward": {"functions": [{**PART, "args": {"low": 1}}]}}, "unknown argument 'low'"),
    ({"algorithm": {"type": "gdpo", "reward_parts": ["even"]}, "reward": f"{REWARDS}:digit_share"},
     "algorithm.reward_parts: .* has no part 'even'"),
    # Workflows, algorithms, operators
    ({"rollout__workflow": f"{HERE / 'workflows.py'}:none"}, r"workflows\.py has no 'none'"),
    ({"rollout__workflow": {"name": BREAKS, "args": {"low": 1}}}, "got an unexpected keyword argument 'low'"),
    ({"rollout__workflow": {"name": "tools", "args": {"tools": ["abacus"]}}}, "abacus"),
    ({"algorithm": {"type": "custom", "advantages": "{own}/mine.py:two"}}, "has the signature .* which does not fit"),
    ({"buffer__pipeline": [{"type": "custom", "operator": "{own}/mine.py:NoCall"}]}, "its objects cannot be called"),
    (QUEUE | {"data__train__table": "tasks"}, r"tasks\.jsonl is not a database URL"),
    (QUEUE | {"data__train": {"path": "sqlite:///{own}/none.db", "table": "questions"}}, r"none\.db"),
    ({"buffer": {"type": "sql", "url": "nonsense"}}, "`buffer.url` is not a database URL"),
]  # fmt: skip
DEMONSTRATIONS: list[tuple[str, dict[str, Any], str]] = [
    ("sft", {"data__eval": [{"name": "b", "path": "{tiny}/tasks.jsonl"}]},
     r"data\.eval \(b\): there is no way to evaluate"),
    ("sft", {"data__train__path": "{own}/half.jsonl"}, r"half\.jsonl line 2 has no 'better'"),
    ("dpo", {"data__train__path": "{own}/half.jsonl"}, r"half\.jsonl line 2 has no 'better'"),
    ("dpo", {"data__train__path": "{own}/equal.jsonl"}, r"equal\.jsonl line 1"),
    ("sft", {"trainer__duration": "0.001 epochs"}, r"trainer\.duration \(0\.001 epochs\) is less than one step"),
]  # fmt: skip


@pytest.fixture(scope="module")
def own(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, rows and code that cannot be used."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(MINE)
    (folder / "empty.jsonl").touch()
    both = {"prompt": "a", "better": "b", "worse": "c"}
    write_rows(folder / "half.jsonl", [both, {"prompt": "a", "worse": "c"}, *[both] * 8])
    write_rows(folder / "equal.jsonl", [{**both, "worse": "b"}, *[both] * 8])
    make_model(folder / "other", ["abcd"], vocab_size=290, hidden_size=16)
    for name in ("pickled", "cut", "unfinished", "encoder", "quantized", "classifier"):
        shutil.copytree(tiny / "model", folder / name)
    weights = "model.safetensors"
    (folder / "pickled" / weights).rename(folder / "pickled" / "pytorch_model.bin")
    content = (folder / "cut" / weights).read_bytes()
    (folder / "cut" / weights).write_bytes(content[:-1])
    index = {"weight_map": {"w": "a.safetensors"}}
    (folder / "unfinished" / f"{weights}.index.json").write_text(json.dumps(index))
    quantized = {"model_type": "qwen2", "quantization_config": {"quant_method": "gptq"}}
    (folder / "quantized" / "config.json").write_text(json.dumps(quantized))
    config = json.loads((folder / "classifier" / "config.json").read_text())
    classifier = config | {"architectures": ["Qwen2ForSequenceClassification"]}
    (folder / "classifier" / "config.json").write_text(json.dumps(classifier))
    (folder / "encoder" / "config.json").write_text('{"model_type": "t5", "is_encoder_decoder": true}')
    return folder


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's code is imported here; `test_user_code` proves the process of its own."""
    apart = "strop.run.check.stage_check.check_user_code"
    monkeypatch.setattr(apart, lambda run, rewards: examine(run, rewards, lambda work: None))


def placed(values: dict[str, Any], **folders: Path) -> dict[str, Any]:
    """The values, with folders in place of their names in braces."""
    text = json.dumps(values)
    for name, folder in folders.items():
        text = text.replace(f"{{{name}}}", str(folder))
    found: dict[str, Any] = json.loads(text)
    return found


def refusal_of_check(values: dict[str, Any], says: str) -> str:
    with pytest.raises(StropError) as caught:
        check_stages(strop.load(values))
    message = str(caught.value)
    assert re.search(says, message), message
    return message


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("changes", "says"), [(changes, says) for changes, _, says in REFUSED_AT_THE_START])
def test_check_refuses_what_ends_a_run_in_its_first_step(
    values: Values, tiny: Path, finished: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    """`test_bad_runs` trains these."""
    (tiny / "empty" / "checkpoints").mkdir(parents=True, exist_ok=True)
    run = values(evaluate={"at_start": False, "every": "2 steps"}, **changes)
    refusal_of_check(placed(run, tiny=tiny, finished=Path(finished["output"])), says)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(("changes", "says"), ROLLOUTS)
def test_refusals_of_rollouts(
    values: Values, tiny: Path, own: Path, changes: dict[str, Any], says: str
) -> None:
    run = placed(values(**changes), tiny=tiny, own=own)
    refusal_of_check(run, says)
    with pytest.raises(StropError, match=says):
        train(run)


@pytest.mark.parametrize(("kind", "changes", "says"), DEMONSTRATIONS)
def test_refusals_of_demonstrations(
    offline: Values, tiny: Path, own: Path, kind: str, changes: dict[str, Any], says: str
) -> None:
    run = placed(offline(kind, **changes), tiny=tiny, own=own)
    refusal_of_check(run, says)
    with pytest.raises(StropError, match=says):
        train(run)


@pytest.mark.usefixtures("in_this_process")
def test_a_run_folder_of_another_configuration(copied: dict[str, Any]) -> None:
    """`check` looks at the folder, and leaves it as it is."""
    folder = Path(copied["output"])
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    changed = json.loads(json.dumps(copied))
    changed["trainer"]["optimizer"]["lr"] = 5e-3
    refusal_of_check(changed, r"(?s)trainer\.optimizer\.lr.*resume: never")
    (check,) = check_stages(strop.load(copied))
    assert "the run folder: the run continues after step 4" in check.findings.checked
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
