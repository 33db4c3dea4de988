"""Policies: what to lend and when. Pure; the research surface."""

from hybridrl.scheduling.always_policy import always
from hybridrl.scheduling.checks import check_ratio
from hybridrl.scheduling.constraints import (
  MAX_DRAIN_S,
  MIN_RECHECK_S,
  constrain,
  missing_samples,
)
from hybridrl.scheduling.context import Context, make_context
from hybridrl.scheduling.default_policy import default
from hybridrl.scheduling.fixed_ratio_policy import fixed_ratio
from hybridrl.scheduling.never_policy import never
from hybridrl.scheduling.phases import by_phase, constrained_step, hold
from hybridrl.scheduling.registry import (
  POLICIES,
  Policy,
  make_policy,
  register_policy,
)
from hybridrl.scheduling.seed_style import (
  DynamicScheduleContext,
  DynamicSchedulePolicyBase,
  SeedStylePolicy,
  to_seed_context,
)
from hybridrl.scheduling.state_io import dump_state, load_state
from hybridrl.scheduling.static_fully_async_policy import static_fully_async
from hybridrl.scheduling.types import (
  K_MAX,
  UNBOUNDED_SAMPLES,
  DecideFn,
  Decision,
  Fleet,
  InitFn,
  Phase,
  Reason,
  SchedulingPolicy,
  make_decision,
)

__all__ = [
  "K_MAX",
  "MAX_DRAIN_S",
  "MIN_RECHECK_S",
  "POLICIES",
  "UNBOUNDED_SAMPLES",
  "Context",
  "DecideFn",
  "Decision",
  "DynamicScheduleContext",
  "DynamicSchedulePolicyBase",
  "Fleet",
  "InitFn",
  "Phase",
  "Policy",
  "Reason",
  "SchedulingPolicy",
  "SeedStylePolicy",
  "always",
  "by_phase",
  "check_ratio",
  "constrain",
  "constrained_step",
  "default",
  "dump_state",
  "fixed_ratio",
  "hold",
  "load_state",
  "make_context",
  "make_decision",
  "make_policy",
  "missing_samples",
  "never",
  "register_policy",
  "static_fully_async",
  "to_seed_context",
]
