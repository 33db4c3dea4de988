"""Builds the real parts of a run on Ray from its configuration."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from hybridrl import scheduling
from hybridrl.data.cursor import PromptCursor
from hybridrl.data.prompt_set import PromptSet
from hybridrl.data.tokenizer import ChatTokenizer
from hybridrl.models.config import ModelConfig
from hybridrl.reporting.reporter import Reporter
from hybridrl.rewards.grader import Grader
from hybridrl.rollout.vllm_config import VllmConfig
from hybridrl.runtime import plan, ray_cluster
from hybridrl.runtime.affinity import Affinity
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.parts import Parts
from hybridrl.training.learner_config import LearnerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
  """Everything that was read and checked before anything expensive starts.

  Attributes:
    model_dir: Hugging Face folder of the initial weights.
    model: its configuration.
    tokenizer: its tokenizer.
    train: training prompts.
    held_out: validation prompts; may be empty.
    resume_from: checkpoint to go on from; '' for a fresh run.
  """

  model_dir: str
  model: ModelConfig
  tokenizer: ChatTokenizer
  train: PromptSet
  held_out: PromptSet | None
  resume_from: str


def learner_config(config: RunConfig, inputs: Inputs) -> LearnerConfig:
  return LearnerConfig(
    model_dir=inputs.model_dir,
    checkpoint_dir=f"{config.run_dir}/checkpoints",
    mini_batch_samples=config.ppo_mini_batch_size,
    lr=config.lr,
    lr_warmup_steps=config.lr_warmup_steps,
    clip_ratio_low=config.clip_ratio_low,
    clip_ratio_high=config.clip_ratio_high,
    clip_ratio_c=config.clip_ratio_c,
    temperature=config.temperature,
    max_prompt_length=config.max_prompt_length,
    max_response_length=config.max_response_length,
    overlong_buffer_len=config.overlong_buffer_len,
    max_tokens_per_micro_batch=config.max_tokens_per_micro_batch,
    wire_dtype="float32" if config.device == "cpu" else "bfloat16",
    device=config.device,
  )


def max_num_seqs(config: RunConfig, hybrid: bool) -> int:
  """Requests that a replica's engine works on at once.

  When everything that was lent is reclaimed, the standalone replicas take over
  all requests in flight; in a larger batch they go on faster than one by one.
  """
  own = config.concurrent_samples_per_replica * config.rollout_n
  if hybrid or not config.num_standalone:
    return own
  replicas = config.num_standalone + config.num_hybrid
  return own * -(-replicas // config.num_standalone)


def vllm_config(
  config: RunConfig,
  inputs: Inputs,
  affinity: Affinity,
  hybrid: bool,
  index: int,
) -> VllmConfig:
  cores = (affinity.hybrid if hybrid else affinity.standalone)[index]
  on_cpu = config.device == "cpu"
  return VllmConfig(
    model_dir=inputs.model_dir,
    tensor_parallel_size=config.rollout_tensor_parallel_size,
    kv_cache_bytes=(
      plan.kv_cache_bytes(config, inputs.model, hybrid) if on_cpu else None
    ),
    gpu_memory_utilization=plan.utilization(config, hybrid),
    max_num_seqs=max_num_seqs(config, hybrid),
    max_model_len=config.max_prompt_length + config.max_response_length,
    dtype="float32" if on_cpu else "bfloat16",
    device=config.device,
    cpu_cores=cores.cores,
    num_threads=cores.num_threads,
  )


def _make_learner(config: LearnerConfig) -> Any:
  from hybridrl.training.learner import Learner

  return Learner(config)


def _make_replica(name: str, config: VllmConfig) -> Any:
  # Sets the engine's environment, which has to precede the import of vLLM.
  from hybridrl.rollout.vllm_replica import VllmReplica

  return VllmReplica(name, config)


async def make_parts(
  config: RunConfig,
  inputs: Inputs,
  affinity: Affinity,
  reporter: Reporter,
  clock: Callable[[], float],
) -> Parts:
  """Starts Ray, places the actors and returns the parts, not yet started."""
  ray_cluster.start_ray(config)
  cluster = await ray_cluster.place(
    config,
    affinity,
    functools.partial(_make_learner, learner_config(config, inputs)),
    lambda name, hybrid, index: functools.partial(
      _make_replica, name, vllm_config(config, inputs, affinity, hybrid, index)
    ),
  )
  return Parts(
    learner=cluster.learner,
    standalone=cluster.standalone,
    hybrid=cluster.hybrid,
    grader=Grader(),
    cursor=PromptCursor(inputs.train, config.seed),
    val_prompts=inputs.held_out.prompts if inputs.held_out else (),
    decode=inputs.tokenizer.decode,
    stop_token_ids=inputs.tokenizer.stop_token_ids,
    policy=scheduling.make_policy(
      config.dynamic_schedule_policy,
      deactivate_ratio=config.dynamic_schedule_deactivate_ratio,
    ),
    reporter=reporter,
    clock=clock,
    export_dir=f"{config.run_dir}/exports/final",
    resume_from=inputs.resume_from,
  )
