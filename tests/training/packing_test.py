import numpy as np
import pytest

from hybridrl.training.packing import Slot, empty_rows, pack_in_order, place


def pair(prompt_length, answer_length, first=1):
  tokens = np.arange(first, first + prompt_length + answer_length)
  return tokens[:prompt_length], tokens[prompt_length:]


def test_pairs_are_packed_with_their_own_positions_and_targets():
  rows, taken = pack_in_order(
    [pair(2, 3), pair(3, 1, 20), pair(1, 1, 40)], 1, 10
  )
  assert taken == 2
  np.testing.assert_array_equal(
    rows.tokens, [[1, 2, 3, 4, 5, 20, 21, 22, 23, 0]]
  )
  np.testing.assert_array_equal(
    rows.positions, [[0, 1, 2, 3, 4, 0, 1, 2, 3, 0]]
  )
  np.testing.assert_array_equal(rows.segments, [[1, 1, 1, 1, 1, 2, 2, 2, 2, 0]])
  np.testing.assert_array_equal(
    rows.loss_mask, np.array([[0, 0, 1, 1, 1, 0, 0, 0, 1, 0]], bool)
  )


def test_packing_stops_at_the_first_pair_that_fits_nowhere():
  pairs = [pair(4, 4), pair(4, 4), pair(1, 1), pair(4, 4), pair(1, 1)]
  rows, taken = pack_in_order(pairs, 2, 10)
  assert taken == 3
  assert (rows.segments > 0).sum() == 18


def test_a_pair_longer_than_a_row_is_an_error():
  with pytest.raises(ValueError, match="sequence 1 has 11 tokens"):
    pack_in_order([pair(1, 1), pair(5, 6)], 4, 10)


def test_a_first_token_cannot_carry_loss():
  with pytest.raises(ValueError, match="first token"):
    place(empty_rows(1, 4), Slot(0, 0), 1, np.arange(2), np.ones(2, bool))
