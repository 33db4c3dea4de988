"""What the client does when replicas fail, hang or lie; and random trouble."""

import asyncio
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.rollout.client import MAX_FAILURES_IN_A_ROW
from hybridrl.rollout.replica import (
  ReplicaFailed,
  ReplicaState,
  ReplicaUnavailable,
  WeightUpdateMode,
)
from hybridrl.testing import scripted_text
from hybridrl.testing.faults import Die, Hang, Raise
from hybridrl.testing.scripted_fleet import (
  SAMPLING,
  ScriptedFleet,
  scripted_bundle,
  scripted_fleet,
  scripted_prompt,
  wake,
)
from hybridrl.testing.scripted_replica import ScriptedReplica
from hybridrl.testing.virtual_loop import VirtualDeadlock, run_virtual

LONG = scripted_text.fixed_length(400)


@pytest.mark.parametrize(
  "error",
  [ReplicaUnavailable("x"), ReplicaFailed("x"), RuntimeError("x"), KeyError(1)],
  ids=lambda error: type(error).__name__,
)
def test_b3_failed_requests_leave_no_load(error):
  async def main():
    fleet = await scripted_fleet(1, wait_timeout_s=2.0)
    fleet.replicas["s0"].faults.add("generate", Raise(error), nth=0)
    outcomes = await asyncio.gather(
      *(fleet.generate(i) for i in range(3)), return_exceptions=True
    )
    assert all(isinstance(outcome, Exception) for outcome in outcomes)
    assert set(fleet.balancer.loads().values()) <= {0}
    assert fleet.client.in_flight() == ()
    assert fleet.client.usage("s0").num_in_flight == 0

  run_virtual(main())


def test_other_errors_surface_with_their_own_type():
  async def main():
    fleet = await scripted_fleet(2)
    for replica in fleet.replicas.values():
      replica.faults.add("generate", Raise(ZeroDivisionError("why")))
    with pytest.raises(ZeroDivisionError, match="why"):
      await fleet.generate(0)

  run_virtual(main())


def test_a_dying_replica_is_unrouted_reported_once_and_replaced():
  async def main():
    loop = asyncio.get_running_loop()
    fleet = await scripted_fleet(2, lengths=LONG)
    tasks = [asyncio.create_task(fleet.generate(i)) for i in range(20)]
    loop.call_later(1.0, fleet.replicas["s0"].die, "killed")
    await asyncio.gather(*tasks)
    assert fleet.balancer.routable() == ("s1",)
    ((name, error),) = fleet.failed
    assert name == "s0"
    assert "killed" in str(error)
    assert fleet.client.counters.failed_attempts == 10

    await fleet.replicas["s0"].start()
    await fleet.replicas["s0"].load_weights(
      scripted_bundle(0), WeightUpdateMode.KEEP
    )
    fleet.balancer.add("s0")  # a new life, which fails again
    loop.call_later(1.0, fleet.replicas["s0"].die, "again")
    await asyncio.gather(*(fleet.generate(i) for i in range(20)))
    assert [name for name, _ in fleet.failed] == ["s0", "s0"]

  run_virtual(main())


def test_a_late_failure_of_an_old_life_does_not_unroute_the_new_one():
  class DeliversLate(ScriptedReplica):
    """The news of its death takes a while."""

    async def generate(self, request):
      try:
        return await super().generate(request)
      except ReplicaFailed:
        await asyncio.sleep(60)
        raise

  async def main():
    replica = DeliversLate("s0", lengths=LONG)
    await replica.start()
    await replica.load_weights(scripted_bundle(0), WeightUpdateMode.KEEP)
    fleet = ScriptedFleet([replica])
    task = asyncio.create_task(fleet.generate(0))
    await asyncio.sleep(1)
    replica.die()
    fleet.balancer.remove("s0")  # the controller saw it first
    await replica.start()
    await replica.load_weights(scripted_bundle(0), WeightUpdateMode.KEEP)
    fleet.balancer.add("s0")
    await task
    assert fleet.balancer.routable() == ("s0",)

  run_virtual(main())


def test_a_response_that_kills_replicas_is_given_up():
  async def main():
    num = MAX_FAILURES_IN_A_ROW + 1
    fleet = await scripted_fleet(num)
    for replica in fleet.replicas.values():
      replica.faults.add("generate", Die("poison"))
    with pytest.raises(ReplicaFailed, match=r"response 0: 4 replicas failed"):
      await fleet.generate(0)
    assert len(fleet.failed) == MAX_FAILURES_IN_A_ROW
    assert len(fleet.balancer.routable()) == 1

  run_virtual(main())


