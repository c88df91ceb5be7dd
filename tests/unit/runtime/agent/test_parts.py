"""The agent's smaller parts: the assignment file, pipes, environment, CPU limits, and what users get wrong."""

import os
import re
import select
import selectors
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.agent.environ import ProcessIdentity, process_environment
from perdure.agent.linux import cpu_limit
from perdure.agent.pod_log import Outlet
from perdure.agent.processes import Pipe
from perdure.agent.shell import AssignmentFile
from perdure.agent.state import AgentSettings, AssignmentRead, Unreadable
from perdure.cli.main import main, settings_from
from perdure.errors import UserError
from perdure.wire import Completion, Standby, Train, write_assignment

RUN1 = Train(1, 2, 6, "10.0.0.1:29500")


def swap(volume: Path, version: str, text: str) -> None:
    """Replaces the volume's content as the kubelet does: a new folder, and one rename of a link to it."""
    (volume / version).mkdir(parents=True)
    (volume / version / "assignment").write_text(text)
    (volume / "..data_tmp").symlink_to(version)
    (volume / "..data_tmp").rename(volume / "..data")
    if not (volume / "assignment").is_symlink():
        (volume / "assignment").symlink_to("..data/assignment")


class TestAssignmentFile:
    def test_a_file_that_is_not_there_yet_is_no_news(self, tmp_path: Path) -> None:
        assert AssignmentFile(tmp_path / "assignment").changed() is None

    def test_each_swap_of_the_volume_is_seen_once(self, tmp_path: Path) -> None:
        file = AssignmentFile(tmp_path / "assignment")
        swap(tmp_path, "..1", write_assignment(Standby()))
        assert file.changed() == AssignmentRead(Standby())
        assert file.changed() is None
        swap(tmp_path, "..2", write_assignment(RUN1))
        assert file.changed() == AssignmentRead(RUN1)
        assert file.changed() is None

    def test_a_malformed_assignment_is_reported_once(self, tmp_path: Path) -> None:
        file = AssignmentFile(tmp_path / "assignment")
        swap(tmp_path, "..1", "[]")
        told = file.changed()
        assert isinstance(told, Unreadable)
        assert not told.unsupported
        assert file.changed() is None

    def test_an_unknown_version_is_distinguished_from_a_malformed_assignment(self, tmp_path: Path) -> None:
        swap(tmp_path, "..1", '{"v": 2}')
        told = AssignmentFile(tmp_path / "assignment").changed()
        assert isinstance(told, Unreadable)
        assert told.unsupported


def test_a_pipe_whose_writer_is_gone_wakes_no_reader() -> None:
    reader, writer = os.pipe()
    with selectors.DefaultSelector() as selector:
        pipe = Pipe(reader, selector)
        os.write(writer, b"last words")
        os.close(writer)
        assert [pipe.read(), pipe.read(), pipe.read()] == [b"last words", b"", b""]
        assert not selector.get_map()


@pytest.fixture
def log_pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield reader, writer
    os.close(reader)
    os.close(writer)


def everything(reader: int, outlet: Outlet) -> bytes:
    """What a reader that has come back finds."""
    text = b""
    with suppress(BlockingIOError):
        while True:
            text += os.read(reader, 1 << 20)
            outlet.flush()
    return text


