import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hybridrl.data import embedded
from hybridrl.data.prompt_set import embedded_prompts, load_prompts
from hybridrl.data.tokenizer import load_tokenizer, save_embedded_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
  path = tmp_path_factory.mktemp("tokenizer")
  save_embedded_tokenizer(path, embedded.words())
  return load_tokenizer(path)


def dapo_row(text, answer="1", **extra):
  return {
    "data_source": "math_dapo",
    "prompt": [{"role": "user", "content": text}],
    "ability": "MATH",
    "reward_model": {"ground_truth": answer, "style": "rule"},
    "extra_info": {"index": 0},
    **extra,
  }


def write_jsonl(path: pathlib.Path, rows) -> pathlib.Path:
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def write_parquet(path: pathlib.Path, rows) -> pathlib.Path:
  pq.write_table(pa.Table.from_pylist(rows), path)
  return path


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_x13_each_prompt_once_however_often_it_stands_there(
  tokenizer, tmp_path, kind
):
  rows = [dapo_row(f"q {i % 7}", str(i % 7)) for i in range(700)]
  rows += [dapo_row("  q \n 3", "3"), dapo_row("q 4", "five")]
  write = write_jsonl if kind == "jsonl" else write_parquet
  path = write(tmp_path / f"x.{kind}", rows)
  prompts = load_prompts([path, path], tokenizer, 64)
  assert [p.text for p in prompts] == [f"q {i}" for i in range(7)]
  assert [p.prompt_id for p in prompts] == list(range(7))
  report = prompts.report
  assert report.rows_read == 2 * 702
  assert report.rows_merged == 2 * 702 - 7
  assert report.answers_in_conflict == 2
  assert report.prompts_kept == 7
  assert "1397 merged" in str(report)


def test_the_columns_of_a_dapo_row(tokenizer, tmp_path):
  path = write_parquet(
    tmp_path / "x.parquet", [dapo_row("2+2?", "4", note="n")]
  )
  (prompt,) = load_prompts([path], tokenizer, 64)
  assert prompt.answer == "4"
  assert prompt.data_source == "math_dapo"
  assert prompt.extra["extra_info"] == {"index": 0}
  assert prompt.extra["note"] == "n"
  chat = [{"role": "user", "content": "2+2?"}]
  assert list(prompt.token_ids) == list(tokenizer.encode_chat(chat))


def test_the_text_is_the_last_user_message(tokenizer, tmp_path):
  row = dapo_row("hard question")
  row["prompt"].insert(0, {"role": "system", "content": "be brief"})
  (prompt,) = load_prompts([write_jsonl(tmp_path / "x", [row])], tokenizer, 99)
  assert prompt.text == "hard question"
  assert len(prompt.token_ids) > len(tokenizer.encode("hard question")) + 2


def test_g18_gsm8k_gold_answers(tokenizer, tmp_path):
  rows = [
    {"question": "How many?", "answer": "1,000+234=<<1>>1234\n#### 1,234"},
    {"question": "How cold?", "answer": "#### -5 "},
  ]
  prompts = load_prompts([write_jsonl(tmp_path / "x", rows)], tokenizer, 300)
  assert [p.answer for p in prompts] == ["1234", "-5"]
  assert prompts[0].text.startswith("How many?\n")
  assert "Answer:" in prompts[0].text
  assert prompts[0].data_source == "openai/gsm8k"


def test_over_long_prompts_are_counted_and_left_out(tokenizer, tmp_path):
  rows = [dapo_row("5" * n) for n in (3, 50, 4)]
  prompts = load_prompts([write_jsonl(tmp_path / "x", rows)], tokenizer, 10)
  assert [p.text for p in prompts] == ["555", "5555"]
  assert prompts.report.prompts_over_long == 1
  with pytest.raises(ValueError, match="max_prompt_length=4"):
    load_prompts([tmp_path / "x"], tokenizer, 4)


@pytest.mark.parametrize("count", [1, 40])
def test_embedded_prompts(tokenizer, count):
  prompts = embedded_prompts("test", count, 0, tokenizer)
  assert len(prompts) == count
  assert prompts[0].data_source == embedded.DATA_SOURCE
  assert prompts[0].extra["extra_info"]["solution"].endswith(prompts[0].answer)


def test_fingerprints_tell_sets_apart(tokenizer):
  first, same, other = (
    embedded_prompts("test", 20, seed, tokenizer) for seed in (0, 0, 1)
  )
  assert first.fingerprint() == same.fingerprint() != other.fingerprint()
