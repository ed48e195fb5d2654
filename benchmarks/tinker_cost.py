"""CPU time of an RL step over Tinker's protocol, and of the same step with `strop.Policy` in one process.

    OMP_NUM_THREADS=1 python benchmarks/tinker_cost.py MODEL --steps 8

A step samples 4 completions of 24 tokens for each of 4 prompts, computes the gradient of `importance_sampling`, and
updates a LoRA adapter of rank 8. Steps of both sides alternate. The time over the protocol is that of the service and
of the client with Tinker's SDK; the first steps of each side are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROMPTS, SAMPLES, TOKENS, WARM = 4, 4, 24, 2
STORIES = [f"Write a long story about {number} lions and their river." for number in range(2, 2 + PROMPTS)]
KEY = "tml-cost"
Step = Callable[[int], int]
"""One step; returns the number of sampled tokens."""


def in_process(model: str, dtype: str, steps: Callable[[Step, list[int]], None]) -> None:
    """Steps with `strop.Policy`."""
    import numpy as np
    import torch

    import strop

    def importance_sampling(micro_batch: Any, outputs: Any, counts: Any) -> Any:
        targets = torch.from_numpy(micro_batch.targets)
        ratio = (outputs.logprobs[targets] - micro_batch.old_logprobs[targets]).exp()
        return -(ratio * micro_batch.advantages[targets]).sum()

    def step(number: int) -> int:
        groups = policy.sample(STORIES, n=SAMPLES, max_tokens=TOKENS, seed=number)
        batch = strop.make_batch(groups, np.tile([1.0, -1.0], (PROMPTS, SAMPLES // 2)))
        policy.forward_backward(batch, loss=importance_sampling)
        policy.step(lr=1e-5)
        return sum(each.response_tokens for each in batch.experiences)

    adapter = strop.Lora(rank=8, alpha=32)
    section = strop.Model(path=model, compute_dtype=dtype, lora=adapter)
    with strop.Policy(section, seed=1, max_grad_norm=None) as policy:
        steps(step, [os.getpid()])


def over_protocol(model: str, dtype: str, steps: Callable[[Step, list[int]], None]) -> None:
    """Steps of Tinker's client against `strop serve --tinker`."""
    import tinker
    from tinker import types

    with _service(model, dtype) as (url, service), tinker.ServiceClient(base_url=url, api_key=KEY) as client:
        trained = client.create_lora_training_client("base", rank=8, train_unembed=False).result()
        tokenizer = trained.get_tokenizer()
        prompts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": story}], add_generation_prompt=True, return_dict=False
            )
            for story in STORIES
        ]

        def step(number: int) -> int:
            sampler = trained.save_weights_and_get_sampling_client().result()
            parameters = types.SamplingParams(max_tokens=TOKENS, temperature=1.0, seed=number)
            futures = [
                sampler.sample(types.ModelInput.from_ints(each), SAMPLES, parameters) for each in prompts
            ]
            data = [
                _datum(prompt, sequence, 1.0 - 2.0 * (index % 2))
                for prompt, future in zip(prompts, futures, strict=True)
                for index, sequence in enumerate(future.result().sequences)
            ]
            gradient = trained.forward_backward(data, "importance_sampling")
            update = trained.optim_step(types.AdamParams(learning_rate=1e-5))
            gradient.result()
            update.result()
            return sum(len(each.model_input.to_ints()) + 1 for each in data) - SAMPLES * sum(
                map(len, prompts)
            )

        steps(step, [os.getpid(), service])


def _datum(prompt: list[int], sequence: Any, advantage: float) -> Any:
    from tinker import types

    ids, before = [*prompt, *sequence.tokens], len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={
            "target_tokens": ids[1:],
            "logprobs": [0.0] * before + list(sequence.logprobs),
            "advantages": [0.0] * before + [advantage] * len(sequence.tokens),
        },
    )


@contextmanager
def _service(model: str, dtype: str) -> Iterator[tuple[str, int]]:
    """URL and process id of a service."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "strop", "serve", model, "--name", "base", "--dtype", dtype]
        service = subprocess.Popen(
            [*command, "--tinker", folder, "--token", KEY, "--port", "0"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert service.stdout is not None
            address = next(line for line in service.stdout if line.startswith("Tinker's SDK"))
            yield address.partition("TINKER_BASE_URL=")[2].split()[0], service.pid
        finally:
            service.terminate()
            service.wait()


def _answer(step: Step, pids: list[int]) -> None:
    """Say the processes, then make a step for each number on standard input, and say its number of tokens."""
    print(json.dumps(pids), flush=True)
    for line in sys.stdin:
        print(step(int(line)), flush=True)


SIDES = {"process": in_process, "protocol": over_protocol}


class Side:
    """One side of the comparison, in processes of its own."""

    def __init__(self, name: str, model: str, dtype: str) -> None:
        command = [sys.executable, __file__, model, "--dtype", dtype, "--side", name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._pids: list[int] = json.loads(self._said())
        self.seconds: list[float] = []
        self.tokens = 0

    def step(self, number: int) -> None:
        """Make a step, and measure it."""
        assert self._process.stdin is not None
        before = self._cpu_seconds()
        print(number, file=self._process.stdin, flush=True)
        self.tokens += int(self._said())
        self.seconds.append(self._cpu_seconds() - before)

    def close(self) -> None:
        """End the processes."""
        self._process.communicate()

    def _said(self) -> str:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit("a side has ended")
        return line

    def _cpu_seconds(self) -> float:
        """User and system time of all processes."""
        ticks = 0
        for pid in self._pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure both sides, and print their medians and the ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="folder or GGUF file of a small chat model")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side is not None:
        SIDES[options.side](options.model, options.dtype, _answer)
        return
    sides = {name: Side(name, options.model, options.dtype) for name in SIDES}
    for number in range(WARM + options.steps):
        for name, side in sides.items():
            side.step(number)
            print(f"step {number}, {name}: {side.seconds[-1]:.2f} CPU-seconds", file=sys.stderr)
    medians = {}
    for name, side in sides.items():
        side.close()
        counted = side.seconds[WARM:]
        medians[name] = statistics.median(counted)
        spread = f"{min(counted):.2f} to {max(counted):.2f}"
        print(f"{name}: {medians[name]:.2f} CPU-seconds a step ({spread}), {side.tokens} tokens in all")
    print(f"ratio: {medians['protocol'] / medians['process']:.2f}")


if __name__ == "__main__":
    main()
