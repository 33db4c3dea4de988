"""The whole tree of processes is counted."""

import subprocess
import sys
import time

from experiments.peak_memory import PeakMemory, tree_bytes

_MIB = 1 << 20


def test_memory_of_a_child_is_seen():
  code = "x = bytearray(b'1') * (200 << 20); print('up', flush=True); input()"
  before = tree_bytes()
  with PeakMemory(interval_s=0.05) as memory:
    child = subprocess.Popen(
      [sys.executable, "-c", code],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    assert child.stdout.readline() == "up\n"
    grown = tree_bytes() - before
    time.sleep(0.2)
    child.communicate("\n")
  assert 190 * _MIB < grown < 300 * _MIB
  assert memory.bytes >= before + 190 * _MIB
  assert tree_bytes() < memory.bytes
