"""Grading responses without trusting them.

Plain numbers are compared in place. Everything else goes to worker processes
with bounded memory, which are killed at a deadline and started anew, so that no
response can stop the loop, the next response or the run.

Laws (tests/rewards/grader_test.py):
  * exactly one score per text, in order, on every path (G16);
  * a text that does not grade within the deadline scores 0;
  * an exception of a reward function surfaces with its own type;
  * close() returns, whatever is going on, and leaves no process.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hybridrl.data.sample import Prompt
from hybridrl.rewards.answers import compare_exactly, extract_answer
from hybridrl.rewards.worker_process import GraderError, WorkerProcess

# Longer answers are attacks or loops of a model, not answers.
MAX_ANSWER_CHARS = 1000


class Grader:
  """Scores texts: 1.0 right, 0.0 wrong, or what a reward function says."""

  def __init__(
    self,
    num_workers: int = 1,
    deadline_s: float = 5.0,
    memory_limit_mib: int = 1024,
    reward_functions: Mapping[str, str] | None = None,
  ):
    """Starts nothing.

    Args:
      num_workers: worker processes, each about 60 MiB when idle.
      deadline_s: a worker's time for one text.
      memory_limit_mib: address space of a worker.
      reward_functions: data source -> 'module:function', called in a worker as
        function(text, gold, extra) and returning a number. Other sources are
        graded as math.

    Raises:
      ValueError: names the argument and its range.
    """
    if num_workers < 1:
      raise ValueError(f"num_workers must be at least 1, not {num_workers}")
    if not (deadline_s > 0 and math.isfinite(deadline_s)):
      raise ValueError(f"deadline_s must be above 0, not {deadline_s}")
    for source, function in (reward_functions or {}).items():
      if not all(function.partition(":")):
        raise ValueError(
          f"reward_functions[{source!r}] must be 'module:function', not"
          f" {function!r}"
        )
    self._deadline_s = deadline_s
    self._reward_functions = dict(reward_functions or {})
    self._workers = [
      WorkerProcess(
        memory_limit_mib=memory_limit_mib,
        request_cpu_s=math.ceil(deadline_s),
        functions=sorted(set(self._reward_functions.values())),
      )
      for _ in range(num_workers)
    ]
    self._free: asyncio.Queue[WorkerProcess] = asyncio.Queue()
    for worker in self._workers:
      self._free.put_nowait(worker)
    self._asking: set[asyncio.Task] = set()
    self._closed = False
    self.num_given_up = 0  # Texts that scored 0 for want of time or memory.

  async def start(self) -> None:
    """Starts the workers and proves that they grade (G14).

    Raises:
      GraderError: a worker does not start; says why.
    """
    try:
      await asyncio.gather(*(worker.start() for worker in self._workers))
    except BaseException:
      await self.close()
      raise

  async def grade(self, prompt: Prompt, texts: Sequence[str]) -> list[float]:
    """One score per text.

    Args:
      prompt: gives the gold answer and the data source.
      texts: the responses as text.

    Raises:
      GraderError: the grader is closed, or its workers do not start.
      Exception: whatever a reward function raised.
    """
    if self._closed:
      raise GraderError("the grader is closed")
    scores = [self._score_in_place(prompt, text) for text in texts]
    open_texts = [i for i, score in enumerate(scores) if score is None]
    tasks = [
      asyncio.create_task(self._score_in_worker(prompt, texts[i]))
      for i in open_texts
    ]
    self._asking.update(tasks)
    try:
      for i, score in zip(
        open_texts, await asyncio.gather(*tasks), strict=True
      ):
        scores[i] = score
    except asyncio.CancelledError:
      if self._closed:
        raise GraderError("the grader was closed while it graded") from None
      raise
    finally:
      for task in tasks:
        task.cancel()
      await asyncio.gather(*tasks, return_exceptions=True)
      self._asking.difference_update(tasks)
    return [float(score) for score in scores if score is not None]

  async def close(self) -> None:
    """Ends what is being graded and all workers. Idempotent."""
    self._closed = True
    asking = [t for t in self._asking if t is not asyncio.current_task()]
    for task in asking:
      task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    await asyncio.gather(*(worker.kill() for worker in self._workers))

  def _score_in_place(self, prompt: Prompt, text: str) -> float | None:
    """The score, if it takes no algebra and no reward function."""
    if prompt.data_source in self._reward_functions:
      return None
    answer = extract_answer(text)
    if answer is None:
      return 0.0
    equal = compare_exactly(prompt.answer, answer)
    if equal is None and len(answer) > MAX_ANSWER_CHARS:
      return 0.0
    return None if equal is None else float(equal)

  async def _score_in_worker(self, prompt: Prompt, text: str) -> float:
    function = self._reward_functions.get(prompt.data_source)
    request: dict[str, Any] = {"function": function, "gold": prompt.answer}
    if function:
      request |= {"text": text, "extra": dict(prompt.extra)}
    else:
      request |= {"answer": extract_answer(text)}
    worker = await self._free.get()
    try:
      score = await worker.ask(request, self._deadline_s)
    finally:
      self._free.put_nowait(worker)
    if score is None:
      self.num_given_up += 1
      return 0.0
    return score
