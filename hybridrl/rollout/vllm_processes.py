"""The engine's processes as the front process sees them."""

import asyncio
import os
import select
import time
from collections.abc import Callable
from multiprocessing import connection
from typing import Any

import psutil


class EngineProcesses:
  """Watches, measures and ends what an AsyncLLM has spawned."""

  def __init__(self, engine: Any):
    self._children = list(engine.engine_core.resources.engine_manager.processes)
    self._readers: list[int] = []

  @property
  def pids(self) -> tuple[int, ...]:
    return tuple(child.pid for child in self._children)

  def watch(self, on_exit: Callable[[str], None]) -> None:
    """Calls on_exit with the cause, in this loop, when a process ends."""
    loop = asyncio.get_running_loop()
    for child in self._children:

      def exited(child: Any = child) -> None:
        loop.remove_reader(child.sentinel)
        self._readers.remove(child.sentinel)
        on_exit(self.exit_text())

      # The sentinel becomes readable when the process is gone: no polling.
      loop.add_reader(child.sentinel, exited)
      self._readers.append(child.sentinel)

  def exit_text(self) -> str:
    """Which process ended, and how."""
    for child in self._children:
      if connection.wait([child.sentinel], timeout=0):
        return (
          f"engine core (pid {child.pid}) ended with exit code"
          f" {_exit_code(child)}"
        )
    return "the engine core stopped answering; its log says why"

  def unwatch(self) -> None:
    loop = asyncio.get_running_loop()
    for sentinel in self._readers:
      loop.remove_reader(sentinel)
    self._readers.clear()

  def resident_bytes(self) -> int:
    """Of this process, the engine core and its descendants."""
    total = 0
    for pid in (os.getpid(), *self.pids):
      try:
        process = psutil.Process(pid)
        family = [process]
        if pid != os.getpid():
          family += process.children(recursive=True)
        total += sum(member.memory_info().rss for member in family)
      except psutil.NoSuchProcess:
        continue
    return total

  def kill(self) -> None:
    """Ends whatever of them is still there. Blocks for at most seconds."""
    for child in self._children:
      if child.is_alive():
        for grandchild in psutil.Process(child.pid).children(recursive=True):
          grandchild.kill()
        child.kill()
      child.join(2.0)


def _exit_code(child: Any) -> int | None:
  """Of a process that has ended; blocks for at most a second.

  vLLM's monitor thread collects it too: while that thread is between waitpid
  and storing the code, nobody else can see it.
  """
  for _ in range(100):
    if child.exitcode is not None:
      break
    time.sleep(0.01)
  return child.exitcode


def end_with(parent_pid: int) -> None:
  """Waits until the parent is gone, then ends this process."""
  try:
    handle = os.pidfd_open(parent_pid)
  except ProcessLookupError:
    pass  # It is gone already.
  else:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
  os._exit(1)
