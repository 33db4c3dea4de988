import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.models.config import ModelConfig
from hybridrl.training.plan import (
  Shape,
  activation_bytes_per_token,
  batch_shapes,
  plan_batches,
  row_lengths,
)

MODEL = ModelConfig(
  vocab_size=64,
  hidden_size=128,
  intermediate_size=384,
  num_layers=4,
  num_heads=4,
  num_kv_heads=2,
  head_size=32,
)


@pytest.mark.parametrize(
  ("max_length", "expected"),
  [
    (1, (32,)),
    (60, (64,)),
    (256, (256,)),
    (257, (256, 288)),
    (512, (256, 512)),
    (1500, (256, 512, 1024, 1504)),
  ],
)
def test_row_lengths(max_length, expected):
  assert row_lengths(max_length) == expected


def assert_laws(plan, lengths, shapes):
  assert set(plan.shapes) <= set(shapes)
  assert len(plan.places) == len(lengths)
  taken = [np.zeros(shape, int) for shape in plan.shapes]
  segments = {}
  for place, length in zip(plan.places, lengths, strict=True):
    row = taken[place.batch][place.row]
    assert place.start + length <= len(row)
    row[place.start : place.start + length] += 1
    segments.setdefault((place.batch, place.row), []).append(place.segment)
  assert all(array.max() <= 1 for array in taken)
  assert sum(int(array.sum()) for array in taken) == sum(lengths)
  for numbers in segments.values():
    assert sorted(numbers) == list(range(1, len(numbers) + 1))


@given(
  st.lists(st.integers(1, 512), max_size=80),
  st.sampled_from([1, 256, 700, 4096, 20_000]),
  st.sampled_from(["cpu", "gpu"]),
)
@settings(deadline=None, max_examples=150)
def test_every_sequence_lies_whole_in_one_row_once(lengths, tokens, platform):
  shapes = batch_shapes(MODEL, 512, tokens, platform)
  plan = plan_batches(lengths, shapes)
  assert_laws(plan, lengths, shapes)
  assert plan_batches(lengths, shapes) == plan


@given(st.lists(st.integers(1, 512), min_size=1, max_size=80))
@settings(deadline=None, max_examples=50)
def test_only_one_micro_batch_can_hold_empty_rows(lengths):
  shapes = batch_shapes(MODEL, 512, 4096, "gpu")
  plan = plan_batches(lengths, shapes)
  used = {}
  for place in plan.places:
    used.setdefault(place.batch, set()).add(place.row)
  partial = [
    number
    for number, shape in enumerate(plan.shapes)
    if len(used[number]) < shape.num_rows
  ]
  assert len(partial) <= 1


def test_heavy_tailed_lengths_waste_little():
  rng = np.random.default_rng(0)
  shapes = batch_shapes(MODEL, 448, 4096, "cpu")
  for _ in range(5):
    lengths = np.minimum(rng.lognormal(4.2, 0.7, 128), 384).astype(int) + 40
    plan = plan_batches(lengths.tolist(), shapes)
    assert lengths.sum() / plan.padded_tokens > 0.9


@pytest.mark.parametrize("lengths", [[0], [3, 65]])
def test_a_sequence_that_fits_nowhere_is_named(lengths):
  with pytest.raises(ValueError, match=f"sequence {len(lengths) - 1}"):
    plan_batches(lengths, [Shape(2, 64)])


def test_nothing_needs_nothing():
  assert plan_batches([], [Shape(2, 64)]) == ((), ())


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_the_token_budget_holds_except_for_a_single_row(platform):
  for shape in batch_shapes(MODEL, 1500, 600, platform):
    assert shape.num_rows == 1 or shape.num_rows * shape.row_length <= 600


def test_the_estimate_of_temporaries_agrees_with_the_compiler():
  import jax

  from hybridrl.models.decoder import init_params
  from hybridrl.training.packing import empty_rows
  from hybridrl.training.sft import sft_loss

  rows = empty_rows(2, 128)
  params = init_params(MODEL, 0)
  step = jax.jit(jax.grad(lambda p: sft_loss(MODEL, p, rows)))
  memory = step.lower(params).compile().memory_analysis()
  estimate = 256 * activation_bytes_per_token(MODEL, 128)
  assert 0.6 < estimate / memory.temp_size_in_bytes < 1.6
