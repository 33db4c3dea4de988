"""Cores are dealt out as devices are."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridrl.runtime import affinity
from hybridrl.runtime.config import RunConfig


def _config(**changes):
  return RunConfig(use_dynamic_resource_scheduling=True, **changes)


def test_two_cores_one_device_each():
  laid = affinity.make_affinity(_config(), (0, 1))
  assert laid.learner.cores == (0,)
  assert laid.hybrid[0].cores == (0,)
  assert laid.standalone[0].cores == (1,)
  assert {laid.learner.num_threads, laid.standalone[0].num_threads} == {1}


def test_proportional_split_keeps_a_core_for_either_side():
  config = _config(trainer_n_gpus_per_node=1, rollout_n_gpus_per_node=3)
  laid = affinity.make_affinity(config, tuple(range(8)))
  assert laid.learner.cores == (0, 1)
  assert [c.cores for c in laid.standalone] == [(2, 3), (4, 5), (6, 7)]


def test_hybrid_replicas_split_the_trainers_cores():
  config = _config(trainer_n_gpus_per_node=2)
  laid = affinity.make_affinity(config, tuple(range(6)))
  assert laid.learner.cores == (0, 1, 2, 3)
  assert [c.cores for c in laid.hybrid] == [(0, 1), (2, 3)]


def test_colocated_gets_every_core():
  laid = affinity.make_affinity(_config(rollout_nnodes=0), (0, 1))
  assert laid.learner.cores == (0, 1)
  assert laid.hybrid[0].cores == (0, 1)
  assert laid.standalone == ()


@pytest.mark.parametrize("text", ["none", "auto"])
def test_unpinned_processes_use_all_threads(text):
  cores = (0, 1) if text == "none" else (0,)
  laid = affinity.make_affinity(_config(cpu_affinity=text), cores)
  assert laid.learner.cores is None
  assert laid.learner.num_threads == len(cores)


@given(
  st.integers(2, 64), st.integers(1, 8), st.integers(1, 8), st.integers(1, 8)
)
def test_no_core_serves_both_sides(num_cores, a, b_nodes, b):
  config = _config(
    trainer_n_gpus_per_node=a, rollout_nnodes=b_nodes, rollout_n_gpus_per_node=b
  )
  laid = affinity.make_affinity(config, tuple(range(num_cores)))
  rollout = {c for one in laid.standalone for c in one.cores}
  assert laid.learner.cores and rollout
  assert not set(laid.learner.cores) & rollout
  for hybrid in laid.hybrid:
    assert set(hybrid.cores) <= set(laid.learner.cores)
    assert hybrid.num_threads == len(hybrid.cores) >= 1


@pytest.mark.parametrize(
  "text", ["0", "0;9", "a;1", "0;", ";1", "1,1;0", "0-;1"]
)
def test_bad_text_is_refused(text):
  with pytest.raises(ValueError):
    affinity.make_affinity(_config(cpu_affinity=text), (0, 1))


def test_explicit_cores():
  laid = affinity.make_affinity(_config(cpu_affinity="2-3;0"), (0, 1, 2, 3))
  assert laid.learner.cores == (2, 3)
  assert laid.standalone[0].cores == (0,)


def test_pin_process_reaches_threads_that_exist_already():
  core = min(os.sched_getaffinity(0))
  code = (
    "import threading, os, time\n"
    "from hybridrl.runtime.affinity import pin_process\n"
    "t = threading.Thread(target=time.sleep, args=(1,), daemon=True)\n"
    "t.start()\n"
    f"pin_process(({core},))\n"
    "print({tuple(os.sched_getaffinity(int(i)))"
    " for i in os.listdir('/proc/self/task')})\n"
  )
  printed = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  ).stdout
  assert printed.strip() == f"{{({core},)}}"
