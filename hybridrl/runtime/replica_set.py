"""The replicas of a run: which there are and which can still be used.

A replica that failed is unrouted, stopped and never used again. What it holds
on the learner's devices has to be free before training goes on, so a failed
hybrid replica that cannot even be stopped ends the run.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from hybridrl.rollout.balancer import LoadBalancer
from hybridrl.rollout.replica import Replica
from hybridrl.runtime.waiting import Waits


class FleetLost(RuntimeError):
  """No replica is left that could generate, or one cannot be stopped."""


class ReplicaSet:
  """See the module docstring.

  Args:
    standalone: replicas on devices of their own.
    hybrid: replicas on the learner's devices, in the order of lending.
    balancer: knows which are routable.
    waits: board of the run.
    stop_s: deadline for stopping one, in seconds.
    on_event: (kind, message, fields) for the reporter.

  Attributes:
    standalone, hybrid: by name.
    failed: cause of each replica that is not used any more.
    changes: counts failures, so that one can be waited for.
  """

  def __init__(
    self,
    standalone: Sequence[Replica],
    hybrid: Sequence[Replica],
    *,
    balancer: LoadBalancer,
    waits: Waits,
    stop_s: float,
    on_event: Callable[..., None],
  ):
    self.standalone: Mapping[str, Replica] = {r.name: r for r in standalone}
    self.hybrid: Mapping[str, Replica] = {r.name: r for r in hybrid}
    self.all: Mapping[str, Replica] = {**self.standalone, **self.hybrid}
    if len(self.all) != len(standalone) + len(hybrid):
      raise ValueError(
        "replicas share a name: "
        + ", ".join(r.name for r in (*standalone, *hybrid))
      )
    self.failed: dict[str, Exception] = {}
    self.changes = 0
    self._balancer = balancer
    self._waits = waits
    self._stop_s = stop_s
    self._on_event = on_event
    self._stops: dict[str, asyncio.Task[None]] = {}

  @property
  def healthy_standalone(self) -> tuple[str, ...]:
    return tuple(n for n in self.standalone if n not in self.failed)

  @property
  def healthy_hybrid(self) -> tuple[str, ...]:
    return tuple(n for n in self.hybrid if n not in self.failed)

  def fail(self, name: str, error: Exception) -> None:
    """Takes a replica out of use, and begins to stop it. Idempotent."""
    if name in self.failed:
      return
    self._balancer.remove(name)
    self.failed[name] = error
    self.changes += 1
    self._on_event(
      "replica_failed",
      f"{name} failed and is not used any more: {error}",
      replica=name,
      error=type(error).__name__,
    )
    self._stops[name] = asyncio.create_task(
      self._stop(name), name=f"stop {name}"
    )
    self._waits.notify()

  def check_alive(self) -> None:
    """Raises FleetLost if no replica is left; the last failure is its cause."""
    if self.healthy_standalone or self.healthy_hybrid:
      return
    causes = "; ".join(f"{n}: {e}" for n, e in self.failed.items())
    last = list(self.failed.values())[-1] if self.failed else None
    raise FleetLost(f"no replica is left ({causes})") from last

  async def devices_returned(self) -> None:
    """Waits until every failed hybrid replica has let go of its devices.

    Raises:
      FleetLost: one could not be stopped.
    """
    for name in self.hybrid:
      if name in self._stops:
        try:
          await asyncio.shield(self._stops[name])
        except Exception as error:
          raise FleetLost(
            f"{name} failed ({self.failed[name]}) and could not be stopped"
            f" ({error!r}): it may hold memory that training needs"
          ) from error

  async def stop_all(self) -> list[str]:
    """Stops every replica; returns what went wrong, for a person."""
    names = [n for n in self.all if n not in self._stops]
    tasks = {n: asyncio.create_task(self._stop(n)) for n in names}
    tasks |= self._stops
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    return [
      f"stopping {name}: {task.exception()!r}"
      for name, task in tasks.items()
      if not task.cancelled() and task.exception()
    ]

  async def _stop(self, name: str) -> None:
    await self._waits.within(
      self.all[name].stop(),
      owner=name,
      reason="stop",
      deadline_s=self._stop_s,
    )
