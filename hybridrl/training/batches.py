"""From samples to padded micro-batches of token ids, on the host.

What is trained are the ids that were sampled and the log-probs that came with
them; nothing is tokenised here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hybridrl.data.sample import Sample
from hybridrl.training.packing import Array, Slot, empty_rows, place
from hybridrl.training.plan import Plan, Shape, plan_batches


class Trajectory(NamedTuple):
  """One sequence to train on or to score.

  Attributes:
    prompt_ids: [P] int32, P >= 1.
    response_ids: [T] int32.
    old_log_probs: [T] float32.
    loss_mask: [T] bool.
    advantage: of the whole response.
  """

  prompt_ids: np.ndarray
  response_ids: np.ndarray
  old_log_probs: np.ndarray
  loss_mask: np.ndarray
  advantage: float

  @property
  def length(self) -> int:
    return len(self.prompt_ids) + len(self.response_ids)


class MicroBatch(NamedTuple):
  """N = B * T. The tokens that carry loss are listed first, then padding.

  Attributes:
    tokens, positions, segments: [B, T] int32, see packing.PackedRows.
    sources: [N] int32, flat index of the token whose state predicts.
    targets: [N] int32, the token that is predicted.
    mask: [N] bool, False for padding of this list.
    old_log_probs: [N] float32.
    advantages: [N] float32.
  """

  tokens: Array
  positions: Array
  segments: Array
  sources: Array
  targets: Array
  mask: Array
  old_log_probs: Array
  advantages: Array


def trajectories(
  samples: Sequence[Sample], advantages: Sequence[np.ndarray]
) -> list[Trajectory]:
  """All responses of the samples with the advantages of each group."""
  return [
    Trajectory(
      np.asarray(sample.prompt.token_ids, np.int32),
      np.asarray(response.token_ids, np.int32),
      np.asarray(response.log_probs, np.float32),
      np.asarray(response.loss_mask, bool),
      float(advantage),
    )
    for sample, group in zip(samples, advantages, strict=True)
    for response, advantage in zip(sample.responses, group, strict=True)
  ]


def unscored(prompt_ids, response_ids) -> Trajectory:
  """A trajectory of which only log-probs are wanted."""
  length = len(response_ids)
  return Trajectory(
    np.asarray(prompt_ids, np.int32),
    np.asarray(response_ids, np.int32),
    np.zeros(length, np.float32),
    np.ones(length, bool),
    0.0,
  )


def make_batches(
  sequences: Sequence[Trajectory], shapes: Sequence[Shape]
) -> tuple[Plan, list[MicroBatch], list[tuple[int, np.ndarray]]]:
  """Packs trajectories into micro-batches.

  Returns:
    The plan, the micro-batches, and for each trajectory its micro-batch and the
    [M] places of its M masked tokens in that micro-batch's list.

  Raises:
    ValueError: a prompt is empty, or a sequence is longer than the longest row.
  """
  for index, sequence in enumerate(sequences):
    if not len(sequence.prompt_ids):
      raise ValueError(f"sequence {index} has no prompt token")
  plan = plan_batches([s.length for s in sequences], shapes)
  members: list[list[int]] = [[] for _ in plan.shapes]
  for index, spot in enumerate(plan.places):
    members[spot.batch].append(index)
  batches, found = [], [(0, np.zeros(0, np.int64))] * len(sequences)
  for number, shape in enumerate(plan.shapes):
    batch, places = _fill(sequences, plan, members[number], shape)
    batches.append(batch)
    for index, spots in places.items():
      found[index] = (number, spots)
  return plan, batches, found


def _fill(
  sequences: Sequence[Trajectory], plan: Plan, indices: list[int], shape: Shape
) -> tuple[MicroBatch, dict[int, np.ndarray]]:
  """One micro-batch from the sequences with these indices."""
  rows = empty_rows(*shape)
  size = shape.num_rows * shape.row_length
  sources, targets = np.zeros(size, np.int32), np.zeros(size, np.int32)
  old, advantages = np.zeros(size, np.float32), np.zeros(size, np.float32)
  places, filled = {}, 0
  for index in indices:
    sequence, spot = sequences[index], plan.places[index]
    prompt_length = len(sequence.prompt_ids)
    mask = np.concatenate([np.zeros(prompt_length, bool), sequence.loss_mask])
    tokens = np.concatenate([sequence.prompt_ids, sequence.response_ids])
    place(rows, Slot(spot.row, spot.start), spot.segment, tokens, mask)
    chosen = np.flatnonzero(mask)
    span = slice(filled, filled + len(chosen))
    sources[span] = spot.row * shape.row_length + spot.start + chosen - 1
    targets[span] = tokens[chosen]
    old[span] = sequence.old_log_probs[sequence.loss_mask]
    advantages[span] = sequence.advantage
    places[index] = np.arange(span.start, span.stop)
    filled += len(chosen)
  batch = MicroBatch(
    rows.tokens,
    rows.positions,
    rows.segments,
    sources,
    targets,
    np.arange(size) < filled,
    old,
    advantages,
  )
  return batch, places
