import asyncio

import pytest

from hybridrl.rollout import vllm_admission


def run(test):
  """Runs an async test with a turnstile of two slots, open."""

  async def main():
    door = vllm_admission.Turnstile(2)
    door.open()
    await asyncio.wait_for(test(door), 10)

  asyncio.run(main())


async def settle():
  for _ in range(5):
    await asyncio.sleep(0)


def test_first_come_first_served_up_to_capacity():
  async def test(door):
    order = []

    async def enter(key):
      assert await door.enter(key)
      order.append(key)

    tasks = [asyncio.create_task(enter(k)) for k in "abcd"]
    await settle()
    assert order == ["a", "b"]
    door.leave()
    await settle()
    assert order == ["a", "b", "c"]
    door.leave()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "d"]

  run(test)


def test_closed_lets_nobody_in_and_opening_lets_them():
  async def test(door):
    door.close()
    task = asyncio.create_task(door.enter("a"))
    await settle()
    assert not task.done()
    door.open()
    assert await task

  run(test)


def test_cancelling_a_waiting_request_turns_it_away_alone():
  async def test(door):
    door.close()
    tasks = {k: asyncio.create_task(door.enter(k)) for k in "ab"}
    await settle()
    door.cancel("a")
    door.cancel("never-seen")
    door.open()
    assert not await tasks["a"]
    assert await tasks["b"]

  run(test)


def test_a_cancelled_task_gives_its_slot_back():
  async def test(door):
    assert await door.enter("a") and await door.enter("b")
    waiting = asyncio.create_task(door.enter("c"))
    late = asyncio.create_task(door.enter("d"))
    await settle()
    door.leave()  # Grants c, whose task is cancelled before it runs.
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
      await waiting
    assert await late

  run(test)


def test_failing_raises_for_those_inside_the_queue_and_those_who_come():
  async def test(door):
    door.close()
    task = asyncio.create_task(door.enter("a"))
    await settle()
    door.fail(RuntimeError("broken"))
    with pytest.raises(RuntimeError, match="broken"):
      await task
    with pytest.raises(RuntimeError, match="broken"):
      await door.enter("b")

  run(test)
