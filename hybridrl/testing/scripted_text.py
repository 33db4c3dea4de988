"""What a ScriptedReplica samples, as pure functions: the oracle of its tests.

A response is a stream that its *key* and its prompt determine: token i of the
response, sampled by version v, is a hash of (key, prompt, i, v), and the length
is a hash of (key, prompt). So a response has one right value however often it
was interrupted and wherever it went on, and
`expected(key, prompt, versions)` gives it.

The key is the request id up to its last '/' ('12-3/7' has the key '12-3'), as
`rollout.client` builds ids, so that siblings of a group differ. Sampled ids are
FIRST_SAMPLED_ID or greater; ids of prompts have to be smaller: that is how a
request shows where its prompt ends. Everything is a function of these inputs:
no state, no random generator.
"""

import statistics
import zlib
from collections.abc import Callable

import numpy as np

FIRST_SAMPLED_ID = 1000
NUM_SAMPLED_IDS = 1000

# From a uniform number in [0, 1) to the length of a response in tokens, >= 1.
Lengths = Callable[[float], int]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # splitmix64 (Steele et al. 2014)
_VERSION_STEP = np.uint64(0xD1B54A32D192ED03)


def fixed_length(num_tokens: int) -> Lengths:
  """Every response has this length."""
  return lambda uniform: num_tokens


def log_normal_lengths(median: float, sigma: float, longest: int) -> Lengths:
  """Heavy-tailed lengths in [1, longest]; longer ones are cut."""
  normal = statistics.NormalDist()

  def length(uniform: float) -> int:
    z = normal.inv_cdf(min(max(uniform, 1e-12), 1 - 1e-12))
    return int(min(max(round(median * np.exp(sigma * z)), 1), longest))

  return length


def key_of(request_id: str) -> str:
  """Key of the response that an attempt belongs to."""
  return request_id.rpartition("/")[0] or request_id


def split(token_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """[P] -> prompt [P - T] and the tokens sampled so far [T]."""
  given = np.flatnonzero(token_ids < FIRST_SAMPLED_ID)
  end = int(given[-1]) + 1 if len(given) else 0
  return token_ids[:end], token_ids[end:]


def stream_seed(key: str, prompt: np.ndarray) -> int:
  """Identifies a response's stream; 32 bits."""
  raw = np.ascontiguousarray(prompt, np.int32).tobytes()
  return zlib.crc32(raw, zlib.crc32(key.encode()))


def response_length(seed: int, lengths: Lengths) -> int:
  """Tokens of the whole response if nothing bounds it, stop token included."""
  uniform = float(_mix(seed, np.array([-1]), np.array([0]))[0]) / 2.0**64
  return max(int(lengths(uniform)), 1)


def sampled(
  seed: int, first: int, versions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Tokens first, first + 1, ... of a stream.

  Args:
    seed: see stream_seed.
    first: index in the response of the first token.
    versions: [T] version that samples each token.

  Returns:
    token_ids [T] int32 and log_probs [T] float32, in (-3, 0).
  """
  bits = _mix(seed, first + np.arange(len(versions)), versions)
  ids = FIRST_SAMPLED_ID + (bits % np.uint64(NUM_SAMPLED_IDS)).astype(np.int32)
  unit = (bits >> np.uint64(40)).astype(np.float32) / np.float32(2**24)
  return ids.astype(np.int32), -3.0 * unit


def expected(
  key: str,
  prompt: np.ndarray,
  versions: np.ndarray,
  *,
  stop_token_id: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
  """The one right response, given which version sampled each token.

  Args:
    key: see the module docstring.
    prompt: [P] int32.
    versions: [T] int32, those that the response reports.
    stop_token_id: the last token, if the response ended with 'stop'.

  Returns:
    token_ids [T] int32 and log_probs [T] float32.
  """
  ids, log_probs = sampled(stream_seed(key, prompt), 0, versions)
  if stop_token_id is not None:
    ids[-1] = stop_token_id
  return ids, log_probs


def _mix(seed: int, index: np.ndarray, version: np.ndarray) -> np.ndarray:
  """[T] uint64, splitmix64 of seed, index and version."""
  with np.errstate(over="ignore"):
    x = np.uint64(seed) * _GAMMA
    x = x + (index.astype(np.int64) + 2).astype(np.uint64) * _GAMMA
    x = x + (version.astype(np.int64) + 2).astype(np.uint64) * _VERSION_STEP
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
