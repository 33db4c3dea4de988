"""The laws of replica.py as checks that any implementation has to pass.

Each law takes a Kit, whose replica is AWAKE with loaded weights, and leaves it
so; the laws in LAST_LAWS leave it FAILED or STOPPED. They hold on real and on
virtual time. `check_all` runs them one after the other on one replica, because
some engines take half a minute to start.
"""

import asyncio
import dataclasses
import itertools
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import numpy as np

from hybridrl.models.bundle import WeightBundle
from hybridrl.rollout.replica import (
  GenerationRequest,
  GenerationResult,
  Replica,
  ReplicaFailed,
  ReplicaState,
  ReplicaStats,
  ReplicaUnavailable,
  SamplingConfig,
  WeightUpdateMode,
)


@dataclasses.dataclass(kw_only=True)
class Kit:
  """A replica and what the laws need to know of it.

  Attributes:
    replica: AWAKE, with weights.
    next_bundle: gives valid weights of the next version.
    prompts: [P] int32 each; at least four, all different.
    long_tokens: budget of an attempt that takes well over moment_s. Prompt and
      budget fit the replica.
    moment_s: in this time an attempt samples some tokens, not long_tokens.
    bound_s: control calls return within this.
    settle_s: results of aborted attempts are there this long after the control
      call that ended them.
    frees_memory: whether resident_bytes must fall when it sleeps.
  """

  replica: Replica
  next_bundle: Callable[[], WeightBundle]
  prompts: Sequence[np.ndarray]
  long_tokens: int
  moment_s: float
  bound_s: float
  settle_s: float = 0.25
  frees_memory: bool = True
  _numbers: itertools.count = dataclasses.field(default_factory=itertools.count)

  def request(
    self, i: int, max_new_tokens: int, so_far: np.ndarray | None = None
  ) -> GenerationRequest:
    """A new attempt at prompt i, without stop tokens."""
    prompt = np.asarray(self.prompts[i % len(self.prompts)], np.int32)
    if so_far is not None:
      prompt = np.concatenate([prompt, so_far])
    return GenerationRequest(
      request_id=f"law-{i}/{next(self._numbers)}",
      token_ids=prompt,
      max_new_tokens=max_new_tokens,
      sampling=SamplingConfig(temperature=1.0),
    )

  def launch(self, num: int) -> "dict[str, asyncio.Task[GenerationResult]]":
    """Starts `num` long attempts, by request id."""
    requests = [self.request(i, self.long_tokens) for i in range(num)]
    return {
      r.request_id: asyncio.create_task(self.replica.generate(r))
      for r in requests
    }

  async def bounded(self, call: Awaitable):
    """A control call, which has to return within bound_s."""
    async with asyncio.timeout(self.bound_s):
      return await call

  async def results(self, tasks: Mapping[str, asyncio.Task]) -> list:
    """Results that have to be there by now, or right after."""
    async with asyncio.timeout(self.settle_s):
      return [await task for task in tasks.values()]

  async def version(self) -> int:
    return (await self.replica.stats()).version


Law = Callable[[Kit], Awaitable[None]]


def check_result(result: GenerationResult, max_new_tokens: int) -> None:
  """I4: one length, within the budget; KV never newer than its token."""
  num = len(result.token_ids)
  assert num <= max_new_tokens, (num, max_new_tokens)
  for field in ("log_probs", "versions", "kv_versions"):
    assert len(getattr(result, field)) == num, field
  assert np.all(np.isfinite(result.log_probs))
  assert np.all(result.log_probs <= 1e-6)
  assert np.all(np.diff(result.versions) >= 0), result.versions
  assert np.all(result.kv_versions <= result.versions)
  assert result.finish_reason in ("stop", "length", "abort")
  if result.finish_reason == "length":
    assert num == max_new_tokens


async def one_token_is_one_token(kit: Kit) -> None:
  """X2: a budget of one gives exactly one token."""
  for i in range(2):
    result = await kit.replica.generate(kit.request(i, 1))
    check_result(result, 1)
    assert len(result.token_ids) == 1
    assert result.versions[0] == await kit.version()


async def every_attempt_returns_once(kit: Kit) -> None:
  budgets = [1 + 3 * i for i in range(8)]
  requests = [kit.request(i, budget) for i, budget in enumerate(budgets)]
  results = await asyncio.gather(*map(kit.replica.generate, requests))
  for result, budget in zip(results, budgets, strict=True):
    check_result(result, budget)
    assert result.finish_reason != "abort"
    assert len(result.token_ids) == budget
  assert (await kit.replica.stats()).num_in_flight == 0


