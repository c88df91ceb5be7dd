"""What a rank that has lost a peer leaves behind: where it stood when it was last asked for a batch, or nothing."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from perdure.checkpoint.codec import decode
from perdure.checkpoint.image_file import Image, Label, read_images, write_image
from perdure.checkpoint.upload import Staged
from perdure.errors import Corrupt, PeerLost
from perdure.group.agreement import Agreement, Meeting
from perdure.group.peers import Alone
from perdure.group.world import Group, connect_group
from perdure.loop import copy_budget, safe_point, survivor_snapshots
from perdure.loop.last_step import LastStep
from perdure.loop.position.accumulating import Accumulator
from perdure.loop.run import Run
from perdure.loop.telemetry.events import Event
from perdure.wire.channel import Imaged, Imaging
from perdure.wire.settings import Settings
from tests.unit.runtime.session.scenarios import Seen, dealt

SECONDS = 60


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def take(self, event: Event) -> None:
        self.events.append(event)


class Training:
    """One of two ranks, without the other: everything but their collectives."""

    def __init__(self, folder: Path, extra: nn.Module | None = None) -> None:
        torch.manual_seed(7)
        self.path = folder / "image"
        self.path.touch()
        self.run = Run(Settings(folder.as_uri(), uid="u", run=3, rank=1, world=2, image_file=self.path))
        self.run.peers = Alone(1, 2)
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)
        self.model = nn.Sequential(self.linear, self.norm, nn.Dropout(0.5), extra or nn.Identity())
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        for name in ("model", "optimizer", "scheduler"):
            self.run.registry.add(name, getattr(self, name))
        self.run.images.begin()

    def forward(self) -> Tensor:
        result: Tensor = self.model(torch.rand(8, 4)).sum()
        return result

    def step(self) -> None:
        """One whole step, up to the next batch."""
        self.optimizer.zero_grad()
        self.forward().backward()
        self.optimizer.step()
        self.run.progress.step += 1
        self.scheduler.step()
        self.run.progress.saved = False
        self.run.images.reach_safe_point()

    def whole(self) -> dict[str, Any]:
        """What a commit made here would hold."""
        state = self.run.state()
        return copy.deepcopy({"shared": state.shared, "replicated": state.replicated, "objects": state.objects})

    @property
    def image(self) -> Image | None:
        try:
            return Image(self.path)
        except Corrupt:
            return None


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    one = Training(tmp_path)
    yield one
    one.run.images.end()


def same(image: Image, whole: dict[str, Any]) -> bool:
    body = b"".join(bytes(block) for block in image.blocks())
    for item in image.items:
        tensor = whole[item.part][item.name]
        if body[item.start : item.end] != bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()):
            return False
    tensors = len(whole["shared"]) + len(whole["replicated"])
    return len(image.items) == tensors and bool(decode(image.objects) == whole["objects"])


def test_an_image_is_where_a_commit_would_be_whatever_the_broken_step_has_moved(training: Training) -> None:
    training.step()
    training.step()
    then, drawn = training.whole(), torch.get_rng_state()
    training.forward().backward()
    training.optimizer.param_groups[0]["lr"] = 17.0
    training.scheduler.last_epoch = 99
    training.run.images.leave()
    image = training.image
    assert image
    assert (image.label.stamp.run, image.label.stamp.step, image.label.stamp.rank) == (3, 2, 1)
    assert same(image, then)
    assert torch.equal(torch.from_numpy(decode(image.state)["rng"]["torch"]), drawn)


def test_of_a_part_that_the_script_has_replaced_the_new_one_counts(tmp_path: Path) -> None:
    training = Training(tmp_path, nn.BatchNorm1d(3, affine=False))
    training.step()
    training.model[3] = nn.BatchNorm1d(3, affine=False)
    training.step()
    then = training.whole()
    training.run.images.leave()
    training.run.images.end()
    assert training.image
    assert same(training.image, then)


def test_two_ranks_at_one_step_have_the_same_sum_although_their_buffers_differ(tmp_path: Path) -> None:
    sums: list[str] = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        training = Training(tmp_path / name)
        training.step()
        assert training.norm.running_mean is not None
        training.norm.running_mean += len(sums)
        training.run.images.reach_safe_point()
        training.run.images.leave()
        training.run.images.end()
        assert training.image
        sums.append(training.image.label.crc)
    assert sums[0] == sums[1]


@pytest.mark.parametrize("when", ["added", "never read", "by the other alone", "read"])
def test_sums_that_the_lost_rank_may_have_added_to_are_not_made_up(training: Training, when: str) -> None:
    sums = training.run.progress.sums
    scores = Accumulator("scores", sums, lambda told, _: [told, told if when != "by the other alone" else {}])
    scores.add(n=1)
    if when != "never read":
        assert scores.sum() == {"n": 1 if when == "by the other alone" else 2}
    if when == "added":
        scores.add(n=1)
    told = Told()
    training.run.reporter.add(told)
    training.step()
    training.run.images.leave()
    (imaged,) = (event for event in told.events if isinstance(event, Imaged))
    assert (training.image is None, "accumulators is lost" in imaged.why) == (when != "read", when != "read")


def test_with_state_that_each_rank_has_of_its_own_there_is_none(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.run.images.end()
    training.run.registry.add("seen", Seen(), merge=dealt)
    training.run.images.begin()
    told = Told()
    training.run.reporter.add(told)
    training.step()
    training.run.images.leave()
    (imaged,) = (event for event in told.events if isinstance(event, Imaged))
    assert training.image is None
    assert "each rank has its own state of seen" in imaged.why


def test_in_the_middle_of_a_step_there_is_none(training: Training) -> None:
    training.step()
    training.forward().backward()
    training.optimizer.step()
    training.run.images.leave()
    assert training.image is None


def _noise(training: Training) -> None:
    training.linear.weight.data.add_(torch.randn(3, 4), alpha=0.01)


def _decay(training: Training) -> None:
    training.linear.weight.detach().numpy()[:] *= 0.9  # torch does not count it


def _another(training: Training) -> None:
    training.linear.weight.data = training.linear.weight.data * 0.9


def _replaced(training: Training) -> None:
    training.linear.weight = nn.Parameter(training.linear.weight.detach() * 0.9)


def _momentum(training: Training) -> None:
    training.optimizer.state[training.linear.weight]["exp_avg"].mul_(0.5)


@pytest.mark.parametrize("writes", [_noise, _decay, _another, _replaced, _momentum])
def test_what_writes_past_the_optimizer_is_noticed(training: Training, writes: Callable[[Training], None]) -> None:
    training.step()
    writes(training)
    training.forward().backward()
    training.run.images.leave()
    assert training.image is None


def test_a_perturbation_that_is_undone_leaves_the_place_as_it_was(training: Training) -> None:
    training.step()
    kept = training.linear.weight.data
    _another(training)
    training.forward().backward()
    training.linear.weight.data = kept
    training.run.images.leave()
    assert training.image


@pytest.mark.parametrize("counted", [True, False])
def test_a_step_whose_error_the_script_has_caught_is_done_again(training: Training, *, counted: bool) -> None:
    training.step()
    then, drawn = training.whole(), torch.get_rng_state()
    for _ in range(2):
        training.forward().backward()
        training.run.progress.step += counted
        training.run.images.reach_safe_point()
    training.run.images.leave()
    image = training.image
    assert image
    assert image.label.stamp.step == image.label.position.step == 1
    assert same(image, then)
    assert torch.equal(torch.from_numpy(decode(image.state)["rng"]["torch"]), drawn)


def test_what_moves_on_while_the_image_is_written_takes_it_back(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer may be killed at any moment: the agent then finds it incomplete, never whole for a while."""
    found: list[Image | None] = []

    def written_late(path: Path, label: Label, staged: Staged, stands: Callable[[], bool], begin: int) -> int:
        def asked() -> bool:
            found.append(training.image)
            return stands()

        _noise(training)
        return write_image(path, label, staged, asked, begin)

    training.step()
    monkeypatch.setattr(safe_point, "write_image", written_late)
    training.run.images.leave()
    assert [*found, training.image] == [None, None]


