"""Every metric's one definition. `docs/metrics.md` is made from it: `python -m strop.run.metrics`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

Panel = Literal[
    "Where the run stands",
    "Reward",
    "Held-out",
    "Rollouts",
    "Lengths",
    "Loss",
    "Critic",
    "Divergence and entropy",
    "Ratio and clipping",
    "Optimizer",
    "Sampler against trainer",
    "Speed and memory",
    "Time",
]


@dataclass(frozen=True, slots=True)
class Metric:
    """What one number in `metrics.jsonl` means."""

    panel: Panel
    """What it stands with, in the docs and in the report."""
    unit: str
    """Empty for a plain number."""
    better: Literal["higher", "lower"] | None
    """Which way is good; None where neither is in itself."""
    definition: str


METRICS: dict[str, Metric] = {
    # What stands in angle brackets is a name from the run file; `k` is a number.
    "step": Metric("Where the run stands", "steps", None, "Steps done; row 0 is before the first."),
    "epoch": Metric("Where the run stands", "epochs", None, "Steps done over the steps of one epoch."),
    "updates": Metric("Where the run stands", "updates", None, "Optimizer updates made in this step."),
    "version": Metric(
        "Where the run stands",
        "steps",
        None,
        "The version of the weights that this step left to the sampler.",
    ),
    "reward/mean": Metric("Reward", "", "higher", "Mean reward of the step's scored rollouts."),
    "reward/std": Metric(
        "Reward", "", None, "Standard deviation (divided by n) of the rewards of the step's scored rollouts."
    ),
    "reward/min": Metric("Reward", "", "higher", "Lowest reward of a scored rollout in this step."),
    "reward/max": Metric("Reward", "", "higher", "Highest reward of a scored rollout in this step."),
    "reward/part/<name>": Metric(
        "Reward", "", "higher", "Mean of this part of the reward over the rollouts that have it."
    ),
    "eval/<name>/reward": Metric(
        "Held-out",
        "",
        "higher",
        "Mean reward over the scored rollouts of an eval taskset: its accuracy, where the reward is 0 or 1.",
    ),
    "eval/<name>/pass@k": Metric(
        "Held-out",
        "share",
        "higher",
        "Share of an eval taskset's tasks with a reward of 1 or more in at least one of their k rollouts.",
    ),
    "eval/<name>/loss": Metric(
        "Held-out", "", "lower", "The loss on an eval taskset's given answers: sft_loss or dpo_loss."
    ),
    "eval/<name>/dpo/margin": Metric(
        "Held-out", "nats", "higher", "The mean margin (see dpo/margin) on an eval taskset's pairs."
    ),
    "eval/<name>/dpo/accuracy": Metric(
        "Held-out",
        "share",
        "higher",
        "Share of an eval taskset's pairs whose chosen answer has the higher implied reward.",
    ),
    "eval/<name>/response_tokens": Metric(
        "Held-out", "tokens", None, "Mean length of an eval taskset's scored answers."
    ),
    "eval/<name>/truncated_share": Metric(
        "Held-out", "share", "lower", "Share of an eval taskset's scored answers that the token limit cut."
    ),
    "eval/<name>/error_share": Metric(
        "Held-out", "share", "lower", "Share of an eval taskset's rollouts that broke; they have no reward."
    ),
    "eval/<name>/late_share": Metric(
        "Held-out", "share", "lower", "Share of an eval taskset's rollouts that took too long."
    ),
    "rollouts/count": Metric("Rollouts", "rollouts", None, "Rollouts of this step, broken ones included."),
    "rollouts/error_share": Metric(
        "Rollouts", "share", "lower", "Share of the step's rollouts that broke: no reward, never trained on."
    ),
    "rollouts/failed_share": Metric(
        "Rollouts", "share", "lower", "Share of the step's rollouts that broke because their workflow did."
    ),
    "rollouts/late_share": Metric(
        "Rollouts", "share", "lower", "Share of the step's rollouts that took longer than their time limit."
    ),
    "rollouts/retries": Metric(
        "Rollouts", "", "lower", "Attempts of this step's rollouts beyond the first of each."
    ),
    "rollouts/turns": Metric(
        "Rollouts", "", None, "Mean number of calls of the model in a scored rollout of this step."
    ),
    "rollouts/truncated_share": Metric(
        "Rollouts", "share", "lower", "Share of the scored rollouts that the token limit cut."
    ),
    "groups/no_signal_share": Metric(
        "Rollouts",
        "share",
        "lower",
        "Share of the groups in which all rewards are equal: nothing to learn from.",
    ),
    "groups/left_out": Metric(
        "Rollouts",
        "groups",
        "lower",
        "Groups that dynamic sampling left out, because all their rewards are equal.",
    ),
    "groups/trained": Metric(
        "Rollouts",
        "groups",
        None,
        "Groups that this step learned from, where the trainer takes them as they come.",
    ),
    "groups/missing": Metric(
        "Rollouts",
        "groups",
        "lower",
        "What they lack of trainer.tasks_per_step: so many did not come in buffer.read_timeout_seconds, or "
        "at all.",
    ),
    "groups/again": Metric(
        "Rollouts",
        "groups",
        None,
        "How many of them were learned from before, since the trainer was started; of a buffer that gives "
        "groups again.",
    ),
    "groups/too_old": Metric(
        "Rollouts", "groups", "lower", "Groups that trainer.sample threw away to fill this step."
    ),
    "groups/evicted": Metric(
        "Rollouts",
        "groups",
        "lower",
        "Groups that the buffer dropped for want of room since the step before.",
    ),
    "groups/waiting": Metric(
        "Rollouts", "groups", None, "Groups in the buffer that nobody has taken, after this step's were."
    ),
    "prompt_tokens/mean": Metric("Lengths", "tokens", None, "Mean length of the step's prompts."),
    "response_tokens/mean": Metric("Lengths", "tokens", None, "Mean length of the step's scored answers."),
    "response_tokens/max": Metric("Lengths", "tokens", None, "Length of the step's longest scored answer."),
    "trained_tokens": Metric(
        "Lengths", "tokens", None, "Tokens of this step's given answers, with their prompts."
    ),
    "sampled_tokens": Metric("Lengths", "tokens", None, "Tokens of all scored answers of this step."),
    "loss": Metric(
        "Loss",
        "",
        None,
        "What the update minimises: policy_loss + kl_loss - entropy_bonus; sft_loss; dpo_loss; under mix "
        "(1 - mu) times the first and mu times the second. Mean over updates.",
    ),
    "policy_loss": Metric(
        "Loss",
        "",
        None,
        "The configured policy loss, aggregated; by default PPO's clipped surrogate (arXiv 1707.06347).",
    ),
    "sft_loss": Metric(
        "Loss",
        "nats per token",
        "lower",
        "Cross entropy of the given answers' tokens, mean over them; under mix the expert's, before mu.",
    ),
    "dpo_loss": Metric(
        "Loss", "nats per pair", "lower", "Mean over pairs of -log sigmoid(margin) (arXiv 2305.18290)."
    ),
    "dpo/margin": Metric(
        "Loss", "nats", "higher", "Chosen less rejected reward as the model implies them, mean over pairs."
    ),
    "dpo/accuracy": Metric(
        "Loss", "share", "higher", "Share of the pairs whose chosen answer has the higher implied reward."
    ),
    "dpo/chosen_reward": Metric(
        "Loss",
        "nats",
        None,
        "Implied reward beta log(policy / reference) of the chosen answers, mean over pairs.",
    ),
    "dpo/rejected_reward": Metric("Loss", "nats", None, "The same of the rejected answers."),
    "kl_loss": Metric(
        "Loss", "", None, "kl_loss.coef times the configured estimate of KL(policy || reference), aggregated."
    ),
    "entropy_bonus": Metric(
        "Loss", "", None, "entropy_coef times the entropy of the answers' tokens, aggregated."
    ),
    "advantages/mean": Metric("Loss", "", None, "Mean advantage over the step's targets."),
    "advantages/std": Metric(
        "Loss", "", None, "Standard deviation (divided by n) of the advantages of the step's targets."
    ),
    "critic/loss": Metric(
        "Critic",
        "",
        "lower",
        "Half the squared error of the critic's values, with PPO's bound on them, if any; mean over targets.",
    ),
    "critic/explained_variance": Metric(
        "Critic",
        "",
        "higher",
        "Share of the returns explained: 1 - Var(returns - values) / Var(returns) over the step's targets, "
        "values before the step's updates: 1 is a perfect critic, 0 one that always says the same. Not there "
        "where the returns do not vary.",
    ),
    "critic/values": Metric(
        "Critic", "", None, "Mean over targets of what the critic expects, before the step's updates."
    ),
    "critic/returns": Metric(
        "Critic",
        "",
        None,
        "Mean over targets of what it should have said: advantages (not whitened) + values.",
    ),
    "critic/clip_fraction": Metric(
        "Critic", "share", None, "Share of targets at which value_clip is in force: they have no gradient."
    ),
    "critic/lr": Metric("Critic", "", None, "The critic's learning rate, mean over its updates of the step."),
    "critic/grad_norm": Metric(
        "Critic", "", None, "Length of the critic's gradient before clipping, mean over its updates."
    ),
    "kl/ref": Metric(
        "Divergence and entropy",
        "nats per token",
        None,
        "KL(policy || reference), mean over targets: how far training has moved the model. By Schulman's k3, "
        "or over the whole vocabulary where `kl_loss.estimator` is `full`.",
    ),
    "kl/old": Metric(
        "Divergence and entropy",
        "nats per token",
        None,
        "KL(policy at the step's start || at the update) by k3, mean over targets; 0 in a first update.",
    ),
    "kl_reward/kl": Metric(
        "Divergence and entropy",
        "nats per token",
        None,
        "KL(policy || reference) at the step's start by kl_reward.estimator; mean over rollouts of means.",
    ),
    "kl_reward/coef": Metric(
        "Divergence and entropy", "", None, "What that divergence was multiplied with, to lower the reward."
    ),
    "entropy": Metric(
        "Divergence and entropy",
        "nats per token",
        None,
        "Entropy of the tempered next-token distribution, mean over targets.",
    ),
    "ratio/mean": Metric(
        "Ratio and clipping", "", None, "Mean over targets of new over old probability; 1 in expectation."
    ),
    "clip_fraction": Metric(
        "Ratio and clipping",
        "share",
        None,
        "Share of targets for which a bound of the policy loss is in force. Only CISPO's leaves a gradient.",
    ),
    "clip_fraction/low": Metric(
        "Ratio and clipping",
        "share",
        None,
        "Of these: the ratio is below 1 - clip_low (and the answer bad, but for CISPO).",
    ),
    "clip_fraction/high": Metric(
        "Ratio and clipping",
        "share",
        None,
        "Of these: the ratio is above 1 + clip_high (and the answer good, but for CISPO).",
    ),
    "clip_fraction/dual": Metric(
        "Ratio and clipping", "share", None, "Of these: bad answers' tokens, with a ratio above dual_clip."
    ),
    "lr": Metric("Optimizer", "", None, "Learning rate, mean over the step's updates."),
    "grad_norm": Metric("Optimizer", "", None, "Length of the gradient before clipping, mean over updates."),
    "logprob_diff/mean_abs": Metric(
        "Sampler against trainer",
        "nats per token",
        "lower",
        "Mean over targets of |sampler's log-prob - trainer's at the step's start|, both at the sampling "
        "temperature. Rounding alone gives about 1e-6 in float32 and 1e-2 in bfloat16; more is a fault.",
    ),
    "logprob_diff/mean_square": Metric(
        "Sampler against trainer",
        "nats squared per token",
        "lower",
        "Mean over targets of the square of that difference; grows when few tokens are far off.",
    ),
    "importance/mean": Metric(
        "Sampler against trainer",
        "",
        None,
        "Mean over targets of the weight min(trainer's / sampler's probability, cap): 1 where both are one.",
    ),
    "importance/capped_share": Metric(
        "Sampler against trainer", "share", "lower", "Share of targets whose weight is the cap."
    ),
    "staleness/mean": Metric(
        "Sampler against trainer",
        "steps",
        "lower",
        "Steps between the oldest weights that drew an experience and those that began to learn from it;"
        " mean over the step's experiences. 0 where explorer and trainer take turns.",
    ),
    "staleness/max": Metric("Sampler against trainer", "steps", "lower", "The most such steps."),
    "sampled_version": Metric(
        "Where the run stands",
        "steps",
        None,
        "The weights' version that the step was sampled with, where the explorer is a process of its own.",
    ),
    "tokens_per_second": Metric(
        "Speed and memory",
        "tokens per second",
        "higher",
        "sampled_tokens over time/step_seconds (time/explore_seconds, where the explorer is a process of its "
        "own); for sft and dpo trained_tokens.",
    ),
    "memory/peak_mb": Metric(
        "Speed and memory", "MB", "lower", "Most memory that the process has held so far (10^6 bytes): RSS."
    ),
    "time/step_seconds": Metric("Time", "seconds", "lower", "The whole step, without evaluation and saving."),
    "time/explore_seconds": Metric(
        "Time", "seconds", "lower", "Sampling and scoring, where the explorer is a process of its own."
    ),
    "time/put_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Putting the step's groups into the buffer, a wait for room included; the same.",
    ),
    "time/wait_for_groups_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "The trainer's wait for the step's groups, where it is a process of its own.",
    ),
    "time/wait_for_weights_seconds": Metric(
        "Time", "seconds", "lower", "The explorer's wait for weights to sample the step with; the same."
    ),
    "time/load_weights_seconds": Metric(
        "Time", "seconds", "lower", "Fetching them and giving them to the sampler; the same."
    ),
    "time/sample_seconds": Metric("Time", "seconds", "lower", "Sampling the step's rollouts."),
    "time/reward_seconds": Metric("Time", "seconds", "lower", "Scoring them."),
    "time/logprobs_seconds": Metric(
        "Time", "seconds", "lower", "Passes without gradient: the reference's log-probs, and the old ones."
    ),
    "time/critic_seconds": Metric("Time", "seconds", "lower", "The critic's values and all its updates."),
    "time/update_seconds": Metric(
        "Time", "seconds", "lower", "Forward, backward and optimizer, all updates of the policy."
    ),
    "time/publish_seconds": Metric("Time", "seconds", "lower", "Bringing the new weights to the sampler."),
    "time/evaluate_seconds": Metric(
        "Time", "seconds", "lower", "Measuring the eval tasksets, in steps that do."
    ),
    "time/save_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Writing a checkpoint; stands in the next row, for a row is written first.",
    ),
}


@cache
def metric_of(name: str) -> Metric:
    """The definition of a metric as it is named in a row. Raises `KeyError` where there is none."""
    if name in METRICS:
        return METRICS[name]
    for pattern, metric in METRICS.items():
        if _regex(pattern).fullmatch(name):
            return metric
    raise KeyError(f"the metric {name!r} has no definition in strop/run/metrics.py")


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace("<name>", ".+").replace("@k", r"@\d+"))


def metrics_page() -> str:
    """`docs/metrics.md`."""
    lines = [
        "# Metrics",
        "",
        "Each row of `metrics.jsonl` is one step: a flat JSON object of numbers, `null` where one is not "
        "finite. A row holds what was measured in that step and nothing else.",
        "",
        "This page is made from `strop/run/metrics.py`: `python -m strop.run.metrics > docs/metrics.md`.",
    ]
    for panel in dict.fromkeys(metric.panel for metric in METRICS.values()):
        lines += [
            "",
            f"## {panel}",
            "",
            "| metric | unit | better | what it is |",
            "| --- | --- | --- | --- |",
        ]
        for name, metric in METRICS.items():
            if metric.panel == panel:
                # A bar would end the table's cell.
                definition = metric.definition.replace("|", r"\|")
                lines.append(f"| `{name}` | {metric.unit} | {metric.better or ''} | {definition} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(metrics_page(), end="")
