"""Bounded calls on Ray actors, with failures in terms of this project."""

import asyncio
from typing import Any

import ray
import ray.exceptions


class ActorFailed(RuntimeError):
  """An actor died, hung or raised; the message names it and the cause."""


def _first_line(error: BaseException) -> str:
  lines = str(error).strip().splitlines() or [type(error).__name__]
  return lines[-1].strip() if lines else repr(error)


async def call(
  ref: ray.ObjectRef, *, owner: str, reason: str, timeout_s: float
) -> Any:
  """Awaits one remote call.

  Args:
    ref: the call's reference.
    owner: actor that works on it, for the message.
    reason: what is waited for.
    timeout_s: deadline.

  Raises:
    ActorFailed: the actor is dead, or the deadline passed.
    Exception: whatever the remote method raised, with its own type.
  """
  try:
    async with asyncio.timeout(timeout_s):
      return await asyncio.wrap_future(ref.future())
  except TimeoutError as error:
    raise ActorFailed(
      f"{owner}: {reason} did not end within {timeout_s:g} s"
    ) from error
  except ray.exceptions.RayTaskError as error:
    raise _own_type(error, owner, reason) from error
  except ray.exceptions.RayError as error:
    raise ActorFailed(
      f"{owner} died: {reason}: {_first_line(error)}"
    ) from error


def _own_type(
  error: ray.exceptions.RayTaskError, owner: str, reason: str
) -> BaseException:
  cause = error.cause
  if isinstance(cause, Exception):
    return cause
  return ActorFailed(f"{owner}: {reason}: {_first_line(error)}")
