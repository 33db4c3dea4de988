import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.accounting import check_conservation
from hybridrl.runtime.ledger import Ledger, LedgerError, SampleState
from hybridrl.scheduling import UNBOUNDED_SAMPLES
from hybridrl.testing import strategies


def _ledger(required=4, k=1, staleness="0", concurrent=4, target=None):
  return Ledger(
    required_samples=required,
    trigger_parameter_sync_step=k,
    staleness_threshold=staleness,
    concurrent_samples_per_replica=concurrent,
    target_samples=target,
  )


def _bring(ledger, sample_id, state):
  """Offers a sample and brings it into a state."""
  ledger.offer(sample_id)
  steps = (
    (SampleState.IN_FLIGHT, ledger.start),
    (SampleState.GRADING, ledger.generated),
    (SampleState.QUEUED, ledger.queue),
    (SampleState.TRAINING, lambda i: ledger.take([i])),
    (SampleState.TRAINED, lambda i: ledger.trained([i])),
  )
  if state is SampleState.DROPPED:
    ledger.drop(sample_id, "test")
  elif state is not SampleState.PENDING:
    for reached, step in steps:
      step(sample_id)
      if reached is state:
        break
  assert ledger.state_of(sample_id) is state


_EVENTS = {
  "offer": lambda ledger, i: ledger.offer(i),
  "start": lambda ledger, i: ledger.start(i),
  "generated": lambda ledger, i: ledger.generated(i),
  "queue": lambda ledger, i: ledger.queue(i),
  "take": lambda ledger, i: ledger.take([i]),
  "trained": lambda ledger, i: ledger.trained([i]),
  "requeue": lambda ledger, i: ledger.requeue(i),
  "drop": lambda ledger, i: ledger.drop(i, "why"),
}
# (event, state before) -> state after; all other pairs are errors.
_S = SampleState
_ALLOWED = {
  ("start", _S.PENDING): _S.IN_FLIGHT,
  ("generated", _S.IN_FLIGHT): _S.GRADING,
  ("queue", _S.GRADING): _S.QUEUED,
  ("take", _S.QUEUED): _S.TRAINING,
  ("trained", _S.TRAINING): _S.TRAINED,
  ("requeue", _S.IN_FLIGHT): _S.PENDING,
  ("drop", _S.PENDING): _S.DROPPED,
  ("drop", _S.IN_FLIGHT): _S.DROPPED,
  ("drop", _S.GRADING): _S.DROPPED,
  ("drop", _S.QUEUED): _S.DROPPED,
  ("drop", _S.TRAINING): _S.DROPPED,
  # The same event again changes nothing.
  ("offer", _S.PENDING): _S.PENDING,
  ("start", _S.IN_FLIGHT): _S.IN_FLIGHT,
  ("generated", _S.GRADING): _S.GRADING,
  ("queue", _S.QUEUED): _S.QUEUED,
  ("take", _S.TRAINING): _S.TRAINING,
  ("trained", _S.TRAINED): _S.TRAINED,
  ("requeue", _S.PENDING): _S.PENDING,
  ("drop", _S.DROPPED): _S.DROPPED,
}


@pytest.mark.parametrize("state", list(SampleState))
@pytest.mark.parametrize("event", sorted(_EVENTS))
def test_every_transition_is_checked(event, state):
  ledger = _ledger()
  _bring(ledger, 7, state)
  before = ledger.counts
  after = _ALLOWED.get((event, state))
  if after is None:
    with pytest.raises(LedgerError) as error:
      _EVENTS[event](ledger, 7)
    assert "sample 7" in str(error.value)
    assert str(state) in str(error.value)
    assert event.upper() in str(error.value)
    assert ledger.state_of(7) is state
  else:
    _EVENTS[event](ledger, 7)
    assert ledger.state_of(7) is after
  if after in (None, state):
    assert ledger.counts == before
  ledger.check()


@pytest.mark.parametrize("event", sorted(set(_EVENTS) - {"offer"}))
def test_an_unknown_sample_is_an_error(event):
  ledger = _ledger()
  with pytest.raises(LedgerError, match="sample 3 is unknown"):
    _EVENTS[event](ledger, 3)
  assert ledger.state_of(3) is None


def test_repeated_events_say_that_nothing_changed():
  ledger = _ledger()
  assert ledger.offer(0)
  assert not ledger.offer(0)
  assert ledger.start(0)
  assert not ledger.start(0)
  assert ledger.drop(0, "a")
  assert not ledger.drop(0, "b")
  assert ledger.dropped == {"a": 1}


