"""Tests of waiting.py on virtual time."""

import asyncio
import math

import pytest

from hybridrl.runtime import waiting
from hybridrl.testing.virtual_loop import run_virtual


def make_waits() -> waiting.Waits:
  return waiting.Waits(asyncio.get_running_loop().time)


def wait_for(waits, condition, **options):
  options = {
    "owner": "learner",
    "reason": "16 samples",
    "deadline_s": 100.0,
    **options,
  }
  return waits.until(condition, **options)


def test_a_wait_ends_at_the_notification_that_fulfils_it():
  async def main():
    waits, loop = make_waits(), asyncio.get_running_loop()
    value = 0

    def add():
      nonlocal value
      value += 1
      waits.notify()

    for second in range(1, 6):
      loop.call_later(second, add)
    assert await wait_for(waits, lambda: value >= 3)
    assert loop.time() == 3

  run_virtual(main())


def test_a_condition_that_holds_does_not_yield():
  async def main():
    assert await wait_for(make_waits(), lambda: True, deadline_s=0.0)

  run_virtual(main())


def test_many_waiters_all_wake():
  async def main():
    waits, open_ = make_waits(), False
    tasks = [
      asyncio.create_task(wait_for(waits, lambda: open_)) for _ in range(50)
    ]
    await asyncio.sleep(1)
    assert len(waits.board) == 50
    open_ = True
    waits.notify()
    assert all(await asyncio.gather(*tasks))
    assert waits.board == ()

  run_virtual(main())


def test_the_deadline_names_owner_and_reason():
  async def main():
    waits = make_waits()
    with pytest.raises(waiting.WaitExpired, match="learner.*7 s.*16 samples"):
      await wait_for(waits, lambda: False, deadline_s=7.0)
    assert asyncio.get_running_loop().time() == pytest.approx(7)
    assert waits.board == ()

  run_virtual(main())


def test_progress_renews_the_deadline():
  async def main():
    waits, loop = make_waits(), asyncio.get_running_loop()
    ticks = 0

    def tick():
      nonlocal ticks
      ticks += 1
      waits.notify()

    for second in (8, 16, 24):
      loop.call_later(second, tick)
    with pytest.raises(waiting.WaitExpired, match="without any progress"):
      await wait_for(
        waits, lambda: False, deadline_s=10.0, progress=lambda: ticks
      )
    assert loop.time() == pytest.approx(34)

  run_virtual(main())


def test_notifications_without_progress_do_not_renew_the_deadline():
  async def main():
    waits, loop = make_waits(), asyncio.get_running_loop()
    for second in range(1, 40):
      loop.call_later(second, waits.notify)
    with pytest.raises(waiting.WaitExpired):
      await wait_for(waits, lambda: False, deadline_s=10.0, progress=lambda: 0)
    assert loop.time() == pytest.approx(10)

  run_virtual(main())


@pytest.mark.parametrize("at_latest_s", [0.0, 0.1, 0.3, 2.5])
def test_at_latest_returns_false(at_latest_s):
  async def main():
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.7)  # sums of floats are not exact
    waits = make_waits()
    assert not await wait_for(waits, lambda: False, at_latest_s=at_latest_s)
    assert loop.time() == pytest.approx(0.7 + at_latest_s)

  run_virtual(main())


def test_the_board_shows_the_longest_wait_first():
  async def main():
    waits = make_waits()
    assert waits.longest() == ""
    first = asyncio.create_task(wait_for(waits, lambda: False, owner="first"))
    await asyncio.sleep(4)
    second = asyncio.create_task(wait_for(waits, lambda: False, owner="second"))
    await asyncio.sleep(1)
    assert waits.longest() == "first: 16 samples (5 s)"
    await waiting.cancel_and_wait(first, second)
    assert waits.board == ()

  run_virtual(main())


