"""The metrics as TensorBoard event files."""

from collections.abc import Mapping

from hybridrl.reporting.run_dir import RunDir
from hybridrl.reporting.writer import NullReporter

# A killed run loses at most this much of what it reported last.
_FLUSH_S = 5


class TensorBoardWriter(NullReporter):
  """One scalar per metric over the micro-step."""

  def __init__(self, run_dir: RunDir):
    # Imported here: only a run needs it, and it is an optional package.
    import tensorboardX

    self._make = lambda purge_step: tensorboardX.SummaryWriter(
      str(run_dir.tensorboard), purge_step=purge_step, flush_secs=_FLUSH_S
    )
    self._writer = None

  def metrics(
    self, step: int, version: int, values: Mapping[str, float]
  ) -> None:
    del version  # among the values, as fully_async/count/current_param_version
    if self._writer is None:
      # After a resume, steps that the earlier attempt reported beyond its
      # last checkpoint are superseded.
      self._writer = self._make(step)
    for name, value in values.items():
      self._writer.add_scalar(name, float(value), global_step=step)

  def close(self) -> None:
    if self._writer is not None:
      self._writer.close()
