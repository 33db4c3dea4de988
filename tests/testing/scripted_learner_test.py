"""Tests of scripted_learner.py: what the tests of the runtime rely on."""

import asyncio

import pytest

from hybridrl.models import bundle as bundle_lib
from hybridrl.testing.scripted_learner import ScriptedLearner
from hybridrl.testing.virtual_loop import run_virtual
from tests.runtime.message_queue_test import make_sample


def test_equal_batches_make_equal_weights_and_others_do_not(tmp_path):
  async def digest(*batches):
    learner = ScriptedLearner(tmp_path)
    for batch in batches:
      await learner.train([make_sample(i) for i in batch])
    return learner.digest

  base = run_virtual(digest([0, 1], [2]))
  assert run_virtual(digest([0, 1], [2])) == base
  assert run_virtual(digest([1, 0], [2])) != base
  assert run_virtual(digest([0, 1], [3])) != base
  assert run_virtual(digest([0, 1])) != base


def test_the_published_bundle_holds_the_weights(tmp_path):
  async def main():
    learner = ScriptedLearner(tmp_path)
    first = await learner.publish(1)
    values = dict(bundle_lib.unpack(first))["digest"].copy()
    await learner.train([make_sample(0)])
    second = dict(bundle_lib.unpack(await learner.publish(2)))["digest"]
    assert bytes(int(x) for x in second).hex() == learner.digest
    assert (values != second).any()
    with pytest.raises(ValueError, match="2 published after 2"):
      await learner.publish(2)

  run_virtual(main())


def test_a_checkpoint_restores_weights_steps_and_the_drivers_state(tmp_path):
  async def main():
    learner = ScriptedLearner(tmp_path)
    await learner.train([make_sample(0)])
    path = await learner.save(1, {"cursor": 7})
    await learner.train([make_sample(1)])
    other = ScriptedLearner(tmp_path)
    assert await other.restore(path) == {"cursor": 7}
    result = await other.train([make_sample(1)])
    assert result.step == 2 and other.digest == learner.digest

  run_virtual(main())


def test_calls_take_their_time_and_fail_as_told(tmp_path):
  def fail(method, number):
    if (method, number) == ("train", 2):
      raise OSError("second")

  async def main():
    learner = ScriptedLearner(tmp_path, train_s=len, fail=fail)
    await learner.train([make_sample(0), make_sample(1)])
    assert asyncio.get_running_loop().time() == 2.0
    with pytest.raises(OSError, match="second"):
      await learner.train([make_sample(2)])
    assert learner.steps == 1

  run_virtual(main())
