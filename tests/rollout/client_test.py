"""Interruptions, budgets and waits. Failures: client_faults_test.py."""

import asyncio
import cProfile
import dataclasses

import numpy as np
import pytest

from hybridrl.rollout.client import GenerationStalled
from hybridrl.rollout.replica import SamplingConfig, WeightUpdateMode
from hybridrl.testing import scripted_text
from hybridrl.testing.faults import Delay
from hybridrl.testing.scripted_fleet import (
  SAMPLING,
  STOP_TOKEN_ID,
  ScriptedFleet,
  check_text,
  scripted_bundle,
  scripted_fleet,
  scripted_prompt,
  started,
  wake,
)
from hybridrl.testing.scripted_replica import ScriptedReplica, ScriptedTimes
from hybridrl.testing.virtual_loop import run_virtual

# One token a second, so that times read as tokens; aborts take no time.
SECOND = ScriptedTimes(
  step_s=lambda n: 1.0, abort_s=0.0, load_s=0.25, start_s=1.0
)
LONG = scripted_text.fixed_length(100_000)


class _Recording(ScriptedReplica):
  """Keeps the requests that it gets."""

  def __init__(self, *args, **kwargs):
    super().__init__(*args, **kwargs)
    self.requests = []

  async def generate(self, request):
    self.requests.append(request)
    return await super().generate(request)


async def _recording_fleet(**options):
  replica = _Recording("s0", lengths=LONG, times=SECOND)
  await replica.start()
  await replica.load_weights(scripted_bundle(0), WeightUpdateMode.KEEP)
  return replica, ScriptedFleet([replica], **options)


def test_x2_a_budget_of_one_is_one_token():
  async def main():
    fleet = await scripted_fleet(1, lengths=LONG)
    result = await fleet.generate(0, 1)
    assert len(result.token_ids) == 1
    assert result.finish_reason == "length"

  run_virtual(main())


@pytest.mark.parametrize("budget", [1, 19, 20, 21, 500])
def test_a_budget_is_never_passed(budget):
  async def main():
    fleet = await scripted_fleet(1, lengths=scripted_text.fixed_length(20))
    result = await fleet.generate(0, budget)
    assert len(result.token_ids) == min(budget, 20)
    stops = budget >= 20
    assert result.finish_reason == ("stop" if stops else "length")
    assert (result.token_ids[-1] == STOP_TOKEN_ID) == stops

  run_virtual(main())


@pytest.mark.parametrize(
  ("max_new", "first"), [(100, 60), (100, 40), (100, 50), (100, 99), (7, 1)]
)
def test_o9_an_abort_within_the_budget_goes_on_to_its_end(max_new, first):
  async def main():
    replica, fleet = await _recording_fleet()
    task = asyncio.create_task(fleet.generate(0, max_new))
    await asyncio.sleep(first + 0.5)
    await replica.abort()
    result = await task
    assert len(result.token_ids) == max_new
    assert result.finish_reason == "length"
    assert [r.max_new_tokens for r in replica.requests] == [
      max_new,
      max_new - first,
    ]
    np.testing.assert_array_equal(
      replica.requests[1].token_ids,
      np.concatenate([scripted_prompt(0), result.token_ids[:first]]),
    )

  run_virtual(main())


def test_x14_budget_holds_over_many_aborts():
  prompt = scripted_prompt(3, length=92)
  sampling = SamplingConfig(temperature=0.7, stop_token_ids=(STOP_TOKEN_ID,))
  before = prompt.copy(), dataclasses.replace(sampling)

  async def main():
    replica, fleet = await _recording_fleet()
    task = asyncio.create_task(
      fleet.client.generate(prompt, 8192, sampling, "x")
    )
    for _ in range(4):
      await asyncio.sleep(2000)
      await replica.abort()
    result = await task
    check_text(result, "x", prompt)
    return replica.requests, result

  requests, result = run_virtual(main())
  assert len(result.token_ids) == 8192
  assert result.finish_reason == "length"
  assert [r.max_new_tokens for r in requests] == [8192, 6192, 4192, 2192, 192]
  assert [len(r.token_ids) for r in requests] == [
    92 + 2000 * i for i in range(5)
  ]
  assert all(r.sampling == sampling for r in requests)
  assert len({r.request_id for r in requests}) == 5
  np.testing.assert_array_equal(prompt, before[0])
  assert sampling == before[1]


