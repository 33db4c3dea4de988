"""Does lending make the real job faster? Paired runs of policies.

  python -m experiments.bench_end_to_end

Every pair runs each policy once, with the same seed, model and data, in an
order that alternates. Time is counted from the end of the warm-up cycles to the
end of the last cycle: the same number of trained samples for every run. A
further row runs the baseline un-pinned with two threads a process: there the
operating system lends the idle core for nothing, an honest reference.

Prints a table and writes OUT/bench_end_to_end.json.
"""

import dataclasses
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import app, flags

from experiments import paired_stats
from hybridrl.metrics.bounds import efficiency, perfect_cycle_time
from hybridrl.reporting.jsonl import read_lines

_POLICIES = flags.DEFINE_list(
  "policies",
  ["static_fully_async", "default"],
  "Policies to compare; the first is the baseline.",
)
_PAIRS = flags.DEFINE_integer("pairs", 5, "Interleaved pairs.", lower_bound=1)
_UNPINNED = flags.DEFINE_integer(
  "unpinned_runs", 2, "Runs of the un-pinned baseline.", lower_bound=0
)
_CYCLES = flags.DEFINE_integer(
  "cycles", 6, "Cycles that are timed.", lower_bound=1
)
_WARMUP = flags.DEFINE_integer(
  "warmup_cycles", 2, "Cycles before the clock starts.", lower_bound=1
)
_BASE = flags.DEFINE_string(
  "base_flagfile",
  "experiments/flagfiles/quickstart.flags",
  "Flags of every run.",
)
_EXTRA = flags.DEFINE_multi_string(
  "extra_flag", [], "Further flag of every run, such as --rollout_n=4."
)
_OUT = flags.DEFINE_string("out", "runs/bench", "Folder of everything written.")
_SEED = flags.DEFINE_integer("first_seed", 0, "Seed of pair 0; pair i adds i.")

_RUN_TIMEOUT_S = 1200.0
_REWARD_MARGIN = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
  """One timed run; per-cycle values are means over the timed cycles."""

  policy: str
  seed: int
  wall_s: float
  cycle_s: float
  train_s: float
  generated_tokens: float
  activate_s: float
  reclaim_s: float
  activations: int
  reward: float
  rollout_utilization: float
  train_utilization: float


def _k(base_flagfile: str) -> int:
  for line in pathlib.Path(base_flagfile).read_text().splitlines():
    name, _, value = line.strip().partition("=")
    if name == "--trigger_parameter_sync_step":
      return int(value)
  return 4


def _command(
  policy: str, seed: int, run_dir: pathlib.Path, model: str, extra: list[str]
) -> list[str]:
  steps = _k(_BASE.value) * (_CYCLES.value + _WARMUP.value)
  return [
    sys.executable,
    "-m",
    "experiments.dapo_math",
    f"--flagfile={_BASE.value}",
    f"--dynamic_schedule_policy={policy}",
    f"--seed={seed}",
    f"--run_dir={run_dir}",
    f"--total_training_steps={steps}",
    "--test_freq=0",
    *([f"--model_path={model}"] if model else []),
    *_EXTRA.value,
    *extra,
  ]


def _execute(command: list[str], log: pathlib.Path) -> None:
  with log.open("w") as file:
    done = subprocess.run(
      command, stdout=file, stderr=subprocess.STDOUT, timeout=_RUN_TIMEOUT_S
    )
  if done.returncode:
    tail = "\n".join(log.read_text().splitlines()[-15:])
    raise RuntimeError(f"{' '.join(command)} failed ({log}):\n{tail}")


def measure(run_dir: pathlib.Path, policy: str, seed: int, warmup: int) -> Run:
  """Reads one finished run's metrics, the warm-up cycles left out.

  Raises:
    ValueError: the run has no cycles beyond the warm-up.
  """
  cycles = [
    line["values"]
    for line in read_lines(run_dir / "metrics.jsonl")
    if "dynamic_resource/train_compute_time_s" in line["values"]
  ]
  if len(cycles) <= warmup:
    raise ValueError(f"{run_dir}: {len(cycles)} cycles, {warmup} of warm-up")
  timed = cycles[warmup:]

  def mean(name: str) -> float:
    return statistics.fmean(float(c.get(name, 0.0)) for c in timed)

  end, start = (c["perf/elapsed_s"] for c in (timed[-1], cycles[warmup - 1]))
  return Run(
    policy=policy,
    seed=seed,
    wall_s=end - start,
    cycle_s=(end - start) / len(timed),
    train_s=mean("dynamic_resource/train_compute_time_s"),
    generated_tokens=mean("fully_async/count/generated_tokens"),
    activate_s=mean("timing_s/activate"),
    reclaim_s=mean("timing_s/deactivate"),
    activations=round(
      sum(float(c.get("dynamic_resource/activations", 0.0)) for c in timed)
    ),
    reward=statistics.fmean(float(c["critic/score/mean"]) for c in cycles),
    rollout_utilization=mean("dynamic_resource/rollout_resource_utilization"),
    train_utilization=mean("dynamic_resource/train_resource_utilization"),
  )


def _one(out: pathlib.Path, policy: str, pair: int, model: str) -> Run:
  seed = _SEED.value + pair
  run_dir = out / f"pair{pair}-{policy}-{int(time.time())}"
  _execute(
    _command(policy, seed, run_dir, model, []), out / f"{run_dir.name}.log"
  )
  run = measure(run_dir, policy, seed, _WARMUP.value)
  print(f"pair {pair} {policy}: {run.cycle_s:.2f} s a cycle", flush=True)
  return run


