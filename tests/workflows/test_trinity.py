"""Workflow classes written for Trinity-RFT's interface."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from strop.compat.trinity.interface.adapter import missing_workflow
from strop.config.schema.rollout import WorkflowConfig
from strop.errors import ConfigError, RewardError
from strop.types import SamplingParams
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.registry import load_workflow

IMPORTS = """
from typing import List
from trinity.common.experience import Experience
from trinity.common.models.model import ModelWrapper
from trinity.common.rewards.reward_fn import REWARD_FUNCTIONS, RewardFn
from trinity.common.workflows import WORKFLOWS, Task, Workflow
from trinity.common.workflows.step_wise_workflow import AsyncRewardPropagationWorkflow, StepWiseRewardWorkflow
from trinity.common.workflows.workflow import AsyncSimpleWorkflow, MathWorkflow, MultiTurnWorkflow, SimpleWorkflow
from trinity.utils.log import get_logger

logger = get_logger(__name__)
M = [{"role": "user", "content": "two"}]
"""
FLOWS = """
class Points(Workflow):
    def __init__(self, *, task: Task, model: ModelWrapper, auxiliary_models=None):
        super().__init__(task=task, model=model, auxiliary_models=auxiliary_models)
        self.question = task.raw_task["prompt"]
        self.rollout_args = task.rollout_args
    def run(self) -> List[Experience]:
        responses = self.model.chat(
            [{"role": "user", "content": self.question}],
            n=self.rollout_args.n, temperature=self.rollout_args.temperature,
        )
        points = self.task.workflow_args["points"]
        return [
            Experience(tokens=r.tokens, prompt_length=r.prompt_length, logprobs=r.logprobs,
                       reward=points * (r.response_text == self.task.truth), metrics={"length": len(r.tokens)})
            for r in responses
        ]

class One(Workflow):
    def run(self):
        (found,) = self.model.chat(M)
        found.reward = self.task.workflow_args["points"]
        return [found]

class Second(Workflow):
    def run(self):
        first, second, third = self.model.chat(M, n=3)
        assert first.response_text == third.response_text and self.model.model_version == 0
        second.reward = 0.5
        return [second]

class Both(Workflow):
    def run(self):
        found = self.model.chat(M, n=2)
        for number, each in enumerate(found):
            each.reward = float(number)
        return found

class Conversation(MultiTurnWorkflow):
    is_async = True
    async def run_async(self):
        messages = [{"role": "user", "content": "two and two"}]
        for question in ("sure?", "really?"):
            (reply,) = await self.model.chat_async(messages, max_tokens=6)
            messages.append({"role": "assistant", "content": reply.response_text})
            messages.append({"role": "user", "content": question})
        assert await self.model.get_message_token_len(messages) > len(reply.tokens)
        return [await self.process_messages_to_experience_async(messages, 0.25, {"rounds": 2, "who": "me"})]

class Changed(MultiTurnWorkflow):
    def run(self):
        self.model.chat(M)
        return [self.process_messages_to_experience([*M, {"role": "assistant", "content": "X"}], 1.0)]

class Blocking(Workflow):
    is_async = True
    async def run_async(self):
        return self.model.chat(M)

class Steps(StepWiseRewardWorkflow):
    max_step_num = 3
    messages = ()
    def step(self, step_num):
        self.messages = [*self.messages, {"role": "user", "content": str(step_num)}]
        reply = self.client.chat.completions.create(model=self.client.model_path, messages=self.messages)
        self.messages.append({"role": "assistant", "content": reply.choices[0].message.content})
        return step_num < 1
    def reward(self, exps, step_num):
        assert len(exps) == 1 and exps[0].response_text == "ab"[step_num]
        return 10.0 * step_num + 1

class Propagates(AsyncRewardPropagationWorkflow):
    max_step_num = 2
    async def step_async(self, step_num):
        messages = [{"role": "user", "content": str(step_num)}]
        await self.client.chat.completions.create(model="policy", messages=messages)
        return True
    async def reward_async(self, exps):
        return float(len(exps))

