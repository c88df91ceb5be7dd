from __future__ import annotations

import asyncio
import gzip
import threading
from dataclasses import replace

from perdure_operator.serving.metrics import exposition
from perdure_operator.serving.metrics.counted import Frozen
from tests.unit.operator.serving.metrics.test_jobs import record
from tests.unit.operator.serving.metrics.test_operator import FACTS

LEADER = Frozen(FACTS, (record(),))


def test_a_follower_shows_itself_and_no_job() -> None:
    assert b"perdure_job_info" in exposition.text(LEADER)
    follower = exposition.text(Frozen(replace(FACTS, leading=False), None))
    assert b"perdure_operator_leading 0.0" in follower
    assert b"perdure_job" not in follower


def test_an_answer_is_packed_only_where_that_was_asked_for() -> None:
    plain, packed = exposition.body(LEADER, False), exposition.body(LEADER, True)
    assert gzip.decompress(packed.text) == plain.text
    assert (plain.gzipped, packed.gzipped) == (False, True)
    assert plain.content_type.startswith("text/plain; version=0.0.4")


def test_values_are_frozen_in_the_loop_and_written_in_another_thread() -> None:
    threads = []

    def freeze() -> Frozen:
        threads.append(threading.current_thread())
        return LEADER

    body = asyncio.run(exposition.collector(freeze)(False))
    assert threads == [threading.main_thread()]
    assert body.text == exposition.text(LEADER)
