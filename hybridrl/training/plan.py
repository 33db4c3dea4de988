"""Which sequence goes into which row of which micro-batch.

Laws:
  * every sequence lies whole in one row, exactly once;
  * shapes come from a set that is fixed before any data is seen;
  * the plan is a function of the lengths, and of nothing else.
"""

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from hybridrl.models.config import ModelConfig

# Several sequences share a row, so short rows are not needed: on log-normal
# lengths of mean 80 to 140, rows of 256 and one longer kind are filled to 95
# percent, and cost 4 percent more than 14 kinds of rows would, for 2
# compilations instead of 14.
_SHORTEST_ROW = 256

# glibc serves larger blocks by fresh pages at every call; measured, their first
# touch costs a CPU step 30 to 40 percent. XLA takes one block for all
# temporaries, so on CPU a micro-batch should stay below it.
_CPU_TEMPORARY_BYTES = 28 * 2**20

# Fewer tokens than this a micro-batch leave matrix products inefficient.
_FEWEST_TOKENS = 128

# Where the CPU bound above cannot be met, more tokens gain nothing more.
_CPU_MAX_TOKENS = 1024


class Shape(NamedTuple):
  """Shape of a micro-batch: rows, and tokens a row."""

  num_rows: int
  row_length: int


class Place(NamedTuple):
  """Where one sequence lies."""

  batch: int  # micro-batch
  row: int
  start: int  # first token in the row
  segment: int  # 1, 2, ... within the row


class Plan(NamedTuple):
  """Shapes of the micro-batches, and the place of each sequence."""

  shapes: tuple[Shape, ...]
  places: tuple[Place, ...]

  @property
  def padded_tokens(self) -> int:
    """Tokens that the device computes, padding included."""
    return sum(s.num_rows * s.row_length for s in self.shapes)


def row_lengths(max_length: int) -> tuple[int, ...]:
  """Row lengths: 256, 512, 1024, ..., the last just long enough.

  Args:
    max_length: longest sequence, tokens; rounded up to a multiple of 32.
  """
  if max_length < 1:
    raise ValueError(f"max_length is {max_length}; it must be >= 1")
  lengths, length = [], _SHORTEST_ROW
  while length < max_length:
    lengths.append(length)
    length *= 2
  return (*lengths, min(length, -(-max_length // 32) * 32))


def activation_bytes_per_token(config: ModelConfig, row_length: int) -> int:
  """Temporaries of a step without remat; agrees with XLA's within a fifth."""
  floats = (
    14 * config.hidden_size
    + 4 * config.intermediate_size
    + 3 * config.num_heads * row_length
  )
  return 4 * floats * config.num_layers


def batch_shapes(
  config: ModelConfig, max_length: int, max_tokens: int, platform: str
) -> tuple[Shape, ...]:
  """The fixed set of micro-batch shapes, by rising row length.

  Args:
    config: shape of the model.
    max_length: longest sequence, prompt and response, in tokens.
    max_tokens: most tokens of a micro-batch; a row of max_length may exceed it.
    platform: 'cpu', 'gpu' or 'tpu'; a CPU gets micro-batches whose temporaries
      stay in memory that is touched already.
  """
  shapes = []
  for length in row_lengths(max_length):
    tokens = max_tokens
    if platform == "cpu":
      fitting = _CPU_TEMPORARY_BYTES // activation_bytes_per_token(
        config, length
      )
      limit = fitting if fitting >= _FEWEST_TOKENS else _CPU_MAX_TOKENS
      tokens = min(tokens, limit)
    shapes.append(Shape(max(1, tokens // length), length))
  return tuple(shapes)


class _Row:
  """A row being filled; `serial` breaks ties, so that plans are repeatable."""

  def __init__(self, length: int, serial: int):
    self.free = length
    self.serial = serial
    self.sequences: list[int] = []

  def add(self, index: int, length: int) -> None:
    self.free -= length
    self.sequences.append(index)


def plan_batches(lengths: Sequence[int], shapes: Sequence[Shape]) -> Plan:
  """Packs sequences, longest first, each into the fullest row that takes it.

  Rows that do not fill a micro-batch are emptied into the next longer kind of
  row, so that at most one micro-batch holds empty rows where that is possible.

  Args:
    lengths: tokens of each sequence, >= 1.
    shapes: by rising row length, from batch_shapes.

  Raises:
    ValueError: a sequence is empty or longer than the longest row.
  """
  shapes = tuple(shapes)
  limits = [s.row_length for s in shapes]
  for index, length in enumerate(lengths):
    if not 1 <= length <= limits[-1]:
      raise ValueError(
        f"sequence {index} has {length} tokens; 1 to {limits[-1]} are possible"
      )
  rows: list[list[_Row]] = [[] for _ in shapes]
  order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
  serials = itertools.count()
  _fill(rows, order, lengths, limits, serials)
  used = [k for k, kind in enumerate(rows) if kind]
  for kind, longer in zip(used, used[1:], strict=False):
    left_over = len(rows[kind]) % shapes[kind].num_rows
    if left_over == 0:
      continue
    rows[kind].sort(key=lambda r: r.free)
    moved = [i for r in rows[kind][-left_over:] for i in r.sequences]
    del rows[kind][-left_over:]
    moved.sort(key=lambda i: (-lengths[i], i))
    _fill(rows, moved, lengths, limits, serials, only=longer)
  return _number(rows, shapes, lengths)


def _fill(
  rows, order, lengths, limits, serials, only: int | None = None
) -> None:
  """Best fit over the open rows; opens the shortest row that takes it."""
  # Open rows by free tokens, so that the best fit is one bisection away.
  kinds = range(len(rows)) if only is None else (only,)
  opened = sorted(
    ((row.free, row.serial, row) for k in kinds for row in rows[k]),
    key=lambda entry: entry[:2],
  )
  for index in order:
    length = lengths[index]
    at = bisect.bisect_left(opened, length, key=lambda entry: entry[0])
    if at < len(opened):
      _, _, row = opened.pop(at)
    else:
      kind = bisect.bisect_left(limits, length) if only is None else only
      row = _Row(limits[kind], next(serials))
      rows[kind].append(row)
    row.add(index, length)
    bisect.insort(opened, (row.free, row.serial, row), key=lambda e: e[0])


def _number(rows, shapes, lengths) -> Plan:
  """Cuts the rows of each kind into micro-batches."""
  out_shapes: list[Shape] = []
  places: list[Place | None] = [None] * len(lengths)
  for kind, shape in zip(rows, shapes, strict=True):
    for first in range(0, len(kind), shape.num_rows):
      for number, row in enumerate(kind[first : first + shape.num_rows]):
        start = 0
        for segment, index in enumerate(row.sequences, 1):
          places[index] = Place(len(out_shapes), number, start, segment)
          start += lengths[index]
      out_shapes.append(shape)
  return Plan(tuple(out_shapes), tuple(p for p in places if p is not None))
