"""Makes everything that the tests and the demo need, once, and caches it by content.

It runs before any environment exists, so it takes nothing but the standard library of Python 3.11 or newer. It never
starts a cluster. The Makefile calls it (`python3 -m e2e.prepare dev|cluster|all`); `e2e.cluster` asks it where the
tools and environments are; tests ask `missing()` what this machine lacks.
"""

from e2e.prepare.basics import PrepareError, Progress, cache_dir
from e2e.prepare.envs import Environments, environments
from e2e.prepare.requirements import missing, missing_for_api
from e2e.prepare.tools import tool_folders

__all__ = [
    "Environments",
    "PrepareError",
    "Progress",
    "cache_dir",
    "environments",
    "missing",
    "missing_for_api",
    "tool_folders",
]
