"""The agent with real processes: what the rules decide is what happens."""

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.cli.main import main
from perdure.wire import CommitRef, Completion, ErrorKind, ErrorName, ExitKind, Leave, Outcome, Standby, Train
from tests.unit.runtime.agent.member import DEADLINE, TRAINER, Member, gone

RUN1 = Train(1, 0, 2, "10.0.0.1:29500")
RUN2 = Train(2, 1, 2, "10.0.0.1:29501", cause="node n1 is leaving", seconds=60, wait=75)
LEAVE2 = Leave(2, cause="node n1 is leaving", seconds=60)
SAVED = Outcome(ExitKind.CHECKPOINTED, 1, 0, step=6, commit=CommitRef(4, 6), opened=1, seconds={"commit": 0.25})


def test_a_leaving_member_saves_and_exits_clean(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "drained") as member:
        member.assign(RUN1)
        member.told("training")
        member.assign(LEAVE2)
        assert "node n1 is leaving" in member.hears('"asked": 1')
        assert member.outcome() == (SAVED, 0)
        assert "perdure: run 1 asked to save: node n1 is leaving; 60 s" in member.log


def test_the_trainer_is_told_the_deadline_on_its_own_clock(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "drained") as member:
        member.assign(RUN1)
        member.told("training")
        member.assign(LEAVE2)
        line = member.hears('"asked": 1')
        assert 0 < float(line.partition('"left": ')[2].rstrip("}")) <= LEAVE2.seconds


def test_a_newer_run_starts_in_the_same_pod_once_the_old_one_has_left_nothing(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "worker_left_behind") as member:
        member.assign(RUN1)
        worker = member.told("worker")
        member.told("training")
        member.assign(RUN2)
        member.hears("run 2 starts: rank 1 of 2")
        assert gone(worker)
        assert member.told("training") == 2
        member.assign(Leave(3, seconds=60))
        outcome, status = member.outcome()
        assert (outcome.run, outcome.rank, status) == (2, 1, 0)


@pytest.mark.parametrize("rank", [0, 1], ids=["in the same rank", "in another rank"])
def test_a_trainer_that_ends_as_it_makes_way_is_not_taken_for_the_next_one(tmp_path: Path, rank: int) -> None:
    """Its end was noticed in the same look in which the next trainer was started."""
    with Member(tmp_path, *TRAINER, "makes_way", ends_as_it_makes_way=True) as member:
        member.assign(RUN1)
        member.told("training")
        member.assign(replace(RUN2, rank=rank))
        assert member.told("training") == 2
        member.assign(Leave(3, seconds=60))
        outcome, status = member.outcome()
        assert (outcome.outcome, outcome.run, outcome.rank, status) == (ExitKind.CHECKPOINTED, 2, rank, 0)


def test_a_traceback_on_stderr_becomes_the_tail_of_the_error(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "raising") as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert outcome.error
        assert (outcome.outcome, outcome.error.kind, outcome.error.name, status) == (
            ExitKind.FAILED,
            ErrorKind.EXIT,
            "1",
            1,
        )
        assert outcome.error.tail.endswith("ValueError: boom\n")
        assert "ValueError: boom" in member.log  # passed through, too


def test_a_killed_trainer_is_reported_with_its_signal_and_its_last_commit(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "killed") as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert outcome.error
        assert (outcome.error.kind, outcome.error.name, status) == (ErrorKind.SIGNAL, "SIGKILL", 1)
        assert (outcome.step, outcome.commit) == (5, CommitRef(3, 4))


