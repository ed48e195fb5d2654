"""Evaluation harnesses on a served model: `strop evaluate --with`, inspect-ai. `make environments` has both."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from strop.cli.run_commands import evaluate_with
from strop.errors import ConfigError, MissingExtraError, StropError
from strop.models.tiny import make_model
from strop.run.entry.chat import find_chat_source
from strop.run.entry.serve import ServiceOptions, open_service

TASK = """\
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
doc_to_target: answer
doc_to_choice: ["one", "two"]
generation_kwargs: {{max_gen_toks: 4, until: ["\\n"]}}
metric_list: [{{metric: {metric}}}]
"""


@pytest.mark.parametrize("harness", ["lm-eval", "lm-eval:", "other:gsm8k"])
def test_another_harness_is_refused(harness: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="write lm-eval:TASKS"):
        evaluate_with(harness, tmp_path, [])


def test_a_missing_harness_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strop.cli.run_commands.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lm-eval\[api\]'"):
        evaluate_with("lm-eval:gsm8k", tmp_path, [])


@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-eval is not installed: make environments")
@pytest.mark.parametrize(("kind", "metric"), [("multiple_choice", "acc"), ("generate_until", "exact_match")])
def test_lm_eval_asks_the_served_model(
    kind: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(tmp_path / "tiny", ["1+1 is two"], vocab_size=300, hidden_size=16)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"{n}+1 is", "answer": 1}) + "\n" for n in range(3)))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text(TASK.format(rows=rows, kind=kind, metric=metric))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    evaluate_with("lm-eval:sums", model, ["--include_path", str(tmp_path / "tasks")])
    [results] = (tmp_path / "lm-eval").glob("**/results_*.json")
    found = json.loads(results.read_text())
    assert 0 <= found["results"]["sums"][f"{metric},none"] <= 1
    assert found["n-samples"]["sums"]["effective"] == 3
    with pytest.raises(StropError, match="status"):
        evaluate_with("lm-eval:no_such_task", model, [])


def test_inspect_asks_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inspect_ai = pytest.importorskip("inspect_ai", reason="inspect-ai is not installed: make environments")
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate

    model = make_model(tmp_path / "tiny", ["1+1 is two"], vocab_size=300, hidden_size=16)
    task = inspect_ai.Task(
        [Sample(f"{n}+1 is", target="two") for n in range(3)], solver=generate(), scorer=includes()
    )
    with open_service(find_chat_source(model, before=False), ServiceOptions("tiny", {})) as access:
        monkeypatch.setenv("STROP_API_KEY", access.api_key)
        monkeypatch.setenv("STROP_BASE_URL", access.url)
        [log] = inspect_ai.eval(
            task,
            model="openai-api/strop/tiny",
            max_tokens=4,
            log_dir=str(tmp_path / "logs"),
            display="none",
        )
    assert log.status == "success" and log.results.completed_samples == 3
    assert all(sample.output.completion for sample in log.samples)
