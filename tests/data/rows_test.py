import pytest

from hybridrl.data.rows import check_files, gsm8k_answer, read_rows
from tests.data.prompt_set_test import dapo_row, write_jsonl, write_parquet


def test_good_files_pass(tmp_path):
  gsm8k = [{"question": "q", "answer": "#### 1"}]
  check_files(
    [
      write_jsonl(tmp_path / "a.jsonl", [dapo_row("q")]),
      write_parquet(tmp_path / "b.parquet", [dapo_row("q")]),
      write_jsonl(tmp_path / "c.jsonl", gsm8k),
    ]
  )


@pytest.mark.parametrize(
  ("name", "content", "message"),
  [
    ("x.jsonl", None, "no such file"),
    ("x.jsonl", "", "empty"),
    ("x.jsonl", "\n\n", "empty"),
    ("x.jsonl", "{", "line 1: not JSON"),
    ("x.jsonl", "[1]", "line 1: not a JSON object"),
    ("x.jsonl", '{"question": "q"}', "lacks the columns answer; it has quest"),
    (
      "x.jsonl",
      '{"a": 1}',
      "lacks the columns data_source, prompt, reward_mod",
    ),
    ("x.parquet", "no parquet", "not a parquet file"),
  ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
  path = tmp_path / name
  if content is not None:
    path.write_text(content)
  with pytest.raises(ValueError, match=message) as caught:
    check_files([path])
  assert str(path) in str(caught.value)
  assert "\n" not in str(caught.value)


def test_a_parquet_without_the_columns_is_named(tmp_path):
  row = dapo_row("q")
  del row["reward_model"]
  path = write_parquet(tmp_path / "x.parquet", [row])
  with pytest.raises(ValueError, match="lacks the columns reward_model") as e:
    check_files([path])
  assert "data_source, prompt, ability, extra_info" in str(e.value)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"reward_model": {"style": "rule"}}, "lacks 'ground_truth'"),
    ({"reward_model": {"ground_truth": " "}}, "ground_truth is empty"),
    ({"reward_model": {"ground_truth": None}}, "ground_truth is empty"),
    ({"prompt": "text"}, "non-empty list"),
    ({"prompt": []}, "non-empty list"),
    ({"prompt": [{"content": "q"}]}, "lacks 'role'"),
    ({"reward_model": None}, "subscriptable"),
  ],
)
def test_a_bad_row_is_named(tmp_path, change, message):
  rows = [dapo_row("good"), dapo_row("bad") | change]
  path = write_jsonl(tmp_path / "x.jsonl", rows)
  with pytest.raises(ValueError, match=f"row 2: .*{message}"):
    list(read_rows(path))


def test_a_number_as_gold_becomes_text(tmp_path):
  path = write_jsonl(tmp_path / "x", [dapo_row("q", 34)])
  assert next(read_rows(path)).answer == "34"


@pytest.mark.parametrize(
  ("worked", "gold"),
  [
    ("x\n#### 72", "72"),
    ("#### 1,234,567", "1234567"),
    ("#### 3 #### 4", "4"),
    ("####-0.5", "-0.5"),
  ],
)
def test_g18_the_gold_of_gsm8k(worked, gold):
  assert gsm8k_answer(worked) == gold


@pytest.mark.parametrize("worked", ["no mark 5", "####", "#### "])
def test_gsm8k_without_gold_is_refused(worked):
  with pytest.raises(ValueError, match="####"):
    gsm8k_answer(worked)
