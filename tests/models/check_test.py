import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hybridrl.models.check import check_model_dir
from hybridrl.models.hf import load_hf, save_hf
from tests.models.decoder_test import CONFIGS, noisy_params

NAME = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path):
  save_hf(tmp_path, CONFIGS["qwen3"], noisy_params(CONFIGS["qwen3"]))
  return tmp_path


def rewrite(folder, change):
  path = folder / "model.safetensors"
  tensors = load_file(path)
  change(tensors)
  save_file(tensors, path)


def test_a_whole_folder_passes(folder):
  check_model_dir(folder)


@pytest.mark.parametrize("read", [check_model_dir, load_hf])
@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda t: t.pop(NAME), "is missing"),
    (lambda t: t.update({NAME: t[NAME].T.copy()}), r"\(64, 80\).*\(80, 64\)"),
    (lambda t: t.update({NAME: t[NAME].astype(np.int32)}), "I32"),
  ],
)
def test_a_broken_tensor_is_named_with_its_file(folder, read, change, message):
  rewrite(folder, change)
  with pytest.raises(ValueError, match=message) as error:
    read(folder)
  assert NAME in str(error.value)
  assert str(folder / "model.safetensors") in str(error.value)


@pytest.mark.parametrize("size", [0, 5, 100, 2000, -1])
def test_a_file_that_was_cut_short_is_named(folder, size):
  path = folder / "model.safetensors"
  path.write_bytes(path.read_bytes()[:size])
  with pytest.raises(ValueError, match=str(path)):
    check_model_dir(folder)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder, file):
  (folder / file).unlink()
  with pytest.raises(ValueError, match=file):
    check_model_dir(folder)


def test_a_missing_folder_is_named(tmp_path):
  with pytest.raises(ValueError, match="nowhere"):
    check_model_dir(tmp_path / "nowhere")


def test_an_index_that_names_an_absent_shard_or_nothing(folder):
  index = folder / "model.safetensors.index.json"
  weight_map = dict.fromkeys(CONFIGS["qwen3"].tensor_shapes(), "absent")
  index.write_text(json.dumps({"weight_map": weight_map}))
  with pytest.raises(ValueError, match="absent"):
    check_model_dir(folder)
  index.write_text("{}")
  with pytest.raises(ValueError, match=str(index)):
    check_model_dir(folder)


def test_the_check_needs_neither_jax_nor_torch():
  code = (
    "import sys; import hybridrl.models.check;"
    "assert not {'jax', 'torch', 'transformers'} & set(sys.modules)"
  )
  subprocess.run([sys.executable, "-c", code], check=True)
