"""An asyncio event loop on virtual time: a test of an hour runs in an instant.

Time stands still while callbacks run and jumps to the next timer when nothing
is left to do now, so the order of events depends on the program alone, never
on the machine. What would hang a real loop is an error here:

  * VirtualDeadlock: tasks wait, but no timer, socket or thread can wake them.
  * VirtualLivelock: the loop turns without end and time does not advance.
  * VirtualTimeLimit: virtual time passed the limit (a heartbeat that goes on
    for ever beside a program that does not end).

Real sockets and `run_in_executor` work: while a thread works, time stands
still. A child process or a thread that is started by other means is not seen.
"""

import asyncio
import contextlib
import contextvars
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Turns of the loop at one instant before it counts as a livelock. A healthy
# test of ten thousand tasks needs some tens; a spin reaches this in a second.
MAX_TURNS_PER_INSTANT = 100_000
TIME_LIMIT_S = 1e6


class VirtualDeadlock(RuntimeError):
  """Nothing can ever wake the tasks that wait."""


class VirtualLivelock(RuntimeError):
  """The loop turns, but time does not advance."""


class VirtualTimeLimit(RuntimeError):
  """Virtual time passed the limit of the loop."""


class _VirtualSelector(selectors.BaseSelector):
  """Turns the loop's waits into jumps of its clock."""

  def __init__(self, max_turns: int, time_limit_s: float):
    self._real = selectors.DefaultSelector()
    self._max_turns = max_turns
    self._time_limit_s = time_limit_s
    self._turns = 0
    self.now_s = 0.0
    self.num_threads = 0

  def register(self, fileobj, events, data=None):
    return self._real.register(fileobj, events, data)

  def unregister(self, fileobj):
    return self._real.unregister(fileobj)

  def modify(self, fileobj, events, data=None):
    return self._real.modify(fileobj, events, data)

  def get_map(self):
    return self._real.get_map()

  def close(self):
    self._real.close()

  def select(self, timeout=None):
    ready = self._real.select(0)
    if ready or timeout is not None and timeout <= 0:
      self._turn()
      return ready
    if self.num_threads:
      # The result of a thread arrives over the loop's own socket.
      return self._real.select(None)
    if timeout is None:
      raise VirtualDeadlock(
        f"at {self.now_s:g} s every task waits and no timer is set"
      )
    self._turns = 0
    self.now_s += timeout
    if self.now_s > self._time_limit_s:
      raise VirtualTimeLimit(
        f"virtual time passed its limit of {self._time_limit_s:g} s"
      )
    return ready

  def _turn(self):
    self._turns += 1
    if self._turns > self._max_turns:
      self._turns = 0
      raise VirtualLivelock(
        f"at {self.now_s:g} s the loop turned {self._max_turns} times and time"
        " did not advance"
      )


class VirtualLoop(asyncio.SelectorEventLoop):
  """See the module docstring. `time()` begins at 0."""

  def __init__(
    self,
    *,
    max_turns_per_instant: int = MAX_TURNS_PER_INSTANT,
    time_limit_s: float = TIME_LIMIT_S,
  ):
    self._virtual = _VirtualSelector(max_turns_per_instant, time_limit_s)
    super().__init__(self._virtual)

  def time(self) -> float:
    return self._virtual.now_s

  def run_in_executor(self, executor, func, *args):
    future = super().run_in_executor(executor, func, *args)
    self._virtual.num_threads += 1

    def done(_):
      self._virtual.num_threads -= 1

    # An empty context: the callback must not keep the caller's variables.
    future.add_done_callback(done, context=contextvars.Context())
    return future

  async def shutdown_default_executor(self):
    # Joins the executor in a thread that run_in_executor does not count.
    self._virtual.num_threads += 1
    try:
      await super().shutdown_default_executor()
    finally:
      self._virtual.num_threads -= 1


def run_virtual(
  main: Coroutine[Any, Any, T],
  *,
  time_limit_s: float = TIME_LIMIT_S,
  max_turns_per_instant: int = MAX_TURNS_PER_INSTANT,
) -> T:
  """`asyncio.run` on a fresh VirtualLoop.

  An exception that no task awaited (a lost task, a failing callback) is an
  error of the test too: the first one is raised if `main` succeeds.
  """
  lost: list[BaseException] = []

  def factory() -> VirtualLoop:
    loop = VirtualLoop(
      time_limit_s=time_limit_s, max_turns_per_instant=max_turns_per_instant
    )
    loop.set_exception_handler(_collector(lost))
    return loop

  runner = asyncio.Runner(loop_factory=factory)
  try:
    result = runner.run(main)
  except BaseException:
    # A second stall while tasks are being cancelled must not hide the first.
    with contextlib.suppress(VirtualDeadlock, VirtualLivelock):
      runner.close()
    raise
  runner.close()
  if lost:
    raise lost[0]
  return result


def _collector(
  lost: list[BaseException],
) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
  def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]):
    del loop
    error = context.get("exception")
    lost.append(error or RuntimeError(context["message"]))

  return handle
