"""Configuration of one vLLM replica, and of the process that hosts it.

Nothing here imports vLLM or torch, so that a host (a Ray actor, say) can call
`configure_process` before they are imported.
"""

import dataclasses
import os

_DTYPES = ("float32", "bfloat16", "float16", "auto")
_DEVICES = ("cpu", "cuda")


@dataclasses.dataclass(frozen=True, kw_only=True)
class VllmConfig:
  """How one engine is built. Weights never come from `model_dir`.

  Attributes:
    model_dir: Hugging Face folder; only its config.json is read.
    tensor_parallel_size: devices that share one engine.
    kv_cache_bytes: memory of the KV cache. None (CUDA only): what is left of
      gpu_memory_utilization.
    gpu_memory_utilization: share of the device's memory (CUDA only).
    max_num_seqs: requests that the engine works on at once; more wait here.
    max_model_len: longest prompt plus response, in tokens.
    max_num_batched_tokens: tokens of one engine step.
    dtype: of weights and activations.
    device: 'cpu' or 'cuda'.
    cpu_cores: cores that the replica's processes are pinned to; None: as found.
    num_threads: compute threads per worker (CPU only).
    prefix_caching: whether equal prefixes share KV blocks. Blocks are salted
      with the version of the weights, so versions never mix.
    canary_tolerance: largest |difference| of a canary log-prob, in nats.
    start_timeout_s: deadline of start().
    control_timeout_s: deadline of every other control call.
  """

  model_dir: str
  tensor_parallel_size: int = 1
  kv_cache_bytes: int | None = 128 << 20
  gpu_memory_utilization: float = 0.4
  max_num_seqs: int = 128
  max_model_len: int = 1024
  max_num_batched_tokens: int = 2048
  dtype: str = "float32"
  device: str = "cpu"
  cpu_cores: tuple[int, ...] | None = None
  num_threads: int = 1
  prefix_caching: bool = True
  canary_tolerance: float = 1e-3
  start_timeout_s: float = 300.0
  control_timeout_s: float = 120.0

  def __post_init__(self):
    positive = (
      "tensor_parallel_size",
      "max_num_seqs",
      "max_model_len",
      "max_num_batched_tokens",
      "num_threads",
      "canary_tolerance",
      "start_timeout_s",
      "control_timeout_s",
    )
    for field in positive:
      if not getattr(self, field) > 0:
        raise ValueError(f"{field} is {getattr(self, field)}, must be > 0")
    if self.device not in _DEVICES:
      raise ValueError(f"device is {self.device!r}, must be one of {_DEVICES}")
    if self.dtype not in _DTYPES:
      raise ValueError(f"dtype is {self.dtype!r}, must be one of {_DTYPES}")
    if not 0 < self.gpu_memory_utilization <= 1:
      raise ValueError(
        f"gpu_memory_utilization is {self.gpu_memory_utilization}, must be in"
        " (0, 1]"
      )
    if self.device == "cpu" and not self.kv_cache_bytes:
      raise ValueError("kv_cache_bytes must be given on CPU")
    if not os.path.isfile(os.path.join(self.model_dir, "config.json")):
      raise ValueError(f"model_dir {self.model_dir} has no config.json")


def environment(config: VllmConfig) -> dict[str, str]:
  """Environment variables that the replica's processes need."""
  env = {
    # The engine core is spawned: a fork after JAX or Ray have started threads
    # can deadlock.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
  }
  if config.device == "cpu":
    threads = str(config.num_threads)
    env |= {
      # Keeps the worker in the engine core's process (one process and one
      # hop per step less) ...
      "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
      # ... and leaves binding to the affinity that we set below: vLLM's own
      # binding of several threads to one core is ten times slower.
      "VLLM_CPU_OMP_THREADS_BIND": "nobind",
      "OMP_NUM_THREADS": threads,
      "MKL_NUM_THREADS": threads,
      "TORCH_COMPILE_DISABLE": "1",
    }
  return env


def configure_process(config: VllmConfig) -> None:
  """Sets environment and affinity of this process, for all that it starts.

  The engine's processes inherit both. Call it before vLLM is imported: its
  logging and torch's thread pool read the environment once. Idempotent.
  """
  os.environ.update(environment(config))
  if config.cpu_cores is not None:
    pin_process(config.cpu_cores)


def pin_process(cores: tuple[int, ...]) -> None:
  """Pins all threads of this process; later ones inherit it.

  Raises:
    ValueError: a core does not exist or is not allowed here.
  """
  for thread in os.listdir("/proc/self/task"):
    try:
      os.sched_setaffinity(int(thread), cores)
    except ProcessLookupError:
      continue  # The thread ended meanwhile.
    except OSError as error:
      raise ValueError(f"cannot pin to cpu_cores {cores}: {error}") from error
