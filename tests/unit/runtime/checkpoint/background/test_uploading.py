"""Real processes: what becomes of a save when either of both is killed or stands still, at each act of an upload."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.checkpoint.background import uploading
from perdure.checkpoint.background.arena import Arena
from perdure.checkpoint.background.sealed import PAGE_BYTES
from perdure.checkpoint.background.uploader_messages import DURABLE, LINE_BYTES, MOVES, UploaderWord, write_word
from perdure.checkpoint.background.uploading import ArenaRead, PartUploaded, Uploader, UploadFailed, UploadMoves
from perdure.checkpoint.upload import put_part
from perdure.store import open_store
from tests.support.covering import covering
from tests.support.store import MemoryStore
from tests.unit.runtime.checkpoint.background.bucket import ROOT, Bucket, Hold
from tests.unit.runtime.checkpoint.background.parts import (
    FOLDER,
    INDEX,
    POSITION,
    SECONDS,
    SHARD,
    ended,
    filled,
    open_files,
    part,
    settled,
    stopped,
    zombies,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
ACTS = {
    "before the shard": ("safetensors", False),
    "after the shard": ("safetensors", True),
    "before the index": ("json", False),
    "after the index": ("json", True),
}


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with Bucket() as made:
        yield made


@pytest.fixture
def uploader(arena: Arena, bucket: Bucket) -> Iterator[Uploader]:
    made = Uploader(arena, ROOT, os.environ | bucket.environ)
    yield made
    assert made.close()


@pytest.fixture(params=list(ACTS.values()), ids=list(ACTS))
def act(request: pytest.FixtureRequest) -> tuple[str, bool]:
    found: tuple[str, bool] = request.param
    return found


def of_a_blocking_save(folder: str = FOLDER) -> dict[str, bytes]:
    """The objects of the same part."""
    store = MemoryStore()
    put_part(store, folder, part(), 1, POSITION)
    return store.objects


def folders() -> Iterator[str]:
    """One for each save of a test with several, so that none finds the objects of another."""
    return (f"data/1/7-{number:016x}/" for number in itertools.count())


def stored(bucket: Bucket, folder: str) -> dict[str, bytes]:
    """What is there of one save."""
    return {key: data for key, data in dict(bucket.objects).items() if key.startswith(folder)}


def test_a_part_becomes_durable(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    uploader.order(FOLDER, filled(arena))
    assert uploader.busy == "aa"
    released, durable = settled(uploader)
    assert released == ArenaRead("aa")
    assert isinstance(durable, PartUploaded)
    assert durable.name == "aa"
    assert durable.seconds > 0
    assert durable.index == put_part(MemoryStore(), FOLDER, part(), 1, POSITION)
    assert bucket.objects == of_a_blocking_save()
    assert bucket.puts == [SHARD, INDEX]
    assert uploader.words() == []


def test_it_works_without_standard_streams(bucket: Bucket) -> None:
    kept = [os.dup(stream) for stream in range(3)]
    try:
        for stream in range(3):
            os.close(stream)
        arena = Arena()
        uploader = Uploader(arena, ROOT, os.environ | bucket.environ)
        uploader.order(FOLDER, filled(arena))
        word = settled(uploader)[-1]
        assert uploader._process
        numbers = [arena.fd, uploader._process.orders.fileno(), uploader._process.words]
        assert uploader.close()
        arena.close()
    finally:
        for stream, copy in enumerate(kept):
            os.dup2(copy, stream)
            os.close(copy)
    assert isinstance(word, PartUploaded)
    assert min(numbers) > 2


def test_one_process_uploads_one_save_after_the_other(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    uploader.order(FOLDER, filled(arena))
    settled(uploader)
    first = uploader.pid
    uploader.order("data/1/8-bb/", filled(arena, b"abc", name="bb"))
    assert isinstance(settled(uploader)[-1], PartUploaded)
    assert uploader.pid == first
    assert uploader.busy is None
    assert bucket.objects["data/1/8-bb/shard-00000-of-00001.safetensors"] == b"abc"


def test_a_second_order_at_once_is_refused(uploader: Uploader, arena: Arena) -> None:
    copy = filled(arena)
    uploader.order(FOLDER, copy)
    with pytest.raises(RuntimeError, match="save aa is still under way"):
        uploader.order(FOLDER, copy)


def test_an_uploader_that_is_killed_at_any_act_is_a_failed_save_and_its_successor_finishes_it(
    uploader: Uploader, arena: Arena, bucket: Bucket
) -> None:
    """Of each save the successor is the one that is killed in the next."""
    for act, folder in zip(ACTS, folders(), strict=False):
        suffix, after = ACTS[act]
        copy, hold = filled(arena), bucket.hold(suffix, after=after)
        uploader.order(folder, copy)
        assert hold.arrived.wait(SECONDS), act
        assert uploader.pid
        os.kill(uploader.pid, signal.SIGKILL)
        assert settled(uploader)[-1] == UploadFailed("aa", "the uploader ended: killed by SIGKILL"), act
        assert uploader.words() == []
        assert uploader.reap()
        uploader.order(folder, copy)
        assert isinstance(settled(uploader)[-1], PartUploaded), act
        hold.go.set()
        assert stored(bucket, folder) == of_a_blocking_save(folder), act


def test_an_uploader_that_is_stopped_at_any_act_holds_no_rank_up_and_continues(
    uploader: Uploader, arena: Arena, bucket: Bucket
) -> None:
    for act, folder in zip(ACTS, folders(), strict=False):
        suffix, after = ACTS[act]
        hold = bucket.hold(suffix, after=after)
        uploader.order(folder, filled(arena))
        assert hold.arrived.wait(SECONDS), act
        assert uploader.pid
        os.kill(uploader.pid, signal.SIGSTOP)
        stopped(uploader.pid)
        hold.go.set()
        assert not any(isinstance(word, PartUploaded) for word in uploader.words()), act
        os.kill(uploader.pid, signal.SIGCONT)
        assert isinstance(settled(uploader)[-1], PartUploaded), act
        assert stored(bucket, folder) == of_a_blocking_save(folder), act


def test_an_uploader_that_stands_still_or_waits_for_its_store_is_killed_and_reaped(
    uploader: Uploader, arena: Arena, bucket: Bucket
) -> None:
    others = zombies()
    for stop in (False, True):
        hold = bucket.hold("json", after=False)
        copy = filled(arena, name="aa")
        uploader.order(FOLDER, copy)
        assert hold.arrived.wait(SECONDS)
        assert uploader.pid
        if stop:
            os.kill(uploader.pid, signal.SIGSTOP)
            stopped(uploader.pid)
        uploader.kill()
        assert uploader.busy is None
        assert uploader.reap()
        assert uploader.words() == []
        hold.go.set()
    assert zombies() <= others


def test_what_was_said_before_a_kill_is_never_heard(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    hold = bucket.hold("json", after=False)
    uploader.order(FOLDER, filled(arena))
    assert hold.arrived.wait(SECONDS)  # it has said: released
    uploader.kill()
    uploader.reap()
    hold.go.set()
    uploader.order("data/1/8-bb/", filled(arena, b"abc", name="bb"))
    assert [word.name for word in settled(uploader)] == ["bb", "bb"]


def test_words_of_another_save_are_not_heard(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    hold = bucket.hold("safetensors", after=False)
    uploader.order(FOLDER, filled(arena, name="bb"))
    assert hold.arrived.wait(SECONDS)
    assert uploader._process
    uploader._hear(uploader._process, write_word(UploaderWord(DURABLE, "aa", 1.0)))
    assert uploader.words() == []
    assert uploader.busy == "bb"
    hold.go.set()
    assert isinstance(settled(uploader)[-1], PartUploaded)


def test_an_upload_that_moves_is_heard(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    hold = bucket.hold("safetensors", after=False)
    uploader.order(FOLDER, filled(arena))
    assert hold.arrived.wait(SECONDS)
    assert uploader._process
    for name in ("aa", "bb"):
        uploader._hear(uploader._process, write_word(UploaderWord(MOVES, name)))
    assert uploader.words() == [UploadMoves("aa")]
    assert uploader.busy == "aa"
    hold.go.set()
    assert isinstance(settled(uploader)[-1], PartUploaded)


@pytest.mark.parametrize("said", [b"{}\n", b"[]\n", b"no json\n", b"x" * (LINE_BYTES + 1)])
def test_an_uploader_that_talks_nonsense_is_killed(uploader: Uploader, arena: Arena, said: bytes) -> None:
    uploader.order(FOLDER, filled(arena))  # it still imports
    assert uploader._process
    uploader._hear(uploader._process, said)
    (word,) = uploader.words()
    assert isinstance(word, UploadFailed)
    assert "it sent an unknown message" in word.why
    assert uploader.reap()


def run_owner(bucket: Bucket, how: str, act: tuple[str, bool]) -> tuple[subprocess.Popen[str], list[int], Hold]:
    """A trainer whose save is held at this act; with the ids that it prints."""
    hold = bucket.hold(act[0], after=act[1])
    module = "tests.unit.runtime.checkpoint.background.owner"
    owner = subprocess.Popen(
        [sys.executable, "-m", module, ROOT, how], env=os.environ | bucket.environ, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout
    pids = [int(word) for word in owner.stdout.readline().split()]
    if not hold.arrived.wait(SECONDS):
        owner.kill()
        for pid in pids[1:]:
            if pid:
                os.kill(pid, signal.SIGKILL)  # otherwise it outlives its owner
        owner.communicate()
        pytest.fail(f"the save has not come to {act[0]} within {SECONDS} s")
    return owner, pids, hold


@pytest.mark.parametrize(("moment", "how"), covering(list(ACTS), ["main", "thread", "fork", "held"]))
def test_an_uploader_ends_with_its_owner_also_while_its_store_does_not_answer(
    bucket: Bucket, moment: str, how: str
) -> None:
    owner, (uploader, worker), _ = run_owner(bucket, how, ACTS[moment])
    with owner:
        owner.kill()
        owner.wait()
        ended(uploader)
        if worker:
            os.kill(worker, signal.SIGKILL)


def test_a_stopped_uploader_ends_with_its_owner(bucket: Bucket) -> None:
    owner, (uploader, _), _ = run_owner(bucket, "main", ("safetensors", False))
    with owner:
        os.kill(uploader, signal.SIGSTOP)
        owner.kill()
        owner.wait()
        ended(uploader)


def test_an_uploader_goes_on_while_its_owner_stands_still(bucket: Bucket, act: tuple[str, bool]) -> None:
    owner, (uploader, _), hold = run_owner(bucket, "main", act)
    with owner:
        owner.send_signal(signal.SIGSTOP)
        stopped(owner.pid)
        hold.go.set()
        assert bucket.wait_for(INDEX)
        assert bucket.objects == of_a_blocking_save()
        owner.kill()
        owner.wait()
        ended(uploader)


def test_signals_of_a_stop_are_the_owners_to_see_to(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    hold = bucket.hold("safetensors", after=False)
    uploader.order(FOLDER, filled(arena))
    assert hold.arrived.wait(SECONDS)
    assert uploader.pid
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(uploader.pid, number)
    hold.go.set()
    assert isinstance(settled(uploader)[-1], PartUploaded)


def test_it_has_a_session_of_its_own_low_priority_the_arena_and_two_pipes_and_no_torch(
    uploader: Uploader, arena: Arena, tmp_path: Path
) -> None:
    uploader._root = f"file://{tmp_path}"  # a server's connection would be open, too
    uploader.order(FOLDER, filled(arena))
    assert isinstance(settled(uploader)[-1], PartUploaded)
    pid = uploader.pid
    assert pid
    assert os.getsid(pid) == pid
    assert os.getpriority(os.PRIO_PROCESS, pid) >= min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
    assert sum(name.startswith("/memfd:perdure-arena") for name in open_files(pid)) == 1
    assert len(open_files(pid)) == len(("input", "output", "errors", "arena", "orders", "words"))
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_it_imports_neither_torch_nor_numpy(bucket: Bucket) -> None:
    text = (
        "import sys; from perdure.checkpoint.background import uploader; from perdure.store import open_store; "
        f"import os; open_store({ROOT!r}, os.environ).head('x'); open_store('file:///nowhere', os.environ); "
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'torch', 'numpy', 'safetensors', 'pickle'}))"
    )
    environ = os.environ | bucket.environ
    done = subprocess.run([sys.executable, "-P", "-c", text], env=environ, capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout
    assert "numpy" not in done.stdout
    assert "safetensors" not in done.stdout


def test_it_does_not_end_with_the_thread_that_started_it(uploader: Uploader, arena: Arena) -> None:
    def first() -> None:
        uploader.order(FOLDER, filled(arena))
        settled(uploader)

    thread = threading.Thread(target=first)
    thread.start()
    thread.join()
    pid = uploader.pid
    uploader.order(FOLDER, filled(arena))
    assert isinstance(settled(uploader)[-1], PartUploaded)
    assert uploader.pid == pid


def test_it_ends_when_its_pipe_is_closed(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    hold = bucket.hold("safetensors", after=False)
    uploader.order(FOLDER, filled(arena))
    assert hold.arrived.wait(SECONDS)
    assert uploader._process
    assert uploader.pid
    uploader._process.orders.close()
    ended(uploader.pid)
    assert settled(uploader) == [UploadFailed("aa", "the uploader ended: exit status 0")]


def test_a_forked_worker_has_none_of_its_pipes(uploader: Uploader, arena: Arena) -> None:
    uploader.order(FOLDER, filled(arena))
    assert uploader._process
    ends = [os.readlink(f"/proc/self/fd/{fd}") for fd in (uploader._process.orders.fileno(), uploader._process.words)]  # noqa: PTH115
    child = os.fork()
    if not child:
        os._exit(sum(name in ends for name in open_files()))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(settled(uploader)[-1], PartUploaded)


def test_fifty_saves_and_five_deaths_leave_neither_files_nor_processes(tmp_path: Path) -> None:
    before, others = Counter(open_files()), zombies()
    arena = Arena()
    uploader = Uploader(arena, f"file://{tmp_path}")
    for number in range(50):
        uploader.order(f"data/1/{number}/", filled(arena, name=str(number)))
        if number % 10 == 9:
            uploader.kill()
            assert uploader.reap()
        else:
            assert isinstance(settled(uploader)[-1], PartUploaded)
    assert uploader.close()
    arena.close()
    assert Counter(open_files()) <= before  # what other tests have left open may be closed meanwhile
    assert zombies() <= others


def test_an_uploader_that_has_died_in_between_costs_no_save(uploader: Uploader, arena: Arena) -> None:
    uploader.order(FOLDER, filled(arena))
    settled(uploader)
    assert uploader.pid
    os.kill(uploader.pid, signal.SIGKILL)
    ended(uploader.pid)
    uploader.order(FOLDER, filled(arena))
    assert isinstance(settled(uploader)[-1], PartUploaded)


def test_an_order_to_a_dead_uploader_is_a_failed_save_also_where_a_broken_pipe_ends_a_process(
    uploader: Uploader, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploader.start()
    assert uploader.pid
    os.kill(uploader.pid, signal.SIGKILL)
    ended(uploader.pid)
    assert uploader._process
    monkeypatch.setattr(uploader._process.child, "poll", lambda: None)  # it dies a moment later
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        uploader.order(FOLDER, filled(arena))
    finally:
        signal.signal(signal.SIGPIPE, before)
    (word,) = uploader.words()
    assert isinstance(word, UploadFailed)
    assert "it cannot be ordered" in word.why
    assert uploader.reap()


def test_a_process_that_cannot_be_started_is_a_failed_save(
    uploader: Uploader, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Counter(open_files())
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    uploader.order(FOLDER, filled(arena))
    (word,) = uploader.words()
    assert isinstance(word, UploadFailed)
    assert "/nowhere/python" in word.why
    assert Counter(open_files()) <= before


def test_a_process_that_ends_at_once_is_a_failed_save(
    uploader: Uploader, arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "_MAIN", "import perdure.no.such.module")
    uploader.start()
    uploader.order(FOLDER, filled(arena))
    assert settled(uploader)[-1] == UploadFailed("aa", "the uploader ended: exit status 1")


def test_an_arena_that_was_changed_anywhere_after_its_copy_is_not_uploaded(
    uploader: Uploader, arena: Arena, bucket: Bucket
) -> None:
    for where in (PAGE_BYTES, PAGE_BYTES + 9, PAGE_BYTES + 10, 30):
        copy = filled(arena)
        (byte,) = os.pread(arena.fd, 1, where)
        os.pwrite(arena.fd, bytes([byte ^ 1]), where)
        uploader.order(FOLDER, copy)
        (word,) = settled(uploader)
        assert isinstance(word, UploadFailed), where
        assert not word.refused
        assert bucket.objects == {}, where


def test_an_arena_that_changes_while_it_is_uploaded_gets_no_index(
    uploader: Uploader, arena: Arena, tmp_path: Path
) -> None:
    data = bytes(20_000_000)
    copy = filled(arena, data)
    os.pwrite(arena.fd, b"9", PAGE_BYTES + len(data) - 1)  # in the last block, after all others are with the store
    uploader._root = f"file://{tmp_path}"
    uploader.order(FOLDER, copy)
    (word,) = settled(uploader)
    assert isinstance(word, UploadFailed)
    assert "has changed since" in word.why
    assert open_store(f"file://{tmp_path}", {}).list("") == []


def test_an_arena_that_was_cut_short_anywhere_is_not_uploaded_and_the_next_one_is(
    uploader: Uploader, arena: Arena, bucket: Bucket
) -> None:
    sizes = (0, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 5, PAGE_BYTES + 12)
    for size, folder in zip(sizes, folders(), strict=False):
        copy = filled(arena)
        os.ftruncate(arena.fd, size)
        uploader.order(folder, copy)
        (word,) = settled(uploader)
        assert isinstance(word, UploadFailed), size
        assert stored(bucket, folder) == {}, size
        uploader.order(folder, filled(arena))
        assert isinstance(settled(uploader)[-1], PartUploaded), size


def test_an_arena_that_holds_another_save_is_not_uploaded(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    copy = filled(arena)
    filled(arena, name="bb")
    uploader.order(FOLDER, copy)
    assert settled(uploader) == [UploadFailed("aa", "the arena holds save bb of step 7 instead of save aa of step 7")]
    arena.unseal()
    uploader.order(FOLDER, copy)
    assert settled(uploader) == [UploadFailed("aa", "the arena holds no whole part instead of save aa of step 7")]
    assert bucket.objects == {}


def test_a_store_in_trouble_is_a_failed_save_and_one_that_refuses_is_said_to(
    uploader: Uploader, arena: Arena, bucket: Bucket
) -> None:
    copy = filled(arena)
    bucket.answer(503, 503)
    uploader.order(FOLDER, copy)
    (word,) = settled(uploader)
    assert isinstance(word, UploadFailed)
    assert not word.refused
    assert SHARD in word.why
    bucket.answer(403)
    uploader.order(FOLDER, copy)
    (word,) = settled(uploader)
    assert isinstance(word, UploadFailed)
    assert word.refused
    uploader.order(FOLDER, copy)
    assert isinstance(settled(uploader)[-1], PartUploaded)


def test_a_root_or_keys_that_cannot_be_used_are_the_users_to_mend(arena: Arena, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    for root, why in (("gs://bucket", "gs:// is not supported"), (ROOT, "no S3 credentials")):
        uploader = Uploader(arena, root, environ)
        uploader.order(FOLDER, filled(arena))
        (word,) = settled(uploader)
        assert isinstance(word, UploadFailed)
        assert word.refused
        assert why in word.why
        assert uploader.close()


def test_another_part_under_the_same_name_is_not_overwritten(uploader: Uploader, arena: Arena, bucket: Bucket) -> None:
    for key in (SHARD, INDEX):
        bucket.objects.clear()
        bucket.objects[key] = b"9876543210"
        uploader.order(FOLDER, filled(arena))
        word = settled(uploader)[-1]
        assert isinstance(word, UploadFailed)
        assert f"{key} exists already" in word.why
        assert bucket.objects[key] == b"9876543210"
    assert INDEX in bucket.objects


def test_a_disk_that_is_full_is_a_failed_save_and_not_refused(arena: Arena, tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        uploader = Uploader(arena, f"file://{tmp_path}")
        uploader.order(FOLDER, filled(arena, bytes(2_000_000)))
        (word,) = settled(uploader)
        assert isinstance(word, UploadFailed)
        assert not word.refused
        assert "make room there" in word.why
        uploader.order(FOLDER, filled(arena, bytes(200_000)))
        assert isinstance(settled(uploader)[-1], PartUploaded)
        assert uploader.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)
