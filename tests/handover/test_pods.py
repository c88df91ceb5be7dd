"""Real agents with two ranks each: a pod leaves with both at once, one of them dies and takes the other along, or both
die. Nothing else is lost than if each rank had a pod of its own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.harness import evidence, twin
from e2e.harness.local_members import LocalMembers
from perdure.wire import ExitKind
from tests.handover import forking
from tests.handover.judging import NOTHING, drawn, lost
from tests.handover.test_images import begins, begun_from, ends

HERE = Path(__file__).parent
SHARDED = HERE / "sharded_digits.py"
WHOLE = forking.SCRIPT
EPOCHS = 1
ARGUMENTS = (f"--epochs={EPOCHS}", "--batch=64")
KINDS: dict[str, tuple[Path, tuple[str, ...]]] = {
    "whole": (WHOLE, (*ARGUMENTS, "--deterministic")),
    "fsdp": (SHARDED, ARGUMENTS),
    "hsdp": (SHARDED, (*ARGUMENTS, "--shards=2")),
    "tensor-parallel": (SHARDED, (*ARGUMENTS, "--tensor-parallel=2")),
}
PODS, EACH = 2, 2
WORLD = PODS * EACH
AT, SECONDS = 6, 120.0
MOVES_SECONDS = 180
LIVE: dict[str, Any] = {"PACE_SECONDS": "0.15", "PACE_HOLDS": "6,99", "PACE_HOLD_SECONDS": "1"}
"""Run 1 is still there when its new members are ready, however busy the machine is."""
LONGER = pytest.mark.chaos
NOWHERE = "SIGKILL,9,9,nowhere"


def undisturbed(kind: str) -> twin.Twin:
    script, arguments = KINDS[kind]
    return forking.undisturbed(arguments, world=WORLD, script=script)


def pods(folder: Path, kind: str, harm: str = NOWHERE, each: int = EACH, **environ: str) -> LocalMembers:
    """Members of so many ranks each; `harm` as harmed_shards.py has it."""
    script, arguments = KINDS[kind]
    command = [sys.executable, str(HERE / "harmed_shards.py"), str(script), *arguments]
    pace = {"PACE_SECONDS": "0.02", "PACED_RUNS": "1", "PACE_RECORDED": "1", "PACE_HOLDS": "99"}
    return forking.members(command, folder, {**pace, **environ, "HARM": harm}, processes=each)


@LONGER
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("new", ["ac", "cb"])
def test_a_pod_leaves_with_all_its_ranks_at_once(tmp_path: Path, kind: str, new: str) -> None:
    (leaver,) = set("ab") - set(new)
    with pods(tmp_path, kind, **LIVE) as job:
        job.first_run(*"ab", beside="c")
        job.trains(1, 4)
        job.moves("ab", new, run=1, limit=MOVES_SECONDS)
        left = job.members[leaver].outcome()
        ended = [job.members[name].outcome() for name in new]
    entries, steps = job.root.entries(), job.root.trace().steps
    assert left.outcome is ExitKind.HANDED_OVER
    assert [one.outcome for one in ended] == [ExitKind.COMPLETED] * PODS
    assert evidence.took_over(entries, 2)
    assert lost(entries, steps, epochs=EPOCHS) == NOTHING
    assert drawn(member.said for member in job.members.values()) == set()
    assert job.root.weight_hash() == undisturbed(kind).weights


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        pytest.param(kind, old, new, id=f"{kind}-{len(old)}-to-{len(new)}")
        for kind in KINDS
        for old, new in (("ab", "acb"), ("abc", "ac"))
    ],
)
@LONGER
def test_a_pod_more_or_less_changes_the_ranks_by_all_of_its_own(tmp_path: Path, kind: str, old: str, new: str) -> None:
    with pods(tmp_path, kind, **LIVE) as job:
        job.first_run(*old, beside=sorted(set(new) - set(old)))
        job.trains(1, 4)
        job.moves(old, new, run=1, limit=MOVES_SECONDS)
        ended = [job.members[name].outcome() for name in new]
    entries, steps = job.root.entries(), job.root.trace().steps
    assert {one.outcome for one in ended} == {ExitKind.COMPLETED}
    assert evidence.took_over(entries, 2)
    assert evidence.worlds(entries) == {1: len(old) * EACH, 2: len(new) * EACH}
    assert lost(entries, steps, epochs=EPOCHS) == NOTHING
    assert tuple(evidence.batches(entries, steps)) == undisturbed(kind).batches


RANKS_THAT_DIE = [
    pytest.param(where, rank, marks=() if (where, rank) == ("gradient", 3) else LONGER)
    for where in ("forward", "backward", "gradient", "stepped", "counted")
    for rank in (1, 3)
]


@pytest.mark.parametrize(("where", "rank"), RANKS_THAT_DIE)
def test_a_rank_that_dies_takes_its_pod_along_and_no_finished_step_is_lost(
    tmp_path: Path, where: str, rank: int
) -> None:
    """What the pod's other rank holds is committed before its pod ends."""
    with pods(tmp_path, "whole", f"SIGKILL,{rank},{AT},{where}") as job:
        job.first_run(*"ab", beside="c")
        lost_pod = job.members["ab"[rank // EACH]]
        outcome = lost_pod.outcome()
        said, new = lost_pod.said, "ab".replace(lost_pod.name, "c")
        begins(job, 2, new, [1])
        ends(job, new)
    assert (outcome.outcome, outcome.rank, outcome.infrastructure) == (ExitKind.FAILED, rank, True)
    assert re.search(rf"run 1 rank {rank ^ 1} ended: peer-lost", said)
    assert re.search(r"the image of run 1 is committed as entry \d+", said)
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) == 0
    assert job.root.weight_hash() == undisturbed("whole").weights


@LONGER
@pytest.mark.parametrize("kind", ["whole", "hsdp"])
@pytest.mark.parametrize("where", ["backward", "gradient", "stepped", "counted"])
def test_a_pod_that_dies_costs_no_finished_step_where_another_one_holds_the_same(
    tmp_path: Path, kind: str, where: str
) -> None:
    with pods(tmp_path, kind, f"POD,3,{AT},{where}") as job:
        loses_pod(job, "b", "ac")
    assert begun_from(job, 2)
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) == 0
    assert job.root.weight_hash() == undisturbed(kind).weights


