"""Runs a user's training script on ranks of this machine, for tests: interrupt it at a step, resume it on other ranks.

Needs Linux. Needs no cluster, and no torch in the testing process. Nothing in the runtime imports it.
"""

from perdure.testing.processes import Ended, Rank, RanksFailed, processes

__all__ = ["Ended", "Rank", "RanksFailed", "processes"]
