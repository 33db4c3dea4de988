"""Reading prompt files: DAPO-schema parquet or JSONL, and GSM8K JSONL.

Both formats become `Row`s. What is wrong with a file is said in one line with
its name and, where there is one, the row.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DAPO_COLUMNS = ("data_source", "prompt", "reward_model")
GSM8K_COLUMNS = ("question", "answer")
GSM8K_SOURCE = "openai/gsm8k"
# GSM8K's rows are bare questions; graders need to find the answer.
GSM8K_INSTRUCTION = (
  "Think step by step, then end with one line that says"
  ' "Answer: " and the number.'
)
_PARQUET_BATCH_ROWS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
  """One row of a file, before tokenisation.

  Attributes:
    messages: the chat.
    answer: gold answer.
    data_source: name of the set.
    extra: all other columns.
  """

  messages: tuple[Mapping[str, str], ...]
  answer: str
  data_source: str
  extra: Mapping[str, Any]


def check_files(paths: Sequence[str | Path]) -> None:
  """Cheap check before anything starts: existence, format and columns.

  Raises:
    ValueError: names the file and what is wrong with it.
  """
  for path in map(Path, paths):
    if not path.is_file():
      raise ValueError(f"{path}: no such file")
    if path.suffix == ".parquet":
      _check_columns(path, _parquet_file(path).schema_arrow.names)
    else:
      first = next(_json_lines(path), None)
      if first is None:
        raise ValueError(f"{path}: empty")
      _check_columns(path, list(first))


def read_rows(path: str | Path) -> Iterator[Row]:
  """Yields the rows of one file, in order.

  Raises:
    ValueError: names file, row (from 1) and what is wrong.
  """
  path = Path(path)
  check_files([path])
  records = (
    _parquet_records(path) if path.suffix == ".parquet" else _json_lines(path)
  )
  for number, record in enumerate(records, start=1):
    try:
      yield parse_row(record)
    except (KeyError, TypeError, ValueError) as error:
      message = f"lacks {error}" if isinstance(error, KeyError) else str(error)
      raise ValueError(f"{path}, row {number}: {message}") from error


def parse_row(record: Mapping[str, Any]) -> Row:
  """A record of either schema as a Row.

  Raises:
    KeyError, TypeError, ValueError: the record is not of the schema.
  """
  if "prompt" not in record:
    return Row(
      messages=(
        {
          "role": "user",
          "content": f"{record['question']}\n{GSM8K_INSTRUCTION}",
        },
      ),
      answer=gsm8k_answer(record["answer"]),
      data_source=GSM8K_SOURCE,
      extra={k: v for k, v in record.items() if k not in GSM8K_COLUMNS},
    )
  messages = record["prompt"]
  if isinstance(messages, str) or not messages:
    raise TypeError("prompt must be a non-empty list of {role, content}")
  answer = record["reward_model"]["ground_truth"]
  if answer is None or not str(answer).strip():
    raise ValueError("reward_model.ground_truth is empty")
  return Row(
    messages=tuple(
      {"role": str(m["role"]), "content": str(m["content"])} for m in messages
    ),
    answer=str(answer),
    data_source=str(record["data_source"]),
    extra={k: v for k, v in record.items() if k not in DAPO_COLUMNS},
  )


def gsm8k_answer(worked: str) -> str:
  """The number after the last '####', thousands separators removed (G18)."""
  _, mark, gold = worked.rpartition("####")
  gold = re.sub(r"(?<=\d),(?=\d)", "", gold).strip()
  if not mark or not gold:
    raise ValueError("answer has no number after '####'")
  return gold


def _check_columns(path: Path, columns: Sequence[str]) -> None:
  gsm8k = "question" in columns and "prompt" not in columns
  needed = GSM8K_COLUMNS if gsm8k else DAPO_COLUMNS
  missing = [c for c in needed if c not in columns]
  if missing:
    raise ValueError(
      f"{path}: lacks the columns {', '.join(missing)}; it has"
      f" {', '.join(columns) or 'none'}. Needed are {', '.join(DAPO_COLUMNS)}"
      f" (DAPO) or {', '.join(GSM8K_COLUMNS)} (GSM8K)"
    )


def _parquet_file(path: Path) -> pq.ParquetFile:
  try:
    return pq.ParquetFile(path)
  except pa.ArrowInvalid as error:
    raise ValueError(f"{path}: not a parquet file ({error})") from error


def _parquet_records(path: Path) -> Iterator[dict[str, Any]]:
  with _parquet_file(path) as file:
    for batch in file.iter_batches(batch_size=_PARQUET_BATCH_ROWS):
      yield from batch.to_pylist()


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
  with path.open(encoding="utf-8") as lines:
    for number, line in enumerate(lines, start=1):
      if not line.strip():
        continue
      try:
        record = json.loads(line)
      except json.JSONDecodeError as error:
        raise ValueError(
          f"{path}, line {number}: not JSON ({error}); files are .parquet or"
          " JSON lines"
        ) from error
      if not isinstance(record, dict):
        raise ValueError(f"{path}, line {number}: not a JSON object")
      yield record
