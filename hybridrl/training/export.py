"""The durable export of a model's weights.

An export is a folder with `orbax/`, the weights as a dict under Hugging Face
names, from which a late or restarted replica loads, and `hf/`, a Hugging Face
folder that other programs can open. Both hold a tied matrix once.
"""

import os
import pathlib
import shutil

import numpy as np
import orbax.checkpoint as ocp

from hybridrl.models.config import ModelConfig, read_config
from hybridrl.models.decoder import Params
from hybridrl.models.hf import named_arrays, save_hf

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf", ".pt")


def write_export(
  path: str | pathlib.Path,
  config: ModelConfig,
  params: Params,
  source_dir: str | pathlib.Path,
) -> None:
  """Writes an export; whoever sees `path` sees all of it.

  Args:
    path: folder to make; replaced if it exists.
    config: shape of the model.
    params: float32 weights.
    source_dir: model folder whose tokenizer files go along.
  """
  path = pathlib.Path(path).absolute()
  partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
  shutil.rmtree(partial, ignore_errors=True)
  partial.mkdir(parents=True)
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(partial / "orbax", dict(named_arrays(params, config)))
  save_hf(partial / "hf", config, params)
  _copy_tokenizer(pathlib.Path(source_dir), partial / "hf")
  if path.exists():
    old = path.with_name(f".{path.name}.old-{os.getpid()}")
    os.rename(path, old)
    os.rename(partial, path)
    shutil.rmtree(old)
  else:
    os.rename(partial, path)


def _copy_tokenizer(source: pathlib.Path, target: pathlib.Path) -> None:
  """Copies all plain files that are neither weights nor config.json."""
  for file in source.iterdir():
    is_weight = file.suffix in _WEIGHT_SUFFIXES or ".safetensors" in file.name
    if file.is_file() and not is_weight and file.name != "config.json":
      shutil.copy2(file, target / file.name)


def read_export(
  path: str | pathlib.Path,
) -> tuple[ModelConfig, list[tuple[str, np.ndarray]]]:
  """Reads an export's configuration and weights.

  Returns:
    The configuration and (Hugging Face name, [shape] float32) pairs, in the
    order of ModelConfig.tensor_shapes.

  Raises:
    ValueError: there is no export at the path.
  """
  path = pathlib.Path(path).absolute()
  if not (path / "orbax").is_dir():
    raise ValueError(f"{path}: no weight export there")
  config = read_config(path / "hf")
  target = {
    name: np.zeros(shape, np.float32)
    for name, shape in config.tensor_shapes().items()
  }
  with ocp.StandardCheckpointer() as checkpointer:
    weights = checkpointer.restore(path / "orbax", target)
  return config, [(name, np.asarray(weights[name])) for name in target]
