"""Whole runs of scripted parts on virtual time: laws and cases.

Everything but learner, replicas and grader is what runs in earnest.
"""

import itertools
import json
import math
import pathlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridrl import scheduling
from hybridrl.data.cursor import PromptCursor
from hybridrl.data.sample import Response, Sample
from hybridrl.rollout.workflow import response_key
from hybridrl.runtime.policy_runner import replay
from hybridrl.scheduling import Fleet
from hybridrl.testing import scripted_text
from hybridrl.testing.scripted_grader import ScriptedGrader, hashed_reward
from hybridrl.testing.scripted_learner import ScriptedLearner
from hybridrl.testing.scripted_run import (
  cached_policy,
  make_prompts,
  make_run,
  run_scripted,
  small_config,
)
from hybridrl.testing.virtual_loop import run_virtual
from tests.runtime.run_laws import check_laws

POLICIES = sorted(scheduling.POLICIES)
ONLY_HYBRID = {"rollout_nnodes": 0}


@pytest.mark.parametrize("policy", POLICIES)
def test_a_mixed_fleet_runs_to_the_end(policy, tmp_path):
  run = run_scripted(
    small_config(
      dynamic_schedule_policy=policy,
      trainer_n_gpus_per_node=2,
      total_training_steps=12,
    ),
    tmp_path,
    num_val_prompts=3,
  )
  check_laws(run)
  assert run.result.steps == 12
  assert sorted(run.trained_ids)[-1] < 12 * 4 + 12  # at most staleness ahead
  assert len(run.result.step_rewards) == 12
  assert run.result.val_rewards[-1][0] == 12
  assert (run.result.activations > 0) == (
    policy in ("always", "default", "fixed_ratio")
  )


@pytest.mark.parametrize("policy", POLICIES)
def test_s3_every_policy_completes_cycles_on_an_only_hybrid_fleet(
  policy, tmp_path
):
  run = run_scripted(
    small_config(
      dynamic_schedule_policy=policy, total_training_steps=6, **ONLY_HYBRID
    ),
    tmp_path,
    num_val_prompts=3,
  )
  check_laws(run)
  assert run.result.steps == 6
  assert run.result.activations >= 3
  # Nothing served while the learner worked.
  for span in run.reporter.spans:
    if span.lane == "hybrid-0" and span.name == "rollout":
      for other in run.reporter.spans:
        if other.lane == "learner" and other.name == "train":
          assert other.end_s <= span.start_s or span.end_s <= other.start_s


@pytest.mark.parametrize("use_flag", [True, False])
def test_colocated_needs_no_flag(use_flag, tmp_path):
  run = run_scripted(
    small_config(use_dynamic_resource_scheduling=use_flag, **ONLY_HYBRID),
    tmp_path,
  )
  check_laws(run)


@pytest.mark.parametrize("epochs, prompts", [(1, 24), (1, 26), (3, 7), (1, 3)])
@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_s5_a_producer_that_ends_ends_the_run(epochs, prompts, ratio, tmp_path):
  run = run_scripted(
    small_config(
      dynamic_schedule_deactivate_ratio=ratio, total_training_steps=1000
    ),
    tmp_path,
    num_prompts=prompts,
    epochs=epochs,
  )
  total = epochs * prompts
  check_laws(run)
  assert sorted(run.trained_ids) == list(range(total))
  assert run.result.steps == math.ceil(total / 4)


@pytest.mark.parametrize("policy", ["default", "static_fully_async", "always"])
@pytest.mark.parametrize("good", [8, 10, 0])
def test_data_that_ends_in_groups_without_spread(good, policy, tmp_path):
  def reward(prompt_id, text):
    return hashed_reward(prompt_id, text) + len(text) if by_id(prompt_id) else 0

  def by_id(prompt_id):  # the first `good` samples teach, the rest do not
    return prompt_id in teaching

  probe = PromptCursor(make_prompts(30), 0, 1)
  teaching = {probe.next()[1].prompt_id for _ in range(good)}
  run = run_scripted(
    small_config(
      dynamic_schedule_policy=policy,
      filter_groups=True,
      total_training_steps=1000,
    ),
    tmp_path,
    num_prompts=30,
    epochs=1,
    grader=ScriptedGrader(reward),
  )
  assert run.result.steps == math.ceil(len(run.trained_ids) / 4)
  assert len(run.trained_ids) == good
  assert run.result.dropped == {"no_spread": 30 - good}
  assert run.result.version == 1 + math.ceil(run.result.steps / 2)
  if good:
    check_laws(run)