def test_a_request_in_the_middle_of_a_step_waits_for_its_end(training: Training) -> None:
    training.step()
    training.forward().backward()
    training.optimizer.step()
    asking = threading.Thread(target=training.run.images.leave, args=(float(SECONDS),))
    asking.start()
    training.run.progress.step += 1
    training.run.images.reach_safe_point()
    asking.join(SECONDS)
    assert training.image
    assert training.image.label.stamp.step == 2


def test_parameters_that_change_without_an_optimizer_are_no_place_to_go_on_from(training: Training) -> None:
    training.step()
    with torch.no_grad():
        training.linear.weight.mul_(2)
    training.run.images.reach_safe_point()
    training.run.images.leave()
    assert training.image is None


def test_a_script_may_do_something_to_its_parameters_between_two_epochs(training: Training) -> None:
    training.step()
    training.run.images.reach_safe_point(behind_epoch=True)
    with torch.no_grad():
        training.linear.weight.mul_(2)
    training.run.images.reach_safe_point()
    training.run.images.leave()
    assert training.image


def test_a_run_that_has_taken_over_begins_with_what_it_was_given(training: Training) -> None:
    training.step()
    with torch.no_grad():
        training.linear.weight.mul_(2)
    training.run.images.reach_safe_point(after_takeover=True)
    training.run.images.leave()
    assert training.image


