"""Where a request goes and which requests move: pure functions of loads.

Loads count requests. Nothing here depends on the names of replicas or on hash
order: ties go to the replica that was chosen longest ago, then to the one that
was registered first.
"""

from collections.abc import Sequence
from typing import NamedTuple

# A request returns to the replica that served its key last, where its prefix
# may still be cached, as long as that one has at most this many requests more
# than the least-loaded one. Small, so that stickiness cannot keep loads apart.
STICKY_SLACK = 2


class Movable(NamedTuple):
  """A request in flight as the rebalance sees it.

  Attributes:
    request_id: of the attempt.
    replica: name of the replica that it runs on.
    prefix_tokens: tokens that the next replica would have to prefill.
  """

  request_id: str
  replica: str
  prefix_tokens: float


def choose(
  loads: Sequence[int],
  last_chosen: Sequence[int],
  sticky: int | None = None,
  slack: int = STICKY_SLACK,
) -> int:
  """Index of the replica for the next request.

  Args:
    loads: requests on each routable replica; not empty.
    last_chosen: when each was chosen last, as a counter.
    sticky: index of the replica that served the same key before, if any.
    slack: see STICKY_SLACK.

  Returns:
    The sticky replica within its slack, else the least loaded one.
  """
  if not loads:
    raise ValueError("no replica to choose from")
  best = min(range(len(loads)), key=lambda i: (loads[i], last_chosen[i], i))
  if sticky is not None and loads[sticky] <= loads[best] + slack:
    return sticky
  return best


def quotas(loads: Sequence[int], keep_first: Sequence[int]) -> list[int]:
  """Loads after levelling: their sum is kept, they differ by at most one.

  Args:
    loads: requests on each replica.
    keep_first: replicas in the order in which those that are over the level
      may keep one request more, where not all can.
  """
  level, extra = divmod(sum(loads), len(loads))
  result = [level] * len(loads)
  over = [i for i in keep_first if loads[i] > level]
  rest = [i for i in range(len(loads)) if loads[i] <= level]
  for i in (over + rest)[:extra]:
    result[i] += 1
  return result


def plan_rebalance(
  requests: Sequence[Movable], routable: Sequence[str]
) -> list[Movable]:
  """The cheapest of the smallest sets of moves that level the loads.

  Args:
    requests: in flight; those on a replica that is not routable are left out,
      since they leave it anyway.
    routable: names of the replicas that take requests, new ones included.

  Returns:
    Requests to end where they are; each then goes to the least-loaded
    replica. Cheapest first.
  """
  if not routable:
    return []
  index = {name: i for i, name in enumerate(routable)}
  held: list[list[Movable]] = [[] for _ in routable]
  for request in requests:
    if request.replica in index:
      held[index[request.replica]].append(request)
  for on_replica in held:
    # sort is stable: among equals the older request stays.
    on_replica.sort(key=lambda r: -r.prefix_tokens)
  loads = [len(on_replica) for on_replica in held]
  level = sum(loads) // len(loads)
  # A replica that may keep one more keeps the dearest that it would move.
  over = [i for i in range(len(loads)) if loads[i] > level]
  over.sort(key=lambda i: -held[i][level].prefix_tokens)
  keep = quotas(loads, over)
  moves = [r for i in over for r in held[i][keep[i] :]]
  return sorted(moves, key=lambda r: r.prefix_tokens)
