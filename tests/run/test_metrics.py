"""Every metric has one definition, which the generated page lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strop.runs.metrics import METRICS, metric_of, metrics_page
from strop.runs.metrics_file import read_metrics


def test_the_page_lists_every_metric_once() -> None:
    assert sorted(re.findall(r"^\| `([^`]+)` ", metrics_page(), re.MULTILINE)) == sorted(METRICS)


@pytest.mark.parametrize(
    ("name", "defined_as"),
    [
        ("reward/mean", "reward/mean"),
        ("reward/part/format", "reward/part/<name>"),
        ("eval/gsm8k/reward", "eval/<name>/reward"),
        ("eval/math/500/pass@16", "eval/<name>/pass@k"),
    ],
)
def test_names_with_a_part_from_the_run_file(name: str, defined_as: str) -> None:
    assert metric_of(name) is METRICS[defined_as]


@pytest.mark.parametrize(
    "name", ["reward", "reward/part/", "eval/gsm8k/accuracy", "eval/gsm8k/pass@", "xloss"]
)
def test_what_is_not_defined_is_no_metric(name: str) -> None:
    with pytest.raises(KeyError, match="no definition"):
        metric_of(name)


def test_definitions_are_sentences() -> None:
    for name, metric in METRICS.items():
        assert metric.definition[0].isupper() or metric.definition.split()[0].startswith(
            ("kl_loss", "entropy_coef", "sampled_tokens")
        ), name
        assert metric.definition.endswith("."), name


def test_rows_share_the_names_of_their_metrics(tmp_path: Path) -> None:
    """Studio keeps the rows of every run that it shows."""
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "reward/mean": 0.5}\n{"step": 2, "reward/mean": 1.0}\n'
    )
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert all(one is other for one, other in zip(first, second, strict=True))
