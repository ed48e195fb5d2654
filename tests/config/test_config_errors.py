"""Error messages: what is wrong, where, and what to write instead, in one paragraph each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strop.config.load.familiar_names import FAMILIAR_NAMES
from strop.config.load.loader import load_run
from strop.config.schema import Run
from strop.config.schema.walk import all_keys
from strop.errors import ConfigError, StropError

from .conftest import RUN

LINE = r"run\.yaml:\d+"

FILES = [
    ("", "is empty"),
    ("# only a comment\n", "is empty"),
    ("a: [", r"run\.yaml:1:5: this is not valid YAML"),
    ("- 1", r"run\.yaml:1: .*expected .* got a list"),
    ("text", "single value 'text'"),
    ("seed: 1\nseed: 2", r"run\.yaml:2:1: .*duplicate key seed"),
    ("1: 2", r"run\.yaml:1: the key '1' is not a string"),
    ("model: {path: m}\ndata: &a {train: *a}", r"run\.yaml:2: this anchor contains itself"),
    ("a: !!python/object:x 1", "the tag '!!python/object:x' is not supported here"),
    ("a: !!int x", "'x' is not a value of the type !!int"),
    ("\x00", "this is not valid YAML"),
    ("a: b\n\tc: d", r"run\.yaml:2:1"),
    ("seed: ${x", r"seed: the interpolation cannot be parsed"),
    ("actor_rollout_ref: {}", r"strop verl ppo --config .*run\.yaml"),
    ("model: m\ndata: {train: {path: a}}", r"run\.yaml:1: model: expected a section .*got 'm'"),
    ("seed: 1", r"model: missing\. Model that is trained"),
]

OVERRIDES = [
    ("trainer.duration=10", r"with its unit \(epochs, steps, updates\), such as '10 steps', got 10"),
    ("trainer.tasks_per_stp=3", r"no key trainer\.tasks_per_stp; did you mean 'tasks_per_step'\?"),
    ("+trainer.tasks_per_stp=3", r"trainer\.tasks_per_stp: unknown key; did you mean 'tasks_per_step'\?"),
    ("data.eval.0.nam=x", r"data\.eval\.0\.nam; did you mean 'name'\?"),
    ("rollout.path=3", r"no key rollout\.path; the keys of this section are engine"),
    ("lr=3", r"did you mean 'trainer\.optimizer\.lr'\?"),
    ("trainer={lr: 3}", r"trainer\.lr: unknown key; did you mean 'trainer\.optimizer\.lr'\?"),
    ("zzz=1", "the keys of this section are project, name"),
    ("seed=-1", r"override seed=-1: seed: must be greater than or equal to 0, got -1"),
    ("seed=abc", "seed: expected an integer, got 'abc'"),
    ("seed=1.5", "seed: expected an integer, got 1.5"),
    ("data.shuffle=perhaps", "data.shuffle: expected true or false, got 'perhaps'"),
    ("trainer.optimizer.lr=abc", "expected a number, got 'abc'"),
    ("name=3", "name: expected a string, got 3; write it in quotes"),
    ("name=a/b", r"name: 'a/b' \(3 characters\) cannot be the name of a file or folder; write at most 100"),
    ("data.train.path=[1,2]", r"data\.train\.path\.0: expected a string, got 1"),
    ("data.train.path=3", r"data\.train\.path: expected a string, got 3"),
    ("trainer.schedule.type=foo", "`type` must be one of constant, linear, cosine, .*, got 'foo'"),
    ("buffer={lease_seconds: 3}", r"buffer\.lease_seconds: unknown key; it belongs to `type: sql`, so write"),
    ("trainer.schedule={type: constant, cycles: 3}", r"trainer\.schedule\.cycles: unknown key"),
    ("trainer.engine=multi", r"trainer\.engine: .type. must be one of local, fsdp2, deepspeed, got 'multi'"),
    (
        "+data.pipeline={operators: [{type: lengths}]}",
        r"operators\.0: .type. must be one of length, .*, got 'lengths'; did you mean 'length'\?",
    ),
    ("trainer.schedule.warmup=10", "expected a number with its unit"),
    ("checkpoint.every=20 parsecs", "got the unit 'parsecs'"),
    ("checkpoint=3", "checkpoint: expected a section"),
    ("~model", r"model: missing"),
    ("~trainer.epochs_per_step", "is not written, so it cannot be removed"),
    ("~trainer.tasks_per_step=3", "is 64, not 3, so it is not removed"),
    ("+trainer.tasks_per_step=3", r"already written \(.*run\.yaml:11\)"),
    (
        "reward.functions.0.args.x=3",
        r"no key reward\.functions\.0\.args\.x; to add a new one, write \+reward",
    ),
    ("data.eval.3.path=x", r"data\.eval is a list of 1"),
    ("+name.x=1", "name is 'first', which has no keys"),
    ("model.path=${oc.env:STROP_TEST_NONE}", "environment variable 'STROP_TEST_NONE' is not set"),
    ("model.path=${data.nowhere}", r"interpolation key 'data\.nowhere' not found"),
    ("model.path=${model.path}", "recursive interpolation"),
    ("model.path=???", r"must be given"),
    ("model.path=${nosuch:1}", "unsupported interpolation type nosuch"),
    ("model.path=~/x", "needs its own quotes"),
    ("a=1,2", "a sweep over several values is not supported"),
    ("a=range(1,3)", "a sweep over several values is not supported"),
    ("data@x=1", "config groups"),
    ("justtext", "An override is written key=value"),
    (
        "trainer.tasks_per_update=48",
        r"\(64\) is not a multiple of tasks_per_update \(48\); the nearest .* 48 and 96",
    ),
    ("rollout.sampling.temperature=0", "nothing could be learned"),
    ("rollout.sampling.min_response_tokens=1024", "must be below"),
    ("rollout.engine.kv_cache_tokens=10", "is less than one sequence of maximum length"),
    (
        "rollout.engine={type: vllm, max_model_len: 10}",
        r"rollout.engine.max_model_len \(10\) is less than one sequence of maximum length",
    ),
    (
        "rollout.engine={type: auto, native: {kv_cache_tokens: 10}}",
        r"rollout.engine.native.kv_cache_tokens \(10\) is less than one sequence",
    ),
    ("rollout.engine={type: vllm, tensor_paralel: 2}", "tensor_parallel"),
    ("rollout.engine={type: vllm, gpu_memory_utilization: 1.5}", "gpu_memory_utilization"),
    ("data.eval=[{name: a, path: x},{name: a, path: y}]", "two tasksets have the name"),
]


def _one_paragraph(message: str) -> None:
    assert message.strip() == message and "\n\n" not in message and "Traceback" not in message


@pytest.mark.parametrize(("text", "expected"), FILES)
def test_a_bad_file(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=expected) as caught:
        load_run(path)
    _one_paragraph(str(caught.value))


@pytest.mark.parametrize(("override", "expected"), OVERRIDES)
def test_a_bad_override(run_file: Path, override: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        load_run(run_file, [override])
    _one_paragraph(str(caught.value))


def test_a_missing_file_and_a_binary_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        load_run(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        load_run(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not a text file in UTF-8"):
        load_run(tmp_path / "binary.yaml")


def test_all_faults_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(RUN.replace("project: sums", "projekt: sums").replace("rank: 8", "rank: 0"))
    with pytest.raises(ConfigError) as caught:
        load_run(path)
    assert str(caught.value).splitlines() == [
        "2 faults in this configuration.",
        "Unknown keys:",
        f"  {path}:1: projekt: unknown key; did you mean 'project'?",
        "Values that are not accepted:",
        f"  {path}:3: model.lora.rank: must be greater than 0, got 0.",
    ]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_mutated_file_loads_or_gives_a_config_error(tmp_path: Path, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(RUN) - 1))
    end = data.draw(st.integers(start, min(len(RUN), start + 12)))
    put = data.draw(
        st.sampled_from(["", "x", ": ", "\n", "[", "{", "}", "-", "'", "${", "null", "3", "&a", "*a", "!"])
    )
    path = tmp_path / "run.yaml"
    path.write_text(RUN[:start] + put + RUN[end:])
    try:
        load_run(path)
    except StropError as error:
        _one_paragraph(str(error))


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("model.lora.r=8", r"In a run file write model\.lora\.rank=8\."),
        ("rollout.n=4", r"In a run file write algorithm\.rollouts_per_task=4\."),
        ("+rollout.n=4", r"In a run file write algorithm\.rollouts_per_task=4\."),
        ("algorithm.num_generations=auto", r"In a run file write algorithm\.rollouts_per_task=8\."),
        ("trainer.max_steps=-1", r"write trainer\.duration='10 steps', or in epochs: '2 epochs'"),
        ("trainer.num_train_epochs=3", r"write trainer\.duration='3 epochs', or in steps: '10 steps'"),
        (
            "algorithm.beta=0.1",
            r"belongs to `type: online_dpo or dpo`.*\. In a run file write algorithm\.kl_loss\.coef",
        ),
        (
            "trainer.gradient_accumulation_steps=4",
            r"write trainer\.microbatch='8 sequences' or '16384 tokens'",
        ),
        (
            "rollout.engine={type: vllm, data_parallel: 4}",
            r"unknown key\. In a run file write rollout\.pool\.engines=4\.",
        ),
        ("trainer.learning_rate=1e-5", r"write trainer\.optimizer\.lr=1e-05"),
    ],
)
def test_names_of_other_tools_are_told_what_to_write(run_file: Path, written: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_run(run_file, [written])


def test_each_familiar_name_is_told_an_existing_key() -> None:
    known = {*all_keys(), *Run.model_fields}
    for advice in FAMILIAR_NAMES.values():
        for key in re.findall(r"[a-z_]+(?:\.[a-z_]+)+(?==|$)", advice):
            assert key in known, advice
