import pytest

from hybridrl.metrics import METRICS, MetricError, Reduction, timing_name
from hybridrl.metrics.utilization import TRAIN_COMPUTE_KEYS

# Section 4 of the seed, and the timers that its formulas name.
_SEED_NAMES = (
  "dynamic_resource/train_resource_utilization",
  "dynamic_resource/train_compute_time_s",
  "dynamic_resource/train_allocated_time_s",
  "dynamic_resource/rollout_resource_utilization",
  "dynamic_resource/resource_utilization",
  "dynamic_resource/mq_size",
  "fully_async/rollouter/step_generated_samples",
  "timing_s/param_sync",
  "timing_s/wait_for_enough_samples",
  "timing_s/step",
)


@pytest.mark.parametrize("name", _SEED_NAMES)
def test_x12_names_are_exactly_those_of_the_seed(name):
  assert METRICS[name].name == name


@pytest.mark.parametrize("key", ["param_sync", "step", *TRAIN_COMPUTE_KEYS])
def test_x12_a_timer_has_its_prefix_once(key):
  assert timing_name(key) == f"timing_s/{key}"
  with pytest.raises(MetricError, match="timing_s/timing_s"):
    timing_name(f"timing_s/{key}")


def test_x12_no_declared_name_repeats_a_segment():
  for name in METRICS:
    segments = name.split("/")
    assert len(set(segments)) == len(segments), name


def test_an_unknown_timer_is_refused():
  with pytest.raises(MetricError, match="'lunch'"):
    timing_name("lunch")


def test_the_table_is_complete_and_read_only():
  for name, metric in METRICS.items():
    assert metric.name == name
    assert metric.unit
    assert metric.help.endswith("."), name
  with pytest.raises(TypeError):
    METRICS["a/b"] = METRICS["timing_s/step"]  # pyright: ignore


def test_the_seeds_reductions():
  assert METRICS["dynamic_resource/mq_size"].reduction is Reduction.LAST
  for name in ("train_compute_time_s", "train_allocated_time_s"):
    metric = METRICS[f"dynamic_resource/{name}"]
    assert (metric.reduction, metric.unit) == (Reduction.SUM, "s")
  for name in METRICS:
    if name.endswith("resource_utilization"):
      assert METRICS[name].reduction is Reduction.DERIVED
