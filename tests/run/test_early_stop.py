"""Early end of a run by its evaluations."""

from __future__ import annotations

import json
import math

import pytest

import strop
from strop.errors import ConfigError
from strop.run.state.early_stop import EarlyStopRule, EvaluationRecord


def rule(mode: str = "max", value: float | None = None, patience: int | None = None) -> EarlyStopRule:
    return EarlyStopRule("eval/a/reward", mode, value, patience)


def test_a_value_is_reached() -> None:
    for mode, values, ends in (("max", (0.5, 0.9), 0.8), ("min", (0.5, 0.1), 0.2)):
        record, stop = EvaluationRecord(), rule(mode, value=ends)
        reasons = []
        for value in values:
            record = stop.update(record, {"eval/a/reward": value})
            reasons.append(stop.reason(record))
        assert reasons[0] is None and "reached" in str(reasons[1])


def test_patience_counts_evaluations_without_improvement() -> None:
    record, stop = EvaluationRecord(), rule(patience=2)
    seen = []
    for value in (0.5, 0.4, 0.6, 0.6, math.nan):
        record = stop.update(record, {"eval/a/reward": value})
        seen.append(record.without_improvement)
    assert seen == [0, 1, 0, 1, 2]
    assert "has not improved in 2 evaluations" in str(stop.reason(record))


def test_a_run_ends_early_and_stays_ended(values, capsys) -> None:
    run = values(evaluate={"every": "1 steps", "stop_when": {"value": -1.0}})
    for said in ("The run ends after step 1 of 4: eval/held-out/reward reached", "Resuming after step 1"):
        result = strop.train(strop.load(run))
        assert result.steps == 1 and (result.model / "config.json").is_file()
        assert said in capsys.readouterr().out
    rows = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1]


def test_what_it_requires(values) -> None:
    for changes, said in (
        ({"evaluate__stop_when": {}}, "write value, patience or both"),
        ({"evaluate__stop_when": {"value": 1}, "evaluate__every": "never"}, "requires evaluations"),
        ({"evaluate__stop_when": {"value": 1, "metric": "eval/b/reward"}}, "is not an evaluation metric"),
        ({"evaluate__stop_when": {"value": 1}, "synchronizer": "checkpoint"}, "separate process"),
    ):
        with pytest.raises(ConfigError, match=said):
            strop.load(values(**changes))
