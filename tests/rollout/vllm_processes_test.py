import os
import signal
import subprocess
import sys
import time

import psutil

CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", '''
import os, sys
from hybridrl.rollout import vllm_processes
parent = os.getppid()  # before this test can kill it
print("up", os.getpid(), flush=True)
vllm_processes.end_with(parent, sys.argv[1])
''', sys.argv[1]])
child.wait()
"""


def test_an_engine_ends_with_its_killed_parent_and_removes_the_file(tmp_path):
  path = tmp_path / "weights"
  path.write_bytes(b"x")
  parent = subprocess.Popen(
    [sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True
  )
  assert parent.stdout is not None
  child = psutil.Process(int(parent.stdout.readline().split()[1]))
  assert path.exists()
  os.kill(parent.pid, signal.SIGKILL)
  parent.wait(10)
  child.wait(10)
  assert not path.exists()


def test_an_engine_whose_parent_is_gone_already_ends_too(tmp_path):
  gone = subprocess.Popen([sys.executable, "-c", ""])
  gone.wait()
  start = time.monotonic()
  script = (
    "from hybridrl.rollout import vllm_processes as p;"
    f"p.end_with({gone.pid}, {str(tmp_path / 'none')!r})"
  )
  assert subprocess.run([sys.executable, "-c", script], timeout=20).returncode
  assert time.monotonic() - start < 20
