"""A small model that can do the embedded task, but carelessly.

Reinforcement learning needs a start where some responses are right and some
are not. Supervised learning of this task is a phase change: accuracy stays near
zero, then jumps. So the warm start has three phases, the first two of which end
at a loss and not at a step, which would not be robust over seeds:

  facts: single sums in rows of many, with loss on their results alone. This
    reaches the change in half the time of whole problems.
  clean: problems with correct worked answers.
  careless: problems with slips in the answers, while the rates fall to 0; then
    accuracy is measured by sampling, and the phase is repeated with another
    rate of slips if it is out of range.

The optimizer is Muon (Jordan et al., 2024) for the layers' matrices and Adam
for the rest: it needs about half of Adam's steps here.
"""

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator

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
from hybridrl.rewards.answers import compare_exactly, extract_answer
from hybridrl.training.packing import (
  PackedRows,
  Slot,
  empty_rows,
  pack_in_order,
  place,
)
from hybridrl.training.sampler import sample
from hybridrl.training.sft import sft_step
from hybridrl.training.state import TrainState, init_state

Sequence = tuple[np.ndarray, np.ndarray]  # [P] prompt and [A] answer, int32


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartConfig:
  """How the warm start learns; the defaults take about a minute on one core.

  Attributes:
    row_length: tokens of a packed row; holds the longest problem.
    rows_per_step: rows of a step.
    fact_row_length, fact_rows_per_step: the same in the facts phase.
    adam_lr: rate of embeddings, norms and the output matrix.
    muon_lr: rate of the layers' matrices.
    warmup_steps: steps over which both rates rise.
    fact_loss, clean_loss: a phase ends when the mean loss of WINDOW steps, in
      nats a token, is below this.
    max_steps: the warm start fails if a phase takes more steps.
    careless_steps: steps of one careless round, in which the rates fall to 0.
    first_slip_accuracy: share of right answers in the first careless round.
    max_careless_rounds: rounds to come into the wanted range.
    target_accuracy: wanted sampled accuracy on held-out problems.
    tolerance: how far from it is good enough.
    num_measured: held-out problems of a measurement.
    max_new_tokens: longest response when measuring.
  """

  row_length: int = 272
  rows_per_step: int = 1
  fact_row_length: int = 64
  fact_rows_per_step: int = 4
  adam_lr: float = 1.5e-3
  muon_lr: float = 1.2e-2
  warmup_steps: int = 50
  fact_loss: float = 0.6
  clean_loss: float = 0.1
  max_steps: int = 3000
  careless_steps: int = 120
  first_slip_accuracy: float = 0.6
  max_careless_rounds: int = 4
  target_accuracy: float = 0.45
  tolerance: float = 0.09
  num_measured: int = 128
  max_new_tokens: int = 248


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmStartReport:
  """What came out.

  Attributes:
    accuracy: sampled at temperature 1 on held-out problems.
    fact_steps, clean_steps: steps of these phases.
    careless_rounds: careless rounds after that.
    slip_rate: slips per operation in the last round's answers.
    mean_response_tokens: of the measured responses.
    seconds: of everything.
  """

  accuracy: float
  fact_steps: int
  clean_steps: int
  careless_rounds: int
  slip_rate: float
  mean_response_tokens: float
  seconds: float


class WarmStartFailed(Exception):
  """The model did not learn the task; the message says how far it came."""


# Steps over which the loss is averaged: one step's loss is noisy.
WINDOW = 20
# Attention scores are at most this times sqrt(head size).
_ATTENTION_SCALE = 3.0
_POOL = 48  # Sequences to choose from when a row is filled.
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
  options: WarmStartConfig = WarmStartConfig(),
  progress: Callable[[str], None] = print,
) -> WarmStartReport:
  """Writes a Hugging Face folder: weights, config.json and tokenizer.

  Args:
    out_dir: the folder; weights are written last and at once.
    seed: of the initial weights, the problems and the measurement.
    options: see WarmStartConfig.
    progress: told one line every few seconds.

  Raises:
    WarmStartFailed: the task was not learnt, or accuracy stayed out of range.
  """
  start_s = time.monotonic()
  out_dir = pathlib.Path(out_dir)
  save_embedded_tokenizer(out_dir, embedded.words())
  trainer = _Trainer(load_tokenizer(out_dir), seed, options, progress)
  fact_steps = trainer.learn_facts()
  clean_steps = trainer.learn_clean()
  slip_rate = slip_rate_for(options.first_slip_accuracy)
  for round_number in range(1, options.max_careless_rounds + 1):
    trainer.learn_careless(slip_rate)
    accuracy, mean_tokens = trainer.measure()
    progress(
      f"warm start: round {round_number}, {slip_rate:.3f} slips an operation:"
      f" sampled accuracy {accuracy:.2f} on held-out problems"
    )
    if abs(accuracy - options.target_accuracy) <= options.tolerance:
      break
    slip_rate = _adjusted(slip_rate, accuracy, options.target_accuracy)
  else:
    raise WarmStartFailed(
      f"sampled accuracy is {accuracy:.2f} after {round_number} rounds, wanted"
      f" {options.target_accuracy} ± {options.tolerance}"
    )
  save_hf(out_dir, trainer.config, trainer.state.params)
  return WarmStartReport(
    accuracy=accuracy,
    fact_steps=fact_steps,
    clean_steps=clean_steps,
    careless_rounds=round_number,
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


def _adjusted(slip_rate: float, accuracy: float, target: float) -> float:
  """A rate that brings the measured accuracy nearer to the target.

  In log terms accuracy is proportional to the rate; the step is bounded because
  the measurement is noisy.
  """
  ratio = np.log(target) / np.log(np.clip(accuracy, 0.02, 0.98))
  return float(np.clip(slip_rate * np.clip(ratio, 0.4, 2.0), 0.0, 0.5))


def make_optimizer(
  params: Params, options: WarmStartConfig
) -> optax.GradientTransformation:
  """Muon and Adam, both rates scaled by the hyper-parameter 'scale'."""
  # Stacked matrices are [L, out, in]; embeddings and vectors go to Adam.
  matrix = contrib.MuonDimensionNumbers(reduction_axis=2, output_axis=1)
  dimensions = {
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
        muon_weight_dimension_numbers=dimensions,
      ),
    )

  return scaled(scale=1.0)


