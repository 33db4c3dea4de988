"""What holds at the end of every run that was not interrupted."""

import math

from hybridrl import scheduling
from hybridrl.metrics import METRICS
from hybridrl.rollout.workflow import response_key
from hybridrl.testing import scripted_text

POLICIES = sorted(scheduling.POLICIES)


def check_laws(run):
  """What holds at the end of any run that was not interrupted."""
  config, result, learner = run.config, run.result, run.learner
  # Each sample once, each micro-step full but the last.
  assert len(set(run.trained_ids)) == len(run.trained_ids)
  r = config.required_samples
  assert all(len(batch) == r for batch in learner.batches[:-1])
  assert all(list(b) == sorted(b) for b in learner.batches)
  assert result.steps == learner.steps == len(learner.batches)
  assert result.trained_samples == len(run.trained_ids)
  # Versions count up from 1; the last update is published, saved, exported.
  assert learner.published == list(range(1, result.version + 1))
  methods = [method for _, method in learner.log]
  assert methods[-2:] == ["save", "export"]
  assert methods.count("train") == result.steps
  last_train = len(methods) - 1 - methods[::-1].index("train")
  assert "publish" in methods[last_train:]
  # Everything was stopped.
  assert learner.stopped and run.grader.closed
  for replica in (*run.standalone, *run.hybrid):
    assert replica.state == "stopped"
    assert replica.num_in_flight == 0
  # I4 and the oracle: each response is the one that its versions determine.
  for sample in (s for batch in learner.trained for s in batch):
    assert sample.prompt == run.cursor.prompt_at(sample.sample_id)
    for index, response in enumerate(sample.responses):
      ids, log_probs = scripted_text.expected(
        response_key(sample.sample_id, index),
        sample.prompt.token_ids,
        response.versions,
      )
      assert (response.token_ids == ids).all()
      assert (response.log_probs == log_probs).all()
      assert len(response.token_ids) <= config.max_response_length
  check_metrics(run)


def check_metrics(run):
  """X10 and the names."""
  k = run.config.trigger_parameter_sync_step
  seen = []
  for step, version, values in run.reporter.cycles():
    seen.append((version, step))
    assert [n for n in values if n not in METRICS] == []
    assert all(math.isfinite(v) for v in values.values())
    assert values["fully_async/count/current_param_version"] == version + 1
    assert values["training/global_step"] == step
    samples = sum(
      len(b) for b in run.learner.batches[(version - 1) * k : version * k]
    )
    assert values["training/num_samples"] == samples
    for name in (
      "dynamic_resource/train_resource_utilization",
      "dynamic_resource/rollout_resource_utilization",
      "dynamic_resource/resource_utilization",
      "fully_async/trainer/idle_ratio",
      "fully_async/rollouter/idle_ratio",
    ):
      assert 0.0 <= values[name] <= 1.0, name
  steps = run.result.steps
  expected = [min(i * k, steps) for i in range(1, math.ceil(steps / k) + 1)]
  assert seen == [(i, step) for i, step in enumerate(expected, start=1)]
