"""What tests of several folders share."""

import pytest


@pytest.fixture(scope="session")
def small_model_dir(tmp_path_factory):
  """See small_model.py; made once for all tests on real parts."""
  from tests.small_model import save_small_model  # jax only where needed

  return save_small_model(tmp_path_factory.mktemp("small_model"))