async def abort_ends_only_what_it_names(kit: Kit) -> None:
  tasks = kit.launch(4)
  await asyncio.sleep(kit.moment_s)
  first, *others = tasks
  await kit.bounded(kit.replica.abort([first]))
  (result,) = await kit.results({first: tasks[first]})
  assert result.finish_reason == "abort"
  assert 0 < len(result.token_ids) < kit.long_tokens
  assert not any(tasks[i].done() for i in others)
  await kit.bounded(kit.replica.abort())
  for result in await kit.results({i: tasks[i] for i in others}):
    assert result.finish_reason == "abort"


async def abort_returns_when_the_device_is_idle(kit: Kit) -> None:
  """B7: with the partial tokens, and nothing goes on behind its back."""
  tasks = kit.launch(4)
  await asyncio.sleep(kit.moment_s)
  await kit.bounded(kit.replica.abort())
  for result in await kit.results(tasks):
    check_result(result, kit.long_tokens)
    assert result.finish_reason == "abort"
    assert 0 < len(result.token_ids) < kit.long_tokens
  before = await kit.replica.stats()
  await asyncio.sleep(kit.moment_s)
  after = await kit.replica.stats()
  assert before.num_in_flight == after.num_in_flight == 0
  assert before.generated_tokens == after.generated_tokens


async def abort_of_unknown_requests_is_harmless(kit: Kit) -> None:
  await kit.bounded(kit.replica.abort(["never-sent/0"]))
  await kit.bounded(kit.replica.abort([]))
  tasks = kit.launch(1)
  await asyncio.sleep(kit.moment_s)
  await kit.bounded(kit.replica.abort([]))
  await asyncio.sleep(0)
  assert not any(task.done() for task in tasks.values())
  await kit.bounded(kit.replica.abort())
  await kit.results(tasks)


async def an_interrupted_attempt_goes_on(kit: Kit) -> None:
  tasks = kit.launch(1)
  await asyncio.sleep(kit.moment_s)
  await kit.bounded(kit.replica.abort())
  (part,) = await kit.results(tasks)
  left = min(kit.long_tokens - len(part.token_ids), 5)
  rest = await kit.replica.generate(kit.request(0, left, part.token_ids))
  check_result(rest, left)
  assert len(rest.token_ids) == left


async def control_calls_are_bounded(kit: Kit) -> None:
  """B8: however many generate() calls are outstanding."""
  tasks = kit.launch(64)
  await asyncio.sleep(kit.moment_s)
  stats = await kit.bounded(kit.replica.stats())
  assert stats.num_in_flight == 64
  await kit.bounded(
    kit.replica.load_weights(kit.next_bundle(), WeightUpdateMode.KEEP)
  )
  await kit.bounded(kit.replica.abort())
  assert len(await kit.results(tasks)) == 64


async def keep_lets_requests_survive(kit: Kit) -> None:
  """Tokens carry the version that sampled them and that of their KV (O20)."""
  tasks = kit.launch(2)
  await asyncio.sleep(kit.moment_s)
  old, bundle = await kit.version(), kit.next_bundle()
  await kit.bounded(kit.replica.load_weights(bundle, WeightUpdateMode.KEEP))
  assert await kit.version() == bundle.version
  assert not any(task.done() for task in tasks.values())
  fresh = await kit.replica.generate(kit.request(3, 3))
  assert set(fresh.versions) == set(fresh.kv_versions) == {bundle.version}
  await asyncio.sleep(kit.moment_s)
  await kit.bounded(kit.replica.abort())
  for result in await kit.results(tasks):
    check_result(result, kit.long_tokens)
    assert set(result.versions) == {old, bundle.version}
    assert set(result.kv_versions) == {old}


async def other_modes_end_requests(kit: Kit) -> None:
  for mode in (WeightUpdateMode.REPREFILL, WeightUpdateMode.ABORT):
    tasks = kit.launch(2)
    await asyncio.sleep(kit.moment_s)
    old, bundle = await kit.version(), kit.next_bundle()
    await kit.bounded(kit.replica.load_weights(bundle, mode))
    for result in await kit.results(tasks):
      check_result(result, kit.long_tokens)
      assert result.finish_reason == "abort"
      assert set(result.versions) == {old}
    fresh = await kit.replica.generate(kit.request(0, 3))
    assert set(fresh.versions) == set(fresh.kv_versions) == {bundle.version}


async def a_sleeping_replica_rejects(kit: Kit) -> None:
  """B6: at once; sleep() delivers partial tokens and gives memory back."""
  replica = kit.replica
  awake = await replica.stats()
  tasks = kit.launch(3)
  await asyncio.sleep(kit.moment_s)
  await kit.bounded(replica.sleep())
  for result in await kit.results(tasks):
    assert result.finish_reason == "abort"
    assert len(result.token_ids)
  asleep = await replica.stats()
  assert asleep.state == ReplicaState.ASLEEP
  assert asleep.num_in_flight == 0
  assert asleep.version == -1
  if kit.frees_memory:
    assert asleep.resident_bytes < awake.resident_bytes
  await kit.bounded(replica.sleep())  # idempotent
  await _check_rejects(kit)
  await _wake(kit)


