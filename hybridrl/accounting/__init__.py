"""The ledger's rules: where every sample is, staleness, budgets. Pure."""

from hybridrl.accounting.admission import (
  admissible,
  arrivable,
  capacity,
  max_required_samples,
)
from hybridrl.accounting.counts import (
  DELTAS,
  ConservationError,
  Counts,
  Event,
  apply,
  check_conservation,
  imbalance,
)

__all__ = [
  "DELTAS",
  "ConservationError",
  "Counts",
  "Event",
  "admissible",
  "apply",
  "arrivable",
  "capacity",
  "check_conservation",
  "imbalance",
  "max_required_samples",
]
