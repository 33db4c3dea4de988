"""Reading and writing Hugging Face model folders, without torch.

A folder holds config.json and either model.safetensors or shards listed in
model.safetensors.index.json.
"""

import json
import os
import pathlib
from collections.abc import Iterator

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import safetensors
from safetensors.numpy import save_file

from hybridrl.models.check import check_model_dir, tensor_files
from hybridrl.models.config import ModelConfig, read_config
from hybridrl.models.decoder import LAYER_NAMES, Params

_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def load_hf(model_dir: str | pathlib.Path) -> tuple[ModelConfig, Params]:
  """Reads a model folder.

  Args:
    model_dir: folder with config.json and safetensors files of any float type.

  Returns:
    The configuration and float32 parameters.

  Raises:
    ValueError: a file or tensor is missing, has another shape than config.json
      implies or is no float; the message names file and tensor.
  """
  model_dir = pathlib.Path(model_dir)
  check_model_dir(model_dir)
  config = read_config(model_dir)
  shapes = config.tensor_shapes()
  files = tensor_files(model_dir)
  loaded = {}
  for path in sorted({files[name] for name in shapes}):
    with safetensors.safe_open(path, framework="numpy") as file:
      for name in shapes:
        if files[name] == path:
          loaded[name] = file.get_tensor(name).astype(np.float32)
  return config, _from_named(config, loaded)


def _from_named(config: ModelConfig, loaded: dict[str, np.ndarray]) -> Params:
  """Stacks the tensors of all layers."""
  shapes = config.layer_shapes()
  layers = {
    name: jnp.asarray(
      np.stack(
        [
          loaded[f"model.layers.{i}.{hf_name}"]
          for i in range(config.num_layers)
        ]
      )
    )
    for name, hf_name in LAYER_NAMES.items()
    if hf_name in shapes
  }
  params: Params = {
    "embed": jnp.asarray(loaded["model.embed_tokens.weight"]),
    "layers": layers,
    "norm": jnp.asarray(loaded["model.norm.weight"]),
  }
  if not config.tie_embeddings:
    params["lm_head"] = jnp.asarray(loaded["lm_head.weight"])
  return params


def named_arrays(
  params: Params, config: ModelConfig, dtype: str = "float32"
) -> list[tuple[str, np.ndarray]]:
  """All weights under Hugging Face names, a tied matrix once.

  Args:
    params: see decoder.Params.
    config: shape of the model.
    dtype: wire type, 'float32' or 'bfloat16'. float32 arrays are views of the
      host copy.

  Returns:
    (name, array) in the order of ModelConfig.tensor_shapes.
  """
  return list(_named(params, config, np.dtype(_DTYPES[dtype])))


def _named(
  params: Params, config: ModelConfig, dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray]]:
  def host(array) -> np.ndarray:
    return np.asarray(array).astype(dtype, copy=False)

  yield "model.embed_tokens.weight", host(params["embed"])
  layers = {
    hf_name: host(params["layers"][name])
    for name, hf_name in LAYER_NAMES.items()
    if name in params["layers"]
  }
  for i in range(config.num_layers):
    for hf_name in config.layer_shapes():
      yield f"model.layers.{i}.{hf_name}", layers[hf_name][i]
  yield "model.norm.weight", host(params["norm"])
  if not config.tie_embeddings:
    yield "lm_head.weight", host(params["lm_head"])


def save_hf(
  model_dir: str | pathlib.Path,
  config: ModelConfig,
  params: Params,
  dtype: str = "float32",
) -> None:
  """Writes config.json and model.safetensors; a reader sees whole files only.

  Other files of the folder, such as a tokenizer, are left alone.
  """
  model_dir = pathlib.Path(model_dir)
  model_dir.mkdir(parents=True, exist_ok=True)
  weights = model_dir / "model.safetensors"
  partial = weights.with_suffix(f".partial-{os.getpid()}")
  save_file(
    {
      name: np.ascontiguousarray(array)
      for name, array in named_arrays(params, config, dtype)
    },
    partial,
    metadata={"format": "pt"},
  )
  os.replace(partial, weights)
  fields = config.to_hf() | {"torch_dtype": dtype}
  partial = model_dir / f"config.json.partial-{os.getpid()}"
  partial.write_text(json.dumps(fields, indent=2) + "\n")
  os.replace(partial, model_dir / "config.json")
