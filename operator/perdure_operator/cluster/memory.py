"""What one operator process remembers about a job that no cluster object holds: answers received and sent.

Losing it is harmless: the next process asks again. Written by `act` and `observe`, read by `observe`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from perdure_operator.api.spec import TrainingJobSpec
from perdure_operator.state.snapshot import KeptTemplate, Refusal, TemplateCheck


@dataclass
class Memory:
    """The memory of one job."""

    template_check: TemplateCheck = field(default_factory=TemplateCheck)
    refusals: dict[str, Refusal] = field(default_factory=dict)
    """Refused creations and changes, by the object's name."""
    refused_deletions: dict[str, Refusal] = field(default_factory=dict)
    """Refused deletions, by the object's uid."""
    channel_refused: Refusal | None = None
    """Why the newest pod came without a way to report; None if it has one, or needs none."""
    allotted: set[str] = field(default_factory=set)
    """Names of members that this process wrote into the job's status."""
    created: set[str] = field(default_factory=set)
    """Names of pods that were created, or may have been if no answer came."""
    absent: set[str] = field(default_factory=set)
    """Names of members that the API server said do not exist. Names are never reused."""
    answered: dict[str, datetime] = field(default_factory=dict)
    """When each Eviction was answered last, by its heartbeat, even if that was refused, by the Eviction's uid."""
    warned_generation: int = 0
    """Generation of the spec whose unknown fields were logged."""
    template_hash: tuple[TrainingJobSpec, str] | None = None
    """A spec and its pod's hash. Building a pod in each round would cost more than all the rest."""
    kept: tuple[TrainingJobSpec, KeptTemplate] | None = None
    """A spec and the kept template that was read last, with its hash for that spec."""
