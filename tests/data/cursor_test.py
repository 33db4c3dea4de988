import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.data.cursor import PromptCursor
from hybridrl.data.prompt_set import LoadReport, PromptSet
from hybridrl.data.sample import Prompt


def _set(size: int, answer: str = "1") -> PromptSet:
  report = LoadReport(
    rows_read=size,
    rows_merged=0,
    answers_in_conflict=0,
    prompts_over_long=0,
    prompts_kept=size,
  )
  prompts = tuple(
    Prompt(
      prompt_id=i,
      text=f"q{i}",
      token_ids=np.array([i], np.int32),
      answer=answer,
      data_source="s",
    )
    for i in range(size)
  )
  return PromptSet(prompts=prompts, report=report)


def _take(cursor, count):
  drawn = [cursor.next() for _ in range(count)]
  return [(i, p.prompt_id) for i, p in (d for d in drawn if d is not None)]


def test_x6_a_resume_on_an_epochs_boundary_skips_nothing():
  whole = _take(PromptCursor(_set(5), 0, epochs=3), 15)
  first = PromptCursor(_set(5), 0, epochs=3)
  _take(first, 5)
  second = PromptCursor(_set(5), 0, epochs=3)
  second.load_state_dict(first.state_dict())
  assert _take(second, 99) == whole[5:]


@settings(deadline=None)
@given(
  st.integers(1, 12),
  st.integers(0, 1000),
  st.integers(1, 4),
  st.lists(st.integers(0, 9), max_size=8),
)
def test_a_resume_anywhere_goes_on_exactly(size, seed, epochs, batches):
  whole = _take(PromptCursor(_set(size), seed, epochs), size * epochs + 5)
  assert [i for i, _ in whole] == list(range(size * epochs))
  seen = []
  cursor = PromptCursor(_set(size), seed, epochs)
  for batch in batches:  # Killed and resumed after each, whatever its size.
    seen += _take(cursor, batch)
    state = json.loads(json.dumps(cursor.state_dict()))
    cursor = PromptCursor(_set(size), seed, epochs)
    cursor.load_state_dict(state)
  seen += _take(cursor, size * epochs)
  assert seen == whole
  assert cursor.next() is None


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 99))
def test_each_epoch_holds_each_prompt_once(size, seed):
  drawn = _take(PromptCursor(_set(size), seed, epochs=3), 3 * size)
  for epoch in range(3):
    ids = [p for _, p in drawn[epoch * size : (epoch + 1) * size]]
    assert sorted(ids) == list(range(size))


def test_epochs_differ_in_order():
  drawn = [p for _, p in _take(PromptCursor(_set(30), 0), 60)]
  assert drawn[:30] != drawn[30:]


def test_without_end_and_without_shuffle():
  cursor = PromptCursor(_set(3), 0, shuffle=False)
  assert cursor.total is None
  assert [p for _, p in _take(cursor, 7)] == [0, 1, 2, 0, 1, 2, 0]
  assert cursor.position == 7


def test_prompts_of_samples_in_flight_can_be_asked_for():
  cursor = PromptCursor(_set(4), 3, epochs=2)
  drawn = _take(cursor, 8)
  assert [(i, cursor.prompt_at(i).prompt_id) for i in range(8)] == drawn
  for sample_id in (-1, 8):
    with pytest.raises(ValueError, match="no sample"):
      cursor.prompt_at(sample_id)


@pytest.mark.parametrize(
  "other",
  [
    PromptCursor(_set(5), 1),
    PromptCursor(_set(6), 0),
    PromptCursor(_set(5, answer="2"), 0),
    PromptCursor(_set(5), 0, shuffle=False),
  ],
  ids=["seed", "size", "content", "shuffle"],
)
def test_a_position_of_another_sequence_is_refused(other):
  with pytest.raises(ValueError, match="same prompts and seed"):
    other.load_state_dict(PromptCursor(_set(5), 0).state_dict())


def test_bad_arguments_are_named():
  with pytest.raises(ValueError, match="empty"):
    PromptCursor(_set(0), 0)
  with pytest.raises(ValueError, match="epochs"):
    PromptCursor(_set(1), 0, epochs=0)
  cursor = PromptCursor(_set(2), 0, epochs=1)
  with pytest.raises(ValueError, match="position"):
    cursor.load_state_dict(cursor.state_dict() | {"position": 3})
