import jax.numpy as jnp
import numpy as np

from hybridrl.reporting import decision_log
from hybridrl.reporting.run_dir import make_run_dir
from tests.reporting.synthetic_run import Clock, decision


def test_calls_come_back_exactly_and_in_order(tmp_path):
  run, clock = make_run_dir(tmp_path), Clock()
  records = [decision("SYNC_END", 1, 1), decision("EVENT", 0, 5)]
  for attempt, record in enumerate(records, start=1):
    log = decision_log.DecisionLog(run, attempt, clock)
    clock.now_s = attempt / 3
    log.decision(record)
    log.close()
  calls = list(decision_log.read_decisions(run.decisions))
  assert [call.record for call in calls] == records
  assert [call.attempt for call in calls] == [1, 2]
  assert [call.time_s for call in calls] == [1 / 3, 2 / 3]


def test_float32_facts_of_a_context_keep_their_bits(tmp_path):
  run = make_run_dir(tmp_path)
  facts = np.random.default_rng(0).lognormal(0, 9, 100).astype(np.float32)
  log = decision_log.DecisionLog(run, 1, Clock())
  log.decision({"context": {"wait": jnp.asarray(facts), "inf": jnp.inf}})
  log.close()
  (call,) = decision_log.read_decisions(run.decisions)
  back = np.asarray(call.record["context"]["wait"], np.float32)
  np.testing.assert_array_equal(back, facts)
  assert call.record["context"]["inf"] == float("inf")
