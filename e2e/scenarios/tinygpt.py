"""examples/tinygpt as the scenarios run it: paced on a lane's nodes, and undisturbed outside the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.harness import twin
from e2e.harness.job import Manifest, merged, with_container
from e2e.harness.lab import TINYGPT, Lab, example
from e2e.prepare import Environments
from e2e.scenarios import lanes
from e2e.scenarios.conftest import TINYGPT_IMAGE
from tests.support.forked import ForkedRank


def manifest(
    lane: str, namespace: str, arguments: Sequence[str], environ: Mapping[str, str], spec: Mapping[str, Any]
) -> Manifest:
    """job.yaml with these arguments, variables and fields of its spec."""
    root, nodes = {"uri": f"s3://scenarios/{namespace}"}, {"spec": {"nodeSelector": {lanes.LABEL: lane}}}
    changed = example(TINYGPT, {"spec": merged(spec, {"checkpoint": root, "template": nodes})})
    command = ["python", "paced.py", "train.py", *arguments]
    return with_container(changed, {"PERDURE_TRACE": "1", **environ}, image=TINYGPT_IMAGE, command=command)


def undisturbed(lab: Lab, arguments: Sequence[str], members: int) -> twin.Twin:
    """The same training in plain processes, with as many ranks as the job has members."""
    python = Environments(Path(lab.cluster.facts.environments)).trainer / "bin" / "python"
    return twin.trained(python, TINYGPT / "train.py", arguments, world=members, start=ForkedRank.start)
