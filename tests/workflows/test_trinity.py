"""Workflow classes written for Trinity-RFT's interface."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strop.config.schema.workflow import WorkflowConfig
from strop.errors import ConfigError
from strop.types import Rollout, SamplingParams
from strop.workflows.experiences import rollout_to_experiences
from strop.workflows.registry import load_workflow
from strop.workflows.trinity.adapter import missing_workflow

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
"""


def write(folder: Path, code: str) -> Path:
    file = folder / "flows.py"
    file.write_text(IMPORTS + textwrap.dedent(code))
    return file


def run(world: Any, engine: Any, file: Path, **section: Any) -> Rollout:
    """One rollout of the class `Flow` of a file."""
    columns = section.pop("columns", {})
    task = world.task(answer="four", prompt_value="two and two", extra={"answer": "four", **columns})
    args = {"workflow": f"{file}:Flow", **section.pop("args", {})}
    args.setdefault("format", {"response_key": "answer"})
    return world.run(engine, "trinity", args, task=task, **section)


def test_a_run_returns_its_calls_and_their_exact_tokens(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(Workflow):
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
        """,
    )
    rollout = run(world, world.says("four"), file, args={"args": {"points": 3.0}})
    assert (rollout.status, rollout.error, rollout.reward) == ("ok", None, 3.0)
    (turn,) = rollout.turns
    assert turn.prompt_ids.tolist() == world.task().prompt_ids.tolist()
    assert world.encoder.decode(turn.completion_ids) == "four"
    assert turn.sampler_logprobs.tolist() == [-1.0] * len(turn.completion_ids)
    assert rollout.reward_parts["workflow/length"] == len(turn.prompt_ids) + len(turn.completion_ids)


def test_experiences_that_are_not_returned_are_not_trained_on(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(Workflow):
            def run(self):
                messages = [{"role": "user", "content": "two"}]
                first, second, third = self.model.chat(messages, n=3)
                assert first.response_text == third.response_text and self.model.model_version == 0
                second.reward = 0.5
                return [second]
        """,
    )
    rollout = run(world, world.says("a", "b"), file)
    assert (rollout.reward, len(rollout.turns), rollout.text) == (0.5, 1, "b")


def test_equal_samples_are_separate_turns(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(Workflow):
            def run(self):
                found = self.model.chat([{"role": "user", "content": "two"}], n=2)
                for number, each in enumerate(found):
                    each.reward = float(number)
                return found
        """,
    )
    rollout = run(world, world.says("same"), file)
    assert (len(rollout.turns), rollout.turn_rewards, rollout.reward) == (2, (0.0, 1.0), 1.0)


def test_a_conversation_is_one_experience_of_the_tokens_that_were_sampled(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(MultiTurnWorkflow):
            is_async = True
            async def run_async(self):
                messages = [{"role": "user", "content": "two and two"}]
                for question in ("sure?", "really?"):
                    (reply,) = await self.model.chat_async(messages, max_tokens=6)
                    messages.append({"role": "assistant", "content": reply.response_text})
                    messages.append({"role": "user", "content": question})
                assert await self.model.get_message_token_len(messages) > len(reply.tokens)
                return [await self.process_messages_to_experience_async(messages, 0.25, {"rounds": 2, "who": "me"})]
        """,
    )
    rollout = run(world, world.native(), file, sampling=SamplingParams(temperature=1.0, max_tokens=9))
    assert (rollout.error, len(rollout.turns)) == (None, 2)
    assert rollout.reward_parts["workflow/rounds"] == 2
    (experience,) = rollout_to_experiences(rollout, "")
    first, second = rollout.turns
    joined = np.concatenate([first.prompt_ids, first.completion_ids])
    assert second.prompt_ids[: len(joined)].tolist() == joined.tolist()
    assert experience.token_ids[experience.loss_mask].tolist() == [
        *first.completion_ids,
        *second.completion_ids,
    ]
    logprobs = np.concatenate([first.sampler_logprobs, second.sampler_logprobs])
    assert experience.sampler_logprobs[experience.loss_mask].tolist() == logprobs.tolist()


def test_a_changed_reply_is_refused(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(MultiTurnWorkflow):
            def run(self):
                messages = [{"role": "user", "content": "two"}]
                self.model.chat(messages)
                return [self.process_messages_to_experience([*messages, {"role": "assistant", "content": "X"}], 1.0)]
        """,
    )
    rollout = run(world, world.says("a"), file)
    assert rollout.status == "error" and "as the model wrote them" in str(rollout.error)


def test_steps_have_their_own_rewards_through_the_openai_client(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(StepWiseRewardWorkflow):
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
        """,
    )
    rollout = run(world, world.says("a", "b"), file)
    assert (rollout.error, rollout.turn_rewards, rollout.reward) == (None, (1.0, 11.0), 11.0)