@pytest.mark.parametrize("ids", [[0, 1, 9], [9, 0], [0, 0]])
def test_take_and_trained_are_all_or_nothing(ids):
  ledger = _ledger()
  for i in (0, 1):
    _bring(ledger, i, SampleState.QUEUED)
  before = ledger.counts
  with pytest.raises(LedgerError):
    ledger.take(ids)
  assert ledger.counts == before
  assert ledger.ids(SampleState.QUEUED) == [0, 1]


def _perform(ledger, action):
  if action.name == "begin_cycle":
    ledger.begin_cycle()
  elif action.name == "restore":
    ledger.from_json(json.loads(json.dumps(ledger.to_json())))
  else:
    _EVENTS[action.name](ledger, action.sample_id)


@settings(max_examples=300, deadline=None)
@given(st.lists(strategies.ledger_actions(), max_size=60))
def test_o2_conservation_holds_and_nothing_is_trained_twice(actions):
  ledger = _ledger(required=2, k=1, staleness="0.5", target=6)
  trained = []
  for action in actions:
    before = ledger.counts
    state = ledger.state_of(action.sample_id)
    try:
      _perform(ledger, action)
    except LedgerError:
      assert ledger.counts == before
    else:
      if action.name == "trained" and state is SampleState.TRAINING:
        trained.append(action.sample_id)
    ledger.check()
    check_conservation(ledger.counts)
    assert ledger.counts.admitted_in_cycle <= ledger.max_required_samples
    assert ledger.backlog <= ledger.max_required_samples
    assert ledger.arrivable >= ledger.backlog
  assert sorted(trained) == sorted(ledger.ids(SampleState.TRAINED))
  assert len(set(trained)) == len(trained)


def test_o1_the_end_of_data_is_out_of_band_and_evicts_nothing():
  ledger = _ledger(required=4)
  for i in range(4):
    _bring(ledger, i, SampleState.QUEUED)
  before = ledger.counts
  ledger.end_of_data()
  assert ledger.counts == before
  assert ledger.backlog == 4
  assert ledger.ids(SampleState.QUEUED) == [0, 1, 2, 3]
  assert not ledger.wants_more()
  assert ledger.remaining_samples == 4
  assert ledger.arrivable == 4


def test_o2_a_full_queue_refuses_the_new_one_and_keeps_the_old():
  ledger = _ledger(required=4)
  for i in range(4):
    _bring(ledger, i, SampleState.QUEUED)
  ledger.offer(4)
  with pytest.raises(LedgerError, match="4 of 4.*admitted"):
    ledger.start(4)
  assert ledger.state_of(4) is SampleState.PENDING
  assert ledger.backlog == 4


def test_o3_on_policy_admits_a_step_only_after_its_sync():
  """k = 1, staleness 0: what step v trains was started under version v."""
  ledger = _ledger(required=3)
  started_under = {}
  next_id = 0
  for version in range(4):
    while ledger.admissible:
      ledger.offer(next_id)
      ledger.start(next_id)
      started_under[next_id] = version
      next_id += 1
    ids = ledger.ids(SampleState.IN_FLIGHT)
    for i in ids:
      ledger.generated(i)
      ledger.queue(i)
    ledger.take(ids)
    # A slow trainer: nothing may begin while it works, nor before the sync.
    assert ledger.admissible == 0
    assert ledger.arrivable == 0
    ledger.trained(ids)
    assert ledger.admissible == 0
    assert len(ids) == 3
    assert {started_under[i] for i in ids} == {version}
    ledger.begin_cycle()


@pytest.mark.parametrize("version", [0, 5, 10, 50])
@pytest.mark.parametrize("running", [0, 1, 5, 16])
@pytest.mark.parametrize("resumed", [False, True])
def test_o4_resume_neither_inflates_nor_loses_capacity(
  version, running, resumed
):
  ledger = _ledger(required=16, staleness="2")
  for v in range(version):
    ids = list(range(16 * v, 16 * (v + 1)))
    for i in ids:
      _bring(ledger, i, SampleState.TRAINED)
    ledger.begin_cycle()
  begun = [16 * version + i for i in range(running)]
  for i in begun:
    _bring(ledger, i, SampleState.IN_FLIGHT)
  if resumed:
    saved = json.loads(json.dumps(ledger.to_json()))
    ledger = _ledger(required=16, staleness="2")
    ledger.from_json(saved)
    assert ledger.ids(SampleState.PENDING) == begun
    assert ledger.admissible == 48
    for i in begun:
      ledger.start(i)
  assert ledger.admissible == 48 - running
  assert ledger.counts.trained == 16 * version


