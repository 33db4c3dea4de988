"""Failing runs of scripted parts: what ends a run, and what does not."""

import asyncio

import pytest

from hybridrl.runtime.parts import Limits
from hybridrl.runtime.replica_set import FleetLost
from hybridrl.runtime.rollouter import RolloutFailed
from hybridrl.runtime.waiting import WaitExpired
from hybridrl.testing.faults import Die, Hang, Raise
from hybridrl.testing.interrupted_run import (
  all_stopped,
  last_checkpoint,
  read_steps,
)
from hybridrl.testing.scripted_grader import ScriptedGrader
from hybridrl.testing.scripted_replica import ScriptedTimes
from hybridrl.testing.scripted_run import make_run, run_scripted, small_config
from hybridrl.testing.virtual_loop import run_virtual


def failing_run(config, root, **options):
  """Runs to its failure; returns (run, error, its time)."""

  async def main():
    run = make_run(config, root, **options)
    try:
      await run.run()
    except Exception as error:
      return run, error, asyncio.get_running_loop().time()
    raise AssertionError("the run succeeded")

  return run_virtual(main())


@pytest.mark.parametrize("method", ["start", "train", "publish", "save"])
def test_x3_a_failing_learner_surfaces_with_its_own_type(method, tmp_path):
  def fail(called, number):
    if called == method and number == (1 if method in ("start", "save") else 2):
      raise ZeroDivisionError(f"in {called}")

  run, error, _ = failing_run(small_config(), tmp_path, learner_fails=fail)
  assert isinstance(error, ZeroDivisionError) and method in str(error)
  assert all_stopped(run)
  kinds = run.reporter.kinds()
  assert "run_failed" in kinds
  # What the learner holds after a failure is unknown: nothing is saved.
  assert last_checkpoint(tmp_path) == ""
  assert ("not_saved" in kinds) == (method != "start")


def test_o15_failing_rewards_end_the_run_within_a_second(tmp_path):
  failed_at = []

  def fail(prompt):
    failed_at.append(asyncio.get_running_loop().time())
    raise ZeroDivisionError("in every reward")

  run, error, at_s = failing_run(
    small_config(),
    tmp_path,
    grader=ScriptedGrader(fail=fail),
    limits=Limits(failures_in_a_row=4),
  )
  assert isinstance(error, RolloutFailed)
  assert isinstance(error.__cause__, ZeroDivisionError)
  assert at_s - failed_at[3] < 1.0
  assert all_stopped(run)


def test_a_failed_rollout_still_saves_what_was_trained(tmp_path):
  def fail(prompt):
    if asyncio.get_running_loop().time() > 9.0:
      raise ZeroDivisionError("later")

  run, error, _ = failing_run(
    small_config(total_training_steps=100),
    tmp_path,
    grader=ScriptedGrader(fail=fail),
    limits=Limits(failures_in_a_row=3),
  )
  assert isinstance(error, RolloutFailed)
  assert read_steps(last_checkpoint(tmp_path)) == run.learner.steps > 0


def test_one_prompt_that_always_fails_does_not_end_the_run(tmp_path):
  def fail(prompt):
    if prompt.prompt_id == 5:
      raise ValueError("no gold answer")

  run = run_scripted(
    small_config(total_training_steps=12),
    tmp_path,
    num_prompts=8,
    grader=ScriptedGrader(fail=fail),
  )
  assert run.result.steps == 12
  assert run.result.dropped["failed"] >= 4
  assert (
    run.reporter.kinds().count("prompt_failed")
    == (run.result.dropped["failed"])
  )


def run_with_faults(config, root, faults, **options):
  """faults: replica name -> (point, fault) or the time of its death."""

  async def main():
    run = make_run(config, root, **options)
    for replica in (*run.standalone, *run.hybrid):
      plan = faults.get(replica.name)
      if isinstance(plan, tuple):
        replica.faults.add(*plan)
      elif plan is not None:
        asyncio.get_running_loop().call_later(plan, replica.die)
    await run.run()
    return run

  return run_virtual(main())


