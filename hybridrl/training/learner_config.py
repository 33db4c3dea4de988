"""What a learner needs to know, checked once."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnerConfig:
  """Configuration of training.learner.Learner.

  Attributes:
    model_dir: Hugging Face folder of the model to start from.
    checkpoint_dir: where save() writes.
    mini_batch_samples: samples of one optimizer update; a train() call makes
      one update for each so many samples of it.
    max_prompt_length, max_response_length: longest, in tokens.
    temperature: of the rollout; logits are divided by it.
    lr, lr_warmup_steps, max_grad_norm, weight_decay: see state.make_optimizer;
      warm-up in updates.
    clip_ratio_low, clip_ratio_high, clip_ratio_c: see dapo.ClipRange.
    divide_by_std: see advantages.group_advantages.
    overlong_buffer_len: see overlong.soft_overlong_penalty; 0 is off.
    max_tokens_per_micro_batch: most tokens on the device at once (a longer
      single row excepted). Less is used where that is faster.
    wire_dtype: type of published weights, 'float32' or 'bfloat16'.
    keep_checkpoints: how many of the newest are kept.
    device: JAX platform to train on, 'cpu', 'cuda' or 'tpu'.
  """

  model_dir: str
  checkpoint_dir: str
  mini_batch_samples: int = 16
  max_prompt_length: int = 256
  max_response_length: int = 256
  temperature: float = 1.0
  lr: float = 1e-6
  lr_warmup_steps: int = 10
  max_grad_norm: float = 1.0
  weight_decay: float = 0.0
  clip_ratio_low: float = 0.2
  clip_ratio_high: float = 0.28
  clip_ratio_c: float = 10.0
  divide_by_std: bool = True
  overlong_buffer_len: int = 0
  max_tokens_per_micro_batch: int = 4096
  wire_dtype: str = "float32"
  keep_checkpoints: int = 2
  device: str = "cpu"

  def __post_init__(self):
    for name in (
      "mini_batch_samples",
      "max_prompt_length",
      "max_response_length",
      "max_tokens_per_micro_batch",
      "keep_checkpoints",
    ):
      self._require(name, getattr(self, name) >= 1, ">= 1")
    for name in ("temperature", "lr", "max_grad_norm"):
      self._require(name, getattr(self, name) > 0, "> 0")
    for name in ("lr_warmup_steps", "weight_decay", "clip_ratio_high"):
      self._require(name, getattr(self, name) >= 0, ">= 0")
    self._require("clip_ratio_low", 0 <= self.clip_ratio_low <= 1, "in 0..1")
    self._require(
      "clip_ratio_c",
      self.clip_ratio_c > 1 + self.clip_ratio_high,
      "> 1 + clip_ratio_high",
    )
    self._require(
      "overlong_buffer_len",
      0 <= self.overlong_buffer_len <= self.max_response_length,
      f"in 0..max_response_length ({self.max_response_length})",
    )
    self._require(
      "wire_dtype",
      self.wire_dtype in ("float32", "bfloat16"),
      "'float32' or 'bfloat16'",
    )
    self._require(
      "device", self.device in ("cpu", "cuda", "tpu"), "cpu, cuda or tpu"
    )

  def _require(self, name: str, condition: bool, rule: str) -> None:
    if not condition:
      raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {rule}")

  @property
  def max_length(self) -> int:
    """Longest sequence, prompt and response, in tokens."""
    return self.max_prompt_length + self.max_response_length
