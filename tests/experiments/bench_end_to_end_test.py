"""The benchmark's reading of runs and its figures, on hand-made runs."""

import json

import pytest

from experiments import bench_end_to_end as bench


def _write_run(path, cycle_ends, *, train_s=4.0, reward=0.5):
  path.mkdir()
  with (path / "metrics.jsonl").open("w") as file:
    for version, end_s in enumerate(cycle_ends, start=1):
      step = {"reward/raw_mean": reward}
      file.write(json.dumps({"step": version, "values": step}) + "\n")
      values = {
        "dynamic_resource/train_compute_time_s": train_s,
        "fully_async/count/generated_tokens": 12_000,
        "timing_s/activate": 0.2,
        "critic/score/mean": reward,
        "perf/elapsed_s": end_s,
      }
      line = {"step": version, "version": version, "values": values}
      file.write(json.dumps(line) + "\n")


def _run(policy, seed, cycle_s, reward=0.5):
  return bench.Run(
    policy=policy,
    seed=seed,
    wall_s=4 * cycle_s,
    cycle_s=cycle_s,
    train_s=4.0,
    generated_tokens=16_000,
    activate_s=0.0,
    reclaim_s=0.0,
    activations=0,
    reward=reward,
    rollout_utilization=1.0,
    train_utilization=0.5,
  )


def test_time_counts_from_the_end_of_the_warm_up(tmp_path):
  _write_run(tmp_path / "run", [30.0, 50.0, 58.0, 66.0, 75.0])
  run = bench.measure(tmp_path / "run", "default", 0, warmup=2)
  assert run.wall_s == 25.0
  assert run.cycle_s == pytest.approx(25.0 / 3)
  assert run.train_s == 4.0
  assert run.generated_tokens == 12_000
  assert run.activate_s == pytest.approx(0.2)


def test_a_run_that_is_too_short_is_refused(tmp_path):
  _write_run(tmp_path / "run", [30.0, 50.0])
  with pytest.raises(ValueError, match="2 cycles, 2 of warm-up"):
    bench.measure(tmp_path / "run", "default", 0, warmup=2)


def test_figures_of_a_comparison():
  runs = {
    "static": [_run("static", i, 10.0) for i in range(5)],
    "default": [_run("default", i, 8.0 + 0.1 * (i - 2)) for i in range(5)],
    "static, un-pinned": [_run("static, un-pinned", 0, 9.0)],
  }
  found = bench.summarise(runs, "static", saturated_rate=2000.0)
  # T = 4 s and R_work = 16,000 / 2,000 = 8 s on two devices.
  assert found["perfect_cycle_s"] == pytest.approx(6.0)
  row = found["policies"]["default"]
  assert row["reduction"]["mean"] == pytest.approx(0.2)
  assert row["reduction"]["low"] > 0
  assert row["efficiency"] == pytest.approx(0.75)
  assert row["rewards_equivalent"]
  assert found["policies"]["static"]["reduction"]["mean"] == 0.0
  unpinned = found["policies"]["static, un-pinned"]
  assert unpinned["reduction"]["mean"] == pytest.approx(0.1)
  assert not unpinned["rewards_equivalent"]  # one run shows nothing


def test_a_reward_that_falls_is_not_equivalent():
  runs = {
    "static": [_run("static", i, 10.0, 0.6) for i in range(5)],
    "worse": [_run("worse", i, 8.0, 0.5 + 0.001 * i) for i in range(5)],
  }
  found = bench.summarise(runs, "static", saturated_rate=2000.0)
  assert not found["policies"]["worse"]["rewards_equivalent"]