@pytest.mark.parametrize("looks_late", [False, True])
def test_a_trainer_that_is_out_of_memory_is_reported_with_its_limit(tmp_path: Path, looks_late: bool) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")  # of a process before it
    (cgroup / "memory.max").write_text(f"{512 * 2**20}\n")
    with Member(tmp_path, *TRAINER, "out_of_memory", str(cgroup), looks_late=looks_late) as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert outcome.error
        assert (outcome.error.kind, outcome.error.name, status) == (ErrorKind.SIGNAL, ErrorName.OUT_OF_MEMORY, 1)
        assert "memory limit of 512 MiB" in outcome.error.tail
        assert "c10d" not in outcome.error.tail
        assert "[c10d] recvValueWithTimeout failed" in "\n".join(member.log)  # the pod's log keeps it


def test_a_kill_that_the_kernel_has_not_counted_is_no_want_of_memory(tmp_path: Path) -> None:
    cgroup = tmp_path / "cgroup"
    cgroup.mkdir()
    (cgroup / "memory.events").write_text("oom_kill 1\n")
    with Member(tmp_path, *TRAINER, "killed") as member:
        member.assign(RUN1)
        outcome, _ = member.outcome()
        assert outcome.error
        assert outcome.error.name == ErrorName.KILLED


def test_a_run_without_a_step_of_its_own_tells_the_step_it_resumed_at(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "resumed") as member:
        member.assign(RUN1)
        outcome, _ = member.outcome()
        assert (outcome.step, outcome.commit) == (72, CommitRef(3, 72))


def test_a_trainer_that_does_not_save_in_time_is_killed(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "stubborn") as member:
        member.assign(RUN1)
        member.told("training")
        member.assign(replace(LEAVE2, seconds=1))
        outcome, status = member.outcome()
        assert (outcome.outcome, outcome.step, outcome.commit, status) == (
            ExitKind.EXIT_TIMEOUT,
            20,
            CommitRef(3, 4),
            1,
        )


def test_a_trainer_that_has_not_opened_its_run_is_killed_soon(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "not_opened") as member:
        member.assign(RUN1)
        member.told("waiting")
        member.assign(replace(LEAVE2, seconds=10_000))
        outcome, status = member.outcome()
        assert (outcome.outcome, status) == (ExitKind.STOPPED, 1)


def test_a_trainer_of_a_lost_run_is_killed_at_once(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "stubborn") as member:
        member.assign(RUN1)
        member.told("training")
        member.assign(replace(RUN2, lost=(1,), seconds=10_000))
        assert member.told("training") == 2


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with Member(tmp_path, "no-such-command", "--lr", "1") as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert outcome.error
        assert (outcome.error.kind, outcome.error.name, status) == (ErrorKind.EXIT, "127", 1)
        assert "'no-such-command'" in outcome.error.tail


def test_a_command_that_is_not_executable_is_named(tmp_path: Path) -> None:
    (tmp_path / "script").write_text("not a program")
    with Member(tmp_path, str(tmp_path / "script"), processes=2) as member:
        member.assign(RUN1)
        outcome, _ = member.outcome()
        assert outcome.error
        assert outcome.error.name == "126"


def test_sigterm_to_the_agent_is_the_final_leave(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "drained") as member:
        member.assign(RUN1)
        member.told("training")
        member.process.send_signal(signal.SIGTERM)
        assert "the pod is being deleted" in member.hears('"asked": 1')
        assert member.outcome() == (SAVED, 0)


def test_sigterm_stops_a_waiting_standby(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "drained") as member:
        member.assign(Standby())
        member.hears("waiting as a standby")
        member.process.send_signal(signal.SIGTERM)
        outcome, status = member.outcome()
        assert (outcome.outcome, status) == (ExitKind.STOPPED, 1)


def test_a_shell_in_front_of_the_trainer_does_not_take_the_request(tmp_path: Path) -> None:
    command = f"true; {' '.join(TRAINER)} drained; echo after $?"
    with Member(tmp_path, "sh", "-c", command) as member:
        member.assign(RUN1)
        member.told("training")
        member.assign(LEAVE2)
        member.hears("after 0")
        assert member.outcome() == (SAVED, 0)


