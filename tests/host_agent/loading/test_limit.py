"""Turns of reads: in order, no more than the limit, and a limit that follows how long reads take."""

import asyncio

import pytest

from host_agent.loading.sources.limit import FEWEST, ReadLimit

SIZE = 1 << 16


def limit_after(turns, seconds, reads=400):
    async def read():
        for _ in range(reads):
            await turns.take()
            turns.give_back(SIZE, seconds)

    asyncio.run(read())
    return turns.limit


@pytest.mark.parametrize("most", [1, 2, 32])
def test_reads_that_take_no_longer_become_more(most):
    assert limit_after(ReadLimit(most), 0.02) == pytest.approx(most, rel=0.01)


def test_reads_that_wait_in_a_queue_become_fewer_and_more_again():
    turns = ReadLimit(32)
    limit_after(turns, 0.02)
    assert limit_after(turns, 0.2) == FEWEST
    assert limit_after(turns, 0.03) == pytest.approx(32, rel=0.01)  # uneven, not queued


def test_a_path_that_became_slower_is_forgotten():
    turns = ReadLimit(32)
    limit_after(turns, 0.02, 10)
    assert limit_after(turns, 0.2, 900) == FEWEST
    assert limit_after(turns, 0.2, 600) > 20


def test_turns_come_in_order_and_a_cancelled_one_is_not_lost():
    async def play():
        turns, log = ReadLimit(FEWEST), []

        async def read(number):
            await turns.take()
            log.append(number)
            await asyncio.sleep(0)
            turns.give_back()

        for _ in range(FEWEST):
            await turns.take()
        tasks = [asyncio.create_task(read(number)) for number in range(6)]
        await asyncio.sleep(0)
        assert log == []
        tasks[1].cancel()
        turns.give_back()  # to the first one
        tasks[0].cancel()  # which is gone before it knows
        for _ in range(FEWEST - 1):
            turns.give_back()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert log == [2, 3, 4, 5]
        for _ in range(FEWEST):  # all are free
            await asyncio.wait_for(turns.take(), 1)

    asyncio.run(play())
