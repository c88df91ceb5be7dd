"""What a snapshot keeps of its pods is that snapshot's own: a copy with other pods answers for those."""

from __future__ import annotations

from perdure_operator.state.snapshot import PodView
from tests.support.raw import UID, snapshot


def pod(name: str, *, owner: str = UID, gone: bool = False, uid: str = "") -> PodView:
    return PodView(name=name, uid=uid or f"uid-{name}", owner_uid=owner, gone=gone)


def test_own_pods_are_those_that_the_job_owns_and_a_living_one_hides_a_gone_one() -> None:
    there, gone = pod("m-1", uid="new"), pod("m-1", uid="old", gone=True)
    seen = snapshot(pods=(gone, there, pod("m-0"), pod("m-2", owner="another")))
    assert dict(seen.own) == {"m-0": pod("m-0"), "m-1": there}


def test_a_copy_with_other_pods_has_other_own_pods_and_one_with_the_same_is_equal() -> None:
    seen = snapshot(pods=(pod("m-0"),))
    assert list(seen.own) == ["m-0"]
    assert list(seen.model_copy(update={"pods": (pod("m-1"),)}).own) == ["m-1"]
    assert seen.model_copy() == seen == snapshot(pods=(pod("m-0"),))
    assert "own" not in seen.model_dump()
