"""Bad input of the main job: one clear line, exit code 2, nothing started."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

_BASE = "--flagfile=experiments/flagfiles/quickstart.flags"


def _run(*argv: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, "-m", "experiments.dapo_math", _BASE, *argv],
    capture_output=True,
    text=True,
    timeout=120,
    env=os.environ | {"JAX_PLATFORMS": "cpu"},
  )


def _refused(*argv: str) -> str:
  done = _run(*argv)
  assert done.returncode == 2, done.stderr[-2000:]
  lines = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
  assert len(lines) == 1, done.stderr[-2000:]
  assert "Traceback" not in done.stderr
  return lines[0]


def _model_folder(tmp_path, **changes):
  folder = tmp_path / "model"
  folder.mkdir()
  config = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
  }
  (folder / "config.json").write_text(json.dumps(config | changes))
  tensors = {"model.embed_tokens.weight": np.zeros((64, 64), np.float32)}
  save_file(tensors, folder / "model.safetensors")
  return folder


def test_x15_unknown_flag():
  assert "no_such_flag" in _refused("--no_such_flag=1")


def test_missing_flagfile():
  assert "nowhere.flags" in _refused("--flagfile=nowhere.flags")


def test_x15_value_of_the_wrong_type():
  assert "lr" in _refused("--lr=fast")


def test_x1_mistyped_resume_path():
  line = _refused("--resume=/nonexistent/step_7")
  assert "--resume=/nonexistent/step_7" in line


def test_s2_ratio():
  line = _refused("--dynamic_schedule_deactivate_ratio=1.2")
  assert "--dynamic_schedule_deactivate_ratio=1.2 is not in (0, 1]" in line


def test_s11_unknown_policy_lists_the_known_ones():
  line = _refused("--dynamic_schedule_policy=defualt")
  for name in ("defualt", "default", "static_fully_async", "fixed_ratio"):
    assert name in line


def test_policy_module_that_does_not_import():
  line = _refused("--policy_modules=no.such.module")
  assert "--policy_modules" in line and "no.such.module" in line


def test_model_path_that_is_not_there():
  assert "/nonexistent/model" in _refused("--model_path=/nonexistent/model")


def test_model_folder_with_a_missing_tensor(tmp_path):
  folder = _model_folder(tmp_path)
  line = _refused(f"--model_path={folder}")
  assert "model.layers.0." in line and str(folder) in line


def test_train_file_that_is_not_there(tmp_path):
  line = _refused(
    "--train_files=/nonexistent/x.jsonl",
    f"--model_path={tmp_path}",
  )
  assert "/nonexistent/x.jsonl" in line


def test_x13_parquet_without_the_needed_columns(tmp_path):
  path = tmp_path / "rows.parquet"
  pq.write_table(pa.table({"question": ["1+1?"], "solution": ["2"]}), path)
  line = _refused(f"--train_files={path}", f"--model_path={tmp_path}")
  assert str(path) in line and "prompt" in line and "reward_model" in line


def test_x15_memory_that_cannot_hold_one_sequence():
  line = _refused("--device_memory_gib=0.001")
  assert "--device_memory_gib=0.001" in line


def test_stray_argument():
  assert "stray" in _refused("stray")


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path):
  run_dir = tmp_path / "run"
  done = _run("--dry_run", f"--run_dir={run_dir}")
  assert done.returncode == 0, done.stderr
  for part in ("placement", "memory", "cycle", "standalone", "hybrid"):
    assert part in done.stdout
  assert not run_dir.exists()


@pytest.mark.parametrize("devices", [16])
def test_dry_run_of_the_32_device_flagfile(devices, tmp_path):
  folder = _big_model_folder(tmp_path)
  done = _run(
    "--flagfile=experiments/flagfiles/qwen3_8b_dapo_math_32gpu.flags",
    f"--model_path={folder}",
    "--dry_run",
  )
  assert done.returncode == 0, done.stderr
  assert "2 node(s) x 8 cuda device(s)" in done.stdout
  assert f"{devices} replica(s) of 1 device(s)" in done.stdout


def _big_model_folder(tmp_path):
  """Headers of Qwen3-8B's shape; the tensors themselves are sparse files."""
  from hybridrl.models.config import ModelConfig

  config = ModelConfig(
    model_type="qwen3",
    vocab_size=151_936,
    hidden_size=4096,
    intermediate_size=12_288,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_size=128,
    max_position=40_960,
  )
  folder = tmp_path / "qwen3_8b"
  folder.mkdir()
  (folder / "config.json").write_text(json.dumps(config.to_hf()))
  header, offset = {}, 0
  for name, shape in config.tensor_shapes().items():
    size = 2 * int(np.prod(shape))
    header[name] = {
      "dtype": "BF16",
      "shape": list(shape),
      "data_offsets": [offset, offset + size],
    }
    offset += size
  text = json.dumps(header).encode()
  with open(folder / "model.safetensors", "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text)
    file.truncate(8 + len(text) + offset)
  return folder
