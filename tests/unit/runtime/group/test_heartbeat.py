"""When silence means that a peer is gone; real ranks that fall silent are in the tests of session."""

from __future__ import annotations

from perdure.group.heartbeat import SILENCE_SECONDS, Heartbeat, Silence
from perdure.wire.settings import Settings
from tests.unit.runtime.group.conftest import Door

NOW = 1000.0
LONG = SILENCE_SECONDS + 1


def heard() -> Silence:
    silence = Silence()
    silence.heard(NOW)
    return silence


def test_a_peer_that_was_heard_and_is_silent_is_gone() -> None:
    silence = heard()
    assert silence.too_long(NOW + SILENCE_SECONDS) is None
    assert silence.too_long(NOW + LONG) == LONG


def test_a_peer_that_was_never_heard_may_not_know_how_to_count() -> None:
    assert Silence().too_long(NOW + LONG) is None


def test_a_peer_that_is_heard_again_is_there() -> None:
    silence = heard()
    silence.heard(NOW + LONG)
    assert silence.too_long(NOW + LONG + 1) is None


def test_a_peer_may_be_busy_for_as_long_as_a_step_has_taken() -> None:
    silence = heard()
    silence.stepped(NOW - 100)
    silence.stepped(NOW)
    assert silence.too_long(NOW + 100) is None
    assert silence.too_long(NOW + 101) == 101


def test_silence_during_a_save_means_nothing_and_counts_from_its_end() -> None:
    silence = heard()
    silence.pause()
    assert silence.too_long(NOW + 1000) is None
    silence.resume(NOW + 1000)
    assert silence.too_long(NOW + 1000 + SILENCE_SECONDS) is None
    assert silence.too_long(NOW + 1000 + LONG) == LONG


def test_a_save_between_two_steps_does_not_make_a_step_long() -> None:
    silence = heard()
    silence.stepped(NOW)
    silence.pause()
    silence.resume(NOW + 500)
    silence.stepped(NOW + 500)
    assert silence.too_long(NOW + 500 + LONG) == LONG


def test_a_world_of_one_has_no_peer_to_hear() -> None:
    heartbeat = Heartbeat(Settings("file:///nowhere"), lambda: True, lambda _: None)
    heartbeat.start()
    with heartbeat.paused():
        heartbeat.stepped()
    heartbeat.stop()


def began(port: int) -> None:
    heartbeat = Heartbeat(
        Settings("file:///nowhere", world=2, master=("127.0.0.1", port)), lambda: False, lambda _: None
    )
    heartbeat.start()
    heartbeat.stop()


def test_a_silent_store_keeps_no_rank_from_training(silent: int) -> None:
    began(silent)


def test_a_probe_of_the_store_stays_until_torchs_client_has_come(door: Door) -> None:
    began(door.port)
    assert door.first_visitor_stayed()
