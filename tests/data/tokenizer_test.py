import json

import jinja2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.data import embedded
from hybridrl.data.tokenizer import load_tokenizer, save_embedded_tokenizer

_CHAT = [{"role": "user", "content": "Mia has 12 coins. Each day?"}]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
  path = tmp_path_factory.mktemp("tokenizer")
  save_embedded_tokenizer(path, embedded.words())
  return path


@pytest.fixture(scope="module")
def tokenizer(model_dir):
  return load_tokenizer(model_dir)


def _edit(model_dir, tmp_path, **changes):
  """A copy of the folder whose tokenizer_config.json is changed."""
  for path in model_dir.iterdir():
    (tmp_path / path.name).write_bytes(path.read_bytes())
  path = tmp_path / "tokenizer_config.json"
  config = json.loads(path.read_text()) | changes
  path.write_text(
    json.dumps({k: v for k, v in config.items() if v is not None})
  )
  return tmp_path


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_survives(tokenizer, text):
  ids = tokenizer.encode(text)
  assert ids.dtype == np.int32
  specials = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>")
  if not any(s in text for s in specials):
    assert tokenizer.decode(ids) == text


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["train", "test"]))
def test_the_tasks_own_words_are_whole_tokens(tokenizer, seed, split):
  row = embedded.make_rows(split, 1, seed)[0]
  text, solution = row["prompt"][0]["content"], row["extra_info"]["solution"]
  for part in (text, solution):
    ids = tokenizer.encode(part)
    assert tokenizer.decode(ids) == part
    for token in ids:
      piece = tokenizer.decode([token])
      assert len(piece.strip()) <= 1 or piece.strip(" :,.").isalpha()
      assert not any(c.isdigit() for c in piece) or len(piece) == 1
  # Prompts stay short beside answers of up to 240 tokens.
  assert len(tokenizer.encode_chat(row["prompt"])) <= 32
  assert len(tokenizer.encode(solution)) < 240


def test_a_digit_is_one_token_wherever_it_stands(tokenizer):
  seven = tokenizer.encode("7")
  assert len(seven) == 1
  for text in ("has 7", "x7", ": 7", "17", "=7\n"):
    assert seven[0] in tokenizer.encode(text)


def test_the_chat_template(tokenizer):
  ids = tokenizer.encode_chat(_CHAT)
  user, assistant = (
    tokenizer.encode(t)[0] for t in ("<|user|>", "<|assistant|>")
  )
  assert ids[0] == user
  assert ids[-1] == assistant
  assert tokenizer.decode(ids) == _CHAT[0]["content"]
  turns = [*_CHAT, {"role": "assistant", "content": "12"}, *_CHAT]
  (end,) = tokenizer.stop_token_ids
  assert list(tokenizer.encode_chat(turns)) == [
    *ids,
    *tokenizer.encode("12"),
    end,
    *ids,
  ]


def test_transformers_reads_the_folder_alike(model_dir, tokenizer):
  transformers = pytest.importorskip("transformers")
  oracle = transformers.AutoTokenizer.from_pretrained(str(model_dir))
  assert len(oracle) == tokenizer.vocab_size
  assert oracle.eos_token_id in tokenizer.stop_token_ids
  assert oracle.pad_token_id == tokenizer.pad_token_id
  for row in embedded.make_rows("test", 20, 0):
    ids = tokenizer.encode_chat(row["prompt"])
    assert list(ids) == oracle.apply_chat_template(
      row["prompt"],
      tokenize=True,
      add_generation_prompt=True,
      return_dict=False,
    )
    solution = row["extra_info"]["solution"]
    assert list(tokenizer.encode(solution)) == oracle.encode(
      solution, add_special_tokens=False
    )
    assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


def test_all_declared_ends_are_stop_tokens(model_dir, tmp_path):
  folder = _edit(model_dir, tmp_path)
  (folder / "generation_config.json").write_text('{"eos_token_id": [9, 5]}')
  (folder / "config.json").write_text('{"eos_token_id": 7}')
  assert load_tokenizer(folder).stop_token_ids == (3, 5, 7, 9)


def test_without_a_template_contents_are_joined(model_dir, tmp_path):
  tokenizer = load_tokenizer(_edit(model_dir, tmp_path, chat_template=None))
  ids = tokenizer.encode_chat([*_CHAT, *_CHAT])
  text = _CHAT[0]["content"]
  assert tokenizer.decode(ids) == f"{text}\n\n{text}\n"


def test_a_template_may_refuse_a_chat(model_dir, tmp_path):
  template = "{{ raise_exception('roles must alternate') }}"
  tokenizer = load_tokenizer(_edit(model_dir, tmp_path, chat_template=template))
  with pytest.raises(jinja2.TemplateError, match="alternate"):
    tokenizer.encode_chat(_CHAT)


def test_token_entries_may_be_objects(model_dir, tmp_path):
  eos = {"content": "<|end|>", "special": True}
  tokenizer = load_tokenizer(_edit(model_dir, tmp_path, eos_token=eos))
  assert tokenizer.stop_token_ids == (3,)


@pytest.mark.parametrize(
  ("changes", "files", "message"),
  [
    ({"eos_token": None}, {}, "end-of-sequence"),
    ({}, {"tokenizer.json": "{}"}, "tokenizer.json: not a tokenizer"),
    ({}, {"tokenizer_config.json": "{"}, "tokenizer_config.json: not JSON"),
    ({"chat_template": "{% if %}"}, {}, "Expected an expression"),
  ],
)
def test_broken_folders_are_named(model_dir, tmp_path, changes, files, message):
  folder = _edit(model_dir, tmp_path, **changes)
  for name, content in files.items():
    (folder / name).write_text(content)
  with pytest.raises(ValueError, match=message):
    load_tokenizer(folder)


def test_a_folder_without_tokenizer_is_named(tmp_path):
  with pytest.raises(ValueError, match=r"tokenizer\.json: no such file"):
    load_tokenizer(tmp_path)
