"""For users' own tests: their script on some ranks of this machine, asked to leave at any step, then on other ranks.

Needs Linux, no cluster and no torch in the process that tests. Nothing of the runtime imports it.
"""

from perdure.testing.processes import Ended, Rank, RanksFailed, processes

__all__ = ["Ended", "Rank", "RanksFailed", "processes"]
