"""What can be said of a batch of samples before it is trained. Pure."""

from collections.abc import Sequence

import numpy as np

from hybridrl.data.sample import Sample


def batch_metrics(samples: Sequence[Sample], version: int) -> dict[str, float]:
  """Scalars under their declared names; see metrics.catalogue.

  Args:
    samples: at least one, each with at least one response.
    version: of the newest weights; tokens of older ones are stale.
  """
  responses = [r for s in samples for r in s.responses]
  lengths = np.array([len(r.token_ids) for r in responses])
  truncated = np.array([r.finish_reason == "length" for r in responses])
  prompt_lengths = np.array([len(s.prompt.token_ids) for s in samples])
  num_responses = np.array([len(s.responses) for s in samples])
  spans = np.array(
    [int(np.ptp(r.versions)) if len(r.versions) else 0 for r in responses]
  )
  stale = np.array([bool((r.versions < version).any()) for r in responses])
  return {
    "training/num_samples": float(len(samples)),
    "response_length/mean": float(lengths.mean()),
    "response_length/max": float(lengths.max()),
    "response_length/min": float(lengths.min()),
    "response_length/clip_ratio": float(truncated.mean()),
    "prompt_length/mean": float(prompt_lengths.mean()),
    "perf/total_num_tokens": float(
      lengths.sum() + (prompt_lengths * num_responses).sum()
    ),
    "fully_async/count/stale_samples_processed": float(
      sum(s.oldest_version < version for s in samples)
    ),
    "fully_async/count/stale_trajectory_processed": float(stale.sum()),
    "fully_async/partial/total_partial_num": float((spans > 0).sum()),
    "fully_async/partial/max_partial_span": float(spans.max()),
  }


def score_metrics(group_rewards: Sequence[Sequence[float]]) -> dict[str, float]:
  """Raw rewards of the groups of a micro-step, dropped ones included.

  Args:
    group_rewards: rewards of each group, before any filter or shaping.
  """
  if not group_rewards:
    return {}
  means = [float(np.mean(rewards)) for rewards in group_rewards]
  return {
    "critic/score/mean": float(np.mean(means)),
    "critic/score/num_samples": float(len(group_rewards)),
    "critic/score/max": float(max(max(r) for r in group_rewards)),
    "critic/score/min": float(min(min(r) for r in group_rewards)),
  }
