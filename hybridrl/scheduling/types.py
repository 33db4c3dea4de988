"""The types of a scheduling policy: a pair of pure functions and a decision.

A policy sees a `Context` (context.py) and its own state and answers with a
`Decision`: the desired state of the fleet and when to ask again. The runtime
reconciles the fleet to it; the simulator does the same.
"""

import enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import struct

if TYPE_CHECKING:
  from hybridrl.scheduling.context import Context

# Capacity of the arrays with one entry per micro-step of a cycle. Twice the
# largest trigger_parameter_sync_step seen in published recipes; larger values
# are refused by make_context. A constant, so that no fleet retraces a policy.
K_MAX = 64

# Stands for "no end" in int32 counts such as remaining_samples.
UNBOUNDED_SAMPLES = 2**31 - 1


class Phase(enum.IntEnum):
  """When a policy is asked; static, so each phase compiles once.

  SYNC_END: after the weight sync of the standalone replicas, and once before
    the first micro-step and after a resume. The seed's
    should_activate_after_step.
  STEP_START: before each micro-step. The seed's should_deactivate and
    deactivate_wait_samples.
  EVENT: wait_samples was reached, recheck_s passed, a replica joined or
    failed, or arrivable fell.
  CYCLE_END: after activation and rebalance, before the counters of the cycle
    are reset. Only the state counts; the decision is ignored. The seed's
    update_after_step.
  """

  SYNC_END = 0
  STEP_START = 1
  EVENT = 2
  CYCLE_END = 3


class Reason(enum.IntEnum):
  """Why a decision was taken, for logs and reports. >= 1000: free for users."""

  HOLD = 0  # no handler for the phase: leave the fleet as it is
  LEND_BEHIND = 1  # samples are missing, and lending pays or is not weighed
  STAY_ON_PACE = 2  # enough samples are there
  STAY_TOO_COSTLY = 3  # samples are missing, but switching costs more
  WAIT_FOR_SAMPLES = 4  # keep lending until wait_samples are there
  RECLAIM = 5  # enough samples: return the devices to training
  NOTHING_LENT = 6  # nothing to reclaim
  ONLY_HYBRID = 7  # no standalone replica exists, so generation needs lending
  ALWAYS = 8
  NEVER = 9
  SEED_STYLE = 10  # a class in the seed's style said so
  # Set by constrain() where it changed the number of lent replicas.
  LIMIT_NO_HYBRID = 20  # fewer healthy hybrid replicas than asked for
  LIMIT_NOTHING_ARRIVES = 21  # no further sample can arrive
  LIMIT_NO_STANDALONE = 22  # no standalone replica serves; samples missing


@struct.dataclass(kw_only=True)
class Fleet:
  """What does not change during a run. Leaves: Python numbers or scalars.

  Attributes:
    num_standalone: replicas on devices of their own.
    num_hybrid: replicas on the trainer's devices.
    required_samples: R, samples of one collection (micro-step).
    trigger_parameter_sync_step: k, collections of one cycle; at most K_MAX.
    staleness_threshold: share of S that may be generated ahead.
    max_required_samples: floor(S * (1 + staleness_threshold)) of the flag's
      decimal text; see accounting.max_required_samples.
  """

  num_standalone: Any
  num_hybrid: Any
  required_samples: Any
  trigger_parameter_sync_step: Any
  staleness_threshold: Any
  max_required_samples: Any

  @property
  def step_required_samples(self) -> Any:
    """S: samples of one cycle."""
    return self.required_samples * self.trigger_parameter_sync_step


@struct.dataclass(kw_only=True)
class Decision:
  """The fleet that a policy wants and when it wants to be asked again.

  Attributes:
    lend: [] int32, hybrid replicas that shall be serving now, the healthy ones
      of lowest index; 0..num_hybrid.
    wait_samples: [] int32, backlog at which to ask again, or sooner when
      arrivable falls below it; 0: not on backlog.
    recheck_s: [] float32, ask again at the latest after this; inf: never.
    drain_s: [] float32, how long requests on a reclaimed replica may finish
      after it was unrouted; then they are aborted.
    rebalance: [] bool, move requests in flight toward newly woken replicas.
    reason: [] int32, a Reason or a code of the user's from 1000.
  """

  lend: jax.Array
  wait_samples: jax.Array
  recheck_s: jax.Array
  drain_s: jax.Array
  rebalance: jax.Array
  reason: jax.Array


def make_decision(
  *,
  lend: Any,
  wait_samples: Any = 0,
  recheck_s: Any = float("inf"),
  drain_s: Any = 0.0,
  rebalance: Any = False,
  reason: Any = Reason.HOLD,
) -> Decision:
  """A Decision with every field cast to its dtype; see Decision."""
  return Decision(
    lend=jnp.asarray(lend, jnp.int32),
    wait_samples=jnp.asarray(wait_samples, jnp.int32),
    recheck_s=jnp.asarray(recheck_s, jnp.float32),
    drain_s=jnp.asarray(drain_s, jnp.float32),
    rebalance=jnp.asarray(rebalance, jnp.bool_),
    reason=jnp.asarray(reason, jnp.int32),
  )


class InitFn(Protocol):
  """Makes the first state of a policy."""

  def __call__(self, fleet: Fleet) -> Any:
    """Returns a tree of arrays with fixed structure, shapes and dtypes.

    Args:
      fleet: what does not change during the run.
    """
    ...


class DecideFn(Protocol):
  """The decision function of a policy. Pure: no clock, no randomness."""

  def __call__(self, context: "Context", state: Any) -> tuple[Decision, Any]:
    """Returns the decision and the next state.

    Args:
      context: what is known now; `context.phase` is static.
      state: what init or the previous call returned. The returned state has
        the same structure, shapes and dtypes.
    """
    ...


class SchedulingPolicy(NamedTuple):
  """A policy as a pair of pure functions, made by a lower-case factory."""

  init: InitFn
  decide: DecideFn

  @property
  def jittable(self) -> bool:
    """Whether decide may be traced; False for classes in the seed's style."""
    return True

  @property
  def request_rebalance(self) -> None:
    """Only a class in the seed's style moves requests by itself."""
    return
