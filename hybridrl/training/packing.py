"""Packing token sequences into rows of a few fixed lengths.

Laws:
  * every sequence lies whole in one row, exactly once;
  * the set of shapes depends on the row lengths and the token budget only,
    never on the data;
  * what is computed for a sequence does not depend on its neighbours.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

# np.ndarray on the host, jax.Array (or a tracer) in a step.
Array = Any


class PackedRows(NamedTuple):
  """Sequences in rows.

  Attributes:
    tokens: [B, T] int32, 0 where nothing lies.
    positions: [B, T] int32, position in the sequence.
    segments: [B, T] int32, 1, 2, ... within a row; 0 is padding.
    loss_mask: [B, T] bool, True where tokens[b, t] is a target, predicted from
      the token before it.
  """

  tokens: Array
  positions: Array
  segments: Array
  loss_mask: Array


class Slot(NamedTuple):
  """Where a sequence lies: first token at rows[row, start]."""

  row: int
  start: int


def empty_rows(num_rows: int, row_length: int) -> PackedRows:
  """Rows of padding."""
  shape = (num_rows, row_length)
  return PackedRows(
    tokens=np.zeros(shape, np.int32),
    positions=np.zeros(shape, np.int32),
    segments=np.zeros(shape, np.int32),
    loss_mask=np.zeros(shape, bool),
  )


def place(
  rows: PackedRows,
  slot: Slot,
  segment: int,
  tokens: np.ndarray,
  loss_mask: np.ndarray,
) -> None:
  """Writes one sequence into its slot.

  Args:
    rows: changed in place.
    slot: where.
    segment: number of the sequence in its row, >= 1.
    tokens: [N] int32.
    loss_mask: [N] bool; the first token of a sequence has no predecessor and
      cannot be a target.
  """
  if len(loss_mask) and loss_mask[0]:
    raise ValueError("the first token of a sequence cannot carry loss")
  span = slice(slot.start, slot.start + len(tokens))
  rows.tokens[slot.row, span] = tokens
  rows.positions[slot.row, span] = np.arange(len(tokens))
  rows.segments[slot.row, span] = segment
  rows.loss_mask[slot.row, span] = loss_mask


def pack_in_order(
  sequences: Sequence[tuple[np.ndarray, np.ndarray]],
  num_rows: int,
  row_length: int,
) -> tuple[PackedRows, int]:
  """Packs (prompt, answer) pairs in order until one fits in no row.

  Args:
    sequences: pairs of [P] and [A] int32; the answers are the targets.
    num_rows: B.
    row_length: T, tokens.

  Returns:
    The rows and how many pairs, counted from the first, they hold.

  Raises:
    ValueError: a pair is longer than a row.
  """
  rows = empty_rows(num_rows, row_length)
  used, segments = [0] * num_rows, [0] * num_rows
  for index, (prompt, answer) in enumerate(sequences):
    length = len(prompt) + len(answer)
    if length > row_length:
      raise ValueError(
        f"sequence {index} has {length} tokens, a row {row_length}"
      )
    # Best fit: the fullest row that still takes it.
    fitting = [r for r in range(num_rows) if used[r] + length <= row_length]
    if not fitting:
      return rows, index
    row = max(fitting, key=lambda r: used[r])
    segments[row] += 1
    place(
      rows,
      Slot(row, used[row]),
      segments[row],
      np.concatenate([prompt, answer]),
      np.arange(length) >= max(len(prompt), 1),
    )
    used[row] += length
  return rows, len(sequences)
