"""An exact position in an endless (or finite) sequence of prompts.

The sequence is a function of (prompt set, seed) alone: sample i is prompt
shuffle(epoch = i // n)[i % n]. So a cursor is one integer, and a resume cannot
skip or repeat anything, on an epoch's boundary or elsewhere, whatever the
batch sizes were.
"""

from collections.abc import Mapping
from typing import Any

from hybridrl.data.permutation import shuffled_index
from hybridrl.data.prompt_set import PromptSet
from hybridrl.data.sample import Prompt


class PromptCursor:
  """Hands out (sample_id, prompt) in order; sample ids count from 0."""

  def __init__(
    self,
    prompt_set: PromptSet,
    seed: int,
    epochs: int | None = None,
    *,
    shuffle: bool = True,
  ):
    """Starts at sample 0.

    Args:
      prompt_set: a non-empty set.
      seed: of the shuffles; each epoch has its own order.
      epochs: passes over the set; None: no end.
      shuffle: False keeps the set's order, for validation.
    """
    if not len(prompt_set):
      raise ValueError("the prompt set is empty")
    if epochs is not None and epochs < 1:
      raise ValueError(f"epochs must be at least 1 or None, not {epochs}")
    self._prompts = prompt_set
    self._seed = seed
    self._epochs = epochs
    self._shuffle = shuffle
    self._position = 0
    self._fingerprint = prompt_set.fingerprint()

  @property
  def position(self) -> int:
    """Samples handed out so far; the next sample's id."""
    return self._position

  @property
  def total(self) -> int | None:
    """Samples of the whole sequence; None if it has no end."""
    if self._epochs is None:
      return None
    return self._epochs * len(self._prompts)

  def next(self) -> tuple[int, Prompt] | None:
    """The next sample, or None at the end of data."""
    if self.total is not None and self._position >= self.total:
      return None
    sample_id = self._position
    self._position += 1
    return sample_id, self.prompt_at(sample_id)

  def prompt_at(self, sample_id: int) -> Prompt:
    """The prompt of any sample: a resumed run asks for those in flight."""
    if sample_id < 0 or (self.total is not None and sample_id >= self.total):
      raise ValueError(f"no sample {sample_id}; the sequence has {self.total}")
    epoch, index = divmod(sample_id, len(self._prompts))
    if self._shuffle:
      index = shuffled_index(index, len(self._prompts), self._seed, epoch)
    return self._prompts[index]

  def state_dict(self) -> dict[str, Any]:
    """JSON-like; holds the position and what it is a position in."""
    return {"position": self._position, **self._identity()}

  def load_state_dict(self, state: Mapping[str, Any]) -> None:
    """Goes to a saved position.

    Raises:
      ValueError: the state is of another prompt set, seed or order.
    """
    for name, here in self._identity().items():
      if state[name] != here:
        raise ValueError(
          f"the saved prompt position has {name}={state[name]}, this run"
          f" {name}={here}: resume with the same prompts and seed"
        )
    position = int(state["position"])
    if position < 0 or (self.total is not None and position > self.total):
      raise ValueError(f"saved position {position} is not in 0..{self.total}")
    self._position = position

  def _identity(self) -> dict[str, Any]:
    return {
      "seed": self._seed,
      "shuffle": self._shuffle,
      "num_prompts": len(self._prompts),
      "fingerprint": self._fingerprint,
    }
