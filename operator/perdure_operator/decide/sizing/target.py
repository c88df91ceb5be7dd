"""The size that a job's run ought to have: decided here and nowhere else, with the reason.

Pure arithmetic on the spec: what capacity there is, is not asked here. Called by `facts`, and by
`summary` for its words.
"""

from __future__ import annotations

from perdure_operator.api.spec import Elastic, TrainingJobSpec


def wanted_members(spec: TrainingJobSpec) -> int:
    """replicas; with `elastic` brought between its bounds, then down to a size."""
    elastic = spec.elastic
    if elastic is None:
        return spec.replicas
    return largest(spec, _bounded(spec.replicas, elastic)) or max(elastic.min_replicas, 1)


def why_so_many(spec: TrainingJobSpec) -> str:
    """The same in words."""
    said, elastic, members = f"spec.replicas is {spec.replicas}", spec.elastic, wanted_members(spec)
    if elastic is None or members == spec.replicas:
        return said
    if spec.replicas < elastic.min_replicas:
        return f"{said}, and elastic.minReplicas is {elastic.min_replicas}"
    if spec.replicas > elastic.max_replicas:
        said = f"{said}, elastic.maxReplicas is {elastic.max_replicas}"
        if members == elastic.max_replicas:
            return said
    return f"{said}, and {members} is the largest {_of_what(spec, elastic)} that is not above it"


def largest(spec: TrainingJobSpec, at_most: int) -> int:
    """The largest of the job's sizes that is no larger than that, 0 where there is none."""
    elastic = spec.elastic
    if elastic is None:
        return 0
    low, high = max(elastic.min_replicas, 1), min(elastic.max_replicas, at_most)
    if elastic.sizes is not None:
        return max((size for size in elastic.sizes if low <= size <= high), default=0)
    batch, each = elastic.global_batch_size, max(spec.processes_per_replica, 1)
    return next((size for size in range(high, low - 1, -1) if batch is None or batch % (size * each) == 0), 0)


def _of_what(spec: TrainingJobSpec, elastic: Elastic) -> str:
    """What sizes there are, in words."""
    if elastic.sizes is not None or elastic.global_batch_size is None:
        return "of elastic.sizes"
    each = spec.processes_per_replica
    times = f", times processesPerReplica {each}," if each > 1 else ""
    return f"number that{times} divides elastic.globalBatchSize {elastic.global_batch_size}"


def _bounded(replicas: int, elastic: Elastic) -> int:
    return min(max(replicas, elastic.min_replicas), elastic.max_replicas)
