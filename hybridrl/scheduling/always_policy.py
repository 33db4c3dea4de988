"""`always`: lend after every sync until the whole cycle's samples are there."""

from typing import Any, NamedTuple

from hybridrl.scheduling.constraints import missing_samples
from hybridrl.scheduling.context import Context
from hybridrl.scheduling.phases import by_phase
from hybridrl.scheduling.ratio import reclaim_at
from hybridrl.scheduling.types import (
  Decision,
  Fleet,
  Reason,
  SchedulingPolicy,
  make_decision,
)


class AlwaysState(NamedTuple):
  """`always` remembers nothing."""


def always() -> SchedulingPolicy:
  """The upper extreme of lending; a bound to compare policies with."""

  def init(fleet: Fleet) -> AlwaysState:
    del fleet
    return AlwaysState()

  def sync_end(context: Context, state: Any) -> tuple[Decision, Any]:
    decision = make_decision(
      lend=context.num_hybrid,
      wait_samples=missing_samples(context),
      rebalance=True,
      reason=Reason.ALWAYS,
    )
    return decision, state

  def step_start(context: Context, state: Any) -> tuple[Decision, Any]:
    return reclaim_at(context, missing_samples(context)), state

  return SchedulingPolicy(
    init, by_phase(sync_end=sync_end, step_start=step_start, event=step_start)
  )
