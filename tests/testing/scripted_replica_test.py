import asyncio
import cProfile
import dataclasses

import pytest

from hybridrl.rollout.replica import (
  GenerationRequest,
  ReplicaFailed,
  ReplicaState,
  ReplicaUnavailable,
  WeightUpdateMode,
)
from hybridrl.testing import scripted_text
from hybridrl.testing.faults import Delay, Die, Hang, Raise
from hybridrl.testing.scripted_fleet import (
  SAMPLING,
  check_text,
  scripted_bundle,
  scripted_prompt,
  started,
  wake,
)
from hybridrl.testing.scripted_replica import (
  POINTS,
  LawBroken,
  ScriptedReplica,
  ScriptedTimes,
)
from hybridrl.testing.virtual_loop import run_virtual

KEEP = WeightUpdateMode.KEEP


def _request(i, attempt=0, max_new_tokens=1000):
  return GenerationRequest(
    request_id=f"{i}/{attempt}",
    token_ids=scripted_prompt(i),
    max_new_tokens=max_new_tokens,
    sampling=SAMPLING,
  )


def test_calls_take_their_times():
  times = ScriptedTimes(
    step_s=lambda n: 0.1 * n,
    start_s=1,
    load_s=2,
    sleep_s=4,
    abort_s=0.5,
    wake_weights_s=8,
    wake_kv_cache_s=16,
    stop_s=32,
  )

  async def main():
    loop = asyncio.get_running_loop()
    replica = await started("r", times=times)
    await asyncio.gather(*(replica.generate(_request(i)) for i in range(2)))
    assert loop.time() == pytest.approx(3 + 20 * 0.2)
    await replica.sleep()
    await wake(replica)
    await replica.stop()
    return replica.history

  times_s, calls = zip(*run_virtual(main()), strict=True)
  assert calls == (
    "start",
    "load_weights 0",
    "sleep",
    "wake_weights",
    "load_weights 0",
    "wake_kv_cache",
    "stop",
  )
  expected = (1, 3, 11.5, 19.5, 21.5, 37.5, 69.5)
  assert times_s == pytest.approx(expected)


def test_siblings_differ_and_reruns_agree():
  async def main():
    replica = await started(
      "r", lengths=scripted_text.log_normal_lengths(30, 1, 300)
    )
    requests = [_request(0), _request(1)]
    requests.append(dataclasses.replace(_request(0), request_id="sibling/0"))
    requests.append(_request(0, attempt=1))
    results = await asyncio.gather(*map(replica.generate, requests))
    for result, key, i in zip(
      results, ("0", "1", "sibling", "0"), (0, 1, 0, 0), strict=True
    ):
      check_text(result, key, scripted_prompt(i))
    return [tuple(result.token_ids) for result in results]

  first, other_prompt, sibling, again = run_virtual(main())
  assert first == again
  assert len({first, other_prompt, sibling}) == 3


@pytest.mark.parametrize("point", POINTS)
def test_an_injected_error_surfaces_at_every_point(point):
  async def main():
    replica = await started("r")
    replica.faults.add(point, Raise(KeyError("why")))
    calls = {
      "start": [replica.stop, replica.start],
      "generate": [lambda: replica.generate(_request(0))],
      "abort": [replica.abort],
      "load_weights": [lambda: replica.load_weights(scripted_bundle(1), KEEP)],
      "sleep": [replica.sleep],
      "wake_weights": [replica.sleep, replica.wake_weights],
      "wake_kv_cache": [replica.sleep, replica.wake_kv_cache],
      "stats": [replica.stats],
      "stop": [replica.stop],
    }[point.split(".")[0]]
    *before, call = calls
    for prepare in before:
      await prepare()
    with pytest.raises(KeyError, match="why"):
      await call()
    assert replica.faults.pending == ()
    return replica

  replica = run_virtual(main())
  broken = point in ("load_weights.paused", "load_weights.loaded")
  if broken:
    assert replica.state == ReplicaState.FAILED
  assert replica.num_in_flight == 0


def test_an_error_while_leaving_leaves_it_serving():
  async def main():
    replica = await started("r")
    replica.faults.add("sleep.aborted", Raise(OSError("no")))
    with pytest.raises(OSError, match="no"):
      await replica.sleep()
    assert replica.state == ReplicaState.AWAKE
    await replica.generate(_request(0))

  run_virtual(main())


