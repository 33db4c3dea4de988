"""A small model that can do the embedded task, but not reliably.

Reinforcement learning needs a start where some responses are right and some
are not. Supervised learning of this task is a phase change: accuracy stays near
zero, then jumps. So the warm start has three phases, none of which ends at a
fixed step, which would not be robust over seeds:

  facts: single sums in rows of many, with loss on their results alone, until
    the loss is low. This reaches the change in half the time of whole problems.
  problems: short problems with worked answers, until the loss is low.
  rounds: problems of all lengths while the rates fall to 0; then accuracy is
    measured by sampling. Too low, and the next round goes on like that; too
    high, and its answers hold slips, such as people make, to be learnt as well.

The optimizer is Muon (Jordan et al., 2024) for the layers' matrices and Adam
for the rest: it needs about half of Adam's steps here.
"""

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from hybridrl.data import embedded
from hybridrl.data.tokenizer import (
  ChatTokenizer,
  load_tokenizer,
  save_embedded_tokenizer,
)
from hybridrl.models.config import ModelConfig
from hybridrl.models.decoder import Params, init_params
from hybridrl.models.hf import save_hf
from hybridrl.training.demonstrations import fact_rows, problem_rows
from hybridrl.training.packing import PackedRows
from hybridrl.training.sampler import sample
from hybridrl.training.sft import sft_step
from hybridrl.training.state import TrainState, init_state


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
  """How the warm start learns; the defaults take about a minute on one core.

  Attributes:
    short_row_length, short_rows: shape of a step of the first two phases.
    long_row_length, long_rows: shape of a step of a round; a row holds the
      longest problem.
    adam_lr: rate of embeddings, norms and the output matrix.
    muon_lr: rate of the layers' matrices.
    warmup_steps: steps over which both rates rise.
    fact_loss, problem_loss: a phase ends when the mean loss of WINDOW steps, in
      nats a token, is below this.
    max_steps: the warm start fails if a phase takes more steps.
    round_steps: steps of a round.
    max_rounds: the warm start fails if accuracy is out of range after these.
    target_accuracy: wanted sampled accuracy on held-out problems.
    tolerance: how far from it is good enough.
    num_measured: held-out problems of a measurement.
    max_new_tokens: longest response when measuring.
  """

  short_row_length: int = 136
  short_rows: int = 2
  long_row_length: int = 272
  long_rows: int = 1
  adam_lr: float = 4e-3
  muon_lr: float = 1.2e-2
  warmup_steps: int = 30
  fact_loss: float = 0.4
  problem_loss: float = 0.13
  max_steps: int = 3000
  round_steps: int = 100
  max_rounds: int = 8
  target_accuracy: float = 0.45
  tolerance: float = 0.13
  num_measured: int = 96
  max_new_tokens: int = 248


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartReport:
  """What came out.

  Attributes:
    accuracy: sampled at temperature 1 on held-out problems.
    fact_steps, problem_steps: steps of these phases.
    rounds: rounds after that.
    slip_rate: slips per operation in the last round's answers.
    mean_response_tokens: of the measured responses.
    seconds: of everything.
  """

  accuracy: float
  fact_steps: int
  problem_steps: int
  rounds: int
  slip_rate: float
  mean_response_tokens: float
  seconds: float


class WarmStartFailed(Exception):
  """The model did not learn the task; the message says how far it came."""


# Steps over which the loss is averaged: one step's loss is noisy.
WINDOW = 20
# Attention scores are at most this times sqrt(head size).
_ATTENTION_SCALE = 3.0
# To the usual 1/sqrt(width): a fifth fewer steps.
_EMBEDDING_SCALE = 4.0
# Three of Muon's usual five orthogonalise well enough and save a sixth of a
# step's time.
_NEWTON_SCHULZ_STEPS = 3
_PROGRESS_INTERVAL_S = 5.0


def model_config(tokenizer: ChatTokenizer) -> ModelConfig:
  """About 0.87 million parameters in a shape that vLLM serves on CPU."""
  return ModelConfig(
    vocab_size=tokenizer.vocab_size,
    hidden_size=128,
    intermediate_size=384,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_size=32,
    max_position=512,
    eos_token_ids=tokenizer.stop_token_ids,
    pad_token_id=tokenizer.pad_token_id,
  )


