"""One small random-weight model folder, for tests on real parts."""

import pathlib

from hybridrl.data import embedded
from hybridrl.data.tokenizer import load_tokenizer, save_embedded_tokenizer
from hybridrl.models.config import ModelConfig
from hybridrl.models.decoder import init_params
from hybridrl.models.hf import save_hf


def save_small_model(
  folder: str | pathlib.Path, *, tied: bool = False, seed: int = 0
) -> str:
  """Writes a 4-layer decoder with the embedded task's words; returns the path.

  Its responses are noise and nearly always as long as they may be, which is
  what runs of the machinery need.
  """
  save_embedded_tokenizer(folder, embedded.words())
  tokenizer = load_tokenizer(folder)
  (stop,) = tokenizer.stop_token_ids
  config = ModelConfig(
    vocab_size=tokenizer.vocab_size,
    hidden_size=128,
    intermediate_size=256,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_size=32,
    max_position=512,
    tie_embeddings=tied,
    eos_token_ids=(stop,),
    pad_token_id=tokenizer.pad_token_id,
  )
  save_hf(folder, config, init_params(config, seed))
  return str(folder)