class States(Workflow):
    def run(self):
        found = []
        for state, reward in (("x", 0.25), ("y", 0.5), ("x", 0.25)):
            found += self.model.chat([{"role": "user", "content": state}])
            found[-1].reward = 1.0
            found[-1].info["env_state_hash"] = state
            if self.task.workflow_args.get("step_rewards"):
                found[-1].info["step_reward"] = reward
        if self.task.workflow_args.get("forgets"):
            found[0].info.clear()
        return found

@REWARD_FUNCTIONS.register_module("letters")
class Letters(RewardFn):
    def __init__(self, letter):
        self.letter = letter
    def __call__(self, response, truth=None, **kwargs):
        return {"right": float(response == truth), "letters": 0.1 * response.count(self.letter)}

class Simple(SimpleWorkflow): pass
class AsyncSimple(AsyncSimpleWorkflow): pass
class Math(MathWorkflow): pass

class Resets(Workflow):
    can_reset = True
    can_repeat = True
    made = 0
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        Resets.made += 1
        self.client = self.model.get_openai_client()
        self.resets = 0
    def reset(self, task):
        super().reset(task)
        self.resets += 1
    def run(self):
        if self.task.raw_task["number"] == 3:
            raise RuntimeError("broken")
        self.client.chat.completions.create(model="policy", messages=M)
        (found,) = self.model.extract_experience_from_history()
        found.reward = 100.0 * Resets.made + 10.0 * self.resets + self.repeat_times
        return [found]
"""
TALK = """
from .my_points import POINTS

@WORKFLOWS.register_module("talk_workflow")
class Talk(Workflow):
    def run(self):
        from trinity.plugins.my_points import POINTS as again
        (found,) = self.model.generate(["two and"])
        found.reward = POINTS + again
        return [found]
"""


@pytest.fixture(scope="module")
def flows(tmp_path_factory):
    file = tmp_path_factory.mktemp("trinity") / "flows.py"
    file.write_text(IMPORTS + FLOWS)
    return file


@pytest.fixture
def run(world, flows):
    """One rollout of a class of a file, `FLOWS` by default; `args` are the workflow's own."""

    def rollout(engine, name, *, file=flows, columns=None, args=None, more=None, **section):
        extra = {"answer": "four", **(columns or {})}
        task = world.task(answer="four", prompt_value="two and two", extra=extra)
        trinity = {"workflow": f"{file}:{name}", "format": {"response_key": "answer"}, **(more or {})}
        return world.run(engine, "trinity", {**trinity, "args": args or {}}, task=task, **section)

    return rollout


def test_a_run_returns_its_calls_and_their_exact_tokens(world, run):
    rollout = run(world.says("four"), "Points", args={"points": 3.0})
    assert (rollout.status, rollout.error, rollout.reward) == ("ok", None, 3.0)
    (turn,) = rollout.turns
    assert turn.prompt_ids.tolist() == world.task().prompt_ids.tolist()
    assert world.encoder.replies.decode(turn.completion_ids) == "four"
    assert turn.sampler_logprobs.tolist() == [-1.0] * len(turn.completion_ids)
    assert rollout.reward_parts["workflow/length"] == len(turn.prompt_ids) + len(turn.completion_ids)


@pytest.mark.parametrize(
    ("name", "texts", "reward", "turn_rewards"),
    [
        ("Second", "ab", 0.5, None),  # experiences that are not returned are not trained on
        ("Both", "a", 1.0, (0.0, 1.0)),  # equal samples are separate turns
        ("Steps", "ab", 11.0, (1.0, 11.0)),  # a reward for each step, through the OpenAI client
        ("Propagates", "a", 2.0, None),  # the reward of a run holds for all its steps
    ],
)
def test_rewards_are_those_of_the_experiences_that_a_run_returns(
    world, run, name, texts, reward, turn_rewards
):
    rollout = run(world.says(*texts), name)
    assert (rollout.error, rollout.reward, rollout.turn_rewards) == (None, reward, turn_rewards)
    if name == "Second":
        assert (len(rollout.turns), rollout.text) == (1, "b")
    else:
        assert len(rollout.turns) == 2
    if name == "Propagates":
        assert rollout.reward_parts["workflow/actual_env_steps"] == 2.0


