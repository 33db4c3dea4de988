"""What a finished run says of itself: result.json and a table."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from hybridrl.runtime.parts import RunResult


def tenths(values: Sequence[float]) -> tuple[float, float]:
  """Means of the first and of the last tenth (at least one value each)."""
  if not values:
    return float("nan"), float("nan")
  count = max(len(values) // 10, 1)
  first, last = values[:count], values[-count:]
  return sum(first) / count, sum(last) / count


def write(
  run_dir: pathlib.Path, result: RunResult, peak_memory_bytes: int
) -> None:
  """Writes result.json, whole or not at all."""
  path = run_dir / "result.json"
  draft = path.with_suffix(".tmp")
  values = dataclasses.asdict(result) | {"peak_memory_bytes": peak_memory_bytes}
  draft.write_text(json.dumps(values, indent=1))
  draft.replace(path)


def table(
  run_dir: pathlib.Path, result: RunResult, peak_memory_bytes: int
) -> str:
  """The result table of a run."""
  first, last = tenths(result.step_rewards)
  rows = [
    ("micro-steps / versions", f"{result.steps} / {result.version}"),
    ("samples trained", f"{result.trained_samples}"),
    (
      "samples dropped",
      ", ".join(f"{n} {reason}" for reason, n in result.dropped.items())
      or "none",
    ),
    ("reward, first tenth", f"{first:.3f}"),
    ("reward, last tenth", f"{last:.3f}  ({last - first:+.3f})"),
  ]
  if result.val_rewards:
    (_, before), (_, after) = result.val_rewards[0], result.val_rewards[-1]
    rows += [
      ("held out, first", f"{before:.3f}"),
      ("held out, last", f"{after:.3f}  ({after - before:+.3f})"),
    ]
  rows += [
    ("training time", f"{result.wall_s:.1f} s of {result.total_s:.1f} s"),
    (
      "tokens trained / generated",
      f"{result.trained_tokens:,} / {result.generated_tokens:,}",
    ),
    (
      "lent to generation",
      f"{result.activations} times; waking {result.activate_s:.2f} s,"
      f" reclaiming {result.reclaim_s:.2f} s in all",
    ),
    (
      "requests moved / interrupted",
      f"{result.moved_requests} / {result.aborted_requests}"
      f" ({result.reprefilled_tokens:,} tokens prefilled again)",
    ),
    ("peak memory", f"{peak_memory_bytes / 2**30:.1f} GiB, all processes"),
    ("checkpoint", result.checkpoint or "none"),
    ("weights", result.export or "none"),
    ("run directory", str(run_dir)),
  ]
  width = max(len(name) for name, _ in rows)
  line = "-" * (width + 30)
  body = "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
  return f"{line}\n{body}\n{line}"
