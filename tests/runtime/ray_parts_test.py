"""How flags reach the engines."""

import dataclasses

import pytest

from hybridrl.runtime import ray_parts
from hybridrl.runtime.config import RunConfig

_CONFIG = RunConfig(
  use_dynamic_resource_scheduling=True,
  concurrent_samples_per_replica=16,
  rollout_n=8,
)


@pytest.mark.parametrize(
  ("changes", "standalone", "hybrid"),
  [
    ({}, 256, 128),
    ({"use_dynamic_resource_scheduling": False}, 128, 128),
    ({"rollout_nnodes": 0}, 128, 128),
    ({"trainer_n_gpus_per_node": 3}, 512, 128),
    ({"trainer_n_gpus_per_node": 3, "rollout_nnodes": 2}, 384, 128),
  ],
)
def test_standalone_engines_hold_what_a_reclaim_hands_over(
  changes, standalone, hybrid
):
  config = dataclasses.replace(_CONFIG, **changes)
  assert ray_parts.max_num_seqs(config, hybrid=False) == standalone
  assert ray_parts.max_num_seqs(config, hybrid=True) == hybrid
