"""Interrupted, failing and resumed runs of scripted parts."""

import asyncio
import collections
import json
import pathlib

import pytest

from hybridrl.runtime.parts import Limits
from hybridrl.runtime.replica_set import FleetLost
from hybridrl.runtime.rollouter import RolloutFailed
from hybridrl.runtime.waiting import WaitExpired
from hybridrl.testing.faults import Die, Hang, Raise
from hybridrl.testing.scripted_grader import ScriptedGrader
from hybridrl.testing.scripted_replica import ScriptedTimes
from hybridrl.testing.scripted_run import make_run, run_scripted, small_config
from hybridrl.testing.scripted_text import log_normal_lengths
from hybridrl.testing.virtual_loop import run_virtual


def run_until(config, root, stop_s, **options):
  """Runs; cancels at stop_s seconds. Returns (run, seconds that it took)."""

  async def main():
    run = make_run(config, root, **options)
    task = asyncio.create_task(run.run())
    loop = asyncio.get_running_loop()
    await asyncio.wait((task,), timeout=stop_s - loop.time())
    cancelled = not task.done()
    task.cancel()
    began_s = loop.time()
    outcome = (await asyncio.gather(task, return_exceptions=True))[0]
    if cancelled:
      assert isinstance(outcome, asyncio.CancelledError), outcome
    elif isinstance(outcome, BaseException):
      raise outcome
    # Nothing of the run goes on.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others, others
    return run, loop.time() - began_s

  return run_virtual(main())


def all_stopped(run):
  return (
    run.learner.stopped
    and run.grader.closed
    and all(r.state == "stopped" for r in (*run.standalone, *run.hybrid))
  )


def last_checkpoint(root):
  folder = pathlib.Path(root) / "checkpoints"
  steps = [int(p.name) for p in folder.iterdir()] if folder.exists() else []
  return str(folder / str(max(steps))) if steps else ""


def read_steps(path):
  state = json.loads((pathlib.Path(path) / "state.json").read_text())
  assert state["steps"] == state["driver"]["step"]
  return state["steps"]


def trained_by(run, steps):
  return [i for batch in run.learner.batches[:steps] for i in batch]


STOPS_S = [0.5, 5.2, 5.6, 6.0, 6.3, 7.0, 7.5, 8.1, 8.6, 9.1, 10.4, 12.9, 15.0]


@pytest.mark.parametrize("stop_s", STOPS_S)
@pytest.mark.parametrize("policy", ["default", "always"])
def test_ctrl_c_saves_and_stops_within_10_s(policy, stop_s, tmp_path):
  run, took_s = run_until(
    small_config(dynamic_schedule_policy=policy, total_training_steps=12),
    tmp_path,
    stop_s,
  )
  assert took_s <= 10.0
  assert all_stopped(run)
  kinds = run.reporter.kinds()
  assert "interrupted" in kinds and "not_stopped" not in kinds
  if run.learner.steps:
    assert read_steps(last_checkpoint(tmp_path)) == run.learner.steps


def test_ctrl_c_during_a_long_micro_step_gives_up_the_step_in_time(tmp_path):
  run, took_s = run_until(
    small_config(save_freq=1), tmp_path, 100.0, train_s=60.0
  )
  assert took_s <= 10.0 and all_stopped(run)
  kinds = run.reporter.kinds()
  assert "not_saved" in kinds
  message = next(m for k, m, _ in run.reporter.events if k == "not_saved")
  assert "did not end" in message and "the last one is none" in message


def test_ctrl_c_lets_a_short_micro_step_end(tmp_path):
  run, took_s = run_until(small_config(), tmp_path, 10.0, train_s=3.0)
  assert took_s <= 4.0
  assert run.learner.steps == 1 or run.learner.steps == 2
  assert read_steps(last_checkpoint(tmp_path)) == run.learner.steps


@pytest.mark.parametrize("stop_s", [7.0 + i for i in range(13)])
def test_ctrl_c_anywhere_in_a_micro_step_keeps_both_sides_in_step(
  stop_s, tmp_path
):
  # The grace is 4 s: some of these end the micro-step and some break it off.
  config = small_config(total_training_steps=6, save_freq=1)
  first, took_s = run_until(config, tmp_path, stop_s, train_s=6.0)
  assert took_s <= 10.0
  path = last_checkpoint(tmp_path)
  done = read_steps(path) if path else 0
  second = run_scripted(config, tmp_path, resume_from=path, train_s=6.0)
  ids = trained_by(first, done) + second.trained_ids
  assert len(ids) == len(set(ids)) == 24


