"""What others see of a job's pods while it changes its size: autoscalers of nodes, of pods, and the scheduler."""

from __future__ import annotations

import pytest

from tests.api.scene import Scene, starts, until

pytestmark = pytest.mark.api

SAFE = "cluster-autoscaler.kubernetes.io/safe-to-evict"
KARPENTER = "karpenter.sh/do-not-disrupt"
NEVER, COOPERATIVE, NOTHING = ("false", "true"), ("true", None), (None, None)


def told(scene: Scene) -> list[tuple[str | None, str | None]]:
    """What each pod says to cluster-autoscaler and to Karpenter."""
    annotations = [pod["metadata"]["annotations"] for pod in scene.pods()]
    return [(one.get(SAFE), one.get(KARPENTER)) for one in annotations]


def test_living_pods_tell_autoscalers_of_nodes_what_the_job_says_now(scene: Scene) -> None:
    nodes = [scene.node(name) for name in ("n1", "n2")]
    scene.apply(disruption={"autoscaler": "Cooperative"})
    until("two pods", lambda: len(scene.names()) == 2)
    assert told(scene) == [NEVER, NEVER]
    members = starts(scene, *nodes)
    until("members may go", lambda: told(scene) == [COOPERATIVE, COOPERATIVE])
    scene.apply(disruption={"autoscaler": "Never"})
    until("members may not go", lambda: told(scene) == [NEVER, NEVER])
    scene.apply(disruption={})
    until("members say nothing", lambda: told(scene) == [NOTHING, NOTHING])
    assert scene.names() == members
    assert scene.status().run == 1
