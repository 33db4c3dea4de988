"""Policies by name: what the flag offers and the conformance suite walks."""

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from hybridrl.scheduling.always_policy import always
from hybridrl.scheduling.checks import check_ratio
from hybridrl.scheduling.default_policy import default
from hybridrl.scheduling.fixed_ratio_policy import fixed_ratio
from hybridrl.scheduling.never_policy import never
from hybridrl.scheduling.seed_style import (
  DynamicSchedulePolicyBase,
  SeedStylePolicy,
  accepted_names,
)
from hybridrl.scheduling.static_fully_async_policy import static_fully_async
from hybridrl.scheduling.types import SchedulingPolicy

Policy = SchedulingPolicy | SeedStylePolicy
Factory = Callable[..., Policy]
_T = TypeVar("_T", bound=Callable[..., Any])

_factories: dict[str, Factory] = {
  "always": always,
  "default": default,
  "fixed_ratio": fixed_ratio,
  "never": never,
  "static_fully_async": static_fully_async,
}

# Read-only view: name -> factory. register_policy adds to it.
POLICIES: Mapping[str, Factory] = types.MappingProxyType(_factories)


def register_policy(name: str) -> Callable[[_T], _T]:
  """Decorator that adds a factory, or a class in the seed's style.

  Args:
    name: what --dynamic_schedule_policy will accept.

  Raises:
    ValueError: the name is taken.
    TypeError: neither a factory nor a DynamicSchedulePolicyBase subclass.
  """
  if not name:
    raise ValueError("a policy's name must not be empty")

  def register(target: _T) -> _T:
    if name in _factories:
      raise ValueError(
        f"policy {name!r} is registered already, by {_factories[name]!r}"
      )
    _factories[name] = _as_factory(target)
    return target

  return register


def make_policy(name: str, *, deactivate_ratio: float = 0.3) -> Policy:
  """Makes the policy of that name.

  Args:
    name: a key of POLICIES.
    deactivate_ratio: in (0, 1]; passed if the factory takes it.

  Raises:
    ValueError: unknown name (lists the known ones), or ratio out of range.
  """
  if name not in _factories:
    raise ValueError(
      f"unknown policy {name!r} (--dynamic_schedule_policy); known: "
      f"{', '.join(sorted(_factories))}"
    )
  check_ratio(deactivate_ratio)
  factory = _factories[name]
  offered = {"deactivate_ratio": deactivate_ratio}
  taken = accepted_names(factory)
  return factory(**{k: v for k, v in offered.items() if k in taken})


def _as_factory(target: Any) -> Factory:
  if not callable(target):
    raise TypeError(f"a policy must be a factory or a class, not {target!r}")
  if not inspect.isclass(target):
    return cast(Factory, target)
  if not issubclass(target, DynamicSchedulePolicyBase):
    raise TypeError(
      f"{target.__name__} must subclass DynamicSchedulePolicyBase"
    )

  def factory(deactivate_ratio: float = 0.3) -> SeedStylePolicy:
    return SeedStylePolicy(target, deactivate_ratio)

  factory.__name__ = target.__name__
  return factory
