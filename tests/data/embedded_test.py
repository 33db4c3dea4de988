import json
import re
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.data import embedded
from hybridrl.rewards.answers import compare_exactly, extract_answer

_EQUATION = re.compile(r"(\d+)([+-])(\d+)=(\d+)")


def _check_solution(text: str, solution: str, gold: str):
  """An independent reading of problem and solution, from their text."""
  numbers = [int(n) for n in re.findall(r"\d+", text)]
  start, steps = numbers[0], numbers[-1]
  lines = solution.split("\n")
  total = start
  assert len(lines) == steps + 1
  for number, line in enumerate(lines[:-1]):
    assert line.startswith(f"{steps - number} left: ")
    equations = _EQUATION.findall(line)
    assert [int(e[2]) for e in equations] == numbers[1:-1]
    for left, sign, right, result in equations:
      assert int(left) == total
      total = total + int(right) if sign == "+" else total - int(right)
      assert int(result) == total
      assert 0 <= total <= embedded.MAX_VALUE
  assert lines[-1] == f"Answer: {total}"
  assert gold == str(total)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["train", "test"]))
def test_worked_answers_are_correct_line_by_line(seed, split):
  for row in embedded.make_rows(split, 5, seed):
    solution = row["extra_info"]["solution"]
    gold = row["reward_model"]["ground_truth"]
    _check_solution(row["prompt"][0]["content"], solution, gold)
    assert compare_exactly(gold, extract_answer(solution) or "") is True


def test_a_problem_reads_as_it_should():
  problem = embedded.Problem(start=8, changes=(6, -2), steps=2)
  wording = embedded.Wording(
    name="Mia", thing="coins", unit=("day", "days"), verbs=("earns", "loses")
  )
  assert embedded.question(problem, wording) == (
    "Mia has 8 coins. Each day Mia earns 6 and loses 2. How many coins after"
    " 2 days?"
  )
  assert embedded.worked_answer(problem) == (
    "2 left: 8+6=14, 14-2=12\n1 left: 12+6=18, 18-2=16\nAnswer: 16"
  )


def test_verbs_tell_the_direction():
  rng = np.random.default_rng(0)
  for _ in range(200):
    problem = embedded.sample_problem(rng, "train")
    wording = embedded.sample_wording(rng, problem)
    assert len(set(wording.verbs)) == len(problem.changes)
    for verb, change in zip(wording.verbs, problem.changes, strict=True):
      gains = {"buys", "finds", "earns", "makes", "gets"}
      assert (verb in gains) == (change > 0)


def test_train_and_test_share_no_quantities():
  rng = np.random.default_rng(0)
  problems = {
    split: {embedded.sample_problem(rng, split) for _ in range(3000)}
    for split in ("train", "test")
  }
  assert len(problems["train"]) > 1000
  assert not problems["train"] & problems["test"]


def test_rows_depend_on_split_seed_and_index_alone():
  few, many = (embedded.make_rows("train", n, 7) for n in (20, 50))
  assert many[:20] == few
  assert embedded.make_rows("train", 20, 8) != few
  assert embedded.make_rows("test", 20, 7) != few
  json.dumps(many)


def test_rows_are_of_the_dapo_schema_and_distinct():
  rows = embedded.make_rows("test", 500, 3)
  for index, row in enumerate(rows):
    assert set(row) == {
      "data_source",
      "prompt",
      "ability",
      "reward_model",
      "extra_info",
    }
    assert row["extra_info"]["index"] == index
    assert set(row["reward_model"]) == {"ground_truth", "style"}
  assert len({r["prompt"][0]["content"] for r in rows}) == 500


def test_lengths_have_a_heavy_tail():
  rng = np.random.default_rng(5)
  operations = [
    len(embedded.sample_problem(rng, "train").totals()) for _ in range(4000)
  ]
  p50, p99 = np.percentile(operations, [50, 99])
  assert p99 >= 3.5 * p50
  assert statistics.mean(operations) > 1.1 * p50


def test_an_unknown_split_is_refused():
  with pytest.raises(ValueError, match="split"):
    embedded.make_rows("dev", 1, 0)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_slips_carry_on_and_stay_in_range(seed):
  rng = np.random.default_rng(seed)
  problem = embedded.sample_problem(rng, "train")
  text = embedded.worked_answer(problem, rng, slip_rate=0.5)
  equations = _EQUATION.findall(text)
  assert len(equations) == len(problem.totals())
  previous = problem.start
  for left, _, _, result in equations:
    assert int(left) == previous
    previous = int(result)
    assert 0 <= previous <= embedded.MAX_VALUE
  assert text.endswith(f"Answer: {previous}")


def test_number_facts_are_right():
  rng = np.random.default_rng(0)
  seen = set()
  for _ in range(2000):
    question, answer = embedded.number_fact(rng)
    ((left, sign, right, result),) = _EQUATION.findall(question + answer)
    change = int(right) if sign == "+" else -int(right)
    assert int(left) + change == int(result) <= embedded.MAX_VALUE
    seen.add((int(left) % 10, change))
  # All sums of a last digit and an amount.
  amounts = embedded.MAX_CHANGE - embedded.MIN_CHANGE + 1
  assert len(seen) == 10 * 2 * amounts


def test_the_rate_of_slips_is_the_one_asked_for():
  rng = np.random.default_rng(0)
  slips = operations = 0
  for _ in range(1500):
    problem = embedded.sample_problem(rng, "train")
    text = embedded.worked_answer(problem, rng, slip_rate=0.1)
    for left, sign, right, result in _EQUATION.findall(text):
      step = int(right) if sign == "+" else -int(right)
      slips += int(left) + step != int(result)
      operations += 1
  # Six standard deviations of a binomial; a few slips find no room.
  assert abs(slips / operations - 0.1) < 6 * (0.09 / operations) ** 0.5 + 0.005
