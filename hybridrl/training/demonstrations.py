"""Worked answers of the embedded task as packed rows, to learn from.

Symbols: P prompt tokens, A answer tokens.
"""

from collections.abc import Iterator

import numpy as np

from hybridrl.data import embedded
from hybridrl.data.tokenizer import ChatTokenizer
from hybridrl.training.packing import (
  PackedRows,
  Slot,
  empty_rows,
  pack_in_order,
  place,
)

Sequence = tuple[np.ndarray, np.ndarray]  # [P] prompt and [A] answer, int32

_POOL = 48  # Sequences to choose from when a row is filled.


def fact_rows(
  tokenizer: ChatTokenizer,
  rng: np.random.Generator,
  num_rows: int,
  row_length: int,
) -> PackedRows:
  """Rows full of unrelated sums; only the digits of results carry loss.

  Many sums in one sequence, so that a result is learnt from the operands right
  before it among others, as it stands in a worked answer.
  """
  separators = [tokenizer.encode("\n"), tokenizer.encode(", 1")[:-1]]
  rows = empty_rows(num_rows, row_length)
  for row in range(num_rows):
    tokens, mask = [], []
    while len(tokens) < row_length:
      question, result = map(tokenizer.encode, embedded.number_fact(rng))
      separator = separators[rng.integers(2)]
      tokens += [*question, *result, *separator]
      mask += [False] * len(question) + [True] * len(result)
      mask += [False] * len(separator)
    place(
      rows,
      Slot(row, 0),
      1,
      np.array(tokens[:row_length], np.int32),
      np.array(mask[:row_length]),
    )
  return rows


def fill_rows(
  pool: list[Sequence], num_rows: int, row_length: int
) -> PackedRows:
  """Packs sequences into rows and takes them out of the pool.

  A row starts with the oldest sequence and goes on with the longest that fit,
  so every sequence has its turn and little of a row stays empty.
  """
  chosen = []
  for _ in range(num_rows):
    room = row_length
    while pool:
      if room == row_length:
        index = 0
      else:
        fitting = [i for i, s in enumerate(pool) if _length(s) <= room]
        if not fitting:
          break
        index = max(fitting, key=lambda i: _length(pool[i]))
      room -= _length(pool[index])
      chosen.append(pool.pop(index))
  rows, packed = pack_in_order(chosen, num_rows, row_length)
  pool[:0] = chosen[packed:]
  return rows


def _length(sequence: Sequence) -> int:
  return len(sequence[0]) + len(sequence[1])


def problem_rows(
  tokenizer: ChatTokenizer,
  rng: np.random.Generator,
  num_rows: int,
  row_length: int,
  slip_rate: float = 0.0,
) -> Iterator[PackedRows]:
  """Rows of train problems that fit into a row, endlessly.

  Args:
    tokenizer: the embedded one.
    rng: source of problems and slips.
    num_rows: rows of a batch.
    row_length: in tokens.
    slip_rate: see embedded.worked_answer.
  """
  pool: list[Sequence] = []
  while True:
    while len(pool) < _POOL:
      sequence = _demonstration(tokenizer, rng, slip_rate)
      if _length(sequence) <= row_length:
        pool.append(sequence)
    yield fill_rows(pool, num_rows, row_length)


def _demonstration(
  tokenizer: ChatTokenizer, rng: np.random.Generator, slip_rate: float
) -> Sequence:
  problem = embedded.sample_problem(rng, "train")
  wording = embedded.sample_wording(rng, problem)
  chat = [{"role": "user", "content": embedded.question(problem, wording)}]
  answer = tokenizer.encode(embedded.worked_answer(problem, rng, slip_rate))
  end = np.int32(tokenizer.stop_token_ids[0])
  return tokenizer.encode_chat(chat), np.append(answer, end)
