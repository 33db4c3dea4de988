import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.data.permutation import shuffled_index


def _order(length, seed, epoch=0):
  return [shuffled_index(i, length, seed, epoch) for i in range(length)]


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_it_is_a_bijection(length, seed, epoch):
  assert sorted(_order(length, seed, epoch)) == list(range(length))


def test_orders_are_fixed_for_good():
  # A saved position means something only as long as these stay.
  assert _order(10, 0) == [6, 2, 5, 8, 3, 7, 4, 9, 1, 0]


def test_seeds_and_epochs_have_unrelated_orders():
  orders = {
    tuple(_order(50, seed, epoch)) for seed in range(20) for epoch in range(20)
  }
  assert len(orders) == 400


@pytest.mark.parametrize("length", [2, 3, 7, 10])
def test_every_place_is_about_equally_likely(length):
  counts = [0] * length
  draws = 3000
  for seed in range(draws):
    counts[shuffled_index(0, length, seed)] += 1
  expected = draws / length
  chi_squared = sum((c - expected) ** 2 / expected for c in counts)
  # 1e-6 quantile of chi squared with up to 9 degrees of freedom.
  assert chi_squared < 45


@pytest.mark.parametrize("index", [-1, 5])
def test_an_index_out_of_range_is_refused(index):
  with pytest.raises(ValueError, match="index"):
    shuffled_index(index, 5, 0)
