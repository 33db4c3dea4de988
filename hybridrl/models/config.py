"""The shape of a dense decoder, to and from Hugging Face's config.json."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

# Head sizes that attention kernels of the inference engine accept lie in here.
MIN_HEAD_SIZE, MAX_HEAD_SIZE = 32, 256

_ARCHITECTURES = {
  "llama": "LlamaForCausalLM",
  "qwen2": "Qwen2ForCausalLM",
  "qwen3": "Qwen3ForCausalLM",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
  """Llama 3's frequency scaling (`rope_type: llama3`).

  Attributes:
    factor: by how much long wavelengths are stretched.
    low_freq_factor: wavelengths over original/low are stretched in full.
    high_freq_factor: wavelengths under original/high are left alone.
    original_max_position: context length before the stretch, in tokens.
  """

  factor: float
  low_freq_factor: float
  high_freq_factor: float
  original_max_position: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
  """A decoder of the Llama, Qwen2 or Qwen3 family.

  Hashable, so that it can be a static argument of a jitted function.

  Attributes:
    model_type: 'llama', 'qwen2' (biases on q, k, v) or 'qwen3' (RMS norm on
      each head of q and k).
    vocab_size: V, rows of the embedding.
    hidden_size: E, width of the residual stream.
    intermediate_size: F, width of the gated MLP.
    num_layers: L.
    num_heads: H, query heads.
    num_kv_heads: G, key and value heads; divides H.
    head_size: D, 32 to 256 and even.
    rope_theta: base of the rotary frequencies.
    rope_scaling: None or Llama 3's.
    norm_eps: epsilon of the RMS norms.
    tie_embeddings: the output matrix is the embedding.
    max_position: longest sequence that the model was made for, in tokens.
    bos_token_id, eos_token_ids, pad_token_id: kept for config.json only.
  """

  model_type: str = "qwen3"
  vocab_size: int
  hidden_size: int
  intermediate_size: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_size: int
  rope_theta: float = 10_000.0
  rope_scaling: RopeScaling | None = None
  norm_eps: float = 1e-6
  tie_embeddings: bool = False
  max_position: int = 2048
  bos_token_id: int | None = None
  eos_token_ids: tuple[int, ...] = ()
  pad_token_id: int | None = None

  def __post_init__(self):
    if self.model_type not in _ARCHITECTURES:
      raise ValueError(
        f"model_type is {self.model_type!r}; known: {sorted(_ARCHITECTURES)}"
      )
    for name in (
      "vocab_size",
      "hidden_size",
      "intermediate_size",
      "num_layers",
      "num_heads",
      "num_kv_heads",
    ):
      if getattr(self, name) < 1:
        raise ValueError(f"{name} is {getattr(self, name)}; it must be >= 1")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_attention_heads ({self.num_heads}) is not a multiple of"
        f" num_key_value_heads ({self.num_kv_heads})"
      )
    in_range = MIN_HEAD_SIZE <= self.head_size <= MAX_HEAD_SIZE
    if not in_range or self.head_size % 2:
      raise ValueError(
        f"head size {self.head_size} is not an even number in"
        f" {MIN_HEAD_SIZE}..{MAX_HEAD_SIZE}"
      )

  @property
  def qkv_bias(self) -> bool:
    return self.model_type == "qwen2"

  @property
  def qk_norm(self) -> bool:
    return self.model_type == "qwen3"

  @property
  def num_parameters(self) -> int:
    """Number of trained scalars, a tied matrix counted once."""
    return sum(math.prod(s) for s in self.tensor_shapes().values())

  def layer_shapes(self) -> dict[str, tuple[int, ...]]:
    """Name below 'model.layers.<i>.' -> shape, in Hugging Face's layout."""
    e, f = self.hidden_size, self.intermediate_size
    q, kv = (n * self.head_size for n in (self.num_heads, self.num_kv_heads))
    shapes: dict[str, tuple[int, ...]] = {
      "input_layernorm.weight": (e,),
      "self_attn.q_proj.weight": (q, e),
      "self_attn.k_proj.weight": (kv, e),
      "self_attn.v_proj.weight": (kv, e),
      "self_attn.o_proj.weight": (e, q),
      "post_attention_layernorm.weight": (e,),
      "mlp.gate_proj.weight": (f, e),
      "mlp.up_proj.weight": (f, e),
      "mlp.down_proj.weight": (e, f),
    }
    if self.qkv_bias:
      shapes |= {
        "self_attn.q_proj.bias": (q,),
        "self_attn.k_proj.bias": (kv,),
        "self_attn.v_proj.bias": (kv,),
      }
    if self.qk_norm:
      shapes |= {
        "self_attn.q_norm.weight": (self.head_size,),
        "self_attn.k_norm.weight": (self.head_size,),
      }
    return shapes

  def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape of all tensors; a tied lm_head is absent."""
    shapes: dict[str, tuple[int, ...]] = {
      "model.embed_tokens.weight": (self.vocab_size, self.hidden_size)
    }
    for i in range(self.num_layers):
      for name, shape in self.layer_shapes().items():
        shapes[f"model.layers.{i}.{name}"] = shape
    shapes["model.norm.weight"] = (self.hidden_size,)
    if not self.tie_embeddings:
      shapes["lm_head.weight"] = (self.vocab_size, self.hidden_size)
    return shapes

  def to_hf(self) -> dict[str, Any]:
    """The content of config.json."""
    rope: dict[str, Any] = {
      "rope_theta": self.rope_theta,
      "rope_type": "default",
    }
    if s := self.rope_scaling:
      rope |= {
        "rope_type": "llama3",
        "factor": s.factor,
        "low_freq_factor": s.low_freq_factor,
        "high_freq_factor": s.high_freq_factor,
        "original_max_position_embeddings": s.original_max_position,
      }
    eos = self.eos_token_ids
    return {
      "architectures": [_ARCHITECTURES[self.model_type]],
      "model_type": self.model_type,
      "vocab_size": self.vocab_size,
      "hidden_size": self.hidden_size,
      "intermediate_size": self.intermediate_size,
      "num_hidden_layers": self.num_layers,
      "num_attention_heads": self.num_heads,
      "num_key_value_heads": self.num_kv_heads,
      "head_dim": self.head_size,
      "hidden_act": "silu",
      "rms_norm_eps": self.norm_eps,
      "rope_parameters": rope,
      # Readers older than `rope_parameters` look here.
      "rope_theta": self.rope_theta,
      "tie_word_embeddings": self.tie_embeddings,
      "max_position_embeddings": self.max_position,
      "attention_bias": self.qkv_bias,
      "bos_token_id": self.bos_token_id,
      "eos_token_id": eos[0] if len(eos) == 1 else (list(eos) or None),
      "pad_token_id": self.pad_token_id,
      "torch_dtype": "float32",
    }

  @classmethod
  def from_hf(cls, fields: Mapping[str, Any]) -> "ModelConfig":
    """Reads the content of a config.json.

    Raises:
      ValueError: a field is missing, or asks for what this decoder cannot do.
    """
    _refuse_unsupported(fields)
    try:
      heads, hidden = fields["num_attention_heads"], fields["hidden_size"]
      rope_theta, rope_scaling = _rope(fields)
      eos = fields.get("eos_token_id")
      return cls(
        model_type=fields["model_type"],
        vocab_size=fields["vocab_size"],
        hidden_size=hidden,
        intermediate_size=fields["intermediate_size"],
        num_layers=fields["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=fields.get("num_key_value_heads") or heads,
        head_size=fields.get("head_dim") or hidden // heads,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        norm_eps=fields["rms_norm_eps"],
        tie_embeddings=bool(fields.get("tie_word_embeddings", False)),
        max_position=fields.get("max_position_embeddings", 2048),
        bos_token_id=fields.get("bos_token_id"),
        eos_token_ids=(
          tuple(eos) if isinstance(eos, list) else () if eos is None else (eos,)
        ),
        pad_token_id=fields.get("pad_token_id"),
      )
    except KeyError as error:
      raise ValueError(f"field {error} is missing") from error


def _refuse_unsupported(fields: Mapping[str, Any]) -> None:
  """Raises ValueError for a switch that would change the computation."""
  if fields.get("model_type") not in _ARCHITECTURES:
    raise ValueError(
      f"model_type is {fields.get('model_type')!r}; known:"
      f" {sorted(_ARCHITECTURES)}"
    )
  if fields.get("hidden_act", "silu") != "silu":
    raise ValueError(f"hidden_act is {fields['hidden_act']!r}, not 'silu'")
  if fields.get("mlp_bias"):
    raise ValueError("mlp_bias is set, which is not supported")
  if fields.get("attention_bias") and fields["model_type"] != "qwen2":
    raise ValueError("attention_bias is set, which is not supported")
  if fields.get("use_sliding_window"):
    raise ValueError("use_sliding_window is set, which is not supported")


def _rope(fields: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
  """(theta, scaling) from either spelling of the rotary parameters."""
  rope = dict(fields.get("rope_parameters") or fields.get("rope_scaling") or {})
  theta = rope.get("rope_theta", fields.get("rope_theta", 10_000.0))
  kind = rope.get("rope_type", rope.get("type", "default"))
  if kind == "default":
    return float(theta), None
  if kind != "llama3":
    raise ValueError(f"rope_type is {kind!r}; known: 'default', 'llama3'")
  return float(theta), RopeScaling(
    factor=float(rope["factor"]),
    low_freq_factor=float(rope["low_freq_factor"]),
    high_freq_factor=float(rope["high_freq_factor"]),
    original_max_position=int(rope["original_max_position_embeddings"]),
  )


def read_config(model_dir: str | pathlib.Path) -> ModelConfig:
  """Reads `model_dir`/config.json.

  Raises:
    ValueError: it is missing, is not JSON, or describes another kind of model;
      the message names the file.
  """
  path = pathlib.Path(model_dir) / "config.json"
  try:
    return ModelConfig.from_hf(json.loads(path.read_text()))
  except FileNotFoundError as error:
    raise ValueError(f"{path}: no such file") from error
  except (ValueError, TypeError, AttributeError) as error:
    raise ValueError(f"{path}: {error}") from error
