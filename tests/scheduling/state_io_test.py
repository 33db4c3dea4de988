import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hybridrl.scheduling import (
  Fleet,
  default,
  dump_state,
  fixed_ratio,
  load_state,
)

_FLEET = Fleet(
  num_standalone=1,
  num_hybrid=1,
  required_samples=4,
  trigger_parameter_sync_step=2,
  staleness_threshold=0.0,
  max_required_samples=8,
)


def test_every_bit_survives():
  policy = default(0.3)
  state = policy.init(_FLEET)._replace(
    ratio=jnp.float32(1 / 3), num_cycles=jnp.int32(2**31 - 1)
  )
  loaded = load_state(policy, _FLEET, json.loads(json.dumps(dump_state(state))))
  assert type(loaded) is type(state)
  jax.tree.map(np.testing.assert_array_equal, loaded, state)
  assert [jax.typeof(x) for x in loaded] == [jax.typeof(x) for x in state]


def test_the_state_of_another_policy_is_refused():
  saved = dump_state(fixed_ratio().init(_FLEET))
  with pytest.raises(ValueError, match="resume with the policy"):
    load_state(default(), _FLEET, saved)


def test_a_wrong_shape_is_named():
  policy = default()
  saved = dump_state(policy.init(_FLEET))
  saved[".switch_costs_s"] = [1.0]
  with pytest.raises(ValueError, match=r"switch_costs_s has shape \(1,\)"):
    load_state(policy, _FLEET, saved)
