"""Lower bounds on the time of a cycle.

Only useful work counts: aborts, second prefills, switches and weight syncs are
not work, so that a run that needs none of them could meet the bound.
"""

from hybridrl.metrics.numeric import Number, ratio_or_zero


def perfect_cycle_time(
  train_device_s: Number, rollout_device_s: Number, devices: int
) -> Number:
  """C* = (T + R_work) / (a + b): all devices busy with useful work throughout.

  Args:
    train_device_s: T, device-seconds of training per cycle.
    rollout_device_s: R_work, device-seconds of generation per cycle: useful
      tokens over one device's rate at saturated concurrency.
    devices: a + b.

  Raises:
    ValueError: devices < 1.
  """
  if devices < 1:
    raise ValueError(f"devices={devices}: must be >= 1")
  return (train_device_s + rollout_device_s) / devices


def efficiency(perfect_s: Number, measured_s: Number) -> Number:
  """C*/C; 0.0 where nothing was measured."""
  return ratio_or_zero(perfect_s, measured_s)


def throughput_per_device(
  tokens: Number,
  elapsed_s: Number,
  trainer_devices: int,
  rollout_devices: int,
) -> Number:
  """tokens / elapsed_s / (a + b), in tokens/s/device; 0.0 for no time.

  Dedicated rollout devices count as much as the trainer's do.

  Raises:
    ValueError: there is no device.
  """
  devices = trainer_devices + rollout_devices
  if trainer_devices < 0 or rollout_devices < 0 or devices < 1:
    raise ValueError(
      f"trainer_devices={trainer_devices}, rollout_devices={rollout_devices}: "
      "both must be >= 0 and at least one positive"
    )
  return ratio_or_zero(tokens / devices, elapsed_s)
