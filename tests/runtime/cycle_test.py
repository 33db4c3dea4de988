"""Tests of cycle.py: metrics of a cycle, by hand."""

import pytest

from hybridrl.runtime.cycle import Collection, Cycle

CYCLE_VALUES = {"perf/elapsed_s": 1.0}


def close(cycle, now_s, **values):
  return cycle.close(
    now_s,
    hybrid_devices=1,
    standalone_devices=1,
    cycle_values=CYCLE_VALUES | values,
  )


def test_a_step_ends_where_the_next_begins_and_the_last_at_the_close():
  cycle = Cycle(3, 100.0, 0, 4)
  cycle.begin_step(7, 110.0)
  cycle.put({"dynamic_resource/train_compute_time_s": 6.0})
  cycle.begin_step(8, 120.0)
  cycle.put({"dynamic_resource/train_compute_time_s": 9.0})
  cycle.add("timing_s/param_sync", 2.0)
  out = close(cycle, 140.0)
  assert out["timing_s/step"] == pytest.approx(30)
  assert out["dynamic_resource/train_allocated_time_s"] == pytest.approx(30)
  assert out["dynamic_resource/train_resource_utilization"] == pytest.approx(
    0.5
  )
  assert out["timing_s/param_sync"] == 2.0


def test_what_comes_before_the_first_step_counts_to_the_first():
  cycle = Cycle(1, 0.0, 0, 4)
  cycle.add("timing_s/activate", 3.0)
  cycle.begin_step(1, 5.0)
  cycle.add("timing_s/activate", 1.0)
  out = close(cycle, 6.0)
  assert out["timing_s/activate"] == 4.0
  assert out["timing_s/step"] == 1.0


def test_a_step_without_samples_counts_to_the_one_before():
  cycle = Cycle(1, 0.0, 0, 4)
  cycle.begin_step(1, 0.0)
  cycle.begin_step(2, 4.0)
  cycle.add("timing_s/deactivate", 1.5)
  cycle.abandon_step()
  assert cycle.num_micro_steps == 1
  out = close(cycle, 10.0)
  assert out["timing_s/deactivate"] == 1.5
  assert out["timing_s/step"] == 10.0


def test_utilization_follows_load_and_capacity():
  cycle = Cycle(1, 0.0, active=2, capacity=4)  # 10 s at 2 of 4
  cycle.observe(10.0, active=8, capacity=8)  # 5 s at 8 of 8
  cycle.observe(15.0, active=0, capacity=4)  # 5 s at 0 of 4
  cycle.begin_step(1, 15.0)
  out = close(cycle, 20.0)
  used, available = 10 * 2 + 5 * 8 + 5 * 0, 10 * 4 + 5 * 8 + 5 * 4
  assert out["dynamic_resource/rollout_resource_utilization"] == pytest.approx(
    used / available
  )
  assert out["fully_async/rollouter/idle_ratio"] == pytest.approx(5 / 20)


def test_a_collection_splits_its_time():
  spent = Collection(16, 0.0)
  spent.enter("switch", 0.0, backlog=0)
  spent.enter("lent", 0.0, backlog=0)
  spent.enter("switch", 8.0, backlog=5)
  spent.enter("idle", 9.0, backlog=6)
  spent.enter("switch", 12.0, backlog=16)
  assert spent.seconds == {"lent": 8.0, "switch": 1.0, "idle": 3.0}
  assert spent.missing_samples == 10

  cycle = Cycle(1, 0.0, 0, 4)
  cycle.begin_step(1, 0.0)
  cycle.collected(spent)
  facts = cycle.facts(12.0)
  assert facts["step_wait_times"] == [3.0]
  assert facts["step_wait_samples"] == [10]
  out = close(cycle, 20.0)
  assert out["timing_s/wait_for_enough_samples"] == 8.0
  assert out["timing_s/gen"] == 12.0
  assert out["fully_async/trainer/idle_ratio"] == pytest.approx(3 / 20)


def test_a_backlog_that_suffices_is_not_waited_for():
  spent = Collection(16, 5.0)
  spent.enter("switch", 5.0, backlog=20)
  spent.enter("idle", 5.0, backlog=20)
  spent.enter("switch", 5.0, backlog=20)
  assert spent.missing_samples == 0
  cycle = Cycle(1, 0.0, 0, 4)
  cycle.begin_step(1, 5.0)
  cycle.collected(spent)
  assert "timing_s/wait_for_enough_samples" not in close(cycle, 6.0)


def test_x12_no_name_repeats_a_segment():
  cycle = Cycle(1, 0.0, 0, 4)
  cycle.begin_step(1, 0.0)
  cycle.add("timing_s/param_sync", 1.0)
  names = close(cycle, 1.0)
  assert "timing_s/param_sync" in names
  assert not [n for n in names if "timing_s/timing_s" in n]
