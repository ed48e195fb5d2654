"""Peak memory and CPU time of the log-prob pass at a large vocabulary, forward and backward.

    python benchmarks/logprobs_memory.py [--dtypes float32 bfloat16] [--tokens 2048]

Compares three variants: plain logits; Strop's chunked pass; and Strop's chunked pass with the KL divergence from a
reference model over the whole vocabulary, which needs the reference's logits too. Each variant runs in a separate
process, so that the peaks are independent.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from strop.config.schema.distillation import ReverseKlConfig
from strop.models.chunked_head import Comparison, FrozenStates, LogitTransform, head_outputs
from strop.transfers import Positions

VARIANTS = ("plain logits", "Strop", "Strop with full KL")
RELATIVE_TOLERANCE = 1e-3
"""Maximum relative difference between the sums of log-probs of two variants."""


def plain_pass(hidden: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """[T] Log-probs and [T] entropies from the logits of the whole batch."""
    logprobs = torch.log_softmax((hidden @ weight.T).float(), -1)
    return logprobs.gather(-1, labels[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def chunked_pass(
    hidden: Tensor, weight: Tensor, labels: Tensor, comparisons: Sequence[Comparison]
) -> tuple[Tensor, Tensor]:
    """[T] Log-probs and [T] entropies by Strop, plus the divergence if there is a comparison."""
    rows, temperature = Positions.of(np.arange(len(hidden)), "cpu"), torch.ones(len(hidden))
    logprobs, entropy, divergences = head_outputs(
        make_head(weight),
        hidden,
        rows,
        labels,
        temperature,
        LogitTransform(),
        entropy=True,
        comparisons=comparisons,
    )
    assert entropy is not None
    return logprobs, sum(divergences, entropy)


def make_head(weight: Tensor) -> nn.Linear:
    """Make a language-model head with this weight."""
    vocabulary, hidden_size = weight.shape
    head = nn.Linear(hidden_size, vocabulary, bias=False, device="meta")
    head.weight = nn.Parameter(weight)
    return head


def measure(variant: str, dtype: str, tokens: int, hidden_size: int, vocabulary: int) -> dict[str, float]:
    """Measure the growth of peak memory in MB, the CPU-seconds, and the sum of the log-probs."""
    torch.manual_seed(0)
    torch_dtype = getattr(torch, dtype)
    hidden = torch.randn(tokens, hidden_size, dtype=torch_dtype, requires_grad=True)
    weight = (torch.randn(vocabulary, hidden_size, dtype=torch_dtype) / hidden_size**0.5).requires_grad_()
    labels = torch.randint(vocabulary, (tokens,))
    comparisons = []
    if variant == "Strop with full KL":
        other = FrozenStates(torch.randn_like(hidden), make_head(torch.randn_like(weight)))
        comparisons = [Comparison(other, ReverseKlConfig())]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    if variant == "plain logits":
        logprobs, entropy = plain_pass(hidden, weight, labels)
    else:
        logprobs, entropy = chunked_pass(hidden, weight, labels, comparisons)
    torch.autograd.backward(logprobs.sum() + 0.01 * entropy.sum())
    cpu_seconds = time.process_time() - started
    peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"peak_mb": peak_mb, "cpu_seconds": cpu_seconds, "sum": float(logprobs.sum())}


def main() -> None:
    """Run the command line; `--variant` is for the processes that this script starts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=151936)
    dtypes = ("float32", "bfloat16")
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=dtypes)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = (args.tokens, args.hidden_size, args.vocabulary)
    if args.variant:
        print(json.dumps(measure(args.variant, args.dtypes[0], *size)))
        return
    print("| dtype | variant | peak memory, MB | fraction | CPU-seconds |")
    print("| --- | --- | --- | --- | --- |")
    for dtype in args.dtypes:
        print_rows(dtype, size)


def print_rows(dtype: str, size: tuple[int, int, int]) -> None:
    """Measure and print the variants of one dtype; exit if their log-probs differ."""
    options = ["--tokens", "--hidden-size", "--vocabulary"]
    arguments = [word for option, value in zip(options, size, strict=True) for word in (option, str(value))]
    baseline: dict[str, float] = {}
    for variant in VARIANTS:
        command = [sys.executable, __file__, *arguments, "--dtypes", dtype, "--variant", variant]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        baseline = baseline or row
        if not math.isclose(row["sum"], baseline["sum"], rel_tol=RELATIVE_TOLERANCE):
            sys.exit(f"{dtype}, {variant}: the sum of log-probs is {row['sum']}, not {baseline['sum']}")
        fraction = row["peak_mb"] / baseline["peak_mb"]
        print(
            f"| {dtype} | {variant} | {row['peak_mb']:.0f} | {fraction:.1%} | {row['cpu_seconds']:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
