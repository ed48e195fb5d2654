"""Checks of the inference engine against the rest of the run."""

from __future__ import annotations

from typing import Any

import pytest

import strop
from strop.errors import ConfigError


def values(**sections: Any) -> dict[str, Any]:
    rollout = {"engine": {"type": "vllm", "load_format": "dummy"}} | sections.pop("rollout", {})
    model = {"path": "m"} | sections.pop("model", {})
    return {"model": model, "data": {"train": {"path": "tasks.jsonl"}}, "rollout": rollout, **sections}


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ({"model": {"lora": {"rank": 4}}}, "load_format is dummy, but only the LoRA adapter is sent"),
        ({"synchronizer": "checkpoint"}, "load_format is dummy, but a separate explorer starts"),
    ],
)
def test_vllm_and_what_it_does_not_have(sections: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        strop.load(values(**sections))


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"model": {"lora": {"rank": 4}}, "rollout": {"engine": {"type": "vllm", "merge_lora": True}}},
        {"rollout": {"engine": "native"}},
    ],
)
def test_what_vllm_has(sections: dict[str, Any]) -> None:
    assert strop.load(values(**sections)).run.rollout.engine.type in ("vllm", "native")


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        (
            {"sampling": {"repetition_penalty": 1.1}},
            "rollout.sampling.repetition_penalty is 1.1, but SGLang's",
        ),
        (
            {"sampling": {"ignore_eos": True, "stop_token_ids": [3], "min_response_tokens": 2}},
            "SGLang also excludes the end token",
        ),
        (
            {"engine": {"type": "sglang", "max_total_tokens": 64}},
            "rollout.engine.max_total_tokens \\(64\\) is less",
        ),
        ({"engine": {"type": "sglang", "seed": -1}}, "rollout.engine"),
    ],
)
def test_what_sglang_cannot_sample(rollout: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        strop.load(values(rollout={"engine": {"type": "sglang"}} | rollout))


def test_what_sglang_has() -> None:
    sampling = {"stop": ["x"], "min_response_tokens": 2, "top_p": 0.9}
    engine = {"type": "sglang", "context_length": 8192, "load_format": "dummy", "merge_lora": True}
    lora = {"lora": {"rank": 4}}
    run = strop.load(values(model=lora, rollout={"engine": engine, "sampling": sampling})).run
    assert run.rollout.engine.type == "sglang"


def test_several_engines_cannot_load_weights_into_one_server() -> None:
    engine = {"type": "sglang_server", "base_url": "http://localhost:30000"}
    with pytest.raises(ConfigError, match="every engine would load weights into the same server"):
        strop.load(values(rollout={"engine": engine, "pool": {"engines": 2}}))
    assert strop.load(values(rollout={"engine": engine})).run.rollout.engine.type == "sglang_server"
