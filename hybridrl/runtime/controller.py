"""Wakes and reclaims hybrid replicas: the life of what is lent.

STANDALONE_ONLY <-> HYBRID_ACTIVE. Which it is, and which replicas are lent, is
read from the balancer's routable set; no flag repeats it. Laws:

  * Activation: wake for weights -> load -> wake KV cache -> check -> register
    -> rebalance. No replica takes requests before it holds the last published
    weights (I2).
  * Reclaim: unroute -> drain -> abort -> sleep -> check. When `reconcile`
    returns, whatever is not lent sleeps or is stopped.
  * A step that fails rolls the replica back to sleep; one that cannot be
    brought to sleep is stopped. The replica's own state is asked for, not
    assumed.
"""

import asyncio
import collections
import dataclasses
import enum
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hybridrl.reporting.reporter import Reporter
from hybridrl.rollout.balancer import LoadBalancer
from hybridrl.rollout.client import GenerationClient, RebalanceResult
from hybridrl.rollout.replica import Replica, ReplicaFailed, ReplicaState
from hybridrl.runtime.parts import Limits
from hybridrl.runtime.policy_runner import LiveDecision
from hybridrl.runtime.replica_set import ReplicaSet
from hybridrl.runtime.waiting import Waits
from hybridrl.runtime.weight_sync import WeightSync


class FleetState(enum.StrEnum):
  STANDALONE_ONLY = "STANDALONE_ONLY"
  HYBRID_ACTIVE = "HYBRID_ACTIVE"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Switch:
  """One activation or reclaim.

  Attributes:
    kind: 'activate' or 'reclaim'.
    names: replicas for which it succeeded.
    failed: replicas for which it did not.
    started_s: seconds since the run began.
    duration_s: of the whole, rebalance included.
    rebalance_s: of the rebalance alone.
    moved_requests: requests that the rebalance moved.
    interrupted_requests: requests that a reclaim ended.
    reprefilled_before: the client's count of tokens when it began; what is
      counted after is its doing.
  """

  kind: str
  names: tuple[str, ...]
  failed: tuple[str, ...]
  started_s: float
  duration_s: float
  rebalance_s: float = 0.0
  moved_requests: int = 0
  interrupted_requests: int = 0
  reprefilled_before: int = 0


class RebalanceHandle:
  """What a policy's own request_rebalance may do."""

  def __init__(
    self,
    client: GenerationClient,
    balancer: LoadBalancer,
    new: tuple[str, ...],
  ):
    self._client = client
    self._balancer = balancer
    self._new = new
    self.moves: list[asyncio.Task[RebalanceResult]] = []

  def move(self) -> asyncio.Task[RebalanceResult]:
    """Moves the fewest, cheapest requests that level the loads."""
    task = asyncio.create_task(self._client.rebalance(self._new))
    self.moves.append(task)
    return task

  def clear_sticky(self) -> None:
    """Forgets which replica served which response."""
    self._balancer.clear_sticky()


