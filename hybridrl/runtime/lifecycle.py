"""Starting, resuming, saving and stopping a run's parts.

A call to the learner is never left half done without being noticed: if one
broke off, its state is unknown and nothing is saved over what there is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from hybridrl.rollout.replica import Replica
from hybridrl.runtime.assembly import Machinery
from hybridrl.runtime.books import Books
from hybridrl.runtime.ledger import SampleState
from hybridrl.runtime.parts import Parts
from hybridrl.runtime.waiting import all_of, cancel_and_wait, run_to_end

T = TypeVar("T")

# How often the live view gets a snapshot: as fast as a person reads.
HEARTBEAT_S = 0.5

# Shares of parts.Limits.shutdown_s.
GRACE_SHARE = 0.45  # for the learner to end its micro-step
SAVE_SHARE = 0.3  # for the checkpoint
STOP_SHARE = 0.25  # for ending the parts


class Lifecycle:
  """See the module docstring.

  Attributes:
    checkpoint, export: paths of the last ones; '' before the first.
  """

  def __init__(self, parts: Parts, machinery: Machinery, books: Books):
    self.parts, self.m, self.books = parts, machinery, books
    self.checkpoint = self.export = ""
    self.learner_started = False
    self.learner_idle = True  # no call is running or was broken off
    self.saved_step = -1
    # How long a cancelled call to the learner may go on.
    self.grace_s = GRACE_SHARE * parts.limits.shutdown_s
    self.stop_s = parts.limits.stop_s

  async def start(self) -> None:
    """Brings the parts up; hybrid replicas sleep before the learner loads."""
    parts = self.parts

    async def trainer_devices() -> None:
      await all_of(*(self.start_asleep(r) for r in parts.hybrid))
      await self.learner(parts.learner.start(), "start", parts.limits.start_s)
      self.learner_started = True

    await all_of(
      trainer_devices(),
      parts.grader.start(),
      asyncio.to_thread(self.m.runner.compile),
      *(self.start_replica(r) for r in parts.standalone),
    )
    if parts.resume_from:
      await self.resume()

  async def start_replica(self, replica: Replica) -> None:
    await self.m.waits.within(
      replica.start(),
      owner=replica.name,
      reason="start",
      deadline_s=self.parts.limits.start_s,
    )

  async def start_asleep(self, replica: Replica) -> None:
    await self.start_replica(replica)
    await self.m.waits.within(
      replica.sleep(),
      owner=replica.name,
      reason="sleep",
      deadline_s=self.parts.limits.switch_s,
    )

  async def save_after(
    self, error: BaseException, *tasks: asyncio.Task[None]
  ) -> None:
    """What an interrupted or failed run can still save; ends `tasks` first."""
    interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
    self.parts.reporter.event(
      "interrupted" if interrupted else "run_failed",
      "interrupted: saving and stopping"
      if interrupted
      else f"{type(error).__name__}: {error}",
      step=self.books.step,
    )
    shutdown_s = self.parts.limits.shutdown_s
    self.grace_s = 0.0  # what there was of it has been used
    self.stop_s = min(self.stop_s, STOP_SHARE * shutdown_s)
    await cancel_and_wait(*tasks)
    if not self.learner_started or self.saved_step == self.books.step:
      return
    problem = "the learner did not end its last call"
    if self.learner_idle:
      try:
        async with asyncio.timeout(SAVE_SHARE * shutdown_s):
          await self.save()
          return
      except Exception as failure:
        problem = f"{type(failure).__name__}: {failure}"
    self.parts.reporter.event(
      "not_saved",
      f"no checkpoint of step {self.books.step}: {problem}; the last one is"
      f" {self.checkpoint or 'none'}",
      step=self.books.step,
    )

  async def stop(self) -> None:
    """Stops all parts; what cannot be stopped is reported, not raised."""
    self.books.learner_state = "stopping"
    self.parts.reporter.progress(self.books.progress())
    problems: list[str] = []

    async def stop_part(name: str, work: Awaitable[None]) -> None:
      try:
        await self.m.waits.within(
          work, owner=name, reason="stop", deadline_s=self.stop_s
        )
      except Exception as error:
        problems.append(f"stopping {name}: {error!r}")

    async def stop_replicas() -> None:
      problems.extend(await self.m.replicas.stop_all())

    await asyncio.gather(
      stop_part("replicas", stop_replicas()),
      stop_part("learner", self.parts.learner.stop()),
      stop_part("grader", self.parts.grader.close()),
    )
    for problem in problems:
      self.parts.reporter.event("not_stopped", problem)

  async def heartbeat(self) -> None:
    while True:
      self.parts.reporter.progress(self.books.progress())
      await asyncio.sleep(HEARTBEAT_S)

  async def save(self) -> None:
    if self.saved_step == self.books.step:
      return
    started_s, step = self.parts.clock(), self.books.step
    self.books.learner_state = "saving"
    self.checkpoint = await self.learner(
      self.parts.learner.save(step, self.driver_state()),
      f"checkpoint of step {step}",
      self.parts.limits.save_s,
    )
    self.saved_step = step
    self.books.pause("timing_s/save_checkpoint", self.parts.clock() - started_s)
    self.parts.reporter.event(
      "checkpoint", f"saved {self.checkpoint}", step=step, path=self.checkpoint
    )

  async def export_weights(self) -> None:
    await self.learner(
      self.parts.learner.export(self.parts.export_dir),
      "export",
      self.parts.limits.save_s,
    )
    self.export = self.parts.export_dir

  def driver_state(self) -> dict[str, Any]:
    """The driver's part of a checkpoint, JSON-like (I6)."""
    return {
      "step": self.books.step,
      "version": self.books.version,
      "cycles": self.books.cycles,
      "ledger": self.m.ledger.to_json(),
      "rollouter": self.m.rollouter.state_dict(),
      "policy": self.m.runner.state_dict(),
    }

  async def resume(self) -> None:
    """Goes on from a checkpoint; the next publication gets a new version."""
    path = self.parts.resume_from
    state = await self.learner(
      self.parts.learner.restore(path),
      f"restoring {path}",
      self.parts.limits.save_s,
    )
    self.books.step = self.saved_step = int(state["step"])
    self.books.version = int(state["version"])
    self.books.cycles = int(state["cycles"])
    self.checkpoint = path
    self.m.ledger.from_json(state["ledger"])
    self.m.rollouter.load_state_dict(
      state["rollouter"], self.m.ledger.ids(SampleState.PENDING)
    )
    self.m.runner.load_state_dict(state["policy"])
    self.parts.reporter.event(
      "resumed",
      f"resumed from {path} at step {self.books.step}",
      step=self.books.step,
      path=path,
    )

  async def learner(
    self,
    call: Awaitable[T],
    reason: str,
    deadline_s: float,
    account: Callable[[T], None] | None = None,
  ) -> T:
    """One call to the learner; if it breaks off, its state is unknown.

    A cancellation lets it end, for at most `grace_s`. What the driver has to
    note of its result is noted by `account` in the same breath, so that no
    cancellation can come between the two (I6).
    """
    self.learner_idle = False

    async def to_its_end() -> T:
      result = await self.m.waits.within(
        call, owner="learner", reason=reason, deadline_s=deadline_s
      )
      if account:
        account(result)
      self.learner_idle = True
      return result

    return await run_to_end(to_its_end(), grace_s=self.grace_s)
