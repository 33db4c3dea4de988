"""Policies written as classes, in the style of the seed's section 6.

A subclass of DynamicSchedulePolicyBase holds mutable Python state, so it runs
in the live controller and the eager simulator and is refused under jit.
"""

import copy
import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridrl.scheduling.checks import is_traced
from hybridrl.scheduling.context import Context
from hybridrl.scheduling.types import (
  Decision,
  Fleet,
  Phase,
  Reason,
  make_decision,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DynamicScheduleContext:
  """The seed's context, in Python values. See Context for each field."""

  required_samples: int
  trigger_parameter_sync_step: int
  step_required_samples: int
  total_generated_samples: int
  expected_samples: int
  buffer_samples: int
  step_wait_times: list[float]
  step_wait_samples: list[int]
  only_hybrid: bool
  last_activate_duration_s: float
  last_deactivate_duration_s: float


class DynamicSchedulePolicyBase(ABC):
  """Base of a policy in the seed's style; signatures of the seed.

  The constructor may take deactivate_ratio and only_hybrid; each is passed if
  it is named there.
  """

  @abstractmethod
  def should_deactivate(
    self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
  ) -> bool:
    """Whether to return the hybrid replicas before this micro-step."""

  @abstractmethod
  def deactivate_wait_samples(self, ctx: DynamicScheduleContext) -> int:
    """Backlog at which they are returned."""

  @abstractmethod
  def should_activate_after_step(
    self, global_steps: int, is_hybrid_active: bool, ctx: DynamicScheduleContext
  ) -> bool:
    """Whether to lend all hybrid replicas after a weight sync."""

  # Optional hooks: a policy without them is complete.
  def update_after_step(  # noqa: B027
    self, global_steps: int, ctx: DynamicScheduleContext
  ) -> None:
    """Updates the policy's own state at the end of a cycle."""

  def request_rebalance(  # noqa: B027
    self, global_steps: int, ctx: DynamicScheduleContext, handle: Any = None
  ) -> Any:
    """Moves requests after an activation, through a limited handle.

    An override may leave `handle` out. It may be a coroutine function; the
    caller awaits what it returns.
    """


class SeedStyleState(NamedTuple):
  """State of an adapted class."""

  instance: DynamicSchedulePolicyBase  # never mutated in place by decide
  wait_samples: int  # threshold of the reclaim that is going on; -1: none


class SeedStylePolicy:
  """Adapts a class in the seed's style to SchedulingPolicy.

  Attributes:
    jittable: False.
    request_rebalance: (global_steps, context, handle) -> what the class's own
      method returns (await it if it is awaitable); None unless overridden.
      It runs on the instance of the latest state.
  """

  jittable = False

  def __init__(
    self, policy_class: type[DynamicSchedulePolicyBase], deactivate_ratio: Any
  ):
    self._class = policy_class
    self._deactivate_ratio = deactivate_ratio
    self._latest: DynamicSchedulePolicyBase | None = None
    self.request_rebalance: Callable[[int, Context, Any], Any] | None = None
    overridden = (
      policy_class.request_rebalance
      is not DynamicSchedulePolicyBase.request_rebalance
    )
    if overridden:
      self.request_rebalance = self._request_rebalance

  def init(self, fleet: Fleet) -> SeedStyleState:
    """Constructs the instance; see InitFn."""
    offered = {
      "deactivate_ratio": self._deactivate_ratio,
      "only_hybrid": int(fleet.num_standalone) == 0,
    }
    taken = accepted_names(self._class)
    instance = self._class(**{k: v for k, v in offered.items() if k in taken})
    return SeedStyleState(instance=instance, wait_samples=-1)

  def decide(
    self, context: Context, state: SeedStyleState
  ) -> tuple[Decision, SeedStyleState]:
    """Calls the class's methods in the seed's order; see DecideFn.

    Raises:
      TypeError: under a JAX transformation.
    """
    if any(is_traced(x) for x in jax.tree.leaves(context)):
      raise TypeError(
        f"policy class {self._class.__name__} is in the seed's style: it holds "
        "Python state and cannot be jitted; use the eager simulator, or write "
        "it as a SchedulingPolicy"
      )
    # The given state stays as it is, so that a decision can be replayed.
    instance = copy.deepcopy(state.instance)
    self._latest = instance
    ctx = to_seed_context(context)
    steps, active = int(context.global_steps), int(context.hybrid_active)
    wait, lend, rebalance = state.wait_samples, active, False
    if context.phase == Phase.SYNC_END:
      rebalance = bool(
        instance.should_activate_after_step(steps, active > 0, ctx)
      )
      lend, wait = (int(context.num_hybrid) if rebalance else active), -1
    elif context.phase == Phase.CYCLE_END:
      instance.update_after_step(steps, ctx)
    else:
      # Asked once a micro-step, as in the seed; events compare with the answer.
      if context.phase == Phase.STEP_START or wait < 0:
        deactivate = instance.should_deactivate(steps, active > 0, ctx)
        wait = (
          max(0, int(instance.deactivate_wait_samples(ctx)))
          if deactivate
          else -1
        )
      if active == 0 or 0 <= wait <= int(context.backlog_samples):
        lend = 0
    decision = make_decision(
      lend=lend,
      wait_samples=max(0, wait) if lend else 0,
      rebalance=rebalance,
      reason=Reason.SEED_STYLE,
    )
    return decision, SeedStyleState(instance=instance, wait_samples=wait)

  def _request_rebalance(
    self, global_steps: int, context: Context, handle: Any
  ) -> Any:
    if self._latest is None:
      raise RuntimeError("request_rebalance before the first decision")
    method = self._latest.request_rebalance
    ctx = to_seed_context(context)
    if "handle" in accepted_names(method):
      return method(global_steps, ctx, handle)
    return method(global_steps, ctx)


def to_seed_context(context: Context) -> DynamicScheduleContext:
  """The seed's fields of a concrete context, as Python values."""
  n = int(context.num_micro_steps)
  values: dict[str, Any] = {}
  for field in dataclasses.fields(DynamicScheduleContext):
    array = np.asarray(getattr(context, field.name))
    values[field.name] = array[:n].tolist() if array.ndim else array.item()
  return DynamicScheduleContext(**values)


def accepted_names(function: Callable[..., Any]) -> set[str]:
  """Names that may be passed by keyword; all known ones with **kwargs."""
  parameters = inspect.signature(function).parameters.values()
  if any(p.kind is p.VAR_KEYWORD for p in parameters):
    return {"deactivate_ratio", "only_hybrid", "handle"}
  return {
    p.name
    for p in parameters
    if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
  }
