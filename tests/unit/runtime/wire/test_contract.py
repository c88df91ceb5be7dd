"""Assignments and outcomes: written strictly, read tolerantly."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure.wire import (
    ASSIGNMENT_BYTES,
    BEGINNINGS_KEPT,
    LARGEST,
    OPENED_AT_MOST,
    OUTCOME_BYTES,
    RESULT_BYTES,
    VERSION,
    Assignment,
    AttemptRecord,
    Beginning,
    CommitRef,
    ContractError,
    ErrorKind,
    ErrorName,
    ExitKind,
    Failure,
    Handover,
    HandoverRecord,
    HandoverWord,
    Leave,
    Outcome,
    Rescue,
    SkippedCommit,
    Standby,
    Train,
    Unsaved,
    UnsupportedVersion,
    read_assignment,
    read_outcome,
    read_ranks,
    write_assignment,
    write_outcome,
    write_ranks,
)
from perdure.wire.truncation import CUT

whole = st.integers(0, 10**9)
runs = st.integers(1, 10**9)
causes = st.text(max_size=40)
lost = st.lists(runs, max_size=5).map(tuple)
masters = st.sampled_from(["10.0.0.1:29500", "[fd00::1]:1", "node:65535"])
commits = st.none() | st.builds(CommitRef, seq=runs, step=whole)
members = st.sets(st.integers(0, 499), max_size=30).map(lambda ranks: tuple(sorted(ranks)))
handovers = st.none() | st.builds(
    Handover, run=runs, world=st.integers(500, 10**6), joins=members, leavers=members, master=masters, limit=whole,
    token=st.text("0123456789abcdef", min_size=32, max_size=32),
)  # fmt: skip
trains = st.builds(
    Train, run=runs, rank=st.integers(0, 7), world=st.integers(8, 10**6), master=masters, cause=causes, seconds=whole,
    wait=whole, lost=lost, floor=commits, handover=handovers,
)  # fmt: skip
leaves = st.builds(Leave, run=runs, cause=causes, seconds=whole, lost=lost, handover=handovers, suspect=st.booleans())
assignments = st.one_of(trains, leaves, st.just(Standby()))

unknown = st.dictionaries(
    st.sampled_from(["later", "memory", "hint"]), st.one_of(st.none(), st.booleans(), whole, causes, st.lists(whole))
)
failures = st.none() | st.builds(Failure, kind=st.sampled_from(ErrorKind), name=causes, tail=causes)
seconds = st.dictionaries(st.sampled_from(["agree", "stage", "upload"]), st.integers(0, 10**6).map(lambda n: n / 1000))
records = st.builds(
    HandoverRecord, run=runs, word=st.sampled_from(HandoverWord), why=st.text("why ", max_size=40), parts=seconds
)
attempts = st.builds(
    AttemptRecord, run=runs, voted=st.booleans(), word=st.sampled_from([None, HandoverWord.GO, HandoverWord.ABORT])
)
outcomes = st.builds(
    Outcome, outcome=st.sampled_from(ExitKind), run=whole, rank=whole, step=whole, commit=commits, opened=whole,
    seconds=seconds, error=failures, epoch=st.none() | whole, handovers=st.lists(records, max_size=2).map(tuple),
    live=st.just(False), attempt=st.none() | attempts, live_why=st.text("why ", max_size=40),
    rescue=st.none() | st.builds(Rescue, run=st.integers(1, 10**9), steps=st.integers(1, 10**9), of=whole),
    begun=st.lists(st.builds(Beginning, run=runs, step=whole, of=whole, reached=whole), max_size=4).map(tuple),
    skipped_commit=st.none() | st.builds(SkippedCommit, run=runs, steps=whole, why=st.text("why ", max_size=40)),
)  # fmt: skip

TRAIN: dict[str, Any] = {"v": VERSION, "run": 2, "rank": 1, "world": 4, "master": "10.0.0.1:29500"}
LEAVE: dict[str, Any] = {"v": VERSION, "run": 2, "leave": True}
OUTCOME: dict[str, Any] = {"v": VERSION, "outcome": "failed", "run": 2, "rank": 1}


class TestAssignment:
    @given(assignments, unknown)
    def test_what_is_written_is_read_and_unknown_fields_are_ignored(
        self, assignment: Assignment, more: dict[str, Any]
    ) -> None:
        text = write_assignment(assignment)
        assert read_assignment(text) == assignment
        assert read_assignment(json.dumps(more | json.loads(text))) == assignment

    @given(assignments)
    def test_it_is_written_within_its_limit(self, assignment: Assignment) -> None:
        assert len(write_assignment(assignment).encode()) <= ASSIGNMENT_BYTES

    def test_one_that_is_too_long_is_refused_by_its_writer(self) -> None:
        with pytest.raises(ContractError, match="run 7 is longer than 1024 bytes"):
            write_assignment(Leave(7, cause="x" * 2000))

    def test_the_least_that_is_needed(self) -> None:
        assert read_assignment(json.dumps(TRAIN)) == Train(2, 1, 4, "10.0.0.1:29500")
        assert read_assignment(json.dumps(LEAVE)) == Leave(2)
        assert read_assignment('{"v": 1, "standby": true}') == Standby()

    @pytest.mark.parametrize("version", [0, 2, 99])
    def test_an_unknown_major_version_is_distinguished(self, version: int) -> None:
        with pytest.raises(UnsupportedVersion, match=f"version {version}, this side knows 1"):
            read_assignment(json.dumps({"v": version, "a new shape": []}))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("v", "1"),
            ("v", True),
            ("v", None),
            ("run", 0),
            ("run", "2"),
            ("run", None),
            ("run", 2.0),
            ("rank", -1),
            ("rank", 4),
            ("rank", True),
            ("world", 0),
            ("world", None),
            ("master", None),
            ("master", 5),
            ("master", "10.0.0.1"),
            ("master", "10.0.0.1:"),
            ("master", ":29500"),
            ("master", "host:²"),
            ("cause", 5),
            ("seconds", -1),
            ("seconds", 1.5),
            ("seconds", None),
            ("wait", "long"),
            ("lost", 1),
            ("lost", ["1"]),
            ("lost", [True]),
            ("lost", None),
        ],
    )
    def test_a_bad_field_is_named(self, field: str, value: Any) -> None:
        with pytest.raises(ContractError, match=field) as caught:
            read_assignment(json.dumps(TRAIN | {field: value}))
        assert not isinstance(caught.value, UnsupportedVersion)

    @pytest.mark.parametrize("field", ["v", "run", "rank", "world", "master"])
    def test_a_missing_field_is_named(self, field: str) -> None:
        with pytest.raises(ContractError, match=field):
            read_assignment(json.dumps({name: value for name, value in TRAIN.items() if name != field}))

    @pytest.mark.parametrize("text", ["", "{", "[]", "1", "null", "[" * 5000, '{"v": 1'])
    def test_what_is_no_document_is_a_contract_error(self, text: str) -> None:
        with pytest.raises(ContractError, match="not"):
            read_assignment(text)

    @given(st.text() | st.dictionaries(st.sampled_from(list(TRAIN)), st.integers() | st.text()).map(json.dumps))
    def test_whatever_the_text_nothing_but_a_contract_error_is_raised(self, text: str) -> None:
        try:
            read_assignment(text)
        except ContractError as error:
            assert str(error)  # noqa: PT017 - a value is as good

    @pytest.mark.parametrize(
        "floor", [None, 5, [], {}, {"seq": 1}, {"seq": 0, "step": 1}, {"seq": LARGEST + 1, "step": 1}]
    )
    def test_a_floor_that_cannot_be_read_is_none(self, floor: Any) -> None:
        assert read_assignment(json.dumps(TRAIN | {"floor": floor})) == Train(2, 1, 4, "10.0.0.1:29500")

    def test_a_floor_is_read_beside_what_a_newer_operator_adds(self) -> None:
        floor = {"seq": 9, "step": 40, "later": True}
        assignment = read_assignment(json.dumps(TRAIN | {"floor": floor}))
        assert assignment == Train(2, 1, 4, "10.0.0.1:29500", floor=CommitRef(9, 40))

    @pytest.mark.parametrize("field", ["run", "rank", "world", "seconds", "wait"])
    def test_a_number_that_no_status_can_hold_is_refused(self, field: str) -> None:
        with pytest.raises(ContractError, match=field):
            read_assignment(json.dumps(TRAIN | {field: LARGEST + 1}))


BLOCK: dict[str, Any] = {
    "run": 1, "world": 2, "joins": "1", "leavers": "1", "master": "10.0.0.1:29700", "limit": 30, "token": "ab",
}  # fmt: skip


class TestHandover:
    def test_the_block_stands_in_an_assignment(self) -> None:
        block = Handover(1, 2, (1,), (1,), "10.0.0.1:29700", 30, "ab")
        assert read_assignment(json.dumps(LEAVE | {"handover": BLOCK})) == Leave(2, handover=block)
        assert json.loads(write_assignment(Leave(2, handover=block)))["handover"] == BLOCK

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("run", 0),
            ("run", "1"),
            ("world", 0),
            ("joins", [1]),
            ("joins", "1-"),
            ("joins", "3,2"),
            ("joins", "2-1"),
            ("joins", "-1"),
            ("joins", "²"),
            ("joins", "0-99999999999"),
            ("leavers", "2"),
            ("leavers", None),
            ("master", "host"),
            ("limit", -1),
            ("token", 5),
        ],
    )
    def test_a_block_that_cannot_be_read_leaves_a_plain_newer_run(self, field: str, value: Any) -> None:
        assert read_assignment(json.dumps(LEAVE | {"handover": BLOCK | {field: value}})) == Leave(2)

    @pytest.mark.parametrize("value", [None, 5, [], "x", {}])
    def test_what_is_no_block_is_none(self, value: Any) -> None:
        assert read_assignment(json.dumps(LEAVE | {"handover": value})) == Leave(2)

    @given(st.sets(st.integers(0, 3000)))
    def test_ranks_are_written_as_ranges(self, ranks: set[int]) -> None:
        assert read_ranks(write_ranks(tuple(ranks))) == tuple(sorted(ranks))

    def test_a_thousand_ranks_side_by_side_are_short(self) -> None:
        assert write_ranks((*range(1000), 1002)) == "0-999,1002"

    @pytest.mark.parametrize("value", [None, "x", {"run": 1}, {"run": 1, "word": "maybe"}, {"run": 0, "word": "go"}])
    def test_a_record_that_cannot_be_read_is_left_out(self, value: Any) -> None:
        good = {"run": 3, "word": "go", "parts": {"pause": 0.04, "x": "long"}}
        outcome = read_outcome(json.dumps(OUTCOME | {"handovers": [value, good]}))
        assert outcome.handovers == (HandoverRecord(3, HandoverWord.GO, parts={"pause": 0.04}),)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            {"run": 2, "word": "go"},
            {"run": 2, "voted": 1, "word": "go"},
            {"run": 2, "voted": True, "word": "restart"},
            {"run": 2, "voted": True, "word": "maybe"},
            {"run": 0, "voted": True, "word": "none"},
        ],
    )
    def test_what_tells_of_an_attempt_and_cannot_be_read_tells_nothing(self, value: Any) -> None:
        assert read_outcome(json.dumps(OUTCOME | {"attempt": value})).attempt is None

    def test_attempts_never_take_the_room_of_an_error(self) -> None:
        records = tuple(HandoverRecord(run, HandoverWord.ABORT, "😀" * 500) for run in range(1, 9))
        error = Failure(ErrorKind.EXCEPTION, "ValueError", "x" * 600)
        text = write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=error, handovers=records, live=False, live_why="w"))
        assert len(text.encode()) <= OUTCOME_BYTES
        read = read_outcome(text)
        assert read.error == error
        assert (read.live, read.live_why) == (False, "w")

    def test_an_older_agents_outcome_says_nothing_of_it(self) -> None:
        outcome = read_outcome(json.dumps(OUTCOME))
        assert (outcome.handovers, outcome.live, outcome.live_why) == ((), None, "")


class TestResult:
    def test_it_is_read_as_it_was_written(self) -> None:
        given = {"accuracy": 0.93, "steps": 2**60, "by": {"class": [1, None, "é"]}, "done": True}
        assert read_outcome(write_outcome(Outcome(ExitKind.COMPLETED, 1, 0, result=given))).result == given

    def test_an_outcome_without_one_does_not_name_it(self) -> None:
        assert "result" not in json.loads(write_outcome(Outcome(ExitKind.COMPLETED, 1, 0)))
        assert read_outcome(json.dumps(OUTCOME)).result is None

    @pytest.mark.parametrize("value", [3, [], "text", {"a": "x" * RESULT_BYTES}, {"a": {"b": float("nan")}}])
    def test_what_is_none_is_ignored_and_the_rest_is_read(self, value: Any) -> None:
        read = read_outcome(json.dumps(OUTCOME | {"result": value}))
        assert read == read_outcome(json.dumps(OUTCOME))

    def test_beside_an_error_there_is_no_room_for_it(self) -> None:
        error = Failure(ErrorKind.EXCEPTION, "ValueError", "x" * 600)
        read = read_outcome(write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=error, result={"best": 1})))
        assert (read.result, read.error) == (None, error)

    def test_the_largest_is_whole_and_attempts_take_what_is_left(self) -> None:
        most = {"text": "x" * (RESULT_BYTES - len('{"text":""}'))}
        records = tuple(HandoverRecord(run, HandoverWord.GO, parts={"pause": 0.04}) for run in range(1, 9))
        long = tuple(HandoverRecord(run, HandoverWord.ABORT, "x" * 130) for run in range(1, 5))
        seconds = {f"part {number}": 1234.567 for number in range(8)}
        whole = Outcome(ExitKind.COMPLETED, 1, 0, step=LARGEST, result=most, handovers=records, seconds=seconds)
        for outcome in (whole, replace(whole, handovers=long, live=False, live_why="x" * 100)):
            text = write_outcome(outcome)
            assert len(text.encode()) <= OUTCOME_BYTES
            assert read_outcome(text).result == most
        assert read_outcome(write_outcome(whole)).handovers[-1].run == 8


class TestWhatRunsHaveBegunWith:
    def test_the_newest_are_reported(self) -> None:
        begun = tuple(Beginning(run, 10 * run, run - 1, 10 * run + 3) for run in range(1, 9))
        fell = SkippedCommit(8, 10, "commit 5 of step 90: " + "x" * 500)
        read = read_outcome(write_outcome(Outcome(ExitKind.FAILED, 8, 0, begun=begun, skipped_commit=fell)))
        assert read.begun == begun[-BEGINNINGS_KEPT:]
        assert read.skipped_commit is not None
        assert (read.skipped_commit.run, read.skipped_commit.steps) == (8, 10)
        assert read.skipped_commit.why.startswith("commit 5 of step 90")

    def test_beside_all_else_it_takes_what_is_left(self) -> None:
        most, seconds = {"text": "x" * (RESULT_BYTES - len('{"text":""}'))}, {f"part {n}": 1234.567 for n in range(8)}
        begun = tuple(Beginning(run, LARGEST, run - 1, LARGEST) for run in range(1, 5))
        whole = Outcome(
            ExitKind.COMPLETED, 4, 0, step=LARGEST, result=most, seconds=seconds, live=False, live_why="x" * 120,
            unsaved=Unsaved(7, "x" * 500), begun=begun, skipped_commit=SkippedCommit(4, LARGEST, "x" * 500),
        )  # fmt: skip
        text = write_outcome(whole)
        assert len(text.encode()) <= OUTCOME_BYTES
        assert read_outcome(text).result == most

    def test_an_older_agents_outcome_says_nothing_of_it(self) -> None:
        outcome = read_outcome(json.dumps(OUTCOME))
        assert (outcome.begun, outcome.skipped_commit) == ((), None)

    @pytest.mark.parametrize(
        "more",
        [
            {"begun": 3},
            {"begun": [3, {"run": 0, "step": 1}, {"run": 2, "step": -1}, {"run": 2}]},
            {"skippedCommit": [1]},
            {"skippedCommit": {"run": 2}},
            {"skippedCommit": {"run": 2, "steps": -1}},
        ],
    )
    def test_what_is_none_is_ignored_and_the_rest_is_read(self, more: dict[str, Any]) -> None:
        assert read_outcome(json.dumps(OUTCOME | more)) == read_outcome(json.dumps(OUTCOME))


class TestUnsaved:
    def test_it_is_read_as_it_was_written_in_few_bytes(self) -> None:
        unsaved = Unsaved(7, "no route to the store")
        assert read_outcome(write_outcome(Outcome(ExitKind.FAILED, 1, 0, unsaved=unsaved))).unsaved == unsaved
        error = Failure(ErrorKind.STORAGE, "StorageError", "x" * 3000)
        text = write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=error, unsaved=Unsaved(7, "😀" * 500)))
        assert len(text.encode()) <= OUTCOME_BYTES
        assert len(read_outcome(text).error.tail) > 1000  # type: ignore[union-attr]

    @pytest.mark.parametrize("value", [3, [], {"failures": 0}, {"failures": "x"}, {"why": "no route"}])
    def test_what_is_none_is_ignored_and_the_rest_is_read(self, value: Any) -> None:
        assert read_outcome(json.dumps(OUTCOME | {"unsaved": value})) == read_outcome(json.dumps(OUTCOME))


class TestFailure:
    @pytest.mark.parametrize(
        ("kind", "name", "infrastructure"),
        [
            (ErrorKind.SIGNAL, ErrorName.KILLED, True),
            (ErrorKind.SIGNAL, ErrorName.OUT_OF_MEMORY, True),
            (ErrorKind.SIGNAL, "SIGSEGV", False),
            (ErrorKind.STORAGE, "StorageError", True),
            (ErrorKind.EXIT, "SIGKILL", False),
            (ErrorKind.EXIT, ErrorName.NO_SESSION, False),
            (ErrorKind.EXCEPTION, ErrorName.LOG_LOST, False),
        ],
    )
    def test_a_failure_outside_of_all_code_is_infrastructure(
        self, kind: ErrorKind, name: str, infrastructure: bool
    ) -> None:
        error = Failure(kind, name)
        assert error.infrastructure is infrastructure
        assert Outcome(ExitKind.FAILED, 1, 0, error=error).infrastructure is infrastructure
        assert not Outcome(ExitKind.EXIT_TIMEOUT, 1, 0, error=error).infrastructure

    def test_an_unexplained_failure_came_from_outside(self) -> None:
        assert Outcome(ExitKind.FAILED, 1, 0).infrastructure


class TestOutcome:
    @given(outcomes, unknown)
    def test_what_is_written_is_read_and_unknown_fields_are_ignored(
        self, outcome: Outcome, more: dict[str, Any]
    ) -> None:
        text = write_outcome(outcome)
        assert read_outcome(text) == outcome
        assert read_outcome(json.dumps(more | json.loads(text))) == outcome

    @given(st.text(max_size=9000), st.text(max_size=9000))
    @example("", "\x00" * 5000)
    @example("", "😀" * 5000)
    @example("😀" * 500, "\ud800" * 5000)
    @example("", '"\\' * 5000)
    @example("", "ü" * 3000 + "\n" * 3000)
    def test_it_fits_whatever_the_error_says_and_keeps_head_and_end(self, name: str, tail: str) -> None:
        text = write_outcome(Outcome(ExitKind.FAILED, 1, 0, error=Failure(ErrorKind.EXCEPTION, name, tail)))
        assert len(text.encode()) <= OUTCOME_BYTES
        error = read_outcome(text).error
        assert error
        head, _, end = error.tail.partition(CUT)
        assert error.tail == tail or (tail.startswith(head) and tail.endswith(end) and end)

    def test_outcomes_of_a_pod_with_six_containers_are_kept_whole(self) -> None:
        share = 12 * 1024 // 6  # the kubelet's limit for all containers together
        assert share >= OUTCOME_BYTES

    @given(st.integers(), st.integers(), st.integers(), st.integers())
    @example(-1, LARGEST + 1, LARGEST + 1, 2**63)
    def test_whatever_a_trainer_has_reported_its_outcome_can_be_read(
        self, step: int, opened: int, seq: int, commit: int
    ) -> None:
        outcome = Outcome(ExitKind.FAILED, 1, 0, step=step, commit=CommitRef(seq, commit), opened=opened)
        assert read_outcome(write_outcome(outcome)).outcome is ExitKind.FAILED

    @pytest.mark.parametrize("version", [0, 2])
    def test_an_unknown_major_version_is_distinguished(self, version: int) -> None:
        with pytest.raises(UnsupportedVersion):
            read_outcome(json.dumps(OUTCOME | {"v": version}))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("outcome", None),
            ("run", -1),
            ("run", None),
            ("rank", "0"),
            ("step", -1),
            ("run", LARGEST + 1),
            ("rank", LARGEST + 1),
            ("step", LARGEST + 1),
            ("commit", {"seq": LARGEST + 1, "step": 1}),
            ("commit", {"seq": 0, "step": 1}),
            ("commit", {"seq": 1}),
            ("error", {"kind": "exit", "name": 1}),
            ("error", {"kind": "exit", "tail": []}),
        ],
    )
    def test_a_bad_field_is_a_contract_error(self, field: str, value: Any) -> None:
        with pytest.raises(ContractError):
            read_outcome(json.dumps(OUTCOME | {field: value}))

    def test_a_newer_agents_kind_of_error_is_still_a_failure_of_its_own(self) -> None:
        error = {"kind": "cosmic-ray", "name": "n", "tail": "t"}
        assert read_outcome(json.dumps(OUTCOME | {"error": error})).error == Failure(ErrorKind.EXIT, "n", "t")

    def test_a_newer_agents_outcome_is_a_failure_judged_by_its_error(self) -> None:
        later = OUTCOME | {"outcome": "later", "commit": {"seq": 3, "step": 4}}
        outcome = read_outcome(json.dumps(later))
        assert (outcome.outcome, outcome.commit, outcome.infrastructure) == (ExitKind.FAILED, CommitRef(3, 4), True)
        blamed = read_outcome(json.dumps(later | {"error": {"kind": "exception", "name": "ValueError"}}))
        assert not blamed.infrastructure

    @pytest.mark.parametrize("value", [-1, "x", None, True, 1.5, [], OPENED_AT_MOST + 1, LARGEST, 2**53, 10**400])
    def test_an_absurd_opened_is_ignored_and_the_rest_is_read(self, value: Any) -> None:
        outcome = read_outcome(json.dumps(OUTCOME | {"opened": value, "step": 7}))
        assert (outcome.opened, outcome.step) == (0, 7)

    @pytest.mark.parametrize("value", [-1, "x", None, True, 1.5, [], 2**53, 10**400])
    def test_an_absurd_epoch_is_ignored_and_the_rest_is_read(self, value: Any) -> None:
        outcome = read_outcome(json.dumps(OUTCOME | {"epoch": value, "step": 7}))
        assert (outcome.epoch, outcome.step) == (None, 7)

    def test_an_unknown_epoch_is_not_written(self) -> None:
        assert "epoch" not in json.loads(write_outcome(Outcome(ExitKind.STOPPED, 1, 0)))

    def test_a_run_past_the_highest_opened_can_still_be_reported(self) -> None:
        told = read_outcome(json.dumps(OUTCOME | {"opened": OPENED_AT_MOST})).opened
        assert read_outcome(write_outcome(Outcome(ExitKind.FAILED, told + 1, 0))).run == told + 1

    @pytest.mark.parametrize("value", ["long", None, 10**400, float("nan"), float("inf"), {}])
    def test_a_duration_that_is_none_is_left_out(self, value: Any) -> None:
        text = json.dumps(OUTCOME | {"seconds": {"agree": value, "stage": 2}})
        assert read_outcome(text).seconds == {"stage": 2.0}

    @pytest.mark.parametrize("text", ["", "Killed", "[" * 4000, "{}"])
    def test_another_programs_last_words_are_a_contract_error(self, text: str) -> None:
        with pytest.raises(ContractError):
            read_outcome(text)
