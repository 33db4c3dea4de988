import io

import pytest

from hybridrl.metrics import DeviceState, device_seconds
from hybridrl.reporting.composite import make_reporter
from hybridrl.reporting.run_dir import make_run_dir
from hybridrl.reporting.run_record import read_run
from tests.reporting.synthetic_run import LANES, Clock, report_cycles


def _attempt(path, cycles, first=0, close=True):
  clock = Clock()
  reporter = make_reporter(path, lanes=LANES, stream=io.StringIO(), clock=clock)
  report_cycles(reporter, clock, cycles, first)
  reporter.event("note", f"from {first}")
  if close:
    reporter.close()
  return reporter


def test_a_run_by_hand(tmp_path):
  run = read_run(_attempt(tmp_path, 2).run_dir)
  assert run.series("critic/score/mean", by_step=True) == [
    (1.0, 1 / 16),
    (2.0, 2 / 16),
  ]
  assert run.series("critic/score/mean", by_step=False) == [
    (8.0, 1 / 16),
    (16.0, 2 / 16),
  ]
  assert run.series("actor/lr", by_step=True) == []
  assert run.window() == (0.0, 16.0)
  assert run.end_s == 16.0
  assert run.backlog == [(2.0, 0.0), (10.0, 1.0)]
  assert [e.record["message"] for e in run.events] == ["from 0"]
  # A cycle: device 0 switches 2, serves 2, trains 3, publishes 1; device 1
  # idles 4, trains 3, publishes 1; device 2 generates 7, loads 1.
  assert device_seconds(run.timelines()) == {
    DeviceState.TRAIN: 12.0,
    DeviceState.WEIGHT_SYNC: 6.0,
    DeviceState.SWITCHING: 4.0,
    DeviceState.ROLLOUT: 18.0,
    DeviceState.IDLE: 8.0,
  }


def test_a_resumed_run_is_one_history(tmp_path):
  # Steps 1 to 4 until a failure; resumed from the checkpoint after step 2.
  _attempt(tmp_path, 4, close=False)
  run = read_run(_attempt(tmp_path, 3, first=2).run_dir)
  assert run.series("critic/score/mean", by_step=True) == [
    (float(step), step / 16) for step in (1, 2, 3, 4, 5)
  ]
  times = [t for t, _ in run.series("critic/score/mean", by_step=False)]
  assert times == [8.0, 16.0, 40.0, 48.0, 56.0]
  assert run.end_s == 56.0
  # What was done and lost was done all the same: it stays on the timeline.
  assert run.window() == (0.0, 56.0)
  assert sum(device_seconds(run.timelines()).values()) == 3 * 56.0
  assert len(run.decisions) == 21
  assert run.decisions[-1].time_s == 56.0


def test_a_run_that_goes_on_can_be_read(tmp_path):
  reporter = _attempt(tmp_path, 2, close=False)
  assert reporter.run_dir is not None
  run = read_run(reporter.run_dir)
  assert len(run.rows) == 2
  assert run.window() == (0.0, 16.0)
  reporter.close()


def test_a_directory_without_a_run_is_refused(tmp_path):
  with pytest.raises(ValueError, match=r"no run \(run\.json is missing\)"):
    read_run(make_run_dir(tmp_path))
