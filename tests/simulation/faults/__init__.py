"""Everything that may go wrong in a history, by name.

A fault is a coroutine that does something to the scene and, mostly, undoes it some time later. A fault that today's
operator is known not to bear carries the defect it waits for and stays out of the ordinary runs until that is mended;
`--all` lets it in.
"""

from tests.simulation.faults import (
    api,
    nodes,
    operator,
    people,
    pods,
    requests,
    schemes,
    sharing,
    takeovers,
    vandals,
    worst,
)
from tests.simulation.faults.registry import FAULTS, Fault

__all__ = [
    "FAULTS",
    "Fault",
    "api",
    "nodes",
    "operator",
    "people",
    "pods",
    "requests",
    "schemes",
    "sharing",
    "takeovers",
    "vandals",
    "worst",
]
