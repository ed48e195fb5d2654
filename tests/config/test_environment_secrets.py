"""Values from environment variables: saved as interpolations, compared by fingerprint, printed by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.load.loader import load_run
from strop.config.redact import forget_environment, name_environment, safe_text
from strop.config.save import folder_mode, resolved_text, save_resolved, yaml_text
from strop.config.semantic_diff import recorded_differences
from strop.runs.folder import RunFolder

RUN = """\
model: {path: "${oc.env:STROP_TEST_MODEL}"}
data: {train: {path: "s3://bucket/${oc.env:STROP_TEST_MODEL}/x.jsonl"}}
reward: {functions: [{function: exact, args: {note: "${model.path}", api_key: "${oc.env:STROP_TEST_KEY}"}}]}
buffer: {type: sql, url: "postgresql://u:${oc.env:STROP_TEST_KEY}@h/db"}
trainer: {optimizer: {lr: "${oc.decode:${oc.env:STROP_TEST_LR}}"}}
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    forget_environment()
    monkeypatch.setenv("STROP_TEST_MODEL", "org/model-one")
    monkeypatch.setenv("STROP_TEST_KEY", "hunter2/@:x")
    monkeypatch.setenv("STROP_TEST_LR", "1e-5")
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return path


def test_a_saved_run_has_the_interpolations_and_no_value(path: Path, tmp_path: Path) -> None:
    run = load_run(path).run
    assert run.model.path == "org/model-one" and "hunter2/@:x" in str(run.buffer)
    save_resolved(run, tmp_path / "saved.yaml")
    text = (tmp_path / "saved.yaml").read_text()
    assert "hunter2" not in text and "org/model-one" not in text
    for written in (
        "path: ${oc.env:STROP_TEST_MODEL}\n",
        "path: s3://bucket/${oc.env:STROP_TEST_MODEL}/x.jsonl\n",
        "note: ${model.path}\n",
        "api_key: ${oc.env:STROP_TEST_KEY}\n",
        "url: postgresql://u:${oc.env:STROP_TEST_KEY}@h/db\n",
        "lr: 1.0e-05\n",
    ):
        assert written in text
    assert load_run(tmp_path / "saved.yaml").run == run


def test_a_saved_run_has_the_paths_that_variables_named(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("STROP_TEST_MODEL", str(tmp_path / "models"))
    path.write_text(f'name: "${{oc.env:STROP_TEST_NONE,first}}"\n{RUN}')
    text = resolved_text(load_run(path).run)
    assert f"path: {tmp_path}/models\n" in text and f"note: {tmp_path}/models\n" in text
    assert "name: first\n" in text
    assert "api_key: ${oc.env:STROP_TEST_KEY}\n" in text and "hunter2" not in text


def test_a_resume_compares_values_that_the_file_does_not_have(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = tmp_path / "saved.yaml"
    save_resolved(load_run(path).run, saved)
    monkeypatch.setenv("STROP_TEST_KEY", "rotated-password")
    assert recorded_differences(saved, load_run(path).run) == []
    monkeypatch.setenv("STROP_TEST_MODEL", "org/model-two")
    changed = recorded_differences(saved, load_run(path).run)
    told = "model.path was another value of ${oc.env:STROP_TEST_MODEL}"
    assert any(line.startswith(told) for line in changed)
    values = ["model.path=org/model-one", "data.train.path=s3://bucket/org/model-one/x.jsonl"]
    literal = load_run(path, values).run
    for name in ("STROP_TEST_MODEL", "STROP_TEST_KEY", "STROP_TEST_LR"):
        monkeypatch.delenv(name)
    assert recorded_differences(saved, literal) == []


def test_a_literal_secret_beside_an_interpolation_is_not_saved(path: Path) -> None:
    text = RUN.replace('api_key: "${oc.env:STROP_TEST_KEY}"', 'api_key: "${oc.env:STROP_TEST_NONE,literal1}"')
    path.write_text(text.replace("u:${oc.env:STROP_TEST_KEY}@", "u:literal2${oc.env:STROP_TEST_KEY}@"))
    text = resolved_text(load_run(path).run)
    assert "literal" not in text and "hunter2" not in text


def test_messages_and_converted_files_name_the_variable(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_run(path)
    assert safe_text("no model org/model-one\x1b[2J") == r"no model ${oc.env:STROP_TEST_MODEL}\x1b[2J"
    assert "org/model-one" not in yaml_text({"model_path": "org/model-one"})
    forget_environment()
    assert name_environment("org/model-one") == "org/model-one"
    monkeypatch.setenv("STROP_TEST_MODEL", str(path.parent))
    monkeypatch.setenv("STROP_TEST_KEY", "0.000001")
    load_run(path)
    assert safe_text(f"{path.parent} 0.000001") == f"{path.parent} 0.000001", "paths and numbers are printed"


def test_a_run_with_secrets_has_a_private_folder(path: Path) -> None:
    assert folder_mode(load_run(path).run) == 0o700
    RunFolder(path.parent / "runs" / "x").create(0o700)
    assert (path.parent / "runs" / "x").stat().st_mode & 0o777 == 0o700
    path.write_text("model: {path: m}\ndata: {train: {path: d}}\nreward: exact\n")
    assert folder_mode(load_run(path).run) == 0o777
    assert folder_mode(load_run(path, ["+reward.functions.0.args.api_key=x"]).run) == 0o700
