import pytest

from hybridrl.metrics import DeviceState
from hybridrl.reporting.diagnosis import limiting_sentence


def _seconds(train=0.0, rollout=0.0, sync=0.0, switching=0.0, idle=0.0):
  return {
    DeviceState.TRAIN: train,
    DeviceState.ROLLOUT: rollout,
    DeviceState.WEIGHT_SYNC: sync,
    DeviceState.SWITCHING: switching,
    DeviceState.IDLE: idle,
  }


_NONE = _seconds()


@pytest.mark.parametrize(
  ("trainer", "standalone", "used", "begins"),
  [
    # The seed's three configurations: starving, piling up, matched.
    (_seconds(train=50, idle=50), _seconds(rollout=100), 0.97, "Generation"),
    (
      _seconds(train=50, rollout=40, idle=10),
      _seconds(rollout=100),
      0.97,
      "Generation",
    ),
    (_seconds(train=97, idle=3), _seconds(rollout=60, idle=40), 0.5, "Train"),
    # The replica is awake all the time, but its capacity is not in use.
    (_seconds(train=97, idle=3), _seconds(rollout=100), 0.6, "Training lim"),
    (_seconds(train=90, idle=10), _seconds(rollout=91, idle=9), 0.9, "Trainin"),
    (
      _seconds(train=60, sync=30, idle=10),
      _seconds(rollout=70, sync=30),
      0.9,
      "Weight syncs and switching",
    ),
    # Overhead below a tenth is not the limit, even where it is the largest.
    (_seconds(train=95, sync=5), _seconds(rollout=95, sync=5), 1.0, "Training"),
    (_seconds(train=40, rollout=60), _NONE, 1.0, "All devices are shared"),
    (_NONE, _seconds(rollout=10), 1.0, "The run recorded too little"),
    (_seconds(train=50, idle=50), _seconds(rollout=100), None, "Generation"),
    # Replicas that never reported generation were not idle for that.
    (_seconds(train=50, idle=50), _seconds(sync=2, idle=98), 0.97, "Generat"),
  ],
)
def test_the_sentence_names_the_limit(trainer, standalone, used, begins):
  text = limiting_sentence(trainer, standalone, used)
  assert text.startswith(begins)
  assert text.count(".") == 1
  assert text.endswith(".")


def test_balance_is_told_from_training():
  text = limiting_sentence(
    _seconds(train=90, idle=10), _seconds(rollout=91, idle=9), 0.91
  )
  assert text.startswith("Training and generation were balanced")


def test_the_sentence_gives_the_shares():
  text = limiting_sentence(
    _seconds(train=50, rollout=30, idle=20), _seconds(rollout=100), 0.9
  )
  for share in ("trained for 50%", "lent for 30%", "idle for 20%", "10% of"):
    assert share in text
