"""A grading worker as its parent sees it: ask, and kill at the deadline."""

import asyncio
import base64
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
# Longest reply line; a reply holds a score or a traceback.
_REPLY_LIMIT_BYTES = 1 << 20
# Importing sympy takes one to two seconds on a free core.
_START_TIMEOUT_S = 120.0


class GraderError(Exception):
  """Grading cannot go on: a worker does not start, or a function is wrong."""


class WorkerDied(Exception):
  """The worker ended or was killed within a request."""


class WorkerProcess:
  """One worker process, started at need and restarted after a kill."""

  def __init__(
    self,
    *,
    memory_limit_mib: int,
    request_cpu_s: int,
    functions: Sequence[str] = (),
  ):
    """Starts nothing.

    Args:
      memory_limit_mib: address space of the process.
      request_cpu_s: processor seconds of one request.
      functions: 'module:function' of each reward function, imported at start.
    """
    self._arguments = (str(memory_limit_mib), str(request_cpu_s))
    self._functions = tuple(functions)
    self._process: asyncio.subprocess.Process | None = None
    self._stderr: Any = None

  async def start(self) -> None:
    """Starts the process, unless it runs, and proves that it grades.

    Raises:
      GraderError: it does not answer or answers wrongly, or a reward function
        cannot be imported.
    """
    if self._process is not None:
      return
    self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (kill closes it)
    path = os.pathsep.join(
      [_PACKAGE_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    self._process = await asyncio.create_subprocess_exec(
      sys.executable,
      "-m",
      "hybridrl.rewards.worker",
      *self._arguments,
      stdin=asyncio.subprocess.PIPE,
      stdout=asyncio.subprocess.PIPE,
      stderr=self._stderr,
      env={**os.environ, "PYTHONPATH": path},
      limit=_REPLY_LIMIT_BYTES,
    )
    probe = {
      "preload": self._functions,
      "function": None,
      "gold": r"\frac{1}{3}",
      "answer": r"\frac13",
    }
    try:
      async with asyncio.timeout(_START_TIMEOUT_S):
        score = await self._exchange(probe)
    except Exception as error:
      tail = self._stderr_tail()
      await self.kill()
      raise GraderError(
        f"a grading worker does not start: {error!r}; its last output: {tail}"
      ) from error
    except asyncio.CancelledError:
      await self.kill()
      raise
    if score != 1.0:
      await self.kill()
      raise GraderError(r"a grading worker says \frac13 is not \frac{1}{3}")

  async def ask(
    self, request: Mapping[str, Any], deadline_s: float
  ) -> float | None:
    """The request's score, or None if the deadline or the worker's life ended.

    The process is gone afterwards in that case, and if this is cancelled.
    """
    await self.start()
    try:
      async with asyncio.timeout(deadline_s):
        return await self._exchange(request)
    except (TimeoutError, WorkerDied):
      await self.kill()
      return None
    except asyncio.CancelledError:
      await self.kill()
      raise

  async def kill(self) -> None:
    """Ends the process. Idempotent."""
    process, self._process = self._process, None
    if process is None:
      return
    if process.returncode is None:
      process.kill()
    await process.wait()
    self._stderr.close()

  async def _exchange(self, request: Mapping[str, Any]) -> float:
    process = self._process
    assert process is not None and process.stdin and process.stdout
    try:
      process.stdin.write(json.dumps(request).encode() + b"\n")
      await process.stdin.drain()
      line = await process.stdout.readline()
    except (BrokenPipeError, ConnectionResetError) as error:
      raise WorkerDied("its pipe is closed") from error
    if not line.endswith(b"\n"):
      raise WorkerDied("it ended within a request")
    reply = json.loads(line)
    if "error" not in reply:
      return reply["score"]
    raise _revived(reply)

  def _stderr_tail(self) -> str:
    size = self._stderr.seek(0, os.SEEK_END)
    self._stderr.seek(max(0, size - 1000))
    return self._stderr.read().decode(errors="replace").strip() or "nothing"


def _revived(reply: Mapping[str, Any]) -> Exception:
  """The worker's exception under its own type, with its traceback as a note."""
  if reply["exception"] is None:
    return GraderError(f"the reward function failed:\n{reply['error']}")
  error = pickle.loads(base64.b64decode(reply["exception"]))
  error.add_note(f"in a grading worker:\n{reply['error']}")
  return error