def test_a_process_that_is_to_take_a_ranks_place_leaves_that_ranks_image_until_it_has_it(training: Training) -> None:
    training.run.progress.step = 7
    training.run.progress.saved = False
    then = training.whole()
    training.run.images.stand_in(2, 0, ("torch",))
    training.run.images.leave()
    image = training.image
    assert image
    assert (image.label.stamp.run, image.label.stamp.step, image.label.stamp.rank) == (2, 7, 0)
    assert image.label.alike == ("torch",)
    assert same(image, then)


def test_a_process_that_may_be_the_last_with_the_only_ranks_own_state_leaves_that(training: Training) -> None:
    training.run.progress.saved = False
    training.run.images.stand_in(2, 0, (), own={"rng": {"torch": "the other one's"}, "asked": []})
    training.run.images.leave()
    image = training.image
    assert image
    assert (image.label.stamp.run, image.label.stamp.rank, image.label.stamp.world) == (2, 0, 1)
    assert decode(image.state)["rng"] == {"torch": "the other one's"}


def test_a_single_rank_leaves_one_only_where_it_ends_and_may_be_the_last(training: Training) -> None:
    training.run.settings = replace(training.run.settings, rank=0, world=1)
    training.step()
    assert not training.run.images.wanted
    training.run.images.hold_on()
    training.run.images.leave()
    image = training.image
    assert image
    assert (image.label.stamp.run, image.label.stamp.step, image.label.stamp.rank) == (3, 1, 0)


def test_a_process_with_a_ranks_place_leaves_its_own_image(training: Training) -> None:
    training.run.progress.saved = False
    training.run.images.stand_in(2, 0, ("torch",))
    training.run.images.reach_safe_point(after_takeover=True)
    training.run.images.leave()
    assert training.image
    assert (training.image.label.stamp.run, training.image.label.stamp.rank) == (3, 1)


def test_where_a_commit_was_made_there_is_nothing_to_leave(training: Training) -> None:
    training.step()
    training.run.progress.saved = True
    training.run.images.reach_safe_point()
    training.run.images.leave()
    assert training.image is None


def test_parameters_that_were_written_to_since_the_last_batch_are_no_place_to_go_on_from(training: Training) -> None:
    training.step()
    with torch.no_grad():
        training.linear.weight.mul_(2)
    training.run.images.leave()
    assert training.image is None


def test_a_process_ends_even_if_registered_objects_cannot_be_read(training: Training) -> None:
    """A hook of the script's that meets the other ranks, say: they are gone."""

    def meets(*_: Any) -> None:
        raise ValueError("the other ranks are gone")

    told = Told()
    training.run.reporter.add(told)
    training.step()
    training.model.register_state_dict_post_hook(meets)
    training.run.images.leave()
    assert [event.step for event in told.events if isinstance(event, Imaged)] == [None]


def test_how_large_it_will_be_is_reported_before_it_is_written(training: Training) -> None:
    told = Told()
    training.run.reporter.add(told)
    training.step()
    training.run.images.leave()
    assert training.image
    assert told.events == [Imaging(training.image.size), Imaged(1, "", training.run.settings.run or 0)]


