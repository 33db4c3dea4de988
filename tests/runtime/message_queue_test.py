"""Tests of message_queue.py."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrl.data.sample import Response, Sample
from hybridrl.runtime.ledger import Ledger, LedgerError, SampleState
from hybridrl.runtime.message_queue import MessageQueue, QueueOverflow
from hybridrl.testing.scripted_run import make_prompts


def make_sample(sample_id, version=1):
  response = Response(
    token_ids=np.array([1000, 1001], np.int32),
    log_probs=np.zeros(2, np.float32),
    versions=np.array([version, version + 1], np.int32),
    kv_versions=np.array([version, version], np.int32),
    loss_mask=np.ones(2, bool),
    finish_reason="stop",
    reward=1.0,
  )
  return Sample(
    sample_id=sample_id,
    prompt=make_prompts(1).prompts[0],
    responses=(response,),
  )


def make_queue(capacity=4, staleness="0"):
  """S = capacity if staleness is 0."""
  ledger = Ledger(
    required_samples=capacity,
    trigger_parameter_sync_step=1,
    staleness_threshold=staleness,
    concurrent_samples_per_replica=100,
  )
  notes = []
  queue = MessageQueue(ledger, capacity, lambda: notes.append(len(queue)))
  return ledger, queue, notes


def grade(ledger, sample_id):
  ledger.offer(sample_id)
  ledger.start(sample_id)
  ledger.generated(sample_id)


def fill(ledger, queue, ids, version=1):
  for i in ids:
    grade(ledger, i)
    queue.put(make_sample(i, version))


def test_o1_the_end_of_data_evicts_nothing_and_is_not_backlog():
  ledger, queue, _ = make_queue(4)
  fill(ledger, queue, range(4))
  ledger.end_of_data()
  assert len(queue) == ledger.backlog == 4
  assert [s.sample_id for s in queue.take(10)] == [0, 1, 2, 3]
  assert len(queue) == ledger.backlog == 0


def test_o2_an_overflow_is_an_error_and_touches_nothing():
  ledger, queue, _ = make_queue(4, staleness="1")
  fill(ledger, queue, range(4))
  grade(ledger, 4)
  with pytest.raises(QueueOverflow, match="sample 4 .*4 of at most 4"):
    queue.put(make_sample(4))
  assert ledger.state_of(4) is SampleState.GRADING
  assert [s.sample_id for s in queue.take(4)] == [0, 1, 2, 3]
  queue.put(make_sample(4))
  assert ledger.backlog == 1
  ledger.check()


def test_a_second_put_changes_nothing():
  ledger, queue, notes = make_queue(4)
  fill(ledger, queue, [0])
  queue.put(make_sample(0))
  assert len(queue) == ledger.backlog == 1
  assert notes == [1]


def test_a_sample_that_was_not_graded_is_refused():
  ledger, queue, _ = make_queue(4)
  ledger.offer(0)
  with pytest.raises(LedgerError, match="sample 0 is pending"):
    queue.put(make_sample(0))
  assert len(queue) == 0


def test_the_oldest_leave_first_in_the_order_of_their_ids():
  ledger, queue, _ = make_queue(6)
  fill(ledger, queue, [5, 0, 3, 1])
  assert [s.sample_id for s in queue.take(3)] == [0, 3, 5]
  assert [s.sample_id for s in queue.take(3)] == [1]
  assert queue.take(3) == []


def test_samples_with_a_token_that_is_too_old_are_dropped():
  ledger, queue, notes = make_queue(6)
  fill(ledger, queue, [0, 1], version=3)
  fill(ledger, queue, [2], version=4)
  notes.clear()
  dropped = queue.drop_older_than(4)
  assert [s.sample_id for s in dropped] == [0, 1]
  assert ledger.dropped == {"version_lag": 2}
  assert ledger.admissible == 5
  assert notes == [1]
  assert queue.drop_older_than(4) == []


@given(
  st.lists(
    st.sampled_from(["put", "take", "drop"]) | st.integers(0, 3), max_size=60
  )
)
def test_queue_and_ledger_agree_after_any_history(moves):
  ledger, queue, _ = make_queue(5, staleness="2")
  next_id, out, version = 0, [], 1
  for move in moves:
    if move == "put" and len(queue) < 5 and ledger.admissible:
      fill(ledger, queue, [next_id], version)
      next_id += 1
    elif move == "take":
      taken = queue.take(2)
      out += [s.sample_id for s in taken]
      ledger.trained([s.sample_id for s in taken])
    elif move == "drop":
      out += [s.sample_id for s in queue.drop_older_than(version)]
    elif isinstance(move, int):
      version += move
      ledger.begin_cycle()
    assert len(queue) == ledger.backlog
    ledger.check()
  out += [s.sample_id for s in queue.take(5)]
  assert sorted(out) == list(range(next_id))
