"""Which image a run begins from: each line of the rule, and every history of a small world."""

from __future__ import annotations

import pytest

from perdure.log.entry import ImageRef
from perdure.log.images import Begun, CommitStamp, ImageChoice, ImageOffer, Stamp, choose, holders_of, whole_steps
from tests.unit.runtime.checkpoint import images
from tests.unit.runtime.checkpoint.images import Damage, Rule, World, beginnings

UID = "job"
AT_10 = CommitStamp(UID, 3, 10)
DAMAGED = World(runs=3, damages=1)


def offer(run: int, step: int, *, holder: int = 0, rank: int = 0, crc: str = "a", uid: str = UID) -> ImageOffer:
    return ImageOffer(holder, Stamp(uid, run, step, rank, 2), crc)


def part(step: int, number: int, *, holder: int = 0, rank: int = 0, crc: str = "a", layout: str = "l") -> ImageOffer:
    """Of one of two parts of a sharded model."""
    return ImageOffer(holder, Stamp(UID, 3, step, rank, 4), crc, number, 2, layout)


def chosen(
    *offers: ImageOffer,
    line: tuple[Begun, ...] = (Begun(3),),
    committed: CommitStamp | None = AT_10,
) -> ImageChoice:
    return choose(offers, uid=UID, line=line, committed=committed)


class TestRule:
    def test_without_an_image_the_newest_commit_counts_and_there_is_nothing_to_say(self) -> None:
        assert chosen() == ImageChoice()

    def test_an_image_of_the_run_that_opened_last_counts(self) -> None:
        assert chosen(offer(3, 17)).image == ImageRef(3, 17)

    def test_the_rank_that_is_one_step_ahead_has_the_image(self) -> None:
        """Its reduce was done, that of the others was not."""
        assert chosen(offer(3, 17), offer(3, 18, holder=1)).image == ImageRef(3, 18)

    @pytest.mark.parametrize("step", [9, 10])
    def test_an_image_that_a_commit_has_reached_does_not(self, step: int) -> None:
        assert chosen(offer(3, step)) == ImageChoice(why=f"the image of run 3, step {step} is in a commit")

    @pytest.mark.parametrize("step", [9, 10, 11])
    @pytest.mark.parametrize(
        "committed", [CommitStamp(UID, 2, 10), CommitStamp("other", 3, 10), CommitStamp("other", 4, 10), None]
    )
    def test_a_commit_that_its_run_has_begun_behind_takes_nothing_from_it(
        self, step: int, committed: CommitStamp | None
    ) -> None:
        """No run could use it; a run that could stands beyond it."""
        assert chosen(offer(3, step), committed=committed).image == ImageRef(3, step)

    def test_what_a_run_has_taken_over_from_one_that_had_committed_it_is_in_that_commit(self) -> None:
        line = (Begun(4, took_over=3, at=17), Begun(3))
        found = chosen(offer(4, 17), line=line, committed=CommitStamp(UID, 3, 17))
        assert found == ImageChoice(why="the image of run 4, step 17 is in a commit")

    def test_an_image_of_a_run_that_another_has_followed_does_not_although_its_step_is_higher(self) -> None:
        line = (Begun(4), Begun(3))
        found = chosen(offer(3, 90), line=line)
        assert found == ImageChoice(why="the image of run 3, step 90 is not on the way to where run 4 stood")

    def test_an_image_of_another_job_does_not(self) -> None:
        assert chosen(offer(3, 17, uid="other")) == ImageChoice(why="the image of run 3, step 17 is of another job")

    def test_a_run_that_was_taken_over_counts_up_to_there(self) -> None:
        line = (Begun(5, took_over=4, at=20), Begun(4, took_over=3, at=15), Begun(3), Begun(2))
        assert chosen(offer(4, 20), line=line).image == ImageRef(4, 20)
        assert chosen(offer(3, 15), line=line).image == ImageRef(3, 15)
        assert chosen(offer(3, 16), line=line).image is None
        assert chosen(offer(2, 12), line=line).image is None

    def test_the_latest_run_counts_before_the_highest_step(self) -> None:
        line = (Begun(5, took_over=4, at=30), Begun(4))
        assert chosen(offer(4, 29), offer(5, 31, holder=1), offer(4, 30), line=line).image == ImageRef(5, 31)

    def test_the_image_that_a_run_had_begun_from_counts_until_it_is_committed(self) -> None:
        line = (Begun(4, image=ImageRef(2, 17)), Begun(3), Begun(2))
        assert chosen(offer(2, 17), line=line).image == ImageRef(2, 17)
        assert chosen(offer(2, 17), line=line, committed=CommitStamp(UID, 4, 17)).image is None

    def test_what_the_image_that_a_run_had_begun_from_lay_on_counts_with_it(self) -> None:
        """The same state, from a member that did not know that another run had taken over."""
        line = (Begun(4, image=ImageRef(3, 17)), Begun(3, took_over=2, at=17), Begun(2))
        assert chosen(offer(2, 17), line=line).image == ImageRef(2, 17)
        assert chosen(offer(2, 18), line=line).image is None

    def test_a_run_that_took_over_at_the_step_of_that_image_has_the_same(self) -> None:
        line = (Begun(4, image=ImageRef(2, 17)), Begun(3, took_over=2, at=17), Begun(2))
        assert chosen(offer(3, 17), line=line).image == ImageRef(3, 17)
        assert chosen(offer(3, 18), line=line).image is None

    def test_so_has_a_run_that_took_over_from_that_one_before_it_did_a_step(self) -> None:
        line = (Begun(5, image=ImageRef(2, 17)), Begun(4, took_over=3, at=17), Begun(3, took_over=2, at=17), Begun(2))
        assert chosen(offer(4, 17), line=line).image == ImageRef(4, 17)
        assert chosen(offer(4, 18), line=line).image is None

    def test_beyond_the_image_that_a_run_had_begun_from_nothing_counts(self) -> None:
        line = (Begun(4, image=ImageRef(2, 17)), Begun(2))
        assert chosen(offer(2, 18), line=line).image is None

    def test_ranks_that_have_come_apart_have_no_image(self) -> None:
        found = chosen(offer(3, 17), offer(3, 17, holder=1, rank=1, crc="b"))
        assert found == ImageChoice(why="the ranks of run 3 have come apart: their images of step 17 differ")

    def test_sums_of_other_steps_are_not_compared(self) -> None:
        assert chosen(offer(3, 17), offer(3, 18, holder=1, crc="b")).image == ImageRef(3, 18)

    def test_the_one_that_was_the_lowest_rank_commits_it(self) -> None:
        """Buffers and plain values are rank 0's where it is left."""
        offers = [offer(3, 17, holder=0, rank=2), offer(3, 17, holder=1, rank=1), offer(3, 16, holder=2, rank=0)]
        assert holders_of(ImageRef(3, 17), offers) == [1]


