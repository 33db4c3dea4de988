"""The conversion, on a small GGUF file of the same form."""

import json
import pathlib

import gguf
import numpy as np
import pytest

from hybridrl.data.tokenizer import load_tokenizer
from hybridrl.models.hf import load_hf
from launch import fetch_smollm2

_HEADS, _KV_HEADS, _HEAD_SIZE, _HIDDEN, _MLP = 2, 1, 32, 64, 96
_TOKENS = ["<|im_start|>", "<|im_end|>", "a", "b", "ab", "1", "2"]
_TEMPLATE = (
  "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
)


def _permute(weight: np.ndarray, heads: int) -> np.ndarray:
  """What the GGUF conversion does to a Hugging Face weight of q or k."""
  halves = weight.reshape(heads, 2, -1, weight.shape[-1])
  return halves.swapaxes(1, 2).reshape(weight.shape)


def _tensors() -> dict[str, np.ndarray]:
  """GGUF name -> weight in Hugging Face's order."""
  rng = np.random.default_rng(0)
  kv = _KV_HEADS * _HEAD_SIZE
  shapes = {
    "token_embd.weight": (len(_TOKENS), _HIDDEN),
    "output_norm.weight": (_HIDDEN,),
  } | {
    f"blk.0.{name}.weight": shape
    for name, shape in {
      "attn_norm": (_HIDDEN,),
      "attn_q": (_HIDDEN, _HIDDEN),
      "attn_k": (kv, _HIDDEN),
      "attn_v": (kv, _HIDDEN),
      "attn_output": (_HIDDEN, _HIDDEN),
      "ffn_norm": (_HIDDEN,),
      "ffn_gate": (_MLP, _HIDDEN),
      "ffn_up": (_MLP, _HIDDEN),
      "ffn_down": (_HIDDEN, _MLP),
    }.items()
  }
  return {
    name: rng.normal(size=shape).astype(np.float32)
    for name, shape in shapes.items()
  }


def _write_gguf(path: pathlib.Path) -> None:
  writer = gguf.GGUFWriter(path, "llama")
  writer.add_block_count(1)
  writer.add_context_length(128)
  writer.add_embedding_length(_HIDDEN)
  writer.add_feed_forward_length(_MLP)
  writer.add_head_count(_HEADS)
  writer.add_head_count_kv(_KV_HEADS)
  writer.add_rope_freq_base(100000.0)
  writer.add_vocab_size(len(_TOKENS))
  writer.add_token_list(_TOKENS)
  writer.add_token_types([3, 3, 1, 1, 1, 1, 1])
  writer.add_token_merges(["a b"])
  writer.add_bos_token_id(0)
  writer.add_eos_token_id(1)
  writer.add_pad_token_id(1)
  writer.add_chat_template(_TEMPLATE)
  for name, weight in _tensors().items():
    if name.endswith(("attn_q.weight", "attn_k.weight")):
      weight = _permute(weight, _HEADS if "attn_q" in name else _KV_HEADS)
    writer.add_tensor(name, np.ascontiguousarray(weight))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("smollm2")
  _write_gguf(path / "small.gguf")
  fetch_smollm2.convert(path / "small.gguf", path / "model")
  return path / "model"


def test_weights_arrive_under_their_names_and_in_order(folder):
  config, params = load_hf(folder)
  tensors = _tensors()
  assert config.tie_embeddings
  assert (config.num_heads, config.num_kv_heads) == (_HEADS, _KV_HEADS)
  assert config.rope_theta == 100000.0
  np.testing.assert_array_equal(params["embed"], tensors["token_embd.weight"])
  for ours, theirs in (
    ("q", "attn_q"),
    ("k", "attn_k"),
    ("v", "attn_v"),
    ("o", "attn_output"),
    ("gate", "ffn_gate"),
    ("down", "ffn_down"),
  ):
    np.testing.assert_array_equal(
      params["layers"][ours][0], tensors[f"blk.0.{theirs}.weight"], ours
    )


def test_the_tokenizer_merges_and_splits_digits(folder):
  tokenizer = load_tokenizer(folder)
  assert list(tokenizer.encode("ab12")) == [4, 5, 6]
  assert tokenizer.stop_token_ids == (1,)
  chat = [{"role": "user", "content": "ab"}]
  assert list(tokenizer.encode_chat(chat)) == [0, 4, 1]


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_unpermute_undoes_the_permutation(heads):
  weight = np.arange(8 * heads * 3).reshape(8 * heads, 3)
  np.testing.assert_array_equal(
    fetch_smollm2.unpermute(_permute(weight, heads), heads), weight
  )


def test_a_complete_folder_is_left_alone(folder, monkeypatch, capsys):
  monkeypatch.setattr(
    fetch_smollm2, "download_gguf", lambda _: pytest.fail("downloads again")
  )
  before = (folder / "model.safetensors").stat().st_mtime_ns
  fetch_smollm2.fetch(folder)
  assert (folder / "model.safetensors").stat().st_mtime_ns == before
  assert "complete" in capsys.readouterr().out
  assert json.loads((folder / "config.json").read_text())["vocab_size"] == 7