@pytest.mark.parametrize("policy", ["default", "static_fully_async", "always"])
def test_o16_micro_steps_that_do_not_fill_a_cycle_are_synced_and_saved(
  policy, tmp_path
):
  run = run_scripted(
    small_config(
      dynamic_schedule_policy=policy,
      trigger_parameter_sync_step=4,
      total_training_steps=5,
    ),
    tmp_path,
    num_val_prompts=2,
  )
  check_laws(run)  # the last update is published and saved
  assert run.result.version == 3
  state = json.loads(
    (pathlib.Path(run.result.checkpoint) / "state.json").read_text()
  )
  assert state["steps"] == 5 and state["digest"] == run.learner.digest
  exported = (pathlib.Path(run.result.export) / "digest").read_text()
  assert exported == run.learner.digest
  assert run.result.val_rewards == (
    (5, pytest.approx(run.result.val_rewards[0][1])),
  )
  standalone = [c for _, c in run.standalone[0].history if "load" in c]
  assert standalone == ["load_weights 1", "load_weights 2", "load_weights 3"]


def test_x7_intervals_of_0_mean_never_but_the_end(tmp_path):
  run = run_scripted(
    small_config(test_freq=0, save_freq=0), tmp_path, num_val_prompts=2
  )
  assert [step for step, _ in run.result.val_rewards] == [8]
  assert [m for _, m in run.learner.log].count("save") == 1


def test_intervals_count_cycles(tmp_path):
  run = run_scripted(
    small_config(test_freq=2, save_freq=1), tmp_path, num_val_prompts=2
  )
  assert [step for step, _ in run.result.val_rewards] == [0, 4, 8]
  assert [m for _, m in run.learner.log].count("save") == 4
  check_laws(run)


def synchronous_digest(config, num_prompts, root):
  """The oracle of I5: a plain loop, one batch after the other."""
  learner = ScriptedLearner(root, train_s=0.0)
  lengths = scripted_text.log_normal_lengths(
    60, 0.7, config.max_response_length
  )
  cursor = PromptCursor(make_prompts(num_prompts), config.seed)

  async def loop():
    for version in range(1, config.total_training_steps + 1):
      batch = []
      for _ in range(config.required_samples):
        sample_id, prompt = cursor.next()
        batch.append(make_sample(sample_id, prompt, version))
      await learner.train(batch)

  def make_sample(sample_id, prompt, version):
    responses = []
    for index in range(config.rollout_n):
      key = response_key(sample_id, index)
      seed = scripted_text.stream_seed(key, prompt.token_ids)
      n = scripted_text.response_length(seed, lengths)
      versions = np.full(n, version, np.int32)
      ids, log_probs = scripted_text.expected(key, prompt.token_ids, versions)
      responses.append(
        Response(
          token_ids=ids,
          log_probs=log_probs,
          versions=versions,
          kv_versions=versions,
          loss_mask=np.ones(n, bool),
          finish_reason="stop",
          reward=hashed_reward(prompt.prompt_id, " ".join(map(str, ids))),
        )
      )
    return Sample(
      sample_id=sample_id, prompt=prompt, responses=tuple(responses)
    )

  run_virtual(loop())
  return learner.digest


