"""Definition of every metric, and the page of the reference that lists them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

MetricCategory = Literal[
    "Progress",
    "Reward",
    "Evaluation",
    "Rollouts",
    "Curriculum",
    "Lengths",
    "Loss",
    "Critic",
    "Process reward model",
    "Divergence and entropy",
    "Ratio and clipping",
    "Optimizer",
    "Sampler-trainer mismatch",
    "Speed and memory",
    "Time",
]


@dataclass(frozen=True, slots=True)
class Metric:
    """Definition of one number in `metrics.jsonl`."""

    panel: MetricCategory
    """Section of the documentation and of the report."""
    unit: str
    """Unit; empty for a dimensionless number."""
    better: Literal["higher", "lower"] | None
    """Direction of improvement; None if neither direction is better."""
    definition: str


METRICS: dict[str, Metric] = {
    # Angle brackets contain a name from the run file; `k` is a number.
    "step": Metric("Progress", "steps", None, "Steps done; row 0 is before the first step."),
    "epoch": Metric("Progress", "epochs", None, "Steps done, divided by the steps of one epoch."),
    "updates": Metric("Progress", "updates", None, "Optimizer updates of this step."),
    "version": Metric(
        "Progress",
        "steps",
        None,
        "Version of the weights that the sampler has after this step.",
    ),
    "reward/mean": Metric("Reward", "", "higher", "Mean reward of the step's scored rollouts."),
    "reward/std": Metric(
        "Reward", "", None, "Standard deviation (divided by n) of the rewards of the step's scored rollouts."
    ),
    "reward/min": Metric("Reward", "", "higher", "Lowest reward of a scored rollout in this step."),
    "reward/max": Metric("Reward", "", "higher", "Highest reward of a scored rollout in this step."),
    "reward/part/<name>": Metric(
        "Reward", "", "higher", "Mean of one component of the reward over the rollouts that have it."
    ),
    "reward/source/<name>/mean": Metric(
        "Reward", "", "higher", "Mean reward of the scored rollouts of one task source (`data.train.source`)."
    ),
    "reward/source/<name>/part/<name>": Metric(
        "Reward",
        "",
        "higher",
        "Mean of one component of the reward over the rollouts of a source that have it.",
    ),
    "eval/<name>/reward": Metric(
        "Evaluation",
        "",
        "higher",
        "Mean reward over the scored rollouts of an eval taskset; its accuracy if rewards are 0 or 1.",
    ),
    "eval/<name>/pass@k": Metric(
        "Evaluation",
        "fraction",
        "higher",
        "Fraction of an eval taskset's tasks of which at least one of k rollouts has a reward of `reward.correct_at` "
        "(1 by default) or more, up to the rounding of a weighted sum.",
    ),
    "eval/<name>/part/<name>/mean": Metric(
        "Evaluation", "", "higher", "Mean of one component of the reward over the rollouts that have it."
    ),
    "eval/<name>/source/<name>/mean@k": Metric(
        "Evaluation",
        "",
        "higher",
        "Mean over one source's tasks of the mean of a task's k rollouts, of `reward` or of a component; `acc` is the "
        "component of this name. verl's `val-core/<source>/<variable>/mean@k`.",
    ),
    "eval/<name>/source/<name>/best@k/mean": Metric(
        "Evaluation",
        "",
        "higher",
        "Mean over one source's tasks of the expected highest `acc`, or reward where there is none, of k draws with "
        "replacement from a task's k rollouts, estimated by verl's bootstrap: 1,000 draws, seed 42.",
    ),
    "eval/<name>/source/<name>/maj@k/mean": Metric(
        "Evaluation",
        "",
        "higher",
        "The same of the value of the most frequent prediction (verl's `pred`) of the k draws, where the reward "
        "function names one.",
    ),
    "eval/<name>/loss": Metric(
        "Evaluation",
        "",
        "lower",
        "Loss on an eval taskset's given responses: sft_loss, preference_loss or their sum; under reward_model with "
        "the weighted centering_loss, or the squared error of scores.",
    ),
    "eval/<name>/pairs/margin": Metric(
        "Evaluation", "nats", "higher", "Mean margin (see pairs/margin) on an eval taskset's pairs."
    ),
    "eval/<name>/pairs/accuracy": Metric(
        "Evaluation",
        "fraction",
        "higher",
        "Fraction of an eval taskset's pairs whose chosen response has the higher reward: the implied one, or that of "
        "a reward model.",
    ),
    "eval/<name>/pairs/margin_std": Metric(
        "Evaluation",
        "",
        None,
        "Standard deviation of a reward model's margins (see pairs/margin) over an eval taskset's pairs.",
    ),
    "eval/<name>/pairs/calibration_error": Metric(
        "Evaluation",
        "",
        "lower",
        "Expected calibration error of sigmoid(margin), a reward model's probability that the chosen response is "
        "preferred, on an eval taskset's pairs; in ten bins of the probability of the preferred response.",
    ),
    "eval/<name>/reward_model/step_accuracy": Metric(
        "Evaluation",
        "",
        "higher",
        "Fraction of an eval taskset's labeled steps on whose side of 0 a process reward model's score is.",
    ),
    "eval/<name>/reward_model/calibration_error": Metric(
        "Evaluation",
        "",
        "lower",
        "Expected calibration error of sigmoid(score), a process reward model's probability that a step is correct, on "
        "an eval taskset's steps; in ten bins of the probability of the predicted label.",
    ),
    "eval/<name>/reward_model/score_error": Metric(
        "Evaluation",
        "",
        "lower",
        "Mean absolute difference of a reward model's scores from an eval taskset's.",
    ),
    "eval/<name>/reward_model/score_correlation": Metric(
        "Evaluation",
        "",
        "higher",
        "Pearson's correlation of a reward model's scores with an eval taskset's; absent where all are equal.",
    ),
    "eval/<name>/labels/margin": Metric(
        "Evaluation",
        "nats",
        "higher",
        "Margin (see labels/margin) on an eval taskset's labeled responses.",
    ),
    "eval/<name>/labels/accuracy": Metric(
        "Evaluation",
        "fraction",
        "higher",
        "Fraction of an eval taskset's labeled responses on the side of the reference point that their label says; the "
        "KL divergence is estimated over the taskset (kto), the running mean is that of training (bco).",
    ),
    "eval/<name>/response_tokens": Metric(
        "Evaluation", "tokens", None, "Mean length of an eval taskset's scored responses."
    ),
    "eval/<name>/truncated_fraction": Metric(
        "Evaluation",
        "fraction",
        "lower",
        "Fraction of an eval taskset's scored responses that the token limit truncated.",
    ),
    "eval/<name>/error_fraction": Metric(
        "Evaluation",
        "fraction",
        "lower",
        "Fraction of an eval taskset's rollouts that failed; they have no reward.",
    ),
    "eval/<name>/unscored_fraction": Metric(
        "Evaluation",
        "fraction",
        "lower",
        "Fraction of an eval taskset's rollouts that all reward functions leave out; they have no reward.",
    ),
    "eval/<name>/timeout_fraction": Metric(
        "Evaluation",
        "fraction",
        "lower",
        "Fraction of an eval taskset's rollouts that exceeded their time limit.",
    ),
    "eval/<name>/reward_limit_fraction": Metric(
        "Evaluation",
        "fraction",
        "lower",
        "Fraction of an eval taskset's rollouts on which a reward function exceeded a limit and counts as 0.",
    ),
    "rollouts/count": Metric("Rollouts", "rollouts", None, "Rollouts of this step, including failed ones."),
    "rollouts/error_fraction": Metric(
        "Rollouts",
        "fraction",
        "lower",
        "Fraction of the step's rollouts that failed; they have no reward and are not trained on.",
    ),
    "rollouts/unscored_fraction": Metric(
        "Rollouts",
        "fraction",
        "lower",
        "Fraction of the step's rollouts that all reward functions leave out (None in TRL's form); they have no "
        "reward and are not trained on.",
    ),
    "rollouts/workflow_error_fraction": Metric(
        "Rollouts",
        "fraction",
        "lower",
        "Fraction of the step's rollouts that failed with an error of their workflow.",
    ),
    "rollouts/timeout_fraction": Metric(
        "Rollouts",
        "fraction",
        "lower",
        "Fraction of the step's rollouts that exceeded their time limit.",
    ),
    "rollouts/reward_limit_fraction": Metric(
        "Rollouts",
        "fraction",
        "lower",
        "Fraction of the step's rollouts on which a reward function exceeded a limit (time, recursion, size of "
        "a number or of an expression) and counts as 0.",
    ),
    "rollouts/retries": Metric(
        "Rollouts", "", "lower", "Attempts at this step's rollouts after the first attempt of each."
    ),
    "rollouts/turns": Metric(
        "Rollouts", "", None, "Mean number of model calls per scored rollout of this step."
    ),
    "rollouts/truncated_fraction": Metric(
        "Rollouts", "fraction", "lower", "Fraction of the scored rollouts that the token limit truncated."
    ),
    "groups/zero_variance_fraction": Metric(
        "Rollouts",
        "fraction",
        "lower",
        "Fraction of the groups whose rewards are all equal, so that they give no training signal.",
    ),
    "groups/filtered": Metric(
        "Rollouts",
        "groups",
        "lower",
        "Groups that dynamic sampling dropped because all their rewards are equal, or that `buffer.pipeline` removed.",
    ),
    "pipeline/<name>/removed_fraction": Metric(
        "Rollouts",
        "fraction",
        None,
        "Fraction of the scored rollouts that an operator of `buffer.pipeline` saw since the step before, and removed. "
        "An operator's name is its number, from 0, and its type.",
    ),
    "pipeline/<name>/changed_fraction": Metric(
        "Rollouts",
        "fraction",
        None,
        "Fraction of the rollouts that an operator left whose reward it changed.",
    ),
    "pipeline/<name>/reward_change": Metric(
        "Rollouts",
        "",
        None,
        "Mean change of the rewards of the rollouts that an operator left; `reward/mean` is before all operators.",
    ),
    **{
        f"pipeline/<name>/{outcome}": Metric(
            "Rollouts", "groups", None, f"Groups whose question to people {what}."
        )
        for outcome, what in (
            ("answered", "was answered"),
            ("skipped", "was skipped"),
            ("timeout", "nobody answered in time"),
        )
    },
    **{
        f"task_pipeline/<name>/rows_{direction}": Metric(
            "Rollouts",
            "rows",
            None,
            f"Rows of `data.queue` or `data.stream` that {what} an operator of `data.pipeline` since the step before.",
        )
        for direction, what in (("in", "reached"), ("out", "left"))
    },
    "groups/trained": Metric(
        "Rollouts",
        "groups",
        None,
        "Groups that this step trained on, if the trainer takes them by arrival or under buffer.on_timeout: train.",
    ),
    "groups/missing": Metric(
        "Rollouts",
        "groups",
        "lower",
        "Number of groups by which the step falls short of trainer.tasks_per_step, because "
        "they did not arrive within buffer.read_timeout_seconds or at all.",
    ),
    "groups/reused": Metric(
        "Rollouts",
        "groups",
        None,
        "Groups of this step that were trained on before, since the trainer was started, from "
        "a buffer that reuses groups.",
    ),
    "groups/stale_dropped": Metric(
        "Rollouts",
        "groups",
        "lower",
        "Groups that trainer.batch_selection dropped while it filled this step.",
    ),
    "groups/late_dropped": Metric(
        "Rollouts",
        "groups",
        "lower",
        "Groups of earlier, incomplete steps that were dropped before this one, under buffer.on_timeout: train.",
    ),
    "groups/evicted": Metric(
        "Rollouts",
        "groups",
        "lower",
        "Groups that the buffer has dropped for lack of capacity since the step before.",
    ),
    "groups/queued": Metric(
        "Rollouts",
        "groups",
        None,
        "Groups in the buffer that are not taken yet, after this step's groups were taken.",
    ),
    "skipped_sequences": Metric(
        "Rollouts",
        "sequences",
        None,
        "Sequences of an update that are not computed, since all their advantages are 0 and the loss has no term but "
        "the policy loss (`trainer.skip_zero_advantages`); mean over updates.",
    ),
    "curriculum/explored_fraction": Metric(
        "Curriculum",
        "",
        None,
        "Fraction of the step's tasks that exploration drew, whatever their success rate.",
    ),
    "curriculum/seen_fraction": Metric(
        "Curriculum", "", None, "Fraction of the training tasks that had a success rate before the step."
    ),
    "curriculum/in_target_fraction": Metric(
        "Curriculum", "", None, "Fraction of the tasks with a success rate whose rate is in the target band."
    ),
    "curriculum/success_rate": Metric(
        "Curriculum", "", "higher", "Mean success rate of the tasks that have one, before the step."
    ),
    "curriculum/drawn_rate": Metric(
        "Curriculum",
        "",
        None,
        "Mean success rate, before the step, of the tasks that were drawn by priority.",
    ),
    "difficulty/rate": Metric(
        "Curriculum", "", "higher", "Mean estimated pass rate of all training tasks, before the step."
    ),
    "difficulty/drawn_rate": Metric(
        "Curriculum", "", None, "Mean estimated pass rate of the step's tasks, before the step."
    ),
    "difficulty/observed_rate": Metric(
        "Curriculum", "", None, "Mean pass rate of the step's tasks, from their rollouts."
    ),
    "difficulty/capability": Metric(
        "Curriculum",
        "",
        "higher",
        "Place of the model between the weaker (0) and the stronger (1) reference model of `data.order`, averaged over "
        "steps with decay 0.9.",
    ),
    "difficulty/interpolation_error": Metric(
        "Curriculum",
        "",
        "lower",
        "Mean absolute difference between the interpolated and the observed pass rates of the step's tasks.",
    ),
    "difficulty/interpolation_weight": Metric(
        "Curriculum", "", None, "Weight of interpolated pass rates in the estimates, after the step."
    ),
    "prompt_tokens/mean": Metric("Lengths", "tokens", None, "Mean length of the step's prompts."),
    "response_tokens/mean": Metric("Lengths", "tokens", None, "Mean length of the step's scored responses."),
    "response_tokens/max": Metric("Lengths", "tokens", None, "Length of the step's longest scored response."),
    "trained_tokens": Metric(
        "Lengths", "tokens", None, "Tokens of this step's given responses, prompts included."
    ),
    "sampled_tokens": Metric("Lengths", "tokens", None, "Tokens of all scored responses of this step."),
    "loss": Metric(
        "Loss",
        "",
        None,
        "Quantity that the update minimizes: policy_loss + kl_loss + distillation_loss - entropy_bonus; sft_loss; "
        "preference_loss; of a reward model that with the weighted centering_loss, or the squared error of scores; "
        "under mix (1 - mu) times the first plus mu times the second, and with a "
        "demonstration_fraction f (1 - f) times the first plus f times demonstration_loss; plus those of routers. "
        "Mean over updates.",
    ),
    "policy_loss": Metric(
        "Loss",
        "",
        None,
        "The configured policy loss, aggregated; by default PPO's clipped surrogate (arXiv 1707.06347).",
    ),
    "custom/<name>": Metric(
        "Loss",
        "",
        None,
        "Metric of a user's own loss function (`algorithm.loss`), summed over the micro-batches of an update.",
    ),
    "sft_loss": Metric(
        "Loss",
        "nats per token",
        "lower",
        "Cross entropy of the demonstrations' response tokens, mean over tokens; under mix "
        "that of the expert's tokens, before mu.",
    ),
    "demonstration_loss": Metric(
        "Loss",
        "nats per token",
        "lower",
        "Divergence from the teacher at the tokens of a dataset's responses (`algorithm.demonstration_fraction`), mean "
        "over tokens, times its coefficient.",
    ),
    "preference_loss": Metric(
        "Loss",
        "",
        "lower",
        "Mean over pairs of the loss that compares their responses, under dpo -log sigmoid(margin), under reward_model "
        "-log sigmoid(margin - the row's margin); or over labeled responses (kto, bco).",
    ),
    "centering_loss": Metric(
        "Loss", "", None, "Squared sum of the two rewards of a pair, mean over pairs, before centering_coef."
    ),
    "reward_model/score": Metric(
        "Loss", "", None, "Score of the responses, mean over rows, or over labeled steps."
    ),
    "reward_model/step_accuracy": Metric(
        "Loss", "", "higher", "Fraction of labeled steps on whose side of 0 their score is, mean over steps."
    ),
    "reward_model/score_error": Metric(
        "Loss",
        "",
        "lower",
        "Absolute difference of the responses' scores from those of the rows, mean over rows.",
    ),
    "pairs/margin": Metric(
        "Loss", "nats", "higher", "Chosen minus rejected reward (see pairs/chosen_reward), mean over pairs."
    ),
    "pairs/accuracy": Metric(
        "Loss",
        "fraction",
        "higher",
        "Fraction of the pairs whose chosen response has the higher reward (see pairs/chosen_reward).",
    ),
    "pairs/chosen_reward": Metric(
        "Loss",
        "nats",
        None,
        "Implied reward of the chosen responses, mean over pairs: beta log(policy / reference), or beta times the "
        "log-prob that is compared where there is no reference (cpo, orpo); or that of the trained reward model.",
    ),
    "pairs/rejected_reward": Metric(
        "Loss",
        "nats",
        None,
        "Implied reward of the rejected responses (see pairs/chosen_reward), mean over pairs.",
    ),
    "labels/reference_point": Metric(
        "Loss",
        "nats",
        None,
        "Log-ratio to the reference that labeled responses are compared with: the estimate of the KL divergence over "
        "mismatched pairs of the update (kto), or the running mean over the responses of all updates (bco).",
    ),
    "labels/accuracy": Metric(
        "Loss",
        "fraction",
        "higher",
        "Fraction of the labeled responses on the side of the reference point that their label says: desirable above, "
        "undesirable below.",
    ),
    "labels/margin": Metric(
        "Loss", "nats", "higher", "Difference between the mean implied rewards of the two labels."
    ),
    "labels/desirable_reward": Metric(
        "Loss",
        "nats",
        None,
        "Mean implied reward of the responses that are labeled desirable: beta log(policy / reference). Updates "
        "without such a response do not have it.",
    ),
    "labels/undesirable_reward": Metric(
        "Loss",
        "nats",
        None,
        "Mean implied reward of the responses that are labeled undesirable (see labels/desirable_reward).",
    ),
    "kl_loss": Metric(
        "Loss", "", None, "kl_loss.coef times the configured estimate of KL(policy || reference), aggregated."
    ),
    "entropy_filter/token_fraction": Metric(
        "Loss", "fraction", None, "Fraction of the step's targets that `entropy_filter` leaves out."
    ),
    "router/balance_loss": Metric(
        "Loss",
        "",
        "lower",
        "Load-balancing loss of a mixture of experts times router_loss.balance_coef.",
    ),
    "router/z_loss": Metric(
        "Loss", "", "lower", "Router z-loss of a mixture of experts times router_loss.z_coef."
    ),
    "distillation_loss": Metric(
        "Loss",
        "",
        None,
        "Bounded divergence from the teacher times distillation.loss.coef, aggregated.",
    ),
    "entropy_bonus": Metric(
        "Loss", "", None, "entropy_coef times the entropy of the response tokens, aggregated."
    ),
    "advantages/mean": Metric("Loss", "", None, "Mean advantage over the step's targets."),
    "advantages/std": Metric(
        "Loss", "", None, "Standard deviation (divided by n) of the advantages of the step's targets."
    ),
    "critic/loss": Metric(
        "Critic",
        "",
        "lower",
        "Half the squared error of the critic's values, with PPO's value clipping if "
        "configured; mean over targets.",
    ),
    "critic/explained_variance": Metric(
        "Critic",
        "",
        "higher",
        "Explained variance of the returns: 1 - Var(returns - values) / Var(returns) over the "
        "step's targets, with the values before the step's updates: 1 is a perfect critic, 0 "
        "a constant one. Absent if the returns do not vary.",
    ),
    "critic/values": Metric(
        "Critic", "", None, "Mean over targets of the critic's values, before the step's updates."
    ),
    "critic/returns": Metric(
        "Critic",
        "",
        None,
        "Mean over targets of the critic's regression targets: advantages (not whitened) + values.",
    ),
    "critic/clip_fraction": Metric(
        "Critic",
        "fraction",
        None,
        "Fraction of targets at which value_clip is active; they have no gradient.",
    ),
    "critic/lr": Metric("Critic", "", None, "Critic's learning rate, mean over its updates of the step."),
    "critic/grad_norm": Metric(
        "Critic", "", None, "Norm of the critic's gradient before clipping, mean over its updates."
    ),
    "process_reward/loss": Metric(
        "Process reward model",
        "nats",
        "lower",
        "Cross entropy of the outcomes, mean over the sequences of its updates.",
    ),
    "process_reward/accuracy": Metric(
        "Process reward model",
        "fraction",
        "higher",
        "Fraction of sequences whose predicted outcome is right, mean over its updates.",
    ),
    "process_reward/reward": Metric(
        "Process reward model",
        "",
        None,
        "Sum of the rewards of a rollout's tokens, mean over rollouts.",
    ),
    "process_reward/lr": Metric(
        "Process reward model", "", None, "Learning rate, mean over its updates of the step."
    ),
    "process_reward/grad_norm": Metric(
        "Process reward model", "", None, "Norm of the gradient before clipping, mean over its updates."
    ),
    "kl/ref": Metric(
        "Divergence and entropy",
        "nats per token",
        None,
        "KL(policy || reference), mean over targets: the distance that training has moved the "
        "model. By Schulman's k3, or over the whole vocabulary if `kl_loss.estimator` is "
        "`full`.",
    ),
    "approx_kl": Metric(
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
        "Divergence and entropy", "", None, "Coefficient of this divergence in the reward penalty."
    ),
    "distillation_loss/divergence": Metric(
        "Divergence and entropy",
        "nats per token",
        "lower",
        "Divergence from the teacher by distillation.loss.divergence, before its bound; mean over targets.",
    ),
    "distillation_reward/divergence": Metric(
        "Divergence and entropy",
        "nats per token",
        "lower",
        "Divergence from the teacher at the step's start by distillation.reward.divergence, before its bound; "
        "mean over targets.",
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
        "fraction",
        None,
        "Fraction of targets at which a bound of the policy loss is active. Only CISPO keeps "
        "a gradient there.",
    ),
    "clip_fraction/low": Metric(
        "Ratio and clipping",
        "fraction",
        None,
        "Fraction of targets at which the ratio is below 1 - clip_low (and the advantage "
        "negative, except for CISPO).",
    ),
    "clip_fraction/high": Metric(
        "Ratio and clipping",
        "fraction",
        None,
        "Fraction of targets at which the ratio is above 1 + clip_high (and the advantage "
        "positive, except for CISPO).",
    ),
    "clip_fraction/dual": Metric(
        "Ratio and clipping",
        "fraction",
        None,
        "Fraction of targets with a negative advantage and a ratio above dual_clip.",
    ),
    "lr": Metric("Optimizer", "", None, "Learning rate, mean over the step's updates."),
    "grad_norm": Metric("Optimizer", "", None, "Norm of the gradient before clipping, mean over updates."),
    "logprob_diff/mean_abs": Metric(
        "Sampler-trainer mismatch",
        "nats per token",
        "lower",
        "Mean over targets of |sampler's log-prob - trainer's log-prob at the step's start|, "
        "both at the sampling temperature. Rounding alone gives about 1e-6 in float32 and "
        "1e-2 in bfloat16; larger values are an error.",
    ),
    "logprob_diff/mean_square": Metric(
        "Sampler-trainer mismatch",
        "nats squared per token",
        "lower",
        "Mean over targets of the square of this difference; it grows if a few tokens differ much.",
    ),
    "engine/tokens_per_second": Metric(
        "Speed and memory",
        "tokens per second",
        "higher",
        "Tokens that an inference engine sampled per second with running requests; the mean over several engines.",
    ),
    "engine/max_running": Metric(
        "Speed and memory",
        "requests",
        None,
        "Largest number of requests that the inference engine ran at once.",
    ),
    "engine/max_waiting": Metric(
        "Speed and memory",
        "requests",
        "lower",
        "Largest number of requests that waited in the inference engine for memory or for a place in the batch.",
    ),
    "engine/max_kv_usage": Metric(
        "Speed and memory", "fraction", None, "Largest fraction of the inference engine's KV cache in use."
    ),
    "engine/cached_prompt_fraction": Metric(
        "Speed and memory",
        "fraction",
        "higher",
        "Fraction of prompt tokens that the inference engine found in its KV cache and did not compute again.",
    ),
    "engine/preemptions": Metric(
        "Speed and memory",
        "requests",
        "lower",
        "Requests whose KV cache the inference engine gave to others and computed again later.",
    ),
    "engine/logprob_gap": Metric(
        "Sampler-trainer mismatch",
        "nats per token",
        "lower",
        "Mean over the tokens of a fixed probe of |engine's log-prob - trainer's log-prob|, after the load of the "
        "step's weights; for engines that convert the weights to a layout of their own.",
    ),
    "importance/mean": Metric(
        "Sampler-trainer mismatch",
        "",
        None,
        "Mean over targets of the weight min(trainer's probability / sampler's probability, "
        "cap), before it is normalized: 1 if both are equal.",
    ),
    "importance/capped_fraction": Metric(
        "Sampler-trainer mismatch",
        "fraction",
        "lower",
        "Fraction of targets whose weight is outside the bounds, and was truncated or set to 0.",
    ),
    "rejection/token_fraction": Metric(
        "Sampler-trainer mismatch",
        "fraction",
        "lower",
        "Fraction of targets that algorithm.rejection excludes from the loss, alone or with their response.",
    ),
    "staleness/mean": Metric(
        "Sampler-trainer mismatch",
        "steps",
        "lower",
        "Steps between the oldest weights that sampled an experience and the weights at the "
        "start of its training step; mean over the step's experiences. 0 in synchronous runs.",
    ),
    "staleness/max": Metric(
        "Sampler-trainer mismatch", "steps", "lower", "Maximum staleness over the step's experiences."
    ),
    "staleness/token_mean": Metric(
        "Sampler-trainer mismatch",
        "steps",
        "lower",
        "Steps between the weights that sampled a target and the weights at the start of its training step; mean over "
        "the step's targets.",
    ),
    "staleness/mixed_fraction": Metric(
        "Sampler-trainer mismatch",
        "fraction",
        None,
        "Fraction of the step's experiences that weights of several versions sampled, because a load came between "
        "two turns or two tokens. 0 under the style fixed.",
    ),
    "sampled_version": Metric(
        "Progress",
        "steps",
        None,
        "Version of the weights that sampled the step's first group, if the explorer is a separate process.",
    ),
    "tokens_per_second": Metric(
        "Speed and memory",
        "tokens per second",
        "higher",
        "sampled_tokens divided by time/step_seconds (by time/explore_seconds if the explorer "
        "is a separate process); for sft and dpo trained_tokens.",
    ),
    "memory/peak_mb": Metric(
        "Speed and memory",
        "MB",
        "lower",
        "Peak resident memory (RSS) of the process so far, in units of 10^6 bytes.",
    ),
    "time/step_seconds": Metric(
        "Time", "seconds", "lower", "Duration of the step, without evaluation and saving."
    ),
    "time/explore_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Sampling and scoring, if the explorer is a separate process; under styles other than fixed, where "
        "steps overlap, the time between the completion of the previous step and of this one.",
    ),
    "time/buffer_write_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Writing the step's groups into the buffer, including the wait for free capacity, if "
        "the explorer is a separate process.",
    ),
    "time/wait_for_groups_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Trainer's wait for the step's groups, if it is a separate process.",
    ),
    "time/wait_for_weights_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Explorer's wait for the weights of the step, if it is a separate process.",
    ),
    "time/load_weights_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Fetching these weights and loading them into the sampler, if the explorer is a separate process.",
    ),
    "time/sample_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "From the start of the step's first rollout to the end of its last one; scoring of completed rollouts "
        "overlaps it.",
    ),
    "time/reward_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Waiting for scores after the step's last rollout; scoring before that is not included.",
    ),
    "time/logprobs_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Passes without gradient: log-probs of the reference and of the old policy.",
    ),
    "time/critic_seconds": Metric("Time", "seconds", "lower", "Values and all updates of the critic."),
    "time/process_reward_seconds": Metric(
        "Time", "seconds", "lower", "Rewards of tokens and all updates of the process reward model."
    ),
    "time/update_seconds": Metric(
        "Time", "seconds", "lower", "Forward, backward and optimizer of all policy updates."
    ),
    "time/publish_seconds": Metric(
        "Time", "seconds", "lower", "Transport of the new weights to the sampler."
    ),
    "time/evaluate_seconds": Metric(
        "Time", "seconds", "lower", "Evaluation of the eval tasksets, in steps that evaluate."
    ),
    "time/save_seconds": Metric(
        "Time",
        "seconds",
        "lower",
        "Writing a checkpoint; reported in the next row, because a row is written before its checkpoint.",
    ),
}


@cache
def metric_of(name: str) -> Metric:
    """The definition of a metric as it is named in a row. Raises `KeyError` if there is no definition."""
    if name in METRICS:
        return METRICS[name]
    for pattern, metric in METRICS.items():
        if _regex(pattern).fullmatch(name):
            return metric
    raise KeyError(f"the metric {name!r} has no definition in strop/runs/metrics.py")


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace("<name>", ".+").replace("@k", r"@\d+"))


def metrics_page() -> str:
    """Return the text of the page `strop help metrics`."""
    lines = [
        "# Metrics",
        "",
        "Each row of `metrics.jsonl` is one step: a flat JSON object of numbers, `null` where one is not "
        "finite. A row holds only the metrics that the step measured.",
        "",
        "Targets are the tokens that have a loss. Means over targets of log-probs, ratios, importance weights and "
        "entropies, and fractions of targets that a bound or a rejection applies to, are over the targets that an "
        "update computes, so without those of `skipped_sequences`; losses are divided by the counts of all. Ratios, "
        "their bounds, `approx_kl`, `logprob_diff` and `importance` are means over sequences with an advantage other "
        "than 0 in the second and later updates of a step, where log-probs of the old policy are not computed for "
        "others (`trainer.skip_zero_advantages`).",
    ]
    for panel in dict.fromkeys(metric.panel for metric in METRICS.values()):
        lines += [
            "",
            f"## {panel}",
            "",
            "| metric | unit | better | definition |",
            "| --- | --- | --- | --- |",
        ]
        for name, metric in METRICS.items():
            if metric.panel == panel:
                # A bar would end the cell of the table.
                definition = metric.definition.replace("|", r"\|")
                lines.append(f"| `{name}` | {metric.unit} | {metric.better or ''} | {definition} |")
    return "\n".join(lines) + "\n"
