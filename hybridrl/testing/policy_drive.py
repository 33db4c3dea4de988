"""Drives a policy through whole cycles against the real ledger, in ticks.

A small, deterministic stand-in for the runtime's loop (design section 4): each
serving replica finishes at most one sample a tick, training takes ticks during
which only standalone replicas serve. It shows whether a policy makes progress
and what it decided; it says nothing about speed.
"""

import dataclasses
from typing import Any

from hybridrl.runtime.ledger import Ledger, SampleState
from hybridrl.scheduling import (
  Decision,
  Fleet,
  Phase,
  constrained_step,
  make_context,
)


class Stuck(AssertionError):
  """No event can happen any more; the message holds the ledger's counts."""


@dataclasses.dataclass(kw_only=True)
class Drive:
  """Settings and, after run(), what happened.

  Attributes:
    policy: a SchedulingPolicy or an adapted class.
    fleet: see Fleet.
    staleness_text: the threshold as decimal text.
    num_samples: samples that the source holds; None: no end.
    num_cycles: cycles to run at most.
    end_is_known: whether the ledger knows num_samples from the start.
    concurrent: samples in flight per replica.
    train_ticks: length of one micro-step.
    step: constrained_step(policy), to share its compilations; None: make it.
    drop_every: every n-th sample is dropped after grading; 0: none.
    trained: ids in the order in which they were trained.
    decisions: (phase, raw, constrained) of every call.
    cycles: cycles completed, the last, partial one included.
    lent_ticks: ticks during which anything was lent.
    mismatches: times when the surplus was not the backlog.
  """

  policy: Any
  fleet: Fleet
  staleness_text: str
  num_samples: int | None
  num_cycles: int
  end_is_known: bool = True
  concurrent: int = 2
  train_ticks: int = 2
  drop_every: int = 0
  step: Any = None
  trained: list[int] = dataclasses.field(default_factory=list)
  decisions: list[tuple[Phase, Decision, Decision]] = dataclasses.field(
    default_factory=list
  )
  cycles: int = 0
  lent_ticks: int = 0
  mismatches: int = 0

  def run(self) -> "Drive":
    """Runs until num_cycles or the end of data; raises Stuck."""
    fleet = self.fleet
    self._ledger = Ledger(
      required_samples=fleet.required_samples,
      trigger_parameter_sync_step=fleet.trigger_parameter_sync_step,
      staleness_threshold=self.staleness_text,
      concurrent_samples_per_replica=self.concurrent,
      target_samples=self.num_samples if self.end_is_known else None,
    )
    self._step = self.step or constrained_step(self.policy)
    self._state = self.policy.init(fleet)
    self._next_id, self._ticks, self._lent = 0, 0, 0
    self._waits: list[tuple[float, int]] = []
    self._decide(Phase.SYNC_END)
    while self.cycles < self.num_cycles and self._more_to_train():
      for _ in range(fleet.trigger_parameter_sync_step):
        if not self._more_to_train():
          break
        self._micro_step()
      self._decide(Phase.SYNC_END)
      self._decide(Phase.CYCLE_END)
      self._ledger.begin_cycle()
      self._waits.clear()
      self.cycles += 1
    self._ledger.check()
    return self

  def _more_to_train(self) -> bool:
    self._offer()
    return self._ledger.remaining_samples > 0

  def _micro_step(self) -> None:
    decision = self._decide(Phase.STEP_START)
    while self._lent:
      wait = int(decision.wait_samples)
      # Also asked again when the wait cannot be met any more (case S5).
      while self._ledger.backlog < wait <= self._ledger.arrivable:
        self._tick()
      decision = self._decide(Phase.EVENT)
    required = self.fleet.required_samples
    started = self._ticks
    waited = max(0, required - self._ledger.backlog)
    while self._ledger.backlog < min(required, self._ledger.remaining_samples):
      self._tick()
    self._waits.append((float(self._ticks - started), waited))
    ids = self._ledger.ids(SampleState.QUEUED)[:required]
    self._ledger.take(ids)
    for _ in range(self.train_ticks):
      self._tick(may_idle=True)
    self._ledger.trained(ids)
    self.trained += ids

  def _decide(self, phase: Phase) -> Decision:
    ledger = self._ledger
    context = make_context(
      phase=phase,
      fleet=self.fleet,
      **ledger.facts(next_cycle=phase == Phase.SYNC_END),
      global_steps=len(self.trained) // self.fleet.required_samples,
      hybrid_active=self._lent,
      step_wait_times=[seconds for seconds, _ in self._waits],
      step_wait_samples=[samples for _, samples in self._waits],
      elapsed_s=float(self._ticks),
    )
    raw, decision, self._state = self._step(context, self._state)
    self.decisions.append((phase, raw, decision))
    if phase != Phase.CYCLE_END:
      self._lent = int(decision.lend)
    self.mismatches += ledger.counts.surplus != ledger.backlog
    return decision

  def _offer(self) -> None:
    """Keeps prompts pending; the end of the source is out of band."""
    ledger = self._ledger
    while ledger.counts.pending < 2 and ledger.wants_more():
      known_end = self.num_samples is not None and not self.end_is_known
      if known_end and self._next_id >= (self.num_samples or 0):
        ledger.end_of_data()
        return
      ledger.offer(self._next_id)
      self._next_id += 1

  def _tick(self, *, may_idle: bool = False) -> None:
    """Each serving replica finishes one sample, then new ones start."""
    ledger = self._ledger
    self._ticks += 1
    self.lent_ticks += self._lent > 0
    serving = self.fleet.num_standalone + self._lent
    before = ledger.counts
    for sample_id in ledger.ids(SampleState.IN_FLIGHT)[:serving]:
      ledger.generated(sample_id)
      if self.drop_every and sample_id % self.drop_every == 0:
        ledger.drop(sample_id, "no spread")
      else:
        ledger.queue(sample_id)
    self._offer()
    while ledger.in_flight < ledger.capacity(serving) and ledger.admissible:
      pending = ledger.ids(SampleState.PENDING)
      if not pending:
        break
      ledger.start(pending[0])
      self._offer()
    if ledger.counts == before and not may_idle:
      raise Stuck(f"nothing can happen; lent {self._lent}: {ledger.counts}")
