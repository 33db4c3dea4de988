import asyncio
import json

import jax
import pytest

from hybridrl.scheduling import (
  POLICIES,
  DynamicScheduleContext,
  DynamicSchedulePolicyBase,
  Fleet,
  Phase,
  dump_state,
  load_state,
  make_context,
  make_policy,
  register_policy,
  registry,
)
from hybridrl.testing.policy_conformance import EAGER_LAWS
from hybridrl.testing.policy_drive import Drive

_FLEET = Fleet(
  num_standalone=1,
  num_hybrid=2,
  required_samples=16,
  trigger_parameter_sync_step=4,
  staleness_threshold=0.5,
  max_required_samples=96,
)


class SeedExample(DynamicSchedulePolicyBase):
  """The seed's example of section 6, with a memory of its calls."""

  def __init__(self, deactivate_ratio: float = 0.5, only_hybrid: bool = False):
    self.deactivate_ratio = deactivate_ratio
    self.only_hybrid = only_hybrid
    self.calls = []

  def should_deactivate(self, global_steps, is_hybrid_active, ctx):
    self.calls.append("should_deactivate")
    return is_hybrid_active

  def deactivate_wait_samples(self, ctx):
    self.calls.append("deactivate_wait_samples")
    return int(
      ctx.required_samples
      * ctx.trigger_parameter_sync_step
      * self.deactivate_ratio
    )

  def should_activate_after_step(self, global_steps, is_hybrid_active, ctx):
    self.calls.append("should_activate_after_step")
    return ctx.total_generated_samples < ctx.expected_samples + 50

  def update_after_step(self, global_steps, ctx):
    self.calls.append("update_after_step")


class Mover(SeedExample):
  def request_rebalance(self, global_steps, ctx, handle):
    self.calls.append("request_rebalance")
    assert isinstance(ctx, DynamicScheduleContext)
    handle.append(global_steps)
    return "moved"


class SeedMover(SeedExample):
  """With the seed's own signature, as a coroutine."""

  async def request_rebalance(self, global_steps, ctx):
    self.calls.append("request_rebalance")
    return global_steps


@pytest.fixture(autouse=True)
def registered():
  names = dict(registry._factories)
  for cls in (SeedExample, Mover, SeedMover):
    register_policy(cls.__name__)(cls)
  yield
  registry._factories.clear()
  registry._factories.update(names)


def _context(phase, **facts):
  return make_context(phase=phase, fleet=_FLEET, **facts)


def test_calls_come_in_the_seeds_order_with_the_seeds_meaning():
  policy = make_policy("SeedExample", deactivate_ratio=0.25)
  assert not policy.jittable
  state = policy.init(_FLEET)
  # Active, backlog below T = 16: keep lending; the event at T reclaims.
  facts = {"hybrid_active": 2, "in_flight_samples": 20}
  decision, state = policy.decide(_context(Phase.STEP_START, **facts), state)
  assert (int(decision.lend), int(decision.wait_samples)) == (2, 16)
  for backlog, lend in ((15, 2), (16, 0)):
    event = _context(Phase.EVENT, backlog_samples=backlog, **facts)
    decision, state = policy.decide(event, state)
    assert int(decision.lend) == lend
  decision, state = policy.decide(
    _context(Phase.SYNC_END, backlog_samples=50), state
  )
  assert (int(decision.lend), bool(decision.rebalance)) == (0, False)
  decision, state = policy.decide(_context(Phase.SYNC_END), state)
  assert (int(decision.lend), bool(decision.rebalance)) == (2, True)
  _, state = policy.decide(_context(Phase.CYCLE_END), state)
  assert state.instance.calls == [
    "should_deactivate",
    "deactivate_wait_samples",
    "should_activate_after_step",
    "should_activate_after_step",
    "update_after_step",
  ]


def test_constructor_gets_what_it_names():
  only_hybrid = _FLEET.replace(num_standalone=0)
  policy = make_policy("SeedExample", deactivate_ratio=0.75)
  instance = policy.init(only_hybrid).instance
  assert instance.deactivate_ratio == 0.75
  assert instance.only_hybrid is True

  @register_policy("bare")
  class Bare(SeedExample):
    def __init__(self):
      super().__init__(0.125)

  bare = make_policy("bare", deactivate_ratio=0.75).init(_FLEET)
  assert bare.instance.deactivate_ratio == 0.125
  assert isinstance(bare.instance, Bare)