class TestOutlet:
    def test_what_there_is_no_room_for_is_written_later_and_in_order(self, log_pipe: tuple[int, int]) -> None:
        outlet = Outlet(log_pipe[1])
        lines = [f"perdure: line {number}" for number in range(20_000)]
        for line in lines:
            outlet.say(line.removeprefix("perdure: "))
        assert everything(log_pipe[0], outlet).decode().splitlines() == lines

    def test_the_oldest_lines_are_dropped_whole_and_the_gap_is_reported(self, log_pipe: tuple[int, int]) -> None:
        outlet = Outlet(log_pipe[1])
        lines = [f"perdure: line {number}\n" for number in range(100_000)]
        for line in lines:
            outlet.write(line.encode())
        text = everything(log_pipe[0], outlet).decode()
        gap = re.search(r"\nperdure: (\d+) bytes of the log are missing here: it was not read in time\n", text)
        assert gap
        before, after = text[: gap.start()], text[gap.end() :]
        whole = "".join(lines)
        assert whole.startswith(before)
        assert whole.endswith("\n" + after)
        assert len(before) + int(gap[1]) + len(after) == len(whole)

    def test_last_words_wait_for_a_reader(self, log_pipe: tuple[int, int]) -> None:
        outlet = Outlet(log_pipe[1])
        outlet.write(b"x" * 100_000)
        with ThreadPoolExecutor(1) as pool:
            flushing = pool.submit(outlet.flush, 60)
            text = b""
            while len(text) < 100_000:
                assert select.select([log_pipe[0]], [], [], 60)[0], "the last words have not come"
                text += os.read(log_pipe[0], 1 << 20)
            flushing.result(timeout=60)

    def test_a_reader_that_is_gone_is_no_error(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        Outlet(writer).say("to nobody")
        os.close(writer)
        Outlet(writer).say("to nothing")


class TestEnvironment:
    def place(self, **more: int | None) -> ProcessIdentity:
        given = {"local_rank": 1, "processes": 2, "cpus": 8} | more
        return ProcessIdentity(
            **given,  # type: ignore[arg-type]
            report_fd=5,
            request_file=Path("request.json"),
            handover_file=Path("handover.json"),
            started=12.5,
        )

    def test_ranks_count_from_the_members_first(self) -> None:
        found = process_environment({}, RUN1, self.place())
        assert (found["RANK"], found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"], found["WORLD_SIZE"]) == (
            "3",
            "1",
            "2",
            "6",
        )

    def test_an_ipv6_master_loses_its_brackets(self) -> None:
        found = process_environment({}, Train(1, 0, 2, "[fd00::1]:29500"), self.place())
        assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("fd00::1", "29500")

    @pytest.mark.parametrize(
        ("cpus", "base", "threads"),
        [(8, {}, "4"), (1, {}, "1"), (None, {}, None), (8, {"OMP_NUM_THREADS": "2"}, "2")],
    )
    def test_threads_follow_the_cpu_limit_unless_the_user_has_set_them(
        self, cpus: int | None, base: dict[str, str], threads: str | None
    ) -> None:
        assert process_environment(base, RUN1, self.place(cpus=cpus)).get("OMP_NUM_THREADS") == threads

    @pytest.mark.parametrize(
        ("base", "options"), [({}, "timeout:1 attempts:4"), ({"RES_OPTIONS": "rotate"}, "rotate")], ids=["unset", "set"]
    )
    def test_a_name_server_is_asked_again_soon_unless_the_user_has_set_how(
        self, base: dict[str, str], options: str
    ) -> None:
        assert process_environment(base, RUN1, self.place())["RES_OPTIONS"] == options


class TestCpuLimit:
    @pytest.mark.parametrize(
        ("text", "cpus"), [("150000 100000\n", 1), ("400000 100000\n", 4), ("50000 100000", 1), ("max 100000", None)]
    )
    def test_cgroup_v2(self, tmp_path: Path, text: str, cpus: int | None) -> None:
        (tmp_path / "cpu.max").write_text(text)
        assert cpu_limit(tmp_path) == cpus

    @pytest.mark.parametrize(("quota", "cpus"), [("200000\n", 2), ("-1\n", None)])
    def test_cgroup_v1(self, tmp_path: Path, quota: str, cpus: int | None) -> None:
        (tmp_path / "cpu").mkdir()
        (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
        (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
        assert cpu_limit(tmp_path) == cpus

    def test_no_cgroup_is_no_limit(self, tmp_path: Path) -> None:
        assert cpu_limit(tmp_path) is None


class TestCommandLine:
    def test_the_operators_settings_are_taken_over(self) -> None:
        environ = {"PERDURE_PROCESSES": "4", "PERDURE_GRACE_SECONDS": "30"}
        assert settings_from(environ) == AgentSettings(processes=4, grace=30)

    def test_without_an_operator_the_defaults_hold(self) -> None:
        assert settings_from({}) == AgentSettings()

    @pytest.mark.parametrize("completion", Completion)
    def test_what_completes_the_job_is_taken_over(self, completion: Completion) -> None:
        assert settings_from({"PERDURE_COMPLETION": completion.value}) == AgentSettings(completion=completion)

    def test_a_wrong_completion_is_named(self) -> None:
        with pytest.raises(UserError, match=r"PERDURE_COMPLETION is 'exit'.* Log or ExitCode"):
            settings_from({"PERDURE_COMPLETION": "exit"})

    @pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²"])
    def test_a_wrong_number_is_named(self, text: str) -> None:
        with pytest.raises(UserError, match=r"PERDURE_PROCESSES is .* integer of at least 1"):
            settings_from({"PERDURE_PROCESSES": text})

    def test_a_missing_command_is_one_line_and_status_2(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["run"]) == 2
        assert capsys.readouterr().err.splitlines() == [
            "perdure: error: no training command: write it after two dashes: perdure run -- python train.py"
        ]

    def test_an_agent_outside_a_pod_is_told_what_to_do(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["run", "--assignment", str(tmp_path / "no" / "file"), "--", "true"]) == 2
        assert "name a file with --assignment" in capsys.readouterr().err

    def test_a_state_folder_that_cannot_be_made_is_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "file").touch()
        options = ["--assignment", str(tmp_path / "assignment"), "--state", str(tmp_path / "file" / "state")]
        assert main(["run", *options, "--", "true"]) == 2
        assert "name a folder with --state" in capsys.readouterr().err

    @pytest.mark.parametrize("command", ["log", "verify"])
    def test_a_folder_that_is_no_root_is_a_mistake(
        self, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([command, f"file://{tmp_path}"]) == 2
        told = capsys.readouterr()
        assert (told.out, "has no log: nothing was ever trained here" in told.err) == ("", True)

    def test_a_root_may_be_written_as_a_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert main(["log", "checkpoints"]) == 2
        assert f"file://{tmp_path}/checkpoints has no log" in capsys.readouterr().err

    def test_it_says_its_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit, match="0"):
            main(["--version"])
        assert re.fullmatch(r"perdure \d+\.\d+\S*\n", capsys.readouterr().out)

    @pytest.mark.parametrize(
        ("lacks", "arguments", "remedy"),
        [("awscrt", "log file:///here", "perdure[runtime]"), ("boto3", "log s3://bucket/job", "perdure[s3]")],
    )
    def test_what_is_not_installed_is_named_with_what_brings_it(self, lacks: str, arguments: str, remedy: str) -> None:
        without = f"import sys; sys.modules[{lacks!r}] = None; sys.argv = ['perdure', *{arguments.split()!r}]"
        code = f"{without}; from perdure.cli.start import main; sys.exit(main())"
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert f"{lacks} is not installed" in line or f"needs {lacks}, which is not installed" in line
        assert remedy in line

    @pytest.mark.parametrize("command", ["log", "show", "verify"])
    def test_an_address_that_is_none_is_one_line_and_status_2(
        self, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main([command, "ftp://somewhere"]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1

    def test_a_root_without_a_commit_has_nothing_to_show(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["show", f"file://{tmp_path}"]) == 2
        assert "has no commit" in capsys.readouterr().err
