"""Agents that use the openai client, and the endpoint that they call."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from strop.config.schema.rollout import WorkflowConfig
from strop.data.encoding.reply import ChatReplyParser
from strop.errors import ConfigError
from strop.inference.endpoint.server import EndpointServer
from strop.types import SamplingParams
from strop.workflows.builtin.agent import AgentCommand, Ended
from strop.workflows.chat import WorkflowServices
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.registry import load_workflow
from tests.workflows.conftest import call, trained_texts

AGENTS = """
import json, openai

def two_turns(task, client, question="sure?"):
    messages = list(task.messages)
    first = client.chat.completions.create(model="policy", messages=messages, max_tokens=9).choices[0].message
    messages += [first, {"role": "user", "content": question}]
    second = client.chat.completions.create(model="policy", messages=messages, max_tokens=5, temperature=0.1)
    assert second.usage.total_tokens == second.usage.prompt_tokens + second.usage.completion_tokens
    return 1.0

async def async_turns(task, client):
    messages = list(task.messages)
    asked = client.chat.completions.create(model="policy", messages=messages, max_completion_tokens=9)
    first = (await asked).choices[0].message
    messages += [{"role": "assistant", "content": first.content}, {"role": "user", "content": "sure?"}]
    await client.chat.completions.create(model="policy", messages=messages)
    return 1.0

def by_token_ids(task, client):
    ids = task.prompt_ids.tolist()
    first = client.completions.create(model="policy", prompt=ids, max_tokens=4).choices[0]
    assert len(first.token_ids) == len(first.logprobs.token_logprobs) == 4
    client.completions.create(model="policy", prompt=[*ids, *first.token_ids], max_tokens=3)
    try:
        client.completions.create(model="policy", prompt=[*ids, *range(5, 120)])
    except openai.BadRequestError as error:
        return error.code