async def waking_can_be_taken_back(kit: Kit) -> None:
  """A replica that was woken half-way goes to sleep again."""
  replica = kit.replica
  await kit.bounded(replica.sleep())
  await kit.bounded(replica.wake_weights())
  await _check_rejects(kit)
  await kit.bounded(
    replica.load_weights(kit.next_bundle(), WeightUpdateMode.KEEP)
  )
  await _check_rejects(kit)
  await kit.bounded(replica.sleep())
  assert (await replica.stats()).state == ReplicaState.ASLEEP
  await _wake(kit)


async def a_cancelled_attempt_leaves_the_device(kit: Kit) -> None:
  tasks = kit.launch(2)
  await asyncio.sleep(kit.moment_s)
  kept, cancelled = tasks
  tasks[cancelled].cancel()
  async with asyncio.timeout(kit.bound_s):
    await asyncio.wait([tasks[cancelled]])
    await _until(kit, lambda stats: stats.num_in_flight == 1)
  assert tasks[cancelled].cancelled()
  await kit.bounded(kit.replica.abort())
  (result,) = await kit.results({kept: tasks[kept]})
  assert result.finish_reason == "abort"
  await asyncio.sleep(kit.moment_s)
  before = (await kit.replica.stats()).generated_tokens
  await asyncio.sleep(kit.moment_s)
  assert (await kit.replica.stats()).generated_tokens == before


async def damaged_weights_are_refused(kit: Kit) -> None:
  """They never serve: the replica is FAILED afterwards."""
  good = kit.next_bundle()
  damaged = np.array(good.buffer, copy=True)
  damaged[0] ^= 0xFF
  assert zlib.crc32(damaged.data) != good.checksum
  bundle = dataclasses.replace(good, buffer=damaged)
  try:
    await kit.bounded(kit.replica.load_weights(bundle, WeightUpdateMode.KEEP))
  except ReplicaFailed:
    pass
  else:
    raise AssertionError("damaged weights were loaded")
  stats = await kit.bounded(kit.replica.stats())
  assert stats.state == ReplicaState.FAILED
  await _check_rejects(kit, ReplicaFailed)


async def stop_is_idempotent(kit: Kit) -> None:
  await kit.bounded(kit.replica.stop())
  await kit.bounded(kit.replica.stop())
  await _check_rejects(kit)


LAWS: tuple[Law, ...] = (
  one_token_is_one_token,
  every_attempt_returns_once,
  abort_ends_only_what_it_names,
  abort_returns_when_the_device_is_idle,
  abort_of_unknown_requests_is_harmless,
  an_interrupted_attempt_goes_on,
  control_calls_are_bounded,
  keep_lets_requests_survive,
  other_modes_end_requests,
  a_sleeping_replica_rejects,
  waking_can_be_taken_back,
  a_cancelled_attempt_leaves_the_device,
)

# In this order: a failed replica can still be stopped.
LAST_LAWS: tuple[Law, ...] = (damaged_weights_are_refused, stop_is_idempotent)


async def check_all(kit: Kit, skip: Sequence[Law] = ()) -> None:
  """Runs every law but those in `skip` on one replica."""
  for law in (*LAWS, *LAST_LAWS):
    if law in skip:
      continue
    try:
      await law(kit)
    except BaseException as error:
      error.add_note(f"law of a replica: {getattr(law, '__name__', law)}")
      raise


async def _wake(kit: Kit) -> None:
  """The order of the life cycle; wake_weights is idempotent."""
  bundle = kit.next_bundle()
  await kit.bounded(kit.replica.wake_weights())
  await kit.bounded(kit.replica.wake_weights())
  await kit.bounded(kit.replica.load_weights(bundle, WeightUpdateMode.KEEP))
  await kit.bounded(kit.replica.wake_kv_cache())
  stats = await kit.replica.stats()
  assert stats.state == ReplicaState.AWAKE
  assert stats.version == bundle.version
  result = await kit.replica.generate(kit.request(0, 4))
  check_result(result, 4)
  assert set(result.versions) == {bundle.version}


async def _check_rejects(
  kit: Kit,
  error: type[Exception] | tuple[type[Exception], ...] = ReplicaUnavailable,
) -> None:
  try:
    await kit.bounded(kit.replica.generate(kit.request(0, 4)))
  except error:
    return
  raise AssertionError("the replica took a request")


async def _until(kit: Kit, met: Callable[[ReplicaStats], bool]) -> None:
  """Polls; the caller sets the deadline."""
  while not met(await kit.replica.stats()):  # noqa: ASYNC110 (any replica)
    await asyncio.sleep(kit.bound_s / 100)
