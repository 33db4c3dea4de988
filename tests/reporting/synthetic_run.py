"""Reports of a run, made by arithmetic, for tests of writers and page."""

from hybridrl.reporting.reporter import Progress, Reporter

LANES = {"learner": (0, 1), "hybrid-0": (0,), "standalone-0": (2,)}
CYCLE_S = 8.0


class Clock:
  """Seconds that a test sets."""

  def __init__(self):
    self.now_s = 0.0

  def __call__(self) -> float:
    return self.now_s


def snapshot(**changes) -> Progress:
  """A Progress with every field filled."""
  values = {
    "elapsed_s": 65.0,
    "step": 3,
    "total_steps": 10,
    "version": 2,
    "reward": 0.4375,
    "backlog_samples": 7,
    "in_flight_samples": 12,
    "capacity_samples": 32,
    "lent": ("hybrid-0",),
    "learner_state": "lent",
    "last_activate_s": 1.25,
    "last_reclaim_s": 0.5,
    "waiting_for": "trainer: 16 samples",
  }
  return Progress(**(values | changes))


def decision(phase: str, lend: int, reason: int, **changes) -> dict:
  """A record as the policy runner logs it."""
  call = {
    "lend": lend,
    "wait_samples": 19,
    "recheck_s": float("inf"),
    "drain_s": 0.0,
    "rebalance": True,
    "reason": reason,
  }
  record = {
    "phase": phase,
    "step": 1,
    "version": 0,
    "context": {"backlog_samples": 5, "oldest_in_flight_s": 1.5},
    "state": "00000000",
    "raw": call,
    "decision": call,
  }
  return record | changes


def report_cycles(
  reporter: Reporter, clock: Clock, cycles: int, first: int = 0
) -> None:
  """Of 8 s each: switch 1, lend 2, reclaim 1, train 3, sync 1."""
  for i in range(cycles):
    t, version = CYCLE_S * i, first + i
    clock.now_s = t
    reporter.decision(decision("SYNC_END", 1, 1))
    reporter.span("hybrid-0", "activate", t, t + 1)
    reporter.progress(snapshot(elapsed_s=t + 2, backlog_samples=i % 3))
    clock.now_s = t + 3
    reporter.decision(decision("EVENT", 0, 5))
    reporter.span("hybrid-0", "rollout", t + 1, t + 3)
    reporter.span("hybrid-0", "reclaim", t + 3, t + 4)
    reporter.span("learner", "train", t + 4, t + 7, step=version + 1)
    reporter.span("standalone-0", "rollout", t, t + 7)
    reporter.span("learner", "publish", t + 7, t + 8)
    reporter.span("standalone-0", "load_weights", t + 7, t + 8)
    reporter.span("driver", "sync", t + 7, t + 8)
    clock.now_s = t + 8
    reporter.decision(decision("CYCLE_END", 0, 0))
    reporter.metrics(
      version + 1,
      version,
      {
        "critic/score/mean": (version + 1) / 16,
        "dynamic_resource/resource_utilization": 0.75,
        "dynamic_resource/train_resource_utilization": 0.5,
        "dynamic_resource/rollout_resource_utilization": 0.875,
        "dynamic_resource/mq_size": i % 3,
        "response_length/mean": 80.0,
      },
    )
