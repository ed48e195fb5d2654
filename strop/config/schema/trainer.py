"""`trainer`: training on experiences, from the training engine to the number of steps and router losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from strop.config.schema.base import Section, type_shorthand
from strop.config.schema.optimizer import (
    AdamWConfig,
    ConstantScheduleConfig,
    OptimizerConfig,
    ScheduleConfig,
    WeightDecayIncreaseConfig,
    clipping_faults,
    sharding_faults,
)
from strop.config.units import (
    MAX_SECONDS,
    Amount,
    Duration,
    MicroBatchSize,
    NonNegativeSteps,
    RunLimit,
    Steps,
)


class RankNetworkConfig(Section):
    """Network between the ranks, and the time limits of their rendezvous."""

    interface: str | None = None
    """Network interface for the traffic between ranks (gloo and NCCL) and for their rendezvous, such as `eth0`; null
    is the one that leads to the first rank."""
    join_timeout_seconds: float = Field(default=1800.0, gt=0, le=MAX_SECONDS)
    """Maximum time in which all ranks start and connect to each other."""
    node_timeout_seconds: float = Field(default=20.0, gt=0, le=MAX_SECONDS)
    """Maximum time for which another node may give no sign of life, under torchrun or on Ray; then it counts as
    lost."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables that each rank sets before it joins the others, such as `NCCL_IB_HCA: mlx5`."""


class DeepSpeedEngineConfig(Section):
    """Several processes (ranks) that divide the training state of the model between them (DeepSpeed's ZeRO, arXiv
    1910.02054)."""

    type: Literal["deepspeed"] = "deepspeed"
    ranks: int = Field(default=2, gt=0)
    """Number of processes, including the run's own; on GPUs each process has its own GPU."""
    sequence_parallel: int = Field(default=1, gt=0)
    """Number of ranks that divide the tokens of a micro-batch (Ulysses): activations of one rank shrink by that factor.
    `microbatch` counts the tokens of all of them; the model's attention heads must be a multiple."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the ranks; `auto` is one GPU per rank if there are GPUs, otherwise the CPU."""
    zero_stage: Literal[1, 2, 3] | None = None
    """State of which each rank holds a part: 1 is the optimizer's, 2 also gradients, 3 also parameters. Null is the
    stage of `config`, or 3 without `config`."""
    offload_optimizer: bool | None = None
    """Keep the optimizer's state and its update in the CPU's memory. Null is the setting of `config`, or false."""
    offload_parameters: bool | None = None
    """Keep parameters of stage 3 in the CPU's memory between their uses. Null is the setting of `config`, or false."""
    config: str | dict[str, Any] | None = None
    """DeepSpeed configuration: a JSON file, or its sections. `auto` values come from the run file, and other values
    must agree with it."""
    hang_timeout_seconds: float = Field(default=600.0, gt=0, le=MAX_SECONDS)
    """Maximum time, in seconds, for which the other ranks wait for a rank that is stopped or makes no progress; then
    the run ends with exit code 75, or restarts its trainer. It is also the timeout of collective operations (gloo and
    NCCL)."""
    network: RankNetworkConfig = RankNetworkConfig()
    """Network between the ranks."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.ranks % self.sequence_parallel:
            yield (
                f"ranks ({self.ranks}) is not a multiple of sequence_parallel ({self.sequence_parallel}); write a "
                "sequence_parallel that divides the ranks"
            )
        if self.offload_parameters and self.zero_stage not in (None, 3):
            yield (
                f"offload_parameters is true, and with zero_stage {self.zero_stage} each rank holds all parameters; "
                "write zero_stage: 3, or offload_parameters: false"
            )


class LocalEngineConfig(Section):
    """This machine: one GPU, or the cores of its CPU with one copy of the weights."""

    type: Literal["local"] = "local"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the model; `auto` is the GPU if there is one, otherwise the CPU."""
    workers: Literal["auto"] | Annotated[int, Field(gt=0)] = "auto"
    """Number of processes on the CPU that share the weights in memory, and sample and train a part each; 1 is this
    process alone. `auto` is the number of cores of the machine, of its container or of OMP_NUM_THREADS, whichever is
    least; a number of processes gives the same results every time."""
    hang_timeout_seconds: float = Field(600.0, gt=0, le=MAX_SECONDS)
    """Maximum time, in seconds, for which the others wait for a worker that is stopped or makes no progress; then the
    run ends with exit code 75."""

    @property
    def ranks(self) -> int:
        """The number of ranks with a part of the model each, which is 1."""
        return 1


