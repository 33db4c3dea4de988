"""Programs of these tests run for milliseconds: compile cheaply, and once."""

import jax
import pytest


@pytest.fixture(scope="module")
def cheap_compilation():
  """Compiles without the expensive passes, in modules that ask for it."""
  name = "jax_disable_most_optimizations"
  before = jax.config.values[name]
  jax.config.update(name, True)
  yield
  jax.config.update(name, before)


@pytest.fixture(scope="session", autouse=True)
def compilation_cache(tmp_path_factory):
  """Equal programs are compiled once for all tests."""
  options = {
    "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("compiled")),
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
  }
  before = {name: jax.config.values[name] for name in options}
  for name, value in options.items():
    jax.config.update(name, value)
  yield
  for name, value in before.items():
    jax.config.update(name, value)
