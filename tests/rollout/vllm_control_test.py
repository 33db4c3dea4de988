import asyncio

import pytest

from hybridrl.rollout import replica, vllm_control


def run(test, timeout_s=5.0):
  async def main():
    failures = []
    line = vllm_control.ControlLine("r0", timeout_s, lambda: failures.append(1))
    await asyncio.wait_for(test(line), 10)
    return failures

  return asyncio.run(main())


async def forever():
  await asyncio.Event().wait()


def test_a_result_passes():
  async def test(line):
    assert await line.call("load", asyncio.sleep(0, result=7)) == 7
    assert line.cause is None
    line.check()

  assert run(test) == []


def test_an_error_fails_the_line_and_names_the_call():
  async def broken():
    raise ValueError("bad bytes")

  async def test(line):
    with pytest.raises(replica.ReplicaFailed, match="r0: load: bad bytes") as e:
      await line.call("load", broken())
    assert isinstance(e.value.__cause__, ValueError)
    with pytest.raises(replica.ReplicaFailed, match="bad bytes"):
      await line.call("later", asyncio.sleep(0))

  assert run(test) == [1]


def test_a_silent_engine_meets_the_deadline():
  async def test(line):
    with pytest.raises(replica.ReplicaFailed, match="sleep: no answer within"):
      await line.call("sleep", forever())

  assert run(test, timeout_s=0.01) == [1]


def test_a_failure_elsewhere_ends_a_running_call_and_the_first_cause_stays():
  async def test(line):
    call = asyncio.create_task(line.call("load", forever()))
    await asyncio.sleep(0)
    line.fail("engine core ended")
    line.fail("a consequence")
    with pytest.raises(replica.ReplicaFailed, match="engine core ended"):
      await call

  assert run(test) == [1]


def test_an_interrupted_switch_fails_the_line():
  async def test(line):
    async def switch():
      async with line.switching("load"):
        await forever()

    task = asyncio.create_task(switch())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
      await task
    with pytest.raises(replica.ReplicaFailed, match="load was interrupted"):
      line.check()

  assert run(test) == [1]
