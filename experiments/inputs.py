"""Reads and checks what a run is fed with, before anything expensive starts."""

import importlib
import os
import pathlib
import subprocess
import sys
import tempfile

from hybridrl import scheduling
from hybridrl.data import embedded, prompt_set, rows
from hybridrl.data.tokenizer import load_tokenizer, save_embedded_tokenizer
from hybridrl.models.check import check_model_dir
from hybridrl.models.config import ModelConfig, read_config
from hybridrl.runtime import config_checks, plan
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.ray_parts import Inputs
from hybridrl.training.warm_start import model_config

# Problems of the embedded task that one run draws on, and those kept apart.
_EMBEDDED_TRAIN, _EMBEDDED_HELD_OUT = 4096, 128


def check(config: RunConfig) -> ModelConfig:
  """All checks that need no tokenizer; returns the model's configuration.

  Raises:
    ValueError: what is wrong, naming flag or file (ConfigError: several lines).
  """
  config_checks.validate(config)
  for module in config.policy_modules:
    try:
      importlib.import_module(module)
    except Exception as error:
      raise ValueError(
        f"--policy_modules: {module} does not import:"
        f" {type(error).__name__}: {error}"
      ) from error
  try:
    scheduling.make_policy(
      config.dynamic_schedule_policy,
      deactivate_ratio=config.dynamic_schedule_deactivate_ratio,
    )
  except (KeyError, ValueError, TypeError) as error:
    raise ValueError(
      f"--dynamic_schedule_policy={config.dynamic_schedule_policy}:"
      f" {error.args[0] if error.args else error}"
    ) from error
  rows.check_files([*config.train_files, *config.val_files])
  if config.model_path:
    check_model_dir(config.model_path)
    model = read_config(config.model_path)
  else:
    if config.train_files:
      raise ValueError(
        "--train_files needs a --model_path: the embedded model knows the"
        " embedded task's words only"
      )
    model = _embedded_model()
  longest = config.max_prompt_length + config.max_response_length
  if longest > model.max_position:
    raise ValueError(
      f"--max_prompt_length + --max_response_length = {longest} is beyond the"
      f" model's {model.max_position} positions"
    )
  for hybrid, count in (
    (False, config.num_standalone),
    (True, config.num_hybrid),
  ):
    if count:
      plan.kv_cache_bytes(config, model, hybrid)
  return model


def _embedded_model() -> ModelConfig:
  """What the warm start will make; its vocabulary is the task's words."""
  with tempfile.TemporaryDirectory() as folder:
    save_embedded_tokenizer(folder, embedded.words())
    return model_config(load_tokenizer(folder))


def newest_checkpoint(config: RunConfig) -> str:
  """The checkpoint that --resume names; '' for a fresh run."""
  if config.resume == "never":
    return ""
  if config.resume != "auto":
    return config.resume
  folder = pathlib.Path(config.run_dir) / "checkpoints"
  steps = [p for p in folder.glob("*") if p.name.isdigit()]
  return str(max(steps, key=lambda p: int(p.name))) if steps else ""


def _warm_start(config: RunConfig) -> str:
  """Makes the embedded model in a process of its own; returns its folder.

  The driver must not hold a second JAX client that competes for the cores.
  """
  out = pathlib.Path(config.run_dir) / "warm_start"
  if (out / "model.safetensors").exists():
    return str(out)
  command = [sys.executable, "-m", "experiments.warm_start"]
  command += [f"--out={out}", f"--seed={config.seed}"]
  done = subprocess.run(command, env=os.environ | {"JAX_PLATFORMS": "cpu"})
  if done.returncode:
    raise RuntimeError(
      f"the warm start of the embedded model failed with exit code"
      f" {done.returncode}; its messages are above"
    )
  return str(out)


def read(config: RunConfig, model: ModelConfig) -> Inputs:
  """Model folder, tokenizer and prompts; makes the embedded model if needed.

  Raises:
    ValueError: a file's content is unusable; names it.
  """
  resume_from = newest_checkpoint(config)
  model_dir = config.model_path or _warm_start(config)
  tokenizer = load_tokenizer(model_dir)
  if config.train_files:
    train = prompt_set.load_prompts(
      config.train_files, tokenizer, config.max_prompt_length
    )
    held_out = None
    if config.val_files:
      held_out = prompt_set.load_prompts(
        config.val_files, tokenizer, config.max_prompt_length
      )
  else:
    train = prompt_set.embedded_prompts(
      "train",
      _EMBEDDED_TRAIN,
      config.seed,
      tokenizer,
      config.max_prompt_length,
    )
    held_out = prompt_set.embedded_prompts(
      "test",
      _EMBEDDED_HELD_OUT,
      config.seed,
      tokenizer,
      config.max_prompt_length,
    )
  return Inputs(
    model_dir=model_dir,
    model=model,
    tokenizer=tokenizer,
    train=train,
    held_out=held_out,
    resume_from=resume_from,
  )
