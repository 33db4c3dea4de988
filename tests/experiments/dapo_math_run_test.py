"""The main job on real parts: Ray, vLLM on CPU, the Flax learner."""

import importlib.util

import pytest

from hybridrl.accounting import max_required_samples
from hybridrl.reporting.decision_log import read_decisions
from hybridrl.reporting.run_dir import RunDir
from hybridrl.runtime.policy_runner import LiveDecision, replay
from hybridrl.scheduling import Fleet, make_policy
from tests.real_run import events, overlap, real_run, result, spans
from tests.real_run import trained_steps as trained

if importlib.util.find_spec("vllm") is None:
  pytest.skip("vllm is not installed", allow_module_level=True)

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

_R, _STEPS, _LONG_STEPS = 4, 6, 30


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory, small_model_dir):
  run_dir = tmp_path_factory.mktemp("complete") / "run"
  flags = [f"--total_training_steps={_STEPS}"]
  with real_run(run_dir, small_model_dir, flags) as run:
    assert run.wait(300) == 0, run.tail()
    assert run.wait_until_gone(10) == []
  return run_dir


def test_a_run_leaves_all_that_its_directory_promises(complete_run):
  layout = RunDir(complete_run)
  for path in (
    layout.flagfile,
    layout.manifest,
    layout.metrics,
    layout.events,
    layout.decisions,
    layout.trace(),
    layout.report,
    complete_run / "result.json",
    layout.exports / "final" / "hf" / "model.safetensors",
    layout.exports / "final" / "hf" / "tokenizer.json",
    layout.exports / "final" / "orbax" / "_METADATA",
    layout.checkpoints / str(_STEPS) / "state",
  ):
    assert path.exists(), path
  assert list(layout.tensorboard.glob("events.*"))
  assert "--total_training_steps=6" in layout.flagfile.read_text()


def test_a_run_trains_what_it_should_and_lends(complete_run):
  found = result(complete_run)
  assert found["steps"] == _STEPS
  assert found["trained_samples"] == _STEPS * _R
  assert trained(complete_run) == list(range(1, _STEPS + 1))
  assert found["activations"] >= 1
  woken = spans(complete_run, "hybrid-0", "activate")
  assert len(woken) == found["activations"]
  training = spans(complete_run, "learner", "train")
  assert overlap(spans(complete_run, "hybrid-0"), training) == 0


def test_i7_the_decision_log_replays(complete_run):
  assert_replays(complete_run)


def assert_replays(run_dir):
  """From a policy's first state, over all attempts."""
  records = [d.record for d in read_decisions(run_dir / "decisions.jsonl")]
  fleet = Fleet(
    num_standalone=1,
    num_hybrid=1,
    required_samples=_R,
    trigger_parameter_sync_step=2,
    staleness_threshold=0.5,
    max_required_samples=max_required_samples(2 * _R, "0.5"),
  )
  policy = make_policy("default", deactivate_ratio=0.6)
  decided = [LiveDecision(**record["decision"]) for record in records]
  assert replay(policy, fleet, records) == decided
  assert {d.lend for d in decided} == {0, 1}


def test_x1_an_interrupted_run_saves_stops_whole_and_goes_on(
  tmp_path, small_model_dir
):
  run_dir = tmp_path / "run"
  flags = [f"--total_training_steps={_LONG_STEPS}"]
  with real_run(run_dir, small_model_dir, flags) as run:
    run.wait_for_step(2, 300)
    run.look()
    # Ray's daemons, three actors and two engine cores at least.
    assert len(run.left_over()) >= 8
    run.interrupt()
    assert run.wait(10) == 130, run.tail()
    assert run.wait_until_gone(2) == []
    assert "Traceback" not in run.tail()
    assert "--resume=auto" in run.tail()
  before = trained(run_dir)
  assert 2 <= len(before) < _LONG_STEPS
  assert (run_dir / "checkpoints" / str(before[-1]) / "state").is_dir()
  assert not events(run_dir, "not_saved")

  with real_run(run_dir, small_model_dir, [*flags, "--resume=auto"]) as run:
    assert run.wait(300) == 0, run.tail()
    assert run.wait_until_gone(10) == []
  assert trained(run_dir) == list(range(1, _LONG_STEPS + 1))
  found = result(run_dir)
  assert found["steps"] == _LONG_STEPS
  (resumed,) = events(run_dir, "resumed")
  assert resumed["fields"]["step"] == before[-1]
  assert_replays(run_dir)


def test_colocated(tmp_path, small_model_dir):
  """All replicas are the trainer's: nothing generates while it trains."""
  run_dir = tmp_path / "run"
  flags = ["--rollout_nnodes=0", f"--total_training_steps={_STEPS}"]
  with real_run(run_dir, small_model_dir, flags) as run:
    assert run.wait(300) == 0, run.tail()
    assert run.wait_until_gone(10) == []
  assert trained(run_dir) == list(range(1, _STEPS + 1))
  assert result(run_dir)["trained_samples"] == _STEPS * _R
  assert spans(run_dir, "standalone-0") == []
  training = spans(run_dir, "learner", "train")
  assert len(training) == _STEPS
  assert overlap(spans(run_dir, "hybrid-0"), training) == 0
