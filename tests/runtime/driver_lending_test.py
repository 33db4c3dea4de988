"""Lending in whole runs of scripted parts on virtual time."""

import itertools

import pytest

from hybridrl import scheduling
from hybridrl.testing.scripted_replica import ScriptedTimes
from hybridrl.testing.scripted_run import (
  run_scripted,
  small_config,
)
from tests.runtime.run_laws import check_laws

ONLY_HYBRID = {"rollout_nnodes": 0}


def test_switches_are_timed_and_counted(tmp_path):
  run = run_scripted(
    small_config(dynamic_schedule_policy="always", total_training_steps=8),
    tmp_path,
  )
  cycles = [values for _, _, values in run.reporter.cycles()]
  # The first activation comes before the first cycle.
  in_cycles = sum(v.get("dynamic_resource/activations", 0) for v in cycles)
  assert run.result.activations == 4 and in_cycles == 3
  assert sum(v.get("timing_s/deactivate", 0) for v in cycles) == pytest.approx(
    run.result.reclaim_s
  )
  assert run.result.reclaim_s == pytest.approx(4 * (0.005 + 0.105))
  moved = sum(v["fully_async/count/moved_requests"] for v in cycles)
  assert 0 < moved <= run.result.moved_requests
  tokens = sum(v["fully_async/count/generated_tokens"] for v in cycles)
  assert tokens <= run.result.generated_tokens
  lent = [s for s in run.reporter.snapshots if s.lent]
  assert lent and lent[-1].last_activate_s > 0


def test_lending_saves_time_where_generation_is_the_bottleneck(tmp_path):
  times = ScriptedTimes(step_s=lambda n: 0.05)

  def wall_s(policy):
    run = run_scripted(
      small_config(dynamic_schedule_policy=policy, total_training_steps=40),
      tmp_path / policy,
      times=times,
      train_s=2.0,
    )
    return run.result.wall_s

  assert wall_s("default") < 0.9 * wall_s("static_fully_async")


def test_a_policy_may_lend_in_the_middle_of_a_cycle(tmp_path):
  late = scheduling.SchedulingPolicy(
    init=lambda fleet: (),
    decide=scheduling.by_phase(
      step_start=lambda c, s: (
        scheduling.make_decision(lend=1, wait_samples=4),
        s,
      ),
      event=lambda c, s: (scheduling.make_decision(lend=0), s),
    ),
  )
  run = run_scripted(small_config(), tmp_path, policy=late)
  check_laws(run)
  assert run.result.activations >= 4
  loads = [c for _, c in run.hybrid[0].history if c.startswith("load")]
  # Two activations a cycle load the same, last published version.
  versions = [int(c.split()[1]) for c in loads]
  assert versions == sorted(versions)
  assert len(versions) > len(set(versions))


def test_a_recheck_asks_again_in_time(tmp_path):
  def decision(c, s):
    lend = (c.elapsed_s < 5.0).astype("int32")
    return scheduling.make_decision(lend=lend, recheck_s=0.5), s

  policy = scheduling.SchedulingPolicy(
    init=lambda fleet: (),
    decide=scheduling.by_phase(step_start=decision, event=decision),
  )
  run = run_scripted(
    small_config(total_training_steps=2), tmp_path, policy=policy
  )
  events = [r for r in run.reporter.decisions if r["phase"] == "EVENT"]
  gaps = [
    b["context"]["elapsed_s"] - a["context"]["elapsed_s"]
    for a, b in itertools.pairwise(events)
  ]
  assert len(events) >= 4 and max(gaps) < 1.0
  check_laws(run)


class SeedStyle(scheduling.DynamicSchedulePolicyBase):
  """The example of the seed's section 6."""

  def __init__(self, deactivate_ratio=0.5, only_hybrid=False):
    self.deactivate_ratio = deactivate_ratio
    self.only_hybrid = only_hybrid

  def should_deactivate(self, global_steps, is_hybrid_active, ctx):
    return is_hybrid_active

  def deactivate_wait_samples(self, ctx):
    return int(
      ctx.required_samples
      * ctx.trigger_parameter_sync_step
      * self.deactivate_ratio
    )

  def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
    return ctx.total_generated_samples < (
      ctx.expected_samples + ctx.buffer_samples
    )


@pytest.mark.parametrize("fleet", [{}, ONLY_HYBRID])
def test_a_class_in_the_seeds_style_runs_live(fleet, tmp_path):
  policy = scheduling.SeedStylePolicy(SeedStyle, 0.5)
  run = run_scripted(
    small_config(total_training_steps=10, **fleet), tmp_path, policy=policy
  )
  check_laws(run)
  assert run.result.steps == 10
