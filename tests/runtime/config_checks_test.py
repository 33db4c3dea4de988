"""Bad configurations are refused with the flag, its value and its range."""

import dataclasses

import pytest

from hybridrl.runtime import config_checks
from hybridrl.runtime.config import RunConfig

GOOD = RunConfig(use_dynamic_resource_scheduling=True, run_dir="/nonexistent/x")


def test_good_configuration_passes():
  config_checks.validate(GOOD)
  config_checks.validate(dataclasses.replace(GOOD, rollout_nnodes=0))


@pytest.mark.parametrize("ratio", [0.0, -0.5, 1.2, float("nan")])
def test_s2_ratio_outside_its_range_is_refused(ratio):
  config = dataclasses.replace(GOOD, dynamic_schedule_deactivate_ratio=ratio)
  with pytest.raises(config_checks.ConfigError) as caught:
    config_checks.validate(config)
  (line,) = caught.value.problems
  assert "--dynamic_schedule_deactivate_ratio" in line
  assert str(ratio) in line and "(0, 1]" in line


@pytest.mark.parametrize(
  ("changes", "fragments"),
  [
    ({"rollout_n": 1}, ["--rollout_n=1", "group baseline"]),
    ({"staleness_threshold": "abc"}, ["--staleness_threshold='abc'"]),
    ({"staleness_threshold": "-0.1"}, ["--staleness_threshold=-0.1"]),
    ({"staleness_threshold": "nan"}, ["--staleness_threshold"]),
    ({"temperature": 0.0}, ["--temperature=0.0"]),
    ({"weight_update_mode": "wait"}, ["--weight_update_mode='wait'", "keep"]),
    ({"device": "gpu"}, ["--device='gpu'", "cuda"]),
    ({"overlong_buffer_len": -1}, ["--overlong_buffer_len=-1"]),
    ({"overlong_buffer_len": 500}, ["--overlong_buffer_len=500", "256"]),
    ({"max_tokens_per_micro_batch": 10}, ["micro_batch=10", "512"]),
    ({"rollout_tensor_parallel_size": 2}, ["=2 does not divide the 1 rollout"]),
    ({"gpu_memory_utilization": 1.5}, ["--gpu_memory_utilization=1.5"]),
    ({"standalone_gpu_memory_utilization": 0.0}, ["=0.0 is not in (0, 1]"]),
    ({"clip_ratio_c": 1.0}, ["--clip_ratio_c=1.0"]),
    ({"cpu_affinity": "0"}, ["--cpu_affinity='0'"]),
    ({"trigger_parameter_sync_step": 0}, ["sync_step=0", "[1, 64]"]),
    ({"total_training_steps": 0}, ["--total_training_steps=0"]),
    (
      {"weight_update_mode": "reprefill", "partial_rollout": False},
      ["reprefill", "--partial_rollout=false"],
    ),
    ({"device": "tpu"}, ["--device=tpu"]),
  ],
)
def test_x15_impossible_values_are_refused(changes, fragments):
  with pytest.raises(config_checks.ConfigError) as caught:
    config_checks.validate(dataclasses.replace(GOOD, **changes))
  text = str(caught.value)
  for fragment in fragments:
    assert fragment in text


def test_all_problems_are_reported_at_once():
  config = dataclasses.replace(GOOD, rollout_n=1, lr=-1.0, seed=-3)
  assert len(config_checks.problems(config)) == 3


def test_x1_mistyped_resume_path_is_named(tmp_path):
  path = str(tmp_path / "no_such")
  with pytest.raises(config_checks.ConfigError, match="--resume=.*no_such"):
    config_checks.validate(dataclasses.replace(GOOD, resume=path))


def test_a_run_directory_is_not_overwritten(tmp_path):
  (tmp_path / "metrics.jsonl").write_text("{}\n")
  config = dataclasses.replace(GOOD, run_dir=str(tmp_path))
  with pytest.raises(config_checks.ConfigError, match="already holds a run"):
    config_checks.validate(config)
  config_checks.validate(dataclasses.replace(config, resume="auto"))


def test_x7_interval_flags_of_zero_are_allowed():
  config_checks.validate(dataclasses.replace(GOOD, save_freq=0, test_freq=0))
