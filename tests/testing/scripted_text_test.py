import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrl.testing import scripted_text


@given(
  st.lists(st.integers(0, 999), min_size=1, max_size=20),
  st.integers(0, 30),
  st.integers(0, 30),
)
def test_a_stream_is_one_however_it_is_cut(prompt, num_first, num_rest):
  prompt = np.asarray(prompt, np.int32)
  versions = np.sort(np.arange(num_first + num_rest) % 3).astype(np.int32)
  whole, whole_log_probs = scripted_text.expected("k", prompt, versions)
  seed = scripted_text.stream_seed("k", prompt)
  first, _ = scripted_text.sampled(seed, 0, versions[:num_first])
  so_far = np.concatenate([prompt, first])
  found_prompt, found_first = scripted_text.split(so_far)
  np.testing.assert_array_equal(found_prompt, prompt)
  rest, log_probs = scripted_text.sampled(
    seed, len(found_first), versions[num_first:]
  )
  np.testing.assert_array_equal(np.concatenate([found_first, rest]), whole)
  np.testing.assert_array_equal(log_probs, whole_log_probs[num_first:])
  assert np.all(whole >= scripted_text.FIRST_SAMPLED_ID)
  assert np.all(whole_log_probs <= 0)


def test_key_prompt_position_and_version_all_matter():
  prompt, versions = np.array([1, 2], np.int32), np.zeros(50, np.int32)
  base, _ = scripted_text.expected("a", prompt, versions)
  others = (
    scripted_text.expected("b", prompt, versions)[0],
    scripted_text.expected("a", prompt[:1], versions)[0],
    scripted_text.expected("a", prompt, versions + 1)[0],
    np.roll(base, 1),
  )
  for other in others:
    assert np.mean(other == base) < 0.1


def test_tokens_look_uniform():
  ids, log_probs = scripted_text.expected(
    "a", np.array([1], np.int32), np.zeros(20_000, np.int32)
  )
  counts = np.bincount(ids - scripted_text.FIRST_SAMPLED_ID)
  # Poisson of mean 20: six standard deviations.
  assert counts.max() < 47
  assert np.mean(log_probs) == pytest.approx(-1.5, abs=0.05)


@pytest.mark.parametrize(
  ("request_id", "key"), [("3-1/7", "3-1"), ("a/b/0", "a/b"), ("bare", "bare")]
)
def test_key_of(request_id, key):
  assert scripted_text.key_of(request_id) == key


def test_lengths_follow_their_distribution():
  lengths = scripted_text.log_normal_lengths(60, 0.8, 400)
  drawn = np.array(
    [
      scripted_text.response_length(
        scripted_text.stream_seed(str(i), np.array([1], np.int32)), lengths
      )
      for i in range(4000)
    ]
  )
  assert np.median(drawn) == pytest.approx(60, rel=0.1)
  assert np.std(np.log(drawn)) == pytest.approx(0.8, rel=0.1)
  assert drawn.min() >= 1
  assert drawn.max() == 400
  assert scripted_text.response_length(5, scripted_text.fixed_length(9)) == 9
