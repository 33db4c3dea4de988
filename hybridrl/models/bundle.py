"""Published weights: one flat byte buffer, its manifest and a canary.

The learner writes a bundle, replicas load it. Names and layouts are Hugging
Face's; a tied tensor is in it once, under the name of the embedding.
"""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np


@dataclasses.dataclass(frozen=True)
class TensorSpec:
  """Where one tensor lies in a bundle's buffer.

  Attributes:
    name: Hugging Face parameter name.
    dtype: numpy name of the wire dtype, 'float32' or 'bfloat16'.
    shape: shape in Hugging Face's layout.
    offset: first byte in the buffer.
    nbytes: number of bytes.
  """

  name: str
  dtype: str
  shape: tuple[int, ...]
  offset: int
  nbytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canary:
  """A prompt whose log-probs prove that weights arrived where they belong.

  Attributes:
    token_ids: [P] int32.
    log_probs: [P - 1] float32, the learner's log p(token[i+1] | token[:i+1])
      at temperature 1.
  """

  token_ids: np.ndarray
  log_probs: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightBundle:
  """One published version of the policy's weights.

  Attributes:
    version: number of the publication, strictly increasing over the whole run.
    specs: the manifest.
    checksum: crc32 of the whole buffer.
    buffer: [nbytes] uint8 array, or (between processes) a handle that the
      receiving side resolves to one, such as a Ray object reference.
    canary: see Canary; None where the publisher has none.
  """

  version: int
  specs: tuple[TensorSpec, ...]
  checksum: int
  buffer: Any
  canary: Canary | None = None


def pack(
  named_arrays: Sequence[tuple[str, np.ndarray]],
  version: int,
  *,
  canary: Canary | None = None,
  out: np.ndarray | None = None,
) -> WeightBundle:
  """Copies arrays into one buffer (`out`, if given and large enough)."""
  specs, offset = [], 0
  for name, array in named_arrays:
    specs.append(
      TensorSpec(name, array.dtype.name, array.shape, offset, array.nbytes)
    )
    # 64-byte alignment lets the receiver view any tensor in place.
    offset += -(-array.nbytes // 64) * 64
  buffer = out if out is not None else np.zeros(offset, np.uint8)
  if buffer.nbytes != offset:
    raise ValueError(f"buffer of {buffer.nbytes} bytes, {offset} needed")
  for spec, (_, array) in zip(specs, named_arrays, strict=True):
    view = buffer[spec.offset : spec.offset + spec.nbytes]
    view.view(array.dtype).reshape(array.shape)[...] = array
  return WeightBundle(
    version=version,
    specs=tuple(specs),
    checksum=zlib.crc32(buffer.data),
    buffer=buffer,
    canary=canary,
  )


def unpack(bundle: WeightBundle) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (name, view into the buffer); raises on a wrong checksum."""
  buffer = np.asarray(bundle.buffer)
  found = zlib.crc32(buffer.data)
  if found != bundle.checksum:
    raise ValueError(
      f"weights of version {bundle.version} arrived damaged: crc32"
      f" {found:#010x}, expected {bundle.checksum:#010x}"
    )
  for spec in bundle.specs:
    raw = buffer[spec.offset : spec.offset + spec.nbytes]
    dtype = (
      ml_dtypes.bfloat16 if spec.dtype == "bfloat16" else np.dtype(spec.dtype)
    )
    yield spec.name, raw.view(dtype).reshape(spec.shape)