def loses_pod(job: LocalMembers, lost_pod: str, new: str) -> None:
    """Its agent is killed, and another pod takes its place."""
    job.first_run(*"ab", beside="c")
    job.members[lost_pod].process.wait(SECONDS)
    begins(job, 2, new, [1])
    ends(job, new)


@LONGER
@pytest.mark.parametrize("kind", ["fsdp", "tensor-parallel"])
@pytest.mark.parametrize("where", ["gradient", "stepped", "counted"])
@pytest.mark.parametrize("rank", [1, 3])
def test_a_pod_whose_parts_are_mirrored_in_another_one_costs_one_finished_step_at_most(
    tmp_path: Path, kind: str, where: str, rank: int
) -> None:
    lost_pod = "ab"[rank // EACH]
    with pods(tmp_path, kind, f"POD,{rank},{AT},{where}", PERDURE_MIRROR_EVERY_STEPS="1") as job:
        loses_pod(job, lost_pod, "ab".replace(lost_pod, "c"))
        said = job.members["a"].said
    assert "all parts are mirrored: a member that dies costs one finished step at most" in said
    begun = begun_from(job, 2)
    assert begun["run"] == 1
    assert begun["step"] in (AT - 1, AT, AT + 1)
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) <= 1
    assert job.root.weight_hash() == undisturbed(kind).weights


