"""Who may import whom, and what the pure packages may touch.

Read from the syntax trees of hybridrl/, experiments/ and launch/: imports
inside functions and under TYPE_CHECKING count too.
"""

import ast
import functools
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parent.parent
# Layers, lowest first: a package imports its own layer and those below. The
# runtime's parts may also use the types of packages in between.
_LAYERS = (
  {"algorithms", "accounting", "metrics", "scheduling"},
  {"simulation"},
  {"data", "models"},
  {"training"},
  {"rollout", "rewards", "reporting"},
  {"runtime"},
  {"experiments"},
  {"launch"},
)
_RANK = {name: rank for rank, names in enumerate(_LAYERS) for name in names}
_PURE = _LAYERS[0] | _LAYERS[1]
_PURE_THIRD_PARTY = {"jax", "numpy", "chex", "flax"}
# Clocks, randomness from the system, files, processes, logs, threads.
_IMPURE_STDLIB = {
  "asyncio",
  "logging",
  "multiprocessing",
  "os",
  "pathlib",
  "random",
  "shutil",
  "socket",
  "subprocess",
  "tempfile",
  "threading",
  "time",
  "datetime",
  "warnings",
}
_IMPURE_CALLS = {"open", "print", "input", "exec", "eval"}
_FLAG_LIBRARIES = {"absl.flags", "absl.app", "argparse"}


@functools.cache
def _sources():
  """(path from the root, syntax tree) of every source file."""
  found = []
  for top in ("hybridrl", "experiments", "launch"):
    for path in sorted((_ROOT / top).rglob("*.py")):
      tree = ast.parse(path.read_text(), filename=str(path))
      found.append((path.relative_to(_ROOT), tree))
  return tuple(found)


def _imports(tree):
  """(dotted name, line) of everything that is imported."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      for alias in node.names:
        yield alias.name, node.lineno
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f"relative import in line {node.lineno}"
      for alias in node.names:
        yield f"{node.module}.{alias.name}", node.lineno


def _package(path):
  """'scheduling' for hybridrl/scheduling/x.py; '' for hybridrl/x.py."""
  if path.parts[0] != "hybridrl":
    return path.parts[0]
  return path.parts[1] if len(path.parts) > 2 else ""


def _imported_package(name):
  """The package of ours that a dotted name is in; None for others'."""
  parts = name.split(".")
  if parts[0] in ("experiments", "launch"):
    return parts[0]
  if parts[0] != "hybridrl":
    return None
  return parts[1] if len(parts) > 1 else ""


def layering_faults(path, tree):
  """Imports of a higher layer. `testing` is for tests, not for sources."""
  package = _package(path)
  for name, line in _imports(tree):
    other = _imported_package(name)
    if not other or other == package:
      continue
    if other not in _RANK and other != "testing":
      continue  # a name of hybridrl itself, such as __version__
    if package == "testing":
      allowed = other not in ("experiments", "launch")
    elif other == "testing":
      allowed = False
    else:
      allowed = _RANK.get(package, -1) >= _RANK[other]
    if not allowed:
      yield f"{path}:{line}: {package or 'hybridrl'} imports {name}"


def third_party_faults(path, tree):
  """vllm, torch, ray and flags outside the places that may have them."""
  in_rollout = path.parent == pathlib.Path("hybridrl/rollout")
  in_runtime = path.parent == pathlib.Path("hybridrl/runtime")
  may = {
    "vllm": in_rollout and path.name.startswith("vllm_"),
    "torch": in_rollout and path.name.startswith("vllm_"),
    "ray": in_runtime and path.name.startswith("ray_"),
  }
  for name, line in _imports(tree):
    if not may.get(name.split(".")[0], True):
      yield f"{path}:{line}: imports {name}"
    reads_flags = any(
      name == flags or name.startswith(flags + ".") for flags in _FLAG_LIBRARIES
    )
    if reads_flags and path.parts[0] not in ("experiments", "launch"):
      yield f"{path}:{line}: reads flags ({name})"


