import pytest

from hybridrl.training.learner_config import LearnerConfig


@pytest.mark.parametrize(
  ("field", "value"),
  [
    ("temperature", 0.0),  # L2: greedy sampling cannot be trained on
    ("temperature", -1.0),
    ("lr", 0.0),
    ("lr_warmup_steps", -1),
    ("mini_batch_samples", 0),
    ("clip_ratio_low", 1.5),
    ("clip_ratio_high", -0.1),
    ("clip_ratio_c", 1.2),
    ("overlong_buffer_len", -1),
    ("overlong_buffer_len", 257),
    ("wire_dtype", "int8"),
    ("device", "abacus"),
    ("keep_checkpoints", 0),
  ],
)
def test_a_value_out_of_range_is_named(field, value):
  with pytest.raises(ValueError, match=f"{field} is {value!r}"):
    LearnerConfig(model_dir="m", checkpoint_dir="c", **{field: value})


def test_the_defaults_are_valid():
  config = LearnerConfig(model_dir="m", checkpoint_dir="c")
  assert config.max_length == 512