class WrapPolicyConfig(Section):
    """Modules whose parameters are gathered together and freed together."""

    layers: tuple[str, ...] = ()
    """Class names of these modules; empty for the decoder layers that the model names."""
    min_parameters: int = Field(default=0, ge=0)
    """Minimum number of parameters of such a module; those of a smaller one are gathered with the module around it."""


class Fsdp2EngineConfig(Section):
    """Several processes (ranks), each with a shard of every parameter, gradient and optimizer state (FSDP2)."""

    type: Literal["fsdp2"] = "fsdp2"
    ranks: int = Field(default=2, gt=0)
    """Number of processes, including the run's own; on GPUs each process has its own GPU."""
    replicate: int = Field(default=1, gt=0)
    """Number of replicas of the model (HSDP): each replica is sharded over `ranks / replicate` ranks, and gradients
    are summed over the replicas."""
    sequence_parallel: int = Field(default=1, gt=0)
    """Number of ranks that divide the tokens of a micro-batch (Ulysses): activations of one rank shrink by that factor.
    `microbatch` counts the tokens of all of them; the model's attention heads must be a multiple."""
    tensor_parallel: int = Field(default=1, gt=0)
    """Number of ranks that divide each layer's matrices and attention heads (tensor parallelism), for models with a
    plan in transformers; FSDP2 shards the parts over the other ranks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the ranks; `auto` is one GPU per rank if there are GPUs, otherwise the CPU."""
    reshard_after_forward: bool = True
    """Free a layer's gathered parameters after its forward pass and gather them again for the backward pass; false
    keeps them in memory between the two."""
    cpu_offload: bool = False
    """Keep shards of parameters, gradients and optimizer states in the CPU's memory; the optimizer updates them
    there."""
    reference_cpu_offload: bool = False
    """Keep the shards of frozen models (the reference model, teachers) in the CPU's memory."""
    reduce_dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type in which gradients are summed over ranks in mixed precision (`model.compute_dtype`)."""
    gradient_sync: Literal["each_microbatch", "last_microbatch"] = "each_microbatch"
    """Moment at which gradients are summed over the ranks of a replica: after each micro-batch, or after the last one
    of a batch, which communicates less, and until then each rank holds the gradients of all parameters. Over
    replicas they are always summed after the last one."""
    wrap: WrapPolicyConfig = WrapPolicyConfig()
    """Modules whose parameters are gathered together."""
    forward_prefetch: int = Field(default=0, ge=0)
    """Number of layers whose parameters are gathered ahead of the one that runs, in addition to FSDP2's own
    overlap."""
    backward_prefetch: int = Field(default=1, gt=0)
    """Number of layers whose parameters are gathered ahead of the one whose backward pass runs; 1 is FSDP2's own
    overlap."""
    hang_timeout_seconds: float = Field(default=600.0, gt=0, le=MAX_SECONDS)
    """Maximum time, in seconds, for which the other ranks wait for a rank that is stopped or makes no progress; then
    the run ends with exit code 75, or restarts its trainer. It is also the timeout of collective operations (gloo and
    NCCL)."""
    network: RankNetworkConfig = RankNetworkConfig()
    """Network between the ranks."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.ranks % (self.replicate * self.sequence_parallel * self.tensor_parallel):
            yield (
                f"ranks ({self.ranks}) is not a multiple of replicate ({self.replicate}) x sequence_parallel "
                f"({self.sequence_parallel}) x tensor_parallel ({self.tensor_parallel}); write sizes whose product "
                "divides the ranks"
            )


