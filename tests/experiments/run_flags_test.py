"""Flags, configuration and flagfiles describe one another."""

import dataclasses
import pathlib

import pytest
from absl import flags

from experiments import dapo_math, run_flags
from hybridrl.reporting.flagfile import flagfile_text
from hybridrl.runtime.config import RunConfig

_FLAGFILES = sorted(pathlib.Path("experiments/flagfiles").glob("*.flags"))


def _parse(*argv: str) -> RunConfig:
  flags.FLAGS(["test", *argv])
  config = run_flags.config_from_flags(flags.FLAGS)
  flags.FLAGS.unparse_flags()
  for name in [f.name for f in dataclasses.fields(RunConfig)]:
    flags.FLAGS[name].unparse()
  return config


def test_every_field_is_a_flag_with_the_seeds_default():
  config = _parse("--run_dir=x")
  assert config == dataclasses.replace(RunConfig(), run_dir="x")
  assert config.dynamic_schedule_deactivate_ratio == 0.3
  assert config.staleness_threshold == "0.1"
  assert config.trigger_parameter_sync_step == 4
  assert config.require_batches == 1
  assert not config.use_dynamic_resource_scheduling


def test_there_are_at_most_45_flags():
  own = {f.name for f in flags.FLAGS.get_flags_for_module(run_flags)}
  own |= {f.name for f in flags.FLAGS.get_flags_for_module(dapo_math)}
  assert len(own) <= 45
  fields = {f.name for f in dataclasses.fields(RunConfig)}
  assert own == fields | {"dry_run"}


def test_every_flag_has_help():
  for name in (f.name for f in dataclasses.fields(RunConfig)):
    assert len(flags.FLAGS[name].help) >= 6, name


@pytest.mark.parametrize("path", _FLAGFILES, ids=lambda p: p.stem)
def test_flagfiles_parse_and_echo(path, tmp_path):
  config = _parse(f"--flagfile={path}", "--run_dir=x")
  echo = tmp_path / "echo.flags"
  echo.write_text(flagfile_text(dataclasses.asdict(config)))
  assert _parse(f"--flagfile={echo}") == config


def test_there_are_flagfiles():
  assert {p.stem for p in _FLAGFILES} >= {
    "quickstart",
    "smollm2_gsm8k_cpu",
    "qwen3_8b_dapo_math_32gpu",
  }
