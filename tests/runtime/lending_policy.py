"""A policy for --policy_modules: lends one replica, however many there are."""

import jax.numpy as jnp

from hybridrl import scheduling as s


@s.register_policy("one_replica")
def one_replica() -> s.SchedulingPolicy:
  """Lends one at each sync, until one batch waits."""

  def lend(context, wanted):
    short = context.backlog_samples < context.required_samples
    return s.make_decision(
      lend=jnp.where(short & wanted, 1, 0),
      wait_samples=context.required_samples,
      rebalance=True,
      reason=1001,
    )

  def sync_end(context, state):
    return lend(context, True), state

  def later(context, state):
    return lend(context, context.hybrid_active > 0), state

  decide = s.by_phase(sync_end=sync_end, step_start=later, event=later)
  return s.SchedulingPolicy(lambda fleet: (), decide)
