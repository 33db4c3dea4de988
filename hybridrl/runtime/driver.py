"""The main loop: collect, train, synchronise, lend and reclaim (design §4).

One asyncio process holds everything but the heavy parts. `run` starts those,
goes through the cycles and stops them, also when it is cancelled or fails.
"""

import asyncio
import dataclasses
import math

from hybridrl.data.sample import Sample
from hybridrl.rollout.workflow import single_turn
from hybridrl.runtime.assembly import assemble
from hybridrl.runtime.books import Books
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.cycle import Collection
from hybridrl.runtime.lifecycle import Lifecycle
from hybridrl.runtime.parts import Parts, RunResult
from hybridrl.runtime.policy_runner import LiveDecision, reason_name
from hybridrl.runtime.validation import validate
from hybridrl.runtime.waiting import cancel_and_wait, guarded
from hybridrl.scheduling import Phase, Reason
from hybridrl.training.learner_api import TrainResult


async def run(config: RunConfig, parts: Parts) -> RunResult:
  """Trains from start (or a checkpoint) to the end of the run.

  Starts and stops learner, replicas and grader. When it is cancelled, it lets
  the learner end its micro-step, saves a checkpoint and stops everything
  within parts.limits.shutdown_s.

  Args:
    config: validated (see config_checks).
    parts: see Parts.

  Raises:
    WaitExpired: a wait reached its deadline.
    RolloutFailed: too many prompts failed in a row.
    FleetLost: no replica is left.
    Exception: whatever the learner raised, with its own type.
  """
  return await _Driver(config, parts).run()