TrainingEngineConfig = Annotated[
    LocalEngineConfig | Fsdp2EngineConfig | DeepSpeedEngineConfig, Field(discriminator="type")
]


class ElasticConfig(Section):
    """After the loss of ranks the run continues from its last checkpoint: under torchrun and on a Ray cluster with the
    ranks that are left, otherwise with new processes for all of them."""

    min_ranks: int = Field(default=1, gt=0)
    """Minimum number of ranks under torchrun or on Ray, including the first one; with fewer the run ends."""
    wait_seconds: float = Field(default=30.0, ge=0, le=MAX_SECONDS)
    """Time under torchrun or on Ray for which lost ranks may come back before the run continues without them."""
    max_restarts: int = Field(default=3, ge=0)
    """Maximum number of continuations of a run in one process; a separate trainer has
    `synchronizer.max_restarts`."""


class DefaultSelectionConfig(Section):
    """Groups in the order in which the buffer returns them."""

    type: Literal["default"] = "default"


class WarmupSelectionConfig(Section):
    """Supervised warm-up: the first steps train on demonstrations with the SFT loss; sampling starts after
    them."""

    type: Literal["warmup"] = "warmup"
    steps: Steps
    """Number of first steps that train on demonstrations, with as many updates each as any other step."""
    demonstrations: str | None = None
    """Name of the set in `data.demonstrations`; the only set if omitted."""
    demonstrations_per_update: int | None = Field(default=None, gt=0)
    """Number of demonstrations per update; the number of rollouts per update if omitted."""


class StalenessSelectionConfig(Section):
    """Groups in the order in which the buffer returns them, without those above a maximum staleness, which
    are dropped."""

    type: Literal["staleness"] = "staleness"
    max_staleness: NonNegativeSteps = Amount(2, "steps")
    """Maximum number of steps between the weights that sampled a group and those that train on it."""


BatchSelectionConfig = Annotated[
    Annotated[
        DefaultSelectionConfig | WarmupSelectionConfig | StalenessSelectionConfig, Field(discriminator="type")
    ],
    type_shorthand("default"),
]


