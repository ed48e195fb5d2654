"""Redaction of secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.explain.values import explain_values
from strop.config.load.loader import load_run
from strop.config.redact import is_secret, redact, redact_override, redact_text
from strop.config.save import save_resolved

SECRET = (
    "api_key apiKey API_KEY token hf_token access-token password dbPassword client_secret "
    "aws_secret_access_key credentials passphrase connection_string"
)
ORDINARY = (
    "max_tokens stop_token_ids kv_cache_tokens tokens_per_microbatch eos_token pad_token "
    "tokenizer key keys monkey author keep prompt_key secretary"
)


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apiKey",
        "API_KEY",
        "token",
        "hf_token",
        "access-token",
        "password",
        "dbPassword",
        "client_secret",
        "aws_secret_access_key",
        "credentials",
        "passphrase",
        "connection_string",
    ],
)
def test_secret_keys(key: str) -> None:
    assert is_secret(key)


@pytest.mark.parametrize(
    "key",
    [
        "max_tokens",
        "stop_token_ids",
        "kv_cache_tokens",
        "tokens_per_microbatch",
        "eos_token",
        "pad_token",
        "tokenizer",
        "key",
        "keys",
        "monkey",
        "author",
        "keep",
        "prompt_key",
        "secretary",
    ],
)
def test_ordinary_keys(key: str) -> None:
    assert not is_secret(key)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pw@host/x", "https://***@host/x"),
        ("s3://bucket/x?token=abc&part=2", "s3://bucket/x?token=***&part=2"),
        ("https://h/x?sv=1&sig=abc%3D", "https://h/x?sv=1&sig=***"),
        (
            "https://h/x?X-Amz-Signature=a&X-Amz-Security-Token=b",
            "https://h/x?X-Amz-Signature=***&X-Amz-Security-Token=***",
        ),
        ("mail a@b.c", "mail a@b.c"),
        ("data/train.parquet", "data/train.parquet"),
    ],
)
def test_urls(text: str, shown: str) -> None:
    assert redact_text(text) == shown


def test_nested_values() -> None:
    tree = {
        "a": [{"api_key": "x", "max_tokens": 3}],
        "credentials": {"user": "u", "nested": ["p"]},
        "token": None,
    }
    assert redact(tree) == {
        "a": [{"api_key": "***", "max_tokens": 3}],
        "credentials": {"user": "***", "nested": ["***"]},
        "token": None,
    }


def test_overrides() -> None:
    assert redact_override("+reward.functions.0.args.api_key=x") == "+reward.functions.0.args.api_key=***"
    assert redact_override("data.train.path=https://u:p@h/x") == "data.train.path=https://***@h/x"


def test_a_run_shows_no_secret(run_file: Path, tmp_path: Path) -> None:
    overrides = ["+reward.functions.0.args.api_key=hunter2", "data.train.path='https://u:hunter2@h/x'"]
    loaded = load_run(run_file, overrides)
    assert loaded.run.reward.functions[0].args == {"api_key": "hunter2"}
    save_resolved(loaded.run, tmp_path / "saved.yaml")
    assert "hunter2" not in (tmp_path / "saved.yaml").read_text()
    assert "hunter2" not in "\n".join(f"{line.value} {line.source}" for line in explain_values(loaded))