def test_generators_were_alike_in_a_world_of_one_size_alone(training: Training) -> None:
    assert training.run.images.alike == ("numpy", "python", "torch")
    training.run.settings = replace(training.run.settings, world=3)
    assert not training.run.images.alike


def test_one_is_left_at_most(training: Training) -> None:
    training.step()
    training.run.images.leave()
    with pytest.raises(PeerLost, match="it stops training"):
        training.step()
    training.run.images.leave()
    assert training.image
    assert training.image.label.stamp.step == 1


def test_without_memory_for_it_there_is_none(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_point, "MARGIN_BYTES", 2**60)
    training.step()
    training.run.images.leave()
    assert training.image is None


def test_where_too_much_moves_between_two_steps_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survivor_snapshots, "SMALL_BYTES", 8)
    training = Training(tmp_path)
    training.step()
    training.run.images.leave()
    assert training.image is None


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any copy takes too long."""
    monkeypatch.setattr(copy_budget, "LEAST_SPENT_SECONDS", 0.0)
    monkeypatch.setattr(copy_budget, "MOST_SPENT", 0.0)


@pytest.mark.usefixtures("costly")
def test_where_copying_takes_too_much_of_the_time_there_is_none_for_a_while(training: Training) -> None:
    told = Told()
    training.run.reporter.add(told)
    training.step()
    training.step()
    assert not training.run.images.wanted
    training.run.images.leave(float(SECONDS))
    assert training.image is None
    assert told.events == [Imaged(None, survivor_snapshots.TOO_LONG)]


def test_a_node_that_was_busy_for_a_while_costs_no_image_later(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as busy:
        for name, value in {"LEAST_SPENT_SECONDS": 0.0, "MOST_SPENT": 0.0, "LEAST_PAUSE_SECONDS": 1e-9}.items():
            busy.setattr(copy_budget, name, value)
        training.step()
    training.step()
    then = training.whole()
    training.forward().backward()
    training.run.images.leave()
    assert training.image
    assert same(training.image, then)


class Extra(nn.Identity):
    def get_extra_state(self) -> int:
        return 7

    def set_extra_state(self, state: int) -> None:
        assert state == 7


def test_where_a_module_keeps_state_that_is_no_tensor_there_is_none(tmp_path: Path) -> None:
    training = Training(tmp_path, Extra())
    training.step()
    training.run.images.leave()
    assert training.image is None


@pytest.mark.parametrize("at", [40, -20], ids=["body", "header"])
def test_an_image_that_was_changed_is_refused(training: Training, at: int) -> None:
    training.step()
    training.run.images.leave()
    data = bytearray(training.path.read_bytes())
    data[at] ^= 1
    training.path.write_bytes(data)
    with pytest.raises(Corrupt, match="was changed after it was written"):
        Image(training.path)


@pytest.mark.parametrize("goes_on", [False, True])
def test_what_the_ranks_exchanged_counts_as_long_as_they_stand_there(training: Training, goes_on: bool) -> None:
    training.step()
    training.run.images.know(("rank 0's", "rank 1's"))
    if goes_on:
        training.step()
    training.run.images.leave()
    assert training.image
    assert training.image.label.ranks == (() if goes_on else ("rank 0's", "rank 1's"))


@pytest.fixture
def meeting(training: Training) -> Iterator[list[Group]]:
    """The training is one of two ranks that meet before they step. The list holds the other's group."""
    store, limit = dist.HashStore(), timedelta(seconds=SECONDS)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as ranks:
        made = [ranks.submit(connect_group, store, "g", rank=rank, size=2, timeout=limit) for rank in range(2)]
        own, other = (one.result() for one in made)
        del made  # a group closes its connections with its last reference
        training.step()
        training.run.agreement = Agreement(own)
        training.run.images._machine = LastStep(meets=True)
        groups = [other]
        del other
        yield groups


def last_step(training: Training) -> None:
    """Up to the next batch; its optimizer meets the other rank."""
    training.step()
    assert training.run.images.alone == 1


def test_a_rank_that_loses_another_one_before_it_steps_leaves_the_place_before_and_the_one_behind(
    training: Training, meeting: list[Group]
) -> None:
    before = training.whole()
    meeting.clear()
    last_step(training)
    behind = training.whole()
    training.run.images.leave()
    images = list(read_images(training.path))
    assert [image.label.stamp.step for image in images] == [1, 2]
    assert [same(image, then) for image, then in zip(images, (before, behind), strict=True)] == [True, True]


