"""Tests of assembly.py: the parts share one ledger, one board, one fleet."""

import asyncio

import numpy as np
import pytest

from hybridrl.rollout.client import GenerationStalled
from hybridrl.runtime.assembly import assemble, scheduling_fleet
from hybridrl.testing.scripted_run import make_run, small_config
from hybridrl.testing.virtual_loop import run_virtual


def assembled(config, root):
  run = make_run(config, root)
  told = []
  machinery = assemble(
    config,
    run.parts,
    clock=run.parts.clock,
    on_switch=lambda switch: None,
    on_change=lambda: None,
    on_request=lambda: told.append(run.parts.clock()),
  )
  return run, machinery, told


def test_sizes_come_from_the_configuration(tmp_path):
  async def main():
    config = small_config(
      staleness_threshold="0.15", ppo_mini_batch_size=50, require_batches=1
    )
    run, machinery, _ = assembled(config, tmp_path)
    assert machinery.ledger.required_samples == 50
    assert machinery.ledger.max_required_samples == 115  # exact: case S12
    assert machinery.ledger.remaining_samples == 8 * 50
    assert machinery.ledger.capacity(2) == 8
    fleet = scheduling_fleet(config, run.parts)
    assert fleet.max_required_samples == 115
    assert (fleet.num_standalone, fleet.num_hybrid) == (1, 1)
    assert machinery.controller.lent == ()

  run_virtual(main())


def test_waits_hear_of_requests_that_begin_and_end(tmp_path):
  async def main():
    run, machinery, told = assembled(small_config(), tmp_path)
    with pytest.raises(GenerationStalled):
      await machinery.generate(
        np.array([1], np.int32), 5, machinery.sampling, "0-0"
      )
    # Nothing is routable: the request waited as long as training may take.
    limits = run.parts.limits
    assert told == [0.0, limits.train_s + limits.publish_s + limits.save_s]
    assert asyncio.get_running_loop().time() == told[-1]

  run_virtual(main())
