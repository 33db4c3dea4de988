"""Tests of rollouter.py with the real ledger, queue, cursor and client."""

import asyncio
import zlib

import numpy as np
import pytest

from hybridrl.data.cursor import PromptCursor
from hybridrl.models import bundle as bundle_lib
from hybridrl.rollout.balancer import LoadBalancer
from hybridrl.rollout.client import GenerationClient
from hybridrl.rollout.replica import SamplingConfig, WeightUpdateMode
from hybridrl.rollout.workflow import single_turn
from hybridrl.runtime.ledger import Ledger
from hybridrl.runtime.message_queue import MessageQueue
from hybridrl.runtime.rollouter import (
  RolloutConfig,
  Rollouter,
  RolloutFailed,
)
from hybridrl.runtime.waiting import Waits, cancel_and_wait
from hybridrl.testing.scripted_grader import ScriptedGrader
from hybridrl.testing.scripted_replica import ScriptedReplica
from hybridrl.testing.scripted_run import make_prompts
from hybridrl.testing.scripted_text import fixed_length
from hybridrl.testing.virtual_loop import run_virtual


class Rig:
  """A rollouter on one scripted replica, which is not routable yet."""

  def __init__(
    self,
    *,
    grader=None,
    workflow=single_turn,
    filter_groups=False,
    target=None,
    num_prompts=8,
    epochs=None,
    failures_in_a_row=4,
    alike_in_a_row=1000,
    length=50,
  ):
    loop = asyncio.get_running_loop()
    self.loop = loop
    self.waits = Waits(loop.time)
    self.balancer = LoadBalancer()
    self.replica = ScriptedReplica("r", lengths=fixed_length(length))
    self.client = GenerationClient(
      {"r": self.replica}, self.balancer, clock=loop.time, wait_timeout_s=1e4
    )
    self.ledger = Ledger(
      required_samples=8,
      trigger_parameter_sync_step=1,
      staleness_threshold="1",
      concurrent_samples_per_replica=4,
      target_samples=target,
    )
    self.queue = MessageQueue(self.ledger, 16, self.waits.notify)
    self.cursor = PromptCursor(make_prompts(num_prompts), 0, epochs)
    self.grader = grader or ScriptedGrader()
    self.events = []
    self.rollouter = Rollouter(
      RolloutConfig(
        rollout_n=3,
        max_response_length=400,
        sampling=SamplingConfig(),
        filter_groups=filter_groups,
        failures_in_a_row=failures_in_a_row,
        alike_in_a_row=alike_in_a_row,
      ),
      ledger=self.ledger,
      queue=self.queue,
      cursor=self.cursor,
      workflow=workflow,
      generate=self.client.generate,
      grader=self.grader,
      decode=lambda ids: " ".join(map(str, ids)),
      active_replicas=lambda: len(self.balancer.routable()),
      waits=self.waits,
      clock=loop.time,
      on_event=lambda kind, text, **fields: self.events.append((kind, text)),
      on_change=lambda: None,
    )

  async def start(self, route=True):
    await self.replica.start()
    await self.load(1)
    if route:
      self.balancer.add("r")
    self.task = asyncio.create_task(self.rollouter.run())
    return self

  async def load(self, version):
    bundle = bundle_lib.pack([("w", np.zeros(4, np.float32))], version)
    await self.replica.load_weights(bundle, WeightUpdateMode.KEEP)
    self.rollouter.version = version

  async def until(self, condition):
    await self.waits.until(
      condition, owner="test", reason="condition", deadline_s=1000.0
    )

  async def end(self):
    await cancel_and_wait(self.task)
    self.ledger.check()


def test_generates_as_far_ahead_as_admission_allows():
  async def main():
    rig = await Rig().start()
    await rig.until(lambda: len(rig.queue) == 16)
    await asyncio.sleep(100)
    assert rig.ledger.counts.offered == 16
    assert len(rig.queue) == rig.ledger.backlog == 16
    taken = rig.queue.take(8)
    rig.ledger.trained([s.sample_id for s in taken])
    await asyncio.sleep(100)
    assert rig.ledger.counts.offered == 16  # consumed ones still count
    rig.ledger.begin_cycle()
    rig.waits.notify()
    await rig.until(lambda: len(rig.queue) == 16)
    assert rig.ledger.counts.offered == 24
    await rig.end()

  run_virtual(main())


