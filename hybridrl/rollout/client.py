"""Generates whole responses on a fleet whose replicas come and go.

`GenerationClient.generate` hides aborts, sleeping and failing replicas: an
interrupted response goes on elsewhere from exactly the tokens that it has,
within the budget of the whole response. Laws:

  * The result is 'stop' or 'length', never 'abort', and never has more than
    max_new_tokens tokens over any number of attempts.
  * Tokens carry the versions that the replica reported for them.
  * A lease is released exactly when its attempt is over, however it ends.
  * Every wait ends: at the attempt's end, its time-out, or the deadline for
    finding a replica, with an error that names the response and the cause.
  * A failed replica is unrouted at once, and reported once per life.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hybridrl.rollout import routing
from hybridrl.rollout.balancer import Lease, LoadBalancer, NoReplica
from hybridrl.rollout.flights import Flight, Flights, ReplicaUsage
from hybridrl.rollout.replica import (
  GenerationRequest,
  GenerationResult,
  Replica,
  ReplicaFailed,
  ReplicaUnavailable,
  SamplingConfig,
  WeightUpdateMode,
)
from hybridrl.rollout.trajectory import Trajectory, check_part

# A response whose attempts kill this many replicas in a row, without a token
# in between, is taken for their cause and given up.
MAX_FAILURES_IN_A_ROW = 4
# A replica that has not acted on an abort by then broke the law of bounded
# control calls and counts as failed.
CONTROL_TIMEOUT_S = 20.0


class GenerationStalled(TimeoutError):
  """A response found no replica within its deadline."""


@dataclasses.dataclass(kw_only=True)
class ClientCounters:
  """Totals since the run began.

  Attributes:
    responses: responses that were delivered.
    kept_tokens: tokens of attempts that went into responses.
    discarded_tokens: partial tokens that were thrown away on an abort.
    reprefilled_tokens: tokens that a second or later attempt was given.
    aborted_attempts: attempts that ended with 'abort'.
    moved_attempts: attempts on another replica than the one before.
    rejected_attempts: attempts that a replica refused.
    failed_attempts: attempts that ended with the failure of the replica.
  """

  responses: int = 0
  kept_tokens: int = 0
  discarded_tokens: int = 0
  reprefilled_tokens: int = 0
  aborted_attempts: int = 0
  moved_attempts: int = 0
  rejected_attempts: int = 0
  failed_attempts: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class RebalanceResult:
  """What a rebalance did.

  Attributes:
    moved: requests that were ended where they were, to go on elsewhere.
    prefix_tokens: estimate of the tokens to be prefilled again for that.
  """

  moved: int
  prefix_tokens: float


class GenerationClient:
  """See the module docstring. All calls come from one event loop.

  Args:
    replicas: by name; may gain entries later.
    balancer: tells which of them are routable; shared with its other users.
    partial_rollout: whether an aborted response goes on from its partial
      tokens. If not, they are thrown away and the response starts again.
    weight_update_mode: under ABORT, partial tokens are thrown away too.
    clock: seconds, that of the loop's timers.
    wait_timeout_s: how long a response may wait for a replica. Where all
      replicas can be away on purpose, as in a colocated fleet that trains, it
      has to be longer than that.
    attempt_timeout_s: after this an attempt counts as the failure of its
      replica. Longer than the longest response takes.
    on_replica_failed: told once of the failure of each life of a replica.
  """

  def __init__(
    self,
    replicas: Mapping[str, Replica],
    balancer: LoadBalancer,
    *,
    partial_rollout: bool = True,
    weight_update_mode: WeightUpdateMode = WeightUpdateMode.KEEP,
    clock: Callable[[], float],
    wait_timeout_s: float,
    attempt_timeout_s: float = 3600.0,
    on_replica_failed: Callable[[str, Exception], None] | None = None,
  ):
    self.counters = ClientCounters()
    self._replicas = replicas
    self._balancer = balancer
    self._discards = (
      not partial_rollout or weight_update_mode == WeightUpdateMode.ABORT
    )
    self._clock = clock
    self._wait_timeout_s = wait_timeout_s
    self._attempt_timeout_s = attempt_timeout_s
    self._on_replica_failed = on_replica_failed
    self._flights = Flights()
    self._attempt_numbers = itertools.count()
    self._reported_lives: set[int] = set()
    self._num_waiting = 0

  async def generate(
    self,
    prompt_ids: np.ndarray,
    max_new_tokens: int,
    sampling: SamplingConfig,
    key: str,
  ) -> GenerationResult:
    """Generates one whole response. Implements workflow.Generate.

    Raises:
      GenerationStalled: no replica took it within wait_timeout_s.
      ReplicaFailed: it seems to kill every replica that it meets.
    """
    if max_new_tokens < 1:
      raise ValueError(f"{key}: max_new_tokens={max_new_tokens}, 1 or more")
    if not len(prompt_ids):
      raise ValueError(f"{key}: the prompt is empty")
    trajectory = Trajectory(prompt_ids, max_new_tokens, sampling, key)
    while True:
      lease = await self._acquire(trajectory)
      try:
        part = await self._attempt(lease, trajectory)
      except ReplicaUnavailable as error:
        self._note_refusal(trajectory, lease, error)
        continue
      except ReplicaFailed as error:
        self._note_failure(trajectory, lease, error)
        continue
      self._take(trajectory, part)
      finish_reason = trajectory.finish_reason()
      if finish_reason is not None:
        self.counters.responses += 1
        return trajectory.result(finish_reason)

  async def rebalance(self, new: Sequence[str] = ()) -> RebalanceResult:
    """Moves the fewest, cheapest requests that level the routable replicas.

    Ends those requests where they are; their generate() calls take them to the
    least-loaded replicas at once. Waits for nothing else.

    Args:
      new: the replicas for whose sake this happens; if none of them is
        routable any more, nothing is moved. Empty: level in any case.
    """
    routable = self._balancer.routable()
    if new and not set(new) & set(routable):
      return RebalanceResult(moved=0, prefix_tokens=0.0)
    movable = self._flights.movable(self._clock())
    moves = routing.plan_rebalance(movable, routable)
    moving = {move.request_id for move in moves}
    by_replica: dict[str, list[Flight]] = {}
    for flight in self._flights:
      if flight.request_id in moving:
        by_replica.setdefault(flight.lease.replica, []).append(flight)
        self._balancer.clear_sticky(flight.key)
    await asyncio.gather(*(self._end(f) for f in by_replica.values()))
    return RebalanceResult(
      moved=len(moves), prefix_tokens=sum(m.prefix_tokens for m in moves)
    )

  def in_flight(self, replica: str | None = None) -> tuple[Flight, ...]:
    """Attempts on a replica (None: on any), oldest first within each."""
    return (
      tuple(self._flights) if replica is None else self._flights.on(replica)
    )

  @property
  def num_waiting(self) -> int:
    """Responses that wait for a replica now."""
    return self._num_waiting

  def usage(self, replica: str) -> ReplicaUsage:
    """Totals of one replica up to now."""
    return self._flights.usage(replica, self._clock())

  async def wait_idle(self, replica: str, timeout_s: float) -> bool:
    """Waits until nothing of this client is in flight on a replica.

    An unrouted replica that is idle stays so: a request counts as in flight
    from the moment that it has its lease.

    Returns:
      False if something still is after timeout_s.
    """
    try:
      async with asyncio.timeout(timeout_s):
        await self._flights.wait_idle(replica)
    except TimeoutError:
      return False
    return True

  def give_up(self, replica: str, error: ReplicaFailed) -> int:
    """Takes all attempts off a replica that does not answer any more.

    They go on elsewhere; what they sampled in this attempt is lost. Unroutes
    the replica. The caller knows of the failure: it is not reported again.

    Returns:
      The number of attempts.
    """
    flights = self._flights.on(replica)
    self._balancer.remove(replica)
    for flight in flights:
      self._reported_lives.add(flight.lease.life)
      flight.expel(error)
    return len(flights)

  async def _acquire(self, trajectory: Trajectory) -> Lease:
    """A lease, after a wait within the trajectory's deadline."""
    # A first refusal is the race with a leaving replica; later ones are not.
    if trajectory.fruitless <= 1 and self._balancer.routable():
      return self._balancer.acquire(trajectory.key, avoid=trajectory.refused_by)
    started_s = self._clock()
    self._num_waiting += 1
    try:
      async with asyncio.timeout(self._wait_timeout_s - trajectory.waited_s):
        return await self._wait_and_acquire(trajectory)
    except TimeoutError:
      raise GenerationStalled(
        f"generation client: response {trajectory.key} found no replica within"
        f" {self._wait_timeout_s:g} s (routable:"
        f" {', '.join(self._balancer.routable()) or 'none'}; last answer:"
        f" {trajectory.last_error!r})"
      ) from trajectory.last_error
    finally:
      self._num_waiting -= 1
      trajectory.waited_s += self._clock() - started_s

  async def _wait_and_acquire(self, trajectory: Trajectory) -> Lease:
    await asyncio.sleep(trajectory.backoff_s())
    while True:
      await self._balancer.wait_routable()
      try:
        return self._balancer.acquire(
          trajectory.key, avoid=trajectory.refused_by
        )
      except NoReplica:  # it left before this task ran
        continue

  async def _attempt(
    self, lease: Lease, trajectory: Trajectory
  ) -> GenerationResult:
    """Runs one attempt; the lease ends with it."""
    request = GenerationRequest(
      request_id=f"{trajectory.key}/{next(self._attempt_numbers)}",
      token_ids=trajectory.token_ids,
      max_new_tokens=trajectory.budget,
      sampling=trajectory.sampling,
    )
    flight = Flight(
      request_id=request.request_id,
      key=trajectory.key,
      lease=lease,
      prefix_tokens=len(request.token_ids),
      max_new_tokens=request.max_new_tokens,
      started_s=self._clock(),
    )
    self._flights.begin(flight)
    part = None
    try:
      part = await self._call(flight, request)
      check_part(part, request, lease.replica)
      self._note_attempt(trajectory, flight)
      return part
    finally:
      self._flights.end(
        flight,
        self._clock(),
        num_tokens=0 if part is None else len(part.token_ids),
        finished=part is not None and part.finish_reason != "abort",
      )
      self._balancer.release(lease)

  async def _call(
    self, flight: Flight, request: GenerationRequest
  ) -> GenerationResult:
    replica = self._replicas[flight.lease.replica]
    flight.call = asyncio.ensure_future(replica.generate(request))
    overdue = ReplicaFailed(
      f"replica {replica.name}: no result of {request.request_id} within"
      f" {self._attempt_timeout_s:g} s"
    )
    timer = asyncio.get_running_loop().call_later(
      self._attempt_timeout_s, flight.expel, overdue
    )
    try:
      return await flight.call
    except asyncio.CancelledError:
      task = asyncio.current_task()
      cancelled = task is not None and task.cancelling()
      if cancelled:
        raise
      # The call was cancelled, not the caller: by expel, or by the replica.
      raise flight.expelled or ReplicaFailed(
        f"replica {replica.name} cancelled {request.request_id}"
      ) from None
    finally:
      timer.cancel()

  async def _end(self, flights: Sequence[Flight]) -> None:
    """Aborts requests that are on one replica, in bounded time."""
    lease = flights[0].lease
    replica = self._replicas[lease.replica]
    try:
      async with asyncio.timeout(CONTROL_TIMEOUT_S):
        await replica.abort([flight.request_id for flight in flights])
    except ReplicaUnavailable:
      pass  # it is stopping, which ends its requests as well
    except ReplicaFailed as error:
      self._report(lease, error)
    except TimeoutError:
      error = ReplicaFailed(
        f"replica {lease.replica}: abort not done within"
        f" {CONTROL_TIMEOUT_S:g} s"
      )
      self._report(lease, error)
      self.give_up(lease.replica, error)

  def _take(self, trajectory: Trajectory, part: GenerationResult) -> None:
    """Keeps or discards what an attempt sampled."""
    num_tokens = len(part.token_ids)
    if num_tokens:
      trajectory.progressed()
    else:
      trajectory.fruitless += 1
    if part.finish_reason == "abort":
      self.counters.aborted_attempts += 1
      if self._discards:
        self.counters.discarded_tokens += num_tokens
        return
    self.counters.kept_tokens += num_tokens
    trajectory.append(part)

  def _note_attempt(self, trajectory: Trajectory, flight: Flight) -> None:
    name = flight.lease.replica
    if trajectory.last_replica is not None:
      self.counters.reprefilled_tokens += flight.prefix_tokens
      self.counters.moved_attempts += trajectory.last_replica != name
    trajectory.last_replica = name

  def _note_refusal(
    self, trajectory: Trajectory, lease: Lease, error: ReplicaUnavailable
  ) -> None:
    self.counters.rejected_attempts += 1
    trajectory.fruitless += 1
    trajectory.refused_by = lease.replica
    trajectory.last_error = error

  def _note_failure(
    self, trajectory: Trajectory, lease: Lease, error: ReplicaFailed
  ) -> None:
    """Raises if the response seems to be the cause of the failures."""
    self.counters.failed_attempts += 1
    self._report(lease, error)
    trajectory.failures += 1
    trajectory.last_replica = lease.replica
    trajectory.last_error = error
    if trajectory.failures >= MAX_FAILURES_IN_A_ROW:
      raise ReplicaFailed(
        f"response {trajectory.key}: {trajectory.failures} replicas failed in"
        f" a row under it; the last: {error}"
      ) from error

  def _report(self, lease: Lease, error: ReplicaFailed) -> None:
    self._balancer.remove(lease.replica, life=lease.life)
    if lease.life not in self._reported_lives:
      self._reported_lives.add(lease.life)
      if self._on_replica_failed is not None:
        self._on_replica_failed(lease.replica, error)
