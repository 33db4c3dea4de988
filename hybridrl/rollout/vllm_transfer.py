"""vLLM weight-transfer engine that reads versions from a shared-memory file.

Runs in the engine's worker processes. It is vLLM's own extension point
(`WeightTransferEngineFactory.register_engine`), driven by
init_weight_transfer_engine / start_weight_update / update_weights /
finish_weight_update.
"""

import dataclasses
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer import base, factory
from vllm.model_executor.model_loader import reload

BACKEND = "hybridrl_file"

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclasses.dataclass
class FileInit(base.WeightTransferInitInfo):
  """Nothing has to be agreed on."""


@dataclasses.dataclass
class FileUpdate(base.WeightTransferUpdateInfo):
  """What `WeightFile.write` returns; lists are parallel, one entry a tensor."""

  path: str
  nbytes: int
  version: int
  checksum: int
  names: list[str]
  dtypes: list[str]
  shapes: list[list[int]]
  offsets: list[int]
  sizes: list[int]


class FileTransferEngine(base.WeightTransferEngine[FileInit, FileUpdate]):
  """Loads whole checkpoints by vLLM's layer-wise reload."""

  init_info_cls = FileInit
  update_info_cls = FileUpdate

  def init_transfer_engine(self, init_info: FileInit) -> None:
    del init_info

  def start_weight_update(self) -> None:
    reload.initialize_layerwise_reload(self.model)

  def receive_weights(self, update_info: FileUpdate) -> None:
    """Checks the bytes, then loads every tensor.

    Raises:
      ValueError: damaged bytes, or parameters of the model that are missing.
    """
    info = update_info
    # Copy-on-write, so that torch gets a writable array and the file stays as
    # it is.
    raw = np.memmap(info.path, np.uint8, "c", shape=(info.nbytes,))
    found = zlib.crc32(raw.data)
    if found != info.checksum:
      raise ValueError(
        f"weights of version {info.version} arrived damaged: crc32"
        f" {found:#010x}, expected {info.checksum:#010x}"
      )
    expected = {name for name, _ in self.model.named_parameters()}
    if is_tied(self.model):
      expected.discard("lm_head.weight")
    loaded = self.model.load_weights(  # type: ignore[operator]
      _tensors(raw, info)
    )
    if loaded is not None and (missing := sorted(expected - loaded)):
      raise ValueError(
        f"weights of version {info.version} lack {', '.join(missing[:5])}"
        + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
      )

  def finish_weight_update(self) -> None:
    reload.finalize_layerwise_reload(self.model, self.model_config)
    retie_lm_head(self.model)

  def shutdown(self) -> None:
    pass


def is_tied(model: Any) -> bool:
  """Whether the output projection is the embedding."""
  config = getattr(model, "config", None)
  return bool(getattr(config, "tie_word_embeddings", False))


def retie_lm_head(model: Any) -> None:
  """Points a tied lm_head at the embedding again and re-packs it.

  The layer-wise reload knows no aliases: it writes the embedding and leaves
  lm_head with the packed copy of the *old* weights, silently (vLLM 0.32; its
  own `reload_weights` does the same).
  """
  if not is_tied(model):
    return
  head, embedding = model.lm_head, model.model.embed_tokens
  head.weight = embedding.weight
  head.quant_method.process_weights_after_loading(head)


def register() -> None:
  """Makes the engine known to vLLM in this process. Idempotent."""
  if BACKEND not in factory.WeightTransferEngineFactory._registry:
    factory.WeightTransferEngineFactory.register_engine(
      BACKEND, FileTransferEngine
    )


def _tensors(
  raw: np.ndarray, info: FileUpdate
) -> Iterator[tuple[str, torch.Tensor]]:
  buffer = torch.from_numpy(raw)
  rows = zip(
    info.names, info.dtypes, info.shapes, info.offsets, info.sizes, strict=True
  )
  for name, dtype, shape, offset, size in rows:
    tensor = buffer[offset : offset + size].view(_DTYPES[dtype])
    yield name, tensor.view(shape)
