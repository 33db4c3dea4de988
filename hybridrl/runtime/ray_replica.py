"""A replica in a Ray actor, and the driver's handle on it.

Requests do not become one remote call each: the handle sends what one turn of
the loop has collected as one `submit`, and one long `poll` brings back whatever
has finished. So an actor never has more than a few calls outstanding, control
calls are not queued behind generation, and the driver's cost per response is
small.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import ray
import ray.exceptions

from hybridrl.models.bundle import WeightBundle
from hybridrl.rollout.replica import (
  GenerationRequest,
  GenerationResult,
  Replica,
  ReplicaFailed,
  ReplicaStats,
  ReplicaUnavailable,
  WeightUpdateMode,
)
from hybridrl.runtime import ray_calls

# A poll without news returns after this, so that a dead peer is noticed even
# if Ray reported nothing.
_POLL_S = 10.0
# Finished responses tend to come in bursts (one decode step ends several);
# waiting this long once lets a poll carry the burst.
_BURST_S = 0.003

Outcome = GenerationResult | Exception


class ReplicaServer:
  """Runs in the actor: any Replica behind submit, poll and call."""

  def __init__(self, factory: Callable[[], Replica]):
    self._replica = factory()
    self._done: list[tuple[str, Outcome]] = []
    self._news = asyncio.Event()
    self._tasks: set[asyncio.Task[None]] = set()

  async def submit(self, requests: Sequence[GenerationRequest]) -> None:
    for request in requests:
      task = asyncio.get_running_loop().create_task(self._run(request))
      self._tasks.add(task)
      task.add_done_callback(self._tasks.discard)

  async def _run(self, request: GenerationRequest) -> None:
    try:
      outcome: Outcome = await self._replica.generate(request)
    except Exception as error:  # noqa: BLE001 - travels to the caller
      outcome = error
    self._done.append((request.request_id, outcome))
    self._news.set()

  async def poll(self) -> list[tuple[str, Outcome]]:
    """Finished requests; empty after _POLL_S without any."""
    try:
      async with asyncio.timeout(_POLL_S):
        await self._news.wait()
    except TimeoutError:
      return []
    await asyncio.sleep(_BURST_S)
    done, self._done = self._done, []
    self._news.clear()
    return done

  async def call(self, method: str, *args: Any) -> Any:
    return await getattr(self._replica, method)(*args)

  async def load_weights(
    self, bundle: WeightBundle, buffer: Any, mode: WeightUpdateMode
  ) -> None:
    # `buffer` was a reference on its own, so Ray has mapped it already.
    await self._replica.load_weights(
      dataclasses.replace(bundle, buffer=buffer), mode
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaTimeouts:
  """Deadlines of the control calls, in seconds."""

  start_s: float = 600.0
  load_s: float = 300.0
  control_s: float = 60.0


class RayReplica:
  """Implements Replica on a ReplicaServer actor."""

  def __init__(
    self,
    name: str,
    actor: Any,
    timeouts: ReplicaTimeouts = ReplicaTimeouts(),  # noqa: B008 - frozen
  ):
    self.name = name
    self._actor = actor
    self._timeouts = timeouts
    self._futures: dict[str, asyncio.Future[GenerationResult]] = {}
    self._outbox: list[GenerationRequest] = []
    self._poller: asyncio.Task[None] | None = None
    self._failure: str | None = None
    self._stopped = False

  async def start(self) -> None:
    await self._control("start", timeout_s=self._timeouts.start_s)
    self._poller = asyncio.get_running_loop().create_task(
      self._poll_forever(), name=f"poll {self.name}"
    )

  async def generate(self, request: GenerationRequest) -> GenerationResult:
    if self._failure is not None:
      raise ReplicaFailed(f"{self.name}: {self._failure}")
    if self._stopped or self._poller is None:
      raise ReplicaUnavailable(f"{self.name} is not started")
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    self._futures[request.request_id] = future
    if not self._outbox:
      loop.call_soon(self._flush)
    self._outbox.append(request)
    try:
      return await future
    except asyncio.CancelledError:
      # Nobody will read the result: the device should not work on it.
      if not self._stopped and self._failure is None:
        self._actor.call.remote("abort", [request.request_id])
      raise
    finally:
      self._futures.pop(request.request_id, None)

  def _flush(self) -> None:
    batch, self._outbox = self._outbox, []
    if batch:
      self._actor.submit.remote(batch)

  async def _poll_forever(self) -> None:
    while not self._stopped:
      try:
        done = await ray_calls.call(
          self._actor.poll.remote(),
          owner=self.name,
          reason="poll for finished responses",
          timeout_s=_POLL_S + self._timeouts.control_s,
        )
      except Exception as error:  # noqa: BLE001 - ends every request below
        self._fail(str(error))
        return
      for request_id, outcome in done:
        self._settle(request_id, outcome)

  def _settle(self, request_id: str, outcome: Outcome) -> None:
    future = self._futures.get(request_id)
    if future is None or future.done():
      return
    if isinstance(outcome, Exception):
      future.set_exception(outcome)
    else:
      future.set_result(outcome)

  def _fail(self, cause: str) -> None:
    if self._stopped:
      return
    self._failure = cause
    for future in self._futures.values():
      if not future.done():
        future.set_exception(ReplicaFailed(f"{self.name}: {cause}"))

  async def _control(self, method: str, *args: Any, timeout_s: float) -> Any:
    return await self._bounded(
      self._actor.call.remote(method, *args), method, timeout_s
    )

  async def _bounded(self, ref: Any, method: str, timeout_s: float) -> Any:
    try:
      return await ray_calls.call(
        ref, owner=self.name, reason=method, timeout_s=timeout_s
      )
    except ray_calls.ActorFailed as error:
      self._fail(str(error))
      raise ReplicaFailed(str(error)) from error

  async def abort(self, request_ids: Sequence[str] | None = None) -> None:
    self._flush()  # what is not sent yet has to arrive before its abort
    ids = None if request_ids is None else list(request_ids)
    await self._control("abort", ids, timeout_s=self._timeouts.control_s)

  async def load_weights(
    self, bundle: WeightBundle, mode: WeightUpdateMode
  ) -> None:
    ref = self._actor.load_weights.remote(
      dataclasses.replace(bundle, buffer=None), bundle.buffer, mode
    )
    await self._bounded(ref, "load_weights", self._timeouts.load_s)

  async def sleep(self) -> None:
    self._flush()
    await self._control("sleep", timeout_s=self._timeouts.control_s)

  async def wake_weights(self) -> None:
    await self._control("wake_weights", timeout_s=self._timeouts.control_s)

  async def wake_kv_cache(self) -> None:
    await self._control("wake_kv_cache", timeout_s=self._timeouts.control_s)

  async def stats(self) -> ReplicaStats:
    return await self._control("stats", timeout_s=self._timeouts.control_s)

  async def stop(self) -> None:
    if self._stopped:
      return
    self._stopped = True
    try:
      if self._failure is None:
        await ray_calls.call(
          self._actor.call.remote("stop"),
          owner=self.name,
          reason="stop",
          timeout_s=self._timeouts.control_s,
        )
    except (ray_calls.ActorFailed, ReplicaFailed):
      pass  # it is gone already; the kill below makes sure
    finally:
      if self._poller is not None:
        self._poller.cancel()
      for future in self._futures.values():
        if not future.done():
          future.set_exception(ReplicaUnavailable(f"{self.name} is stopped"))
      ray.kill(self._actor, no_restart=True)