def streams(task, client):
    text, reason = "", None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(
        model="policy", messages=list(task.messages), stream=True, stream_options=options
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    assert reason == "stop" and chunk.usage.completion_tokens > 0
    return text.upper()

TOOL = {"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {
    "type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}}}}

def tools(task, client, stream=False):
    messages = list(task.messages)
    asked = dict(model="policy", messages=messages, tools=[TOOL], tool_choice="auto")
    if stream:
        with client.chat.completions.stream(**asked) as events:
            choice = events.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls", choice
    (call,) = choice.message.tool_calls
    result = sum(json.loads(call.function.arguments).values())
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": str(result)}]
    second = client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
    return second.choices[0].message.content

def other_conversations(task, client):
    for word in ("one", "two"):
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": word}])
    return 0.5

def looks_round(task, client):
    two_turns(task, client)
    assert [model.id for model in client.models.list()] == ["policy"]
    refused = []
    for client, model in ((client, "gpt-4"), (client.with_options(api_key="strop-guess"), "policy")):
        try:
            client.chat.completions.create(model=model, messages=list(task.messages))
        except openai.APIStatusError as error:
            refused.append(f"{error.status_code} {error.code} {error.message}")
    return " | ".join(refused)

def runs_on(task, client):
    messages = list(task.messages)
    while True:
        said = client.chat.completions.create(model="policy", messages=messages).choices[0].message
        messages += [said, {"role": "user", "content": "more"}]

def too_long(task, client):
    two_turns(task, client)
    try:
        client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x " * 999}])
    except openai.BadRequestError as error:
        return error.code

def keeps(task, client, where):
    with open(where, "w") as file:
        file.write(f"{client.base_url} {client.api_key}")

def asks_twice(task, client):
    for _ in range(2):
        client.chat.completions.create(model="policy", messages=list(task.messages), max_tokens=4)
    return task.messages[0]["content"]

def asks_for_more(task, client, **more):
    try:
        client.chat.completions.create(model="policy", messages=list(task.messages), **more)
    except openai.BadRequestError as error:
        client.chat.completions.create(model="policy", messages=list(task.messages))
        return error.message

def reasons(task, client):
    first = client.chat.completions.create(model="policy", messages=list(task.messages), tools=[TOOL]).choices[0]
    (call,) = first.message.tool_calls
    messages = [*task.messages, first.message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    client.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
    return f"{first.message.reasoning_content}|{first.message.content}|{call.function.name}"
"""


@pytest.fixture(scope="module", autouse=True)
def closed(world, tool_world):
    yield
    for each in (world, tool_world):
        each.services._endpoint.close()
        del each.services


@pytest.fixture
def run(world, user_file):
    """One rollout of a function of `AGENTS`."""
    file = user_file(AGENTS)

    def rollout(engine, name, where=world, args=None, **section):
        return where.run(engine, "agent", {"function": f"{file}:{name}", "args": args or {}}, **section)

    return rollout


@pytest.mark.parametrize("name", ["two_turns", "async_turns"])
def test_continued_calls_are_one_sequence_of_the_sampled_tokens(world, run, name):
    rollout = run(world.native(), name, max_sequence_tokens=120, sampling=SamplingParams(max_tokens=3))
    assert (rollout.error, rollout.reward) == (None, 1.0)
    first, second = rollout.turns
    shown = [*first.prompt_ids, *first.completion_ids]
    assert second.prompt_ids[: len(shown)].tolist() == shown
    (experience,) = rollout_to_experiences(rollout, "")
    if second.finish_reason == "length" and name == "async_turns":
        assert len(experience.token_ids) == 120, "only the longest sequence bounds a call"
    assert rollout.sampling.temperature == 1.0


def test_calls_with_token_ids_are_recorded(world, run):
    sampling = SamplingParams(max_tokens=3, ignore_eos=True)
    rollout = run(world.native(), "by_token_ids", max_sequence_tokens=120, sampling=sampling)
    assert (rollout.error, rollout.text) == (None, "context_length_exceeded")
    assert [len(turn.completion_ids) for turn in rollout.turns] == [4, 3]
    (experience,) = rollout_to_experiences(replace(rollout, reward=1.0), "")
    assert experience.response_tokens == 7


def test_stream_and_text_result(world, run):
    rollout = run(world.says("two lines\nof text"), "streams")
    assert (rollout.error, rollout.text, rollout.reward) == (None, "TWO LINES\nOF TEXT", None)


PICKS = """
import openai
from strop.workflows import WorkflowResult

def picks(task, chat):
    with chat.serve() as access:
        client = openai.OpenAI(base_url=access.url, api_key=access.api_key)
        for _ in range(3):
            client.chat.completions.create(model="policy", messages=list(task.messages))
    return WorkflowResult(reward=float(len(chat.turns)), turns=chat.turns[1:2], turn_rewards=[3.0])
"""


def test_workflow_selects_turns_to_train_on(world, user_file):
    rollout = world.run(world.says("one", "two", "three"), f"{user_file(PICKS)}:picks")
    assert (rollout.error, rollout.reward, rollout.turn_rewards) == (None, 3.0, (3.0,))
    assert trained_texts(world, rollout) == ["two<|end|>"]


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_in_the_openai_format(tool_world, run, stream):
    said = f"let me add {call('add', a=3, b=4)}"
    engine = tool_world.says(said, "it is 7")
    rollout = run(engine, "tools", tool_world, {"stream": stream})
    assert (rollout.error, rollout.text) == (None, "it is 7")
    shown = tool_world.tokenizer.decode(engine.requests[1].prompt_ids)
    assert f"{said}<|end|>\n<|user|>\n<tool_response>\n7\n</tool_response>" in shown
    assert trained_texts(tool_world, rollout) == [f"{said}<|end|>it is 7<|end|>"]


def test_replies_are_split_by_the_parsers_of_the_run_file(tool_world, run):
    text = '<think>\nadd them\n</think>\n\nLet me see.[TOOL_CALLS]add[ARGS]{"a": 3, "b": 4}'
    engine = tool_world.says(text, "it is 7")
    services = WorkflowServices(EndpointServer(), "policy", parser=ChatReplyParser("mistral", "qwen3"))
    with closing(services._endpoint):
        world = replace(tool_world)
        world.__dict__["services"] = services
        rollout = run(engine, "reasons", world)
    assert (rollout.error, rollout.text) == (None, "add them|Let me see.|add")
    assert trained_texts(world, rollout) == [f"{text}<|end|>it is 7<|end|>"]


def test_separate_calls_are_separate_sequences(world, run):
    rollout = run(world.says("a", "b"), "other_conversations")
    assert trained_texts(world, rollout) == ["a<|end|>", "b<|end|>"]


def test_wrong_key_and_unknown_model_are_rejected(world, run):
    unknown, wrong = run(world.says("a"), "looks_round").text.split(" | ")
    assert unknown.startswith("404 model_not_found")
    assert "there is no model 'gpt-4'; available: policy" in unknown
    assert wrong.startswith("401 invalid_api_key")


def test_key_is_invalid_after_its_rollout(world, run, tmp_path):
    kept = tmp_path / "kept"
    rollout = run(world.says("a"), "keeps", args={"where": str(kept)})
    assert "it did not call the model" in rollout.error
    url, key = kept.read_text().split()
    assert url.startswith("http://127.0.0.1:")
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    with client, pytest.raises(openai.AuthenticationError):
        client.models.list()


def test_context_length_error_has_openais_code(world, run):
    assert run(world.says("a"), "too_long").text == "context_length_exceeded"


def test_agent_at_the_token_limit_is_truncated(world, run):
    rollout = run(world.says("four"), "runs_on", max_sequence_tokens=60)
    assert (rollout.status, rollout.text) == ("truncated", "four")


def test_unsupported_parameters_are_rejected_by_name(world, run):
    """`tests/inference/test_endpoint.py` has the table of them."""
    rollout = run(world.says("a"), "asks_for_more", args={"extra_body": {"top_k": 3}})
    assert "top_k is not supported here; leave it out" in rollout.text


SCRIPT = """
import json, os, subprocess, sys, time
from urllib.request import Request, urlopen

task = json.load(sys.stdin)
assert task == json.load(open(os.environ["STROP_TASK_FILE"]))

def ask():
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": task["messages"]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    with urlopen(Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

mode = task["answer"]
if mode == "crash":
    sys.exit("no such answer")
elif mode == "hang":
    time.sleep(600)
elif mode == "endless":
    while True:
        print("x" * 1000)
elif mode == "silent":
    print(4)
elif mode == "child":  # which holds the pipes open
    print(ask(), flush=True)
    subprocess.Popen(["sleep", "600"])
elif mode == "session":  # of its own, as a daemon has it
    ask()
    print(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
elif mode == "asks and hangs":
    print(ask(), flush=True)
    time.sleep(600)
elif mode == "on and on":
    while True:
        task["messages"] += [{"role": "assistant", "content": ask()}, {"role": "user", "content": "more"}]
elif mode == "fails":
    ask()
    sys.exit(3)
elif mode == "args":
    from openai import OpenAI

    asked = OpenAI().chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=task["messages"])
    print(asked.choices[0].message.content, sys.argv[1:])
elif mode == "noise":
    ask()
    sys.stderr.write("noise " * 1000000)
    print("done")
else:
    print(ask())
    print(mode)
"""


@pytest.mark.parametrize(
    ("mode", "args", "outcome"),
    [
        ("4", {}, ("four\n4", None)),
        ("args", {}, ("four ['two and two {model}', 'openai/gpt-x']", None)),
        ("child", {}, ("four", None)),
        ("noise", {}, ("done", None)),
        pytest.param("asks and hangs", {"time_limit": 8}, ("four", None), marks=pytest.mark.slow),
        ("0.5", {"result": "reward"}, ("four", 0.5)),
        ('{"reward": 2}', {"result": "reward"}, ("four", 2.0)),
        ("4", {"result": "exit_code"}, ("four\n4", 1.0)),
        ("fails", {"result": "exit_code"}, ("", 0.0)),
        ("crash", {}, "ended with exit code 1: no such answer"),
        ("fails", {}, "ended with exit code 3"),
        ("hang", {}, "took longer than 2 s"),
        ("endless", {}, "wrote more than 1,048,576 bytes to its standard output"),
        ("silent", {}, "it did not call the model"),
        ("NaN", {"result": "reward"}, "the last line of the agent's standard output is 'NaN'"),
        ("much", {"result": "reward"}, "the last line of the agent's standard output is 'much'"),
    ],
)
def test_command_that_does_not_use_strop(world, user_file, monkeypatch, mode, args, outcome):
    monkeypatch.setattr(world.services, "_policy", "gpt-x")
    command = [sys.executable, str(user_file(SCRIPT))]
    command += ["{prompt}", "openai/{model}"] if mode == "args" else []
    task = world.task("two and two {model}" if mode == "args" else "two and two", answer=mode)
    limit = 2 if mode == "hang" else 100
    rollout = world.run(
        world.says("four"), "agent", {"command": command, **args}, task=task, timeout_seconds=limit
    )
    if isinstance(outcome, str):
        assert outcome in rollout.error
        assert (rollout.failure_cause == "timeout") == (mode == "hang")
    else:
        assert (rollout.error, rollout.text, rollout.reward) == (None, *outcome)
        assert trained_texts(world, rollout) == ["four<|end|>"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux finds processes of another session")
def test_all_that_a_command_has_started_ends_with_it(world, user_file):
    command = [sys.executable, str(user_file(SCRIPT))]
    rollout = world.run(world.says("four"), "agent", {"command": command}, task=world.task(answer="session"))
    assert rollout.error is None and int(rollout.text) > 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(rollout.text), 0)


def test_a_command_that_ends_with_the_context_is_truncated(world, user_file):
    command = [sys.executable, str(user_file(SCRIPT))]
    task = world.task(answer="on and on")
    rollout = world.run(world.says("four"), "agent", {"command": command}, task=task, max_sequence_tokens=60)
    assert (rollout.error, rollout.status, rollout.text) == (None, "truncated", "four")


def test_an_agent_of_smolagents_is_trained(tool_world):
    pytest.importorskip("smolagents", reason="smolagents is not installed: make environments")
    agent = Path(__file__).parents[2] / "examples" / "workflows" / "smol_agent.py"
    says = tool_world.says(
        "Thought: I count.\n<code>\nnumber = 2 + 2\nprint(number)\n</code>",
        "<code>\nfinal_answer(number)\n</code>",
    )
    args = {"command": [sys.executable, str(agent), "{prompt}"]}
    rollout = tool_world.run(says, "agent", args, max_sequence_tokens=40_000)
    assert (rollout.error, rollout.text, len(rollout.turns)) == (None, "4", 2)
    observed = tool_world.tokenizer.decode(rollout.turns[1].prompt_ids)
    assert "Execution logs:" in observed and trained_texts(tool_world, rollout)


def test_the_time_limit_of_an_agent_that_prints_its_reward_is_reward_0():
    command = AgentCommand([sys.executable], 1.0, "reward")
    assert command._read(Ended(None, "0.7", "")).reward == 0.0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"command": ["none-such-agent"]}, "there is no program 'none-such-agent'"),
        ({"command": []}, "the command is empty"),
        ({"command": "python agent.py"}, r"write the command as a list: \['python', 'agent.py'\]"),
        ({"command": ["python"], "time_limit": 0}, "write seconds above 0"),
        ({"command": ["python"], "result": "score"}, "write text, reward or exit_code"),
        ({"function": "json.dumps", "result": "reward"}, "apply to a command"),
        ({}, "exactly one of"),
    ],
)
def test_refusals(args, message):
    with pytest.raises(ConfigError, match=message):
        load_workflow(WorkflowConfig(name="agent", args=args))


def test_concurrent_rollouts_are_separate(world, user_file):
    runner = world.runner(world.native(), "agent", {"function": f"{user_file(AGENTS)}:asks_twice"})

    async def all_of_them():
        tasks = [world.task(f"task {n}") for n in range(4)]
        sampling = SamplingParams(max_tokens=4)
        return await asyncio.gather(*(runner.run(t, f"g{n}", 0, sampling, n) for n, t in enumerate(tasks)))

    for n, rollout in enumerate(asyncio.run(all_of_them())):
        assert (rollout.error, rollout.text, len(rollout.turns)) == (None, f"task {n}", 2)
        assert all(f"task {n}" in world.tokenizer.decode(turn.prompt_ids) for turn in rollout.turns)


def test_the_workflow_tools_reads_marks_without_the_end_token(tool_world):
    text = '[TOOL_CALLS][{"name": "calculator", "arguments": {"expression": "3 + 4"}}]'
    rollout = tool_world.run(tool_world.says(text, "it is 7"), "tools", {"form": "mistral"})
    assert (rollout.error, rollout.text, len(rollout.turns)) == (None, "it is 7", 2)
