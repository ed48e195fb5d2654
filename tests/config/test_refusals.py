"""A run file that is wrong is refused with one paragraph: what is wrong, where, and what to write instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import strop
from strop.config.checks.topology import one_node_fault
from strop.config.load.loader import LoadedRun, load_run, load_values
from strop.config.load.schema_faults import FAMILIAR_NAMES
from strop.config.load.yaml_file import MAX_BYTES
from strop.config.paths import MAX_NAME_LENGTH, check_file_name
from strop.config.schema import Run
from strop.config.schema.run import all_keys
from strop.errors import ConfigError, PlacementError, StropError
from strop.printable import MAX_MESSAGE
from strop.reading import read_any

from .conftest import RUN
from .refused import assert_refused, rows

BASE: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": {"path": "t.jsonl"}}, "reward": "exact"}
ALIASES = "a: &a [" + ",".join("x" * 9) + "]\n"
ALIASES += "".join(
    f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
INTERPOLATIONS = "".join(f"x{i}: ${{x{i + 1}}}${{x{i + 1}}}\n" for i in range(40))

FILES = [
    ("", "is empty"),
    ("# only a comment\n", "is empty"),
    ("a: [", "run.yaml:1:5: this is not valid YAML"),
    ("- 1", "run.yaml:1: ... expected ... got a list"),
    ("text", "single value 'text'"),
    ("seed: 1\nseed: 2", "run.yaml:2:1: ... duplicate key seed"),
    ("1: 2", "run.yaml:1: the key '1' is not a string"),
    ("model: {path: m}\ndata: &a {train: *a}", "run.yaml:2: this anchor contains itself"),
    ("a: &a {b: *a}", "this anchor contains itself"),
    ("a: !!python/object:x 1", "the tag '!!python/object:x' is not supported here"),
    ("a: !!int x", "'x' is not a value of the type !!int"),
    ("\x00", "this is not valid YAML"),
    ("a: b\n\tc: d", "run.yaml:2:1"),
    ("seed: ${x", "seed: the interpolation cannot be parsed"),
    ("model: m\ndata: {train: {path: a}}", "run.yaml:1: model: expected a section ... got 'm'"),
    ("seed: 1", "model: missing. Model that is trained"),
    (ALIASES, "more than 10,000 values, with aliases replaced"),
    (INTERPOLATIONS, "its interpolations give more than 100,000 characters or values"),
    ("model: ${data}\ndata: ${model}", "recursive interpolation"),
]
ADDITIONS = [
    ("seed: !!int ''", "'' is not a value of the type !!int"),
    ("seed: !!bool maybe", "'maybe' is not a value of the type !!bool"),
    ("seed: !!timestamp x", "the tag '!!timestamp' is not supported here"),
    ("seed: !!set {a, b}", "the tag '!!set' is not supported here"),
    ("seed: !!map 1", "the tag '!!map' is not supported here"),
    ("seed: 0x_", "'0x_' is not a value of the type !!int"),
    (f"seed: {'[' * 250}{']' * 250}", "more than 50 sections or lists are nested"),
    (f"seed: {'9' * 5000}", "a number of 5,000 characters"),
    (f"seed: {'9' * 40}", "seed: the integer does not fit into 64 bits"),
    (f"seed: '{'9' * 2000}'", "seed does not fit into 64 bits"),
    ("trainer: {duration: 1e999 steps}", "the number of steps is above"),
    ("x: " + "${" * 20 + "}" * 20, "too long or too deeply nested"),
    ('name: "a\\0b"', "name: contains a NUL character"),
    ('name: "a\\ud800b"', r"name: contains the character \ud800"),
    ('"a\\ud800b": 1', r"contains the character \ud800"),
    ("reward: {functions: [{function: exact}], timeout_seconds: 1e9}", "less than or equal to 1000000"),
    ("#" * MAX_BYTES, "larger than 200,000 bytes"),
]
"""Lines that follow a model and training data."""

OVERRIDES = r"""
trainer.duration=10 => with its unit (epochs, steps, updates), such as '10 steps', got 10
trainer.duration=10 & steps
    => override 'steps': there is no '=' in it. An override is written key=value. If it belongs to the value before
    it, quote the whole: 'trainer.duration=10 steps'.