def test_a_script_with_its_own_exit_callback_finds_signal_and_file(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "own_callback") as member:
        member.assign(RUN1)
        member.told("running")
        member.assign(LEAVE2)
        assert member.told("file") == 1
        outcome, status = member.outcome()
        assert (outcome.outcome, status) == (ExitKind.STOPPED, 1)


def test_the_seat_is_given_up_when_no_newer_assignment_comes(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "peer_lost", linger=0.1) as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert (outcome.outcome, outcome.error, status) == (ExitKind.PEER_LOST, None, 1)


def test_the_seat_is_held_for_a_newer_assignment(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "peer_lost", linger=DEADLINE) as member:
        member.assign(RUN1)
        member.hears("holding the seat")
        member.assign(RUN2)
        assert member.told("training") == 2


def test_a_pipe_that_hides_an_exit_status_completes_nothing(tmp_path: Path) -> None:
    command = f"{sys.executable} nosuch.py | tee {tmp_path}/log"
    with Member(tmp_path, "sh", "-c", command) as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert outcome.error
        assert (outcome.outcome, outcome.error.name, status) == (ExitKind.FAILED, ErrorName.NO_SESSION, 1)
        assert "can't open file" in outcome.error.tail
        assert "set -o pipefail" in outcome.error.tail


def test_a_pipe_behind_a_session_that_was_killed_completes_nothing(tmp_path: Path) -> None:
    with Member(tmp_path, "sh", "-c", f"{' '.join(TRAINER)} killed | tee {tmp_path}/log") as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert outcome.error
        assert (outcome.outcome, outcome.error.name, outcome.step, status) == (ExitKind.FAILED, "0", 5, 1)
        assert "a pipe hides the exit status" in outcome.error.tail


def test_a_command_without_a_session_completes_where_the_exit_code_counts(tmp_path: Path) -> None:
    with Member(tmp_path, "sh", "-c", "echo trained", completion=Completion.EXIT_CODE) as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert (outcome.outcome, outcome.error, status) == (ExitKind.COMPLETED, None, 0)


def test_completed_exits_clean(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "completed") as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert (outcome.outcome, outcome.step, status) == (ExitKind.COMPLETED, 10, 0)