GIGPO = """
        class Flow(Workflow):
            def run(self):
                found = []
                for state, reward in (("x", 0.25), ("y", 0.5), ("x", 0.25)):
                    found += self.model.chat([{"role": "user", "content": state}])
                    found[-1].reward = 1.0
                    found[-1].info["env_state_hash"] = state
                    REWARD
                return found
"""


@pytest.mark.parametrize(
    ("line", "rewards"),
    [("found[-1].info['step_reward'] = reward", (0.25, 0.5, 0.25)), ("pass", (0.0, 0.0, 1.0))],
)
def test_states_and_rewards_of_steps(world: Any, tmp_path: Path, line: str, rewards: Any) -> None:
    rollout = run(world, world.says("a", "b", "c"), write(tmp_path, GIGPO.replace("REWARD", line)))
    assert (rollout.error, rollout.turn_rewards, rollout.reward) == (None, rewards, 1.0)
    first, second, third = rollout.turn_states
    assert first == third != second


def test_a_step_without_a_state_is_an_error(world: Any, tmp_path: Path) -> None:
    file = write(tmp_path, GIGPO.replace("REWARD", "found[0].info.clear()"))
    rollout = run(world, world.says("a", "b", "c"), file)
    assert "not each turn is an experience of its own" in str(rollout.error)


def test_the_reward_of_a_run_holds_for_all_its_steps(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(AsyncRewardPropagationWorkflow):
            max_step_num = 2
            async def step_async(self, step_num):
                messages = [{"role": "user", "content": str(step_num)}]
                await self.client.chat.completions.create(model="policy", messages=messages)
                return True
            async def reward_async(self, exps):
                return float(len(exps))
        """,
    )
    rollout = run(world, world.says("a"), file)
    assert (rollout.error, rollout.turn_rewards, rollout.reward) == (None, None, 2.0)
    assert rollout.reward_parts["workflow/actual_env_steps"] == 2.0


REWARD = """
    @REWARD_FUNCTIONS.register_module("letters")
    class Letters(RewardFn):
        def __init__(self, letter):
            self.letter = letter
        def __call__(self, response, truth=None, **kwargs):
            return {"right": float(response == truth), "letters": 0.1 * response.count(self.letter)}
"""


@pytest.mark.parametrize("base", ["SimpleWorkflow", "AsyncSimpleWorkflow"])
def test_a_simple_workflow_uses_the_tasks_reward_function(world: Any, tmp_path: Path, base: str) -> None:
    file = write(tmp_path, f"{textwrap.dedent(REWARD)}\nclass Flow({base}): pass")
    args = {"reward_fn": f"{file}:Letters", "reward_fn_args": {"letter": "o"}}
    rollout = run(world, world.says("four"), file, args=args)
    assert (rollout.error, rollout.reward) == (None, pytest.approx(1.1))
    assert rollout.reward_parts["workflow/letters"] == pytest.approx(0.1)


def test_a_math_workflow_has_trinitys_prompt_and_reward(world: Any, tmp_path: Path) -> None:
    file = write(tmp_path, "class Flow(MathWorkflow): pass")
    engine = world.says("four")
    rollout = run(world, engine, file, columns={"answer": "4"})
    assert (rollout.error, rollout.reward) == (None, pytest.approx(-0.1))
    prompt = world.tokenizer.decode(engine.requests[0].prompt_ids)
    assert "The assistant first thinks about the reasoning process" in prompt


def test_a_reply_prefix_starts_the_reply(world: Any, tmp_path: Path) -> None:
    file = write(tmp_path, f"{textwrap.dedent(REWARD)}\nclass Flow(SimpleWorkflow): pass")
    args = {"reward_fn": f"{file}:Letters", "reward_fn_args": {"letter": "o"}}
    form = {"response_key": "answer", "reply_prefix": "Well:"}
    engine = world.says("four")
    rollout = run(world, engine, file, args={**args, "format": form})
    assert rollout.error is None
    expected = world.encoder.encode_prompt(world.task().messages, (), "Well:")
    assert engine.requests[0].prompt_ids.tolist() == expected.tolist()


def test_a_resettable_workflow_is_constructed_once(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(Workflow):
            can_reset = True
            can_repeat = True
            made = 0
            def __init__(self, **kwargs):
                super().__init__(**kwargs)
                Flow.made += 1
                self.client = self.model.get_openai_client()
                self.resets = 0
            def reset(self, task):
                super().reset(task)
                self.resets += 1
            def run(self):
                if self.task.raw_task["number"] == 3:
                    raise RuntimeError("broken")
                messages = [{"role": "user", "content": "two"}]
                self.client.chat.completions.create(model="policy", messages=messages)
                (found,) = self.model.extract_experience_from_history()
                found.reward = 100.0 * Flow.made + 10.0 * self.resets + self.repeat_times
                return [found]
        """,
    )
    import asyncio

    engine = world.says("a")
    runner = world.runner(engine, "trinity", {"workflow": f"{file}:Flow"})

    async def runs() -> list[Rollout]:
        tasks = [world.task(prompt_value="two", extra={"number": number}) for number in range(6)]
        sampling = SamplingParams(max_tokens=400)
        return [await runner.run(task, "g", index, sampling, 7) for index, task in enumerate(tasks)]

    rollouts = asyncio.run(runs())
    assert [rollout.reward for rollout in rollouts] == [101.0, 111.0, 121.0, None, 201.0, 211.0]
    assert "RuntimeError: broken" in str(rollouts[3].error) and "flows.py" in str(rollouts[3].error)


