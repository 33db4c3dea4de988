"""One sentence on what limited a run, from what its devices did. Pure."""

from collections.abc import Mapping

from hybridrl.metrics import DeviceState

# Shares closer than this are called balanced: five points of device time are
# within what a run of a few cycles varies by.
_MARGIN = 0.05
# Overhead is named as the limit only if it is worth acting upon.
_OVERHEAD = 0.10


def _share(seconds: Mapping[DeviceState, float], *states: DeviceState) -> float:
  total = sum(seconds.values())
  part = sum(seconds.get(state, 0.0) for state in states)
  return part / total if total > 0 else 0.0


def limiting_sentence(
  trainer: Mapping[DeviceState, float],
  standalone: Mapping[DeviceState, float],
  rollout_utilization: float | None,
) -> str:
  """What kept the run from being faster.

  The trainer's devices idle or lent mean that training waited for samples;
  standalone capacity without requests means that generation waited for
  training (admission by staleness held it back).

  Args:
    trainer: device-seconds by state of the trainer's devices.
    standalone: the same of the dedicated rollout devices; zeros if none.
    rollout_utilization: U_rollout over the run, or None.
  """
  if sum(trainer.values()) <= 0:
    return "The run recorded too little to say what limited it."
  train = _share(trainer, DeviceState.TRAIN)
  lent = _share(trainer, DeviceState.ROLLOUT)
  idle = _share(trainer, DeviceState.IDLE)
  both = {s: trainer.get(s, 0.0) + standalone.get(s, 0.0) for s in DeviceState}
  overhead = _share(both, DeviceState.WEIGHT_SYNC, DeviceState.SWITCHING)
  if overhead >= _OVERHEAD and overhead >= idle + lent:
    return (
      f"Weight syncs and switching limited the run: they took {overhead:.0%} "
      f"of all device time, against {train:.0%} of the trainer's for training."
    )
  if sum(standalone.values()) <= 0:
    return (
      "All devices are shared, so training and generation took turns: "
      f"{train:.0%} of the time training, {lent:.0%} generating, {idle:.0%} "
      "idle; the larger of the two limited the run."
    )
  # Without any span of generation, its lanes are not idle but not reported.
  reported = standalone.get(DeviceState.ROLLOUT, 0.0) > 0
  slack = _share(standalone, DeviceState.IDLE) if reported else 0.0
  if rollout_utilization is not None:
    slack = max(slack, 1.0 - rollout_utilization)
  trained = (
    f"the trainer's devices trained for {train:.0%} of the time, were lent for "
    f"{lent:.0%} and idle for {idle:.0%}"
  )
  unused = f"{slack:.0%} of the rollout's capacity went unused"
  if idle + lent > slack + _MARGIN:
    return f"Generation limited the run: {trained}, while {unused}."
  if slack > idle + lent + _MARGIN:
    return f"Training limited the run: {unused}, while {trained}."
  return f"Training and generation were balanced: {trained}; {unused}."
