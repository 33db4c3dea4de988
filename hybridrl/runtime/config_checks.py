"""Refuses configurations that cannot work, before anything starts.

Each check yields lines that name the flag, its value and its range. All lines
of a bad configuration are reported at once.
"""

import decimal
import pathlib
from collections.abc import Iterator

from hybridrl.runtime import affinity
from hybridrl.runtime.config import RunConfig

# name: (lowest allowed, highest allowed)
_INT_RANGES = {
  "trigger_parameter_sync_step": (1, 64),
  "require_batches": (1, 1024),
  "ppo_mini_batch_size": (1, 1 << 20),
  "rollout_n": (2, 1024),
  "concurrent_samples_per_replica": (1, 1 << 16),
  "max_prompt_length": (1, 1 << 20),
  "max_response_length": (1, 1 << 20),
  "trainer_nnodes": (1, 1 << 16),
  "trainer_n_gpus_per_node": (1, 64),
  "rollout_nnodes": (0, 1 << 16),
  "rollout_n_gpus_per_node": (1, 64),
  "rollout_tensor_parallel_size": (1, 64),
  "max_version_lag": (0, 1 << 20),
  "lr_warmup_steps": (0, 1 << 30),
  "total_training_steps": (1, 1 << 30),
  "save_freq": (0, 1 << 30),
  "test_freq": (0, 1 << 30),
  "seed": (0, (1 << 31) - 1),
}

_CHOICES = {
  "weight_update_mode": ("keep", "reprefill", "abort"),
  "device": ("cpu", "cuda", "tpu"),
}


class ConfigError(ValueError):
  """One line per problem in `problems`."""

  def __init__(self, problems: list[str]):
    super().__init__("; ".join(problems))
    self.problems = problems


def _ranges(config: RunConfig) -> Iterator[str]:
  for name, (low, high) in _INT_RANGES.items():
    value = getattr(config, name)
    if not low <= value <= high:
      why = (
        " (a group baseline needs two responses)" if name == "rollout_n" else ""
      )
      yield f"--{name}={value} is not in [{low}, {high}]{why}"
  for name, choices in _CHOICES.items():
    value = getattr(config, name)
    if value not in choices:
      yield f"--{name}={value!r} is not one of {', '.join(choices)}"
  open_closed = {
    "dynamic_schedule_deactivate_ratio": (
      config.dynamic_schedule_deactivate_ratio
    ),
    "gpu_memory_utilization": config.gpu_memory_utilization,
    "standalone_gpu_memory_utilization": (
      config.standalone_gpu_memory_utilization
    ),
  }
  for name, value in open_closed.items():
    if value is not None and not 0.0 < value <= 1.0:
      yield f"--{name}={value} is not in (0, 1]"
  positive = ("temperature", "lr", "device_memory_gib")
  for name in positive:
    value = getattr(config, name)
    if not 0.0 < value < float("inf"):
      yield f"--{name}={value} is not a positive number"
  for name in ("clip_ratio_low", "clip_ratio_high"):
    value = getattr(config, name)
    high = 1.0 if name == "clip_ratio_low" else float("inf")
    if not 0.0 < value <= high:
      yield f"--{name}={value} is not in (0, {high:g}]"
  if not config.clip_ratio_c > 1.0 + config.clip_ratio_high:
    yield (
      f"--clip_ratio_c={config.clip_ratio_c} is not above 1 +"
      f" --clip_ratio_high={config.clip_ratio_high}"
    )


def _staleness(config: RunConfig) -> Iterator[str]:
  try:
    value = decimal.Decimal(config.staleness_threshold)
  except decimal.InvalidOperation:
    yield f"--staleness_threshold={config.staleness_threshold!r} is no number"
    return
  if not value.is_finite() or not 0 <= value <= 1000:
    yield f"--staleness_threshold={value} is not in [0, 1000]"


def _combinations(config: RunConfig) -> Iterator[str]:
  size = config.rollout_tensor_parallel_size
  if size > 0:
    if config.rollout_devices % size:
      yield (
        f"--rollout_tensor_parallel_size={size} does not divide the"
        f" {config.rollout_devices} rollout devices"
      )
    if config.num_hybrid == 0 and (
      config.use_dynamic_resource_scheduling or config.only_hybrid
    ):
      yield (
        f"--rollout_tensor_parallel_size={size}: no hybrid replica fits on"
        f" {config.trainer_devices} trainer device(s)"
      )
    elif config.num_hybrid and config.trainer_devices % size:
      yield (
        f"--rollout_tensor_parallel_size={size} does not divide the"
        f" {config.trainer_devices} trainer devices"
      )
  if not 0 <= config.overlong_buffer_len <= config.max_response_length:
    yield (
      f"--overlong_buffer_len={config.overlong_buffer_len} is not in [0,"
      f" --max_response_length={config.max_response_length}]"
    )
  longest = config.max_prompt_length + config.max_response_length
  if config.max_tokens_per_micro_batch < longest:
    yield (
      f"--max_tokens_per_micro_batch={config.max_tokens_per_micro_batch} is"
      f" below the longest sequence, {longest} (prompt + response)"
    )
  if config.weight_update_mode == "reprefill" and not config.partial_rollout:
    yield (
      "--weight_update_mode=reprefill continues partial responses, which"
      " --partial_rollout=false forbids; use keep or abort"
    )
  if config.device == "tpu" and config.num_hybrid:
    yield (
      "--device=tpu: one process owns the accelerator there, and a hybrid"
      " replica in the learner's process is not built yet; set"
      " --use_dynamic_resource_scheduling=false and --rollout_nnodes above 0"
    )
  try:
    affinity.make_affinity(config)
  except ValueError as error:
    text = str(error)
    yield (
      text if text.startswith("--cpu_affinity") else f"--cpu_affinity: {text}"
    )


def _paths(config: RunConfig) -> Iterator[str]:
  run_dir = pathlib.Path(config.run_dir)
  if config.resume not in ("auto", "never"):
    path = pathlib.Path(config.resume)
    if not path.is_dir():
      yield (
        f"--resume={config.resume}: no such checkpoint folder (give auto,"
        " never, or the path of one)"
      )
  if config.resume == "never" and (run_dir / "metrics.jsonl").exists():
    yield (
      f"--run_dir={run_dir} already holds a run; choose another folder or"
      " --resume=auto"
    )
  if run_dir.exists() and not run_dir.is_dir():
    yield f"--run_dir={run_dir} is not a folder"


def problems(config: RunConfig) -> list[str]:
  """All reasons why the configuration cannot work; needs no model or data."""
  found = list(_ranges(config))
  found += _staleness(config)
  # Combinations divide by values that the ranges have to vouch for.
  if not found:
    found += _combinations(config)
  found += _paths(config)
  return found


def validate(config: RunConfig) -> None:
  """Raises ConfigError with every problem found."""
  found = problems(config)
  if found:
    raise ConfigError(found)