def _unpinned(out: pathlib.Path, baseline: str, index: int, model: str) -> Run:
  seed = _SEED.value + index
  run_dir = out / f"unpinned{index}-{baseline}-{int(time.time())}"
  extra = ["--cpu_affinity=none"]
  _execute(
    _command(baseline, seed, run_dir, model, extra),
    out / f"{run_dir.name}.log",
  )
  run = measure(run_dir, f"{baseline}, un-pinned", seed, _WARMUP.value)
  print(f"un-pinned {index}: {run.cycle_s:.2f} s a cycle", flush=True)
  return run


def _decode_curve(out: pathlib.Path, model: str) -> dict[int, float]:
  path = out / "decode.json"
  command = [sys.executable, "-m", "experiments.bench_decode"]
  _execute(
    [*command, f"--model_path={model}", f"--out={path}"], out / "decode.log"
  )
  curve = json.loads(path.read_text())["tokens_per_s"]
  return {int(level): rate for level, rate in curve.items()}


def summarise(
  runs: dict[str, list[Run]], baseline: str, saturated_rate: float
) -> dict[str, Any]:
  """The figures of the comparison.

  Args:
    runs: by policy, in the order of pairs; further rows may be shorter.
    baseline: key of the policy that others are compared with.
    saturated_rate: tokens/s of one device at saturated concurrency.

  Returns:
    Per policy: seconds a cycle, reduction with its interval, efficiency C*/C,
    reward equivalence, switch costs. And C*, of the baseline's useful work.
  """
  base = runs[baseline]
  perfect_s = perfect_cycle_time(
    statistics.fmean(r.train_s for r in base),
    statistics.fmean(r.generated_tokens for r in base) / saturated_rate,
    2,
  )
  rows = {}
  for name, found in runs.items():
    pairs = base[: len(found)]
    same, difference = paired_stats.equivalent(
      [r.reward for r in pairs], [r.reward for r in found], _REWARD_MARGIN
    )
    cycle_s = statistics.fmean(r.cycle_s for r in found)
    rows[name] = {
      "runs": [dataclasses.asdict(r) for r in found],
      "cycle_s": cycle_s,
      "reduction": dataclasses.asdict(
        paired_stats.reduction(
          [r.wall_s for r in pairs], [r.wall_s for r in found]
        )
      ),
      "efficiency": float(efficiency(perfect_s, cycle_s)),
      "reward_difference": dataclasses.asdict(difference),
      "rewards_equivalent": same,
    }
  return {"perfect_cycle_s": float(perfect_s), "policies": rows}


def _print(summary: dict[str, Any], curve: dict[int, float]) -> None:
  print("\nrequests  tokens/s of one device")
  for level, rate in curve.items():
    print(f"{level:8d}  {rate:8.0f}")
  print(f"\nC* = {summary['perfect_cycle_s']:.2f} s a cycle")
  print(
    f"{'policy':32} {'s/cycle':>8} {'reduction, 95 % interval':>28}"
    f" {'C*/C':>6} {'reward difference, 90 %':>26}"
    f" {'wake':>6} {'reclaim':>8}"
  )
  for name, row in summary["policies"].items():
    r, d = row["reduction"], row["reward_difference"]
    percent = [100 * r[key] for key in ("mean", "low", "high")]
    wake = statistics.fmean(x["activate_s"] for x in row["runs"])
    reclaim = statistics.fmean(x["reclaim_s"] for x in row["runs"])
    print(
      f"{name:32} {row['cycle_s']:8.2f}"
      f" {percent[0]:9.1f} % [{percent[1]:5.1f}, {percent[2]:5.1f}]"
      f" {row['efficiency']:8.3f}"
      f"    {d['mean']:+.3f} [{d['low']:+.3f}, {d['high']:+.3f}]"
      f"{' =' if row['rewards_equivalent'] else '  '}"
      f" {wake:6.2f} {reclaim:8.2f}"
    )


def _warm_model(out: pathlib.Path) -> str:
  model = out / "model"
  if not (model / "model.safetensors").exists():
    command = [sys.executable, "-m", "experiments.warm_start"]
    _execute(
      [*command, f"--out={model}", f"--seed={_SEED.value}"],
      out / "warm_start.log",
    )
  return str(model)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments {argv[1:]}")
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  policies = list(dict.fromkeys(_POLICIES.value))
  baseline = policies[0]
  model = _warm_model(out)
  curve = _decode_curve(out, model)
  runs: dict[str, list[Run]] = {name: [] for name in policies}
  for pair in range(_PAIRS.value):
    for policy in policies if pair % 2 == 0 else policies[::-1]:
      runs[policy].append(_one(out, policy, pair, model))
    if pair < _UNPINNED.value:
      row = runs.setdefault(f"{baseline}, un-pinned", [])
      row.append(_unpinned(out, baseline, pair, model))
    # After every pair, so that an interrupted benchmark leaves its figures.
    summary = summarise(runs, baseline, max(curve.values()))
    path = out / "bench_end_to_end.json"
    path.write_text(json.dumps({"decode_curve": curve} | summary, indent=1))
    _print(summary, curve)
    print(f"\n{pair + 1} pair(s); written: {path}", flush=True)


if __name__ == "__main__":
  app.run(main)
