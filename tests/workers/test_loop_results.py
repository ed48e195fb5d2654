"""Results of other threads for futures of an event loop."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from strop.workers.threads import LoopResults


def test_results_of_one_moment_wake_the_loop_once_and_keep_their_order():
    results, order, wakes = LoopResults(), [], []

    async def wait() -> list[int]:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(100)]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: order.append(number))
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (wakes.append(call), wake(*call))[1]

        def put() -> None:
            for number, future in enumerate(futures):
                results.put(future, number)

        # The loop waits for the thread, so that it takes nothing meanwhile.
        thread = threading.Thread(target=put)
        thread.start()
        thread.join()
        found = await asyncio.gather(*futures)
        results.put(last := loop.create_future(), 100)
        return [*found, await last]

    assert asyncio.run(wait()) == list(range(101))
    assert order == list(range(100))
    assert len(wakes) == 2


def test_an_exception_is_raised_and_a_future_that_is_done_is_left():
    results = LoopResults()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        cancelled, failed = loop.create_future(), loop.create_future()
        cancelled.cancel()
        results.put(cancelled, 1)
        results.put(failed, ValueError("no"))
        with pytest.raises(ValueError, match="no"):
            await failed
        assert cancelled.cancelled()

    asyncio.run(wait())


def test_a_closed_loop_is_left_and_another_one_gets_its_results():
    results = LoopResults()

    async def future() -> asyncio.Future[int]:
        return asyncio.get_running_loop().create_future()

    for _ in range(2):
        closed = asyncio.run(future())
        results.put(closed, 1)
        assert not closed.done()

    async def wait() -> int:
        results.put(own := await future(), 2)
        return await own

    assert asyncio.run(wait()) == 2


def test_a_wrapped_future_has_the_result_the_error_and_the_cancellation():
    results = LoopResults()

    async def wait() -> None:
        source: Future[int] = Future()
        wrapped = results.wrap(source)
        threading.Thread(target=source.set_result, args=(3,)).start()
        assert await wrapped == 3

        source = Future()
        wrapped = results.wrap(source)
        threading.Thread(target=source.set_exception, args=(KeyError("lost"),)).start()
        with pytest.raises(KeyError, match="lost"):
            await wrapped

        source = Future()
        results.wrap(source).cancel()
        await asyncio.sleep(0)
        assert source.cancelled()

    asyncio.run(wait())
