"""Peak memory and time of the log-prob pass, ours beside plain logits, forward and backward; and ours with
the divergence from a reference over the whole vocabulary, which has logits of its own.

`python benchmarks/logprobs_memory.py` prints a table. Each way runs in a process of its own, so that
one's memory cannot hide behind the other's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor

from strop.models.head import LogitTransform, ReferenceStates, head_outputs

WAYS = ("plain", "ours", "ours, and full KL")


def plain(hidden: Tensor, weight: Tensor, labels: Tensor, reference: None) -> tuple[Tensor, Tensor]:
    """All logits at once, as most trainers do."""
    every = torch.log_softmax((hidden @ weight.T).float(), -1)
    return every.gather(-1, labels[:, None])[:, 0], -(every.exp() * every).sum(-1)


def ours(
    hidden: Tensor, weight: Tensor, labels: Tensor, reference: ReferenceStates | None
) -> tuple[Tensor, Tensor]:
    """What `token_outputs` does with the hidden states. The divergence, where it is asked for, is added to
    the entropy."""
    rows, temperature = torch.arange(len(hidden)), torch.ones(len(hidden))
    logprobs, entropy, divergence = head_outputs(
        head_of(weight),
        hidden,
        rows,
        labels,
        temperature,
        LogitTransform(),
        entropy=True,
        reference=reference,
    )
    return logprobs, entropy if divergence is None else entropy + divergence


def head_of(weight: Tensor) -> torch.nn.Linear:
    """A language-model head."""
    head = torch.nn.Linear(*weight.T.shape, bias=False, device="meta")
    head.weight = torch.nn.Parameter(weight)
    return head


def measure(way: str, tokens: int, hidden_size: int, vocabulary: int, dtype: str) -> dict[str, float]:
    """Megabytes above what was there before, and CPU-seconds."""
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    hidden = torch.randn(tokens, hidden_size, dtype=kind, requires_grad=True)
    weight = (torch.randn(vocabulary, hidden_size, dtype=kind) / hidden_size**0.5).requires_grad_()
    labels = torch.randint(vocabulary, (tokens,))
    reference = None
    if way == "ours, and full KL":
        reference = ReferenceStates(torch.randn_like(hidden), head_of(torch.randn_like(weight)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    values, entropy = (plain if way == "plain" else ours)(hidden, weight, labels, reference)
    forward = time.process_time() - started
    (values.sum() + 0.01 * entropy.sum()).backward()
    total = time.process_time() - started
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"megabytes": peak, "forward": forward, "backward": total - forward, "sum": float(values.sum())}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    args = vars(parser.parse_args())
    if way := args.pop("way"):
        print(json.dumps(measure(way, **args)))
        return
    print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in args.items()))
    print("| way | peak memory, MB | forward, CPU-s | backward, CPU-s | sum of log-probs |")
    print("| --- | --- | --- | --- | --- |")
    peaks = []
    for way in WAYS:
        command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        figures = (row["megabytes"], row["forward"], row["backward"], row["sum"])
        print(f"| {way} | " + " | ".join(f"{figure:.1f}" for figure in figures) + " |")
        peaks.append(row["megabytes"])
    shares = (f"{peak / peaks[0]:.1%}" for peak in peaks[1:])
    print(f"Of the memory of plain logits these are {' and '.join(shares)}.")


if __name__ == "__main__":
    main()