def test_samples_are_whole_and_graded():
  async def main():
    rig = await Rig().start()
    await rig.until(lambda: len(rig.queue) == 16)
    for sample in rig.queue.take(16):
      assert sample.prompt == rig.cursor.prompt_at(sample.sample_id)
      assert len(sample.responses) == 3
      texts = {tuple(r.token_ids) for r in sample.responses}
      assert len(texts) == 3  # siblings differ
      assert sample.rewards.tolist() in rig.grader.grades
      assert sample.oldest_version == 1
    await rig.end()

  run_virtual(main())


def test_never_more_in_flight_than_the_capacity():
  async def main():
    rig = await Rig().start()
    seen = []
    while len(rig.queue) < 16:
      seen.append(rig.ledger.in_flight)
      await asyncio.sleep(0.01)
    assert max(seen) == 4
    await rig.end()

  run_virtual(main())


def test_s4_no_capacity_does_not_spin_and_ends_within_one_wake_up():
  async def main():
    rig = await Rig().start(route=False)
    beats = 0
    for _ in range(100):
      await asyncio.sleep(0.01)
      beats += 1
    assert beats == 100 and rig.ledger.in_flight == 0
    rig.balancer.add("r")
    rig.waits.notify()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rig.ledger.in_flight == 4
    await rig.end()

  # A spin would be a livelock of the virtual loop.
  run_virtual(main(), max_turns_per_instant=1000)


def test_o8_work_begins_at_once_when_it_may_whatever_else_runs():
  async def main():
    rig = await Rig(length=350).start()
    await asyncio.sleep(0.1)
    assert rig.ledger.in_flight == 4
    rig.balancer.add("twin")  # more capacity while long ones run
    rig.client._replicas["twin"] = rig.replica
    rig.waits.notify()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rig.ledger.in_flight == 8
    await rig.end()

  run_virtual(main())


def test_groups_without_spread_are_dropped_replaced_and_still_counted():
  async def main():
    def reward(prompt_id, text):
      if prompt_id % 2:
        return 1.0
      return float(zlib.crc32(text.encode()) % 7)

    rig = await Rig(
      grader=ScriptedGrader(reward), filter_groups=True, target=12
    ).start()
    await rig.until(lambda: rig.rollouter.exhausted)
    assert len(rig.queue) == 12
    dropped = rig.ledger.dropped["no_spread"]
    assert dropped >= 6
    assert rig.ledger.counts.offered == 12 + dropped
    samples = rig.queue.take(12)
    assert all(len(set(s.rewards)) > 1 for s in samples)
    rewards = [s.rewards.tolist() for s in samples]
    rewards += rig.rollouter.take_group_rewards()
    assert sorted(rewards) == sorted(rig.grader.grades)
    assert rig.rollouter.take_group_rewards() == []
    await rig.end()

  run_virtual(main())


def test_a_model_that_always_succeeds_ends_the_run_like_the_end_of_data():
  async def main():
    rig = await Rig(
      grader=ScriptedGrader(lambda prompt, text: 1.0),
      filter_groups=True,
      alike_in_a_row=20,
    ).start()
    await rig.until(lambda: rig.rollouter.exhausted)
    assert len(rig.queue) == 0
    assert rig.ledger.remaining_samples == 0
    # Four more may be in flight and four being graded by then.
    assert 20 <= rig.ledger.dropped["no_spread"] <= 28
    assert [kind for kind, _ in rig.events] == ["no_spread"]
    await rig.end()

  run_virtual(main())


def test_o15_a_prompt_that_always_raises_is_replaced_counted_and_reported():
  async def main():
    def fail(prompt):
      if prompt.prompt_id == 3:
        raise ZeroDivisionError("in a reward")

    rig = await Rig(
      grader=ScriptedGrader(fail=fail), num_prompts=8, target=30
    ).start()
    got = []
    while len(got) < 30:
      await rig.until(lambda: len(rig.queue) > 0)
      taken = rig.queue.take(16)
      rig.ledger.trained([s.sample_id for s in taken])
      got += taken
      rig.ledger.begin_cycle()
      rig.waits.notify()
    await rig.until(lambda: rig.rollouter.exhausted)
    assert len(got) == 30
    failures = rig.rollouter.failures["ZeroDivisionError"]
    assert failures == rig.ledger.dropped["failed"] >= 3
    assert rig.events[0][0] == "prompt_failed"
    assert "prompt 3" in rig.events[0][1]
    assert "ZeroDivisionError: in a reward" in rig.events[0][1]
    assert not rig.task.done()
    await rig.end()

  run_virtual(main())