@pytest.mark.parametrize(
    ("kind", "dies"),
    [pytest.param(kind, dies, marks=LONGER) for kind in ("fsdp", "tensor-parallel", "hsdp") for dies in ("b", "c")],
)
def test_a_pod_leaves_live_and_one_of_those_that_are_left_dies(tmp_path: Path, kind: str, dies: str) -> None:
    """With a mirror, where there are no replicas; the new pod's parts are mirrored, and it mirrors others."""
    with pods(tmp_path, kind, **LIVE, PACED_RUNS="2", PERDURE_MIRROR_EVERY_STEPS="1") as job:
        job.first_run(*"ab", beside="cd")
        job.trains(1, 4)
        job.moves("ab", "cb", run=1, limit=MOVES_SECONDS)
        left = job.members["a"].outcome()
        job.trains(2, 4)
        job.kill(dies)
        new = "cb".replace(dies, "d")
        begins(job, 3, new, [2])
        ends(job, new)
    entries = job.root.entries()
    assert left.outcome is ExitKind.HANDED_OVER
    assert evidence.took_over(entries, 2)
    assert begun_from(job, 3)["run"] == 2
    assert evidence.steps_lost(entries, job.root.trace().steps) <= (0 if kind == "hsdp" else 1)
    assert job.root.weight_hash() == undisturbed(kind).weights


@LONGER
@pytest.mark.parametrize("kind", ["fsdp", "tensor-parallel"])
def test_without_a_mirror_a_pod_costs_the_steps_since_the_commit(tmp_path: Path, kind: str) -> None:
    with pods(tmp_path, kind, f"POD,3,{AT},gradient") as job:
        loses_pod(job, "b", "ac")
    assert not begun_from(job, 2)
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) == AT
    assert job.root.weight_hash() == undisturbed(kind).weights


@LONGER
@pytest.mark.parametrize("where", ["gradient", "stepped"])
def test_one_rank_of_a_mirrored_model_dies_and_its_pod_goes_with_the_parts_of_both(tmp_path: Path, where: str) -> None:
    with pods(tmp_path, "fsdp", f"SIGKILL,3,{AT},{where}", PERDURE_MIRROR_EVERY_STEPS="1") as job:
        job.first_run(*"ab", beside="c")
        job.members["b"].outcome()
        begins(job, 2, "ac", [1])
        ends(job, "ac")
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) <= 1
    assert job.root.weight_hash() == undisturbed("fsdp").weights


@LONGER
def test_a_node_that_dies_with_two_pods_costs_one_finished_step_at_most(tmp_path: Path) -> None:
    """Each of them is mirrored on the other node, and not by its neighbour."""
    nodes = {"a": "n1", "b": "n1", "c": "n2", "d": "n2", "e": "n3", "f": "n3"}
    with pods(tmp_path, "fsdp", each=1, PACE_SECONDS="0.15", PERDURE_MIRROR_EVERY_STEPS="1") as job:
        for name, node in nodes.items():
            job.environ = {**job.environ, "PERDURE_NODE": node}
            job.standby(name)
        job.waits("all members are warm", lambda: all(member.warm for member in job.members.values()))
        job.begins(1, "abcd")
        job.trains(1, AT)
        for name in "ab":
            job.kill(name)
        begins(job, 2, "efcd", [1])
        ends(job, "efcd")
    assert begun_from(job, 2)
    assert evidence.steps_lost(job.root.entries(), job.root.trace().steps) <= 1
    assert job.root.weight_hash() == undisturbed("fsdp").weights


@LONGER
def test_pods_that_tear_groups_of_tensor_parallelism_change_in_place(tmp_path: Path) -> None:
    script, arguments = KINDS["tensor-parallel"]
    with pods(tmp_path, "tensor-parallel", each=3, **LIVE) as job:
        job.first_run(*"ab", beside="c")
        job.trains(1, 4)
        job.moves("ab", "ac", run=1, limit=MOVES_SECONDS)
        ended = [job.members[name].outcome() for name in "ac"]
        left = job.members["b"].outcome()
    entries, steps = job.root.entries(), job.root.trace().steps
    assert {one.outcome for one in ended} == {ExitKind.COMPLETED}
    assert (left.outcome, left.live) == (ExitKind.CHECKPOINTED, False)
    assert "do not fit into pods of 3 ranks" in left.live_why
    assert not evidence.took_over(entries, 2)
    assert lost(entries, steps, epochs=EPOCHS) == NOTHING
    assert job.root.weight_hash() == forking.undisturbed(arguments, world=6, script=script).weights