def warm_start(
  out_dir: str | pathlib.Path,
  seed: int,
  *,
  is_right: Callable[[str, str], bool],
  options: WarmStartConfig = WarmStartConfig(),
  progress: Callable[[str], None] = print,
) -> WarmStartReport:
  """Writes a Hugging Face folder: weights, config.json and tokenizer.

  Args:
    out_dir: the folder; weights are written last and at once.
    seed: of the initial weights, the problems and the measurement.
    is_right: (gold answer, response text) -> whether the response is right.
    options: see WarmStartConfig.
    progress: told one line every few seconds.

  Raises:
    WarmStartFailed: the task was not learnt, or accuracy stayed out of range.
  """
  start_s = time.monotonic()
  out_dir = pathlib.Path(out_dir)
  save_embedded_tokenizer(out_dir, embedded.words())
  trainer = _Trainer(load_tokenizer(out_dir), seed, is_right, options, progress)
  fact_steps = trainer.learn_facts()
  problem_steps = trainer.learn_problems()
  slip_rate = 0.0
  for round_number in range(1, options.max_rounds + 1):
    trainer.learn_round(slip_rate)
    accuracy, mean_tokens = trainer.measure()
    progress(
      f"warm start: round {round_number}, {slip_rate:.3f} slips an operation:"
      f" sampled accuracy {accuracy:.2f} on held-out problems"
    )
    if abs(accuracy - options.target_accuracy) <= options.tolerance:
      break
    slip_rate = next_slip_rate(slip_rate, accuracy, options.target_accuracy)
  else:
    raise WarmStartFailed(
      f"sampled accuracy is {accuracy:.2f} after {round_number} rounds, wanted"
      f" {options.target_accuracy} ± {options.tolerance}"
    )
  save_hf(out_dir, trainer.config, trainer.state.params)
  return WarmStartReport(
    accuracy=accuracy,
    fact_steps=fact_steps,
    problem_steps=problem_steps,
    rounds=round_number,
    slip_rate=slip_rate,
    mean_response_tokens=mean_tokens,
    seconds=time.monotonic() - start_s,
  )


def slip_rate_for(accuracy: float) -> float:
  """Slips per operation with which worked answers are right this often.

  An answer of s operations is right with probability (1 - rate)^s; solves for
  the rate by bisection over a fixed sample of problems.
  """
  rng = np.random.default_rng(0)
  operations = np.array(
    [len(embedded.sample_problem(rng, "train").totals()) for _ in range(1000)]
  )
  low, high = 0.0, 1.0
  for _ in range(30):
    rate = (low + high) / 2
    if np.mean((1 - rate) ** operations) > accuracy:
      low = rate
    else:
      high = rate
  return low


def next_slip_rate(slip_rate: float, accuracy: float, target: float) -> float:
  """The rate of slips for the next round.

  Args:
    slip_rate: of the last round.
    accuracy: measured after it.
    target: wanted.

  Returns:
    Half the rate, if accuracy is too low; else a rate that is higher by what
    takes accuracy down to the target.
  """
  if accuracy < target:
    return slip_rate / 2
  return slip_rate + slip_rate_for(target / accuracy)


def make_optimizer(
  params: Params, options: WarmStartConfig
) -> optax.GradientTransformation:
  """Muon and Adam, both rates scaled by the hyper-parameter 'scale'."""
  # Stacked matrices are [L, out, in]; embeddings and vectors go to Adam.
  matrix = contrib.MuonDimensionNumbers(reduction_axis=2, output_axis=1)
  dimensions: Any = {
    name: {n: matrix if array.ndim == 3 else None for n, array in value.items()}
    if name == "layers"
    else None
    for name, value in params.items()
  }

  @optax.inject_hyperparams
  def scaled(scale):
    return optax.chain(
      optax.clip_by_global_norm(1.0),
      contrib.muon(
        options.muon_lr * scale,
        adam_learning_rate=options.adam_lr * scale,
        adam_b2=0.98,
        ns_steps=_NEWTON_SCHULZ_STEPS,
        muon_weight_dimension_numbers=dimensions,
      ),
    )

  return scaled(scale=1.0)


