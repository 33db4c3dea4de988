"""Which replicas are routable, and how loaded: host state around routing.py.

A request holds a Lease while it is on a replica. Every registration of a name
is a new *life*; a lease belongs to one life, so that a request that is released
late, after its replica has left and come back, does not touch the new life's
load. Not thread-safe: all calls come from one event loop.
"""

import asyncio
import collections
import dataclasses

from hybridrl.rollout import routing

# Keys whose last replica is remembered; the oldest is forgotten first. Enough
# for every request that a large fleet can have in flight.
MAX_STICKY_KEYS = 1 << 16


class NoReplica(Exception):
  """No replica takes requests now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
  """The right to run one request on one life of a replica."""

  replica: str
  life: int
  number: int


@dataclasses.dataclass(slots=True)
class _Life:
  life: int
  load: int = 0
  last_chosen: int = 0


class LoadBalancer:
  """See the module docstring."""

  def __init__(self, *, sticky_slack: int = routing.STICKY_SLACK):
    self._sticky_slack = sticky_slack
    self._lives: dict[str, _Life] = {}
    self._open: set[int] = set()
    self._sticky: collections.OrderedDict[str, tuple[str, int]] = (
      collections.OrderedDict()
    )
    self._counter = 0
    self._some_routable = asyncio.Event()

  def add(self, name: str) -> None:
    """Makes a replica routable; no effect where it is (its load stays)."""
    if name not in self._lives:
      self._lives[name] = _Life(self._next())
      self._some_routable.set()

  def remove(self, name: str, *, life: int | None = None) -> bool:
    """Makes a replica unroutable. Its open leases end without effect.

    Args:
      name: of the replica.
      life: only if it is still this life (None: whichever it is).

    Returns:
      Whether anything was removed.
    """
    found = self._lives.get(name)
    if found is None or life is not None and found.life != life:
      return False
    del self._lives[name]
    if not self._lives:
      self._some_routable.clear()
    return True

  def routable(self) -> tuple[str, ...]:
    """Names in the order of their registration."""
    return tuple(self._lives)

  def loads(self) -> dict[str, int]:
    """Requests on each routable replica."""
    return {name: life.load for name, life in self._lives.items()}

  def acquire(self, sticky_key: str, *, avoid: str | None = None) -> Lease:
    """Picks a replica for a request.

    Args:
      sticky_key: requests of one key prefer one replica.
      avoid: a replica that just refused this request; taken only if there is
        no other.

    Raises:
      NoReplica: none is routable.
    """
    names = [name for name in self._lives if name != avoid] or list(self._lives)
    if not names:
      raise NoReplica("no replica is routable")
    lives = [self._lives[name] for name in names]
    index = routing.choose(
      [life.load for life in lives],
      [life.last_chosen for life in lives],
      self._sticky_index(sticky_key, names),
      self._sticky_slack,
    )
    chosen = lives[index]
    chosen.load += 1
    number = chosen.last_chosen = self._next()
    self._open.add(number)
    self._remember(sticky_key, names[index], chosen.life)
    return Lease(names[index], chosen.life, number)

  def release(self, lease: Lease) -> None:
    """Ends a lease. Idempotent; without effect on a later life."""
    if lease.number not in self._open:
      return
    self._open.remove(lease.number)
    found = self._lives.get(lease.replica)
    if found is not None and found.life == lease.life:
      found.load -= 1

  def clear_sticky(self, key: str | None = None) -> None:
    """Forgets which replica served a key (None: every key)."""
    if key is None:
      self._sticky.clear()
    else:
      self._sticky.pop(key, None)

  async def wait_routable(self) -> None:
    """Returns once some replica is routable. The caller sets the deadline."""
    await self._some_routable.wait()

  def _next(self) -> int:
    self._counter += 1
    return self._counter

  def _sticky_index(self, key: str, names: list[str]) -> int | None:
    name, life = self._sticky.get(key, (None, 0))
    if name in names and self._lives[name].life == life:
      return names.index(name)
    return None

  def _remember(self, key: str, name: str, life: int) -> None:
    self._sticky[key] = (name, life)
    self._sticky.move_to_end(key)
    if len(self._sticky) > MAX_STICKY_KEYS:
      self._sticky.popitem(last=False)