@pytest.mark.parametrize("policy", ["static_fully_async", "always", "default"])
@pytest.mark.parametrize("train_s", [0.1, 30.0])
@pytest.mark.parametrize("fleet", [{}, ONLY_HYBRID])
def test_o3_staleness_0_and_k_1_equal_synchronous_training(
  policy, train_s, fleet, tmp_path
):
  config = small_config(
    dynamic_schedule_policy=policy,
    trigger_parameter_sync_step=1,
    staleness_threshold="0",
    total_training_steps=6,
    **fleet,
  )
  run = run_scripted(config, tmp_path, train_s=train_s)
  check_laws(run)
  for step, batch in enumerate(run.learner.trained, start=1):
    for sample in batch:
      for response in sample.responses:
        assert set(response.versions) == {step}
  assert run.learner.digest == synchronous_digest(config, 16, tmp_path / "sync")


def test_s6_the_surplus_is_the_backlog_at_all_times(tmp_path):
  # A slow trainer: the queue is full and cycles pass without generation.
  run = run_scripted(
    small_config(staleness_threshold="1", total_training_steps=16),
    tmp_path,
    train_s=60.0,
  )
  check_laws(run)
  for record in run.reporter.decisions:
    facts = record["context"]
    surplus = facts["total_generated_samples"] - facts["expected_samples"]
    assert surplus == facts["backlog_samples"]
  # The queue holds a whole cycle, so there is nothing to lend for.
  assert run.result.activations == 1


def test_s10_default_activates_before_anything_is_known(tmp_path):
  run = run_scripted(small_config(), tmp_path)
  first = run.reporter.decisions[0]
  assert first["phase"] == "SYNC_END" and first["decision"]["lend"] == 1


def test_s9_the_first_measurements_replace_the_assumptions(tmp_path):
  run = run_scripted(small_config(total_training_steps=12), tmp_path)
  ends = [r for r in run.reporter.decisions if r["phase"] == "CYCLE_END"]
  assert ends[0]["context"]["last_deactivate_duration_s"] > 0
  calls = [r["phase"] for r in run.reporter.decisions]
  assert calls[0] == "SYNC_END" and calls[1] == "STEP_START"
  assert calls[-2:] == ["SYNC_END", "CYCLE_END"]
  assert calls.count("CYCLE_END") == calls.count("SYNC_END") - 1 == 6
  assert calls.count("STEP_START") == 12


@pytest.mark.parametrize("policy", POLICIES)
def test_i7_the_decision_log_replays(policy, tmp_path):
  config = small_config(dynamic_schedule_policy=policy)
  run = run_scripted(config, tmp_path)
  fleet = Fleet(
    num_standalone=1,
    num_hybrid=1,
    required_samples=4,
    trigger_parameter_sync_step=2,
    staleness_threshold=0.5,
    max_required_samples=12,
  )
  log = json.loads(json.dumps(run.reporter.decisions))
  again = replay(cached_policy(policy), fleet, log)
  assert [d._asdict() for d in again] == [r["decision"] for r in log]


@pytest.mark.parametrize("mode", ["keep", "reprefill", "abort"])
@pytest.mark.parametrize("lag", [1, 2])
def test_no_trained_token_is_older_than_max_version_lag(mode, lag, tmp_path):
  run = run_scripted(
    small_config(
      max_version_lag=lag,
      weight_update_mode=mode,
      trigger_parameter_sync_step=1,
      staleness_threshold="4",
      total_training_steps=16,
    ),
    tmp_path,
    lengths=scripted_text.log_normal_lengths(100, 1.0, 400),
    train_s=0.3,
  )
  check_laws(run)
  ages = [
    version - sample.oldest_version
    for version, batch in enumerate(run.learner.trained, start=1)
    for sample in batch
  ]
  assert max(ages) == lag
  stale = sum(age > 0 for age in ages)
  assert stale == sum(
    values["fully_async/count/stale_samples_processed"]
    for _, _, values in run.reporter.cycles()
  )
  # O7: what a sync makes too old is cancelled in flight, not generated to its
  # end and graded.
  assert (
    len(run.grader.grades)
    < len(run.trained_ids) + run.result.dropped["version_lag"]
  )
  assert run.result.dropped["version_lag"] > 0