def initial_params(config: ModelConfig, seed: int) -> Params:
  """Fresh parameters that learn faster: larger embeddings, sharper attention.

  Norm weights move slowly, and copying needs scores above log(row length).
  """
  params = init_params(config, seed)
  layers = params["layers"]
  scale = np.sqrt(_ATTENTION_SCALE)
  norms = {n: layers[n] * scale for n in ("q_norm", "k_norm")}
  return params | {
    "embed": params["embed"] * _EMBEDDING_SCALE,
    "layers": layers | norms,
  }


class _Trainer:
  """The state of one warm start."""

  def __init__(
    self,
    tokenizer: ChatTokenizer,
    seed: int,
    is_right: Callable[[str, str], bool],
    options: WarmStartConfig,
    progress: Callable[[str], None],
  ):
    self.config = model_config(tokenizer)
    self._tokenizer = tokenizer
    self._seed = seed
    self._is_right = is_right
    self._options = options
    self._progress = progress
    self._rng = np.random.default_rng([seed, 1])
    params = initial_params(self.config, seed)
    self._optimizer = make_optimizer(params, options)
    self.state: TrainState = init_state(params, self._optimizer)
    self._num_measurements = 0

  def learn_facts(self) -> int:
    """Learns sums until the loss is low; returns the number of steps."""
    options = self._options
    batches = (
      fact_rows(
        self._tokenizer,
        self._rng,
        options.short_rows,
        options.short_row_length,
      )
      for _ in itertools.count()
    )
    return self._learn_until("facts", batches, options.fact_loss)

  def learn_problems(self) -> int:
    """Learns problems until the loss is low; returns the number of steps."""
    options = self._options
    batches = problem_rows(
      self._tokenizer, self._rng, options.short_rows, options.short_row_length
    )
    return self._learn_until("problems", batches, options.problem_loss)

  def _learn_until(
    self, phase: str, batches: Iterator[PackedRows], loss_wanted: float
  ) -> int:
    options = self._options
    losses: list[float] = []
    next_line_s = time.monotonic()
    for step in range(1, options.max_steps + 1):
      scale = min(1.0, step / options.warmup_steps)
      losses.append(self._step(next(batches), scale))
      loss = float(np.mean(losses[-WINDOW:]))
      if time.monotonic() >= next_line_s:
        self._progress(f"warm start: {phase}, step {step}, loss {loss:.3f}")
        next_line_s = time.monotonic() + _PROGRESS_INTERVAL_S
      if step >= WINDOW and loss < loss_wanted:
        return step
    raise WarmStartFailed(
      f"the loss on {phase} is {loss:.3f} after {options.max_steps} steps, not"
      f" below {loss_wanted}"
    )

  def learn_round(self, slip_rate: float) -> None:
    """Learns problems of all lengths while the rates fall to 0."""
    options = self._options
    batches = problem_rows(
      self._tokenizer,
      self._rng,
      options.long_rows,
      options.long_row_length,
      slip_rate,
    )
    for step in range(options.round_steps):
      self._step(next(batches), 1.0 - step / options.round_steps)

  def measure(self) -> tuple[float, float]:
    """(sampled accuracy, mean response tokens) on held-out problems."""
    options = self._options
    self._num_measurements += 1
    rows = embedded.make_rows("test", options.num_measured, self._seed)
    key = jax.random.fold_in(jax.random.key(self._seed), self._num_measurements)
    responses = sample(
      self.config,
      self.state.params,
      [self._tokenizer.encode_chat(row["prompt"]) for row in rows],
      key,
      stop_token_id=self._tokenizer.stop_token_ids[0],
      max_new_tokens=options.max_new_tokens,
    )
    right = [
      self._is_right(
        row["reward_model"]["ground_truth"],
        self._tokenizer.decode(response.token_ids),
      )
      for row, response in zip(rows, responses, strict=True)
    ]
    mean_tokens = np.mean([len(r.token_ids) for r in responses])
    return float(np.mean(right)), float(mean_tokens)

  def _step(self, rows: PackedRows, scale: float) -> float:
    opt_state: Any = self.state.opt_state  # optax's type names no fields.
    opt_state.hyperparams["scale"] = jnp.float32(scale)
    self.state, loss = sft_step(
      self.state, rows, config=self.config, optimizer=self._optimizer
    )
    return float(loss)
