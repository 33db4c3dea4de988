import json

import pytest

from hybridrl.models.config import ModelConfig, RopeScaling, read_config

SMALL = dict(
  vocab_size=50,
  hidden_size=64,
  intermediate_size=96,
  num_layers=2,
  num_heads=2,
  num_kv_heads=1,
  head_size=32,
)


@pytest.mark.parametrize(
  "config",
  [
    ModelConfig(**SMALL),
    ModelConfig(**SMALL, model_type="llama", tie_embeddings=True),
    ModelConfig(**SMALL, model_type="qwen2", eos_token_ids=(3,)),
    ModelConfig(
      **SMALL,
      model_type="llama",
      eos_token_ids=(3, 4),
      bos_token_id=1,
      rope_scaling=RopeScaling(
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=512,
      ),
    ),
  ],
)
def test_config_survives_a_round_trip_through_json(config):
  assert ModelConfig.from_hf(json.loads(json.dumps(config.to_hf()))) == config


def test_older_spelling_of_rope_and_missing_head_size_are_read():
  fields = ModelConfig(**SMALL).to_hf()
  del fields["rope_parameters"], fields["head_dim"]
  fields |= {"rope_theta": 5e5, "rope_scaling": None}
  config = ModelConfig.from_hf(fields)
  assert config.rope_theta == 5e5
  assert config.head_size == 32


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"model_type": "mamba"}, "mamba"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"mlp_bias": True}, "mlp_bias"),
    ({"attention_bias": True}, "attention_bias"),
    ({"use_sliding_window": True}, "use_sliding_window"),
    ({"rope_parameters": {"rope_type": "yarn"}}, "yarn"),
    ({"num_key_value_heads": 3}, "num_key_value_heads"),
    ({"head_dim": 16}, "head size 16"),
    ({"head_dim": 512}, "head size 512"),
    ({"vocab_size": 0}, "vocab_size"),
  ],
)
def test_what_the_decoder_cannot_do_is_refused(change, message):
  with pytest.raises(ValueError, match=message):
    ModelConfig.from_hf(ModelConfig(**SMALL).to_hf() | change)


@pytest.mark.parametrize("field", ["vocab_size", "rms_norm_eps"])
def test_a_missing_field_is_named(field):
  fields = ModelConfig(**SMALL).to_hf()
  del fields[field]
  with pytest.raises(ValueError, match=field):
    ModelConfig.from_hf(fields)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"model_type": "gpt2"}'])
def test_read_config_names_the_file(tmp_path, content):
  if content is not None:
    (tmp_path / "config.json").write_text(content)
  with pytest.raises(ValueError, match="config.json"):
    read_config(tmp_path)


def test_number_of_parameters_counts_a_tied_matrix_once():
  untied = ModelConfig(**SMALL).num_parameters
  tied = ModelConfig(**SMALL, tie_embeddings=True).num_parameters
  assert untied - tied == SMALL["vocab_size"] * SMALL["hidden_size"]
