"""A part of the trainer is lent: of two hybrid replicas one is woken."""

import importlib.util

import pytest

from hybridrl.reporting.decision_log import read_decisions
from tests.real_run import events, lines, overlap, real_run, result, spans
from tests.real_run import trained_steps as trained

if importlib.util.find_spec("vllm") is None:
  pytest.skip("vllm is not installed", allow_module_level=True)

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

_STEPS = 4


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, small_model_dir):
  folder = tmp_path_factory.mktemp("partial")
  flags = [
    "--trainer_n_gpus_per_node=2",
    "--policy_modules=tests.runtime.lending_policy",
    "--dynamic_schedule_policy=one_replica",
    f"--total_training_steps={_STEPS}",
  ]
  with real_run(folder / "run", small_model_dir, flags) as run:
    assert run.wait(300) == 0, run.tail()
  return folder / "run"


def test_the_run_completes(run_dir):
  assert trained(run_dir) == list(range(1, _STEPS + 1))
  assert result(run_dir)["trained_samples"] == 4 * _STEPS
  for kind in ("replica_failed", "activate_failed", "not_stopped"):
    assert not events(run_dir, kind)


def test_one_of_two_was_woken_and_never_the_other(run_dir):
  decisions = [d.record for d in read_decisions(run_dir / "decisions.jsonl")]
  assert {d["context"]["num_hybrid"] for d in decisions} == {2}
  assert {d["decision"]["lend"] for d in decisions} == {0, 1}
  assert max(d["context"]["hybrid_active"] for d in decisions) == 1
  activations = result(run_dir)["activations"]
  assert activations >= 1
  assert len(spans(run_dir, "hybrid-0", "activate")) == activations
  assert len(spans(run_dir, "hybrid-0", "rollout")) == activations
  assert spans(run_dir, "hybrid-1") == []


def test_both_sleep_while_the_learner_trains(run_dir):
  training = spans(run_dir, "learner", "train")
  assert len(training) == _STEPS
  assert overlap(spans(run_dir, "hybrid-0"), training) == 0
  # What the metrics tell of each cycle agrees.
  cycles = [
    line["values"]
    for line in lines(run_dir / "metrics.jsonl")
    if "dynamic_resource/lent_replicas" in line["values"]
  ]
  assert len(cycles) == _STEPS // 2
  assert max(c["dynamic_resource/lent_replicas"] for c in cycles) == 1
