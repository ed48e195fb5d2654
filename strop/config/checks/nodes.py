"""Check of the keys for the loss of a node, which have an effect only where ranks are on several nodes."""

from __future__ import annotations

from collections.abc import Iterator

from strop.config.schema.cluster import RayClusterConfig
from strop.config.schema.elastic import ElasticConfig
from strop.config.schema.rank_network import RankNetworkConfig
from strop.config.schema.run import Run
from strop.config.schema.training_engine import LocalEngineConfig


def one_node_fault(run: Run, *, is_launched: bool) -> str | None:
    """Fault of keys for the loss of a node where all ranks are processes of this machine; None if none is set.

    A key at its default counts as not set, even if it is written: the file in a run folder has every key, and starts
    the run again. `is_launched` says that a launcher such as torchrun has started the ranks.
    """
    if is_launched or isinstance(run.cluster, RayClusterConfig) or run.mode not in ("both", "train"):
        return None
    found = list(_other_than_default(run))
    if not found:
        return None
    return (
        f"{' and '.join(found)}: all ranks are processes of this machine, so no node can be lost without the run. "
        "Start the ranks by torchrun or with cluster: ray, or omit the key; `trainer.elastic: {}` starts new "
        "processes for lost ranks here, too"
    )


def _other_than_default(run: Run) -> Iterator[str]:
    engine, elastic = run.trainer.engine, run.trainer.elastic
    if elastic is not None:
        for name in ("min_ranks", "wait_seconds"):
            if getattr(elastic, name) != ElasticConfig.model_fields[name].default:
                yield f"trainer.elastic.{name}"
    if not isinstance(engine, LocalEngineConfig):
        default = RankNetworkConfig.model_fields["node_timeout_seconds"].default
        if engine.network.node_timeout_seconds != default:
            yield "trainer.engine.network.node_timeout_seconds"