def test_an_abort_at_the_very_end_ends_the_response():
  """Engines may answer 'abort' although the last token is there."""

  class Late(ScriptedReplica):
    async def generate(self, request):
      result = await super().generate(request)
      return dataclasses.replace(result, finish_reason="abort")

  async def main():
    for length, reason in ((10, "stop"), (LONG(0), "length")):
      replica = Late("s0", lengths=scripted_text.fixed_length(length))
      await replica.start()
      await replica.load_weights(scripted_bundle(0), WeightUpdateMode.KEEP)
      fleet = ScriptedFleet([replica])
      result = await fleet.client.generate(
        scripted_prompt(0), 50, SAMPLING, "0"
      )
      assert result.finish_reason == reason
      assert len(result.token_ids) == min(length, 50)

  run_virtual(main())


@pytest.mark.parametrize(
  "options",
  [
    {"partial_rollout": False},
    {"weight_update_mode": WeightUpdateMode.ABORT},
  ],
)
def test_o10_an_aborted_answer_is_discarded_and_run_again(options):
  async def main():
    replica, fleet = await _recording_fleet(**options)
    task = asyncio.create_task(fleet.generate(0, 100))
    await asyncio.sleep(60.5)
    await replica.load_weights(scripted_bundle(1), WeightUpdateMode.ABORT)
    await asyncio.sleep(30.25)
    await replica.abort()
    result = await task
    assert len(result.token_ids) == 100
    assert result.finish_reason == "length"
    assert set(result.versions) == {1}
    assert [len(r.token_ids) for r in replica.requests] == [5, 5, 5]
    assert [r.max_new_tokens for r in replica.requests] == [100] * 3
    counters = fleet.client.counters
    assert counters.discarded_tokens == 60 + 30
    assert counters.kept_tokens == 100
    assert counters.responses == 1

  run_virtual(main())


def test_o20_tokens_keep_the_version_that_sampled_them():
  """The version rises between the abort and the return of its result."""

  async def main():
    replica, fleet = await _recording_fleet()
    replica.faults.add("generate.return", Delay(5.0))
    task = asyncio.create_task(fleet.generate(0, 20))
    await asyncio.sleep(7.5)
    await replica.load_weights(scripted_bundle(1), WeightUpdateMode.REPREFILL)
    assert not task.done()
    result = await task
    assert result.versions.tolist() == [0] * 7 + [1] * 13
    assert result.kv_versions.tolist() == [0] * 7 + [1] * 13

  run_virtual(main())


def test_kept_requests_carry_every_version():
  async def main():
    fleet = await scripted_fleet(1, lengths=LONG, times=SECOND)
    task = asyncio.create_task(fleet.generate(0, 9))
    for version in (1, 2):
      await asyncio.sleep(3.5)
      await fleet.replicas["s0"].load_weights(
        scripted_bundle(version), WeightUpdateMode.KEEP
      )
    result = await task
    assert result.versions.tolist() == [0] * 3 + [1] * 4 + [2] * 2
    assert result.kv_versions.tolist() == [0] * 9
    assert fleet.client.counters.aborted_attempts == 0

  run_virtual(main())


