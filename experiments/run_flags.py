"""The flags of a training run and the configuration that they make.

Names and defaults are the seed specification's wherever it names one. The
library never reads flags; everything travels in one frozen RunConfig.
"""

import dataclasses
import pathlib
import time

from absl import flags

from hybridrl.runtime.config import RunConfig

_D = RunConfig()  # the defaults live in one place


def _bool(name: str, text: str) -> None:
  flags.DEFINE_bool(name, getattr(_D, name), text)


def _int(name: str, text: str) -> None:
  flags.DEFINE_integer(name, getattr(_D, name), text)


def _float(name: str, text: str) -> None:
  flags.DEFINE_float(name, getattr(_D, name), text)


def _str(name: str, text: str) -> None:
  flags.DEFINE_string(name, getattr(_D, name), text)


def _list(name: str, text: str) -> None:
  flags.DEFINE_list(name, list(getattr(_D, name)), text)


def _define_scheduling() -> None:
  _bool(
    "use_dynamic_resource_scheduling",
    "Create hybrid replicas on the trainer's devices (asleep, memory returned)"
    " and let the policy lend them to generation. False: plain asynchronous"
    " training.",
  )
  _str(
    "dynamic_schedule_policy",
    "Scheduling policy: a name of hybridrl.scheduling.POLICIES (default,"
    " static_fully_async, fixed_ratio, always, never) or one that a module in"
    " --policy_modules registers.",
  )
  _float(
    "dynamic_schedule_deactivate_ratio",
    "In (0, 1]. Lent replicas are reclaimed once this share of a cycle's"
    " samples is buffered. `default` adapts it from here.",
  )
  _bool(
    "dynamic_schedule_enable_rebalance",
    "After an activation, move in-flight requests to the woken replicas until"
    " the loads are level.",
  )
  _list(
    "policy_modules",
    "Comma-separated Python modules to import first; they call"
    " hybridrl.scheduling.register_policy.",
  )


def _define_asynchrony() -> None:
  _str(
    "staleness_threshold",
    "Decimal >= 0. A cycle may admit (1 + this) times the samples that it"
    " trains; 0 is on-policy when --trigger_parameter_sync_step=1.",
  )
  _int(
    "trigger_parameter_sync_step", "Micro-steps per weight sync (k), 1 to 64."
  )
  _int("require_batches", "Mini-batches per micro-step, at least 1.")
  _int("ppo_mini_batch_size", "Samples (prompt groups) of a mini-batch.")
  _bool(
    "partial_rollout",
    "Interrupted responses go on from the tokens that they have. False: they"
    " start again from their prompt.",
  )
  _str(
    "weight_update_mode",
    "What a weight sync does to requests in flight: keep (they go on over"
    " their older KV cache), reprefill (KV recomputed under the new weights)"
    " or abort (start again).",
  )
  _int(
    "max_version_lag",
    "Drop samples with a token more than this many versions old when trained;"
    " 0: no bound.",
  )


def _define_rollout() -> None:
  _int("rollout_n", "Responses per prompt, at least 2 (group baseline).")
  _int(
    "concurrent_samples_per_replica",
    "Prompt groups in flight per serving replica.",
  )
  _float("temperature", "Sampling temperature > 0; the learner divides by it.")
  _int(
    "max_prompt_length", "Longer prompts are dropped and counted, in tokens."
  )
  _int("max_response_length", "Budget of one response, in tokens.")


def _define_devices() -> None:
  _int("trainer_nnodes", "Trainer nodes.")
  _int("trainer_n_gpus_per_node", "Devices per trainer node.")
  _int(
    "rollout_nnodes",
    "Dedicated rollout nodes; 0 runs colocated, on the trainer's devices only.",
  )
  _int("rollout_n_gpus_per_node", "Devices per rollout node.")
  _int("rollout_tensor_parallel_size", "Devices per replica.")
  _float(
    "gpu_memory_utilization",
    "In (0, 1]. Share of a device's memory for a hybrid replica.",
  )
  flags.DEFINE_float(
    "standalone_gpu_memory_utilization",
    _D.standalone_gpu_memory_utilization,
    "In (0, 1]. The same for standalone replicas; unset: as hybrid ones.",
  )
  _str("device", "cpu, cuda or tpu.")
  _float(
    "device_memory_gib",
    "On CPU: GiB of memory that one device stands for.",
  )
  _str(
    "cpu_affinity",
    "On CPU: auto, none, or 'trainer cores;rollout cores' such as '0;1-3'.",
  )


def _define_data() -> None:
  _str(
    "model_path",
    "Hugging Face folder (Llama, Qwen2, Qwen3). Empty: a small model is"
    " warm-started on the embedded task.",
  )
  _list(
    "train_files",
    "DAPO-schema parquet or JSONL, or GSM8K JSONL. Empty: embedded task.",
  )
  _list("val_files", "Held-out problems, same formats.")


def _define_learning() -> None:
  _float("lr", "AdamW's peak learning rate.")
  _int("lr_warmup_steps", "Micro-steps of linear warm-up.")
  _float("clip_ratio_low", "PPO clip below 1, in (0, 1].")
  _float("clip_ratio_high", "PPO clip above 1 (DAPO's clip-higher).")
  _float("clip_ratio_c", "Dual clip for negative advantages, above 1.")
  _bool(
    "filter_groups",
    "Dynamic sampling: drop and replace groups whose rewards are all equal.",
  )
  _int(
    "overlong_buffer_len",
    "Soft overlong penalty over the last this many tokens; 0: off.",
  )
  _int(
    "max_tokens_per_micro_batch",
    "Padded tokens that the learner computes at once.",
  )


def _define_run() -> None:
  _int("total_training_steps", "Micro-steps to train.")
  _str("run_dir", "Folder of everything that a run writes; {time} is expanded.")
  _int("seed", "Seed of data order, initial weights and embedded task.")
  _str("resume", "auto (newest checkpoint of --run_dir), never, or a path.")
  _int("save_freq", "Checkpoint every this many cycles; 0: at the end only.")
  _int("test_freq", "Validate every this many cycles; 0: never.")


def define() -> None:
  """Defines all flags of a run; call once, before flags are parsed."""
  _define_scheduling()
  _define_asynchrony()
  _define_rollout()
  _define_devices()
  _define_data()
  _define_learning()
  _define_run()


def config_from_flags(values: flags.FlagValues) -> RunConfig:
  """The configuration that parsed flags describe (not yet validated)."""
  fields = {}
  for field in dataclasses.fields(RunConfig):
    value = values[field.name].value
    fields[field.name] = tuple(value) if isinstance(value, list) else value
  fields["run_dir"] = str(
    pathlib.Path(
      fields["run_dir"].replace("{time}", time.strftime("%Y%m%d-%H%M%S"))
    )
  )
  return RunConfig(**fields)
