"""Translation between hybridrl's types and vLLM's; building the engine.

Imports vLLM lazily: the process has to be configured first.
"""

import asyncio
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from hybridrl.rollout import replica
from hybridrl.rollout.vllm_config import VllmConfig

if TYPE_CHECKING:
  from vllm.sampling_params import SamplingParams
  from vllm.v1.engine.async_llm import AsyncLLM

# Lower goes first. Probes must not queue behind requests that may take long.
_PROBE_PRIORITY = -1

# As it was before any engine started, perhaps several at once in threads.
_PRELOAD = os.environ.get("LD_PRELOAD")


def build_engine(config: VllmConfig) -> "AsyncLLM":
  """Starts the engine; blocks for seconds. Weights are meaningless at first."""
  from vllm.config import WeightTransferConfig
  from vllm.engine.arg_utils import AsyncEngineArgs
  from vllm.v1.engine.async_llm import AsyncLLM

  from hybridrl.rollout import vllm_compact

  arguments: dict[str, Any] = {
    "model": config.model_dir,
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "generation_config": "vllm",
    "dtype": config.dtype,
    "tensor_parallel_size": config.tensor_parallel_size,
    "max_model_len": config.max_model_len,
    # One more than we admit: a slot for probes.
    "max_num_seqs": config.max_num_seqs + 1,
    "max_num_batched_tokens": max(
      config.max_num_batched_tokens, config.max_num_seqs + 1
    ),
    "kv_cache_memory_bytes": config.kv_cache_bytes,
    "enable_prefix_caching": config.prefix_caching,
    "scheduling_policy": "priority",
    "scheduler_cls": "hybridrl.rollout.vllm_compact.CompactScheduler",
    "async_scheduling": False,
    "logprobs_mode": "processed_logprobs",
    "max_logprobs": -1,
    "enforce_eager": config.device == "cpu",
    "disable_log_stats": True,
    "weight_transfer_config": WeightTransferConfig(backend="hybridrl_file"),
    "worker_extension_cls": "hybridrl.rollout.vllm_worker.WorkerExtension",
  }
  if config.device == "cpu":
    vllm_compact.register_kernels()
    first = [vllm_compact.PROVIDER]
    arguments["kernel_config"] = {
      "ir_op_priority": {"rms_norm": first, "fused_add_rms_norm": first[:]}
    }
  if config.device == "cuda":
    arguments["enable_sleep_mode"] = True
    arguments["gpu_memory_utilization"] = config.gpu_memory_utilization
  try:
    return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
  finally:
    # vLLM sets it for its own children; ours must not inherit it.
    if _PRELOAD is None:
      os.environ.pop("LD_PRELOAD", None)
    else:
      os.environ["LD_PRELOAD"] = _PRELOAD


def sampling_params(
  sampling: replica.SamplingConfig, max_new_tokens: int
) -> "SamplingParams":
  from vllm.sampling_params import RequestOutputKind, SamplingParams

  return SamplingParams(
    temperature=sampling.temperature,
    max_tokens=max_new_tokens,
    stop_token_ids=list(sampling.stop_token_ids),
    # Only stop_token_ids end a response, whatever the model folder says.
    ignore_eos=True,
    logprobs=0,  # of the sampled token alone
    flat_logprobs=True,
    detokenize=False,
    output_kind=RequestOutputKind.FINAL_ONLY,
    skip_clone=True,
  )


async def run_request(
  engine: "AsyncLLM", request: replica.GenerationRequest, version: int
) -> Any:
  """One attempt in the engine, until 'stop', 'length' or 'abort'.

  Returns:
    vLLM's RequestOutput; see to_result.
  """
  params = sampling_params(request.sampling, request.max_new_tokens)
  return await _last(
    engine, request.token_ids, params, request.request_id, version, 0
  )


async def prompt_log_probs(
  engine: "AsyncLLM", token_ids: np.ndarray, key: str, version: int
) -> np.ndarray:
  """[P - 1] float32 log p(token[i+1] | token[:i+1]) at temperature 1."""
  from vllm.sampling_params import RequestOutputKind, SamplingParams

  params = SamplingParams(
    temperature=0.0,
    max_tokens=1,
    ignore_eos=True,
    prompt_logprobs=0,
    flat_logprobs=True,
    detokenize=False,
    output_kind=RequestOutputKind.FINAL_ONLY,
  )
  output = await _last(engine, token_ids, params, key, version, _PROBE_PRIORITY)
  # The first position has none.
  return np.asarray(output.prompt_logprobs.logprobs, np.float32)


async def next_token_log_probs(
  engine: "AsyncLLM",
  token_ids: np.ndarray,
  temperature: float,
  key: str,
  version: int,
) -> np.ndarray:
  """[V] float32 log-probs of the next token as sampling reports them."""
  from vllm.sampling_params import RequestOutputKind, SamplingParams

  params = SamplingParams(
    temperature=temperature,
    max_tokens=1,
    ignore_eos=True,
    logprobs=-1,
    flat_logprobs=True,
    detokenize=False,
    output_kind=RequestOutputKind.FINAL_ONLY,
  )
  output = await _last(engine, token_ids, params, key, version, _PROBE_PRIORITY)
  flat = output.outputs[0].logprobs
  result = np.full(max(flat.token_ids) + 1, -np.inf, np.float32)
  result[np.asarray(flat.token_ids)] = flat.logprobs
  return result


def to_result(output: Any, kv_version: int) -> replica.GenerationResult:
  """Converts; kv_version is that of the weights when the request entered."""
  from hybridrl.rollout import vllm_compact

  completion = output.outputs[0]
  token_ids, log_probs = vllm_compact.unpack(completion.token_ids)
  versions = np.full(len(token_ids), -1, np.int32)
  for span in completion.weight_versions or ():
    # vLLM counts what it carries: two integers a token.
    versions[span.start // 2 : span.end // 2] = int(span.version)
  return replica.GenerationResult(
    token_ids=token_ids,
    log_probs=log_probs,
    versions=versions,
    kv_versions=np.full(len(token_ids), kv_version, np.int32),
    finish_reason=completion.finish_reason,
  )


def empty_abort() -> replica.GenerationResult:
  """Result of a request that was aborted before its first token."""
  return replica.GenerationResult(
    token_ids=np.zeros(0, np.int32),
    log_probs=np.zeros(0, np.float32),
    versions=np.zeros(0, np.int32),
    kv_versions=np.zeros(0, np.int32),
    finish_reason="abort",
  )


def has_no_tokens(engine: Any, request_id: str) -> bool:
  """Whether the engine holds the request and has not sampled for it yet."""
  processor = engine.output_processor
  states = [
    processor.request_states[key]
    for key in processor.external_req_ids.get(request_id, ())
    if key in processor.request_states
  ]
  return bool(states) and all(
    state.detokenizer.num_output_tokens() == 0 for state in states
  )


def end_requests(engine: "AsyncLLM", error: Exception) -> None:
  """Makes every request that waits on the engine raise `error`."""
  engine.output_processor.propagate_error(error)


async def _last(
  engine: "AsyncLLM",
  token_ids: np.ndarray,
  params: "SamplingParams",
  key: str,
  version: int,
  priority: int,
) -> Any:
  from vllm.inputs.engine import tokens_input

  prompt = tokens_input(
    np.asarray(token_ids).tolist(), cache_salt=f"v{version}"
  )
  last = None
  async for output in engine.generate(prompt, params, key, priority=priority):
    last = output
  if last is None:
    raise asyncio.CancelledError(f"request {key} ended without an output")
  return last
