"""Decode speed of one replica on one device over its concurrency.

  python -m experiments.bench_decode --model_path=DIR --core=1

Prints a table and, with --out, writes JSON: tokens per second with n requests
running, for several n. This curve, not a device count, tells what a device is
worth: a replica with few requests is far from its device's rate.
"""

import asyncio
import json
import os
import pathlib
import statistics
import time

import numpy as np
from absl import app, flags

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from hybridrl.models import bundle, hf
from hybridrl.rollout.replica import (
  GenerationRequest,
  SamplingConfig,
  WeightUpdateMode,
)
from hybridrl.rollout.vllm_config import VllmConfig, configure_process
from hybridrl.runtime.affinity import pin_process

_MODEL = flags.DEFINE_string(
  "model_path", None, "Hugging Face folder.", required=True
)
_CORE = flags.DEFINE_integer("core", 1, "Core that the replica is pinned to.")
_CONCURRENCY = flags.DEFINE_list(
  "concurrency",
  ["8", "16", "32", "64", "128", "256"],
  "Requests running at once.",
)
_TOKENS = flags.DEFINE_integer(
  "tokens", 96, "Tokens of each response.", lower_bound=1
)
_REPEATS = flags.DEFINE_integer(
  "repeats", 3, "Measurements of each point; the median counts.", lower_bound=1
)
_OUT = flags.DEFINE_string("out", "", "JSON file to write; empty: none.")

_PROMPT = np.arange(2, 34, dtype=np.int32)  # as long as a typical word problem


async def _measure(replica, concurrency: int, tag: str) -> float:
  """Tokens per second while `concurrency` requests run to the same length."""
  requests = [
    GenerationRequest(
      request_id=f"{tag}-{i}",
      token_ids=_PROMPT,
      max_new_tokens=_TOKENS.value,
      sampling=SamplingConfig(),
    )
    for i in range(concurrency)
  ]
  start = time.perf_counter()
  results = await asyncio.gather(*(replica.generate(r) for r in requests))
  seconds = time.perf_counter() - start
  return sum(len(r.token_ids) for r in results) / seconds


async def _curve(model_path: str, levels: list[int]) -> dict[int, float]:
  from hybridrl.rollout.vllm_replica import VllmReplica

  config, params = hf.load_hf(model_path)
  replica = VllmReplica("decode", _vllm_config(levels))
  await replica.start()
  try:
    weights = bundle.pack(hf.named_arrays(params, config, "float32"), 1)
    await replica.load_weights(weights, WeightUpdateMode.KEEP)
    await _measure(replica, max(levels), "warm-up")
    # Interleaved, so that a slow spell of the machine hits every level.
    rates: dict[int, list[float]] = {level: [] for level in levels}
    for repeat in range(_REPEATS.value):
      for level in levels:
        rates[level].append(await _measure(replica, level, f"{repeat}-{level}"))
  finally:
    await replica.stop()
  return {level: statistics.median(found) for level, found in rates.items()}


def _vllm_config(levels: list[int]) -> VllmConfig:
  return VllmConfig(
    model_dir=_MODEL.value,
    max_num_seqs=max(levels),
    max_model_len=len(_PROMPT) + _TOKENS.value,
    cpu_cores=(_CORE.value,),
  )


def main(argv: list[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments {argv[1:]}")
  levels = [int(text) for text in _CONCURRENCY.value]
  if not levels or min(levels) < 1:
    raise app.UsageError(f"--concurrency={_CONCURRENCY.value}: numbers >= 1")
  pin_process((_CORE.value,))
  configure_process(_vllm_config(levels))
  curve = asyncio.run(_curve(_MODEL.value, levels))
  print("requests  tokens/s  ms/step")
  for level, rate in curve.items():
    print(f"{level:8d}  {rate:8.0f}  {1e3 * level / rate:7.1f}")
  if _OUT.value:
    pathlib.Path(_OUT.value).write_text(json.dumps({"tokens_per_s": curve}))


if __name__ == "__main__":
  app.run(main)
