"""Each reader finds its kind of damage: a sound log is changed in one place, and the reader reports it."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.simulation.evidence import TOP, Evidence, LogReader, asked_in_time, crc64, figures, verdict
from tests.simulation.interface import Behaviour
from tests.simulation.pods import ROOT, UID, Pods, in_virtual_time
from tests.simulation.witness import Asked, Resumed, Trouble, Witness

Body = dict[str, Any]


def key(seq: int) -> str:
    return f"{ROOT}/log/{TOP - seq:016d}.json"


def trained() -> Pods:
    """Run 1 loses some steps, run 2 goes on from its newest commit and saves, run 3 completes."""
    pods = Pods(Behaviour(goal=60, every_steps=10))

    async def story() -> None:
        first = pods.start(2)
        pods.train(1, first)
        await pods.reaches(25)
        first[0].kill()
        second = pods.start(2)
        pods.train(2, second, lost=(1,))
        await pods.hears("step", run=2, step=33)
        third = pods.start(2)
        pods.train(3, third, seconds=60, wait=75)
        second[1].sigterm.set()
        for member in third:
            await member.exit()
        await asyncio.sleep(60)

    in_virtual_time(story)
    return pods


def findings(pods: Pods, **facts: Any) -> list[str]:
    reader = LogReader(pods.bucket.objects, ROOT)
    return [*reader.advance(), *verdict(reader, pods.witness, goal=60, **facts)]


def entries(pods: Pods) -> list[Body]:
    found: list[Body] = []
    while data := pods.bucket.objects.get(key(len(found) + 1)):
        found.append(json.loads(data))
    return found


def rewrite(pods: Pods, bodies: list[Body]) -> None:
    """A log of these, renumbered and rechained."""
    for name in [name for name in pods.bucket.objects if "/log/" in name]:
        del pods.bucket.objects[name]
    prev, commit, opened = None, None, None
    for seq, body in enumerate(bodies, start=1):
        links = {"seq": seq, "prev": prev, "lastCommit": commit, "lastOpened": opened}
        data = json.dumps(body | links).encode()
        pods.bucket.objects[key(seq)], prev = data, crc64(data)
        commit = seq if body["kind"] == "Committed" else commit
        opened = seq if body["kind"] == "Opened" else opened


def place(bodies: list[Body], kind: str, run: int) -> int:
    return next(n for n, body in enumerate(bodies) if (body["kind"], body["run"]) == (kind, run))


def test_the_checksum_is_the_standards() -> None:
    assert crc64(b"123456789") == "ae8b14860a799888"


def test_a_sound_history_has_no_findings_and_its_figures_are_right() -> None:
    pods = trained()
    assert findings(pods, announced=[(UID, 2)], done=True) == []
    told = figures(pods.log, pods.witness)
    assert (told.runs, told.step, told.completed) == (3, 60, True)
    assert told.lost == 5
    assert told.steps == 65


def test_a_rewritten_log_that_says_the_same_is_sound() -> None:
    pods = trained()
    rewrite(pods, entries(pods))
    assert findings(pods) == []


def later_append_of_an_older_run(bodies: list[Body]) -> None:
    commit = next(body for body in bodies if body["kind"] == "Committed")
    bodies.insert(place(bodies, "Opened", 2) + 1, commit)
    bodies[place(bodies, "Opened", 3)]["resumes"] += 1


def lower_run_opens(bodies: list[Body]) -> None:
    bodies[place(bodies, "Opened", 3)]["run"] = 2


def resumes_an_older_commit(bodies: list[Body]) -> None:
    bodies[place(bodies, "Opened", 2)]["resumes"] = 2


def second_writer(bodies: list[Body]) -> None:
    bodies[place(bodies, "Committed", 2)]["writer"] = "00"


def goes_on_after_its_turn(bodies: list[Body]) -> None:
    bodies[place(bodies, "Committed", 1)]["final"] = True


def completed_at_another_step(bodies: list[Body]) -> None:
    bodies[-1]["step"] = 59


def never_opened(bodies: list[Body]) -> None:
    del bodies[0]
    for body in bodies:
        if body["kind"] == "Opened":
            body["resumes"] -= 1


def cursor_beside_the_samples(bodies: list[Body]) -> None:
    bodies[place(bodies, "Committed", 2)]["cursors"]["train"]["consumed"] += 1


def commit_of_a_step_nobody_did(bodies: list[Body]) -> None:
    bodies[place(bodies, "Committed", 1)]["step"] = 7_000


def commit_left_out(bodies: list[Body]) -> None:
    """The next run did not continue from what is now the newest."""
    del bodies[place(bodies, "Opened", 2) - 1]
    for body in bodies:
        if body["kind"] == "Opened" and body["resumes"]:
            body["resumes"] -= 1


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (later_append_of_an_older_run, "I2: appended after run 2 was opened"),
        (lower_run_opens, "I2: run 2 was open already"),
        (resumes_an_older_commit, "I1: it resumes commit 2"),
        (second_writer, "log: a second writer"),
        (goes_on_after_its_turn, "log: the run's turn ended"),
        (completed_at_another_step, "log: completed at step 59"),
        (never_opened, "log: the run was never opened"),
        (cursor_beside_the_samples, "I7: commit"),
        (commit_of_a_step_nobody_did, "I7: "),
        (commit_left_out, "I1: run 2 went on from commit"),
    ],
)
def test_a_planted_fault_in_the_log_is_found(spoil: Callable[[list[Body]], None], words: str) -> None:
    pods = trained()
    bodies = entries(pods)
    spoil(bodies)
    rewrite(pods, bodies)
    assert [text for text in findings(pods) if text.startswith(words)]


def test_a_changed_entry_breaks_the_chain() -> None:
    pods = trained()
    pods.bucket.objects[key(2)] = pods.bucket.objects[key(2)].replace(b'"reason"', b'"season"')
    assert any("prev is not the checksum" in text for text in findings(pods))


def test_a_gap_hides_what_is_beyond_it() -> None:
    pods = trained()
    del pods.bucket.objects[key(3)]
    assert any("entries without a gap" in text for text in findings(pods))


def test_an_entry_that_is_changed_after_it_was_read_is_found() -> None:
    pods = trained()
    reader = pods.log
    pods.bucket.objects[key(4)] += b" "
    assert verdict(reader, pods.witness) == ["log: entry 4 was changed or deleted"]


def test_a_commit_without_all_its_shards_is_found() -> None:
    pods = trained()
    folder = pods.log.commits()[-1].body["manifest"]["key"].removesuffix("manifest.json")
    del pods.bucket.objects[f"{ROOT}/{folder}shard-00001-of-00002.safetensors"]
    assert any("is missing or damaged" in text for text in findings(pods))


def test_a_newest_commit_that_was_retired_is_found_at_once_and_others_that_were_to_be_kept_at_the_end() -> None:
    pods = trained()
    reader, commits = pods.log, pods.log.commits()
    del pods.bucket.objects[f"{ROOT}/{commits[-2].body['manifest']['key']}"]
    assert reader.advance() == verdict(reader, pods.witness) == []
    assert any("one of the newest 2 and is retired" in text for text in verdict(reader, pods.witness, keep=2))
    del pods.bucket.objects[f"{ROOT}/{commits[-1].body['manifest']['key']}"]
    assert any("has lost its manifest" in text for text in reader.advance())


def test_bytes_that_are_no_entry_are_found() -> None:
    pods = trained()
    pods.bucket.objects[key(len(pods.log.lines))] = b"[]"
    assert any("cannot be read" in text for text in findings(pods))


def test_a_disruption_that_was_announced_may_cost_nothing() -> None:
    assert "I4: run 1 was announced in time and lost 5 steps" in findings(trained(), announced=[(UID, 1)])


def test_samples_that_are_skipped_or_repeated_are_found() -> None:
    pods = trained()
    place, step = next((n, each) for n, each in enumerate(pods.witness.trained) if each.step == 12)
    pods.witness.trained[place] = step._replace(start=step.start - 8)
    assert any(text.startswith("I7: step 12 of run 1 consumed") for text in findings(pods))
    pods.witness.trained[place] = step._replace(step=13)
    assert any(text == "I7: run 1 did step 13 twice" for text in findings(pods))
    assert any(text.startswith("I7: step 12 is committed and no rank") for text in findings(pods))


def test_a_run_that_trained_from_nowhere_is_found() -> None:
    pods = trained()
    pods.witness.resumed.append(Resumed(UID, 9, 1, 0))
    assert "I1: run 9 trained and is not in the log" in findings(pods)


def test_a_completed_job_needs_its_goal_in_the_log() -> None:
    assert verdict(LogReader({}, ROOT), Witness(), done=True) == [
        "log: the job is completed, and the log does not say so"
    ]


def test_a_run_that_starts_over_on_an_emptied_root_is_found_where_a_commit_was_known() -> None:
    pods = trained()
    evidence = Evidence(pods.bucket.objects, pods.wires)
    assert evidence.verdict([ROOT], {ROOT: 60}) == []
    opened = pods.bucket.objects[key(1)]
    pods.bucket.objects.clear()
    assert any("changed or deleted" in text for text in evidence.verdict())
    evidence.emptied(ROOT, told=5)
    assert evidence.verdict() == []
    pods.bucket.objects[key(1)] = opened
    assert evidence.verdict() == [f"{ROOT}: I1: run 1 began from nothing, and commit 5 was known"]


def cleared() -> tuple[Pods, Evidence, Any]:
    """A training whose root is empty since the evidence was looked at, and what its log began with."""
    pods = trained()
    evidence = Evidence(pods.bucket.objects, pods.wires)
    evidence.look()
    opened = pods.bucket.objects[key(1)]
    pods.bucket.objects.clear()
    return pods, evidence, opened


@pytest.mark.parametrize(("unaware", "found"), [([(UID, 1)], False), ([(UID, 2)], True), ([("another", 1)], True)])
def test_only_a_run_planned_before_any_commit_was_known_may_start_over_on_an_emptied_root(
    unaware: list[tuple[str, int]], found: bool
) -> None:
    pods, evidence, opened = cleared()
    evidence.emptied(ROOT, told=5, unaware=unaware)
    pods.bucket.objects[key(1)] = opened
    assert bool(evidence.verdict()) == found


@pytest.mark.parametrize(
    ("commit", "found"), [(0, []), (3, [f"{ROOT}: I1: run 1 began from nothing, and commit 3 was known"])]
)
def test_an_emptied_roots_commit_is_known_no_longer_than_the_jobs_status_tells_of_one(
    commit: int, found: list[str]
) -> None:
    pods, evidence, opened = cleared()
    evidence.emptied(ROOT, told=5)
    evidence.forgotten(ROOT, told=commit)
    pods.bucket.objects[key(1)] = opened
    assert evidence.verdict() == found


def test_a_backup_of_a_status_says_nothing_of_a_root_that_was_not_emptied() -> None:
    pods = trained()
    evidence = Evidence(pods.bucket.objects, pods.wires)
    evidence.look()
    evidence.forgotten(ROOT, told=0)
    assert evidence.verdict() == []
    assert evidence.readers[ROOT].readable


def test_commits_that_were_stripped_on_purpose_are_not_missed() -> None:
    pods = trained()
    evidence = Evidence(pods.bucket.objects, pods.wires)
    assert evidence.verdict() == []
    for stored in [stored for stored in pods.bucket.objects if stored.startswith(f"{ROOT}/data/")]:
        del pods.bucket.objects[stored]
    assert any("has lost its manifest" in text for text in evidence.verdict())
    evidence.stripped(ROOT)
    assert evidence.verdict() == []


@pytest.mark.parametrize(("until", "in_time"), [(0.0, True), (29.0, True), (31.0, False)])
def test_a_stopped_member_is_not_asked_in_time(until: float, in_time: bool) -> None:
    asked, stopped = Asked(UID, 1, at=60.0, seconds=30.0, needed=10.0), Trouble(10.0, "a process is stopped", until)
    witness = Witness(asked=[asked], trouble=[stopped], ended={(UID, 1): 70.0})
    assert asked_in_time(witness) == ({(UID, 1)} if in_time else set())