def test_dying_in_the_middle_ends_every_call():
  async def main():
    replica = await started("r", lengths=scripted_text.fixed_length(1000))
    replica.faults.add("wake_weights", Hang())
    attempts = [
      asyncio.create_task(replica.generate(_request(i))) for i in range(3)
    ]
    replica.faults.add("generate", Hang())
    hanging = asyncio.create_task(replica.generate(_request(9)))
    asyncio.get_running_loop().call_later(2, replica.die, "out of memory")
    outcomes = await asyncio.gather(*attempts, hanging, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ReplicaFailed] * 4
    assert "out of memory" in str(outcomes[0])
    with pytest.raises(ReplicaFailed):
      await replica.sleep()
    assert (await replica.stats()).state == ReplicaState.FAILED
    assert replica.num_in_flight == 0
    await replica.start()  # comes back without weights
    await replica.load_weights(scripted_bundle(3), KEEP)
    result = await replica.generate(_request(0, max_new_tokens=3))
    assert set(result.versions) == {3}

  run_virtual(main())


def test_die_is_a_fault_of_every_call():
  async def main():
    replica = await started("r")
    replica.faults.add("load_weights.paused", Die("cable"))
    attempt = asyncio.create_task(replica.generate(_request(0)))
    await asyncio.sleep(0.05)
    with pytest.raises(ReplicaFailed, match="cable"):
      await replica.load_weights(scripted_bundle(1), KEEP)
    with pytest.raises(ReplicaFailed, match="cable"):
      await attempt

  run_virtual(main())


def test_stop_releases_what_hangs_and_delivers_partial_tokens():
  async def main():
    replica = await started("r", lengths=scripted_text.fixed_length(1000))
    replica.faults.add("generate", Hang())
    hanging = asyncio.create_task(replica.generate(_request(0)))
    await asyncio.sleep(0)
    running = asyncio.create_task(replica.generate(_request(1)))
    await asyncio.sleep(1)
    await replica.stop()
    with pytest.raises(ReplicaUnavailable):
      await hanging
    result = await running
    assert result.finish_reason == "abort"
    assert len(result.token_ids) > 50

  run_virtual(main())


def test_stop_does_not_wait_for_a_hanging_load():
  async def main():
    replica = await started("r")
    replica.faults.add("load_weights.paused", Hang())
    load = asyncio.create_task(replica.load_weights(scripted_bundle(1), KEEP))
    await asyncio.sleep(1)
    async with asyncio.timeout(1):
      await replica.stop()
    with pytest.raises(ReplicaUnavailable):
      await load
    assert replica.state == ReplicaState.STOPPED

  run_virtual(main())


def test_a_late_arrival_meets_the_state_of_its_arrival():
  async def main():
    replica = await started("r")
    replica.faults.add("generate", Delay(2.0))
    late = asyncio.create_task(replica.generate(_request(0)))
    await asyncio.sleep(0)
    await replica.sleep()
    with pytest.raises(ReplicaUnavailable, match="asleep"):
      await late

  run_virtual(main())


async def _sleeping():
  replica = await started("r")
  await replica.sleep()
  return replica


async def _unloaded():
  replica = ScriptedReplica("r")
  await replica.start()
  return replica


BREACHES = (
  ("start() while awake", lambda: started("r"), lambda r: r.start()),
  (
    "before any weights",
    _unloaded,
    lambda r: r.generate(_request(0)),
  ),
  (
    "before wake_weights",
    _sleeping,
    lambda r: r.load_weights(scripted_bundle(1), KEEP),
  ),
  ("without weights", _sleeping, lambda r: r.wake_kv_cache()),
  ("while awake", lambda: started("r"), lambda r: r.wake_weights()),
  (
    "version 1 after 2",
    lambda: started("r", version=2),
    lambda r: r.load_weights(scripted_bundle(1), KEEP),
  ),
  (
    "asks for 0 tokens",
    lambda: started("r"),
    lambda r: r.generate(_request(0, max_new_tokens=0)),
  ),
  (
    "runs already",
    lambda: started("r"),
    lambda r: asyncio.gather(*(r.generate(_request(0)) for _ in range(2))),
  ),
)


@pytest.mark.parametrize(
  ("message", "make", "breach"), BREACHES, ids=[b[0] for b in BREACHES]
)
def test_callers_that_break_the_life_cycle_are_told(message, make, breach):
  async def main():
    replica = await make()
    with pytest.raises(LawBroken) as caught:
      await breach(replica)
    assert message in str(caught.value)
    await replica.stop()

  run_virtual(main())


def _calls(length):
  """Function calls that 200 attempts of this length cost."""

  async def main():
    replica = await started("r", lengths=scripted_text.fixed_length(length))
    await asyncio.gather(*(replica.generate(_request(i)) for i in range(200)))

  profile = cProfile.Profile()
  profile.runcall(run_virtual, main())
  return sum(entry.callcount for entry in profile.getstats())


def test_an_attempt_costs_the_same_whatever_its_length():
  assert _calls(1000) < 1.1 * _calls(10)
