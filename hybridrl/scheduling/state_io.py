"""A policy's state as JSON-like values, for checkpoints and the decision log.

Law: load_state(policy, fleet, dump_state(state)) makes the same next decision.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridrl.scheduling.seed_style import SeedStyleState
from hybridrl.scheduling.types import Fleet


def dump_state(state: Any) -> dict[str, Any]:
  """JSON-like values of a policy's state.

  Raises:
    TypeError: an attribute of a class in the seed's style is not JSON-like;
      names it.
  """
  if isinstance(state, SeedStyleState):
    attributes = vars(state.instance)
    for name, value in attributes.items():
      try:
        json.dumps(value)
      except (TypeError, ValueError) as error:
        raise TypeError(
          f"{type(state.instance).__name__}.{name} is {value!r}, which a "
          "checkpoint cannot hold; keep Python numbers, strings, lists and "
          "dicts in a policy"
        ) from error
    return {
      "attributes": json.loads(json.dumps(attributes)),
      "wait_samples": state.wait_samples,
    }
  leaves = jax.tree_util.tree_leaves_with_path(state)
  # float32 -> Python float -> float32 is exact.
  return {
    jax.tree_util.keystr(path): np.asarray(leaf).tolist()
    for path, leaf in leaves
  }


def load_state(policy: Any, fleet: Fleet, dumped: dict[str, Any]) -> Any:
  """The state that dump_state was given.

  Raises:
    ValueError: the values are not those of this policy's state.
  """
  template = policy.init(fleet)
  if isinstance(template, SeedStyleState):
    if dumped.keys() != {"attributes", "wait_samples"}:
      raise ValueError(f"not a state of this policy: {sorted(dumped)}")
    vars(template.instance).update(dumped["attributes"])
    return template._replace(wait_samples=dumped["wait_samples"])
  leaves, tree = jax.tree_util.tree_flatten_with_path(template)
  names = [jax.tree_util.keystr(path) for path, _ in leaves]
  if set(names) != dumped.keys():
    raise ValueError(
      f"the saved policy state has {sorted(dumped)}; this policy has "
      f"{sorted(names)}; resume with the policy that the run began with"
    )
  loaded = []
  for name, (_, leaf) in zip(names, leaves, strict=True):
    value = jnp.asarray(dumped[name], leaf.dtype)
    if value.shape != leaf.shape:
      raise ValueError(
        f"policy state {name} has shape {value.shape}, not {leaf.shape}"
      )
    loaded.append(value)
  return jax.tree_util.tree_unflatten(tree, loaded)
