import asyncio
import threading

import numpy as np
import psutil
import pytest

from hybridrl.data.sample import Prompt
from hybridrl.rewards.grader import MAX_ANSWER_CHARS, Grader
from hybridrl.rewards.worker_process import GraderError

_HERE = "tests.rewards.grader_test"


def _prompt(gold: str, source: str = "math", **extra) -> Prompt:
  return Prompt(
    prompt_id=0,
    text="?",
    token_ids=np.zeros(1, np.int32),
    answer=gold,
    data_source=source,
    extra=extra,
  )


async def _grade(gold, texts, grader, source="math", **extra):
  return await grader.grade(_prompt(gold, source, **extra), texts)


def _with_grader(use, **options):
  async def run():
    grader = Grader(**options)
    try:
      return await use(grader)
    finally:
      await grader.close()

  return asyncio.run(run())


# Reward functions that workers import from this module.
def length_reward(text, gold, extra):
  return np.float32(len(text) - len(gold) + extra.get("bonus", 0))


def bool_reward(text, gold, extra):
  return text == gold


def bad_reward(text, gold, extra):
  raise KeyError("no such column")


def nan_reward(text, gold, extra):
  return float("nan")


def endless_reward(text, gold, extra):
  while text != "quick":
    pass
  return 1


def noisy_reward(text, gold, extra):
  print("this must not reach the reply channel")
  return 1


def test_plain_numbers_need_no_worker():
  async def use(grader):
    scores = await _grade("-3", ["the answer is -3", "Answer: 3", "?"], grader)
    assert all(w._process is None for w in grader._workers)
    return scores

  assert _with_grader(use) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
  ("gold", "text", "score"),
  [
    ("7", "Answer: +7", 1.0),
    ("-3", "Therefore the answer is -3", 1.0),
    ("3", "Therefore the answer is -3", 0.0),
    ("3", r"\boxed{3} … \boxed{5}", 0.0),
    ("5", r"We get \boxed{5} then also try \boxed{", 0.0),
    ("1234", "Answer: 1234", 1.0),
  ],
  ids=["g6", "g7_right", "g7_wrong", "g8", "g5", "g18"],
)
def test_cases_of_plain_numbers(gold, text, score):
  assert _with_grader(lambda g: _grade(gold, [text], g)) == [score]


def test_g16_one_score_per_response_on_every_path():
  async def use(grader):
    texts = [r"\boxed{\frac12}", r"\boxed{\frac{{{}", r"\boxed{x=}", "", "5"]
    return [
      await _grade(r"\frac{1}{2}", texts, grader),
      await _grade("1/2", [], grader),
    ]

  scores, none = _with_grader(use)
  assert scores == [1.0, 0.0, 0.0, 0.0, 0.0]
  assert none == []


def test_g14_grading_works_off_the_main_thread():
  result = []

  def run():
    result.extend(
      _with_grader(lambda g: _grade(r"\frac{1}{3}", [r"\boxed{\frac13}"], g))
    )

  thread = threading.Thread(target=run)
  thread.start()
  thread.join(timeout=120)
  assert result == [1.0]


_HOSTILE = {
  "tower": r"\boxed{9^{9^{9^{9}}}}",
  "braces": r"\boxed{" + "{" * 10**5 + "}" * 10**5 + "}",
  "open_braces": r"\boxed{" * 10**5,
  "short_braces": r"\boxed{" + "{" * 400 + "x" + "}" * 400 + "}",
  "digits": r"\boxed{" + "9" * 10**6 + "}",
  "digits_in_line": "Answer: " + "9" * 10**6,
  "factorials": r"\boxed{(((99999!)!)!)!}",
  "memory": r"\boxed{10^{10^{11}}}",
}


def test_g15_hostile_answers_score_0_and_the_next_is_graded_right():
  async def use(grader):
    await grader.start()
    for name, text in _HOSTILE.items():
      async with asyncio.timeout(60):
        scores = await _grade("x+1", [text, r"\boxed{1+x}"], grader)
      assert scores == [0.0, 1.0], name
    return grader.num_given_up

  # At least the tower can only be stopped from outside.
  assert _with_grader(use, deadline_s=1.0) >= 1


