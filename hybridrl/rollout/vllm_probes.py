"""Checks of an engine's numbers: the right weights, the right distribution."""

import numpy as np

from hybridrl.models.bundle import Canary


def canary_mismatch(
  found: np.ndarray, canary: Canary, version: int, tolerance: float
) -> str:
  """Why the canary fails, or '' if it holds.

  Args:
    found: [P - 1] float32 log-probs by the engine.
    canary: [P] tokens, [P - 1] log-probs by the learner.
    version: for the message.
    tolerance: largest |difference|, in nats.
  """
  expected = np.asarray(canary.log_probs)
  if found.shape != expected.shape:
    return (
      f"canary of version {version}: {found.shape} log-probs, expected"
      f" {expected.shape}"
    )
  difference = np.abs(found - expected)
  # Written so that NaN fails.
  if not np.all(difference <= tolerance):
    worst = int(np.argmax(np.where(np.isnan(difference), np.inf, difference)))
    return (
      f"canary of version {version}: log-prob {worst} is {found[worst]:.6g},"
      f" the learner's is {expected[worst]:.6g} (tolerance {tolerance:g})"
    )
  return ""


def temperature_mismatch(
  at_one: np.ndarray,
  at_temperature: np.ndarray,
  temperature: float,
  tolerance: float,
) -> str:
  """Why reported log-probs are not those of the sampled distribution, or ''.

  vLLM's default reports log-probs before temperature; training on those is
  silently wrong.

  Args:
    at_one: [V] float32 log-probs of the next token at temperature 1.
    at_temperature: [V] float32 log-probs reported at `temperature`.
    temperature: > 0.
    tolerance: largest |difference|, in nats.
  """
  if at_one.shape != at_temperature.shape:
    return (
      f"temperature probe: {at_temperature.shape} log-probs, expected"
      f" {at_one.shape}"
    )
  scaled = at_one.astype(np.float64) / temperature
  peak = scaled.max()
  expected = scaled - peak - np.log(np.exp(scaled - peak).sum())
  difference = np.abs(at_temperature - expected)
  # A token at log-prob -80 carries the rounding of its size.
  allowed = tolerance * np.maximum(1.0, np.abs(expected))
  if not np.all(difference <= allowed):
    return (
      f"temperature probe: log-probs at temperature {temperature:g} differ by"
      f" {np.max(difference):.3g} from those of the sampled distribution"
    )
  return ""
