"""Publishes the learner's weights and brings them to the replicas.

The last published bundle stays in the driver's hands: a replica that is woken
later loads it, never the learner's present state. A standalone replica becomes
routable by its first load; one whose load fails is taken out of use before the
sync counts as complete (I2).
"""

import asyncio
from collections.abc import Callable

from hybridrl.models.bundle import WeightBundle
from hybridrl.reporting.reporter import Reporter
from hybridrl.rollout.balancer import LoadBalancer
from hybridrl.rollout.replica import Replica, WeightUpdateMode
from hybridrl.runtime.replica_set import ReplicaSet
from hybridrl.runtime.waiting import Waits


class WeightSync:
  """See the module docstring.

  Args:
    replicas: of the run.
    balancer: tells which are routable.
    mode: what happens to requests in flight.
    waits: board of the run.
    load_s: deadline of one load, in seconds.
    clock: seconds since the run began.
    reporter: gets a span for each load.
  """

  def __init__(
    self,
    replicas: ReplicaSet,
    balancer: LoadBalancer,
    *,
    mode: WeightUpdateMode,
    waits: Waits,
    load_s: float,
    clock: Callable[[], float],
    reporter: Reporter,
  ):
    self._replicas = replicas
    self._balancer = balancer
    self._mode = mode
    self._waits = waits
    self._load_s = load_s
    self._clock = clock
    self._reporter = reporter
    self._bundle: WeightBundle | None = None

  @property
  def bundle(self) -> WeightBundle:
    """The last published weights."""
    if self._bundle is None:
      raise RuntimeError("no weights have been published yet")
    return self._bundle

  def published(self, bundle: WeightBundle) -> None:
    """The learner published these weights.

    Raises:
      RuntimeError: their version is not newer than the last.
    """
    if self._bundle is not None and bundle.version <= self._bundle.version:
      raise RuntimeError(
        f"the learner published version {bundle.version} after"
        f" {self._bundle.version}"
      )
    self._bundle = bundle

  async def load_standalone(self) -> None:
    """Loads the last published weights into all standalone replicas.

    Raises:
      FleetLost: no replica is left after those that failed.
    """
    names = self._replicas.healthy_standalone
    await asyncio.gather(*(self._load_or_fail(name) for name in names))
    self._replicas.check_alive()

  async def load(self, replica: Replica) -> None:
    """Loads the last published weights into one replica."""
    started_s = self._clock()
    await self._waits.within(
      replica.load_weights(self.bundle, self._mode),
      owner=replica.name,
      reason=f"load weights of version {self.bundle.version}",
      deadline_s=self._load_s,
    )
    self._reporter.span(
      replica.name,
      "load_weights",
      started_s,
      self._clock(),
      version=self.bundle.version,
    )

  async def _load_or_fail(self, name: str) -> None:
    try:
      await self.load(self._replicas.standalone[name])
    except Exception as error:  # whatever it is, these weights are not there
      self._replicas.fail(name, error)
      return
    if name not in self._replicas.failed:  # nor did it fail meanwhile
      self._balancer.add(name)
      self._waits.notify()