class RouterLossConfig(Section):
    """Losses on the routers of a mixture of experts, added to the algorithm's loss."""

    balance_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the load-balancing loss (Switch Transformer, arXiv 2101.03961, equations 4 to 6); 0 for none.
    Above 0, each update has an additional forward pass, which measures the load of the experts over the update."""
    balance_over: Literal["layer", "model"] = "layer"
    """Router outputs that one load is computed of: those of each layer, with the sum over layers as the loss, as in
    Megatron; or those of all layers together, as in transformers."""
    z_coef: float = Field(default=0.0, ge=0)
    """Coefficient of the router z-loss, summed over layers (ST-MoE, arXiv 2202.08906, equation 5); 0 for none."""

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        if self.balance_coef == self.z_coef == 0:
            yield "balance_coef and z_coef are 0, so there is no loss; write one of them, or remove router_loss"


class TrainerConfig(Section):
    """Training on experiences."""

    duration: Duration = Amount(1, "epochs")
    """Length of the run: epochs over the training tasks, steps, or updates."""
    stop_after: RunLimit = None
    """Earlier end of the run, in epochs or steps; learning rate schedules still span `duration`."""
    tasks_per_step: int = Field(default=64, gt=0)
    """Tasks sampled in one step; each has `algorithm.rollouts_per_task` rollouts."""
    tasks_per_update: int | None = Field(default=None, gt=0)
    """Tasks whose rollouts make one optimizer update; all tasks of the step if omitted."""
    epochs_per_step: int = Field(default=1, gt=0)
    """Epochs over the rollouts of one step (PPO's epochs)."""
    shuffle_each_epoch: bool = False
    """Shuffle the order of the step's tasks for each of these epochs."""
    shuffle_seed: int | None = Field(default=None, ge=0)
    """Seed of these orders; the run's `seed` if omitted."""
    batch_selection: BatchSelectionConfig = DefaultSelectionConfig()
    """Choice of the experiences that a step learns from."""
    microbatch: MicroBatchSize = Amount(16384, "tokens")
    """Size of a micro-batch, in `tokens` or `sequences`; it changes memory, never the gradient. If omitted
    it is half, a quarter, and so on, down to 1024 tokens, where the default would not fit into the machine's memory,
    and on a CPU where activations would take more memory than weights, gradients and optimizer state."""
    skip_zero_advantages: bool = True
    """Leave rollouts whose advantages are all 0 out of the updates' forward and backward passes, where the loss has no
    term but the policy loss; with a KL penalty or an entropy bonus, out of the forward pass for log-probs of the old
    policy, which these do not read. They still count in its denominators, so that the gradient is the same; metrics of
    log-probs are means over the other rollouts."""
    optimizer: Annotated[OptimizerConfig, type_shorthand("adamw")] = AdamWConfig()
    """Optimizer of the policy."""
    weight_decay_increase: WeightDecayIncreaseConfig | None = None
    """Schedule by which the optimizer's weight decay increases; null keeps it constant."""
    schedule: Annotated[ScheduleConfig, type_shorthand("constant")] = ConstantScheduleConfig()
    """Learning rate schedule."""
    max_grad_norm: float | None = Field(default=1.0, gt=0)
    """Maximum norm of the gradient; larger gradients are scaled down to it. Null for no limit."""
    router_loss: RouterLossConfig | None = None
    """Losses on the routers of a mixture of experts; null for none."""
    engine: Annotated[TrainingEngineConfig, type_shorthand("local")] = LocalEngineConfig()
    """Training engine, which runs the model's forward and backward passes and the optimizer."""
    elastic: ElasticConfig | None = None
    """Continuation with fewer ranks after the loss of a node; null ends the run, which the same command resumes."""

    @property
    def warmup_steps(self) -> int:
        """Number of the run's first steps that train on demonstrations; sampling starts after them."""
        return (
            int(self.batch_selection.steps.count)
            if isinstance(self.batch_selection, WarmupSelectionConfig)
            else 0
        )

    def faults(self) -> Iterator[str]:
        """Faults between the fields."""
        per_step, per_update = self.tasks_per_step, self.tasks_per_update
        if per_update is not None and per_step % per_update:
            low = per_step // per_update * per_update
            nearest = [n for n in (low, low + per_update) if n]
            yield (
                f"tasks_per_step ({per_step}) is not a multiple of tasks_per_update ({per_update}); "
                f"the nearest multiples are {' and '.join(map(str, nearest))}"
            )
        yield from clipping_faults(self.optimizer, self.max_grad_norm)
        if not isinstance(self.engine, LocalEngineConfig):
            yield from sharding_faults(self.engine.type, self.optimizer)
        yield from self._elastic_faults()
        increase = self.weight_decay_increase
        if increase is not None and increase.start > self.optimizer.weight_decay:
            yield (
                f"weight_decay_increase.start ({increase.start}) is above its final value, "
                f"optimizer.weight_decay ({self.optimizer.weight_decay}); write a smaller start"
            )

    def _elastic_faults(self) -> Iterator[str]:
        if self.elastic is None:
            return
        if isinstance(self.engine, LocalEngineConfig):
            yield "elastic is set, and engine is local, which has one rank; write engine: {type: fsdp2, ranks: ...}"
        elif self.elastic.min_ranks > self.engine.ranks:
            yield (
                f"elastic.min_ranks ({self.elastic.min_ranks}) is more than engine.ranks ({self.engine.ranks}); "
                "write a smaller number"
            )