def test_a_conversation_is_one_experience_of_the_tokens_that_were_sampled(world, run):
    sampling = SamplingParams(temperature=1.0, max_tokens=9)
    rollout = run(world.native(), "Conversation", sampling=sampling)
    assert (rollout.error, len(rollout.turns)) == (None, 2)
    assert rollout.reward_parts["workflow/rounds"] == 2
    (experience,) = rollout_to_experiences(rollout, "")
    first, second = rollout.turns
    joined = np.concatenate([first.prompt_ids, first.completion_ids])
    assert second.prompt_ids[: len(joined)].tolist() == joined.tolist()
    sampled = [*first.completion_ids, *second.completion_ids]
    assert experience.token_ids[experience.loss_mask].tolist() == sampled
    logprobs = np.concatenate([first.sampler_logprobs, second.sampler_logprobs])
    assert experience.sampler_logprobs[experience.loss_mask].tolist() == logprobs.tolist()


@pytest.mark.parametrize(("step_rewards", "rewards"), [(True, (0.25, 0.5, 0.25)), (False, (0.0, 0.0, 1.0))])
def test_states_and_rewards_of_steps(world, run, step_rewards, rewards):
    rollout = run(world.says("a", "b", "c"), "States", args={"step_rewards": step_rewards})
    assert (rollout.error, rollout.turn_rewards, rollout.reward) == (None, rewards, 1.0)
    first, second, third = rollout.turn_states
    assert first == third != second


@pytest.mark.parametrize("name", ["Simple", "AsyncSimple"])
def test_a_simple_workflow_uses_the_tasks_reward_function_and_prefix(world, run, flows, name):
    engine = world.says("four")
    form = {"response_key": "answer", "reply_prefix": "Well:"}
    more = {"reward_fn": f"{flows}:Letters", "reward_fn_args": {"letter": "o"}, "format": form}
    rollout = run(engine, name, more=more)
    assert (rollout.error, rollout.reward) == (None, pytest.approx(1.1))
    assert rollout.reward_parts["workflow/letters"] == pytest.approx(0.1)
    expected = world.encoder.encode_prompt(world.task().messages, (), "Well:")
    assert engine.requests[0].prompt_ids.tolist() == expected.tolist()


def test_a_math_workflow_has_trinitys_prompt_and_reward(world, run):
    engine = world.says("four")
    rollout = run(engine, "Math", columns={"answer": "4"})
    assert (rollout.error, rollout.reward) == (None, pytest.approx(-0.1))
    prompt = world.tokenizer.decode(engine.requests[0].prompt_ids)
    assert "The assistant first thinks about the reasoning process" in prompt


def test_a_resettable_workflow_is_constructed_once(world, flows):
    runner = world.runner(world.says("a"), "trinity", {"workflow": f"{flows}:Resets"})

    async def runs():
        tasks = [world.task(prompt_value="two", extra={"number": number}) for number in range(6)]
        sampling = SamplingParams(max_tokens=400)
        return [await runner.run(task, "g", index, sampling, 7) for index, task in enumerate(tasks)]

    rollouts = asyncio.run(runs())
    assert [rollout.reward for rollout in rollouts] == [101.0, 111.0, 121.0, None, 201.0, 211.0]
    assert "RuntimeError: broken" in rollouts[3].error and "flows.py" in rollouts[3].error


