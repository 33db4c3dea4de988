"""Prompt sets: every distinct prompt of some files once, tokenised.

Published sets repeat prompts (DAPO-Math-17k holds each about a hundred times),
so rows with the same text, white space aside, are merged; the first row wins.
"""

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from hybridrl.data import embedded, rows
from hybridrl.data.rows import Row
from hybridrl.data.sample import Prompt
from hybridrl.data.tokenizer import ChatTokenizer


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadReport:
  """What became of the rows: read = merged + over_long + kept.

  Attributes:
    rows_read: rows of all files.
    rows_merged: rows whose text had been seen before.
    answers_in_conflict: merged rows whose answer differed from the kept one's.
    prompts_over_long: distinct prompts of more than max_prompt_length tokens.
    prompts_kept: prompts of the set.
  """

  rows_read: int
  rows_merged: int
  answers_in_conflict: int
  prompts_over_long: int
  prompts_kept: int

  def __str__(self) -> str:
    return (
      f"{self.rows_read} rows: {self.rows_merged} merged"
      f" ({self.answers_in_conflict} with another answer),"
      f" {self.prompts_over_long} over-long prompts left out,"
      f" {self.prompts_kept} prompts kept"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSet:
  """Distinct prompts in the files' order; prompt_id is the index."""

  prompts: tuple[Prompt, ...]
  report: LoadReport

  def __len__(self) -> int:
    return len(self.prompts)

  def __getitem__(self, index: int) -> Prompt:
    return self.prompts[index]

  def fingerprint(self) -> int:
    """crc32 over texts, ids and answers: tells one set from another."""
    crc = 0
    for prompt in self.prompts:
      crc = zlib.crc32(prompt.text.encode(), crc)
      crc = zlib.crc32(prompt.token_ids.tobytes(), crc)
      crc = zlib.crc32(prompt.answer.encode(), crc)
    return crc


def load_prompts(
  files: Sequence[str | Path],
  tokenizer: ChatTokenizer,
  max_prompt_length: int,
) -> PromptSet:
  """Reads, merges and tokenises files.

  Args:
    files: DAPO-schema parquet or JSONL, or GSM8K JSONL, in any mix.
    tokenizer: of the model that will read the prompts.
    max_prompt_length: prompts of more tokens are left out and counted.

  Raises:
    ValueError: a file is missing or malformed, or nothing is left.
  """
  rows.check_files(files)
  every_row = (row for file in files for row in rows.read_rows(file))
  return _build(
    every_row, tokenizer, max_prompt_length, ", ".join(map(str, files))
  )


def embedded_prompts(
  split: embedded.Split,
  count: int,
  seed: int,
  tokenizer: ChatTokenizer,
  max_prompt_length: int = 64,
) -> PromptSet:
  """Prompts of the embedded task; see `embedded.make_rows`."""
  records = embedded.make_rows(split, count, seed)
  every_row = (rows.parse_row(record) for record in records)
  return _build(every_row, tokenizer, max_prompt_length, "the embedded task")


def _build(
  every_row: Iterable[Row],
  tokenizer: ChatTokenizer,
  max_prompt_length: int,
  origin: str,
) -> PromptSet:
  answers: dict[str, str] = {}
  prompts: list[Prompt] = []
  rows_read = merged = conflicts = over_long = 0
  for row in every_row:
    rows_read += 1
    key = _key(row)
    if key in answers:
      merged += 1
      conflicts += answers[key] != row.answer
      continue
    answers[key] = row.answer
    token_ids = tokenizer.encode_chat(row.messages)
    if len(token_ids) > max_prompt_length:
      over_long += 1
      continue
    prompts.append(
      Prompt(
        prompt_id=len(prompts),
        text=_last_user_message(row),
        token_ids=token_ids,
        answer=row.answer,
        data_source=row.data_source,
        extra=row.extra,
      )
    )
  report = LoadReport(
    rows_read=rows_read,
    rows_merged=merged,
    answers_in_conflict=conflicts,
    prompts_over_long=over_long,
    prompts_kept=len(prompts),
  )
  if not prompts:
    raise ValueError(
      f"no prompt of at most max_prompt_length={max_prompt_length} tokens in"
      f" {origin} ({report})"
    )
  return PromptSet(prompts=tuple(prompts), report=report)


def _key(row: Row) -> str:
  """The chat with all white space runs made single spaces."""
  return "\n".join(
    f"{m['role']}: {' '.join(m['content'].split())}" for m in row.messages
  )


def _last_user_message(row: Row) -> str:
  user = [m["content"] for m in row.messages if m["role"] == "user"]
  return user[-1] if user else row.messages[-1]["content"]
