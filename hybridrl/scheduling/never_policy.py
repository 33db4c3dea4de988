"""`never`: the lower extreme of lending; a bound to compare policies with."""

from typing import Any, NamedTuple

from hybridrl.scheduling.context import Context
from hybridrl.scheduling.phases import by_phase
from hybridrl.scheduling.types import (
  Decision,
  Fleet,
  Reason,
  SchedulingPolicy,
  make_decision,
)


class NeverState(NamedTuple):
  """`never` remembers nothing."""


def never() -> SchedulingPolicy:
  """Lends nothing, in any phase."""

  def init(fleet: Fleet) -> NeverState:
    del fleet
    return NeverState()

  def nothing(context: Context, state: Any) -> tuple[Decision, Any]:
    del context
    return make_decision(lend=0, reason=Reason.NEVER), state

  return SchedulingPolicy(
    init, by_phase(sync_end=nothing, step_start=nothing, event=nothing)
  )
