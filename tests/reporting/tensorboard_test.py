import math
import struct

import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto import event_pb2

from hybridrl.reporting.run_dir import make_run_dir
from hybridrl.reporting.tensorboard import TensorBoardWriter


def _masked_crc(data):
  crc = crc32c(data)
  return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _events(path):
  """Reads TFRecords by their format: length, crc, payload, crc."""
  data = path.read_bytes()
  while data:
    header, (length_crc,) = data[:8], struct.unpack("<I", data[8:12])
    assert length_crc == _masked_crc(header)
    (length,) = struct.unpack("<Q", header)
    payload = data[12 : 12 + length]
    (crc,) = struct.unpack("<I", data[12 + length : 16 + length])
    assert crc == _masked_crc(payload)
    yield event_pb2.Event.FromString(payload)
    data = data[16 + length :]


def _read(run):
  """[(step, tag, value)] as TensorBoard would show them: a session that
  starts at a step supersedes what earlier ones reported from there on."""
  scalars = []
  for path in sorted(run.tensorboard.iterdir()):
    for event in _events(path):
      if event.session_log.status == event_pb2.SessionLog.START:
        scalars = [s for s in scalars if s[0] < event.step]
      scalars += [
        (event.step, value.tag, value.simple_value)
        for value in event.summary.value
      ]
  return scalars


def test_scalars_come_back_under_their_names(tmp_path):
  run = make_run_dir(tmp_path)
  writer = TensorBoardWriter(run)
  name = "dynamic_resource/train_resource_utilization"
  writer.metrics(4, 1, {name: 0.25, "timing_s/param_sync": 3})
  writer.metrics(8, 2, {name: 0.5, "actor/pg_loss": math.inf})
  writer.close()
  assert _read(run) == [
    (4, name, 0.25),
    (4, "timing_s/param_sync", 3.0),
    (8, name, 0.5),
    (8, "actor/pg_loss", math.inf),
  ]


def test_a_resume_supersedes_later_steps(tmp_path):
  run = make_run_dir(tmp_path)
  for steps in ((4, 8, 12), (8, 12)):
    writer = TensorBoardWriter(run)
    for step in steps:
      writer.metrics(step, step // 4, {"actor/lr": float(len(steps))})
    writer.close()
    # File names carry the second; a resume never starts in the same one.
    for path in run.tensorboard.iterdir():
      path.rename(path.with_name(f"{len(steps) * -1 + 9}-{path.name}"))
  values = [(step, value) for step, _, value in _read(run)]
  assert values == [(4, 3.0), (8, 2.0), (12, 2.0)]


def test_a_run_without_metrics_closes(tmp_path):
  run = make_run_dir(tmp_path)
  TensorBoardWriter(run).close()
  assert _read(run) == []


def test_what_is_no_number_is_an_error_of_the_writer(tmp_path):
  writer = TensorBoardWriter(make_run_dir(tmp_path))
  with pytest.raises(ValueError, match="could not convert"):
    writer.metrics(1, 0, {"actor/lr": "fast"})  # pyright: ignore