@pytest.mark.parametrize("stop_s", STOPS_S[4:])
@pytest.mark.parametrize("fleet", [{}, {"rollout_nnodes": 0}])
def test_a_resumed_run_trains_each_sample_once(fleet, stop_s, tmp_path):
  config = small_config(total_training_steps=10, **fleet)
  first, _ = run_until(config, tmp_path, stop_s)
  path = last_checkpoint(tmp_path)
  if not path:
    pytest.skip("stopped before the first micro-step")
  done = read_steps(path)
  second = run_scripted(config, tmp_path, resume_from=path)
  assert second.result.steps == 10
  ids = trained_by(first, done) + second.trained_ids
  assert len(ids) == len(set(ids)) == 40
  # O17, O18: labels and versions go on.
  rows = [s for s, _, v in second.reporter.rows if "reward/raw_mean" in v]
  assert rows == list(range(done + 1, 11))
  if first.learner.published and second.learner.published:
    assert second.learner.published[0] > first.learner.published[-1]
  cycles = second.reporter.cycles()
  assert [v for _, v, _ in cycles] == second.learner.published[:-1]
  # A checkpoint that is resumed twice gives the same run twice.
  third = run_scripted(config, tmp_path / "again", resume_from=path)
  assert third.learner.digest == second.learner.digest


def test_o25_killed_at_any_event_every_prompt_is_trained_once(tmp_path):
  """A kill leaves the last checkpoint; nothing is saved on the way down."""
  config = small_config(
    save_freq=1, total_training_steps=1000, ppo_mini_batch_size=4
  )
  options = {
    "num_prompts": 32,
    "epochs": 1,
    # Latency grows with the heavy tail: long samples are in flight at a kill.
    "lengths": log_normal_lengths(60, 1.2, 400),
  }
  whole = run_scripted(config, tmp_path / "whole", **options)
  end_s = whole.result.total_s + 5
  for n in range(40):
    root = tmp_path / str(n)
    dead = False

    def fail(method, number):
      if dead:  # noqa: B023
        raise OSError("killed")

    async def killed():
      nonlocal dead
      run = make_run(config, root, learner_fails=fail, **options)  # noqa: B023
      task = asyncio.create_task(run.run())
      await asyncio.wait((task,), timeout=5.3 + n * (end_s - 5.3) / 40)  # noqa: B023
      dead = True
      task.cancel()
      await asyncio.gather(task, return_exceptions=True)
      return run

    first = run_virtual(killed())
    path = last_checkpoint(root)
    done = read_steps(path) if path else 0
    second = run_scripted(config, root, resume_from=path, **options)
    ids = trained_by(first, done) + second.trained_ids
    assert collections.Counter(ids) == collections.Counter(range(32)), n


def test_o32_resume_with_a_full_queue(tmp_path):
  config = small_config(
    staleness_threshold="2", total_training_steps=20, save_freq=1
  )
  first, _ = run_until(config, tmp_path, 60.0, train_s=10.0)
  state = json.loads(
    (pathlib.Path(last_checkpoint(tmp_path)) / "state.json").read_text()
  )
  assert len(state["driver"]["ledger"]["pending"]) >= 12
  second = run_scripted(config, tmp_path, resume_from=last_checkpoint(tmp_path))
  assert second.result.steps == 20
  done = trained_by(first, state["steps"])
  assert len({*done, *second.trained_ids}) == 80


def test_x1_a_resume_path_that_does_not_exist_is_an_error(tmp_path):
  with pytest.raises(FileNotFoundError, match="no-such-step"):
    run_scripted(
      small_config(), tmp_path, resume_from=str(tmp_path / "no-such-step")
    )


def test_a_checkpoint_of_another_policy_is_refused(tmp_path):
  run_until(small_config(), tmp_path, 9.0)
  with pytest.raises(ValueError, match="policy"):
    run_scripted(
      small_config(dynamic_schedule_policy="never"),
      tmp_path,
      resume_from=last_checkpoint(tmp_path),
    )


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
