"""Peak memory of a run: this process and everything that it started."""

import pathlib
import resource
import threading

import psutil

# Reading two small files a process: cheap enough to look every few seconds.
_INTERVAL_S = 3.0


def tree_bytes(root: psutil.Process | None = None) -> int:
  """Resident memory of a process and its descendants, in bytes.

  Pages that only one process maps are counted per process. Shared pages
  (libraries, Ray's object store) are counted once, as the largest share that
  any of the processes maps.
  """
  root = root or psutil.Process()
  private, largest_shared = 0, 0
  for process in [root, *root.children(recursive=True)]:
    try:
      fields = pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
      continue  # it ended meanwhile
    resident, shared = int(fields[1]), int(fields[2])
    private += resident - shared
    largest_shared = max(largest_shared, shared)
  return (private + largest_shared) * resource.getpagesize()


class PeakMemory:
  """Watches from a thread; use as a context manager, then read `bytes`."""

  def __init__(self, interval_s: float = _INTERVAL_S):
    self.bytes = 0
    self._interval_s = interval_s
    self._end = threading.Event()
    self._thread = threading.Thread(
      target=self._watch, name="peak memory", daemon=True
    )

  def __enter__(self) -> "PeakMemory":
    self._thread.start()
    return self

  def __exit__(self, *unused: object) -> None:
    self._end.set()
    self._thread.join()

  def _watch(self) -> None:
    while True:
      self.bytes = max(self.bytes, tree_bytes())
      if self._end.wait(self._interval_s):
        return
