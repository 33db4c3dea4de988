import os
import subprocess
import sys

import pytest

from hybridrl.rollout import vllm_config


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "config.json").write_text("{}")
  return str(tmp_path)


@pytest.mark.parametrize(
  "field, value, message",
  [
    ("max_num_seqs", 0, "max_num_seqs is 0"),
    ("num_threads", -1, "num_threads is -1"),
    ("canary_tolerance", float("nan"), "canary_tolerance is nan"),
    ("device", "gpu", "device is 'gpu'"),
    ("dtype", "int8", "dtype is 'int8'"),
    ("gpu_memory_utilization", 1.5, "gpu_memory_utilization is 1.5"),
    ("kv_cache_bytes", None, "kv_cache_bytes must be given"),
  ],
)
def test_a_bad_value_is_named(folder, field, value, message):
  with pytest.raises(ValueError, match=message):
    vllm_config.VllmConfig(model_dir=folder, **{field: value})


def test_a_folder_without_a_config_is_named(tmp_path):
  with pytest.raises(ValueError, match=str(tmp_path)):
    vllm_config.VllmConfig(model_dir=str(tmp_path))


def test_configuring_sets_affinity_of_all_threads_without_importing_vllm(
  folder,
):
  core = min(os.sched_getaffinity(0))
  script = f"""
import os, sys, threading
stop = threading.Event()
threading.Thread(target=stop.wait).start()
from hybridrl.rollout import vllm_config
config = vllm_config.VllmConfig(
  model_dir={folder!r}, cpu_cores=({core},), num_threads=3
)
vllm_config.configure_process(config)
found = [os.sched_getaffinity(int(t)) for t in os.listdir("/proc/self/task")]
stop.set()
assert len(found) >= 2 and all(f == {{{core}}} for f in found), found
assert os.environ["OMP_NUM_THREADS"] == "3"
assert os.environ["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
assert not {{"vllm", "torch", "ray", "jax"}} & set(sys.modules)
"""
  subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_core_that_does_not_exist_is_named():
  with pytest.raises(ValueError, match="9999"):
    vllm_config.pin_process((9999,))


def test_threads_and_binding_are_cpu_only(folder):
  cuda = vllm_config.VllmConfig(
    model_dir=folder, device="cuda", kv_cache_bytes=None
  )
  assert "OMP_NUM_THREADS" not in vllm_config.environment(cuda)
