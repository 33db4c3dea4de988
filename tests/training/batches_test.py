import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.training.batches import Trajectory, make_batches, trajectories
from hybridrl.training.plan import Shape
from tests.training.samples import make_sample

SHAPES = (Shape(3, 32), Shape(2, 64))


def random_trajectory(rng):
  prompt, response = rng.integers(1, 20), rng.integers(0, 40)
  return Trajectory(
    rng.integers(1, 100, prompt).astype(np.int32),
    rng.integers(1, 100, response).astype(np.int32),
    -rng.random(response).astype(np.float32),
    rng.random(response) < 0.8,
    float(rng.normal()),
  )


@given(st.integers(0, 10**6), st.integers(0, 20))
@settings(deadline=None, max_examples=80)
def test_every_masked_token_is_listed_once_with_what_belongs_to_it(seed, count):
  rng = np.random.default_rng(seed)
  sequences = [random_trajectory(rng) for _ in range(count)]
  _, batches, places = make_batches(sequences, SHAPES)
  listed = 0
  for sequence, (number, spots) in zip(sequences, places, strict=True):
    mask = sequence.loss_mask
    listed += mask.sum()
    if not mask.any():
      continue
    batch = batches[number]
    np.testing.assert_array_equal(
      batch.targets[spots], sequence.response_ids[mask]
    )
    np.testing.assert_array_equal(
      batch.old_log_probs[spots], sequence.old_log_probs[mask]
    )
    assert np.all(batch.advantages[spots] == np.float32(sequence.advantage))
    # The state that predicts a token is that of the token before it.
    whole = np.concatenate([sequence.prompt_ids, sequence.response_ids])
    before = len(sequence.prompt_ids) + np.flatnonzero(mask) - 1
    sources = batch.sources[spots]
    np.testing.assert_array_equal(batch.tokens.ravel()[sources], whole[before])
    np.testing.assert_array_equal(batch.positions.ravel()[sources], before)
  assert sum(int(b.mask.sum()) for b in batches) == listed
  for batch in batches:
    assert batch.tokens.shape in SHAPES
    count = int(batch.mask.sum())
    assert batch.mask[:count].all()
    assert not batch.old_log_probs[count:].any()


def test_l3_the_ids_that_are_trained_are_the_ids_that_were_sampled():
  # 7 and 8 could be one token of a merging tokenizer; ids pass unchanged.
  sample = make_sample(0, [3, 4], [[7, 8, 7], [9, 9]], [0.0, 1.0])
  first, second = trajectories([sample], [np.array([-1.0, 1.0])])
  np.testing.assert_array_equal(first.response_ids, [7, 8, 7])
  np.testing.assert_array_equal(second.response_ids, [9, 9])
  np.testing.assert_array_equal(
    second.old_log_probs, sample.responses[1].log_probs
  )
  assert (first.advantage, second.advantage) == (-1.0, 1.0)


def test_a_response_without_a_prompt_is_an_error():
  empty = np.zeros(0, np.int32)
  bad = Trajectory(empty, empty, empty, empty.astype(bool), 0.0)
  with pytest.raises(ValueError, match="sequence 0 has no prompt"):
    make_batches([bad], SHAPES)
