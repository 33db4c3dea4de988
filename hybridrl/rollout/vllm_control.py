"""Control calls to an engine: bounded, and each failure kept with its cause."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

from hybridrl.rollout.replica import ReplicaFailed

_T = TypeVar("_T")


class ControlLine:
  """Runs control calls; the first failure is final.

  A call fails the engine if it raises, outlasts the deadline or is interrupted,
  since nobody knows then what state the engine is in.
  """

  def __init__(
    self, name: str, timeout_s: float, on_failure: Callable[[], None]
  ):
    self._name = name
    self._timeout_s = timeout_s
    self._on_failure = on_failure
    self._failed = asyncio.Event()
    self.cause: str | None = None

  def fail(self, cause: str) -> None:
    """Ends all present and later calls; the first cause is kept."""
    if self.cause is None:
      self.cause = cause
      self._failed.set()
      self._on_failure()

  def error(self) -> ReplicaFailed:
    return ReplicaFailed(f"{self._name}: {self.cause}")

  def check(self) -> None:
    if self.cause is not None:
      raise self.error()

  async def call(self, what: str, awaitable: Awaitable[_T]) -> _T:
    """Awaits a control call.

    Raises:
      ReplicaFailed: it failed, or the engine did meanwhile.
    """
    task = asyncio.ensure_future(awaitable)
    failed = asyncio.ensure_future(self._failed.wait())
    try:
      await asyncio.wait(
        {task, failed},
        timeout=self._timeout_s,
        return_when=asyncio.FIRST_COMPLETED,
      )
      self.check()
      if not task.done():
        self.fail(f"{what}: no answer within {self._timeout_s:g} s")
        raise self.error()
      try:
        return task.result()
      except Exception as error:
        self.fail(f"{what}: {error}")
        raise self.error() from error
    finally:
      task.cancel()
      failed.cancel()

  @contextlib.asynccontextmanager
  async def switching(self, what: str):
    """A switch that is cancelled half-way leaves an unknown state."""
    try:
      yield
    except asyncio.CancelledError:
      self.fail(f"{what} was interrupted")
      raise
