"""One prompt, one answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strop.protocols import InferenceEngine
from strop.types import Rollout, SampleRequest, Sampling, Task, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class SingleTurn:
    """The model sees the task's prompt once and answers once."""

    def __init__(self, engine: InferenceEngine, tokenizer: PreTrainedTokenizerBase) -> None:
        self._engine = engine
        self._tokenizer = tokenizer

    async def run(self, task: Task, group: str, index: int, sampling: Sampling, seed: int) -> Rollout:
        """One unscored rollout."""
        name = f"{group}-{index}"
        request = SampleRequest(name, task.prompt_ids, sampling, seed)
        (answer,) = await self._engine.sample([request])
        return Rollout(
            id=name,
            task_id=task.id,
            group=group,
            index=index,
            turns=(
                Turn(
                    prompt_ids=task.prompt_ids,
                    completion_ids=answer.token_ids,
                    sampler_logprobs=answer.sampler_logprobs,
                    policy_logprobs=answer.policy_logprobs,
                    finish=answer.finish,
                    version=answer.version,
                ),
            ),
            text=str(self._tokenizer.decode(answer.token_ids.tolist(), skip_special_tokens=True)),
            status="ok" if answer.finish == "stop" else "truncated",
            sampling=sampling,
        )