def test_x4_a_slow_grader_does_not_block_the_loop_and_close_returns():
  async def use(grader):
    await grader.start()
    task = asyncio.create_task(_grade("1", ["slow"], grader, "mine"))
    for _ in range(20):  # The loop turns while the worker is stuck.
      await asyncio.sleep(0.01)
    assert not task.done()
    async with asyncio.timeout(10):
      await grader.close()
    with pytest.raises(GraderError, match="closed"):
      await task

  _with_grader(
    use,
    deadline_s=60.0,
    reward_functions={"mine": f"{_HERE}:endless_reward"},
  )


def test_a_reward_function_that_hangs_scores_0():
  async def use(grader):
    return await _grade("1", ["slow", "quick"], grader, "mine")

  options = {"mine": f"{_HERE}:endless_reward"}
  assert _with_grader(use, deadline_s=1.0, reward_functions=options) == [0, 1]


def test_g17_reward_functions_may_return_any_scalar():
  async def use(grader):
    return [
      await _grade("ab", ["abc", ""], grader, "length", bonus=2),
      await _grade("ab", ["ab", ""], grader, "bool"),
      await _grade("ab", ["ab"], grader, "noisy"),
    ]

  assert _with_grader(
    use,
    reward_functions={
      "length": f"{_HERE}:length_reward",
      "bool": f"{_HERE}:bool_reward",
      "noisy": f"{_HERE}:noisy_reward",
    },
  ) == [[3.0, 0.0], [1.0, 0.0], [1.0]]


def test_x3_an_exception_of_a_reward_function_keeps_its_type():
  async def use(grader):
    with pytest.raises(KeyError, match="no such column") as caught:
      await _grade("1", ["1", "2"], grader, "bad")
    assert "bad_reward" in "".join(caught.value.__notes__)
    with pytest.raises(ValueError, match="finite"):
      await _grade("1", ["1"], grader, "nan")
    return await _grade("x+1", [r"\boxed{1+x}"], grader)

  assert _with_grader(
    use,
    reward_functions={
      "bad": f"{_HERE}:bad_reward",
      "nan": f"{_HERE}:nan_reward",
    },
  ) == [1.0]


@pytest.mark.parametrize(
  "function", [f"{_HERE}:no_such", "no.such.module:function"]
)
def test_a_reward_function_that_does_not_exist_is_named_at_start(function):
  async def use(grader):
    with pytest.raises(GraderError, match="no_such|No module"):
      await grader.start()

  _with_grader(use, reward_functions={"mine": function})


def test_a_cancelled_call_leaves_a_working_grader():
  async def use(grader):
    await grader.start()
    task = asyncio.create_task(_grade("1", ["slow"], grader, "mine"))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
      await task
    return await _grade("1", ["quick"], grader, "mine")

  options = {"mine": f"{_HERE}:endless_reward"}
  assert _with_grader(use, deadline_s=30.0, reward_functions=options) == [1.0]


def test_close_leaves_no_process_and_ends_the_grader():
  async def use(grader):
    await grader.start()
    children = [
      p
      for p in psutil.Process().children(recursive=True)
      if "hybridrl.rewards.worker" in p.cmdline()
    ]
    assert len(children) == 2
    await grader.close()
    await grader.close()
    assert not any(p.is_running() for p in children)
    with pytest.raises(GraderError, match="closed"):
      await _grade("1", ["Answer: 1"], grader)

  _with_grader(use, num_workers=2)


def test_a_worker_that_cannot_start_says_why():
  async def use(grader):
    with pytest.raises(GraderError, match="does not start"):
      await grader.start()

  _with_grader(use, memory_limit_mib=16)


@pytest.mark.parametrize(
  "options",
  [
    {"num_workers": 0},
    {"deadline_s": 0.0},
    {"deadline_s": float("inf")},
    {"reward_functions": {"a": "module"}},
    {"reward_functions": {"a": ":function"}},
  ],
)
def test_bad_options_are_named(options):
  with pytest.raises(ValueError, match=next(iter(options))):
    Grader(**options)


def test_over_long_answers_never_reach_a_worker():
  async def use(grader):
    text = r"\boxed{" + "x" * (MAX_ANSWER_CHARS + 1) + "}"
    scores = await _grade("x", [text], grader)
    assert all(w._process is None for w in grader._workers)
    return scores

  assert _with_grader(use) == [0.0]
