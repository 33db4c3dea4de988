"""Runs a scheduling policy in the live run and logs what it decided.

The runner holds the policy's state and nothing else; it compiles once a phase.
A decision is always the constrained one. From its log and a fresh policy,
`replay` gets the same decisions (I7).
"""

import dataclasses
import functools
import inspect
import json
import zlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridrl import scheduling
from hybridrl.scheduling import Context, Decision, Fleet, Phase, Reason


@functools.lru_cache(maxsize=16)
def _compiled(policy: Any) -> Callable[..., Any]:
  """One compilation a phase, however many runners a policy has."""
  return scheduling.constrained_step(policy)


class LiveDecision(NamedTuple):
  """A constrained Decision as Python numbers; see scheduling.Decision."""

  lend: int
  wait_samples: int
  recheck_s: float
  drain_s: float
  rebalance: bool
  reason: int


class PolicyRunner:
  """One policy of one run.

  Args:
    policy: a SchedulingPolicy, or a class in the seed's style, adapted.
    fleet: what does not change during the run.
    log: receives one record a call; see `decide`.
  """

  def __init__(
    self,
    policy: Any,
    fleet: Fleet,
    log: Callable[[Mapping[str, Any]], None],
  ):
    self._policy = policy
    self._fleet = fleet
    self._log = log
    self._step = _compiled(policy)
    self._state = policy.init(fleet)
    self._last_context: Context | None = None

  def compile(self) -> None:
    """Compiles every phase, so that no decision of the run has to wait.

    What the policy decides here is thrown away.
    """
    if self._policy.jittable:
      for phase in Phase:
        context = scheduling.make_context(phase=phase, fleet=self._fleet)
        self._step(context, self._state)

  def decide(self, phase: Phase, **facts: Any) -> LiveDecision:
    """Asks the policy.

    The log's record holds `phase` (name), `step`, `version`, `context` (every
    field, arrays without their padding), `state` (checksum of the state before
    the call), `raw` and `decision` (before and after constrain).

    Args:
      phase: see Phase.
      **facts: see scheduling.make_context.
    """
    context = scheduling.make_context(phase=phase, fleet=self._fleet, **facts)
    self._last_context = context
    before = self._state
    raw, final, self._state = self._step(context, before)
    raw, final = _as_numbers(raw), _as_numbers(final)
    self._log(
      {
        "phase": phase.name,
        "step": int(context.global_steps),
        "version": int(context.param_version),
        "context": _context_record(context),
        "state": state_digest(before),
        "raw": raw._asdict(),
        "decision": final._asdict(),
      }
    )
    return final

  @property
  def request_rebalance(self) -> Callable[[Any], Awaitable[None]] | None:
    """The policy's own rebalance, given a RebalanceHandle; None: the usual."""
    own = self._policy.request_rebalance
    if own is None:
      return None

    async def request_rebalance(handle: Any) -> None:
      context = self._last_context
      if context is None:
        raise RuntimeError("a rebalance was requested before any decision")
      result = own(int(context.global_steps), context, handle)
      if inspect.isawaitable(result):
        await result

    return request_rebalance

  def state_dict(self) -> dict[str, Any]:
    """The policy's state, JSON-like."""
    return scheduling.dump_state(self._state)

  def load_state_dict(self, saved: Mapping[str, Any]) -> None:
    """Restores state_dict().

    Raises:
      ValueError: the state is another policy's.
    """
    self._state = scheduling.load_state(self._policy, self._fleet, dict(saved))


def replay(
  policy: Any, fleet: Fleet, records: Iterable[Mapping[str, Any]]
) -> list[LiveDecision]:
  """What the policy decides, from its first state, on a log's contexts."""
  step, state = _compiled(policy), policy.init(fleet)
  decisions = []
  for record in records:
    _, final, state = step(_context_of(record, fleet), state)
    decisions.append(_as_numbers(final))
  return decisions


def reason_name(code: int) -> str:
  """For a person; codes of users are shown as numbers."""
  try:
    return Reason(code).name.lower()
  except ValueError:
    return f"reason {code}"


def state_digest(state: Any) -> str:
  """crc32 of a policy's state; equal states have equal digests."""
  text = json.dumps(scheduling.dump_state(state), sort_keys=True)
  return f"{zlib.crc32(text.encode()):08x}"


def _as_numbers(decision: Decision) -> LiveDecision:
  fetched = jax.device_get(decision)
  return LiveDecision(
    **{name: getattr(fetched, name).item() for name in LiveDecision._fields}
  )


def _context_record(context: Context) -> dict[str, Any]:
  """Numbers and lists; trailing zeros of arrays are padding or look like it."""
  record = {}
  for field in dataclasses.fields(context):
    if field.name == "phase":
      continue
    value = np.asarray(getattr(context, field.name))
    record[field.name] = (
      np.trim_zeros(value, "b") if value.ndim else value
    ).tolist()
  return record


def _context_of(record: Mapping[str, Any], fleet: Fleet) -> Context:
  """Inverse of _context_record."""
  template = scheduling.make_context(phase=Phase[record["phase"]], fleet=fleet)
  values = {}
  for name, value in record["context"].items():
    like = np.asarray(getattr(template, name))
    array = np.asarray(value, like.dtype)
    if like.ndim:
      array = np.pad(array, (0, len(like) - len(array)))
    values[name] = array
  return dataclasses.replace(template, **values)