def test_an_export_after_the_last_epoch_is_not_disturbed_by_a_request(tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    with Member(tmp_path, *TRAINER, "exporting", str(go_on)) as member:
        member.assign(RUN1)
        member.told("exporting")
        member.assign(LEAVE2)
        member.hears("assignment: leave")
        member.process.send_signal(signal.SIGTERM)
        member.hears("the pod is being deleted")
        go_on.touch()
        assert member.told("exported") == 1
        outcome, status = member.outcome()
        assert (outcome.outcome, outcome.step, status) == (ExitKind.COMPLETED, 10, 0)


def test_an_unread_log_holds_up_neither_the_trainer_nor_the_outcome(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "talkative") as member:
        member.assign(RUN1)
        member.told("training")
        left = tmp_path / "termination-log"
        member.waits_until(lambda: left.exists() and bool(left.read_text()))
        outcome, _ = member.outcome()
        assert outcome.error
        assert outcome.error.tail.endswith("ValueError: boom\n")


def test_the_processes_of_one_member_share_one_outcome(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "drained", processes=2) as member:
        member.assign(RUN1)
        ranks = {member.hears('"training": 1')[-2:-1] for _ in range(2)}
        assert ranks == {"0", "1"}
        member.assign(LEAVE2)
        assert member.outcome() == (SAVED, 0)


def test_when_one_process_fails_its_neighbours_are_killed_and_it_speaks_for_the_pod(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "first_rank_raises", processes=2, siblings=0.1) as member:
        member.assign(RUN1)
        outcome, status = member.outcome()
        assert outcome.error
        assert (outcome.outcome, outcome.rank, status) == (ExitKind.FAILED, 0, 1)
        assert "boom of the first" in outcome.error.tail


def test_what_one_process_leaves_behind_is_killed_while_its_neighbours_train(tmp_path: Path) -> None:
    with Member(
        tmp_path, *TRAINER, "first_rank_leaves_a_worker", processes=2, completion=Completion.EXIT_CODE
    ) as member:
        member.assign(RUN1)
        worker = member.told("worker")
        member.waits_until(lambda: gone(worker))
        member.process.send_signal(signal.SIGTERM)
        outcome, _ = member.outcome()
        assert outcome.outcome is ExitKind.STOPPED


def test_a_trainer_never_waits_for_its_agent(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "flooding") as member:
        member.assign(RUN1)
        assert member.told("flooded") == 1


def test_a_malformed_assignment_is_reported_and_the_next_one_counts(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "drained") as member:
        member.assign("{")
        member.hears("assignment ignored: assignment: not JSON")
        member.assign(RUN1)
        assert member.told("training") == 1


def test_an_unknown_major_version_saves_and_says_why(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "drained") as member:
        member.assign(RUN1)
        member.told("training")
        member.assign('{"v": 2, "something": "new"}')
        outcome, status = member.outcome()
        assert outcome.error
        assert (outcome.outcome, outcome.error.name, status) == (ExitKind.CHECKPOINTED, "UnsupportedVersion", 0)


def test_orphans_are_reaped_while_the_trainer_runs(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "orphan") as member:
        member.assign(RUN1)
        orphan = member.told("orphan")
        member.waits_until(lambda: gone(orphan))


def test_nothing_outlives_a_killed_agent(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "stubborn") as member:
        member.assign(RUN1)
        member.told("training")
        member.process.kill()
        member.silent()


def test_a_trainer_that_has_closed_its_pipes_is_still_asked(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "closed_pipes") as member:
        member.assign(RUN1)
        member.told("training")
        member.process.send_signal(signal.SIGTERM)
        outcome, _ = member.outcome()
        assert outcome.outcome is ExitKind.STOPPED


def test_a_process_finds_its_place_in_its_environment(tmp_path: Path) -> None:
    environ = {"OMP_NUM_THREADS": "3", "KEPT": "yes"}
    with Member(tmp_path, *TRAINER, "environment", environ=environ) as member:
        member.assign(replace(RUN2, lost=(1,)))
        found = member.told("environment")
        wanted = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "PERDURE_RUN": "2"}
        wanted |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501", "PERDURE_LOST": "[1]", "PERDURE_WAIT": "75"}
        assert wanted.items() | environ.items() <= found.items()


def test_warm_succeeds_once_an_assignment_has_been_read_and_says_before_what_it_waits_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kubelet puts its words into the event `Unhealthy`."""
    question = ["warm", "--state", str(tmp_path / "state"), "--seconds", "0"]
    assert main(question) == 1
    assert (
        capsys.readouterr().out
        == "not warm yet: the agent waits for its assignment, or imports what the script needs\n"
    )
    with Member(tmp_path, *TRAINER, "drained") as member:
        member.assign(Standby())
        member.hears("waiting as a standby")
        assert main(question) == 0


def test_warm_waits_for_the_agent(tmp_path: Path) -> None:
    """The kubelet has to execute no process each second beside the imports."""
    member = Member(tmp_path, *TRAINER, "drained")
    with ThreadPoolExecutor() as beside, member:
        answer = beside.submit(main, ["warm", "--state", str(tmp_path / "state"), "--seconds", "600"])
        member.assign(Standby())
        assert answer.result() == 0


def test_a_request_can_be_made_more_urgent(tmp_path: Path) -> None:
    with Member(tmp_path, *TRAINER, "stubborn") as member:
        member.assign(RUN1)
        member.told("training")
        member.assign(replace(LEAVE2, seconds=10_000))
        member.hears("asked to save")
        member.assign(replace(LEAVE2, seconds=0))
        outcome, _ = member.outcome()
        assert outcome.outcome is ExitKind.EXIT_TIMEOUT