def test_b6_a_late_arrival_is_rejected_and_completes_elsewhere():
  """Acquired before the reclaim, arrives after it."""

  async def main():
    loop = asyncio.get_running_loop()
    fleet = await scripted_fleet(2, lengths=LONG, times=SECOND)
    hybrid = fleet.replicas["s0"]
    hybrid.faults.add("generate", Delay(5.0))
    began_s = loop.time()
    late = asyncio.create_task(fleet.generate(0, 10))
    await asyncio.sleep(0.5)
    assert hybrid.num_in_flight == 1
    fleet.balancer.remove("s0")
    await hybrid.abort()
    await hybrid.sleep()
    await late
    assert loop.time() - began_s == pytest.approx(5 + 10)
    assert fleet.client.counters.rejected_attempts == 1
    assert fleet.balancer.loads() == {"s1": 0}
    assert hybrid.num_in_flight == 0

  run_virtual(main())


@pytest.mark.parametrize("num_requests", [1, 5])
def test_a_refused_request_goes_elsewhere_at_once(num_requests):
  """Also where the balancer has not heard yet that a replica left."""

  async def main():
    loop = asyncio.get_running_loop()
    fleet = await scripted_fleet(2, times=SECOND)
    await fleet.replicas["s0"].sleep()
    began_s = loop.time()
    await asyncio.gather(*(fleet.generate(i, 10) for i in range(num_requests)))
    assert loop.time() - began_s == pytest.approx(10)
    assert fleet.client.counters.rejected_attempts <= num_requests

  run_virtual(main())


def test_b7_a_reclaim_loses_no_token():
  """Unroute, abort, sleep: all that was sampled is in the responses."""

  async def main():
    fleet = await scripted_fleet(2, lengths=LONG, times=SECOND)
    tasks = [asyncio.create_task(fleet.generate(i, 40)) for i in range(8)]
    await asyncio.sleep(10.5)
    hybrid = fleet.replicas["s0"]
    fleet.balancer.remove("s0")
    await hybrid.abort()
    assert await fleet.client.wait_idle("s0", timeout_s=0.001)
    at_abort = (await hybrid.stats()).generated_tokens
    await hybrid.sleep()
    results = await asyncio.gather(*tasks)
    assert [len(r.token_ids) for r in results] == [40] * 8
    assert at_abort == (await hybrid.stats()).generated_tokens == 4 * 10
    rest = (await fleet.replicas["s1"].stats()).generated_tokens
    assert at_abort + rest == 8 * 40
    counters = fleet.client.counters
    assert counters.discarded_tokens == 0
    assert counters.moved_attempts == 4
    assert counters.reprefilled_tokens == 4 * (5 + 10)

  run_virtual(main())


@pytest.mark.parametrize("num", [10, 1000])
def test_b8_control_calls_are_bounded_whatever_is_outstanding(num):
  async def main():
    loop = asyncio.get_running_loop()
    fleet = await scripted_fleet(1, lengths=LONG)
    tasks = [asyncio.create_task(fleet.generate(i, 200)) for i in range(num)]
    await asyncio.sleep(0.2)
    began_s = loop.time()
    await fleet.replicas["s0"].abort()
    assert loop.time() - began_s < 0.01
    await asyncio.gather(*tasks)
    assert fleet.client.counters.aborted_attempts == num

  run_virtual(main())


def test_waits_for_a_routable_replica():
  async def main():
    loop = asyncio.get_running_loop()
    fleet = await scripted_fleet(1, times=SECOND)
    fleet.balancer.remove("s0")
    began_s = loop.time()
    tasks = [asyncio.create_task(fleet.generate(i)) for i in range(3)]
    await asyncio.sleep(30)
    assert fleet.client.num_waiting == 3
    fleet.balancer.add("s0")
    await asyncio.gather(*tasks)
    assert fleet.client.num_waiting == 0
    assert loop.time() - began_s == pytest.approx(30 + 20)

  run_virtual(main())


