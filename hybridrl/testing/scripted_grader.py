"""A grader whose scores are a hash of prompt and text: the same every time."""

import asyncio
import zlib
from collections.abc import Callable, Sequence

from hybridrl.data.sample import Prompt


def hashed_reward(prompt_id: int, text: str) -> float:
  """0.0 or 1.0."""
  return float(zlib.crc32(f"{prompt_id}:{text}".encode()) & 1)


class ScriptedGrader:
  """Implements runtime.parts.Grader.

  Args:
    reward: of (prompt id, text).
    grade_s: seconds of one call.
    fail: called with the prompt before each call; raises what a test injects.

  Attributes:
    grades: all rewards that were given, by call.
    closed: close() was called.
  """

  def __init__(
    self,
    reward: Callable[[int, str], float] = hashed_reward,
    *,
    grade_s: float = 0.01,
    fail: Callable[[Prompt], None] | None = None,
  ):
    self._reward = reward
    self._grade_s = grade_s
    self._fail = fail
    self.grades: list[list[float]] = []
    self.closed = False

  async def start(self) -> None:
    pass

  async def grade(self, prompt: Prompt, texts: Sequence[str]) -> list[float]:
    if self._fail:
      self._fail(prompt)
    await asyncio.sleep(self._grade_s)
    rewards = [self._reward(prompt.prompt_id, text) for text in texts]
    self.grades.append(rewards)
    return rewards

  async def close(self) -> None:
    self.closed = True