class TestParts:
    def test_a_step_of_which_all_parts_are_there_counts(self) -> None:
        offers = [part(17, 1, holder=1, rank=3, crc="b"), part(17, 0, rank=2), part(17, 0, holder=2, rank=0)]
        assert chosen(*offers).image == ImageRef(3, 17)
        assert holders_of(ImageRef(3, 17), offers) == [2, 1]

    def test_a_newer_step_that_lacks_a_part_does_not(self) -> None:
        assert chosen(part(18, 0), part(17, 0), part(17, 1, holder=1)).image == ImageRef(3, 17)
        assert whole_steps([part(18, 0), part(17, 0), part(17, 1), part(16, 1)]) == {17}

    def test_where_no_step_has_all_parts_the_newest_commit_counts(self) -> None:
        """One rank has stepped, and the row of the dead one is behind it."""
        found = chosen(part(18, 0), part(17, 1, holder=1))
        assert found == ImageChoice(why="of 2 parts of the image of run 3, step 18 no member has 1")

    def test_nor_do_images_that_a_commit_has_reached_complete_it(self) -> None:
        assert chosen(part(10, 0), part(10, 1), part(11, 0)).image is None

    def test_the_same_part_of_two_ranks_has_to_be_equal(self) -> None:
        found = chosen(part(17, 0), part(17, 0, holder=1, rank=2, crc="c"), part(17, 1))
        assert found == ImageChoice(why="the ranks of run 3 have come apart: their images of step 17 differ")

    def test_parts_of_two_layouts_are_no_whole(self) -> None:
        assert chosen(part(17, 0), part(17, 1, layout="m")).image is None


class TestSmallWorld:
    def test_every_run_begins_on_the_way_of_the_one_before_it_and_loses_no_step_that_is_left(self) -> None:
        found = list(beginnings())
        assert len(found) > 10_000
        assert any(one.choice.image and one.choice.image.run < one.before.run for one in found)
        wrong = next((one for one in found if not one.right), None)
        assert wrong is None

    @pytest.mark.parametrize(
        "rule",
        [
            images.newest_step,
            images.newest_run,
            images.also_in_commits,
            images.without_record,
            images.last_run_alone,
        ],
        ids=lambda rule: rule.__name__,
    )
    def test_a_rule_that_leaves_a_condition_out_goes_wrong(self, rule: Rule) -> None:
        assert any(not one.right for one in beginnings(rule))

    def test_nor_where_the_newest_commit_is_damaged_and_a_run_has_begun_behind_it(self) -> None:
        found = list(beginnings(first=DAMAGED))
        assert {one.before.damage for one in found if one.choice.image} == set(Damage)
        wrong = next((one for one in found if not one.right), None)
        assert wrong is None

    def test_a_rule_by_steps_alone_goes_wrong_there(self) -> None:
        assert any(not one.right for one in beginnings(images.by_steps_alone, DAMAGED))
