import pytest

from hybridrl.metrics import (
  METRICS,
  Metric,
  MetricError,
  MicroStep,
  Reduction,
  aggregate,
  by_version,
  cycle_metrics,
  declare,
)

_FLEET = {"hybrid_devices": 16, "standalone_devices": 16}


def _step(step, version, **values):
  names = {name.replace("__", "/"): value for name, value in values.items()}
  return MicroStep(step, version, names)


def _timed(step, version, compute_s, allocated_s, **values):
  return _step(
    step,
    version,
    dynamic_resource__train_compute_time_s=compute_s,
    dynamic_resource__train_allocated_time_s=allocated_s,
    timing_s__step=allocated_s,
    **values,
  )


def test_a_cycle_by_hand():
  steps = [
    _timed(
      1,
      3,
      2.0,
      4.0,
      perf__total_num_tokens=640.0,
      dynamic_resource__mq_size=5,
      timing_s__wait_for_enough_samples=5.0,
    ),
    _timed(
      2,
      3,
      3.0,
      16.0,
      perf__total_num_tokens=640.0,
      dynamic_resource__mq_size=1,
    ),
  ]
  out = cycle_metrics(
    steps,
    version=3,
    num_micro_steps=2,
    rollout_utilization=0.5,
    cycle_values={"fully_async/rollouter/step_generated_samples": 32},
    **_FLEET,
  )
  # U_train = 5/20; x = 5/20; U = (3/4 x 16 x 1/4 + (4 + 16) x 1/2) / 32.
  assert out["dynamic_resource/train_compute_time_s"] == 5.0
  assert out["dynamic_resource/train_allocated_time_s"] == 20.0
  assert out["dynamic_resource/train_resource_utilization"] == 0.25
  assert out["dynamic_resource/rollout_resource_utilization"] == 0.5
  assert out["dynamic_resource/resource_utilization"] == 13 / 32
  assert out["dynamic_resource/mq_size"] == 1.0
  assert out["perf/throughput"] == 1280 / 20 / 32
  assert out["fully_async/rollouter/step_generated_samples"] == 32.0
  assert set(out) <= set(METRICS)


def test_x10_the_aggregate_of_a_version_holds_exactly_its_micro_steps():
  k, versions = 4, 5
  steps = [
    _step(i, (i - 1) // k, training__num_samples=1, training__global_step=i)
    for i in range(1, k * versions + 1)
  ]
  for version, group in by_version(reversed(steps)).items():
    assert [s.step for s in group] == [version * k + i for i in (1, 2, 3, 4)]
    out = cycle_metrics(
      group,
      version=version,
      num_micro_steps=k,
      rollout_utilization=0.0,
      **_FLEET,
    )
    assert out["training/num_samples"] == k
    assert out["training/global_step"] == (version + 1) * k


@pytest.mark.parametrize(
  ("steps", "message"),
  [
    # The last of v-1 and the first k-1 of v: the published fault.
    ([(4, 0), (5, 1), (6, 1), (7, 1)], r"of version 1 .*\(4, 0\)"),
    ([(5, 1), (6, 1), (7, 1), (8, 1), (9, 2)], r"\(9, 2\)"),
    ([(5, 1), (6, 1), (7, 1)], r"4 micro-steps, but .*\[5, 6, 7\]"),
    ([(5, 1), (6, 1), (6, 1), (7, 1)], r"\[5, 6, 6, 7\]"),
  ],
)
def test_x10_other_micro_steps_are_refused(steps, message):
  with pytest.raises(MetricError, match=message):
    cycle_metrics(
      [_step(*s) for s in steps],
      version=1,
      num_micro_steps=4,
      rollout_utilization=0.0,
      **_FLEET,
    )


def test_x10_a_partial_cycle_at_the_end_of_data_is_one():
  out = cycle_metrics(
    [_timed(9, 2, 1.0, 2.0), _timed(10, 2, 1.0, 6.0)],
    version=2,
    num_micro_steps=2,
    rollout_utilization=1.0,
    **_FLEET,
  )
  assert out["dynamic_resource/train_resource_utilization"] == 0.25


@pytest.mark.parametrize(
  ("name", "reduction", "right"),
  [
    # Names that a guess by substring reduces wrongly.
    ("training/num_minibatches", Reduction.SUM, 6.0),
    ("actor/minibatch_loss", Reduction.MEAN, 2.0),
    ("actor/max_grad_sum", Reduction.MEAN, 2.0),
    ("perf/mean_of_sums", Reduction.MAX, 3.0),
    ("timing_s/terminal", Reduction.LAST, 2.0),
    ("data/summary_min", Reduction.MIN, 1.0),
  ],
)
def test_x11_reductions_are_declared_not_guessed(name, reduction, right):
  table = declare([Metric(name, "1", reduction, "for a test")])
  values = [{name: 1.0}, {name: 3.0}, {name: 2.0}]
  assert aggregate(values, table) == {name: right}


def test_x11_an_undeclared_name_is_refused_not_guessed():
  with pytest.raises(MetricError, match="'actor/loss_min' is not declared"):
    aggregate([{"actor/loss_min": 1.0}])


def test_means_are_weighted_by_what_they_are_means_of():
  values = [
    {"actor/pg_loss": 1.0, "training/num_tokens": 300},
    {"actor/pg_loss": 5.0, "training/num_tokens": 100},
  ]
  assert aggregate(values)["actor/pg_loss"] == 2.0
  with pytest.raises(MetricError, match=r"'training/num_tokens', .* \[0\]"):
    aggregate([{"actor/pg_loss": 1.0}])


def test_a_name_may_be_missing_in_some_micro_steps():
  values = [
    {"timing_s/testing": 1.0},
    {"timing_s/testing": 2.0, "actor/grad_norm": 4.0},
    {},
  ]
  assert aggregate(values) == {"timing_s/testing": 3.0, "actor/grad_norm": 4.0}


@pytest.mark.parametrize(
  ("micro", "cycle", "message"),
  [
    ({"timing_s/step": 1.0}, {"timing_s/step": 1.0}, "micro-steps and cycle"),
    ({}, {"perf/nothing": 1.0}, "'perf/nothing' is not declared"),
    (
      {},
      {"dynamic_resource/resource_utilization": 1.0},
      "is computed here",
    ),
    ({"perf/throughput": 1.0}, {}, "'perf/throughput' is derived"),
  ],
)
def test_names_that_cannot_be_reported(micro, cycle, message):
  with pytest.raises(MetricError, match=message):
    cycle_metrics(
      [MicroStep(1, 0, micro)],
      version=0,
      num_micro_steps=1,
      rollout_utilization=0.0,
      cycle_values=cycle,
      **_FLEET,
    )