def test_of_a_last_step_that_an_error_breaks_off_the_place_before_is_left(
    training: Training, meeting: list[Group]
) -> None:
    told = Told()
    training.run.reporter.add(told)
    meeting.clear()
    training.forward().backward()
    training.optimizer.step()
    training.run.images.leave()
    assert [image.label.stamp.step for image in read_images(training.path)] == [1]
    assert [event for event in told.events if isinstance(event, Imaged)] == [Imaged(1, "", 3)]


@pytest.mark.usefixtures("meeting")
def test_a_rank_that_waits_for_a_frozen_one_is_freed_by_its_agents_request(training: Training) -> None:
    def ask() -> None:
        while not training.run.agreement.waits:
            continue
        training.run.images.leave(float(SECONDS))

    asking = threading.Thread(target=ask)
    asking.start()
    last_step(training)
    asking.join(SECONDS)
    assert [image.label.stamp.step for image in read_images(training.path)] == [1, 2]
    training.forward().backward()
    with pytest.raises(PeerLost, match="it stops training"):
        training.optimizer.step()


def test_a_rank_that_is_asked_in_its_last_step_and_takes_too_long_has_left_the_place_before(
    training: Training, meeting: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it tells its agent is the last that it leaves: the step is not counted, and there is no other."""
    monkeypatch.setattr(survivor_snapshots, "PATIENCE_SECONDS", 0.0)
    told = Told()
    training.run.reporter.add(told)
    meeting.clear()
    training.forward().backward()
    training.optimizer.step()
    asking = threading.Thread(target=training.run.images.leave)
    asking.start()
    asking.join(SECONDS)
    assert [event for event in told.events if isinstance(event, Imaged)] == [Imaged(1, "", 3)]
    training.run.progress.step += 1
    training.run.images.reach_safe_point()
    assert [image.label.stamp.step for image in read_images(training.path)] == [1]
    with pytest.raises(PeerLost, match="it stops training"):
        training.optimizer.step()


def test_a_rank_that_is_asked_in_a_step_to_which_all_came_leaves_it_before_its_script_goes_on(
    training: Training, meeting: list[Group]
) -> None:
    other = Agreement(meeting[0]).meet(2)
    training.forward().backward()
    training.optimizer.step()
    assert other.is_over(SECONDS)
    asking = threading.Thread(target=training.run.images.leave, args=(float(SECONDS),))
    asking.start()
    while not training.run.images._machine.asked:
        continue
    training.run.progress.step += 1
    training.run.images.reach_safe_point()
    assert [image.label.stamp.step for image in read_images(training.path)] == [2]
    asking.join(SECONDS)
    with pytest.raises(PeerLost, match="it stops training"):
        training.optimizer.step()


@pytest.mark.usefixtures("meeting")
def test_a_main_thread_that_stands_still_in_the_meeting_costs_no_image_of_the_place_before(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank may have passed the meeting, or never have come: what this one has is left at once."""
    told, goes_on, stands = Told(), threading.Event(), threading.Event()
    training.run.reporter.add(told)
    monkeypatch.setattr(survivor_snapshots, "PATIENCE_SECONDS", 0.0)
    meets = training.run.agreement.meet

    def stuck(step: int) -> Meeting:
        stands.set()
        assert goes_on.wait(SECONDS)
        return meets(step)

    monkeypatch.setattr(training.run.agreement, "meet", stuck)

    def ask() -> None:
        assert stands.wait(SECONDS)
        training.run.images.leave()
        goes_on.set()

    asking = threading.Thread(target=ask)
    asking.start()
    training.forward().backward()
    with pytest.raises(PeerLost, match="it stops training"):
        training.optimizer.step()
    asking.join(SECONDS)
    assert [event for event in told.events if isinstance(event, Imaged)] == [Imaged(1, "", 3)]


class Hiding:
    """It has an optimizer step that nobody has registered."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.inner = optimizer

    def state_dict(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


def test_a_hidden_optimizer_that_steps_before_the_ranks_have_met_is_said_once(
    training: Training, meeting: list[Group], capfd: pytest.CaptureFixture[str]
) -> None:
    training.run.settings = replace(training.run.settings, rank=0)
    hiding = Hiding(torch.optim.SGD(training.linear.parameters(), lr=0.1))
    training.run.registry.add("hiding", hiding)
    for _ in range(2):
        training.forward().backward()
        hiding.inner.step()
        training.run.progress.step += 1
        training.run.images.reach_safe_point()
    assert capfd.readouterr().err.count("if a rank dies, the newest commit counts") == 1
    assert not training.run.images.wanted
    meeting.clear()
    with pytest.raises(PeerLost, match="all ranks were to meet"):
        training.optimizer.step()
    training.run.images.leave()
    assert training.image is None


def test_an_optimizer_of_something_else_is_none_of_the_ranks_concern(training: Training, meeting: list[Group]) -> None:
    probe = nn.Linear(4, 1)
    aside = torch.optim.SGD(probe.parameters(), lr=0.1)
    probe(torch.ones(4)).sum().backward()
    aside.step()
    training.run.images.reach_safe_point()
    meeting.clear()
    last_step(training)
    training.run.images.leave()
    assert [image.label.stamp.step for image in read_images(training.path)] == [1, 2]


def test_ranks_that_exchange_values_between_two_optimizers_are_told_once_what_a_loss_there_costs(
    training: Training, meeting: list[Group], capfd: pytest.CaptureFixture[str]
) -> None:
    training.run.settings = replace(training.run.settings, rank=0)
    training.run.registry.add("second", torch.optim.SGD(training.linear.parameters(), lr=0.1))
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        others = Agreement(meeting[0])
        for exchanged in (False, True, True):
            other = others.meet(training.run.progress.step + 1)
            training.forward().backward()
            training.optimizer.step()
            if exchanged:
                dist.all_reduce(torch.ones(1))
            training.run.registry.named["second"].step()
            assert other.is_over(SECONDS)
            training.run.progress.step += 1
            training.run.images.reach_safe_point()
            said = capfd.readouterr().err.count("two optimizers of a step: if one dies there, the newest commit counts")
            assert said == (exchanged and training.run.progress.step == 3)
    finally:
        dist.destroy_process_group()
    assert training.run.images.wanted


class Exchanging(torch.optim.SGD):
    """It asks the other ranks in its step, as an optimizer may that works on whole matrices."""

    def step(self, closure: Any = None) -> Any:
        dist.all_reduce(torch.ones(1))
        return super().step(closure)


class Around(torch.optim.SGD):
    """It exchanges values, and has another optimizer step."""

    def step(self, closure: Any = None) -> Any:
        dist.all_reduce(torch.ones(1))
        return torch.optim.SGD(self.param_groups[0]["params"], lr=0.1).step(closure)


@pytest.mark.parametrize("kind", [Exchanging, Around])
def test_an_optimizer_that_exchanges_values_in_its_step_is_seen_at_the_first_one_and_said(
    kind: type[torch.optim.SGD], training: Training, meeting: list[Group], capfd: pytest.CaptureFixture[str]
) -> None:
    torch.optim.SGD(training.linear.parameters(), lr=0.1)  # from now on torch calls its hooks in `super().step`, too
    training.run.settings = replace(training.run.settings, rank=0)
    training.run.registry.add("exchanging", kind(training.linear.parameters(), lr=0.1))
    training.optimizer = training.run.registry.named["exchanging"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        other = Agreement(meeting[0]).meet(2)
        training.step()
        assert other.is_over(SECONDS)
    finally:
        dist.destroy_process_group()
    said = f"{kind.__name__} exchanges values with other ranks while it steps: if a rank dies, the newest commit counts"
    assert said in capfd.readouterr().err
    del other
    meeting.clear()
    with pytest.raises(PeerLost):  # nobody is there to exchange values with
        training.step()
    training.run.images.leave()
    assert training.image is None


def test_ranks_that_meet_step_as_ever(training: Training, meeting: list[Group]) -> None:
    other = Agreement(meeting[0]).meet(2)
    training.step()
    assert other.is_over(SECONDS)
    training.run.images.leave()
    assert [image.label.stamp.step for image in read_images(training.path)] == [2]
