import os
import subprocess
import sys
import zlib

import numpy as np
import pytest

from hybridrl.models import bundle
from hybridrl.rollout import vllm_weight_file


@pytest.fixture
def file():
  made = vllm_weight_file.WeightFile("replica/0 of a run")
  yield made
  made.remove()
  made.remove()
  assert not os.path.exists(made.path)


def make_bundle(version, num=1000):
  values = np.random.default_rng(version).normal(size=num).astype(np.float32)
  return bundle.pack([("a", values[: num // 2]), ("b", values[num // 2 :])], 7)


def read(info):
  return np.fromfile(info["path"], np.uint8)


def test_o22_every_byte_arrives_the_first_ones_included(file):
  for version in range(3):
    weights = make_bundle(version)
    info = file.write(weights)
    np.testing.assert_array_equal(read(info), weights.buffer)
    assert zlib.crc32(read(info)) == info["checksum"] == weights.checksum
    for spec, name, offset, size in zip(
      weights.specs, info["names"], info["offsets"], info["sizes"], strict=True
    ):
      assert (spec.name, spec.offset, spec.nbytes) == (name, offset, size)


def test_memory_is_reused_until_it_is_given_back(file):
  inode = os.stat(file.write(make_bundle(0))["path"]).st_ino
  before = os.stat(file.path).st_size
  file.write(make_bundle(1))
  assert os.stat(file.path).st_ino == inode
  file.shrink()
  assert os.stat(file.path).st_size == 0
  info = file.write(make_bundle(2))
  assert os.stat(file.path).st_size == before
  np.testing.assert_array_equal(read(info), make_bundle(2).buffer)


def test_another_process_reads_it_and_nothing_is_left_in_dev_shm(file):
  before = set(os.listdir("/dev/shm"))
  weights = make_bundle(3)
  info = file.write(weights)
  script = "import sys, zlib; print(zlib.crc32(open(sys.argv[1], 'rb').read()))"
  found = subprocess.run(
    [sys.executable, "-c", script, info["path"]],
    capture_output=True,
    text=True,
    check=True,
    timeout=60,
  )
  assert int(found.stdout) == weights.checksum
  ours = set(os.listdir("/dev/shm")) - before
  assert not [name for name in ours if "replica" in name]


def test_a_bundle_of_another_size_fits(file):
  for num in (1000, 10, 4000):
    info = file.write(make_bundle(1, num))
    np.testing.assert_array_equal(read(info), make_bundle(1, num).buffer)


def test_an_unresolved_buffer_is_refused(file):
  weights = make_bundle(0)
  broken = bundle.WeightBundle(
    version=3,
    specs=weights.specs,
    checksum=0,
    buffer=np.zeros(4, np.float32),
  )
  with pytest.raises(ValueError, match="version 3.*uint8"):
    file.write(broken)
