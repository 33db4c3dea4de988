"""The whole configuration of a run as one frozen value.

`experiments/` builds it from flags; `validate` (config_checks.py) refuses what
cannot work. Field names are the flags' names.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
  """See the flags of experiments/dapo_math.py for the help of each field."""

  # Scheduling (names and defaults of the seed).
  use_dynamic_resource_scheduling: bool = False
  dynamic_schedule_policy: str = "default"
  dynamic_schedule_deactivate_ratio: float = 0.3
  dynamic_schedule_enable_rebalance: bool = True
  policy_modules: tuple[str, ...] = ()
  # Asynchrony.
  staleness_threshold: str = (
    "0.1"  # decimal text: exact in max_required_samples
  )
  trigger_parameter_sync_step: int = 4
  require_batches: int = 1
  ppo_mini_batch_size: int = 16
  partial_rollout: bool = True
  weight_update_mode: str = "keep"
  max_version_lag: int = 0  # 0: unbounded
  # Rollout.
  rollout_n: int = 8
  concurrent_samples_per_replica: int = 16
  temperature: float = 1.0
  max_prompt_length: int = 256
  max_response_length: int = 256
  # Devices.
  trainer_nnodes: int = 1
  trainer_n_gpus_per_node: int = 1
  rollout_nnodes: int = 1
  rollout_n_gpus_per_node: int = 1
  rollout_tensor_parallel_size: int = 1
  gpu_memory_utilization: float = 0.4
  standalone_gpu_memory_utilization: float | None = None
  device: str = "cpu"  # cpu | cuda | tpu
  device_memory_gib: float = 4.0  # memory that one CPU "device" stands for
  cpu_affinity: str = "auto"  # auto | none | "0;1": trainer cores;rollout cores
  # Model and data.
  model_path: str = ""  # empty: the embedded task's model, warm-started
  train_files: tuple[str, ...] = ()  # empty: the embedded task
  val_files: tuple[str, ...] = ()
  # Learning.
  lr: float = 1e-6
  lr_warmup_steps: int = 10
  clip_ratio_low: float = 0.2
  clip_ratio_high: float = 0.28
  clip_ratio_c: float = 10.0
  filter_groups: bool = True
  overlong_buffer_len: int = 0
  max_tokens_per_micro_batch: int = 4096
  # Run.
  total_training_steps: int = 100  # micro-steps
  run_dir: str = "runs/{time}"
  seed: int = 0
  resume: str = "never"  # auto | never | PATH
  save_freq: int = 0  # in cycles; 0: only at the end
  test_freq: int = 0  # in cycles; 0: never

  @property
  def required_samples(self) -> int:
    """R: samples of one collection."""
    return self.ppo_mini_batch_size * self.require_batches

  @property
  def step_required_samples(self) -> int:
    """S: samples of one cycle."""
    return self.required_samples * self.trigger_parameter_sync_step

  @property
  def trainer_devices(self) -> int:
    """a: devices of the trainer, all of which can be lent."""
    return self.trainer_nnodes * self.trainer_n_gpus_per_node

  @property
  def rollout_devices(self) -> int:
    """b: dedicated rollout devices."""
    return self.rollout_nnodes * self.rollout_n_gpus_per_node

  @property
  def num_standalone(self) -> int:
    return self.rollout_devices // self.rollout_tensor_parallel_size

  @property
  def num_hybrid(self) -> int:
    """Hybrid replicas; they exist only if something can be lent."""
    if not (self.use_dynamic_resource_scheduling or self.only_hybrid):
      return 0
    return self.trainer_devices // self.rollout_tensor_parallel_size

  @property
  def only_hybrid(self) -> bool:
    return self.rollout_devices == 0