def test_tokens_of_earlier_attempts_survive_a_failure():
  async def main():
    fleet = await scripted_fleet(2, lengths=LONG)
    task = asyncio.create_task(fleet.generate(0))
    await asyncio.sleep(1)
    first = fleet.client.in_flight()[0].lease.replica
    await fleet.replicas[first].abort()
    await asyncio.sleep(1)
    (flight,) = fleet.client.in_flight()
    assert flight.prefix_tokens > 90
    fleet.replicas[flight.lease.replica].die()
    result = await task
    assert len(result.token_ids) == 400
    assert fleet.client.counters.kept_tokens == 400

  run_virtual(main())


def test_an_attempt_that_hangs_counts_as_a_failure_at_its_deadline():
  async def main():
    loop = asyncio.get_running_loop()
    fleet = await scripted_fleet(2, attempt_timeout_s=100.0)
    for replica in fleet.replicas.values():
      replica.faults.add("generate", Hang())
    fleet.replicas["s1"].faults.clear()
    began_s = loop.time()
    await asyncio.gather(fleet.generate(0), fleet.generate(1))
    assert loop.time() - began_s == pytest.approx(100, abs=1)
    ((name, error),) = fleet.failed
    assert name == "s0"
    assert "no result of 0/0 within 100 s" in str(error)

  run_virtual(main())


def test_no_timer_outlives_its_attempt():
  """With nothing left to wake it, the loop sees the deadlock at once."""

  async def main():
    fleet = await scripted_fleet(1, attempt_timeout_s=1000.0)
    await asyncio.gather(*(fleet.generate(i) for i in range(5)))
    assert asyncio.get_running_loop().time() < 10
    await asyncio.Event().wait()

  with pytest.raises(VirtualDeadlock, match=r"at \d\.\d+ s"):
    run_virtual(main())


def test_give_up_takes_requests_off_a_replica_that_does_not_answer():
  async def main():
    fleet = await scripted_fleet(2, lengths=LONG)
    fleet.replicas["s0"].faults.add("generate", Hang(), nth=0)
    tasks = [asyncio.create_task(fleet.generate(i)) for i in range(6)]
    await asyncio.sleep(5)
    assert fleet.client.give_up("s0", ReplicaFailed("no heartbeat")) == 3
    assert fleet.balancer.routable() == ("s1",)
    await asyncio.gather(*tasks)
    assert fleet.failed == []  # the caller knew
    assert fleet.replicas["s0"].num_in_flight == 0

  run_virtual(main())