def test_decide_leaves_the_given_state_alone():
  policy = make_policy("SeedExample")
  state = policy.init(_FLEET)
  policy.decide(_context(Phase.SYNC_END), state)
  assert state.instance.calls == []


def test_seed_context_holds_the_seeds_fields_as_python_values():
  seen = []

  @register_policy("looker")
  class Looker(SeedExample):
    def update_after_step(self, global_steps, ctx):
      seen.append(ctx)

  policy = make_policy("looker")
  context = _context(
    Phase.CYCLE_END,
    total_generated_samples=110,
    backlog_samples=10,
    step_wait_times=[0.5, 2.0],
    step_wait_samples=[3, 4],
    last_activate_duration_s=1.5,
  )
  policy.decide(context, policy.init(_FLEET))
  assert seen == [
    DynamicScheduleContext(
      required_samples=16,
      trigger_parameter_sync_step=4,
      step_required_samples=64,
      total_generated_samples=110,
      expected_samples=100,
      buffer_samples=50,
      step_wait_times=[0.5, 2.0],
      step_wait_samples=[3, 4],
      only_hybrid=False,
      last_activate_duration_s=1.5,
      last_deactivate_duration_s=0.0,
    )
  ]
  assert type(seen[0].required_samples) is int
  assert type(seen[0].only_hybrid) is bool
  assert Looker.__name__ == "Looker"


def test_jit_is_refused_with_the_reason():
  policy = make_policy("SeedExample")
  state = policy.init(_FLEET)
  with pytest.raises(TypeError, match="SeedExample.*seed's style.*jitted"):
    jax.jit(lambda c: policy.decide(c, state)[0])(_context(Phase.EVENT))


def test_request_rebalance_runs_on_the_latest_instance():
  assert make_policy("SeedExample").request_rebalance is None
  context = _context(Phase.SYNC_END)
  policy = make_policy("Mover")
  _, state = policy.decide(context, policy.init(_FLEET))
  handle = []
  assert policy.request_rebalance(7, context, handle) == "moved"
  assert handle == [7]
  assert state.instance.calls[-1] == "request_rebalance"

  policy = make_policy("SeedMover")
  with pytest.raises(RuntimeError, match="before the first decision"):
    policy.request_rebalance(7, context, None)
  _, state = policy.decide(context, policy.init(_FLEET))
  assert asyncio.run(policy.request_rebalance(8, context, None)) == 8


@pytest.mark.parametrize("law", sorted(EAGER_LAWS))
def test_an_adapted_class_obeys_the_eager_laws(law):
  contexts = [
    _context(phase, hybrid_active=active, backlog_samples=backlog)
    for active in (2, 0)
    for backlog in (0, 40, 96)
    for phase in Phase
  ]
  EAGER_LAWS[law](POLICIES["SeedExample"], _FLEET, contexts)


def test_a_class_that_never_deactivates_still_lets_training_go_on():
  @register_policy("stubborn")
  class Stubborn(SeedExample):
    def should_deactivate(self, global_steps, is_hybrid_active, ctx):
      return False

  drive = Drive(
    policy=make_policy("stubborn"),
    fleet=_FLEET,
    staleness_text="0.5",
    num_samples=200,
    num_cycles=10,
    concurrent=8,
  ).run()
  assert len(drive.trained) == 200
  assert Stubborn.__name__ == "Stubborn"


def test_state_round_trips_through_json_and_names_what_cannot():
  policy = make_policy("SeedExample")
  state = policy.init(_FLEET)
  _, state = policy.decide(_context(Phase.SYNC_END), state)
  saved = json.loads(json.dumps(dump_state(state)))
  restored = load_state(policy, _FLEET, saved)
  assert vars(restored.instance) == vars(state.instance)
  state.instance.lock = object()
  with pytest.raises(TypeError, match="SeedExample.lock"):
    dump_state(state)
