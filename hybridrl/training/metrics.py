"""Scalar metrics of one micro-step."""

from collections.abc import Sequence

import numpy as np

from hybridrl.algorithms import PolicySums
from hybridrl.data.sample import Sample


def step_metrics(
  sums: PolicySums, grad_norms: Sequence[float], samples: Sequence[Sample]
) -> dict[str, float]:
  """Metrics under their final names.

  Args:
    sums: over all tokens of the micro-step; with no token, means are 0.
    grad_norms: before the clip, one for each update.
    samples: what was trained on.
  """
  tokens = max(float(sums.tokens), 1.0)
  lengths = np.array(
    [len(r.token_ids) for sample in samples for r in sample.responses]
  )
  return {
    "actor/pg_loss": float(sums.loss) / tokens,
    "actor/pg_clipfrac": float(sums.clipped) / tokens,
    "actor/pg_clipfrac_lower": float(sums.dual_clipped) / tokens,
    "actor/ppo_kl": float(sums.kl) / tokens,
    "actor/entropy": float(sums.entropy) / tokens,
    "actor/grad_norm": float(np.mean(grad_norms)),
    "training/rollout_log_prob_diff_mean": (
      float(sums.abs_log_prob_diff) / tokens
    ),
    "training/rollout_log_prob_diff_max": float(sums.max_abs_log_prob_diff),
    "response_length/mean": float(lengths.mean()),
    "response_length/max": float(lengths.max()),
    "response_length/min": float(lengths.min()),
  }
