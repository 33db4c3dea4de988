"""Waits that cannot hang: each has an owner, a reason and a deadline (I3).

Everything in the driver's loop that changes what somebody may wait for calls
`Waits.notify()`; waiters then look at their condition again. Nothing polls, and
no wake-up is lost, because the driver has one thread. What is waited for now is
on a board that the live view and error messages read.
"""

import asyncio
import contextlib
import dataclasses
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator
from typing import TypeVar

T = TypeVar("T")

# Timers may fire this much before a sum of floats says so; without it a wait
# could sleep for less than the clock can tell, again and again.
_CLOCK_SLACK_S = 1e-6


class WaitExpired(RuntimeError):
  """A wait reached its deadline; the message names its owner and reason."""


@dataclasses.dataclass(frozen=True, eq=False)
class Wait:
  """One entry of the board.

  Attributes:
    owner: who waits.
    reason: for what.
    since_s: clock time at which the wait began.
    deadline_s: its deadline in seconds; inf for work that ends with the run.
  """

  owner: str
  reason: str
  since_s: float
  deadline_s: float


class Waits:
  """The board of one run.

  Args:
    clock: seconds, monotone; only differences are used.
  """

  def __init__(self, clock: Callable[[], float]):
    self._clock = clock
    self._board: list[Wait] = []
    self._sleepers: list[asyncio.Future[None]] = []

  def notify(self) -> None:
    """Something changed: every waiter looks at its condition again."""
    sleepers, self._sleepers = self._sleepers, []
    for sleeper in sleepers:
      if not sleeper.done():
        sleeper.set_result(None)

  @property
  def board(self) -> tuple[Wait, ...]:
    """What is waited for now, the oldest first."""
    return tuple(self._board)

  def longest(self) -> str:
    """Owner and reason of the oldest wait, for a person; '' if none.

    Waits without a deadline of their own delay nobody and are left out.
    """
    waits = [w for w in self._board if not math.isinf(w.deadline_s)]
    if not waits:
      return ""
    wait = waits[0]
    seconds = self._clock() - wait.since_s
    return f"{wait.owner}: {wait.reason} ({seconds:.0f} s)"

  async def until(
    self,
    condition: Callable[[], bool],
    *,
    owner: str,
    reason: str,
    deadline_s: float,
    progress: Callable[[], Hashable] | None = None,
    at_latest_s: float = math.inf,
  ) -> bool:
    """Returns True once the condition holds.

    Args:
      condition: cheap and without side effects; called at every notify().
      owner: who waits.
      reason: for what.
      deadline_s: seconds after which the wait is an error.
      progress: where given, the deadline counts from the last change of its
        value: a long wait is fine as long as something moves.
      at_latest_s: seconds after which the wait returns False instead.

    Raises:
      WaitExpired: the deadline passed.
    """
    loop = asyncio.get_running_loop()
    began = renewed = loop.time()
    seen = progress() if progress else None
    with self._entry(owner, reason, deadline_s):
      while not condition():
        if progress and (now_seen := progress()) != seen:
          seen, renewed = now_seen, loop.time()
        left_s = renewed + deadline_s - loop.time()
        soft_left_s = began + at_latest_s - loop.time()
        if soft_left_s <= _CLOCK_SLACK_S:
          return False
        if left_s <= _CLOCK_SLACK_S:
          raise WaitExpired(_expired(owner, reason, deadline_s, progress))
        await self._sleep(min(left_s, soft_left_s))
    return True

  async def within(
    self,
    work: Awaitable[T],
    *,
    owner: str,
    reason: str,
    deadline_s: float,
  ) -> T:
    """Awaits `work`, and cancels it at the deadline.

    Raises:
      WaitExpired: the deadline passed.
    """
    with self._entry(owner, reason, deadline_s):
      timer = asyncio.timeout(None if math.isinf(deadline_s) else deadline_s)
      try:
        async with timer:
          return await work
      except TimeoutError as error:
        # A TimeoutError of the work itself is the work's own failure.
        if not timer.expired():
          raise
        raise WaitExpired(_expired(owner, reason, deadline_s)) from error

  @contextlib.contextmanager
  def _entry(
    self, owner: str, reason: str, deadline_s: float
  ) -> Iterator[None]:
    wait = Wait(owner, reason, self._clock(), deadline_s)
    self._board.append(wait)
    try:
      yield
    finally:
      self._board.remove(wait)

  async def _sleep(self, seconds: float) -> None:
    sleeper = asyncio.get_running_loop().create_future()
    self._sleepers.append(sleeper)
    timeout = None if math.isinf(seconds) else seconds
    try:
      await asyncio.wait((sleeper,), timeout=timeout)
    finally:
      if sleeper in self._sleepers:
        self._sleepers.remove(sleeper)


async def guarded(main: Awaitable[T], *guards: asyncio.Task[None]) -> T:
  """Runs `main` beside tasks that must outlive it.

  The first failure wins: a guard that fails (or returns, which it must not)
  cancels `main` at once and its own exception is raised, with its own type.
  Guards keep running after `main` ended; their owner stops them.
  """
  task = asyncio.ensure_future(main)
  try:
    await asyncio.wait((task, *guards), return_when=asyncio.FIRST_COMPLETED)
    for guard in guards:
      if guard.done() and not task.done():
        guard.result()
        raise RuntimeError(f"{guard.get_name()} ended before the run did")
    return await task
  finally:
    await cancel_and_wait(task)


async def all_of(*works: Awaitable[T]) -> list[T]:
  """Results of works that run at once; the first failure ends the others."""
  tasks = [asyncio.ensure_future(work) for work in works]
  try:
    return list(await asyncio.gather(*tasks))
  finally:
    await cancel_and_wait(*tasks)


async def run_to_end(work: Awaitable[T], *, grace_s: float) -> T:
  """Awaits work that must not be left half done.

  A cancellation lets it end, for at most grace_s seconds, and is raised then;
  a failure of the work in that time gives way to the cancellation.
  """
  task = asyncio.ensure_future(work)
  try:
    return await asyncio.shield(task)
  except asyncio.CancelledError:
    if not task.done():
      await asyncio.wait((task,), timeout=grace_s)
    await cancel_and_wait(task)
    raise


async def cancel_and_wait(*tasks: asyncio.Future) -> None:
  """Cancels tasks and waits until they ended; their failures are theirs."""
  for task in tasks:
    task.cancel()
  await asyncio.gather(*tasks, return_exceptions=True)


def _expired(
  owner: str, reason: str, deadline_s: float, progress: object = None
) -> str:
  what = "without any progress" if progress else "in vain"
  return f"{owner} waited {deadline_s:g} s {what} for {reason}"
