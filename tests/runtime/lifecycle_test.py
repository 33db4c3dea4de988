"""Interrupted and resumed runs of scripted parts."""

import asyncio
import collections
import json
import pathlib

import pytest

from hybridrl.testing.interrupted_run import (
  all_stopped,
  last_checkpoint,
  read_steps,
  run_until,
  trained_by,
)
from hybridrl.testing.scripted_run import make_run, run_scripted, small_config
from hybridrl.testing.scripted_text import log_normal_lengths
from hybridrl.testing.virtual_loop import run_virtual

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


@pytest.mark.parametrize("stop_s", [7.0 + i / 2 for i in range(12)])
def test_ctrl_c_gives_up_a_checkpoint_that_takes_too_long(stop_s, tmp_path):
  run, took_s = run_until(
    small_config(), tmp_path, stop_s, train_s=6.0, save_s=60.0
  )
  assert took_s <= 10.0 and all_stopped(run)
  assert "not_saved" in run.reporter.kinds()
  assert last_checkpoint(tmp_path) == ""


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
