"""What one operator process knows of a job beside the cluster's objects: answers it got, and what it has said.

Losing it is harmless: the next process asks and says it again. Written by `act` and `observe`, read by `observe`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.state.snapshot import KeptTemplate, Refusal, TemplateCheck


@dataclass
class Memory:
    """Of one job, by its uid."""

    template_check: TemplateCheck = field(default_factory=TemplateCheck)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """By the name of the object that could not be created or changed."""
    allotted: set[str] = field(default_factory=set)
    """Names of members that this process has written into the job's status."""
    created: set[str] = field(default_factory=set)
    """Names of pods that were created, or may have been: the answer did not come."""
    absent: set[str] = field(default_factory=set)
    """Names of members that the API server has said are not there: a name is never used again."""
    answered: dict[str, datetime] = field(default_factory=dict)
    """The heartbeat of the newest answer to each Eviction, by its uid, also of one that was refused."""
    told_generation: int = 0
    """Generation of the spec whose unknown fields have been logged."""
    template_hash: tuple[TrainingJobSpec, str] | None = None
    """Of the pod that this very spec makes: building one at each look would cost more than all the rest."""
    kept: tuple[TrainingJobSpec, KeptTemplate] | None = None
    """The kept template that was read last, and what it makes with this very spec."""
