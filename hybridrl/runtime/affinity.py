"""Which CPU cores stand for which device.

On a CPU-only machine a "device" is a share of the machine's cores. Learner and
hybrid replicas share the trainer's cores, standalone replicas have their own,
exactly as they share or own accelerators elsewhere.

Grammar of --cpu_affinity:
  auto       split this process's cores between trainer and rollout devices, in
             proportion to their numbers; with too few cores nobody is pinned.
  none       nobody is pinned; every process uses one thread per core.
  "0,1;2-3"  trainer cores; rollout cores.
"""

import contextlib
import dataclasses
import os

from hybridrl.runtime.config import RunConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cores:
  """Cores of one process: the set it may run on (None: any), its threads."""

  cores: tuple[int, ...] | None
  num_threads: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Affinity:
  """Cores of every process of a run."""

  learner: Cores
  hybrid: tuple[Cores, ...]
  standalone: tuple[Cores, ...]

  def describe(self) -> str:
    def show(c: Cores) -> str:
      where = "any core" if c.cores is None else f"core(s) {_join(c.cores)}"
      return f"{where}, {c.num_threads} thread(s)"

    lines = [f"learner: {show(self.learner)}"]
    lines += [f"hybrid-{i}: {show(c)}" for i, c in enumerate(self.hybrid)]
    lines += [
      f"standalone-{i}: {show(c)}" for i, c in enumerate(self.standalone)
    ]
    return "\n".join(lines)


def _join(cores: tuple[int, ...]) -> str:
  return ",".join(str(c) for c in cores)


def parse_core_list(text: str) -> tuple[int, ...]:
  """Parses '0,2-3' to (0, 2, 3); raises ValueError on anything else."""
  cores: list[int] = []
  for part in text.split(","):
    first, dash, last = part.strip().partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
      raise ValueError(f"{text!r} is not a list of cores such as '0,2-3'")
    cores.extend(range(int(first), int(last or first) + 1))
  if len(set(cores)) != len(cores) or not cores:
    raise ValueError(f"{text!r} is empty or names a core twice")
  return tuple(cores)


def _share(cores: tuple[int, ...], parts: int, index: int) -> Cores:
  """The index-th of `parts` nearly equal slices; cores are shared if few."""
  if len(cores) < parts:
    mine = (cores[index % len(cores)],)
  else:
    low, high = index * len(cores) // parts, (index + 1) * len(cores) // parts
    mine = cores[low:high]
  return Cores(cores=mine, num_threads=len(mine))


def _pools(
  config: RunConfig, available: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
  """(trainer cores, rollout cores), or None where nobody is pinned."""
  text = config.cpu_affinity
  if text == "none" or config.device != "cpu":
    return None
  if text == "auto":
    if config.only_hybrid:
      return available, ()
    if len(available) < 2:
      return None
    a, b = config.trainer_devices, config.rollout_devices
    cut = min(max(round(len(available) * a / (a + b)), 1), len(available) - 1)
    return available[:cut], available[cut:]
  trainer_text, semicolon, rollout_text = text.partition(";")
  if not semicolon and not config.only_hybrid:
    raise ValueError(
      f"--cpu_affinity={text!r}: expected auto, none, or 'trainer cores;rollout"
      " cores' such as '0;1'"
    )
  trainer = parse_core_list(trainer_text)
  rollout = parse_core_list(rollout_text) if rollout_text else ()
  if not rollout and not config.only_hybrid:
    raise ValueError(f"--cpu_affinity={text!r} names no rollout cores")
  missing = sorted(set(trainer + rollout) - set(available))
  if missing:
    raise ValueError(
      f"--cpu_affinity={text!r}: core(s) {_join(tuple(missing))} are not among"
      f" this process's cores {_join(available)}"
    )
  return trainer, rollout


def make_affinity(
  config: RunConfig, available: tuple[int, ...] | None = None
) -> Affinity:
  """Lays the processes of a run onto cores.

  Args:
    config: the run.
    available: cores to lay out; this process's by default.

  Raises:
    ValueError: --cpu_affinity does not parse or names a core that is not there.
  """
  if available is None:
    available = tuple(sorted(os.sched_getaffinity(0)))
  pools = _pools(config, available)
  if pools is None:
    free = Cores(cores=None, num_threads=len(available))
    return Affinity(
      learner=free,
      hybrid=(free,) * config.num_hybrid,
      standalone=(free,) * config.num_standalone,
    )
  trainer, rollout = pools
  return Affinity(
    learner=Cores(cores=trainer, num_threads=len(trainer)),
    hybrid=tuple(
      _share(trainer, config.num_hybrid, i) for i in range(config.num_hybrid)
    ),
    standalone=tuple(
      _share(rollout, config.num_standalone, i)
      for i in range(config.num_standalone)
    ),
  )


def pin_process(cores: tuple[int, ...]) -> None:
  """Pins every thread of this process; later threads and children inherit.

  The kernel's call concerns one thread, and a Ray worker has several before
  any code of ours runs.
  """
  for thread_id in os.listdir("/proc/self/task"):
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
      os.sched_setaffinity(int(thread_id), cores)
