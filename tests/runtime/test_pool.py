"""Work in the background that several ask for."""

from __future__ import annotations

from lamina.runtime.compilation import Running
from lamina.runtime.pool import Batch, Pool


def test_what_is_asked_for_before_the_batch_begins_is_done_as_one() -> None:
    pool, done = Pool(1, "test"), []

    def work(requests: list[int], running: Running) -> list[int]:
        done.append(requests)
        return [request * 10 for request in requests]

    batch: Batch[int, int] = Batch(lambda: pool, work)
    first, second = batch.join(1), batch.join(2)
    batch.begin()
    third = batch.join(3)
    assert [one.result() for one in (second, first)] == [20, 10]
    assert third.result() == 30  # begins what is asked for so far
    batch.begin()
    assert batch.join(4).result() == 40
    assert done == [[1, 2], [3], [4]]
