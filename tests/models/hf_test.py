import json

import ml_dtypes
import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file, save_file

from hybridrl.models.config import ModelConfig
from hybridrl.models.hf import load_hf, named_arrays, save_hf
from tests.models.decoder_test import CONFIGS, noisy_params

pytestmark = pytest.mark.usefixtures("cheap_compilation")


def assert_params_equal(a, b):
  import jax

  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_model_loads_bit_for_bit(tmp_path, name):
  config, params = CONFIGS[name], noisy_params(CONFIGS[name])
  save_hf(tmp_path, config, params)
  loaded_config, loaded = load_hf(tmp_path)
  assert loaded_config == config
  assert_params_equal(loaded, params)


def test_o21_a_tied_matrix_is_saved_once(tmp_path):
  config = CONFIGS["qwen3-tied"]
  save_hf(tmp_path, config, noisy_params(config))
  with safetensors.safe_open(
    tmp_path / "model.safetensors", framework="numpy"
  ) as file:
    names = list(file.keys())
  assert "lm_head.weight" not in names
  assert sorted(names) == sorted(config.tensor_shapes())


def test_a_superfluous_copy_of_a_tied_matrix_is_ignored(tmp_path):
  config = CONFIGS["qwen3-tied"]
  params = noisy_params(config)
  save_hf(tmp_path, config, params)
  tensors = load_file(tmp_path / "model.safetensors")
  tensors["lm_head.weight"] = np.zeros((61, 64), np.float32)
  save_file(tensors, tmp_path / "model.safetensors")
  assert_params_equal(load_hf(tmp_path)[1], params)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_named_arrays_have_the_names_shapes_and_order_of_the_config(dtype):
  config = CONFIGS["qwen2"]
  arrays = named_arrays(noisy_params(config), config, dtype)
  assert {n: a.shape for n, a in arrays} == config.tensor_shapes()
  assert [n for n, _ in arrays] == list(config.tensor_shapes())
  assert {a.dtype.name for _, a in arrays} == {dtype}


def test_bfloat16_on_disk_becomes_float32_in_memory(tmp_path):
  config, params = CONFIGS["llama"], noisy_params(CONFIGS["llama"])
  save_hf(tmp_path, config, params, "bfloat16")
  _, loaded = load_hf(tmp_path)
  expected = np.asarray(params["embed"]).astype(ml_dtypes.bfloat16)
  assert loaded["embed"].dtype == np.float32
  np.testing.assert_array_equal(loaded["embed"], expected.astype(np.float32))


def test_sharded_folders_load(tmp_path):
  config: ModelConfig = CONFIGS["qwen3"]
  params = noisy_params(config)
  save_hf(tmp_path, config, params)
  tensors = load_file(tmp_path / "model.safetensors")
  (tmp_path / "model.safetensors").unlink()
  names = sorted(tensors)
  files = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
  for file, members in files.items():
    save_file({n: tensors[n] for n in members}, tmp_path / file)
  weight_map = {n: f for f, members in files.items() for n in members}
  index = tmp_path / "model.safetensors.index.json"
  index.write_text(json.dumps({"weight_map": weight_map}))
  assert_params_equal(load_hf(tmp_path)[1], params)


def test_saving_leaves_a_tokenizer_and_no_partial_file(tmp_path):
  (tmp_path / "tokenizer.json").write_text("{}")
  save_hf(tmp_path, CONFIGS["qwen3"], noisy_params(CONFIGS["qwen3"]))
  assert sorted(p.name for p in tmp_path.iterdir()) == [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
  ]