synchronizer.style={type: & fixed} & seed=2 => quote the whole: 'synchronizer.style={type: fixed}'.
steps & seed=2 => override 'steps': there is no '=' in it
trainer.tasks_per_stp=3 => no key trainer.tasks_per_stp; did you mean 'tasks_per_step'?
+trainer.tasks_per_stp=3 => trainer.tasks_per_stp: unknown key; did you mean 'tasks_per_step'?
data.eval.0.nam=x => data.eval.0.nam; did you mean 'name'?
rollout.path=3 => no key rollout.path; the keys of this section are engine
lr=3 => did you mean 'trainer.optimizer.lr'?
trainer={lr: 3} => trainer.lr: unknown key; did you mean 'trainer.optimizer.lr'?
buffer.pipeline=[{type: reward_shaping, terms: [{type: []}]}] => buffer.pipeline.0.terms.0.type: unknown key
algorithm={type: grpo, rollouts_per_task: 4, policy_loss: {type: gvpo}, aggregation: token-mean}
    => the loss gvpo is a sum over the tokens of a response
zzz=1 => the keys of this section are project, name
seed=-1 => override seed=-1: seed: must be greater than or equal to 0, got -1
seed=abc => seed: expected an integer, got 'abc'
seed=1.5 => seed: expected an integer, got 1.5
seed=[1 => cannot be parsed
data.shuffle=perhaps => data.shuffle: expected true or false, got 'perhaps'
trainer.optimizer.lr=abc => expected a number, got 'abc'
name=3 => name: expected a string, got 3; write it in quotes
name=a/b => name: 'a/b' (3 characters) cannot be the name of a file or folder; write at most 100
data.train.path=[1,2] => data.train.path.0: expected a string, got 1
data.train.path=3 => data.train.path: expected a string, got 3
trainer.schedule.type=foo => `type` must be one of constant, linear, cosine, ... , got 'foo'
buffer={lease_seconds: 3} => buffer.lease_seconds: unknown key; it belongs to `type: sql`, so write
trainer.schedule={type: constant, cycles: 3} => trainer.schedule.cycles: unknown key
trainer.engine=multi => trainer.engine: `type` must be one of local, fsdp2, deepspeed, got 'multi'
+data.pipeline={operators: [{type: lengths}]} => operators.0: ... length, ... , got 'lengths'; did you mean 'length'?
algorithm.critic.optimizer.lr=1e-5 => it belongs to `type: ppo`
model.lora={rank_pattern: {q_proj: 0}} => model.lora.rank_pattern.q_proj:
algorithm={type: ppo, critic: {model: {path: c, lora: {adapter: a}}}} => the critic's adapter starts new; remove it
trainer.engine=deepspeed & trainer.optimizer={type: adagrad, decay_norms_and_biases: false} => DeepSpeed makes one group
trainer.schedule.warmup=10 => expected a number with its unit
checkpoint.every=20 parsecs => got the unit 'parsecs'
checkpoint=3 => checkpoint: expected a section
~model => model: missing
~trainer.epochs_per_step => is not written, so it cannot be removed
~trainer.tasks_per_step=3 => is 64, not 3, so it is not removed
+trainer.tasks_per_step=3 => already written ( ... run.yaml:11)
reward.functions.0.args.x=3 => no key reward.functions.0.args.x; to add a new one, write +reward
data.eval.3.path=x => data.eval is a list of 1
+name.x=1 => name is 'first', which has no keys
model.path=${oc.env:STROP_TEST_NONE} => environment variable 'STROP_TEST_NONE' is not set
model.path=${data.nowhere} => interpolation key 'data.nowhere' not found
model.path=${model.path} => recursive interpolation
model.path=??? => must be given
model.path=${nosuch:1} => unsupported interpolation type nosuch
model.path=~x => needs its own quotes
a=1,2 => a sweep over several values is not supported
a=range(1,3) => a sweep over several values is not supported
data@x=1 => config groups
justtext => An override is written key=value
trainer.tasks_per_update=48 => (64) is not a multiple of tasks_per_update (48); the nearest ... 48 and 96
rollout.sampling.temperature=0 => nothing could be learned
rollout.sampling.temperature=0 & algorithm={type: remax} => identical to the greedy response of remax
rollout.sampling.min_response_tokens=1024 => must be below
rollout.engine.kv_cache_tokens=10 => is less than one sequence of maximum length
rollout.engine={type: vllm, max_model_len: 10} => rollout.engine.max_model_len (10) is less than one sequence
rollout.engine={type: auto, native: {kv_cache_tokens: 10}} => native.kv_cache_tokens (10) is less than one sequence
rollout.engine={type: vllm, tensor_paralel: 2} => tensor_parallel
rollout.engine={type: vllm, gpu_memory_utilization: 1.5} => gpu_memory_utilization
data.eval=[{name: a, path: x},{name: a, path: y}] => two tasksets have the name
data.chat_template_args={continue_final_message: true} => write final_assistant: continue in the taskset
data.text_prompts=raw & rollout.workflow=tools => rollout.workflow (tools) continues conversations; ... single_turn
algorithm=sft & data.train.response=answer & data.train.final_assistant=drop => final_assistant applies to prompts
data.train.train_on_prompt=true => train_on_prompt has no effect without a column `response`
algorithm=sft & data.train.response=answer & data.train.train_on_prompt=true & data.train.trained_turns=last
    => train_on_prompt trains all tokens, and trained_turns: last only the last turn
data.packing={} => data.packing applies to sft; remove it under algorithm
algorithm=sft & data.train.response=answer & data.packing={} & data.order={type: column, column: level} => remove it, or
    data.order
algorithm=sft & data.train.response=answer & data.packing={strategy: wrapped} & data.overlong=right
    => data.overlong has no effect under data.packing.strategy wrapped
model.lora.r=8 => there is no key model.lora.r. In a run file write model.lora.rank=8.
rollout.n=4 => there is no key rollout.n. In a run file write algorithm.rollouts_per_task=4.
+rollout.n=4 => In a run file write algorithm.rollouts_per_task=4.
algorithm.num_generations=auto => In a run file write algorithm.rollouts_per_task=8.
trainer.max_steps=-1 => write trainer.duration='10 steps', or in epochs: '2 epochs'
trainer.num_train_epochs=3 => write trainer.duration='3 epochs', or in steps: '10 steps'
algorithm.beta=0.1
    => belongs to `type: online_dpo or dpo or cpo or orpo or kto or bco` ... In a run file write
    algorithm.kl_loss.coef=0.1 in the loss, or algorithm.kl_reward.coef
algorithm={type: dpo, reference_sync: {every_updates: 0}} & data.train.chosen=a & data.train.rejected=b => every_updates
algorithm={type: dpo, reference_sync: {}} & data.train.chosen=a & data.train.rejected=b & model.lora={rank: 4}
    => algorithm.reference_sync changes the weights of the reference, and with model.lora
algorithm={type: dpo, reference_sync: {}} & data.train.chosen=a & data.train.rejected=b & trainer.engine=fsdp2
    => but algorithm.reference_sync changes a reference model that one process holds
algorithm=kto & data.train.response=answer => data.train.label: missing. Algorithm kto needs
algorithm=bco & data.train.chosen=a => data.train.rejected: missing. Algorithm bco needs
algorithm=kto & data.train.chosen=a & data.train.rejected=b & data.train.label=c
    => data.train.label has no effect under algorithm kto
algorithm=sft & data.train.response=answer & data.train.label=good => data.train.label has no effect under algorithm sft
algorithm=kto & data.train.response=a & data.train.label=b & trainer.tasks_per_step=1 => trainer.tasks_per_step is 1
algorithm=kto & data.train.response=a & data.train.label=b & data.train.images=c => data.train.images: algorithm kto
algorithm=kto & data.train.response=a & data.train.label=b & data.train.train_on_prompt=true
    => train_on_prompt has no meaning under algorithm kto
algorithm={type: kto, desirable_weight: 0, undesirable_weight: 0} & data.train.response=a & data.train.label=b
    => desirable_weight and undesirable_weight are both 0
algorithm=reward_model & data.train.chosen=a => data.train.rejected: missing. Algorithm reward_model with loss
algorithm={type: reward_model, loss: squared_error} & data.train.response=a => data.train.score: missing.
algorithm={type: reward_model, loss: squared_error} & data.train.response=a & data.train.score=b & data.train.margin=c
    => data.train.margin has no effect under algorithm reward_model with loss squared_error
algorithm={type: reward_model, loss: squared_error, centering_coef: 0.01} & data.train.response=a & data.train.score=b
    => centering_coef has no effect on squared_error
algorithm={type: reward_model, loss: cross_entropy} & data.train.steps=a => data.train.label: missing.
algorithm={type: reward_model, loss: cross_entropy} & data.train.response=a & data.train.label=b
    => data.train.response has no effect under algorithm reward_model with loss cross_entropy
algorithm=reward_model & data.train.chosen=a & data.train.rejected=b & data.train.steps=c
    => data.train.steps has no effect under algorithm reward_model
data.train.step_separator=a => step_separator has no effect without a column of `steps`
algorithm=reward_model & data.train.chosen=a & data.train.rejected=b & data.train.images=c
    => data.train.images has no effect under algorithm reward_model
algorithm=reward_model & data.train.chosen=a & data.train.rejected=b & data.overlong=left
    => data.overlong: left has no meaning under algorithm reward_model
algorithm=dpo & data.train.chosen=a & data.train.rejected=b & data.train.margin=c
    => data.train.margin has no effect under algorithm dpo
trainer.gradient_accumulation_steps=4 => write trainer.microbatch='8 sequences' or '16384 tokens'
model.lora=null & model.quantization={bits: 4}
    => without lora all weights are trained, of which a quantized one has no gradient; add lora
model={lora: {rank: 4}, quantization: {bits: 3}} => model.quantization.bits: must be 4 or 8, got 3
model={lora: {rank: 4}, quantization: {bits: 8, type: nf4}} => type nf4 has 4 bits and bits is 8
model={lora: {rank: 4}, quantization: {bits: 8, double: true}} => double and block_size are settings of 4 bits
model={lora: {rank: 4}, quantization: {library: torchao}} => only type of 4 bits is nf4, whose scales
model={lora: {rank: 4}, quantization: {}, compile: true} => torch.compile does not compile products with quantized
model={lora: {rank: 4}, quantization: {}} & trainer.engine={type: fsdp2, ranks: 2}
    => trainer.engine is fsdp2, which divides weights over ranks
model={lora: {rank: 4}, quantization: {}} & trainer.engine={workers: 2}
    => trainer.engine.workers is 2, and quantized weights are not in memory that workers share; write workers: 1
model={lora: {rank: 4}, quantization: {}} & rollout.engine=vllm
    => rollout.engine is vllm, and only the native engine samples from quantized weights
model.load_in_4bit=true => write model.quantization='{bits: 4}' with model.lora
per_device_train_batch_size=4 => write trainer.microbatch='4 sequences', the size of one forward
rollout.engine={type: vllm, data_parallel: 4} => unknown key. In a run file write rollout.pool.engines=4.
trainer.learning_rate=1e-5 => write trainer.optimizer.lr=1e-05
"""

ENGINES = r"""
rollout.engine={type: vllm, load_format: dummy} & model.lora={rank: 4} => dummy, but only the LoRA adapter is sent
rollout.engine={type: vllm, load_format: dummy} & synchronizer=checkpoint => dummy, but a separate explorer starts
rollout={engine: sglang, sampling: {repetition_penalty: 1.1}} => sampling.repetition_penalty is 1.1, but SGLang's
rollout={engine: sglang, sampling: {ignore_eos: true, stop_token_ids: [3], min_response_tokens: 2}}
    => SGLang also excludes the end token
rollout.engine={type: sglang, max_total_tokens: 64} => rollout.engine.max_total_tokens (64) is less
rollout.engine={type: sglang, seed: -1} => rollout.engine
rollout={engine: {type: sglang_server, base_url: 'http://h:1'}, pool: {engines: 2}} => load weights into the same server
"""
ACCEPTED_ENGINES = [
    "{engine: {type: vllm, load_format: dummy}}",
    "{engine: native}",
    "{engine: {type: sglang_server, base_url: 'http://localhost:30000'}}",
]
ACCEPTED_WITH_LORA = [
    "{engine: {type: vllm, load_format: dummy, merge_lora: true}}",
    "{engine: {type: sglang, context_length: 8192, load_format: dummy, merge_lora: true}, "
    "sampling: {stop: [x], min_response_tokens: 2, top_p: 0.9}}",
]

TOPOLOGIES = r"""
mode=train & synchronizer=memory => mode train runs one of them; write checkpoint, or mode: both
mode=train & buffer=queue => buffer.type: queue ... write `buffer: sql`, or mode: both
buffer={type: priority, reuse_cooldown_seconds: 1} => memory each step trains on the groups that it has
synchronizer=checkpoint & buffer={type: priority, reuse_cooldown_seconds: 1} => or groups that were used before
synchronizer.style.max_lead=1 steps & buffer=priority => returns the newest groups first ... bounded`
mode=explore & buffer=priority => mode explore runs one role
synchronizer.style={type: bounded, every: 4 steps} => would wait for each other ... 3 steps or more
synchronizer.style.max_lead=3 steps & buffer={type: sql, capacity_groups: 4} => lets the explorer be ahead
synchronizer.style.max_lead=100 steps => (4096) is less than the 101 steps ... write 6464 or
synchronizer.style={type: bounded, max_staleness: 64 steps} => 65 steps ... write 4160 or more, or
mode=train & synchronizer=collective
    => requires one command that starts explorer and trainer, and mode train runs one of them; write checkpoint
mode=explore & synchronizer=collective
    => requires one command that starts explorer and trainer, and mode explore runs one of them; write checkpoint
synchronizer={type: collective, backend: nccl} & trainer.engine.device=cpu
    => nccl transfers between GPUs, and trainer.engine.device is cpu; write gloo, or auto
synchronizer={type: collective, backend: nccl} & cluster={type: ray, nodes: 2, gpus_per_node: 1}
    & trainer.engine={type: fsdp2, ranks: 2} => requires 3 GPUs, one of them for the explorer, ... 2 nodes with 1 GPUs
synchronizer={type: collective, backend: cuda_ipc} & trainer.engine.device=cpu
    => cuda_ipc transfers between GPUs, and trainer.engine.device is cpu; write gloo, or auto
synchronizer={type: collective, backend: nccl} & rollout.pool.engines=2 => load them from host memory; write gloo
synchronizer={type: collective, folder: x} => has no effect under `type: collective`
mode=explore & algorithm=sft & data.train.response=answer => algorithm sft has no explorer; write train
synchronizer=checkpoint & algorithm=sft & data.train.response=answer => sft has no explorer; remove the section
mode=train & resume=never => for a new run another `name`
synchronizer=checkpoint & resume=runs/a/b => without the explorer's state
synchronizer=checkpoint & trainer.schedule=reduce_lr_on_plateau & data.eval=[{path: e}] => needs the evaluations in
synchronizer=checkpoint & checkpoint.mirror=/b => copies the trainer's state only
synchronizer={type: memory, style: bounded} => unknown key
synchronizer.style={type: latest, max_lead: 1 steps} => has no effect under `type: latest`
trainer={engine: {type: fsdp2, ranks: 4}, elastic: {max_restarts: 1}} & synchronizer=checkpoint
    => elastic.max_restarts counts ... write synchronizer.max_restarts instead
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "run.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(("text", "message"), FILES, ids=[message for _, message in FILES])
def test_a_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    assert_refused(lambda: load_run(path), message)
    with pytest.raises(StropError):
        read_any(path)


@pytest.mark.parametrize(("text", "message"), ADDITIONS, ids=[message for _, message in ADDITIONS])
def test_a_line_is_refused(tmp_path: Path, text: str, message: str) -> None:
    test_a_file_is_refused(tmp_path, f"model: {{path: m}}\ndata: {{train: {{path: a}}}}\n{text}", message)


@pytest.mark.parametrize(("overrides", "message"), rows(OVERRIDES))
def test_an_override_is_refused(run_file: Path, overrides: list[str], message: str) -> None:
    assert len(assert_refused(lambda: load_run(run_file, overrides), message)) < 1200


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"seed={'[' * 3000}{']' * 3000}", "too long or too deeply nested"),
        (f"seed={'9' * 5000}", "cannot be parsed"),
        (f"name={'a' * 30000}", "too long or too deeply nested"),
        ("name='a\udce9'", r"contains the character \udce9"),
    ],
    ids=["nested", "number", "long", "surrogate"],
)
def test_an_override_beyond_a_limit_is_refused(run_file: Path, override: str, message: str) -> None:
    assert len(assert_refused(lambda: load_run(run_file, [override]), message)) < 600


@pytest.mark.parametrize(("overrides", "message"), [*rows(ENGINES), *rows(TOPOLOGIES)])
def test_sections_that_contradict_one_another_are_refused(overrides: list[str], message: str) -> None:
    """Also those that would deadlock, or have no effect."""
    assert_refused(lambda: load_values(BASE, overrides), message)


@pytest.mark.parametrize(
    "overrides",
    [[f"rollout={each}"] for each in ACCEPTED_ENGINES]
    + [[f"rollout={each}", "model.lora={rank: 4}"] for each in ACCEPTED_WITH_LORA],
    ids=str,
)
def test_what_the_engines_have_is_accepted(overrides: list[str]) -> None:
    assert load_values(BASE, overrides).run.rollout.engine.type in overrides[0]


def test_a_file_that_is_no_run_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "verl.yaml").write_text("actor_rollout_ref: {}")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, message in (
        ("none.yaml", "there is no such file"),
        ("verl.yaml", "strop verl ppo --config ... verl.yaml"),
        ("", "this is a folder, and no run has started in it. Name a file in it: binary.yaml, verl.yaml"),
        ("binary.yaml", "not a text file in UTF-8"),
    ):
        assert_refused(lambda name=name: load_run(tmp_path / name), message)


def test_all_faults_are_reported_with_their_lines(tmp_path: Path) -> None:
    path = written(tmp_path, RUN.replace("project: sums", "projekt: sums").replace("rank: 8", "rank: 0"))
    message = assert_refused(lambda: load_run(path), "2 faults")
    assert message.splitlines() == [
        "2 faults in this configuration.",
        "Unknown keys:",
        f"  {path}:1: projekt: unknown key; did you mean 'project'?",
        "Values that are not accepted:",
        f"  {path}:3: model.lora.rank: must be greater than 0, got 0.",
    ]


def test_all_faults_between_sections_are_reported(tmp_path: Path) -> None:
    path = written(tmp_path, RUN.replace("tasks_per_step: 64", "tasks_per_step: 64\n  tasks_per_update: 48"))
    changes = ["+trainer.weight_decay_increase={start: 0.5}", "checkpoint={async_save: true, export: true}"]
    lines = assert_refused(lambda: load_run(path, changes), "").splitlines()
    assert len(lines) == 3 and "tasks_per_step (64) is not a multiple" in lines[0]
    assert "weight_decay_increase.start (0.5) is above" in lines[1] and changes[0] in lines[1]
    assert "export writes the weights" in lines[2]


def test_a_message_is_shortened_and_has_no_control_characters() -> None:
    error = ConfigError("first\x1b[2Jmiddle\u202e\ud800" + "x" * 5000 + "last")
    assert str(error).startswith(r"first\x1b[2Jmiddle\u202e\ud800x") and str(error).endswith("last")
    assert len(str(error)) < MAX_MESSAGE
    str(error).encode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.integers(0, len(RUN) - 1),
    length=st.integers(0, 12),
    put=st.sampled_from(
        ["", "x", ": ", "\n", "[", "{", "}", "-", "'", "${", "null", "3", "&a", "*a", "!"],
    ),
)
def test_a_mutated_file_loads_or_is_refused(tmp_path: Path, start: int, length: int, put: str) -> None:
    path = written(tmp_path, RUN[:start] + put + RUN[start + length :])
    try:
        load_run(path)
    except StropError as error:
        assert str(error) == str(error).strip() and "\n\n" not in str(error)


def test_each_familiar_name_is_told_an_existing_key() -> None:
    known = {*all_keys(), *Run.model_fields}
    for advice in FAMILIAR_NAMES.values():
        for key in re.findall(r"[a-z_]+(?:\.[a-z_]+)+(?==|$)", advice):
            assert key in known, advice


BAD_NAMES = ("", ".", "..", "a/b", "/a", "a\\b", "-a", ".a", "a.", " a", "a ", "a\0b", "a\nb", "a\x1b[31m")


def named(field: str, name: str) -> dict[str, Any]:
    held_out = {"name": name if field == "data.eval.0.name" else "held-out", "path": "t.jsonl"}
    values = BASE | {"data": {"train": {"path": "t.jsonl"}, "eval": [held_out]}}
    if field == "cluster.trainer_name":
        return values | {"cluster": {"type": "ray", "trainer_name": name}}
    return values if field == "data.eval.0.name" else values | {field: name}


@pytest.mark.parametrize("name", [*BAD_NAMES, "größe", "a" * 300])
@pytest.mark.parametrize("field", ["name", "project", "data.eval.0.name", "cluster.trainer_name"])
def test_what_is_no_name_of_a_file_is_refused(field: str, name: str) -> None:
    expected = "contains a NUL character" if "\0" in name else "write at most 100 characters: letters"
    message = assert_refused(lambda: load_values(named(field, name)), f"{field}: ... {expected}")
    assert len(message) < 400 and message.isprintable()


@pytest.mark.parametrize("name", ["run", "gsm8k-ppo_7B", "a, b=c", "v1.5", "0", "x" * MAX_NAME_LENGTH])
def test_usual_names_are_accepted(name: str) -> None:
    assert load_values(named("name", name)).run.folder_path.name == name


@given(st.text(st.sampled_from("aZ0 ._-/\\\0é"), max_size=120))
def test_an_accepted_name_is_one_component_of_a_path(name: str) -> None:
    try:
        check_file_name(name)
    except ValueError:
        return
    path = Path("/folder") / name
    assert path.resolve().parent == Path("/folder") and path.name == name and len(name.encode()) <= 255


@pytest.mark.parametrize(
    ("engine", "elastic", "fault"),
    [
        ({}, {"min_ranks": 2}, "trainer.elastic.min_ranks: all ranks"),
        ({}, {"min_ranks": 2, "wait_seconds": 5}, "min_ranks and trainer.elastic.wait_seconds"),
        ({"network": {"node_timeout_seconds": 5}}, None, "trainer.engine.network.node_timeout_seconds"),
        ({}, {}, None),
        ({}, {"max_restarts": 1}, None),
        ({"network": {"interface": "eth0"}}, None, None),
    ],
)
def test_keys_for_the_loss_of_a_node_are_named_where_all_ranks_are_on_one(
    engine: Any, elastic: Any, fault: str | None
) -> None:
    def loaded(elastic: Any, **more: Any) -> LoadedRun:
        trainer = {"engine": {"type": "fsdp2", "ranks": 4, **engine}, "elastic": elastic}
        return load_values(BASE | {"trainer": trainer} | more)

    found = one_node_fault(loaded(elastic).run, is_launched=False)
    assert found is None if fault is None else found is not None and fault in found
    assert one_node_fault(loaded(elastic).run, is_launched=True) is None
    restarts = elastic and elastic | {"max_restarts": 3}
    on_ray = loaded(restarts, cluster="ray", synchronizer="checkpoint").run
    assert one_node_fault(on_ray, is_launched=False) is None


def test_a_run_with_such_keys_is_refused_at_its_start() -> None:
    trainer = {"engine": {"type": "fsdp2", "ranks": 4}, "elastic": {"min_ranks": 2}}
    on_hub: dict[str, Any] = {"model": {"path": "owner/model"}, "data": {"train": {"path": "owner/data"}}}
    run = strop.load(BASE | on_hub | {"trainer": trainer})
    with pytest.raises(PlacementError, match=r"all ranks are processes of this machine.*torchrun or with"):
        strop.train(run)
