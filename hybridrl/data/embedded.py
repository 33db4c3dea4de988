"""The embedded task: arithmetic word problems with worked answers.

Rows follow the DAPO schema. A problem tells of a quantity that changes by one
or two amounts every day (or week, or trip, ...) and asks for it after n of
them; the worked answer writes one line per day. So the prompt is short
whatever the answer's length, and the number of lines, hence the length of the
answer, is log-normal: a heavy tail, as in real reasoning traces.

Laws (tests/data/embedded_test.py asserts them):
  * the worked answer, evaluated line by line, is correct and ends in the gold
    answer;
  * every number is in 0..MAX_VALUE;
  * rows depend on (split, seed, index) alone: more rows keep the first ones;
  * train and test share no quantities: a problem's numbers decide its split.
"""

import dataclasses
import zlib
from typing import Any, Literal

import numpy as np

Split = Literal["train", "test"]

DATA_SOURCE = "embedded/word_problems"
# Two digits keep the sums learnable by a model of under a million parameters.
MAX_VALUE = 99
# Amounts that are learnt in half the time of 2..9: fewer digit sums to know.
MIN_CHANGE, MAX_CHANGE = 2, 4
# Number of lines: log-normal, rounded, clipped. The clip keeps the longest
# answer (two operations a line) within 256 tokens of the embedded tokenizer.
MEDIAN_STEPS = 3.8
SIGMA_STEPS = 0.6
MAX_STEPS = 12
# One problem in this many, by the hash of its numbers, is held out.
_TEST_SHARE = 8

_NAMES = (
  "Mia",
  "Sam",
  "Ava",
  "Leo",
  "Zoe",
  "Max",
  "Ida",
  "Tom",
  "Eva",
  "Ben",
)
_UNITS = (
  ("day", "days"),
  ("week", "weeks"),
  ("hour", "hours"),
  ("month", "months"),
)
_THINGS = (
  "coins",
  "apples",
  "books",
  "cards",
  "shells",
  "stamps",
  "eggs",
  "pens",
)
_GAINS = ("buys", "finds", "earns", "makes", "gets")
_LOSSES = ("sells", "loses", "gives away", "uses", "breaks")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """A word problem in numbers.

  Attributes:
    start: quantity before the first step.
    changes: one or two signed amounts, applied in this order in every step.
    steps: how often they are applied.
  """

  start: int
  changes: tuple[int, ...]
  steps: int

  def totals(self) -> list[int]:
    """The quantity after each single operation, in order."""
    totals, total = [], self.start
    for _ in range(self.steps):
      for change in self.changes:
        total += change
        totals.append(total)
    return totals

  @property
  def answer(self) -> int:
    return self.start + self.steps * sum(self.changes)

  @property
  def split(self) -> Split:
    numbers = f"{self.start}|{self.changes}|{self.steps}"
    held_out = zlib.crc32(numbers.encode()) % _TEST_SHARE == 0
    return "test" if held_out else "train"


def sample_problem(rng: np.random.Generator, split: Split) -> Problem:
  """Draws the number of steps first, then amounts that fit it."""
  drawn = rng.lognormal(np.log(MEDIAN_STEPS), SIGMA_STEPS)
  steps = int(np.clip(np.rint(drawn), 1, MAX_STEPS))
  num_changes = int(rng.integers(1, 3))
  # The number of steps stays fixed under rejection, so the tail stays heavy.
  while True:
    signs = rng.choice((-1, 1), num_changes)
    amounts = rng.integers(MIN_CHANGE, MAX_CHANGE + 1, num_changes)
    problem = Problem(
      start=int(rng.integers(2, MAX_VALUE)),
      changes=tuple(int(c) for c in signs * amounts),
      steps=steps,
    )
    in_range = all(0 <= t <= MAX_VALUE for t in problem.totals())
    # Two changes that cancel would make the answer equal to the start.
    if in_range and sum(problem.changes) and problem.split == split:
      return problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wording:
  """The words around a problem's numbers."""

  name: str
  thing: str
  unit: tuple[str, str]
  verbs: tuple[str, ...]


def sample_wording(rng: np.random.Generator, problem: Problem) -> Wording:
  """Draws words; two changes never share a verb."""
  verbs = []
  for change in problem.changes:
    choices = [v for v in (_GAINS if change > 0 else _LOSSES) if v not in verbs]
    verbs.append(choices[rng.integers(len(choices))])
  return Wording(
    name=_NAMES[rng.integers(len(_NAMES))],
    thing=_THINGS[rng.integers(len(_THINGS))],
    unit=_UNITS[rng.integers(len(_UNITS))],
    verbs=tuple(verbs),
  )