def test_cancelling_wins_over_giving_up():
  async def main():
    fleet = await scripted_fleet(2, lengths=LONG)
    task = asyncio.create_task(fleet.generate(0))
    await asyncio.sleep(1)
    (flight,) = fleet.client.in_flight()
    fleet.client.give_up(flight.lease.replica, ReplicaFailed("x"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
      await task
    assert fleet.client.in_flight() == ()

  run_virtual(main())


def test_a_replica_that_cancels_its_own_call_has_failed():
  class Cancels(ScriptedReplica):
    async def generate(self, request):
      raise asyncio.CancelledError

  async def main():
    good = await scripted_fleet(1)
    bad = Cancels("a")
    await bad.start()
    fleet = ScriptedFleet([bad, good.replicas["s0"]])
    await fleet.generate(0)
    ((name, error),) = fleet.failed
    assert name == "a"
    assert "cancelled 0/0" in str(error)

  run_virtual(main())


def _cut(result, **lengths):
  return dataclasses.replace(
    result, **{name: getattr(result, name)[:n] for name, n in lengths.items()}
  )


@pytest.mark.parametrize(
  ("spoil", "message"),
  [
    (lambda r: _cut(r, log_probs=3), "of lengths"),
    (lambda r: _cut(r, versions=0), "of lengths"),
    (
      lambda r: dataclasses.replace(
        r,
        **{
          name: np.repeat(getattr(r, name), 2)
          for name in ("token_ids", "log_probs", "versions", "kv_versions")
        },
      ),
      "with 20 tokens of 10 allowed",
    ),
    (lambda r: dataclasses.replace(r, finish_reason="eos"), "'eos'"),
  ],
)
def test_results_that_break_i4_are_refused(spoil, message):
  class Spoils(ScriptedReplica):
    async def generate(self, request):
      return spoil(await super().generate(request))

  async def main():
    replica = Spoils("s0", lengths=LONG)
    await replica.start()
    await replica.load_weights(scripted_bundle(0), WeightUpdateMode.KEEP)
    fleet = ScriptedFleet([replica])
    with pytest.raises(ValueError, match=message):
      await fleet.generate(0, 10)
    assert fleet.balancer.loads() == {"s0": 0}

  run_virtual(main())


# One kind of trouble: what it does to replica `name` of the fleet.
def _unroute_and_abort(fleet, name, version):
  async def act():
    fleet.balancer.remove(name)
    await fleet.replicas[name].abort()
    await asyncio.sleep(0.3)
    fleet.balancer.add(name)

  del version
  return act()


async def _abort(fleet, name, version):
  del version
  await fleet.replicas[name].abort()


async def _sleep_and_wake(fleet, name, version):
  fleet.balancer.remove(name)
  await fleet.replicas[name].sleep()
  await asyncio.sleep(0.2)
  await wake(fleet.replicas[name], version)
  fleet.balancer.add(name)


async def _die_and_restart(fleet, name, version):
  replica = fleet.replicas[name]
  replica.die()
  await asyncio.sleep(0.1)
  fleet.balancer.remove(name)
  await replica.start()
  await replica.load_weights(scripted_bundle(version), WeightUpdateMode.KEEP)
  fleet.balancer.add(name)


def _load(mode):
  async def act(fleet, name, version):
    await fleet.replicas[name].load_weights(scripted_bundle(version), mode)

  return act


async def _rebalance(fleet, name, version):
  del version
  await fleet.client.rebalance((name,))


async def _sleep_unannounced(fleet, name, version):
  """The balancer learns of it late (B6)."""
  await fleet.replicas[name].sleep()
  await asyncio.sleep(0.5)
  await wake(fleet.replicas[name], version)


TROUBLE = {
  "unroute": _unroute_and_abort,
  "abort": _abort,
  "sleep": _sleep_and_wake,
  "die": _die_and_restart,
  "keep": _load(WeightUpdateMode.KEEP),
  "reprefill": _load(WeightUpdateMode.REPREFILL),
  "rebalance": _rebalance,
  "unannounced": _sleep_unannounced,
}


@settings(max_examples=60, deadline=None)
@given(
  st.lists(
    st.tuples(
      st.sampled_from(sorted(TROUBLE)),
      st.integers(0, 2),
      st.floats(0.0, 0.6),
    ),
    max_size=14,
  ),
  st.booleans(),
  st.integers(1, 80),
)
def test_under_any_trouble_every_response_is_right(events, partial, budget):
  """Text, budget and labels are right, and nothing is left behind."""

  async def main():
    fleet = await scripted_fleet(
      3,
      lengths=scripted_text.log_normal_lengths(40, 0.9, 200),
      partial_rollout=partial,
    )
    fleet.client._attempt_timeout_s = 600.0
    tasks = [asyncio.create_task(fleet.generate(i, budget)) for i in range(24)]
    for version, (kind, target, gap_s) in enumerate(events, start=1):
      await asyncio.sleep(gap_s)
      await TROUBLE[kind](fleet, f"s{target}", version)
    results = await asyncio.gather(*tasks)
    for i, result in enumerate(results):
      seed = scripted_text.stream_seed(str(i), scripted_prompt(i))
      whole = scripted_text.response_length(
        seed, scripted_text.log_normal_lengths(40, 0.9, 200)
      )
      assert len(result.token_ids) == min(whole, budget)
      assert result.finish_reason == ("stop" if whole <= budget else "length")
    assert set(fleet.balancer.loads().values()) == {0}
    assert fleet.client.in_flight() == ()
    assert fleet.client.num_waiting == 0
    for replica in fleet.replicas.values():
      assert replica.num_in_flight == 0
      assert replica.state == ReplicaState.AWAKE
    if not partial:
      assert all(len(set(r.kv_versions)) == 1 for r in results)

  run_virtual(main())


def test_sampling_is_passed_through():
  seen = []

  class Looks(ScriptedReplica):
    async def generate(self, request):
      seen.append(request.sampling)
      return await super().generate(request)

  async def main():
    replica = Looks("s0")
    await replica.start()
    await replica.load_weights(scripted_bundle(0), WeightUpdateMode.KEEP)
    await ScriptedFleet([replica]).generate(0)

  run_virtual(main())
  assert seen == [SAMPLING]
