"""The result table and file of a finished run."""

import json
import math

import pytest

from experiments import summary
from hybridrl.runtime.parts import RunResult

_RESULT = RunResult(
  steps=20,
  version=6,
  wall_s=80.0,
  total_s=100.0,
  trained_samples=320,
  dropped={"no_spread": 12},
  trained_tokens=1000,
  generated_tokens=2000,
  step_rewards=tuple(0.4 + 0.02 * i for i in range(20)),
  val_rewards=((0, 0.4), (20, 0.7)),
  activations=5,
  activate_s=1.0,
  reclaim_s=0.5,
  moved_requests=3,
  aborted_requests=4,
  reprefilled_tokens=50,
  checkpoint="c/20",
  export="e/final",
)


def test_tenths():
  assert summary.tenths(_RESULT.step_rewards) == pytest.approx((0.41, 0.77))
  assert summary.tenths([0.5]) == (0.5, 0.5)
  assert all(math.isnan(x) for x in summary.tenths([]))


def test_table_names_what_a_reader_looks_for(tmp_path):
  table = summary.table(tmp_path, _RESULT, 3 << 30)
  for part in (
    "0.410",
    "0.770  (+0.360)",
    "0.700  (+0.300)",
    "12 no_spread",
    "3.0 GiB",
    "c/20",
    str(tmp_path),
  ):
    assert part in table


def test_result_file_holds_every_field(tmp_path):
  summary.write(tmp_path, _RESULT, 7)
  found = json.loads((tmp_path / "result.json").read_text())
  assert found["steps"] == 20 and found["peak_memory_bytes"] == 7
  assert [p.name for p in tmp_path.iterdir()] == ["result.json"]