def test_within_cancels_the_work_at_its_deadline():
  async def main():
    waits, ended = make_waits(), []

    async def work():
      try:
        await asyncio.sleep(100)
      finally:
        ended.append(asyncio.get_running_loop().time())

    with pytest.raises(waiting.WaitExpired, match="hybrid0.*sleep"):
      await waits.within(work(), owner="hybrid0", reason="sleep", deadline_s=3)
    assert ended == [3]

  run_virtual(main())


def test_within_passes_results_and_failures_on():
  async def main():
    waits = make_waits()

    async def fail():
      raise TimeoutError("the work's own")

    async def one():
      return 1

    options = {"owner": "o", "reason": "r", "deadline_s": math.inf}
    assert await waits.within(one(), **options) == 1
    with pytest.raises(TimeoutError, match="own"):
      await waits.within(fail(), **options)

  run_virtual(main())


def test_x3_a_guard_that_fails_ends_the_run_with_its_own_type():
  async def main():
    cancelled_at = []

    async def endless():
      try:
        await asyncio.sleep(1e5)
      finally:
        cancelled_at.append(asyncio.get_running_loop().time())

    async def failing():
      await asyncio.sleep(2)
      raise ZeroDivisionError("in a reward")

    guard = asyncio.create_task(failing())
    with pytest.raises(ZeroDivisionError, match="in a reward"):
      await waiting.guarded(endless(), guard)
    assert cancelled_at == [2]

  run_virtual(main())


def test_a_guard_that_returns_early_is_an_error():
  async def main():
    guard = asyncio.create_task(asyncio.sleep(2), name="rollouter")
    with pytest.raises(RuntimeError, match="rollouter ended before"):
      await waiting.guarded(asyncio.sleep(100), guard)

  run_virtual(main())


def test_guarded_returns_the_result_and_leaves_the_guards():
  async def main():
    guard = asyncio.create_task(asyncio.sleep(1000))
    assert await waiting.guarded(asyncio.sleep(1, "done"), guard) == "done"
    assert not guard.done()
    await waiting.cancel_and_wait(guard)

  run_virtual(main())


def test_cancelling_a_guarded_run_lets_it_clean_up():
  async def main():
    steps = []

    async def run():
      try:
        await asyncio.sleep(100)
      except asyncio.CancelledError:
        await asyncio.sleep(3)
        steps.append("saved")
        raise

    guard = asyncio.create_task(asyncio.sleep(1000))
    task = asyncio.create_task(waiting.guarded(run(), guard))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
      await task
    assert steps == ["saved"]
    await waiting.cancel_and_wait(guard)

  run_virtual(main())


def test_all_of_returns_results_in_order_and_ends_the_rest_on_a_failure():
  async def main():
    ended = []

    async def work(value, seconds):
      try:
        await asyncio.sleep(seconds)
        return value
      finally:
        ended.append(value)

    async def fail():
      await asyncio.sleep(1)
      raise OSError("first")

    assert await waiting.all_of(work("a", 2), work("b", 1)) == ["a", "b"]
    ended.clear()
    with pytest.raises(OSError, match="first"):
      await waiting.all_of(work("slow", 100), fail())
    assert ended == ["slow"]
    assert asyncio.get_running_loop().time() == 3

  run_virtual(main())


@pytest.mark.parametrize("work_s, ends", [(3.0, True), (30.0, False)])
def test_run_to_end_gives_cancelled_work_its_grace(work_s, ends):
  async def main():
    done = []

    async def work():
      await asyncio.sleep(work_s)
      done.append(True)

    task = asyncio.create_task(waiting.run_to_end(work(), grace_s=5.0))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
      await task
    assert bool(done) == ends
    assert asyncio.get_running_loop().time() == (3 if ends else 6)

  run_virtual(main())


def test_run_to_end_passes_results_and_failures_on():
  async def main():
    async def fail():
      raise OSError("its own")

    assert await waiting.run_to_end(asyncio.sleep(1, 5), grace_s=1.0) == 5
    with pytest.raises(OSError, match="its own"):
      await waiting.run_to_end(fail(), grace_s=1.0)

  run_virtual(main())