@pytest.mark.parametrize("at_s", [5.2, 5.9, 6.4, 7.0, 8.3, 9.7])
@pytest.mark.parametrize("policy", ["default", "static_fully_async", "never"])
def test_hybrid_replicas_carry_a_run_whose_standalone_died(
  policy, at_s, tmp_path
):
  run = run_with_faults(
    small_config(dynamic_schedule_policy=policy, total_training_steps=10),
    tmp_path,
    {"standalone-0": at_s},
  )
  assert run.result.steps == 10
  assert len(set(run.trained_ids)) == 40
  assert run.reporter.kinds().count("replica_failed") == 1
  assert run.result.activations > 0


@pytest.mark.parametrize("at_s", [5.9, 6.4, 7.0])
def test_a_hybrid_replica_that_dies_is_done_without(at_s, tmp_path):
  run = run_with_faults(
    small_config(dynamic_schedule_policy="always", total_training_steps=10),
    tmp_path,
    {"hybrid-0": at_s},
  )
  assert run.result.steps == 10
  assert run.hybrid[0].state == "stopped"


def test_o12_the_death_of_the_whole_fleet_surfaces_within_seconds(tmp_path):
  async def main():
    run = make_run(
      small_config(use_dynamic_resource_scheduling=False), tmp_path
    )
    asyncio.get_running_loop().call_later(8.0, run.standalone[0].die)
    with pytest.raises(FleetLost, match="standalone-0.*killed by a test"):
      await run.run()
    return run, asyncio.get_running_loop().time()

  run, at_s = run_virtual(main())
  assert at_s < 8.0 + 3.0
  assert read_steps(last_checkpoint(tmp_path)) == run.learner.steps


def test_a_replica_that_does_not_start_is_named(tmp_path):
  for fault, error in (
    (Raise(OSError("no such model")), OSError),
    (Hang(), WaitExpired),
  ):
    with pytest.raises(error, match="no such model|standalone-0 waited 50 s"):
      run_with_faults(
        small_config(),
        tmp_path,
        {"standalone-0": ("start", fault)},
        limits=Limits(start_s=50.0),
      )


def test_i3_a_stalled_collection_ends_with_owner_and_reason(tmp_path):
  class Stuck(ScriptedGrader):
    async def grade(self, prompt, texts):
      await asyncio.sleep(1e9)

  run, error, at_s = failing_run(
    small_config(use_dynamic_resource_scheduling=False),
    tmp_path,
    grader=Stuck(),
    limits=Limits(stall_s=100.0),
  )
  assert isinstance(error, WaitExpired)
  assert "learner waited 100 s without any progress for 4 samples" in str(error)
  assert at_s < 130.0
  assert all_stopped(run)


def test_o14_one_long_sample_does_not_hold_up_the_sync(tmp_path):
  # One response in a hundred takes a hundred times as long as the others.
  run = run_scripted(
    small_config(
      max_response_length=100_000,
      staleness_threshold="1",
      total_training_steps=8,
    ),
    tmp_path,
    lengths=lambda u: 60_000 if u > 0.985 else 40,
    times=ScriptedTimes(step_s=lambda n: 0.01),
  )
  assert run.result.total_s < 100.0 < 60_000 * 0.01


def test_o13_activation_faults_never_leave_a_lie(tmp_path):
  for point in ("wake_weights", "load_weights.loaded", "wake_kv_cache"):
    for fault in (Raise(OSError("x")), Die()):
      run = run_with_faults(
        small_config(dynamic_schedule_policy="always"),
        tmp_path / f"{point}-{type(fault).__name__}",
        {"hybrid-0": (point, fault)},
      )
      assert run.result.steps == 8
      for record in run.reporter.decisions:
        facts = record["context"]
        assert facts["hybrid_active"] <= facts["healthy_hybrid"]


def test_a_part_that_cannot_be_stopped_is_reported(tmp_path):
  run = run_with_faults(
    small_config(),
    tmp_path,
    {"hybrid-0": ("stop", Raise(OSError("zombie")))},
  )
  assert run.result.steps == 8
  messages = [m for k, m, _ in run.reporter.events if k == "not_stopped"]
  assert len(messages) == 1 and "hybrid-0" in messages[0]
