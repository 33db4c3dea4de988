import dataclasses

import numpy as np
import pytest

from hybridrl.models.decoder import init_params
from hybridrl.models.hf import load_hf, named_arrays, save_hf
from hybridrl.training.export import read_export, write_export
from tests.training.step_test import MODEL

pytestmark = pytest.mark.usefixtures("cheap_compilation")

TIED = dataclasses.replace(MODEL, tie_embeddings=True)


@pytest.mark.parametrize("config", [MODEL, TIED])
def test_both_forms_hold_the_weights_and_the_tokenizer_goes_along(
  tmp_path, config
):
  source, target = tmp_path / "source", tmp_path / "out" / "export"
  save_hf(source, config, init_params(config, 0))
  (source / "tokenizer.json").write_text("{}")
  for seed in (1, 2):  # the second replaces the first
    params = init_params(config, seed)
    write_export(target, config, params, source)
    found_config, weights = read_export(target)
    assert found_config == config
    expected = named_arrays(params, config)
    assert [n for n, _ in weights] == [n for n, _ in expected]
    for (_, a), (_, b) in zip(weights, expected, strict=True):
      np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(
      load_hf(target / "hf")[1]["embed"], params["embed"]
    )
  assert (target / "hf" / "tokenizer.json").read_text() == "{}"
  assert [p.name for p in target.parent.iterdir()] == ["export"]


def test_reading_where_nothing_is_names_the_path(tmp_path):
  with pytest.raises(ValueError, match="nowhere"):
    read_export(tmp_path / "nowhere")
