"""What hybridrl adds to vLLM's worker: sleep and wake that free memory on CPU.

vLLM's own sleep mode does nothing on CPU. `WorkerExtension` is mixed into the
worker class by vLLM (`worker_extension_cls`); importing this module in the
worker's process also registers the weight-transfer engine there.
"""

import ctypes
import os
import threading
from collections.abc import Iterable

import psutil
import torch

from hybridrl.rollout import vllm_compact, vllm_processes, vllm_transfer

vllm_transfer.register()
vllm_compact.register_kernels()


# vLLM imports this module before the worker loads weights or takes KV memory.
_RSS_BEFORE_LOAD = psutil.Process().memory_info().rss


class WorkerExtension:
  """Methods that the replica calls by `collective_rpc`."""

  def hybridrl_watch_parent(self, parent_pid: int) -> int:
    """Ends this process when the replica's front process is gone.

    A killed front process cannot shut its engine down, and an engine without
    one would keep its memory for ever.

    Returns:
      This process's id.
    """
    thread = threading.Thread(
      target=vllm_processes.end_with, args=(parent_pid,), daemon=True
    )
    thread.start()
    return os.getpid()

  def hybridrl_memory_before_load(self) -> int:
    """Resident bytes of this process before it held weights or KV cache."""
    return _RSS_BEFORE_LOAD

  def hybridrl_sleep(self) -> None:
    """Frees KV cache and weights (CPU). Nothing may be in flight."""
    for module in self.model_runner.model.modules():  # type: ignore
      # The closure holds the packed copy of a linear layer's weights.
      if getattr(module, "cpu_linear", None) is not None:
        module.cpu_linear = None
    parameters = self.model_runner.model.parameters()  # type: ignore
    _release(parameters, _freed(self, "weights"))
    _release(self.model_runner.kv_caches, _freed(self, "kv"))  # type: ignore
    trim_heap()

  def hybridrl_wake_weights(self) -> None:
    """Takes memory for the weights; their contents are undefined."""
    freed = _freed(self, "weights")
    for storage, nbytes in freed:
      storage.resize_(nbytes)
    freed.clear()

  def hybridrl_wake_kv_cache(self) -> None:
    """Takes memory for the KV cache, zeroed."""
    freed = _freed(self, "kv")
    for storage, nbytes in freed:
      storage.resize_(nbytes)
      # Uninitialised memory may hold NaN, which a masked position would
      # spread (0 * NaN).
      torch.empty(0, dtype=torch.uint8).set_(storage).zero_()
    freed.clear()


def trim_heap() -> None:
  """Returns free heap pages to the system; freed tensors stay resident else."""
  ctypes.CDLL("libc.so.6").malloc_trim(0)


_Freed = list[tuple[torch.UntypedStorage, int]]


def _freed(worker, kind: str) -> _Freed:
  """Storages of this kind that are released now, with their sizes in bytes."""
  if not hasattr(worker, "_hybridrl_freed"):
    worker._hybridrl_freed = {"weights": [], "kv": []}
  return worker._hybridrl_freed[kind]


def _release(tensors: Iterable[torch.Tensor], freed: _Freed) -> None:
  """Frees the tensors' memory; layers may share storage, tied weights do."""
  for tensor in tensors:
    storage = tensor.untyped_storage()
    if nbytes := storage.nbytes():
      freed.append((storage, nbytes))
      storage.resize_(0)
