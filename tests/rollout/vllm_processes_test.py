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
vllm_processes.end_with(parent)
'''])
child.wait()
"""


def test_an_engine_ends_with_its_killed_parent():
  parent = subprocess.Popen(
    [sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True
  )
  assert parent.stdout is not None
  child = psutil.Process(int(parent.stdout.readline().split()[1]))
  os.kill(parent.pid, signal.SIGKILL)
  parent.wait(10)
  child.wait(10)


def test_an_engine_whose_parent_is_gone_already_ends_too():
  gone = subprocess.Popen([sys.executable, "-c", ""])
  gone.wait()
  start = time.monotonic()
  script = (
    f"from hybridrl.rollout import vllm_processes as p;p.end_with({gone.pid})"
  )
  assert subprocess.run([sys.executable, "-c", script], timeout=20).returncode
  assert time.monotonic() - start < 20