def _sharpened(params: Params) -> Params:
  """Larger norms of queries and keys: attention can be sharp from the start.

  Norm weights move slowly, and copying needs scores above log(row length).
  """
  scale = np.sqrt(_ATTENTION_SCALE)
  layers = params["layers"]
  norms = {n: layers[n] * scale for n in ("q_norm", "k_norm")}
  return params | {"layers": layers | norms}


def fact_rows(
  tokenizer: ChatTokenizer,
  rng: np.random.Generator,
  num_rows: int,
  row_length: int,
) -> PackedRows:
  """Rows full of unrelated sums; only the digits of results carry loss.

  Many sums in one sequence, so that a result is learnt from the operands right
  before it among others, as it stands in a worked answer.
  """
  separators = [tokenizer.encode("\n"), tokenizer.encode(", 1")[:-1]]
  rows = empty_rows(num_rows, row_length)
  for row in range(num_rows):
    tokens, mask = [], []
    while len(tokens) < row_length:
      question, result = map(tokenizer.encode, embedded.number_fact(rng))
      separator = separators[rng.integers(2)]
      tokens += [*question, *result, *separator]
      mask += [False] * len(question) + [True] * len(result)
      mask += [False] * len(separator)
    place(
      rows,
      Slot(row, 0),
      1,
      np.array(tokens[:row_length], np.int32),
      np.array(mask[:row_length]),
    )
  return rows


def fill_rows(
  pool: list[Sequence], num_rows: int, row_length: int
) -> PackedRows:
  """Packs sequences into rows and takes them out of the pool.

  A row starts with the oldest sequence and goes on with the longest that fit,
  so every sequence has its turn and little of a row stays empty.
  """
  chosen = []
  for _ in range(num_rows):
    room = row_length
    while pool:
      if room == row_length:
        index = 0
      else:
        fitting = [i for i, s in enumerate(pool) if _length(s) <= room]
        if not fitting:
          break
        index = max(fitting, key=lambda i: _length(pool[i]))
      room -= _length(pool[index])
      chosen.append(pool.pop(index))
  rows, packed = pack_in_order(chosen, num_rows, row_length)
  pool[:0] = chosen[packed:]
  return rows


def _length(sequence: Sequence) -> int:
  return len(sequence[0]) + len(sequence[1])


class _Trainer:
  """The state of one warm start."""

  def __init__(
    self,
    tokenizer: ChatTokenizer,
    seed: int,
    options: WarmStartConfig,
    progress: Callable[[str], None],
  ):
    self.config = model_config(tokenizer)
    self._tokenizer = tokenizer
    self._seed = seed
    self._options = options
    self._progress = progress
    self._rng = np.random.default_rng([seed, 1])
    params = _sharpened(init_params(self.config, seed))
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
        options.fact_rows_per_step,
        options.fact_row_length,
      )
      for _ in itertools.count()
    )
    return self._learn_until("facts", batches, options.fact_loss)

  def learn_clean(self) -> int:
    """Learns problems until the loss is low; returns the number of steps."""
    batches = self._batches(slip_rate=0.0)
    return self._learn_until("problems", batches, self._options.clean_loss)

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

  def learn_careless(self, slip_rate: float) -> None:
    """Learns from answers with slips while the rates fall to 0."""
    total = self._options.careless_steps
    batches = self._batches(slip_rate)
    for step in range(total):
      self._step(next(batches), 1.0 - step / total)

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
      compare_exactly(
        row["reward_model"]["ground_truth"],
        extract_answer(self._tokenizer.decode(response.token_ids)) or "",
      )
      is True
      for row, response in zip(rows, responses, strict=True)
    ]
    mean_tokens = np.mean([len(r.token_ids) for r in responses])
    return float(np.mean(right)), float(mean_tokens)

  def _step(self, rows: PackedRows, scale: float) -> float:
    hyperparams = self.state.opt_state.hyperparams
    hyperparams["scale"] = jnp.float32(scale)
    self.state, loss = sft_step(
      self.state, rows, config=self.config, optimizer=self._optimizer
    )
    return float(loss)

  def _batches(self, slip_rate: float) -> Iterator[PackedRows]:
    options, pool = self._options, []
    while True:
      while len(pool) < _POOL:
        pool.append(self._sequence(slip_rate))
      yield fill_rows(pool, options.rows_per_step, options.row_length)

  def _sequence(self, slip_rate: float) -> Sequence:
    problem = embedded.sample_problem(self._rng, "train")
    wording = embedded.sample_wording(self._rng, problem)
    chat = [{"role": "user", "content": embedded.question(problem, wording)}]
    answer = self._tokenizer.encode(
      embedded.worked_answer(problem, self._rng, slip_rate)
    )
    end = np.int32(self._tokenizer.stop_token_ids[0])
    return self._tokenizer.encode_chat(chat), np.append(answer, end)
