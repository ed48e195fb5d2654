"""Redaction of secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from strop.config.explain import explain_values
from strop.config.load.loader import load_run
from strop.config.redact import is_secret, redact, redact_arguments, redact_override, redact_text
from strop.config.save import save_resolved

SECRET = """
api_key apiKey API_KEY token hf_token access-token password dbPassword client_secret aws_secret_access_key credentials
passphrase connection_string openai_key OPENAI_API_KEY db_pass pwd dsn Authorization cookie mypassword authToken
client-key access_tokens
"""
ORDINARY = """
max_tokens stop_token_ids kv_cache_tokens tokens_per_microbatch eos_token pad_token tokenizer key keys monkey author
keep prompt_key secretary key_columns response_key reward_fn_key max_new_tokens pass_rate bypass n_pass add_eos_token
token_level tokenize_workers passthrough compass
"""


@pytest.mark.parametrize(
    ("key", "secret"), [(key, True) for key in SECRET.split()] + [(key, False) for key in ORDINARY.split()]
)
def test_keys_of_secrets(key: str, secret: bool) -> None:
    assert is_secret(key) == secret


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pw@host/x", "https://***@host/x"),
        ("s3://bucket/x?token=abc&part=2", "s3://bucket/x?token=***&part=2"),
        ("https://h/x?sv=1&sig=abc%3D", "https://h/x?sv=1&sig=***"),
        (
            "h://h/x?X-Amz-Signature=a&X-Amz-Security-Token=b",
            "h://h/x?X-Amz-Signature=***&X-Amz-Security-Token=***",
        ),
        ("postgresql://u:p@ss/w:rd?#1@h:5432/db", "postgresql://***@h:5432/db"),
        ("(https://u:p:@:/w@h/x)", "(https://***@h/x)"),
        ("https://token@h/x", "https://***@h/x"),
        ("postgresql://u:${oc.env:PW}@h/db", "postgresql://u:${oc.env:PW}@h/db"),
        ("postgresql://u:${oc.env:PW,x}@h/db", "postgresql://***@h/db"),
        ("is hf_abcdefgH1jklmnop valid", "is *** valid"),
        ("sk-proj-abc123DEF", "***"),
        ("AccountName=x;AccountKey=abc==;EndpointSuffix=y", "AccountName=x;AccountKey=***;EndpointSuffix=y"),
        ("host=h password=hunter2 dbname=d", "host=h password=*** dbname=d"),
        ("Authorization: Bearer abcdefgh123", "Authorization: Bearer ***"),
        *[
            (text, text)
            for text in (
                *("mail a@b.c", "http://localhost:8000/v1", "s3://bucket/a@b/c", "hf_transformers sk-learn"),
                *("run.yaml:3: reward.api_key: unknown key.", "data/train.parquet"),
            )
        ],
    ],
)
def test_texts(text: str, shown: str) -> None:
    assert redact_text(text) == shown


def test_nested_values() -> None:
    nested = {"credentials": {"user": "u", "nested": ["p"]}, "a": [{"api_key": "x", "max_tokens": 3}]}
    hidden = {"credentials": {"user": "***", "nested": ["***"]}, "a": [{"api_key": "***", "max_tokens": 3}]}
    assert redact(nested | {"token": None}) == hidden | {"token": None}
    # a password with a space is one in a value, but not in a text
    assert redact({"url": "postgresql://u:p w@h/db"}) == {"url": "postgresql://***@h/db"}


def test_overrides_and_arguments() -> None:
    assert redact_override("+reward.functions.0.args.api_key=x") == "+reward.functions.0.args.api_key=***"
    assert redact_override("data.train.path=https://u:p@h/x") == "data.train.path=https://***@h/x"
    assert redact_override("+reward.args={api_key: x, n: 3}") == "+reward.args={api_key: ***, n: 3}"
    hidden = ["--hf_token", "***", "--n=3", "--api_key=***"]
    assert redact_arguments(["--hf_token", "x", "--n=3", "--api_key=y"]) == hidden


def test_a_run_shows_no_secret(run_file: Path, tmp_path: Path) -> None:
    overrides = ["+reward.functions.0.args.api_key=hunter2", "data.train.path='https://u:hunter2@h/x'"]
    loaded = load_run(run_file, overrides)
    assert loaded.run.reward.functions[0].args == {"api_key": "hunter2"}
    save_resolved(loaded.run, tmp_path / "saved.yaml")
    assert "hunter2" not in (tmp_path / "saved.yaml").read_text()
    assert "hunter2" not in "\n".join(f"{line.value} {line.source}" for line in explain_values(loaded))
