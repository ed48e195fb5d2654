"""How a cluster's GPUs are divided between the parts of a run."""

from __future__ import annotations

from collections.abc import Mapping

from strop.config.schema import Run
from strop.config.schema.cluster import RayCluster
from strop.errors import PlacementError
from strop.run.apart.part import Name


def gpus_of(run: Run, section: RayCluster) -> Mapping[Name, float]:
    """How many each part gets for itself: the trainer one, and each of its further ranks one, too; the
    explorer one, or one for each engine of its pool and none for itself. A single one is shared.

    Raises PlacementError where they are too few.
    """
    there = section.nodes * section.gpus_per_node
    pool, ranks = run.rollout.pool, run.trainer.engine.ranks
    if there == 0 or run.trainer.engine.device == "cpu":
        return {"buffer": 0, "explorer": 0, "trainer": 0}
    if there == 1 and ranks == 1:
        return {"buffer": 0, "explorer": 0 if pool else 0.5, "trainer": 0.5}
    engines = pool.engines if pool else 1
    if there < ranks + engines:
        more = f"its engines {engines} more (rollout.pool.engines)" if pool else "the explorer one more"
        raise PlacementError(
            f"cluster: {section.nodes} nodes of {section.gpus_per_node} GPUs have {there} in all; the "
            f"trainer wants {ranks} (trainer.engine.ranks), and {more}. Write fewer of them, or more nodes."
        )
    return {"buffer": 0, "explorer": 0 if pool else 1, "trainer": 1}


def gpus_of_engine(run: Run, section: RayCluster) -> float:
    """How many each engine of the explorer's pool gets."""
    there, pool = section.nodes * section.gpus_per_node, run.rollout.pool
    if pool is None or there == 0 or run.trainer.engine.device == "cpu":
        return 0
    return 0.5 / pool.engines if there == 1 and run.trainer.engine.ranks == 1 else 1
