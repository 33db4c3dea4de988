"""Hypothesis strategies for fleets, contexts and sequences of sample events.

Every value is one that a run can meet: counts of one context fit together
(arrivable = backlog + in flight + what may be admitted, and so on).
"""

import dataclasses

from hypothesis import strategies as st

from hybridrl.accounting import max_required_samples
from hybridrl.scheduling import (
  UNBOUNDED_SAMPLES,
  Context,
  Fleet,
  Phase,
  make_context,
)

_DURATIONS = st.floats(0, 1e4, width=32)


def staleness_texts() -> st.SearchStrategy[str]:
  """Decimal texts of staleness thresholds, 0 to 2."""
  return st.integers(0, 200).map(lambda n: f"{n // 100}.{n % 100:02d}")


@st.composite
def fleets(
  draw: st.DrawFn, *, only_hybrid: bool | None = None, min_hybrid: int = 0
) -> Fleet:
  """Fleets of up to 8 replicas of each kind, at least one in all.

  Args:
    draw: given by hypothesis.
    only_hybrid: True: no standalone replica; False: at least one.
    min_hybrid: smallest number of hybrid replicas.
  """
  standalone = {
    None: st.integers(0, 8),
    True: st.just(0),
    False: st.integers(1, 8),
  }[only_hybrid]
  num_standalone = draw(standalone)
  lowest = max(min_hybrid, 1 if num_standalone == 0 else 0)
  required = draw(st.integers(1, 64))
  k = draw(st.integers(1, 8))
  threshold = draw(staleness_texts())
  return Fleet(
    num_standalone=num_standalone,
    num_hybrid=draw(st.integers(lowest, 8)),
    required_samples=required,
    trigger_parameter_sync_step=k,
    staleness_threshold=float(threshold),
    max_required_samples=max_required_samples(required * k, threshold),
  )


@st.composite
def contexts(
  draw: st.DrawFn, *, fleet: Fleet | None = None, phase: Phase | None = None
) -> Context:
  """Contexts of a running cycle.

  Args:
    draw: given by hypothesis.
    fleet: None: any.
    phase: None: any.
  """
  if fleet is None:
    fleet = draw(fleets())
  if phase is None:
    phase = Phase(draw(st.sampled_from(list(Phase))))
  k, limit = fleet.trigger_parameter_sync_step, fleet.max_required_samples
  micro_steps = draw(st.integers(0, k))
  consumed = min(micro_steps * fleet.required_samples, limit)
  # At SYNC_END the budget is that of the next cycle, where nothing is consumed.
  budget = limit if phase == Phase.SYNC_END else limit - consumed
  backlog = draw(st.integers(0, budget))
  in_flight = draw(st.integers(0, budget - backlog))
  remaining = draw(
    st.one_of(
      st.just(UNBOUNDED_SAMPLES),
      st.integers(backlog + in_flight, backlog + in_flight + 4 * limit),
    )
  )
  healthy_hybrid = draw(st.integers(0, fleet.num_hybrid))
  times = st.lists(_DURATIONS, min_size=micro_steps, max_size=micro_steps)
  waited = st.integers(0, fleet.required_samples)
  generated = backlog + draw(st.integers(0, 100_000))
  return make_context(
    phase=phase,
    fleet=fleet,
    global_steps=draw(st.integers(0, 10_000)),
    param_version=draw(st.integers(0, 10_000)),
    total_generated_samples=generated,
    healthy_standalone=draw(st.integers(0, fleet.num_standalone)),
    healthy_hybrid=healthy_hybrid,
    hybrid_active=draw(st.integers(0, healthy_hybrid)),
    backlog_samples=backlog,
    in_flight_samples=in_flight,
    admissible_samples=budget - backlog - in_flight,
    consumed_in_cycle=consumed,
    remaining_samples=remaining,
    step_wait_times=draw(times),
    step_wait_samples=draw(
      st.lists(waited, min_size=micro_steps, max_size=micro_steps)
    ),
    step_train_times=draw(times),
    last_activate_duration_s=draw(_DURATIONS),
    last_deactivate_duration_s=draw(_DURATIONS),
    elapsed_s=draw(_DURATIONS),
  )


@dataclasses.dataclass(frozen=True)
class LedgerAction:
  """One call on a ledger.

  Attributes:
    name: name of a Ledger method.
    sample_id: small, so that sequences meet the same sample often.
  """

  name: str
  sample_id: int


def ledger_actions(num_samples: int = 8) -> st.SearchStrategy[LedgerAction]:
  """Calls in any order, so most sequences hold events that do not fit."""
  names = (
    "offer",
    "start",
    "generated",
    "queue",
    "take",
    "trained",
    "requeue",
    "drop",
    "begin_cycle",
    "restore",
  )
  return st.builds(
    LedgerAction, st.sampled_from(names), st.integers(0, num_samples - 1)
  )
