"""GRPO in one file: a training loop on the four verbs of Strop's engines, without the driver.

    make quickstart                                # writes the tasks and the warm start used here
    python examples/grpo_in_one_file.py --steps 100

sample            the inference engine completes prompts
forward_backward  the training engine adds the gradient of the loss
step              the training engine updates its weights
publish           the inference engine loads the new weights
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import strop
from strop.algorithms.registry import LossSpec
from strop.config.schema import Run
from strop.config.schema.algorithm import GrpoConfig
from strop.data.encoding.turn_encoder import TurnEncoder
from strop.data.taskset import load_taskset
from strop.models.loading import load_tokenizer
from strop.protocols import InferenceEngine
from strop.run.rollout.inference_engines import open_colocated_engine
from strop.run.tokenizer import load_model_tokens
from strop.training.backends.registry import open_training_engines
from strop.types import Completion, Experience, SampleRequest, SamplingParams, Task, TrainingBatch

TASKS_PER_STEP = 64
ROLLOUTS_PER_TASK = 16
ROLLOUTS_PER_UPDATE = 256
LEARNING_RATE = 5e-4


def sample(
    engine: InferenceEngine, tasks: Sequence[Task], params: SamplingParams, seed: int
) -> list[Completion]:
    """Completions of every task, `ROLLOUTS_PER_TASK` in a row; each request has a seed of its own."""
    requests = [
        SampleRequest(
            f"{task.id}-{index}", task.prompt_ids, params, seed=seed + number * ROLLOUTS_PER_TASK + index
        )
        for number, task in enumerate(tasks)
        for index in range(ROLLOUTS_PER_TASK)
    ]
    return asyncio.run(engine.sample(requests))


def grpo_advantages(rewards: np.ndarray) -> np.ndarray:
    """[N] from [N] rewards: each reward minus its group's mean, divided by the group's standard deviation.

    Group-relative advantages of GRPO (arXiv 2402.03300, section 4.1.2).
    """
    groups = rewards.reshape(-1, ROLLOUTS_PER_TASK)
    centered = groups - groups.mean(axis=1, keepdims=True)
    return (centered / (groups.std(axis=1, ddof=1, keepdims=True) + 1e-6)).reshape(-1)


def make_experience(task: Task, index: int, completion: Completion, reward: float) -> Experience:
    """Prompt and completion as one training sequence, in which only the completion's tokens are targets."""
    prompt, sampled = len(task.prompt_ids), len(completion.token_ids)
    mask = np.zeros(prompt + sampled, dtype=np.bool_)
    mask[prompt:] = True

    def padded(values: np.ndarray) -> np.ndarray:
        return np.concatenate([np.zeros(prompt, dtype=np.float32), values])

    return Experience(
        id=f"{task.id}-{index}",
        task_id=task.id,
        group=task.id,
        index=index,
        turn=0,
        token_ids=np.concatenate([task.prompt_ids, completion.token_ids]),
        loss_mask=mask,
        sampler_logprobs=padded(completion.sampler_logprobs),
        policy_logprobs=padded(completion.policy_logprobs),
        reward=reward,
        status="ok" if completion.finish_reason == "stop" else "truncated",
        temperature=1.0,
        versions=(completion.version,),
    )


def train(run: Run, steps: int) -> list[float]:
    """Train the run's model; returns the mean reward of each step, sampled before its updates."""
    tokenizer = load_tokenizer(run.model)
    tasks = load_taskset(run.data.train, run.data, tokenizer, seed=run.seed, shuffle=True)
    encoder = TurnEncoder(
        tokenizer, run.data.chat_template, eos_ids=load_model_tokens(run.model, tokenizer).end_ids
    )
    params = SamplingParams(temperature=1.0, max_tokens=run.data.max_response_tokens)
    loss = LossSpec(GrpoConfig(rollouts_per_task=ROLLOUTS_PER_TASK), run.data.max_response_tokens)
    history = []
    with open_training_engines(run) as engines:
        trainer = engines.policy()
        trainer.set_lr(LEARNING_RATE)
        with open_colocated_engine(run, trainer, tokenizer) as sampler:
            for step in range(1, steps + 1):
                prompts = tasks.take(TASKS_PER_STEP)
                completions = sample(sampler, prompts, params, seed=step * 1_000_000)
                rollouts = [(task, index) for task in prompts for index in range(ROLLOUTS_PER_TASK)]
                texts = [encoder.replies.decode(completion.token_ids) for completion in completions]
                rewards = np.array(
                    [text.strip() == task.answer for text, (task, _) in zip(texts, rollouts, strict=True)],
                    float,
                )
                experiences = [
                    make_experience(task, index, completion, reward)
                    for (task, index), completion, reward in zip(
                        rollouts, completions, rewards.tolist(), strict=True
                    )
                ]
                advantages = grpo_advantages(rewards).tolist()
                for first in range(0, len(experiences), ROLLOUTS_PER_UPDATE):
                    part = slice(first, first + ROLLOUTS_PER_UPDATE)
                    old = [experience.policy_logprobs for experience in experiences[part]]
                    batch = TrainingBatch(experiences[part], advantages[part], old_logprobs=old)
                    metrics = trainer.forward_backward(batch, loss)
                    norm = trainer.step()
                sampler.load(trainer.iter_weights(), version=step)  # publish
                history.append(float(rewards.mean()))
                print(
                    f"step {step}  reward {history[-1]:.3f}  loss {metrics['loss']:.4f}  grad norm {norm:.2f}"
                )
    return history


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=100, help="training steps")
    args = parser.parse_args()
    run_file = Path(__file__).parent / "quickstart" / "run.yaml"
    train(strop.load(run_file).run, args.steps)


if __name__ == "__main__":
    main()
