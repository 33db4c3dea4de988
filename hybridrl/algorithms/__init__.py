"""Advantages, policy losses and reward shaping as pure functions."""

from hybridrl.algorithms.advantages import group_advantages, has_spread
from hybridrl.algorithms.dapo import (
  ClipRange,
  PolicySums,
  add_sums,
  policy_sums,
  zero_sums,
)
from hybridrl.algorithms.log_probs import TokenLogProbs, token_log_probs
from hybridrl.algorithms.overlong import soft_overlong_penalty

__all__ = (
  "ClipRange",
  "PolicySums",
  "TokenLogProbs",
  "add_sums",
  "group_advantages",
  "has_spread",
  "policy_sums",
  "soft_overlong_penalty",
  "token_log_probs",
  "zero_sums",
)
