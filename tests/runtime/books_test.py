"""Tests of books.py on whole runs: facts, spans and totals agree."""

import pytest

from hybridrl import metrics
from hybridrl.testing.scripted_replica import ScriptedTimes
from hybridrl.testing.scripted_run import run_scripted, small_config


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  return run_scripted(
    small_config(dynamic_schedule_policy="always", total_training_steps=12),
    tmp_path_factory.mktemp("run"),
    times=ScriptedTimes(step_s=lambda n: 0.02),
  )


def test_facts_are_of_the_moment(run):
  for record in run.reporter.decisions:
    facts = record["context"]
    assert 0 <= facts["hybrid_active"] <= 1
    assert facts["backlog_samples"] <= facts["arrivable_samples"]
    assert facts["arrivable_samples"] <= facts["max_required_samples"]
    assert facts["remaining_samples"] == 48 - 4 * facts["global_steps"]
    assert facts["param_version"] >= 1
    busy_s = facts["standalone_busy_s"]
    assert 0.0 <= busy_s <= facts["elapsed_s"] + 1e-3
    if facts["in_flight_samples"] == 0:
      assert facts["oldest_in_flight_s"] == 0.0
  starts = [r for r in run.reporter.decisions if r["phase"] == "STEP_START"]
  assert [r["context"]["num_micro_steps"] for r in starts] == [0, 1] * 6
  assert [r["context"]["consumed_in_cycle"] for r in starts] == [0, 4] * 6
  ends = [
    r["context"] for r in run.reporter.decisions if r["phase"] == "CYCLE_END"
  ]
  assert all(len(e["step_train_times"]) == 2 for e in ends)
  assert any(e["standalone_finished"] for e in ends)
  assert any(e["hybrid_finished"] for e in ends)
  assert any(e["last_switch_reprefilled_tokens"] for e in ends)


def test_spans_make_a_timeline_in_which_every_device_works(run):
  lanes = metrics.device_lanes(
    standalone=["standalone-0"],
    hybrid=["hybrid-0"],
    trainer_devices=1,
    devices_per_replica=1,
  )
  spans = [
    metrics.Span(s.lane, metrics.SPAN_STATES[s.name], s.start_s, s.end_s)
    for s in run.reporter.spans
  ]
  start_s = min(s.start_s for s in spans)
  end_s = max(s.end_s for s in spans)
  timelines = metrics.device_timelines(spans, lanes, start_s, end_s)
  trainer = metrics.device_seconds({0: timelines[0]})
  standalone = metrics.device_seconds({1: timelines[1]})
  state = metrics.DeviceState
  assert trainer[state.TRAIN] == pytest.approx(12.0)
  assert trainer[state.ROLLOUT] > 1.0
  assert trainer[state.SWITCHING] > 0.5
  assert standalone[state.ROLLOUT] > 0.5 * (end_s - start_s)
  assert standalone[state.TRAIN] == 0.0


def test_totals_add_up(run):
  result = run.result
  responses = [r for b in run.learner.trained for s in b for r in s.responses]
  assert result.trained_tokens == sum(len(r.token_ids) for r in responses)
  assert result.generated_tokens >= result.trained_tokens
  assert 12.0 < result.wall_s < result.total_s
  assert result.activations == len(
    [s for s in run.reporter.spans if s.name == "activate"]
  )
  trains = [s for s in run.reporter.spans if s.name == "train"]
  first = next(s for s in run.reporter.spans if s.name == "publish")
  assert result.wall_s == pytest.approx(trains[-1].end_s - first.start_s)


def test_checkpoints_and_validations_are_not_wall_time(tmp_path):
  def wall_s(**changes):
    config = small_config(
      use_dynamic_resource_scheduling=False, staleness_threshold="0", **changes
    )
    return run_scripted(
      config, tmp_path, num_val_prompts=0, save_s=5.0
    ).result.wall_s

  # Staleness 0 makes the next cycle begin only after the checkpoint, but it
  # is generated meanwhile: so much can be gained, and no more.
  assert wall_s(save_freq=0) - 5.0 < wall_s(save_freq=1) <= wall_s(save_freq=0)


def test_progress_shows_what_is_lent(run):
  lent = [s for s in run.reporter.snapshots if s.lent]
  assert {s.lent for s in lent} == {("hybrid-0",)}
  assert {s.learner_state for s in lent} <= {"lent", "waiting", "publishing"}
  assert run.reporter.snapshots[-1].step == 12