def question(problem: Problem, wording: Wording) -> str:
  """The problem as a person reads it."""
  deeds = " and ".join(
    f"{verb} {abs(change)}"
    for verb, change in zip(wording.verbs, problem.changes, strict=True)
  )
  unit = wording.unit[0 if problem.steps == 1 else 1]
  return (
    f"{wording.name} has {problem.start} {wording.thing}. Each"
    f" {wording.unit[0]} {wording.name} {deeds}. How many {wording.thing}"
    f" after {problem.steps} {unit}?"
  )


def worked_answer(
  problem: Problem,
  rng: np.random.Generator | None = None,
  slip_rate: float = 0.0,
) -> str:
  """One line per step, counting down, then the answer.

  The count tells when to stop from the line alone, which a small model learns
  far sooner than to compare a count with the question.

  Args:
    problem: the numbers.
    rng: source of slips; needed if slip_rate > 0.
    slip_rate: chance per operation of a wrong result (see `_slip`); what
      follows goes on from it, as it does when a person slips.
  """
  totals, lines, offset = problem.totals(), [], 0
  previous = problem.start
  for step in range(problem.steps):
    equations = []
    for i, change in enumerate(problem.changes):
      rest = totals[step * len(problem.changes) + i :]
      if rng is not None and rng.random() < slip_rate:
        offset += _slip(rng, min(rest) + offset, max(rest) + offset)
      result = rest[0] + offset
      sign = "+" if change > 0 else "-"
      equations.append(f"{previous}{sign}{abs(change)}={result}")
      previous = result
    lines.append(f"{problem.steps - step} left: {', '.join(equations)}")
  return "\n".join([*lines, f"Answer: {previous}"])


def _slip(rng: np.random.Generator, lowest: int, highest: int) -> int:
  """An error such as people make: off by one or two, or by a ten.

  Args:
    rng: source of the draw.
    lowest: smallest total from here on without this slip.
    highest: largest total from here on without this slip.

  Returns:
    A difference that keeps all further totals in 0..MAX_VALUE; 0 if none does.
  """
  fitting = [
    d
    for d in (-10, -2, -1, 1, 2, 10)
    if lowest + d >= 0 and highest + d <= MAX_VALUE
  ]
  return int(rng.choice(fitting)) if fitting else 0


def number_fact(rng: np.random.Generator) -> tuple[str, str]:
  """A single sum as question and answer, such as ('35-4=', '31')."""
  while True:
    total = int(rng.integers(0, MAX_VALUE + 1))
    change = int(rng.integers(MIN_CHANGE, MAX_CHANGE + 1) * rng.choice((-1, 1)))
    if 0 <= total + change <= MAX_VALUE:
      return f"{total}{change:+d}=", str(total + change)


def make_rows(split: Split, count: int, seed: int) -> list[dict[str, Any]]:
  """Rows of the DAPO schema, distinct by text.

  Args:
    split: 'train' or 'test'; the two share no quantities.
    count: number of rows.
    seed: of this set.

  Returns:
    Dicts with data_source, prompt (list of {role, content}), ability,
    reward_model {ground_truth, style} and extra_info {index, split, solution}.
  """
  if split not in ("train", "test"):
    raise ValueError(f"split must be 'train' or 'test', not {split!r}")
  rows, seen = [], set()
  rng = np.random.default_rng([seed, zlib.crc32(split.encode())])
  while len(rows) < count:
    problem = sample_problem(rng, split)
    wording = sample_wording(rng, problem)
    text = question(problem, wording)
    if text in seen:
      continue
    seen.add(text)
    rows.append(
      {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": text}],
        "ability": "MATH",
        "reward_model": {"ground_truth": str(problem.answer), "style": "rule"},
        "extra_info": {
          "index": len(rows),
          "split": split,
          "solution": worked_answer(problem),
        },
      }
    )
  return rows


def words() -> list[str]:
  """Every text fragment that problems and answers are made of.

  The embedded tokenizer builds its whole words from these.
  """
  verbs = [*_GAINS, *_LOSSES]
  return [
    *(f"{name} has 1" for name in _NAMES),
    *(f". Each {unit} {name} has 1" for unit, _ in _UNITS for name in _NAMES),
    *(f"1 {thing}. How many {thing} after 1" for thing in _THINGS),
    *(f" {verb} 1 and {verb} 1." for verb in verbs),
    *(f" 1 {word}?" for unit in _UNITS for word in unit),
    "1 left: 1+1=1, 1-1=1\n",
    "Answer: 1",
  ]
