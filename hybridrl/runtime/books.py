"""The driver's books: step, version, the cycle so far, totals, progress.

They only watch and count; nothing here decides or waits.
"""

from collections.abc import Callable, Sequence
from typing import Any

from hybridrl import metrics as metrics_lib
from hybridrl.data.sample import Sample
from hybridrl.reporting.reporter import Progress, Reporter
from hybridrl.rollout.client import ClientCounters
from hybridrl.rollout.flights import ReplicaUsage
from hybridrl.runtime.assembly import Machinery
from hybridrl.runtime.batch_metrics import batch_metrics, score_metrics
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.controller import Switch
from hybridrl.runtime.cycle import Cycle
from hybridrl.runtime.parts import RunResult
from hybridrl.scheduling import Phase
from hybridrl.training.learner_api import TrainResult


class Books:
  """See the module docstring.

  Args:
    config: of the run.
    clock: seconds since the run began.
    reporter: gets the spans of standalone replicas.

  Attributes:
    machinery: what is watched; set once it is there.
    step: micro-steps trained.
    cycles: weight syncs after training so far.
    version: of the last published weights; 0 before the first.
    cycle: records since the last reset of staleness.
    learner_state: for the live view.
    first_publish_s, last_update_s: of this process.
    paused_s: time of validations and checkpoints up to the last update.
    step_rewards, val_rewards: see RunResult.
  """

  machinery: Machinery

  def __init__(
    self, config: RunConfig, clock: Callable[[], float], reporter: Reporter
  ):
    self._config = config
    self._clock = clock
    self._reporter = reporter
    self.step = 0
    self.cycles = 0
    self.version = 0
    self.cycle = Cycle(0, clock(), 0, 0)
    self.learner_state = "starting"
    self.first_publish_s = self.last_update_s = clock()
    self.paused_s = 0.0
    self.step_rewards: list[float] = []
    self.val_rewards: list[tuple[int, float]] = []
    self._reward: float | None = None
    self._trained_tokens = 0
    self._activations = 0
    self._activate_s = self._reclaim_s = 0.0
    self._last_activate_s: float | None = None
    self._last_reclaim_s: float | None = None
    self._reprefilled_before_switch = 0
    self._max_lent = 0
    self._counters_at_begin = ClientCounters()
    self._usage_at_begin: dict[str, ReplicaUsage] = {}
    self._finished_at_begin = self._dropped_at_begin = 0
    self._busy_since_s: dict[str, float] = {}

  # What others tell.

  def on_change(self) -> None:
    """The number of samples in flight, or the capacity, may have changed."""
    self.cycle.observe(self._clock(), *self._load())

  def on_request(self) -> None:
    """A request found a replica or ended: standalone ones work or rest."""
    for name in self.machinery.replicas.standalone:
      busy = bool(self.machinery.client.usage(name).num_in_flight)
      if busy and name not in self._busy_since_s:
        self._busy_since_s[name] = self._clock()
      elif not busy and name in self._busy_since_s:
        self._close_span(name)

  def _close_span(self, name: str) -> None:
    since_s = self._busy_since_s.pop(name)
    self._reporter.span(name, "rollout", since_s, self._clock())

  def on_switch(self, switch: Switch) -> None:
    """An activation or a reclaim is over."""
    self.on_change()
    self._reprefilled_before_switch = switch.reprefilled_before
    reclaim = switch.kind == "reclaim"
    if reclaim:
      self.cycle.reclaim_s += switch.duration_s
      self._reclaim_s += switch.duration_s
      self._last_reclaim_s = switch.duration_s
    else:
      self.cycle.activate_s += switch.duration_s
      self._activate_s += switch.duration_s
      self._last_activate_s = switch.duration_s
      self._activations += len(switch.names)
      self.cycle.add("dynamic_resource/activations", len(switch.names))
      self.cycle.add("timing_s/rebalance", switch.rebalance_s)
    self.cycle.add(
      "timing_s/deactivate" if reclaim else "timing_s/activate",
      switch.duration_s,
    )
    self._max_lent = max(self._max_lent, len(self.machinery.controller.lent))

  def on_trained(self, samples: Sequence[Sample], result: TrainResult) -> None:
    """A micro-step is trained; `step` counts it already."""
    m, now_s = self.machinery, self._clock()
    rewards = [s.rewards.tolist() for s in samples]
    rewards += m.rollouter.take_group_rewards()
    scores = score_metrics(rewards)
    self._reward = scores["critic/score/mean"]
    self.step_rewards.append(self._reward)
    self.last_update_s = now_s
    self._trained_tokens += result.num_tokens
    self.cycle.put(
      {
        **batch_metrics(samples, self.version),
        **scores,
        **{
          metrics_lib.timing_name(key): seconds
          for key, seconds in result.compute_s.items()
        },
        "dynamic_resource/train_compute_time_s": (
          metrics_lib.train_compute_time_s(result.compute_s)
        ),
        "dynamic_resource/mq_size": float(m.ledger.backlog),
        "training/global_step": float(self.step),
        "training/num_tokens": float(result.num_tokens),
        "training/num_padded_tokens": float(result.num_padded_tokens),
        "training/compilations": float(result.compilations),
        **result.metrics,
      }
    )

  def pause(self, timer: str, seconds: float) -> None:
    """A validation or checkpoint is over; the micro-step after it counts it."""
    self.cycle.add(timer, seconds)
    if self.machinery.ledger.remaining_samples > 0:
      self.paused_s += seconds

  # The cycle.

  def begin_cycle(self) -> None:
    """Opens the records of the cycle that begins now."""
    m = self.machinery
    self.cycle = Cycle(self.version, self._clock(), *self._load())
    self._max_lent = len(m.controller.lent)
    self._counters_at_begin = ClientCounters(**vars(m.client.counters))
    self._usage_at_begin = {n: m.client.usage(n) for n in m.replicas.all}
    self._finished_at_begin = m.ledger.counts.finished
    self._dropped_at_begin = m.ledger.counts.dropped

  def close_cycle(self) -> dict[str, float]:
    """The metrics of the cycle that ends now, under their declared names."""
    m, now_s = self.machinery, self._clock()
    for name in tuple(self._busy_since_s):
      self._close_span(name)  # long spans are cut, so that a trace has them
      self._busy_since_s[name] = now_s
    now, then = m.client.counters, self._counters_at_begin
    finished = m.ledger.counts.finished
    return self.cycle.close(
      now_s,
      hybrid_devices=self._config.trainer_devices,
      standalone_devices=self._config.rollout_devices,
      cycle_values={
        "fully_async/rollouter/step_generated_samples": (
          finished - self._finished_at_begin
        ),
        "fully_async/count/total_generated_samples": finished,
        "fully_async/count/current_param_version": self.version,
        "fully_async/count/dropped_samples": (
          m.ledger.counts.dropped - self._dropped_at_begin
        ),
        "fully_async/count/moved_requests": (
          now.moved_attempts - then.moved_attempts
        ),
        "fully_async/count/aborted_requests": (
          now.aborted_attempts - then.aborted_attempts
        ),
        "fully_async/count/reprefilled_tokens": (
          now.reprefilled_tokens - then.reprefilled_tokens
        ),
        "fully_async/count/generated_tokens": _tokens(now) - _tokens(then),
        "dynamic_resource/lent_replicas": self._max_lent,
        "perf/elapsed_s": now_s,
      },
    )

  # What others ask.

  def facts(self, phase: Phase) -> dict[str, Any]:
    """All facts of a policy's context; see scheduling.make_context."""
    m = self.machinery
    standalone = self._since_begin(tuple(m.replicas.standalone))
    hybrid = self._since_begin(tuple(m.replicas.hybrid))
    return {
      **m.ledger.facts(next_cycle=phase is Phase.SYNC_END),
      **self.cycle.facts(self._clock()),
      "global_steps": self.step,
      "param_version": self.version,
      "healthy_standalone": len(m.replicas.healthy_standalone),
      "healthy_hybrid": len(m.replicas.healthy_hybrid),
      "hybrid_active": len(m.controller.lent),
      "oldest_in_flight_s": m.rollouter.oldest_in_flight_s,
      "standalone_finished": standalone[0],
      "hybrid_finished": hybrid[0],
      "standalone_busy_s": standalone[1],
      "hybrid_busy_s": hybrid[1],
      "last_switch_reprefilled_tokens": (
        m.client.counters.reprefilled_tokens - self._reprefilled_before_switch
      ),
    }

  def progress(self) -> Progress:
    """A snapshot for the live view."""
    m = self.machinery
    active, capacity = self._load()
    return Progress(
      elapsed_s=self._clock(),
      step=self.step,
      total_steps=self._config.total_training_steps,
      version=self.version,
      reward=self._reward,
      backlog_samples=m.ledger.backlog,
      in_flight_samples=active,
      capacity_samples=capacity,
      lent=m.controller.lent,
      learner_state=self.learner_state,
      last_activate_s=self._last_activate_s,
      last_reclaim_s=self._last_reclaim_s,
      waiting_for=m.waits.longest(),
    )

  def result(self, checkpoint: str, export: str) -> RunResult:
    """The totals at the end of the run."""
    m = self.machinery
    counters = m.client.counters
    wall_s = self.last_update_s - self.first_publish_s - self.paused_s
    return RunResult(
      steps=self.step,
      version=self.version,
      wall_s=wall_s,
      total_s=self._clock() - self.first_publish_s,
      trained_samples=m.ledger.counts.trained,
      dropped=m.ledger.dropped,
      trained_tokens=self._trained_tokens,
      generated_tokens=_tokens(counters),
      step_rewards=tuple(self.step_rewards),
      val_rewards=tuple(self.val_rewards),
      activations=self._activations,
      activate_s=self._activate_s,
      reclaim_s=self._reclaim_s,
      moved_requests=counters.moved_attempts,
      aborted_requests=counters.aborted_attempts,
      reprefilled_tokens=counters.reprefilled_tokens,
      checkpoint=checkpoint,
      export=export,
    )

  def _load(self) -> tuple[int, int]:
    """Samples in flight and capacity, now."""
    m = self.machinery
    routable = len(m.balancer.routable())
    return m.ledger.in_flight, m.ledger.capacity(routable)

  def _since_begin(self, names: tuple[str, ...]) -> tuple[int, float]:
    """Samples finished by, and busy seconds of, replicas in this cycle.

    A group is finished where its responses are; fractions are summed first.
    """
    client = self.machinery.client
    responses, busy_s = 0, 0.0
    for name in names:
      usage = client.usage(name)
      responses += usage.finished_responses
      busy_s += usage.busy_s
      if name in self._usage_at_begin:
        responses -= self._usage_at_begin[name].finished_responses
        busy_s -= self._usage_at_begin[name].busy_s
    return responses // self._config.rollout_n, max(0.0, busy_s)


def _tokens(counters: ClientCounters) -> int:
  """All tokens that replicas delivered."""
  return counters.kept_tokens + counters.discarded_tokens