@pytest.mark.parametrize("state", list(SampleState))
def test_restore_keeps_what_is_done_and_repeats_the_rest(state):
  ledger = _ledger(required=4, k=2, target=8)
  _bring(ledger, 0, SampleState.TRAINED)
  _bring(ledger, 1, state)
  ledger.end_of_data()
  saved = json.loads(json.dumps(ledger.to_json()))
  restored = _ledger(required=4, k=2, target=8)
  restored.from_json(saved)
  done = state in (SampleState.TRAINED, SampleState.DROPPED)
  assert restored.state_of(1) is (state if done else SampleState.PENDING)
  assert restored.state_of(0) is SampleState.TRAINED
  assert restored.backlog == restored.in_flight == 0
  consumed = 2 if state is SampleState.TRAINED else 1
  assert restored.counts.consumed_in_cycle == consumed
  assert restored.admissible == 8 - consumed
  assert restored.dropped == ledger.dropped
  assert not restored.wants_more()
  assert restored.to_json() == saved


def test_s6_surplus_is_the_backlog_also_in_a_cycle_without_generation():
  ledger = _ledger(required=2, k=2, staleness="1")
  for i in range(8):
    _bring(ledger, i, SampleState.QUEUED)
  for _ in range(2):  # the second cycle generates nothing: the queue is full
    for _ in range(2):
      ids = ledger.ids(SampleState.QUEUED)[:2]
      ledger.take(ids)
      ledger.trained(ids)
      facts = ledger.facts()
      surplus = facts["total_generated_samples"] - facts["expected_samples"]
      assert surplus == facts["backlog_samples"] == ledger.backlog
    ledger.begin_cycle()
  assert ledger.backlog == 0


@pytest.mark.parametrize(
  "state",
  [
    SampleState.IN_FLIGHT,
    SampleState.GRADING,
    SampleState.QUEUED,
    SampleState.TRAINING,
  ],
)
def test_a_drop_gives_the_credit_back_and_is_replaced(state):
  ledger = _ledger(required=2, target=2)
  _bring(ledger, 0, state)
  _bring(ledger, 1, SampleState.QUEUED)
  assert ledger.admissible == 0
  assert not ledger.wants_more()
  ledger.drop(0, "no spread")
  assert ledger.admissible == 1
  assert ledger.wants_more()
  assert ledger.arrivable == 2
  assert ledger.dropped == {"no spread": 1}
  with pytest.raises(LedgerError, match="end of data"):
    ledger.offer(2)
    ledger.offer(3)


def test_a_sync_carries_over_what_is_not_consumed():
  ledger = _ledger(required=4, staleness="0.5")
  for i in range(4):
    _bring(ledger, i, SampleState.TRAINED)
  _bring(ledger, 4, SampleState.QUEUED)
  _bring(ledger, 5, SampleState.IN_FLIGHT)
  assert ledger.admissible == 0
  assert ledger.facts()["arrivable_samples"] == 2
  # At SYNC_END the decision is about the cycle that begins.
  assert ledger.facts(next_cycle=True)["admissible_samples"] == 4
  assert ledger.facts(next_cycle=True)["arrivable_samples"] == 6
  ledger.begin_cycle()
  assert ledger.admissible == 4
  assert ledger.arrivable == 6


def test_remaining_samples():
  ledger = _ledger(target=3)
  assert ledger.remaining_samples == 3
  _bring(ledger, 0, SampleState.TRAINED)
  _bring(ledger, 1, SampleState.TRAINING)
  assert ledger.remaining_samples == 1
  ledger.end_of_data()
  assert ledger.remaining_samples == 0
  assert _ledger().remaining_samples == UNBOUNDED_SAMPLES
  endless = _ledger()
  endless.offer(0)
  endless.end_of_data()
  assert endless.remaining_samples == 1


def test_capacity_is_bounded_by_replicas_and_by_staleness():
  ledger = _ledger(required=16, k=4, staleness="0.1", concurrent=16)
  assert [ledger.capacity(n) for n in (0, 1, 4, 5)] == [0, 16, 64, 70]


@pytest.mark.parametrize("setting", ["required", "k", "concurrent", "target"])
def test_a_bad_setting_is_named(setting):
  with pytest.raises(ValueError, match="is -1"):
    _ledger(**{setting: -1})
