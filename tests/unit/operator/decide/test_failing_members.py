"""Whether members that leave make room in the quota that has refused a new one."""

from __future__ import annotations

import pytest

from perdure_operator.decide.failing_members import makes_room

WORDS = 'pods "digits-ab12-2" is forbidden: exceeded quota: share, requested: {0}=1, used: {0}={1}, limited: {0}={2}'


@pytest.mark.parametrize(
    ("resource", "used", "limited"),
    [
        ("pods", "4", "4"),
        ("requests.nvidia.com/gpu", "8", "8"),
        ("requests.cpu", "3500m", "4"),
        ("requests.memory", "1Gi", "1100M"),
        ("requests.memory", "12e8", "2G"),
        ("requests.cpu", ".5", "500m"),
        ("requests.memory", "999999999999n", "1k"),
    ],
)
def test_a_quota_that_is_full_gets_room_from_who_leaves(resource: str, used: str, limited: str) -> None:
    assert makes_room(WORDS.format(resource, used, limited))


@pytest.mark.parametrize(
    ("resource", "used", "limited"),
    [
        ("pods", "4", "3"),
        ("pods", "1", "0"),
        ("requests.cpu", "4", "3500m"),
        ("requests.memory", "1Gi", "1G"),
        ("requests.memory", "2E", "1Ei"),
        ("pods", "many", "4"),
        ("pods", "4", "few"),
        ("pods", "1e999999Ki", "9"),
        ("pods", "NaN", "9"),
        ("pods", "1", "Infinity"),
    ],
)
def test_one_that_was_made_smaller_or_cannot_be_read_does_not(resource: str, used: str, limited: str) -> None:
    assert not makes_room(WORDS.format(resource, used, limited))


def test_each_of_the_resources_that_are_short_counts() -> None:
    both = "exceeded quota: q, requested: pods=1,cpu=1, used: pods=2,cpu={}, limited: pods=2,cpu=4"
    assert makes_room(both.format("4"))
    assert not makes_room(both.format("5"))
    assert not makes_room("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=2,cpu=4")


@pytest.mark.parametrize("message", ["", "exceeded quota: few, requested: pods=1", "failed quota: q: must specify cpu"])
def test_other_words_promise_nothing(message: str) -> None:
    assert not makes_room(message)
