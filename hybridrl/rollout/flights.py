"""Bookkeeping of attempts: what runs where, since when, at which speed."""

import asyncio
import dataclasses
from collections.abc import Iterator

from hybridrl.rollout.balancer import Lease
from hybridrl.rollout.routing import Movable

# Weight of the newest attempt in the estimate of a replica's decode speed:
# about the last ten attempts count.
SPEED_WEIGHT = 0.1


@dataclasses.dataclass(eq=False, slots=True)
class Flight:
  """One attempt between its lease and its end.

  Attributes:
    request_id: of the attempt.
    key: of the response.
    lease: the replica that it runs on.
    prefix_tokens: tokens that it was given.
    max_new_tokens: budget of the attempt.
    started_s: when it was sent.
    call: the running generate() call; None before it is made.
    expelled: why the client gave the attempt up, where it did.
  """

  request_id: str
  key: str
  lease: Lease
  prefix_tokens: int
  max_new_tokens: int
  started_s: float
  call: asyncio.Future | None = None
  expelled: Exception | None = None

  def expel(self, error: Exception) -> None:
    """Gives the attempt up; the request goes on as if it had failed so."""
    if self.expelled is None and self.call is not None:
      self.expelled = error
      self.call.cancel()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaUsage:
  """What one replica did for this client since the run began.

  Attributes:
    num_in_flight: attempts that run now.
    finished_responses: responses whose last token it sampled.
    generated_tokens: tokens that were delivered, discarded ones included.
    busy_s: seconds with at least one attempt in flight.
    request_s: seconds summed over attempts; over busy_s it is the mean
      concurrency.
  """

  num_in_flight: int
  finished_responses: int
  generated_tokens: int
  busy_s: float
  request_s: float


class _OnReplica:
  """The attempts of one replica, whichever its life."""

  def __init__(self):
    self.flights: dict[str, Flight] = {}
    self.idle = asyncio.Event()
    self.idle.set()
    self.finished_responses = 0
    self.generated_tokens = 0
    self.busy_s = 0.0
    self.request_s = 0.0
    self.changed_s = 0.0
    self.seconds_per_token: float | None = None

  def settle(self, now_s: float) -> None:
    """Adds up the time since the last change."""
    passed_s = now_s - self.changed_s
    self.changed_s = now_s
    if self.flights:
      self.busy_s += passed_s
      self.request_s += passed_s * len(self.flights)


class Flights:
  """All attempts of a client. Times are the caller's clock, in seconds."""

  def __init__(self):
    self._by_replica: dict[str, _OnReplica] = {}

  def __len__(self) -> int:
    return sum(len(on.flights) for on in self._by_replica.values())

  def __iter__(self) -> Iterator[Flight]:
    for on in self._by_replica.values():
      yield from on.flights.values()

  def on(self, replica: str) -> tuple[Flight, ...]:
    """Attempts on a replica, oldest first."""
    return tuple(self._on(replica).flights.values())

  def begin(self, flight: Flight) -> None:
    on = self._on(flight.lease.replica)
    on.settle(flight.started_s)
    on.flights[flight.request_id] = flight
    on.idle.clear()

  def end(
    self, flight: Flight, now_s: float, *, num_tokens: int, finished: bool
  ) -> None:
    """Closes an attempt that delivered num_tokens."""
    on = self._on(flight.lease.replica)
    on.settle(now_s)
    del on.flights[flight.request_id]
    on.generated_tokens += num_tokens
    on.finished_responses += finished
    if num_tokens:
      newest = (now_s - flight.started_s) / num_tokens
      known = on.seconds_per_token
      on.seconds_per_token = (
        newest if known is None else known + SPEED_WEIGHT * (newest - known)
      )
    if not on.flights:
      on.idle.set()

  def movable(self, now_s: float) -> list[Movable]:
    """All attempts with the prefix that each would have to prefill now.

    The tokens of a running attempt are not seen from here; its age over the
    replica's recent seconds per token estimates them.
    """
    return [
      Movable(f.request_id, name, f.prefix_tokens + _guess(f, on, now_s))
      for name, on in self._by_replica.items()
      for f in on.flights.values()
    ]

  def usage(self, replica: str, now_s: float) -> ReplicaUsage:
    on = self._on(replica)
    on.settle(now_s)
    return ReplicaUsage(
      num_in_flight=len(on.flights),
      finished_responses=on.finished_responses,
      generated_tokens=on.generated_tokens,
      busy_s=on.busy_s,
      request_s=on.request_s,
    )

  async def wait_idle(self, replica: str) -> None:
    """Returns once nothing is in flight there. The caller sets the deadline."""
    await self._on(replica).idle.wait()

  def _on(self, replica: str) -> _OnReplica:
    if replica not in self._by_replica:
      self._by_replica[replica] = _OnReplica()
    return self._by_replica[replica]


def _guess(flight: Flight, on: _OnReplica, now_s: float) -> float:
  """Tokens that the attempt has sampled by now, as far as one can tell."""
  if not on.seconds_per_token:
    # No attempt has ended here yet: age alone orders them, below one token.
    return 1.0 - 1.0 / (1.0 + now_s - flight.started_s)
  sampled = (now_s - flight.started_s) / on.seconds_per_token
  return min(sampled, flight.max_new_tokens)