def purity_faults(path, tree):
  """What a pure package must not touch."""
  if _package(path) not in _PURE:
    return
  for name, line in _imports(tree):
    top = name.split(".")[0]
    if top == "flax":
      allowed = name.startswith("flax.struct")
    elif top in _PURE_THIRD_PARTY:
      allowed = True
    elif top == "hybridrl":
      allowed = _imported_package(name) in _PURE
    else:
      allowed = top in sys.stdlib_module_names and top not in _IMPURE_STDLIB
    if not allowed:
      yield f"{path}:{line}: a pure package imports {name}"
  for node in ast.walk(tree):
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
      continue
    if node.func.id in _IMPURE_CALLS:
      yield f"{path}:{node.lineno}: a pure package calls {node.func.id}()"


_CHECKS = (layering_faults, third_party_faults, purity_faults)


@pytest.mark.parametrize("check", _CHECKS)
def test_sources_keep_the_rule(check):
  sources = _sources()
  assert len(sources) > 30
  faults = [fault for source in sources for fault in check(*source)]
  assert not faults, "\n".join(faults)


def test_every_package_has_a_layer():
  packages = {p.parts[1] for p, _ in _sources() if len(p.parts) > 2}
  packages = {p for p in packages if (_ROOT / "hybridrl" / p).is_dir()}
  assert packages - {"testing"} <= set(_RANK)


@pytest.mark.parametrize(
  "check, path, source",
  [
    (layering_faults, "scheduling/a.py", "from hybridrl.runtime import ledger"),
    (layering_faults, "metrics/a.py", "import hybridrl.simulation.fleet"),
    (
      layering_faults,
      "runtime/a.py",
      "from hybridrl.testing import strategies",
    ),
    (layering_faults, "runtime/a.py", "import experiments.dapo_math"),
    (layering_faults, "testing/a.py", "from launch import doctor"),
    (layering_faults, "data/a.py", "def f():\n  from hybridrl import training"),
    (third_party_faults, "rollout/client.py", "import vllm"),
    (third_party_faults, "rollout/client.py", "from torch import nn"),
    (third_party_faults, "runtime/driver.py", "import ray.util"),
    (third_party_faults, "runtime/driver.py", "from absl import flags"),
    (third_party_faults, "data/a.py", "import argparse"),
    (purity_faults, "algorithms/a.py", "import time"),
    (purity_faults, "algorithms/a.py", "from flax import nnx"),
    (purity_faults, "simulation/a.py", "import optax"),
    (purity_faults, "accounting/a.py", "from hybridrl.data import sample"),
    (purity_faults, "metrics/a.py", "def f():\n  open('x')"),
  ],
)
def test_an_offence_is_found(check, path, source):
  path = pathlib.Path("hybridrl") / path
  assert list(check(path, ast.parse(source))), source


@pytest.mark.parametrize(
  "path, source",
  [
    ("rollout/vllm_replica.py", "import torch, vllm.config"),
    ("runtime/ray_cluster.py", "import ray"),
    ("scheduling/a.py", "from hybridrl.metrics import x\nimport enum"),
    ("simulation/a.py", "from flax import struct\nimport hybridrl.scheduling"),
    ("runtime/a.py", "from hybridrl import __version__, scheduling"),
    ("testing/a.py", "from hybridrl.runtime import ledger\nimport time"),
  ],
)
def test_what_is_allowed_passes(path, source):
  path = pathlib.Path("hybridrl") / path
  for check in _CHECKS:
    assert not list(check(path, ast.parse(source)))


def test_the_core_runs_without_vllm_torch_and_ray():
  """In a fresh interpreter in which those three cannot be imported."""
  modules = ["hybridrl"] + [f"hybridrl.{p}" for p in sorted(_PURE)]
  program = "\n".join(
    [
      "import sys",
      "for name in ('vllm', 'torch', 'ray'): sys.modules[name] = None",
      *(f"import {m}" for m in modules),
      "import hybridrl.runtime.ledger",
    ]
  )
  done = subprocess.run(
    [sys.executable, "-c", program],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stderr
