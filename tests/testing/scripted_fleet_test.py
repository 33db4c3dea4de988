import dataclasses

import numpy as np
import pytest

from hybridrl.models import bundle as bundle_lib
from hybridrl.rollout.replica import ReplicaState
from hybridrl.testing import scripted_text
from hybridrl.testing.scripted_fleet import (
  check_text,
  scripted_bundle,
  scripted_fleet,
  scripted_prompt,
  started,
  wake,
)
from hybridrl.testing.virtual_loop import run_virtual


def test_prompts_differ_and_hold_no_sampled_id():
  prompts = [tuple(scripted_prompt(i)) for i in range(1000)]
  assert len(set(prompts)) == 1000
  assert max(map(max, prompts)) < scripted_text.FIRST_SAMPLED_ID


def test_bundles_are_valid_and_differ():
  (first,) = bundle_lib.unpack(scripted_bundle(1))
  (second,) = bundle_lib.unpack(scripted_bundle(2))
  assert np.any(first[1] != second[1])


def test_started_and_wake():
  async def main():
    replica = await started("r", version=3)
    assert (replica.state, replica.version) == (ReplicaState.AWAKE, 3)
    await replica.sleep()
    await wake(replica, version=4)
    assert (replica.state, replica.version) == (ReplicaState.AWAKE, 4)

  run_virtual(main())


SPOILT = (
  ("a token lost", lambda r: {n: v[1:] for n, v in r.items()}),
  (
    "a token doubled",
    lambda r: {n: np.concatenate([v[:1], v]) for n, v in r.items()},
  ),
  ("order", lambda r: r | {"token_ids": r["token_ids"][::-1]}),
  ("label", lambda r: r | {"versions": r["versions"] + 1}),
  ("log-prob", lambda r: r | {"log_probs": r["log_probs"] * 0.5}),
  ("kv newer", lambda r: r | {"kv_versions": r["versions"] + 1}),
)


@pytest.mark.parametrize(
  "spoil", [s for _, s in SPOILT], ids=[name for name, _ in SPOILT]
)
def test_check_text_notices(spoil):
  async def main():
    fleet = await scripted_fleet(1)
    return await fleet.generate(0)

  good = run_virtual(main())
  arrays = {
    f.name: getattr(good, f.name)
    for f in dataclasses.fields(good)
    if f.name != "finish_reason"
  }
  bad = dataclasses.replace(good, **spoil(arrays))
  with pytest.raises(AssertionError):
    check_text(bad, "0", scripted_prompt(0))
