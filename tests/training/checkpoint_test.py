import os
import shutil

import jax
import numpy as np
import pytest

from hybridrl.models.decoder import init_params
from hybridrl.training.checkpoint import Checkpointer, restore
from hybridrl.training.state import init_state, make_optimizer
from tests.training.step_test import MODEL

pytestmark = pytest.mark.usefixtures("cheap_compilation")

OPTIMIZER = make_optimizer(1e-3)


def make_state(seed=0):
  return init_state(init_params(MODEL, seed), OPTIMIZER)


@pytest.fixture
def folder(tmp_path):
  checkpointer = Checkpointer(tmp_path / "checkpoints", keep=1)
  yield checkpointer
  checkpointer.close()


def test_a_checkpoint_comes_back_bit_for_bit(folder):
  state, meta = make_state(1), {"a": [1, 2.5, None], "b": {"c": "x"}}
  path = folder.save(7, state, meta)
  found, found_meta = restore(path, make_state(2))
  assert found_meta == meta
  assert jax.tree.structure(found) == jax.tree.structure(state)
  jax.tree.map(np.testing.assert_array_equal, found, state)


def test_o26_the_old_checkpoint_stays_until_the_new_one_is_complete(
  folder, monkeypatch
):
  first = folder.save(1, make_state(1), {})
  seen = []
  rename = os.rename

  def watch(source, target, *args, **kwargs):
    seen.append(os.path.isdir(first))
    return rename(source, target, *args, **kwargs)

  monkeypatch.setattr(os, "rename", watch)
  with pytest.raises(ValueError, match="JSON"):
    folder.save(2, make_state(2), {"bad": object()})
  assert folder.latest() == first
  second = folder.save(2, make_state(2), {})
  assert all(seen)
  assert folder.latest() == second
  assert not os.path.exists(first)
  restore(second, make_state())


def test_what_a_crash_left_half_done_is_no_checkpoint(tmp_path):
  first = Checkpointer(tmp_path, keep=3)
  path = first.save(1, make_state(), {})
  first.close()
  # orbax writes under a temporary name until everything is there.
  partial = shutil.copytree(path, tmp_path / "2.orbax-checkpoint-tmp-99")
  (partial / "commit_success.txt").unlink()
  again = Checkpointer(tmp_path, keep=3)
  assert again.latest() == path
  assert again.save(2, make_state(), {}).endswith("/2")
  again.close()
  assert not list(tmp_path.glob("*tmp*"))


def test_a_step_is_written_once(folder):
  folder.save(3, make_state(), {})
  with pytest.raises(ValueError, match="step 3"):
    folder.save(3, make_state(), {})


@pytest.mark.parametrize("name", ["5", "latest", "nowhere/5"])
def test_x1_a_mistyped_path_is_named(folder, tmp_path, name):
  folder.save(4, make_state(), {})
  path = tmp_path / "checkpoints" / name
  with pytest.raises(ValueError, match=str(path)):
    restore(path, make_state())
  assert not (tmp_path / "checkpoints" / "nowhere").exists()


def test_another_models_checkpoint_is_refused_with_the_difference(folder):
  path = folder.save(4, make_state(), {})
  state = make_state()
  wider = state._replace(
    params=state.params | {"embed": np.zeros((41, 32), np.float32)}
  )
  with pytest.raises(ValueError, match=r"params.embed.*40,32.*41,32"):
    restore(path, wider)
  more = state._replace(params=state.params | {"extra": np.zeros(1)})
  with pytest.raises(ValueError, match=r"params.extra is missing"):
    restore(path, more)