class DynamicResourceController:
  """See the module docstring.

  Args:
    replicas: of the run.
    balancer, client: where requests go, and what is in flight.
    weights: loads the last published weights.
    enable_rebalance: --dynamic_schedule_enable_rebalance.
    custom_rebalance: a policy's own, in place of the built-in one; None: none.
    waits, limits: see there.
    clock: seconds since the run began.
    reporter: gets events and spans.
    on_switch: told of every switch when it is over.
  """

  def __init__(
    self,
    *,
    replicas: ReplicaSet,
    balancer: LoadBalancer,
    client: GenerationClient,
    weights: WeightSync,
    enable_rebalance: bool,
    custom_rebalance: Callable[[RebalanceHandle], Awaitable[None]] | None,
    waits: Waits,
    limits: Limits,
    clock: Callable[[], float],
    reporter: Reporter,
    on_switch: Callable[[Switch], None],
  ):
    self._replicas = replicas
    self._balancer = balancer
    self._client = client
    self._weights = weights
    self._enable_rebalance = enable_rebalance
    self._custom_rebalance = custom_rebalance
    self._waits = waits
    self._limits = limits
    self._clock = clock
    self._reporter = reporter
    self._on_switch = on_switch
    self._failures: collections.Counter[str] = collections.Counter()
    self._lent_since_s: dict[str, float] = {}

  @property
  def lent(self) -> tuple[str, ...]:
    """Hybrid replicas that take requests now, in the order of lending."""
    routable = frozenset(self._balancer.routable())
    return tuple(n for n in self._replicas.hybrid if n in routable)

  @property
  def state(self) -> FleetState:
    return FleetState.HYBRID_ACTIVE if self.lent else FleetState.STANDALONE_ONLY

  async def reconcile(self, decision: LiveDecision) -> bool:
    """Brings the fleet to the decision, as far as it can.

    Returns:
      Whether as many replicas serve as the decision wants.

    Raises:
      FleetLost: no replica is left, or a failed one cannot be stopped.
    """
    self._note_failures()
    wanted = self._replicas.healthy_hybrid[: decision.lend]
    leaving = [name for name in self.lent if name not in wanted]
    if leaving:
      await self._reclaim(leaving, decision.drain_s)
    coming = [name for name in wanted if name not in self.lent]
    if coming:
      await self._activate(coming, decision.rebalance)
    self._replicas.check_alive()
    if not self.lent:
      await self._replicas.devices_returned()
    return len(self.lent) >= decision.lend

  def _note_failures(self) -> None:
    """Closes the spans of replicas that failed in service."""
    for name in self._replicas.failed:
      if name in self._lent_since_s:
        since_s = self._lent_since_s.pop(name)
        self._reporter.span(name, "rollout", since_s, self._clock())

  async def _activate(self, names: Sequence[str], rebalance: bool) -> None:
    started_s = self._clock()
    reprefilled = self._client.counters.reprefilled_tokens
    errors = await asyncio.gather(*(self._wake(name) for name in names))
    awake = tuple(n for n, e in zip(names, errors, strict=True) if e is None)
    before_s, moved = self._clock(), 0
    if awake and rebalance and self._enable_rebalance:
      moved = await self._rebalance(awake)
    now_s = self._clock()
    for name in awake:
      self._reporter.span(name, "activate", started_s, before_s)
    self._on_switch(
      Switch(
        kind="activate",
        names=awake,
        failed=tuple(n for n in names if n not in awake),
        started_s=started_s,
        duration_s=now_s - started_s,
        rebalance_s=now_s - before_s,
        moved_requests=moved,
        reprefilled_before=reprefilled,
      )
    )

  async def _wake(self, name: str) -> Exception | None:
    """Brings one replica into service, or back to sleep."""
    replica = self._replicas.hybrid[name]
    try:
      await self._call(replica, "wake_weights")
      await self._weights.load(replica)
      await self._call(replica, "wake_kv_cache")
      await self._check(replica, ReplicaState.AWAKE)
    except Exception as error:  # whatever it is, the replica is not in service
      await self._put_back(replica, error)
      return error
    if name in self._replicas.failed:
      return self._replicas.failed[name]
    self._failures[name] = 0
    self._lent_since_s[name] = self._clock()
    self._balancer.add(name)
    self._waits.notify()
    return None

  async def _put_back(self, replica: Replica, error: Exception) -> None:
    """Rolls a failed activation back to a state that is true."""
    self._failures[replica.name] += 1
    self._reporter.event(
      "activate_failed",
      f"{replica.name} could not be activated: {error}",
      replica=replica.name,
      error=type(error).__name__,
    )
    if self._failures[replica.name] >= self._limits.switch_failures_in_a_row:
      self._replicas.fail(replica.name, error)
      return
    try:
      await self._call(replica, "sleep")
      await self._check(replica, ReplicaState.ASLEEP)
    except Exception:  # the first failure is the one to tell of
      self._replicas.fail(replica.name, error)

  async def _reclaim(self, names: Sequence[str], drain_s: float) -> None:
    started_s = self._clock()
    reprefilled = self._client.counters.reprefilled_tokens
    for name in names:
      self._balancer.remove(name)
    self._waits.notify()
    interrupted = await asyncio.gather(
      *(self._return(name, drain_s) for name in names)
    )
    now_s = self._clock()
    for name in names:
      since_s = self._lent_since_s.pop(name, started_s)
      self._reporter.span(name, "rollout", since_s, started_s)
      self._reporter.span(name, "reclaim", started_s, now_s)
    failed = tuple(n for n in names if n in self._replicas.failed)
    self._on_switch(
      Switch(
        kind="reclaim",
        names=tuple(n for n in names if n not in failed),
        failed=failed,
        started_s=started_s,
        duration_s=now_s - started_s,
        interrupted_requests=sum(interrupted),
        reprefilled_before=reprefilled,
      )
    )

  async def _return(self, name: str, drain_s: float) -> int:
    """Puts one unrouted replica to sleep; returns the requests it ended."""
    replica, interrupted = self._replicas.hybrid[name], 0
    try:
      if drain_s > 0:
        await self._client.wait_idle(name, drain_s)
      interrupted = len(self._client.in_flight(name))
      await self._call(replica, "abort")
      await self._call(replica, "sleep")
      await self._check(replica, ReplicaState.ASLEEP)
    except Exception as error:  # it must not keep what training needs
      self._client.give_up(name, ReplicaFailed(f"{name}: {error}"))
      self._replicas.fail(name, error)
    return interrupted

  async def _rebalance(self, new: tuple[str, ...]) -> int:
    """Moves requests toward the new replicas; returns how many."""
    if self._custom_rebalance is None:
      return (await self._client.rebalance(new)).moved
    handle = RebalanceHandle(self._client, self._balancer, new)
    await self._custom_rebalance(handle)
    results = await asyncio.gather(*handle.moves)
    return sum(result.moved for result in results)

  async def _check(self, replica: Replica, wanted: ReplicaState) -> None:
    """Asks the replica itself."""
    stats: Any = await self._call(replica, "stats")
    if stats.state is not wanted:
      raise ReplicaFailed(f"{replica.name} is {stats.state}, not {wanted}")
    version = self._weights.bundle.version
    if wanted is ReplicaState.AWAKE and stats.version < version:
      raise ReplicaFailed(
        f"{replica.name} holds version {stats.version}, not {version}"
      )

  async def _call(self, replica: Replica, method: str) -> Any:
    return await self._waits.within(
      getattr(replica, method)(),
      owner=replica.name,
      reason=method,
      deadline_s=self._limits.switch_s,
    )
