import pytest
from absl import flags

from hybridrl.reporting import flagfile
from hybridrl.reporting.run_dir import make_run_dir

_VALUES = {
  "use_dynamic_resource_scheduling": True,
  "partial_rollout": False,
  "staleness_threshold": "0.1",
  "lr": 1e-06,
  "train_files": ("a.jsonl", "with,comma.jsonl", "with space.jsonl"),
  "val_files": (),
  "run_dir": "runs/{time}",
  "note": "a # b",
}


def _parse(path):
  values = flags.FlagValues()
  for name in ("use_dynamic_resource_scheduling", "partial_rollout"):
    flags.DEFINE_bool(name, name == "partial_rollout", "", values)
  for name in ("staleness_threshold", "run_dir", "note"):
    flags.DEFINE_string(name, "", "", values)
  for name in ("train_files", "val_files"):
    flags.DEFINE_list(name, ["default"], "", values)
  flags.DEFINE_float("lr", 0.0, "", flag_values=values)
  flags.DEFINE_integer("not_given", None, "", flag_values=values)
  values(["program", f"--flagfile={path}"])
  return values


def test_absl_reads_the_flagfile_back(tmp_path):
  run = make_run_dir(tmp_path)
  flagfile.write_flagfile(run, _VALUES | {"not_given": None})
  parsed = _parse(run.flagfile)
  for name, value in _VALUES.items():
    right = list(value) if isinstance(value, tuple) else value
    assert getattr(parsed, name) == right, name
  assert parsed.not_given is None


def test_a_value_of_two_lines_is_refused():
  with pytest.raises(ValueError, match="--note='a.nb': .* one line"):
    flagfile.flagfile_text({"note": "a\nb"})


def test_other_flags_of_an_earlier_attempt_are_kept(tmp_path):
  run = make_run_dir(tmp_path)
  for lr in (1.0, 1.0, 2.0, 3.0):
    flagfile.write_flagfile(run, {"lr": lr})
  assert run.flagfile.read_text() == "--lr=3.0\n"
  assert (tmp_path / "flags.1.flags").read_text() == "--lr=1.0\n"
  assert (tmp_path / "flags.2.flags").read_text() == "--lr=2.0\n"
  assert len(list(tmp_path.glob("*.flags"))) == 3