def test_a_plugin_folder_registers_workflows_and_its_files_import_each_other(
    world: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "my_points.py").write_text("POINTS = 2.0")
    (folder / "my_flow.py").write_text(
        IMPORTS
        + textwrap.dedent(
            """
            from .my_points import POINTS

            @WORKFLOWS.register_module("talk_workflow")
            class Talk(Workflow):
                def run(self):
                    from trinity.plugins.my_points import POINTS as again
                    (found,) = self.model.generate(["two and"])
                    found.reward = POINTS + again
                    return [found]
            """
        )
    )
    engine = world.says("a")
    rollout = world.run(engine, "trinity", {"workflow": "talk_workflow", "plugins": [str(folder)]})
    assert (rollout.error, rollout.reward) == (None, 4.0)
    assert engine.requests[0].prompt_ids.tolist() == world.encoder.encode_text("two and").tolist()


def test_a_trinity_class_named_as_the_workflow_itself_runs_too(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(Workflow):
            def run(self):
                (found,) = self.model.chat([{"role": "user", "content": "two"}])
                found.reward = self.task.workflow_args["points"]
                return [found]
        """,
    )
    rollout = world.run(world.says("a"), f"{file}:Flow", {"points": 2})
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
def test_a_failing_workflow_fails_its_rollout_with_the_reason(
    world: Any, tmp_path: Path, body: str, message: str
) -> None:
    code = f"""
        M = [{{"role": "user", "content": "two"}}]
        class Flow(Workflow):
            def run(self):
                {body}
    """
    rollout = run(world, world.says("a"), write(tmp_path, code))
    assert rollout.status == "error" and message in str(rollout.error)


def test_a_blocking_call_in_an_async_workflow_is_refused(world: Any, tmp_path: Path) -> None:
    file = write(
        tmp_path,
        """
        class Flow(Workflow):
            is_async = True
            async def run_async(self):
                return self.model.chat([{"role": "user", "content": "two"}])
        """,
    )
    rollout = run(world, world.says("a"), file)
    assert "call chat_async" in str(rollout.error)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"workflow": "talk_workflo"}, "no file registers a workflow 'talk_workflo'"),
        ({"workflow": "webshop_workflow"}, "package trinity-rft, which needs the package web_agent_site"),
        (
            {"workflow": "trinity.common.workflows.envs.x.X"},
            "there is no module .trinity.common.workflows.envs",
        ),
        ({"workflow": "pathlib.Path"}, "is not a class derived from"),
        ({"workflow": "simple_workflow", "reward_fn": "math_rewrd"}, "did you mean 'math_reward'"),
        ({"workflow": "simple_workflow", "format": {"promt_key": "a"}}, "format has no key 'promt_key'"),
        ({"workflow": "simple_workflow", "plugins": ["no_such_folder"]}, "there is no folder no_such_folder"),
    ],
)
def test_a_workflow_that_cannot_be_loaded_is_refused(args: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        load_workflow(WorkflowConfig(name="trinity", args=args))
    assert type(refused.value).__name__ in (ConfigError.__name__, "RewardError")


def test_a_name_is_found_without_importing_a_file(tmp_path: Path) -> None:
    code = 'raise SystemExit("imported")\n@WORKFLOWS.register_module("sing_workflow")\nclass Sing(Workflow): ...\n'
    (tmp_path / "sing.py").write_text(code)
    plugins = [str(tmp_path)]
    assert missing_workflow({"workflow": "sing_workflow", "plugins": plugins}) is None
    assert missing_workflow({"workflow": "simple_workflow"}) is None
    assert missing_workflow({"workflow": "sing.py:Sing"}) is None
    for args in ({"workflow": "sing_workflow"}, {"workflow": "sung_workflow", "plugins": plugins}):
        assert "no file registers a workflow" in str(missing_workflow(args))
    assert "alfworld" in str(missing_workflow({"workflow": "alfworld_workflow"}))
