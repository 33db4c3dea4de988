"""The resolved plan of a run: placement, memory, cycle; starts nothing."""

from hybridrl.accounting import max_required_samples
from hybridrl.models.config import ModelConfig
from hybridrl.runtime.affinity import Affinity
from hybridrl.runtime.config import RunConfig

_GIB = 1 << 30
# f32 master weights, gradient and two Adam moments.
_LEARNER_BYTES_PER_PARAMETER = 16


def wire_bytes(config: RunConfig) -> int:
  """Bytes of one weight in a replica: bf16 on accelerators, f32 on CPU."""
  return 4 if config.device == "cpu" else 2


def kv_bytes_per_token(config: RunConfig, model: ModelConfig) -> int:
  """Keys and values of one token over all layers."""
  per_layer = 2 * model.num_kv_heads * model.head_size
  return model.num_layers * per_layer * wire_bytes(config)


def utilization(config: RunConfig, hybrid: bool) -> float:
  """The memory fraction of one kind of replica."""
  own = config.standalone_gpu_memory_utilization
  if hybrid or own is None:
    return config.gpu_memory_utilization
  return own


def kv_cache_bytes(config: RunConfig, model: ModelConfig, hybrid: bool) -> int:
  """What a replica's fraction leaves for its KV cache.

  Raises:
    ValueError: less than one sequence of full length; names the flags.
  """
  size = config.rollout_tensor_parallel_size
  share = utilization(config, hybrid) * config.device_memory_gib * _GIB * size
  weights = model.num_parameters * wire_bytes(config)
  left = int(share - weights)
  longest = config.max_prompt_length + config.max_response_length
  needed = longest * kv_bytes_per_token(config, model)
  if left < needed:
    own = config.standalone_gpu_memory_utilization
    flag = (
      "gpu_memory_utilization"
      if hybrid or own is None
      else "standalone_gpu_memory_utilization"
    )
    raise ValueError(
      f"--{flag}={utilization(config, hybrid)} of --device_memory_gib="
      f"{config.device_memory_gib:g} leaves {left / _GIB:.2f} GiB beside"
      f" {weights / _GIB:.2f} GiB of weights; one sequence of {longest} tokens"
      f" needs {needed / _GIB:.2f} GiB of KV cache"
    )
  return left


def _replicas(
  config: RunConfig, model: ModelConfig, kind: str, count: int
) -> list[str]:
  if not count:
    return [f"  {kind:<12} none"]
  cache = kv_cache_bytes(config, model, hybrid=kind == "hybrid")
  tokens = cache // kv_bytes_per_token(config, model)
  return [
    f"  {kind:<12} {count} replica(s) of"
    f" {config.rollout_tensor_parallel_size} device(s); KV cache"
    f" {cache / _GIB:.2f} GiB = {tokens:,} tokens each"
  ]


def _placement(config: RunConfig, affinity: Affinity) -> list[str]:
  lines = [
    "placement",
    f"  trainer      {config.trainer_nnodes} node(s) x"
    f" {config.trainer_n_gpus_per_node} {config.device} device(s)",
    f"  rollout      {config.rollout_nnodes} node(s) x"
    f" {config.rollout_n_gpus_per_node} {config.device} device(s)",
  ]
  if config.device == "cpu":
    lines += [f"  {line}" for line in affinity.describe().splitlines()]
  return lines


def _memory(config: RunConfig, model: ModelConfig) -> list[str]:
  learner = model.num_parameters * _LEARNER_BYTES_PER_PARAMETER
  return [
    "memory",
    f"  model        {model.num_parameters:,} parameters,"
    f" {model.num_parameters * wire_bytes(config) / _GIB:.3f} GiB a replica",
    f"  learner      {learner / _GIB:.2f} GiB of weights, gradient and Adam,"
    f" {learner / _GIB / config.trainer_devices:.2f} GiB a device",
    *_replicas(config, model, "standalone", config.num_standalone),
    *_replicas(config, model, "hybrid", config.num_hybrid),
  ]


def _cycle(config: RunConfig) -> list[str]:
  samples = config.step_required_samples
  limit = max_required_samples(samples, config.staleness_threshold)
  return [
    "cycle",
    f"  k = {config.trigger_parameter_sync_step} micro-steps of R ="
    f" {config.required_samples} samples: S = {samples}; {config.rollout_n}"
    f" responses a sample; at most {limit} samples admitted a cycle",
    f"  in flight    at most {config.concurrent_samples_per_replica} samples a"
    f" serving replica; weights reach replicas by"
    f" {config.weight_update_mode!r}",
    f"  policy       {config.dynamic_schedule_policy}"
    f" (ratio {config.dynamic_schedule_deactivate_ratio:g})"
    if config.num_hybrid
    else "  policy       none: nothing can be lent",
    f"  run          {config.total_training_steps} micro-steps ="
    f" {config.total_training_steps * config.required_samples} samples",
  ]


def describe(config: RunConfig, model: ModelConfig, affinity: Affinity) -> str:
  """Several lines for a person.

  Raises:
    ValueError: a replica's memory cannot hold one sequence.
  """
  lines = [
    *_placement(config, affinity),
    *_memory(config, model),
    *_cycle(config),
  ]
  return "\n".join(lines)
