"""Tiny random models with transformers as the oracle, for tests on vLLM."""

import dataclasses
import pathlib

import numpy as np
import torch
import transformers

from hybridrl.models import bundle

VOCAB_SIZE = 128


def make_model(
  architecture: str, *, tied: bool, seed: int
) -> transformers.PreTrainedModel:
  """A random 4-layer decoder, hidden 128, head size 32, float32."""
  torch.manual_seed(seed)
  shape = dict(
    vocab_size=VOCAB_SIZE,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    max_position_embeddings=2048,
    tie_word_embeddings=tied,
    # Large enough that greedy continuations and temperatures differ clearly.
    initializer_range=0.1,
    bos_token_id=1,
    eos_token_id=2,
  )
  kinds = {
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
  }
  config_cls, model_cls = kinds[architecture]
  return model_cls(config_cls(**shape)).to(torch.float32).eval()


def save_config(model: transformers.PreTrainedModel, folder: pathlib.Path):
  """Writes a model folder without weights: a replica must not need them."""
  model.config.architectures = [type(model).__name__]
  model.config.dtype = torch.float32
  model.config.save_pretrained(folder)
  return str(folder)


def named_arrays(model) -> list[tuple[str, np.ndarray]]:
  """Tensors under Hugging Face's names, a tied one once."""
  return [(name, p.detach().numpy()) for name, p in model.named_parameters()]


def make_bundle(model, version: int, *, canary: bool = True):
  tokens = np.random.default_rng(7).integers(3, VOCAB_SIZE, 24).astype(np.int32)
  probe = bundle.Canary(token_ids=tokens, log_probs=log_probs(model, tokens))
  return bundle.pack(
    named_arrays(model), version, canary=probe if canary else None
  )


def log_probs(model, token_ids, temperature: float = 1.0) -> np.ndarray:
  """[P - 1] float32 log p(token[i+1] | token[:i+1])."""
  ids = torch.as_tensor(np.asarray(token_ids), dtype=torch.long)
  with torch.no_grad():
    logits = model(ids[None]).logits[0, :-1] / temperature
  chosen = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
  return chosen.numpy().astype(np.float32)


def assert_greedy(model, prompt, token_ids, tie: float = 1e-3) -> None:
  """Each token is the most likely one after all before it.

  By induction that is equality with the model's own greedy continuation, in
  one forward pass. Tokens whose logits differ by less than `tie` count as
  equal: the two implementations round differently.
  """
  whole = np.concatenate([prompt, token_ids])
  ids = torch.as_tensor(whole, dtype=torch.long)
  with torch.no_grad():
    logits = model(ids[None]).logits[0, len(prompt) - 1 : -1]
  chosen = logits.gather(1, ids[len(prompt) :, None])[:, 0]
  gap = (logits.max(-1).values - chosen).numpy()
  assert np.all(gap < tie), (np.flatnonzero(gap >= tie), gap.max())


def pack_like(arrays, version: int, canary):
  return bundle.pack(list(arrays.items()), version, canary=canary)


def with_canary(weights, canary):
  return dataclasses.replace(weights, canary=canary)
