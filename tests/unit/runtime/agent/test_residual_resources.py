"""What a trainer at its interpreter's end still has, as /proc tells it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.agent.residual_resources import held_by, is_room

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LISTENS = "0: 0100007F:7330 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1 0 100 0 0 10 0\n"
RECEIVES = "  7: 00000000:1FBD 00000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 77 2 0 0\n"
SENDS = "  7: 0100007F:D431 0100007F:1FBD 01 00000000:00000000 00:00000000 00000000 0 0 77 2 0 0\n"
UNIX = "Num       RefCount Protocol Flags    Type St Inode Path\n"


def proc(root: Path, target: str, *, tcp: str = "", unix: str = "", locks: str = "", flags: str = "02") -> Path:
    """With process 7, which has `target` open."""
    process = root / "7"
    for folder in ("fd", "fdinfo", "net"):
        (process / folder).mkdir(parents=True)
    (process / "fd" / "5").symlink_to(target)
    (process / "fdinfo" / "5").write_text(f"pos:\t0\nflags:\t01000{flags}\nmnt_id:\t9\n")
    (process / "net" / "tcp").write_text(HEAD + tcp)
    (process / "net" / "unix").write_text(UNIX + unix)
    (root / "locks").write_text(locks)
    return root


@pytest.mark.parametrize("target", ["/dev/null", "/dev/urandom", "/dev/pts/0", "socket:[78]", "pipe:[77]"])
def test_what_everybody_may_have_open_is_not_held(tmp_path: Path, target: str) -> None:
    assert held_by(7, root=proc(tmp_path, target, tcp=LISTENS)) == ""


@pytest.mark.parametrize("target", ["/dev/nvidia0", "/dev/kfd", "/dev/infiniband/uverbs0"])
def test_a_device_is_held(tmp_path: Path, target: str) -> None:
    assert held_by(7, root=proc(tmp_path, target)) == f"it has {target} open"


def test_a_port_is_held_but_for_that_of_the_run_itself(tmp_path: Path) -> None:
    root = proc(tmp_path, "socket:[77]", tcp=LISTENS)
    assert held_by(7, root=root) == "it listens on port 29488"
    assert held_by(7, 29488, root) == ""


@pytest.mark.parametrize(("line", "held"), [(RECEIVES, "it listens on UDP port 8125"), (SENDS, "")])
def test_a_port_for_datagrams_is_held_where_anybody_may_send_to_it(tmp_path: Path, line: str, held: str) -> None:
    root = proc(tmp_path, "socket:[77]")
    (root / "7" / "net" / "udp").write_text(HEAD + line)
    assert held_by(7, root=root) == held


@pytest.mark.parametrize("kind", ["00010000 0001 01", "00000000 0002 01"], ids=["stream", "datagrams"])
def test_a_socket_with_a_name_is_held(tmp_path: Path, kind: str) -> None:
    line = f"0: 00000002 00000000 {kind} 77 @metrics\n"
    assert held_by(7, root=proc(tmp_path, "socket:[77]", unix=line)) == "it listens on the socket @metrics"


def test_a_socket_for_datagrams_without_a_name_is_not(tmp_path: Path) -> None:
    line = "0: 00000002 00000000 00000000 0002 01 77\n"
    assert held_by(7, root=proc(tmp_path, "socket:[77]", unix=line)) == ""


@pytest.mark.parametrize(("flags", "held"), [("00", False), ("01", True), ("02", True)], ids=["read", "write", "both"])
def test_a_file_is_held_where_it_can_be_written_to(tmp_path: Path, flags: str, held: bool) -> None:
    file = tmp_path / "metrics.csv"
    file.write_text("")
    assert held_by(7, root=proc(tmp_path, str(file), flags=flags)) == (f"it writes to {file}" if held else "")


@pytest.mark.parametrize(
    "line", ["1: FLOCK  ADVISORY  WRITE 7 00:2b:5 0 EOF\n", "1: -> POSIX  ADVISORY  READ  7 00:2b:5 0 EOF\n"]
)
def test_a_lock_is_held(tmp_path: Path, line: str) -> None:
    assert held_by(7, root=proc(tmp_path, "pipe:[1]", locks=line)) == "it holds a lock on a file"


def test_the_lock_of_another_is_not(tmp_path: Path) -> None:
    line = "1: FLOCK  ADVISORY  WRITE 77 00:2b:7 0 EOF\n"
    assert held_by(7, root=proc(tmp_path, "pipe:[1]", locks=line)) == ""


def test_what_cannot_be_read_counts_as_held(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (python) S 1 7 7 0\n")
    assert held_by(7, root=tmp_path).startswith("what it has cannot be read: ")


@pytest.mark.parametrize("stat", [None, "7 (a) b) Z 1 7 7 0\n"], ids=["reaped", "not reaped"])
def test_a_process_that_ends_while_it_is_read_holds_nothing(tmp_path: Path, stat: str | None) -> None:
    if stat is not None:
        (tmp_path / "7").mkdir()
        (tmp_path / "7" / "stat").write_text(stat)
    assert held_by(7, root=tmp_path) == ""


@pytest.mark.parametrize(("limit", "room"), [(10**5, False), (10**12, True)])
def test_there_is_room_where_another_like_it_fits(tmp_path: Path, limit: int, room: bool) -> None:
    (tmp_path / "memory.max").write_text(str(limit))
    (tmp_path / "memory.current").write_text("0")
    (tmp_path / "memory.stat").write_text("")
    (tmp_path / "meminfo").write_text("MemAvailable:   900000000 kB\n")
    assert is_room(os.getpid(), tmp_path, tmp_path / "meminfo") is room
    assert not is_room(10**9, tmp_path, tmp_path / "meminfo")
