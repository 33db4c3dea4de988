"""The laws hold for the scripted replica, and notice replicas that break them.

A law that no broken replica fails would be worth nothing, so each entry of
BROKEN names the law that has to catch it.
"""

import asyncio
import dataclasses
import itertools

import pytest

from hybridrl.rollout.replica import ReplicaUnavailable, WeightUpdateMode
from hybridrl.testing import replica_conformance as conformance
from hybridrl.testing import scripted_text
from hybridrl.testing.scripted_fleet import scripted_bundle, scripted_prompt
from hybridrl.testing.scripted_replica import ScriptedReplica
from hybridrl.testing.virtual_loop import run_virtual


async def _kit(make=ScriptedReplica):
  replica = make("r", lengths=scripted_text.fixed_length(5000))
  await replica.start()
  versions = itertools.count()
  first = scripted_bundle(next(versions))
  await replica.load_weights(first, WeightUpdateMode.KEEP)
  return conformance.Kit(
    replica=replica,
    next_bundle=lambda: scripted_bundle(next(versions)),
    prompts=[scripted_prompt(i) for i in range(4)],
    long_tokens=1000,
    moment_s=1.0,
    bound_s=5.0,
    settle_s=0.01,
  )


@pytest.mark.parametrize(
  "law",
  [*conformance.LAWS, *conformance.LAST_LAWS],
  ids=lambda law: law.__name__,
)
def test_scripted_replica_obeys(law):
  async def main():
    await law(await _kit())

  run_virtual(main())


def test_all_laws_hold_on_one_replica():
  async def main():
    await conformance.check_all(await _kit())

  run_virtual(main())


class _AbortsLate(ScriptedReplica):
  """Says that it aborted while the device works on (B7)."""

  async def abort(self, request_ids=None):
    loop = asyncio.get_running_loop()
    loop.call_later(0.5, self._engine.abort, request_ids)


class _LosesTokens(ScriptedReplica):
  """Delivers an abort without its partial tokens."""

  async def generate(self, request):
    result = await super().generate(request)
    if result.finish_reason != "abort":
      return result
    names = ("token_ids", "log_probs", "versions", "kv_versions")
    return dataclasses.replace(
      result, **{name: getattr(result, name)[:0] for name in names}
    )


class _Parks(ScriptedReplica):
  """Keeps requests that come while it sleeps until it wakes (B6)."""

  async def generate(self, request):
    while True:
      try:
        return await super().generate(request)
      except ReplicaUnavailable:
        await asyncio.sleep(0.1)


class _QueuesControl(ScriptedReplica):
  """Its abort waits behind outstanding requests (B8)."""

  async def abort(self, request_ids=None):
    while len(self._engine) > 16:  # noqa: ASYNC110 (the fault under test)
      await asyncio.sleep(0.1)
    await super().abort(request_ids)


class _LabelsLate(ScriptedReplica):
  """Labels tokens with the version read after generation (O20)."""

  async def generate(self, request):
    result = await super().generate(request)
    versions = result.versions * 0 + self.version
    return dataclasses.replace(result, versions=versions)


class _KeepsMemory(ScriptedReplica):
  """Sleeps without giving anything back."""

  async def stats(self):
    return dataclasses.replace(await super().stats(), resident_bytes=1)


class _OneTokenMore(ScriptedReplica):
  """Takes the budget for the number of steps after the first token (X2)."""

  async def generate(self, request):
    more = dataclasses.replace(
      request, max_new_tokens=request.max_new_tokens + 1
    )
    return await super().generate(more)


class _IgnoresCancel(ScriptedReplica):
  """Goes on with an attempt whose caller has left."""

  async def generate(self, request):
    return await asyncio.shield(
      asyncio.ensure_future(super().generate(request))
    )


BROKEN = (
  (_AbortsLate, conformance.abort_returns_when_the_device_is_idle),
  (_LosesTokens, conformance.abort_ends_only_what_it_names),
  (_Parks, conformance.a_sleeping_replica_rejects),
  (_QueuesControl, conformance.control_calls_are_bounded),
  (_LabelsLate, conformance.keep_lets_requests_survive),
  (_KeepsMemory, conformance.a_sleeping_replica_rejects),
  (_OneTokenMore, conformance.one_token_is_one_token),
  (_IgnoresCancel, conformance.a_cancelled_attempt_leaves_the_device),
)


@pytest.mark.parametrize(
  ("broken", "law"), BROKEN, ids=[make.__name__ for make, _ in BROKEN]
)
def test_a_law_notices(broken, law):
  async def main():
    await law(await _kit(broken))

  with pytest.raises((AssertionError, TimeoutError)):
    run_virtual(main())


def test_a_failing_law_is_named():
  async def main():
    await conformance.check_all(await _kit(_OneTokenMore))

  with pytest.raises(AssertionError) as caught:
    run_virtual(main())
  assert caught.value.__notes__ == ["law of a replica: one_token_is_one_token"]