class _Driver:
  def __init__(self, config: RunConfig, parts: Parts):
    self.config, self.parts = config, parts
    self.clock = parts.clock
    self.books = Books(config, self.clock, parts.reporter)
    self.m = self.books.machinery = assemble(
      config,
      parts,
      clock=self.clock,
      on_switch=self.books.on_switch,
      on_change=self.books.on_change,
      on_request=self.books.on_request,
    )
    self.life = Lifecycle(parts, self.m, self.books)

  async def run(self) -> RunResult:
    heartbeat = asyncio.create_task(self.life.heartbeat(), name="heartbeat")
    tasks = [heartbeat]
    try:
      await guarded(self.life.start(), *tasks)
      tasks.append(
        asyncio.create_task(self.m.rollouter.run(), name="rollouter")
      )
      return await guarded(self.loop(), *tasks)
    except BaseException as error:
      await self.life.save_after(error, *tasks)
      raise
    finally:
      await cancel_and_wait(*tasks)
      await self.life.stop()

  # The page: design §4, "One cycle".

  async def loop(self) -> RunResult:
    await self.begin()
    while self.m.ledger.remaining_samples > 0:
      for _ in range(self.config.trigger_parameter_sync_step):
        samples = await self.collect()
        if not samples:  # the end of data
          break
        await self.train(samples)
      if not self.books.cycle.num_micro_steps:
        break
      await self.sync()
    return await self.finish()

  async def begin(self) -> None:
    """First publication; also after a resume."""
    self.books.first_publish_s = self.clock()
    await self.publish_and_load()
    await self.reconcile(self.decide(Phase.SYNC_END))
    self.begin_cycle()
    if self.due(self.config.test_freq):
      await self.validate()

  async def collect(self) -> list[Sample]:
    """R samples, or what is left at the end of data; nothing is lent then."""
    m, cycle, r = self.m, self.books.cycle, self.config.required_samples
    cycle.begin_step(self.books.step + 1, self.clock())
    spent = Collection(r, self.clock())
    decision = self.decide(Phase.STEP_START)
    if decision.lend:
      cycle.put(
        {"dynamic_resource/deactivate_wait_samples": decision.wait_samples}
      )
    while True:
      spent.enter("switch", self.clock(), m.ledger.backlog)
      complete = await self.reconcile(decision)
      spent.enter(
        "lent" if m.controller.lent else "idle", self.clock(), m.ledger.backlog
      )
      if self.ready_to_train():
        break
      await self.next_event(decision, complete)
      if self.ready_to_train():
        break
      decision = self.decide(Phase.EVENT)
    spent.enter("switch", self.clock(), m.ledger.backlog)
    samples = m.queue.take(r)
    if samples:
      cycle.collected(spent)
    else:
      cycle.abandon_step()
    return samples

  async def train(self, samples: list[Sample]) -> None:
    """One micro-step; generation goes on elsewhere meanwhile."""
    started_s = self.clock()

    def account(result: TrainResult) -> None:
      self.m.ledger.trained([s.sample_id for s in samples])
      self.books.step += 1
      if result.step != self.books.step:
        raise RuntimeError(
          f"the learner counts {result.step} micro-steps, the driver"
          f" {self.books.step}: a batch was applied twice or not at all"
        )
      self.books.cycle.train_times_s.append(self.clock() - started_s)
      self.books.on_trained(samples, result)
      self.parts.reporter.span("learner", "train", started_s, self.clock())

    self.books.learner_state = "training"
    await self.life.learner(
      self.parts.learner.train(samples),
      f"micro-step {self.books.step + 1}",
      self.parts.limits.train_s,
      account,
    )
    self.report_step()

  async def sync(self) -> None:
    """Publication, standalone sync, lending, reset of staleness."""
    version = self.books.version
    self.drop_what_gets_too_old()
    await self.publish_and_load()
    await self.reconcile(self.decide(Phase.SYNC_END))
    self.decide(Phase.CYCLE_END)
    values = self.books.close_cycle()
    self.parts.reporter.metrics(self.books.step, version, values)
    self.books.cycles += 1
    self.begin_cycle()
    if self.m.ledger.remaining_samples > 0:  # else `finish` does both
      if self.due(self.config.test_freq):
        await self.validate()
      if self.due(self.config.save_freq):
        await self.life.save()

  async def finish(self) -> RunResult:
    """The last update is synced already: validate, save, export."""
    if self.parts.val_prompts:
      await self.lend_for_validation()
      await self.validate()
    await self.reconcile(_lend(0))
    await self.life.save()
    if self.parts.export_dir:
      await self.life.export_weights()
    return self.books.result(self.life.checkpoint, self.life.export)

  # The pieces of a cycle.

  async def publish_and_load(self) -> None:
    started_s = self.clock()
    self.books.learner_state = "publishing"
    self.books.version += 1
    bundle = await self.life.learner(
      self.parts.learner.publish(self.books.version),
      f"publication of version {self.books.version}",
      self.parts.limits.publish_s,
    )
    published_s = self.clock()
    self.m.weights.published(bundle)
    await self.m.weights.load_standalone()
    self.m.rollouter.version = self.books.version
    self.books.on_change()
    self.books.cycle.add("timing_s/publish", published_s - started_s)
    self.books.cycle.add("timing_s/param_sync", self.clock() - started_s)
    self.parts.reporter.span("learner", "publish", started_s, published_s)

  def begin_cycle(self) -> None:
    self.m.ledger.begin_cycle()
    self.books.begin_cycle()
    self.m.waits.notify()

  def decide(self, phase: Phase) -> LiveDecision:
    return self.m.runner.decide(phase, **self.books.facts(phase))

  async def reconcile(self, decision: LiveDecision) -> bool:
    complete = await self.m.controller.reconcile(decision)
    self.books.learner_state = "lent" if self.m.controller.lent else "waiting"
    return complete

  def ready_to_train(self) -> bool:
    """Nothing is lent, and R samples (or the last ones) are there."""
    return not self.m.controller.lent and (
      len(self.m.queue) >= self.config.required_samples
      or self.m.rollouter.exhausted
    )

  async def next_event(self, decision: LiveDecision, complete: bool) -> None:
    """Waits until there is a reason to ask the policy again."""
    m, failures_seen = self.m, self.m.replicas.changes

    def happened() -> bool:
      if m.replicas.changes != failures_seen:
        return True
      if self.ready_to_train():
        return True
      wait = decision.wait_samples
      return wait > 0 and not m.ledger.backlog < wait <= m.ledger.arrivable

    limits = self.parts.limits
    await m.waits.until(
      happened,
      owner="learner",
      reason=(
        f"{decision.wait_samples or self.config.required_samples} samples,"
        f" {reason_name(decision.reason)}"
      ),
      deadline_s=limits.stall_s,
      progress=lambda: (m.ledger.counts, m.client.counters.responses),
      at_latest_s=min(
        decision.recheck_s, math.inf if complete else limits.retry_s
      ),
    )

  def drop_what_gets_too_old(self) -> None:
    """Bounds the age of trained tokens by --max_version_lag, before a sync."""
    if not self.config.max_version_lag:
      return
    m = self.m
    oldest = self.books.version + 1 - self.config.max_version_lag
    m.rollouter.oldest_allowed = oldest
    m.rollouter.cancel_older_than(oldest)
    m.rollouter.note_dropped(m.queue.drop_older_than(oldest))

  def report_step(self) -> None:
    self.parts.reporter.metrics(
      self.books.step,
      self.books.version,
      {"reward/raw_mean": self.books.step_rewards[-1]},
    )

  def due(self, every_cycles: int) -> bool:
    """Whether an interval flag says so now; 0 means never."""
    return every_cycles > 0 and self.books.cycles % every_cycles == 0

  # Validation.

  async def validate(self) -> None:
    """Scores the held-out prompts on whatever serves now."""
    if not self.parts.val_prompts:
      return
    m, started_s = self.m, self.clock()
    self.books.learner_state = "validating"
    serving = max(1, len(m.balancer.routable()))
    result = await m.waits.within(
      validate(
        self.parts.val_prompts,
        workflow=single_turn,
        generate=m.generate,
        grader=self.parts.grader,
        decode=self.parts.decode,
        max_response_length=self.config.max_response_length,
        sampling=m.sampling,
        max_concurrent=(
          serving
          * self.config.concurrent_samples_per_replica
          * self.config.rollout_n
        ),
        label=f"val{self.books.version}",
      ),
      owner="driver",
      reason="validation",
      deadline_s=self.parts.limits.train_s,
    )
    self.books.pause("timing_s/testing", self.clock() - started_s)
    self.books.val_rewards.append((self.books.step, result.reward))
    self.parts.reporter.metrics(
      self.books.step, self.books.version, {"val/reward_mean": result.reward}
    )
    self.parts.reporter.event(
      "validation",
      f"held-out reward {result.reward:.3f} at version {self.books.version}",
      step=self.books.step,
      version=self.books.version,
      **dataclasses.asdict(result),
    )

  async def lend_for_validation(self) -> None:
    """A fleet without standalone replicas has to be woken for it."""
    if not self.m.replicas.healthy_standalone:
      await self.reconcile(_lend(len(self.m.replicas.healthy_hybrid)))


def _lend(replicas: int) -> LiveDecision:
  """What the driver itself wants, outside of any cycle."""
  return LiveDecision(
    lend=replicas,
    wait_samples=0,
    recheck_s=math.inf,
    drain_s=0.0,
    rebalance=False,
    reason=int(Reason.HOLD),
  )