def test_a_plugin_folder_registers_workflows_and_its_files_import_each_other(world, tmp_path):
    (tmp_path / "my_points.py").write_text("POINTS = 2.0")
    (tmp_path / "my_flow.py").write_text(IMPORTS + TALK)
    engine = world.says("a")
    rollout = world.run(engine, "trinity", {"workflow": "talk_workflow", "plugins": [str(tmp_path)]})
    assert (rollout.error, rollout.reward) == (None, 4.0)
    assert engine.requests[0].prompt_ids.tolist() == world.encoder.encode_text("two and").tolist()


def test_a_trinity_class_named_as_the_workflow_itself_runs_too(world, flows):
    rollout = world.run(world.says("a"), f"{flows}:One", {"points": 2})
    assert (rollout.error, rollout.reward) == (None, 2.0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return []", "must return a list of one or more experiences"),
        ("return [1]", "returned a int as experience 0"),
        (
            "return [Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)]",
            "did not sample in this rollout",
        ),
        ("self.model.chat(M, temperature=0.3)", "samples with temperature=0.3, and the run with 1.0"),
        ("self.model.chat(M, best_of=3)", "passes best_of=3 to the model"),
        ("self.model.logprobs([1, 2])", "gives the log-probs of the tokens that it samples"),
        ("e = self.model.chat(M)[0]; e.advantages = 1; return [e]", "has advantages, which Strop computes"),
        ("e = self.model.chat(M)[0]; e.reward = 'much'; return [e]", "has the reward 'much'"),
    ],
)
def test_a_failing_workflow_fails_its_rollout_with_the_reason(world, run, tmp_path, body, message):
    file = tmp_path / "failing.py"
    file.write_text(f"{IMPORTS}\nclass Flow(Workflow):\n    def run(self):\n        {body}\n")
    rollout = run(world.says("a"), "Flow", file=file)
    assert rollout.status == "error" and message in rollout.error


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("Changed", {}, "as the model wrote them"),
        ("Blocking", {}, "call chat_async"),
        ("States", {"forgets": True}, "not each turn is an experience of its own"),
    ],
)
def test_what_cannot_be_trained_on_fails_the_rollout(world, run, name, args, message):
    rollout = run(world.says("a", "b", "c"), name, args=args)
    assert rollout.status == "error" and message in rollout.error


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"workflow": "talk_workflo"}, "no file registers a workflow 'talk_workflo'"),
        ({"workflow": "webshop_workflow"}, "package trinity-rft, which needs the package web_agent_site"),
        ({"workflow": "trinity.common.workflows.envs.x.X"}, "no module .trinity.common.workflows.envs"),
        ({"workflow": "pathlib.Path"}, "is not a class derived from"),
        ({"workflow": "simple_workflow", "reward_fn": "math_rewrd"}, "did you mean 'math_reward'"),
        ({"workflow": "simple_workflow", "format": {"promt_key": "a"}}, "format has no key 'promt_key'"),
        ({"workflow": "simple_workflow", "plugins": ["no_such_folder"]}, "there is no folder no_such_folder"),
    ],
)
def test_a_workflow_that_cannot_be_loaded_is_refused(args, message):
    with pytest.raises((ConfigError, RewardError), match=message):
        load_workflow(WorkflowConfig(name="trinity", args=args))


def test_a_name_is_found_without_importing_a_file(tmp_path):
    code = 'raise SystemExit("imported")\n@WORKFLOWS.register_module("found_workflow")\nclass Sing(Workflow): ...\n'
    (tmp_path / "sing.py").write_text(code)
    plugins = [str(tmp_path)]
    assert missing_workflow({"workflow": "found_workflow", "plugins": plugins}) is None
    assert missing_workflow({"workflow": "simple_workflow"}) is None
    assert missing_workflow({"workflow": "sing.py:Sing"}) is None
    for args in ({"workflow": "found_workflow"}, {"workflow": "other_workflow", "plugins": plugins}):
        assert "no file registers a workflow" in str(missing_workflow(args))
    assert "alfworld" in str(missing_workflow({"workflow": "alfworld_workflow"}))
