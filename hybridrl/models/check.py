"""Checks a model folder from its headers alone, before anything starts."""

import json
import pathlib
import struct
from typing import Any

from hybridrl.models.config import read_config

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_FLOAT_TYPES = ("F64", "F32", "F16", "BF16")
# Hundreds of times the header of the largest models; a larger number means
# that the file is something else.
_MAX_HEADER_BYTES = 100 * 2**20


def check_model_dir(model_dir: str | pathlib.Path) -> None:
  """Checks that a folder holds a whole model that this package can load.

  Reads config.json and safetensors headers, no tensor data.

  Raises:
    ValueError: a file or tensor is missing, cut short or of the wrong shape or
      type; the message names file and tensor.
  """
  model_dir = pathlib.Path(model_dir)
  if not model_dir.is_dir():
    raise ValueError(f"{model_dir}: no such model folder")
  config = read_config(model_dir)
  files = tensor_files(model_dir)
  listing = model_dir / (_INDEX if (model_dir / _INDEX).exists() else _SINGLE)
  headers = {}
  for name, expected in config.tensor_shapes().items():
    if name not in files:
      raise ValueError(f"{listing}: tensor {name} is missing")
    path = files[name]
    if path not in headers:
      headers[path] = read_header(path)
    entry = headers[path].get(name)
    if entry is None:
      raise ValueError(f"{path}: tensor {name} is missing")
    found = tuple(entry["shape"])
    if found != expected:
      raise ValueError(
        f"{path}: tensor {name} has shape {found}, but config.json implies"
        f" {expected}"
      )
    if entry["dtype"] not in _FLOAT_TYPES:
      raise ValueError(
        f"{path}: tensor {name} is {entry['dtype']}, not one of {_FLOAT_TYPES}"
      )


def tensor_files(model_dir: pathlib.Path) -> dict[str, pathlib.Path]:
  """Tensor name -> file that holds it, by the index or the single file.

  Raises:
    ValueError: neither file exists, or one is broken.
  """
  index = model_dir / _INDEX
  if index.exists():
    try:
      weight_map = json.loads(index.read_text())["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
      raise ValueError(f"{index}: no valid weight_map ({error})") from error
    return {name: model_dir / file for name, file in weight_map.items()}
  single = model_dir / _SINGLE
  return {
    name: single for name in read_header(single) if name != "__metadata__"
  }


def read_header(path: pathlib.Path) -> dict[str, Any]:
  """The JSON header of a safetensors file.

  Raises:
    ValueError: the file is missing, is not safetensors, or is shorter than its
      header says.
  """
  try:
    size = path.stat().st_size
    with path.open("rb") as file:
      (length,) = struct.unpack("<Q", file.read(8))
      if length > min(size, _MAX_HEADER_BYTES):
        raise ValueError("the header is cut short")
      header = json.loads(file.read(length))
  except FileNotFoundError as error:
    raise ValueError(f"{path}: no such file") from error
  except (ValueError, struct.error) as error:
    raise ValueError(f"{path}: not a safetensors file ({error})") from error
  if not isinstance(header, dict):
    raise ValueError(f"{path}: not a safetensors file")
  end = max(
    (e["data_offsets"][1] for k, e in header.items() if k != "__metadata__"),
    default=0,
  )
  if 8 + length + end > size:
    raise ValueError(
      f"{path}: has {size} bytes, its header promises {8 + length + end}"
    )
  return header
