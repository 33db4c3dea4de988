"""What keeps every decision possible, in the live run and in simulation.

Laws of constrain, for any decision whatever:
  * 0 <= lend <= healthy hybrid replicas.
  * lend = 0 when no further sample can arrive.
  * With no healthy standalone replica, and a healthy hybrid one, lend > 0
    while the cycle lacks samples that can still arrive.
  * wait_samples is 0 or in (backlog, arrivable]; with lend > 0 it is not 0, so
    that the policy is asked again at the latest when nothing can arrive.
  * recheck_s >= MIN_RECHECK_S; 0 <= drain_s <= MAX_DRAIN_S; neither is NaN.
  * constrain is idempotent.
"""

import jax
import jax.numpy as jnp

from hybridrl.scheduling.context import Context
from hybridrl.scheduling.types import Decision, Phase, Reason, make_decision

# A policy that asks to be asked again at once must not spin the event loop;
# ten times the cost of a decision in the live run.
MIN_RECHECK_S = 0.01
# Draining delays training. A response that needs longer than this is cheaper
# to move: its prefix is prefilled elsewhere within seconds.
MAX_DRAIN_S = 60.0


def missing_samples(context: Context) -> jax.Array:
  """[] int32, samples that the cycle needs beyond those it has consumed.

  At SYNC_END and CYCLE_END this is the cycle that is about to begin.
  """
  if context.phase in (Phase.SYNC_END, Phase.CYCLE_END):
    of_cycle = jnp.asarray(context.step_required_samples, jnp.int32)
  else:
    of_cycle = context.step_required_samples - context.consumed_in_cycle
  return jnp.maximum(0, jnp.minimum(of_cycle, context.remaining_samples))


def constrain(context: Context, decision: Decision) -> Decision:
  """The closest possible decision; see the laws of this module."""
  backlog, arrivable = context.backlog_samples, context.arrivable_samples
  lend = jnp.clip(decision.lend, 0, context.healthy_hybrid)
  reason = jnp.where(
    lend < decision.lend, Reason.LIMIT_NO_HYBRID, decision.reason
  )

  # No standalone replica serves: lend until the cycle's samples are there.
  missing = missing_samples(context)
  stuck = (context.healthy_standalone == 0) & (backlog < missing)
  forced = stuck & (lend == 0) & (context.healthy_hybrid > 0)
  lend = jnp.where(forced, context.healthy_hybrid, lend)
  reason = jnp.where(forced, Reason.LIMIT_NO_STANDALONE, reason)

  can_arrive = arrivable > backlog
  reason = jnp.where(
    ~can_arrive & (lend > 0), Reason.LIMIT_NOTHING_ARRIVES, reason
  )
  lend = jnp.where(can_arrive, lend, 0)

  wait = jnp.where(forced, missing, decision.wait_samples)
  wait_lent = jnp.clip(
    jnp.where(wait > 0, wait, arrivable), backlog + 1, arrivable
  )
  wait_idle = jnp.minimum(wait, arrivable)
  wait_idle = jnp.where(wait_idle > backlog, wait_idle, 0)
  recheck_s = jnp.where(
    jnp.isnan(decision.recheck_s), jnp.inf, decision.recheck_s
  )
  drain_s = jnp.where(jnp.isnan(decision.drain_s), 0.0, decision.drain_s)
  return make_decision(
    lend=lend,
    wait_samples=jnp.where(lend > 0, wait_lent, wait_idle),
    recheck_s=jnp.maximum(recheck_s, MIN_RECHECK_S),
    drain_s=jnp.clip(drain_s, 0.0, MAX_DRAIN_S),
    rebalance=decision.rebalance,
    reason=reason,
  )
