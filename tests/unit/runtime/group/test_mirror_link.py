"""Files go to another rank whole or not at all, over real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from perdure.group.mirror_link import MAGIC_BYTES, TOKEN_BYTES, LinkBroken, MirrorReceiver, MirrorSender, own_address

MAGIC = b"PERDURE!"


@pytest.fixture
def kept(tmp_path: Path) -> list[Path]:
    """The receiver's files."""
    paths = [tmp_path / "kept-0", tmp_path / "kept-1"]
    for path in paths:
        path.touch()
    return paths


@pytest.fixture
def receiver(kept: list[Path]) -> Iterator[MirrorReceiver]:
    one = MirrorReceiver(kept, lambda _: True)
    yield one
    one.close()


def connected(receiver: MirrorReceiver) -> MirrorSender:
    return MirrorSender(("127.0.0.1", receiver.port), receiver.token)


def written(folder: Path, body: bytes) -> Path:
    path = folder / "own"
    path.write_bytes(MAGIC + body)
    return path


def test_a_file_arrives_as_it_is_and_the_next_one_takes_its_place(
    tmp_path: Path, kept: list[Path], receiver: MirrorReceiver
) -> None:
    sender = connected(receiver)
    for number, body in ((0, os.urandom(3_000_001)), (1, b""), (0, os.urandom(70)), (1, os.urandom(9_000_000))):
        sender.send(number, written(tmp_path, body))
        assert kept[number].read_bytes() == MAGIC + body
    sender.close()


def test_one_that_is_cut_off_is_torn_and_the_other_file_stays(
    tmp_path: Path, kept: list[Path], receiver: MirrorReceiver
) -> None:
    sender = connected(receiver)
    sender.send(0, written(tmp_path, b"before"))
    sender.send(1, written(tmp_path, b"the last whole one"))
    sender.close()
    body = os.urandom(5_000_000)
    with socket.create_connection(("127.0.0.1", receiver.port)) as half:
        half.sendall(receiver.token)
        assert len(half.recv(8)) == 8
        half.sendall((0).to_bytes(8, "little") + (len(body) + MAGIC_BYTES).to_bytes(8, "little") + MAGIC + body[:-1])
    again = connected(receiver)  # it is served once the other one has ended
    assert kept[0].read_bytes() == b"", "it has no memory any more"
    assert kept[1].read_bytes() == MAGIC + b"the last whole one"
    again.send(0, written(tmp_path, body))
    assert kept[0].read_bytes() == MAGIC + body
    again.close()


def test_whoever_does_not_know_the_token_writes_nothing(
    tmp_path: Path, kept: list[Path], receiver: MirrorReceiver
) -> None:
    with pytest.raises(LinkBroken):
        MirrorSender(("127.0.0.1", receiver.port), bytes(TOKEN_BYTES))
    sender = connected(receiver)
    sender.send(0, written(tmp_path, b"body"))
    assert kept[0].read_bytes() == MAGIC + b"body"
    sender.close()


@pytest.mark.parametrize("size", [50_000, 100_000_000], ids=["sent before the answer", "cut off by the answer"])
def test_a_file_that_the_receiver_has_no_memory_for_is_refused_and_the_one_before_stays(
    tmp_path: Path, kept: list[Path], size: int
) -> None:
    asked: list[int] = []

    def has_room(grows_by: int) -> bool:
        asked.append(grows_by)
        return grows_by < 1000

    receiver = MirrorReceiver(kept, has_room)
    sender = connected(receiver)
    sender.send(0, written(tmp_path, b"small"))
    with pytest.raises(LinkBroken, match="no memory"):
        sender.send(0, written(tmp_path, bytes(size)))
    assert kept[0].read_bytes() == MAGIC + b"small"
    assert len(asked) == 2
    sender.close()
    receiver.close()


@pytest.mark.parametrize("number", [2, 2**63])
def test_a_file_of_a_number_that_there_is_not_is_refused(tmp_path: Path, receiver: MirrorReceiver, number: int) -> None:
    sender = connected(receiver)
    with pytest.raises(LinkBroken):
        sender.send(number, written(tmp_path, b""))
    sender.close()


def test_nothing_is_written_once_the_receiver_is_closed(tmp_path: Path, kept: list[Path]) -> None:
    """As when a run has ended, and the next one reads the files."""
    receiver = MirrorReceiver(kept, lambda _: True)
    sender = connected(receiver)
    sender.send(0, written(tmp_path, b"before"))
    receiver.close()
    with pytest.raises(LinkBroken):
        sender.send(0, written(tmp_path, b"after"))
    assert kept[0].read_bytes() == MAGIC + b"before"
    sender.close()
    with pytest.raises(LinkBroken):
        connected(receiver)


def test_a_send_that_waits_ends_when_its_connection_is_closed(tmp_path: Path) -> None:
    """Its other end takes the connection, and reads no file: a frozen process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        path, ended, begun = written(tmp_path, bytes(64_000_000)), list[str](), threading.Event()

        def frozen() -> None:
            connection, _ = listener.accept()
            connection.sendall(bytes(8))
            begun.wait()
            held.append(connection)

        held: list[socket.socket] = []
        thread = threading.Thread(target=frozen)
        thread.start()
        sender = MirrorSender(("127.0.0.1", listener.getsockname()[1]), bytes(TOKEN_BYTES))

        def send() -> None:
            try:
                sender.send(0, path)
            except LinkBroken as error:
                ended.append(str(error))

        waits = threading.Thread(target=send)
        waits.start()
        begun.set()
        thread.join()
        sender.close()
        waits.join(120)
        assert ended
        held[0].close()


@pytest.mark.parametrize("turn", range(5))
def test_a_send_that_is_closed_writes_nothing_into_files_that_are_opened_then(
    tmp_path: Path, kept: list[Path], receiver: MirrorReceiver, turn: int
) -> None:
    """A file gets the number of the socket that was closed."""
    sender, path, begun = connected(receiver), written(tmp_path, bytes(200_000_000)), threading.Event()

    def send() -> None:
        begun.set()
        with suppress(LinkBroken):
            sender.send(turn % 2, path)

    thread = threading.Thread(target=send)
    thread.start()
    begun.wait()
    while not kept[turn % 2].stat().st_size and thread.is_alive():
        pass
    sender.close()
    with (tmp_path / "other").open("wb") as other:
        thread.join()
        assert os.fstat(other.fileno()).st_size == 0


def test_one_that_names_its_token_byte_by_byte_is_sent_away(tmp_path: Path, receiver: MirrorReceiver) -> None:
    ended = threading.Event()
    with socket.create_connection(("127.0.0.1", receiver.port)) as slow:

        def drip() -> None:
            with suppress(OSError):
                while not ended.wait(0.3):
                    slow.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        sender = connected(receiver)  # it waits for its turn
        sender.send(0, written(tmp_path, b"body"))
        ended.set()
        thread.join()
    sender.close()


def test_its_own_address_is_the_one_from_which_it_reaches_the_other() -> None:
    assert own_address(("127.0.0.1", 29500)) == "127.0.0.1"


def test_of_several_addresses_of_the_other_it_takes_one_to_which_there_is_a_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def addresses(host: str, port: int, **_: object) -> list[object]:
        """To the first one nothing may be sent."""
        found = (socket.AF_INET, socket.SOCK_DGRAM, 0, "")
        return [(*found, (address, port)) for address in ("255.255.255.255", "127.0.0.1")[: int(host)]]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    assert own_address(("2", 29500)) == "127.0.0.1"
    with pytest.raises(PermissionError):
        own_address(("1", 29500))
