"""The shared-memory file through which weights reach the engine's processes."""

import os
import re
import uuid
from typing import Any

import numpy as np

from hybridrl.models.bundle import WeightBundle

# RPC arguments of vLLM carry no tensors, and a file in shared memory is one
# copy for all workers of a replica.
_DIRECTORY = "/dev/shm"


class WeightFile:
  """One file, written once per version and reused.

  Pages that exist already are an order of magnitude cheaper to write than
  fresh ones, so the file keeps its size until `shrink`.
  """

  def __init__(self, name: str):
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    self.path = os.path.join(
      _DIRECTORY, f"hybridrl-{safe}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    )
    self._map: np.memmap | None = None

  def write(self, bundle: WeightBundle) -> dict[str, Any]:
    """Copies the bundle's bytes; returns what the receiver needs, plain data.

    The checksum travels along unverified: the receiver checks what it reads.
    """
    source = np.asarray(bundle.buffer)
    if source.dtype != np.uint8 or source.ndim != 1:
      raise ValueError(
        f"weights of version {bundle.version}: buffer must be [nbytes] uint8,"
        f" got {source.dtype} {source.shape}"
      )
    if self._map is None or self._map.nbytes != source.nbytes:
      self._map = None
      with open(self.path, "wb") as file:
        file.truncate(source.nbytes)
      self._map = np.memmap(self.path, np.uint8, "r+", shape=source.shape)
    self._map[:] = source
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
    self._map = None
    if os.path.exists(self.path):
      os.truncate(self.path, 0)

  def remove(self) -> None:
    self._map = None
    if os.path.exists(self.path):
      os.unlink(self.path)