def test_a_wait_ends_at_its_deadline_with_owner_and_reason():
  async def main():
    loop = asyncio.get_running_loop()
    fleet = await scripted_fleet(1)
    fleet.balancer.remove("s0")
    began_s = loop.time()
    with pytest.raises(GenerationStalled) as caught:
      await fleet.generate(4)
    assert loop.time() - began_s == pytest.approx(60)
    assert "response 4 found no replica within 60 s" in str(caught.value)
    assert "routable: none" in str(caught.value)

  run_virtual(main())


@pytest.mark.parametrize("num", [1, 2])
def test_routable_replicas_that_refuse_neither_spin_nor_hang(num):
  async def main():
    loop = asyncio.get_running_loop()
    fleet = await scripted_fleet(num)
    for replica in fleet.replicas.values():
      await replica.sleep()  # and nobody unroutes it
    began_s = loop.time()
    with pytest.raises(GenerationStalled, match="is asleep"):
      await fleet.generate(0)
    assert loop.time() - began_s == pytest.approx(60)
    assert fleet.client.counters.rejected_attempts < 60 / 0.5 + 20
    assert set(fleet.balancer.loads().values()) == {0}

  run_virtual(main())


def test_running_time_does_not_count_as_waiting():
  async def main():
    fleet = await scripted_fleet(
      1, lengths=LONG, times=SECOND, wait_timeout_s=10.0
    )
    task = asyncio.create_task(fleet.generate(0, 100))
    for _ in range(4):  # away for 8 s four times, with progress in between
      await asyncio.sleep(12)
      fleet.balancer.remove("s0")
      await fleet.replicas["s0"].abort()
      await asyncio.sleep(8)
      fleet.balancer.add("s0")
    assert len((await task).token_ids) == 100

  run_virtual(main())


def test_a_woken_replica_serves_at_once():
  async def main():
    fleet = await scripted_fleet(1, lengths=LONG, times=SECOND)
    sleeper = await started("h0", lengths=LONG, times=SECOND)
    await sleeper.sleep()
    fleet.replicas["h0"] = sleeper  # joins late
    await wake(sleeper, version=0)
    fleet.balancer.add("h0")
    await asyncio.gather(*(fleet.generate(i, 5) for i in range(4)))
    assert fleet.client.usage("h0").finished_responses == 2

  run_virtual(main())


@pytest.mark.parametrize(
  ("prompt", "budget", "message"),
  [([1], 0, "max_new_tokens=0"), ([], 5, "prompt is empty")],
)
def test_bad_input_is_refused(prompt, budget, message):
  async def main():
    fleet = await scripted_fleet(1)
    with pytest.raises(ValueError, match=message):
      await fleet.client.generate(
        np.asarray(prompt, np.int32), budget, SAMPLING, "k"
      )

  run_virtual(main())


def test_cancelling_a_response_frees_its_place():
  async def main():
    fleet = await scripted_fleet(1, lengths=LONG)
    task = asyncio.create_task(fleet.generate(0))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
      await task
    assert fleet.balancer.loads() == {"s0": 0}
    assert fleet.client.in_flight() == ()
    assert fleet.replicas["s0"].num_in_flight == 0

  run_virtual(main())


def _calls(num):
  """Function calls that `num` concurrent requests cost, interrupted twice."""

  async def main():
    fleet = await scripted_fleet(4, lengths=scripted_text.fixed_length(60))
    tasks = [asyncio.create_task(fleet.generate(i)) for i in range(num)]
    for _ in range(2):
      await asyncio.sleep(0.3)
      await asyncio.gather(*(r.abort() for r in fleet.replicas.values()))
    await asyncio.gather(*tasks)
    assert fleet.client.counters.aborted_attempts == 2 * num

  profile = cProfile.Profile()
  profile.runcall(run_virtual, main())
  return sum(entry.callcount for entry in profile.getstats())


def test_thousands_of_requests_on_one_loop_are_cheap():
  """The work of a request does not grow with the number in flight."""
  few, many = _calls(250), _calls(2000)
  assert many < 1.2 * few * 2000 / 250
