"""What each device did with its time.

A *lane* is something that works on devices: the learner, or one replica. A
hybrid replica and the learner share devices, so lanes overlap; a device is in
one state at a time, the first in `PRIORITY` of those that its lanes are in.

Laws (the test asserts them):
  * the seconds by state sum to devices x window;
  * overlapping spans are counted once; splitting a span changes nothing;
  * idle time is the sum over all pauses, and an idle ratio lies in [0, 1].
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class DeviceState(enum.StrEnum):
  TRAIN = "train"
  WEIGHT_SYNC = "weight_sync"
  SWITCHING = "switching"
  ROLLOUT = "rollout"
  IDLE = "idle"


# Which state a device shows when several lanes claim it at once. The scarcer
# use comes first: a learner that computes beside a replica that is still
# counted as serving has the device.
PRIORITY: tuple[DeviceState, ...] = (
  DeviceState.TRAIN,
  DeviceState.WEIGHT_SYNC,
  DeviceState.SWITCHING,
  DeviceState.ROLLOUT,
  DeviceState.IDLE,
)

# Names of spans and the state that they put the lane's devices in. Spans under
# other names are shown in the trace and say nothing of devices.
SPAN_STATES: Mapping[str, DeviceState] = {
  "train": DeviceState.TRAIN,
  "rollout": DeviceState.ROLLOUT,
  "weight_sync": DeviceState.WEIGHT_SYNC,
  "publish": DeviceState.WEIGHT_SYNC,
  "load_weights": DeviceState.WEIGHT_SYNC,
  "activate": DeviceState.SWITCHING,
  "reclaim": DeviceState.SWITCHING,
  "wait": DeviceState.IDLE,
}


class Span(NamedTuple):
  """A lane was in a state from start_s to end_s (seconds)."""

  lane: str
  state: DeviceState
  start_s: float
  end_s: float


class Interval(NamedTuple):
  """A device was in a state from start_s to end_s (seconds)."""

  state: DeviceState
  start_s: float
  end_s: float


def _clipped(
  intervals: Iterable[tuple[float, float]], start_s: float, end_s: float
) -> list[tuple[float, float]]:
  """Parts within [start_s, end_s], sorted; refuses one that ends too early."""
  out = []
  for start, end in intervals:
    if end < start:
      raise ValueError(f"an interval ends at {end} s, before {start} s")
    low, high = max(start, start_s), min(end, end_s)
    if high > low:
      out.append((low, high))
  return sorted(out)


def idle_time_s(
  pauses: Iterable[tuple[float, float]], start_s: float, end_s: float
) -> float:
  """Seconds of the window that lie in at least one pause."""
  total, covered_to = 0.0, start_s
  for low, high in _clipped(pauses, start_s, end_s):
    total += max(0.0, high - max(low, covered_to))
    covered_to = max(covered_to, high)
  return total


def idle_ratio(
  pauses: Iterable[tuple[float, float]], start_s: float, end_s: float
) -> float:
  """Idle seconds over the window's; 0.0 for an empty window."""
  if end_s <= start_s:
    return 0.0
  return min(1.0, idle_time_s(pauses, start_s, end_s) / (end_s - start_s))


def lane_timeline(
  spans: Iterable[Span], start_s: float, end_s: float
) -> list[Interval]:
  """One state at each instant of the window, from overlapping spans.

  Returns:
    Adjacent intervals that cover [start_s, end_s], neighbours differing in
    state; empty for an empty window.

  Raises:
    ValueError: a span ends before it starts.
  """
  if end_s <= start_s:
    return []
  edges: dict[float, list[tuple[DeviceState, int]]] = {start_s: [], end_s: []}
  for span in spans:
    for low, high in _clipped([span[2:4]], start_s, end_s):
      edges.setdefault(low, []).append((span.state, 1))
      edges.setdefault(high, []).append((span.state, -1))
  open_spans = dict.fromkeys(PRIORITY, 0)
  out: list[Interval] = []
  times = sorted(edges)
  for time_s, next_s in zip(times, times[1:], strict=False):
    for state, change in edges[time_s]:
      open_spans[state] += change
    state = next((s for s in PRIORITY if open_spans[s] > 0), DeviceState.IDLE)
    if out and out[-1].state is state:
      out[-1] = out[-1]._replace(end_s=next_s)
    else:
      out.append(Interval(state, time_s, next_s))
  return out


def device_timelines(
  spans: Iterable[Span],
  lanes: Mapping[str, Sequence[int]],
  start_s: float,
  end_s: float,
) -> dict[int, list[Interval]]:
  """The timeline of each device (see lane_timeline).

  Args:
    spans: of any lanes, in any order; those of lanes without devices ('driver')
      are left out.
    lanes: devices that each lane works on.
    start_s: beginning of the window.
    end_s: its end.
  """
  of_device: dict[int, list[Span]] = {
    device: [] for devices in lanes.values() for device in devices
  }
  for span in spans:
    for device in lanes.get(span.lane, ()):
      of_device[device].append(span)
  return {
    device: lane_timeline(of_device[device], start_s, end_s)
    for device in sorted(of_device)
  }


def device_seconds(
  timelines: Mapping[int, Sequence[Interval]],
) -> dict[DeviceState, float]:
  """Device-seconds by state, summed over the devices; all states present."""
  totals = dict.fromkeys(DeviceState, 0.0)
  for timeline in timelines.values():
    for interval in timeline:
      totals[interval.state] += interval.end_s - interval.start_s
  return totals


def device_lanes(
  *,
  standalone: Sequence[str],
  hybrid: Sequence[str],
  trainer_devices: int,
  devices_per_replica: int,
  learner: str = "learner",
) -> dict[str, tuple[int, ...]]:
  """Devices of each lane: trainer devices first, then the standalone ones.

  Hybrid replica i works on trainer devices [i*d, (i+1)*d), the learner on all
  of them.

  Raises:
    ValueError: the hybrid replicas do not fit on the trainer's devices.
  """
  d = devices_per_replica
  if len(hybrid) * d > trainer_devices:
    raise ValueError(
      f"{len(hybrid)} hybrid replicas of {d} devices do not fit on "
      f"{trainer_devices} trainer devices"
    )
  lanes = {learner: tuple(range(trainer_devices))}
  for i, name in enumerate(hybrid):
    lanes[name] = tuple(range(i * d, (i + 1) * d))
  for i, name in enumerate(standalone):
    first = trainer_devices + i * d
    lanes[name] = tuple(range(first, first + d))
  return lanes
