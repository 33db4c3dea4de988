import asyncio
import threading
import time

import pytest

from hybridrl.testing.virtual_loop import (
  VirtualDeadlock,
  VirtualLivelock,
  VirtualTimeLimit,
  run_virtual,
)


def test_time_jumps_to_each_timer_in_order():
  async def main():
    loop = asyncio.get_running_loop()
    seen = []

    async def ping(delay_s):
      await asyncio.sleep(delay_s)
      seen.append((delay_s, loop.time()))

    await asyncio.gather(*map(ping, (3600.0, 0.5, 86_400 * 3.0)))
    return seen

  seen = run_virtual(main())
  assert [delay for delay, _ in seen] == [0.5, 3600.0, 86_400 * 3.0]
  assert all(at == pytest.approx(delay) for delay, at in seen)


def test_a_wait_that_nothing_ends_is_a_deadlock():
  async def main():
    await asyncio.Event().wait()

  with pytest.raises(VirtualDeadlock, match="every task waits"):
    run_virtual(main())


def test_a_spin_is_a_livelock():
  async def main():
    while True:  # noqa: ASYNC110 (the fault under test)
      await asyncio.sleep(0)

  with pytest.raises(VirtualLivelock):
    run_virtual(main(), max_turns_per_instant=1000)


def test_many_turns_at_many_instants_are_no_livelock():
  async def main():
    for _ in range(20):
      for _ in range(90):
        await asyncio.sleep(0)
      await asyncio.sleep(1e-3)

  run_virtual(main(), max_turns_per_instant=100)


def test_an_endless_heartbeat_meets_the_time_limit():
  async def beat():
    while True:  # noqa: ASYNC110 (a heartbeat)
      await asyncio.sleep(0.01)

  async def main():
    task = asyncio.create_task(beat())
    await asyncio.Event().wait()
    await task

  with pytest.raises(VirtualTimeLimit, match="5 s"):
    run_virtual(main(), time_limit_s=5)


def test_timeouts_fire_at_their_virtual_time():
  async def main():
    loop = asyncio.get_running_loop()
    with pytest.raises(TimeoutError):
      async with asyncio.timeout(30):
        await asyncio.Event().wait()
    return loop.time()

  assert run_virtual(main()) == pytest.approx(30)


def test_time_stands_still_while_a_thread_works():
  async def main():
    loop = asyncio.get_running_loop()
    started = threading.Event()

    def work():
      started.set()
      time.sleep(0.05)
      return loop.time()

    timer = asyncio.create_task(asyncio.sleep(10))
    before = loop.time()
    inside = await loop.run_in_executor(None, work)
    assert started.is_set()
    assert inside == before == loop.time()
    await timer
    return loop.time()

  assert run_virtual(main()) == pytest.approx(10)


def test_the_error_of_a_task_that_nobody_awaited_surfaces():
  async def main():
    asyncio.get_running_loop().call_later(1, int, "no number")
    await asyncio.sleep(2)

  with pytest.raises(ValueError, match="no number"):
    run_virtual(main())


def test_the_error_of_main_wins_and_other_tasks_are_cancelled():
  cancelled = []

  async def main():
    async def other():
      try:
        await asyncio.Event().wait()
      except asyncio.CancelledError:
        cancelled.append(True)
        raise

    task = asyncio.create_task(other())
    await asyncio.sleep(1)
    assert not task.done()
    raise KeyError("cause")

  with pytest.raises(KeyError, match="cause"):
    run_virtual(main())
  assert cancelled == [True]


def test_two_runs_see_the_same_order():
  def trace():
    order = []

    async def main():
      async def worker(i):
        for turn in range(5):
          await asyncio.sleep((i * 7 % 3) * 0.1)
          order.append((i, turn, round(asyncio.get_running_loop().time(), 9)))

      await asyncio.gather(*(worker(i) for i in range(20)))

    run_virtual(main())
    return order

  assert trace() == trace()
