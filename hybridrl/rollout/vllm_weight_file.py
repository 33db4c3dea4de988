"""The shared memory through which weights reach the engine's processes."""

import mmap
import os
from typing import Any

import numpy as np

from hybridrl.models.bundle import WeightBundle


class WeightFile:
  """One buffer in memory, written once per version and reused.

  RPC arguments of vLLM carry no tensors; a file is one copy for all workers of
  a replica. This one has no name in any file system: the workers open it
  through /proc, it is gone when the processes are, however they end, and it is
  no matter how small a container's /dev/shm is.

  Pages that exist already are an order of magnitude cheaper to write than
  fresh ones, so the file keeps its size until `shrink`.
  """

  def __init__(self, name: str):
    self._fd = os.memfd_create(f"hybridrl-{name}")
    self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
    self._view: np.ndarray | None = None

  def write(self, bundle: WeightBundle) -> dict[str, Any]:
    """Copies the bundle's bytes; returns what the receiver needs, plain data.

    The checksum travels along unverified: the receiver checks what it reads.

    Raises:
      ValueError: the buffer is not resolved to bytes.
    """
    source = np.asarray(bundle.buffer)
    if source.dtype != np.uint8 or source.ndim != 1:
      raise ValueError(
        f"weights of version {bundle.version}: buffer must be [nbytes] uint8,"
        f" got {source.dtype} {source.shape}"
      )
    if self._view is None or self._view.nbytes != source.nbytes:
      self._view = None
      os.ftruncate(self._fd, source.nbytes)
      # The array keeps the mapping alive; without the array it is unmapped.
      self._view = np.frombuffer(mmap.mmap(self._fd, source.nbytes), np.uint8)
    self._view[:] = source
    return {
      "path": self.path,
      "nbytes": source.nbytes,
      "version": bundle.version,
      "checksum": bundle.checksum,
      "names": [spec.name for spec in bundle.specs],
      "dtypes": [spec.dtype for spec in bundle.specs],
      "shapes": [list(spec.shape) for spec in bundle.specs],
      "offsets": [spec.offset for spec in bundle.specs],
      "sizes": [spec.nbytes for spec in bundle.specs],
    }

  def shrink(self) -> None:
    """Gives the memory back; the next write takes it again."""
    self._view = None
    if self._fd >= 0:
      os.ftruncate(self._fd, 0)

  def remove(self) -> None:
    """Idempotent."""
    self._view = None
    if self._fd >= 0:
      os.close(self._fd)
      self._fd = -1