def test_o15_too_many_failures_in_a_row_end_the_run_with_the_cause():
  async def main():
    def fail(prompt):
      raise ZeroDivisionError("in every reward")

    rig = await Rig(grader=ScriptedGrader(fail=fail)).start()
    with pytest.raises(RolloutFailed, match="4 prompts in a row") as caught:
      await rig.task
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert rig.loop.time() < 10
    rig.ledger.check()

  run_virtual(main())


def test_one_failing_response_ends_its_siblings():
  async def main():
    cancelled = []

    async def workflow(prompt, generate, *, key, **options):
      if key.endswith("-1") and key.startswith("0"):
        await asyncio.sleep(0.1)
        raise OSError("a tool broke")
      try:
        return await single_turn(prompt, generate, key=key, **options)
      except asyncio.CancelledError:
        cancelled.append(key)
        raise

    rig = await Rig(workflow=workflow).start()
    await rig.until(lambda: len(rig.queue) >= 8)
    assert sorted(cancelled) == ["0-0", "0-2"]
    assert rig.ledger.dropped == {"failed": 1}
    assert len(rig.client.in_flight()) <= 12
    await rig.end()

  run_virtual(main())


def test_a_grader_that_returns_too_few_rewards_is_noticed():
  class Broken(ScriptedGrader):
    async def grade(self, prompt, texts):
      return [1.0]

  async def main():
    rig = await Rig(grader=Broken()).start()
    with pytest.raises(RolloutFailed, match="1 rewards for 3 responses"):
      await rig.task

  run_virtual(main())


def test_o7_what_a_sync_makes_too_old_is_dropped_in_flight_and_on_arrival():
  async def main():
    rig = await Rig(length=200).start()
    await asyncio.sleep(0.5)
    assert rig.ledger.in_flight == 4
    # Version 2 is next, nothing older than 2 may be trained.
    rig.rollouter.oldest_allowed = 2
    assert rig.rollouter.cancel_older_than(2) == 4
    await rig.load(2)
    await rig.until(lambda: len(rig.queue) >= 4)
    assert rig.ledger.dropped == {"version_lag": 4}
    assert min(s.oldest_version for s in rig.queue.take(16)) == 2
    # One that slipped through is dropped when it arrives.
    await asyncio.sleep(0.5)
    rig.rollouter.oldest_allowed = 3
    await rig.load(3)
    before = rig.ledger.dropped["version_lag"]
    await rig.until(lambda: len(rig.queue) >= 4)
    assert rig.ledger.dropped["version_lag"] > before
    assert min(s.oldest_version for s in rig.queue.take(16)) == 3
    await rig.end()

  run_virtual(main())


def test_o28_the_end_of_a_finite_set_is_exhaustion():
  async def main():
    rig = await Rig(num_prompts=3, epochs=1).start()
    await rig.until(lambda: rig.rollouter.exhausted)
    assert [s.sample_id for s in rig.queue.take(2)] == [0, 1]
    assert [s.sample_id for s in rig.queue.take(2)] == [2]
    assert rig.ledger.remaining_samples == 0
    await rig.end()

  run_virtual(main())


def test_pending_samples_of_a_checkpoint_start_first():
  async def main():
    rig = await Rig(target=10).start()
    await rig.until(lambda: len(rig.queue) >= 4)
    saved = rig.rollouter.state_dict(), rig.ledger.to_json()
    await rig.end()

    again = Rig(target=10)
    again.ledger.from_json(saved[1])
    pending = saved[1]["pending"]
    again.rollouter.load_state_dict(saved[0], pending)
    await again.start()
    await again.until(lambda: again.rollouter.exhausted)
    ids = [s.sample_id for s in again.queue.take(16)]
    assert ids == list(range(10))
    await again.end()

  run_virtual(main())


def test_stopping_leaves_no_request_behind():
  async def main():
    rig = await Rig(length=300).start()
    await asyncio.sleep(1)
    assert rig.client.in_flight()
    await rig.end()
    await asyncio.sleep(0.1)
    assert rig.client.in_flight() == ()
    assert rig.replica.num_in_flight == 0

  run_virtual(main())
