import jax
import jax.numpy as jnp
import pytest

from hybridrl.metrics import bounds


def test_x8_throughput_counts_trainer_and_rollout_devices():
  assert bounds.throughput_per_device(1.2e6, 100.0, 16, 16) == 375.0
  # The kind: either count alone, uneven ones, no time.
  assert bounds.throughput_per_device(1.2e6, 100.0, 32, 0) == 375.0
  assert bounds.throughput_per_device(1.2e6, 100.0, 0, 32) == 375.0
  assert bounds.throughput_per_device(1.2e6, 100.0, 8, 24) == 375.0
  assert bounds.throughput_per_device(600.0, 100.0, 1, 2) == 2.0
  assert bounds.throughput_per_device(600.0, 0.0, 1, 2) == 0.0


@pytest.mark.parametrize(("trainer", "rollout"), [(0, 0), (-1, 2), (2, -1)])
def test_throughput_needs_devices(trainer, rollout):
  with pytest.raises(ValueError, match=f"trainer_devices={trainer}"):
    bounds.throughput_per_device(1.0, 1.0, trainer, rollout)


def test_perfect_cycle_time():
  # The seed's case 2.05 : 1 on two devices: (10 + 20.5) / 2.
  assert bounds.perfect_cycle_time(10.0, 20.5, 2) == 15.25
  assert bounds.perfect_cycle_time(16.0, 48.0, 32) == 2.0
  with pytest.raises(ValueError, match="devices=0"):
    bounds.perfect_cycle_time(1.0, 1.0, 0)
  traced = jax.jit(bounds.perfect_cycle_time, static_argnums=2)(
    jnp.float32(10.0), jnp.float32(20.5), 2
  )
  assert traced == 15.25


def test_efficiency():
  assert bounds.efficiency(3.0, 4.0) == 0.75
  assert bounds.efficiency(3.0, 0.0) == 0.0