def test_without_a_bound_samples_get_older(tmp_path):
  run = run_scripted(
    small_config(
      trigger_parameter_sync_step=1,
      staleness_threshold="4",
      total_training_steps=16,
    ),
    tmp_path,
    lengths=scripted_text.log_normal_lengths(100, 1.0, 400),
    train_s=0.3,
  )
  ages = [
    version - sample.oldest_version
    for version, batch in enumerate(run.learner.trained, start=1)
    for sample in batch
  ]
  assert max(ages) > 2 and run.result.dropped == {}


def test_rewards_are_recorded_before_the_filter(tmp_path):
  grader = ScriptedGrader()
  run = run_scripted(
    small_config(filter_groups=True, total_training_steps=10),
    tmp_path,
    grader=grader,
  )
  check_laws(run)
  assert run.result.dropped["no_spread"] > 0
  cycles = [values for _, _, values in run.reporter.cycles()]
  total = sum(
    v["critic/score/mean"] * v["critic/score/num_samples"] for v in cycles
  )
  count = sum(v["critic/score/num_samples"] for v in cycles)
  # What was graded after the last micro-step is in no micro-step.
  assert 40 < count <= len(grader.grades)
  for batch in run.learner.trained:
    assert all(len(set(s.rewards)) > 1 for s in batch)
  filtered = [
    values["reward/raw_mean"]
    for _, _, values in run.reporter.rows
    if "reward/raw_mean" in values
  ]
  assert filtered == list(run.result.step_rewards) and len(filtered) == 10
  graded = [sum(g) / len(g) for g in grader.grades]
  assert total / count == pytest.approx(sum(graded) / len(graded), abs=0.15)


@settings(
  max_examples=25,
  deadline=None,
  suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
  policy=st.sampled_from(POLICIES),
  k=st.integers(1, 4),
  r=st.integers(1, 5),
  staleness=st.sampled_from(["0", "0.1", "0.5", "2"]),
  standalone=st.integers(0, 2),
  hybrid=st.integers(1, 3),
  prompts=st.integers(1, 30),
  steps=st.integers(1, 9),
  train_s=st.sampled_from([0.0, 0.5, 20.0]),
  filter_groups=st.booleans(),
  mode=st.sampled_from(["keep", "reprefill", "abort"]),
  lag=st.integers(0, 2),
)
def test_any_run_ends_and_keeps_the_laws(
  tmp_path_factory,
  policy,
  k,
  r,
  staleness,
  standalone,
  hybrid,
  prompts,
  steps,
  train_s,
  filter_groups,
  mode,
  lag,
):
  run = run_scripted(
    small_config(
      dynamic_schedule_policy=policy,
      trigger_parameter_sync_step=k,
      ppo_mini_batch_size=r,
      staleness_threshold=staleness,
      rollout_nnodes=1 if standalone else 0,
      rollout_n_gpus_per_node=max(1, standalone),
      trainer_n_gpus_per_node=hybrid,
      total_training_steps=steps,
      filter_groups=filter_groups,
      weight_update_mode=mode,
      max_version_lag=lag,
    ),
    tmp_path_factory.mktemp("run"),
    num_prompts=prompts,
    train_s=train_s,
  )
  check_laws(run)
  assert run.result.steps == steps


def test_heartbeats_go_on_all_the_time(tmp_path):
  run = run_scripted(small_config(), tmp_path, train_s=0.7)
  times = [s.elapsed_s for s in run.reporter.snapshots]
  assert max(b - a for a, b in itertools.pairwise(times)) <= 0.51
  states = {s.learner_state for s in run.reporter.snapshots}
  assert {"starting", "training", "waiting"} <= states
  waits = {s.waiting_for.partition("(")[0] for s in run.reporter.snapshots}
  assert any(w.startswith("learner: 4 samples") for w in waits), waits
  last = run.reporter.snapshots[-1]
  assert last.total_steps == 8 and last.reward is not None


def test_parts_start_in_a_safe_order(tmp_path):
  async def main():
    run = make_run(small_config(), tmp_path)
    await run.run()
    return run

  run = run_virtual(main())
  slept_s = next(t for t, call in run.hybrid[0].history if call == "sleep")
  started_s = next(t for t, method in run.learner.log if method == "start")
  assert slept_s <= started_s
