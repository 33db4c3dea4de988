"""What hybridrl adds to vLLM's worker: sleep and wake that free memory on CPU.

vLLM's own sleep mode does nothing on CPU. `WorkerExtension` is mixed into the
worker class by vLLM (`worker_extension_cls`); importing this module in the
worker's process also registers the weight-transfer engine there.
"""

import ctypes
import os
import select
import threading

import torch

from hybridrl.rollout import vllm_transfer

vllm_transfer.register()


class WorkerExtension:
  """Methods that the replica calls by `collective_rpc`."""

  def hybridrl_watch_parent(self, parent_pid: int, path: str) -> int:
    """Ends this process when the replica's front process is gone.

    A killed front process cannot shut its engine down, and an engine without
    one would keep its memory for ever. `path` is removed then, too.

    Returns:
      This process's id.
    """
    thread = threading.Thread(
      target=_end_with, args=(parent_pid, path), daemon=True
    )
    thread.start()
    return os.getpid()

  def hybridrl_sleep(self) -> None:
    """Frees KV cache and weights (CPU). Nothing may be in flight."""
    sizes = {}
    for module in self.model_runner.model.modules():  # type: ignore
      # The closure holds the packed copy of a linear layer's weights.
      if getattr(module, "cpu_linear", None) is not None:
        module.cpu_linear = None
    for storage in _weight_storages(self):
      sizes[storage] = storage.nbytes()
      storage.resize_(0)
    self._hybridrl_weight_sizes = sizes
    kv_sizes = {}
    for storage in _kv_storages(self):
      kv_sizes[storage] = storage.nbytes()
      storage.resize_(0)
    self._hybridrl_kv_sizes = kv_sizes
    trim_heap()

  def hybridrl_wake_weights(self) -> None:
    """Takes memory for the weights; their contents are undefined."""
    for storage, nbytes in self._hybridrl_weight_sizes.items():
      storage.resize_(nbytes)
    self._hybridrl_weight_sizes = {}

  def hybridrl_wake_kv_cache(self) -> None:
    """Takes memory for the KV cache, zeroed."""
    for storage, nbytes in self._hybridrl_kv_sizes.items():
      storage.resize_(nbytes)
      # Uninitialised memory may hold NaN, which a masked position would
      # spread (0 * NaN).
      torch.empty(0, dtype=torch.uint8).set_(storage).zero_()
    self._hybridrl_kv_sizes = {}


def trim_heap() -> None:
  """Returns free heap pages to the system; freed tensors stay resident else."""
  ctypes.CDLL("libc.so.6").malloc_trim(0)


def _weight_storages(worker) -> list[torch.UntypedStorage]:
  return _unique(worker.model_runner.model.parameters())


def _kv_storages(worker) -> list[torch.UntypedStorage]:
  return _unique(worker.model_runner.kv_caches)


def _unique(tensors) -> list[torch.UntypedStorage]:
  """Distinct storages with memory: layers may share one, and tied weights."""
  found = {}
  for tensor in tensors:
    storage = tensor.untyped_storage()
    if storage.nbytes():
      found.setdefault(storage.data_ptr(), storage)
  return list(found.values())


def _end_with(parent_pid: int, path: str) -> None:
  try:
    handle = os.pidfd_open(parent_pid)
  except ProcessLookupError:
    pass  # It is gone already.
  else:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
  if os.path.exists(path):
    os.unlink(path)
  os._exit(1)
