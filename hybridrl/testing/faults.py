"""Faults that a test injects at the named points of a scripted part."""

import asyncio
import collections
import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Delay:
  """The call takes this much longer at the point."""

  seconds: float


@dataclasses.dataclass(frozen=True)
class Hang:
  """The call stays at the point until the part is stopped or dies."""


@dataclasses.dataclass(frozen=True)
class Raise:
  """The call raises this at the point."""

  error: Exception


@dataclasses.dataclass(frozen=True)
class Die:
  """The part fails at the point, as when its process is killed."""

  reason: str = "killed by a test"


Fault = Delay | Hang | Raise | Die


class FaultPlan:
  """Which fault strikes at which visit of which point."""

  def __init__(self, points: Sequence[str]):
    self.points = tuple(points)
    self.visits = collections.Counter()
    self._planned: dict[tuple[str, int], Fault] = {}
    self._always: dict[str, Fault] = {}

  def add(self, point: str, fault: Fault, *, nth: int = 1) -> None:
    """Plans a fault for the nth visit of the point from now on.

    nth = 0 means every visit that has no fault of its own.
    """
    if point not in self.points:
      raise ValueError(f"no point {point!r}; there are {self.points}")
    if nth == 0:
      self._always[point] = fault
    else:
      self._planned[point, self.visits[point] + nth] = fault

  def clear(self) -> None:
    """Forgets what is planned."""
    self._planned.clear()
    self._always.clear()

  @property
  def pending(self) -> tuple[str, ...]:
    """Points of planned faults that did not strike yet."""
    return tuple(point for point, _ in self._planned)

  def visit(self, point: str) -> Fault | None:
    """Counts a visit and takes its fault."""
    if point not in self.points:
      raise ValueError(f"no point {point!r}; there are {self.points}")
    self.visits[point] += 1
    planned = self._planned.pop((point, self.visits[point]), None)
    return planned or self._always.get(point)


async def suffer(fault: Fault | None, ended: asyncio.Event) -> None:
  """Acts a fault out, except Die, which is the part's own to act out.

  Args:
    fault: what `FaultPlan.visit` gave.
    ended: set when the part stops or dies; releases a Hang.
  """
  match fault:
    case Delay(seconds):
      await asyncio.sleep(seconds)
    case Hang():
      await ended.wait()
    case Raise(error):
      raise error
    case _:
      pass
