"""The door between generate() calls and the engine."""

import asyncio
import collections


class Turnstile:
  """Lets at most `capacity` requests in, none while closed; first come first.

  Requests that wait here cost the engine nothing, can be cancelled without
  it, and enter after a load under the new version. Keeping a slot of the
  engine free for probes is its caller's doing.
  """

  def __init__(self, capacity: int):
    self._free = capacity
    self._open = False
    self._error: Exception | None = None
    self._waiting: collections.OrderedDict[str, asyncio.Future[bool]] = (
      collections.OrderedDict()
    )

  async def enter(self, key: str) -> bool:
    """Waits for a slot; False if cancelled meanwhile.

    Raises:
      Exception: the one given to `fail`.
    """
    if self._error is not None:
      raise self._error
    if self._open and self._free > 0 and not self._waiting:
      self._free -= 1
      return True
    future = asyncio.get_running_loop().create_future()
    self._waiting[key] = future
    try:
      return await future
    except asyncio.CancelledError:
      self._waiting.pop(key, None)
      granted = future.done() and not future.cancelled()
      if granted and future.exception() is None and future.result():
        self.leave()
      raise

  def leave(self) -> None:
    self._free += 1
    self._grant()

  def open(self) -> None:
    self._open = True
    self._grant()

  def close(self) -> None:
    self._open = False

  def cancel(self, key: str) -> None:
    """Turns a waiting request away; no effect on one that is in."""
    future = self._waiting.pop(key, None)
    if future is not None and not future.done():
      future.set_result(False)

  def fail(self, error: Exception) -> None:
    """Makes all present and later `enter` calls raise."""
    self._error = error
    for future in self._waiting.values():
      if not future.done():
        future.set_exception(error)
    self._waiting.clear()

  def _grant(self) -> None:
    while self._open and self._free > 0 and self._waiting:
      _, future = self._waiting.popitem(last=False)
      if not future.done():
        self._free -= 1
        future.set_result(True)
