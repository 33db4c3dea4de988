"""VllmReplica on a real engine, with transformers as the oracle (tied Qwen3).

One engine serves the whole module; the last tests break it.
"""

import asyncio
import importlib.util
import os

import numpy as np
import psutil
import pytest

from hybridrl.rollout import replica, vllm_config, vllm_replica
from hybridrl.testing import replica_conformance

pytest.importorskip("transformers")
if importlib.util.find_spec("vllm") is None:
  pytest.skip("vllm is not installed", allow_module_level=True)

from tests.rollout import vllm_models  # noqa: E402 (needs transformers)

pytestmark = pytest.mark.vllm

KEEP = replica.WeightUpdateMode.KEEP
KV_BYTES = 256 << 20


class Harness:
  """A started replica, its oracle models by version, and the event loop."""

  def __init__(self, folder):
    self.models = [
      vllm_models.make_model("qwen3", tied=True, seed=seed) for seed in range(2)
    ]
    config = vllm_config.VllmConfig(
      model_dir=vllm_models.save_config(self.models[0], folder),
      kv_cache_bytes=KV_BYTES,
      max_num_seqs=64,
      max_model_len=1024,
    )
    self.replica = vllm_replica.VllmReplica("r0", config)
    self.version = 0
    self.runner = asyncio.Runner()

  def run(self, coroutine):
    return self.runner.run(coroutine)

  def model(self, version):
    """Versions alternate between two models."""
    return self.models[version % len(self.models)]

  def next_bundle(self):
    self.version += 1
    return vllm_models.make_bundle(self.model(self.version), self.version)

  async def load(self, mode=KEEP):
    await self.replica.load_weights(self.next_bundle(), mode)

  async def generate(self, key, prompt, num=24, temperature=0.0, stop=()):
    return await self.replica.generate(
      replica.GenerationRequest(
        request_id=key,
        token_ids=np.asarray(prompt, np.int32),
        max_new_tokens=num,
        sampling=replica.SamplingConfig(
          temperature=temperature, stop_token_ids=stop
        ),
      )
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
  harness = Harness(tmp_path_factory.mktemp("qwen3"))
  harness.run(harness.replica.start())
  with pytest.raises(replica.ReplicaUnavailable, match="no weights"):
    harness.run(harness.generate("too-early", [3, 4, 5]))
  harness.run(harness.load())
  yield harness
  processes = harness.replica._processes
  harness.run(harness.replica.stop())
  harness.run(harness.replica.stop())
  assert all(not psutil.pid_exists(pid) for pid in processes.pids)
  assert not os.path.exists(harness.replica._file.path)
  harness.runner.close()


PROMPTS = [
  np.arange(3, 3 + n, dtype=np.int32) * step % vllm_models.VOCAB_SIZE
  for n, step in ((5, 1), (17, 3), (40, 7), (61, 11))
]


def check_against_oracle(engine, prompt, result, version, atol=1e-4):
  """Greedy tokens equal; log-probs agree; labels are right."""
  model = engine.model(version)
  num = len(result.token_ids)
  vllm_models.assert_greedy(model, prompt, result.token_ids)
  whole = np.concatenate([prompt, result.token_ids])
  np.testing.assert_allclose(
    result.log_probs, vllm_models.log_probs(model, whole)[-num:], atol=atol
  )
  assert set(result.versions) == set(result.kv_versions) == {version}


def test_greedy_and_log_probs_equal_transformers(engine):
  async def run():
    return await asyncio.gather(
      *(engine.generate(f"g{i}", p) for i, p in enumerate(PROMPTS))
    )

  for prompt, result in zip(PROMPTS, engine.run(run()), strict=True):
    assert result.finish_reason == "length"
    assert result.token_ids.dtype == np.int32
    assert result.log_probs.dtype == np.float32
    check_against_oracle(engine, prompt, result, engine.version)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_l1_l2_log_probs_are_those_of_the_sampled_distribution(
  engine, temperature
):
  prompt = PROMPTS[1]
  result = engine.run(
    engine.generate("t", prompt, num=64, temperature=temperature)
  )
  whole = np.concatenate([prompt, result.token_ids])
  model = engine.model(engine.version)
  expected = vllm_models.log_probs(model, whole, temperature)[-64:]
  np.testing.assert_allclose(result.log_probs, expected, atol=1e-4)


def test_stop_token_ends_a_response_and_is_part_of_it(engine):
  whole = engine.run(engine.generate("whole", PROMPTS[0])).token_ids
  stop = int(whole[9])
  first = int(np.flatnonzero(whole == stop)[0])
  result = engine.run(engine.generate("s", PROMPTS[0], stop=(stop,)))
  assert result.finish_reason == "stop"
  np.testing.assert_array_equal(result.token_ids, whole[: first + 1])
  assert len(result.log_probs) == first + 1


def test_x2_one_token_is_one_token(engine):
  result = engine.run(engine.generate("one", PROMPTS[0], num=1))
  assert len(result.token_ids) == 1 and result.finish_reason == "length"


@pytest.mark.parametrize(
  "length, num, message",
  [
    (1000, 25, "max_model_len 1024"),
    (0, 5, "must be >= 1"),
    (5, 0, "must be >= 1"),
  ],
)
def test_a_request_that_cannot_keep_its_budget_is_refused(
  engine, length, num, message
):
  with pytest.raises(ValueError, match=message):
    engine.run(engine.generate("bad", [5] * length, num=num))


def test_o21_o24_each_load_changes_a_tied_head_and_nothing_stays_old(engine):
  async def run():
    found = []
    for i in range(3):
      await engine.load()
      result = await engine.generate(f"o24-{i}", PROMPTS[2])
      found.append((engine.version, result))
    return found

  for version, result in engine.run(run()):
    check_against_oracle(engine, PROMPTS[2], result, version)


def test_load_in_flight_keeps_requests_and_labels_their_tokens(engine):
  """O20; kept tokens are exact samples of old weights, then of new ones."""

  async def run():
    old = engine.version
    tasks = [
      asyncio.create_task(engine.generate(f"k{i}", PROMPTS[i % 4], num=400))
      for i in range(8)
    ]
    await asyncio.sleep(0.3)
    await engine.load()
    fresh = await engine.generate("fresh", PROMPTS[1], num=16)
    return old, await asyncio.gather(*tasks), fresh

  old, kept, fresh = engine.run(run())
  new = engine.version
  check_against_oracle(engine, PROMPTS[1], fresh, new)
  for i, result in enumerate(kept):
    assert result.finish_reason == "length" and len(result.token_ids) == 400
    assert list(np.unique(result.versions)) == [old, new]
    assert np.all(np.diff(result.versions) >= 0)
    assert set(result.kv_versions) == {old}
    # Before the load, the old model's continuation to the last token ...
    before = int((result.versions == old).sum())
    prompt = PROMPTS[i % 4]
    vllm_models.assert_greedy(
      engine.model(old), prompt, result.token_ids[:before]
    )
    # ... and after it not that model's any more.
    whole = np.concatenate([prompt, result.token_ids])
    stale = vllm_models.log_probs(engine.model(old), whole)[-400:]
    np.testing.assert_allclose(
      result.log_probs[:before], stale[:before], atol=1e-4
    )
    assert np.abs(result.log_probs[before:] - stale[before:]).max() > 0.1


def test_requests_beyond_max_num_seqs_enter_under_the_new_version(engine):
  """Their KV is wholly new, though generate() was called before the load."""

  async def run():
    tasks = [
      asyncio.create_task(engine.generate(f"q{i}", PROMPTS[0], num=60))
      for i in range(96)
    ]
    await asyncio.sleep(0.2)
    await engine.load()
    return await asyncio.gather(*tasks)

  results = engine.run(run())
  late = [r for r in results if set(r.kv_versions) == {engine.version}]
  assert len(late) >= 96 - 64
  check_against_oracle(engine, PROMPTS[0], late[0], engine.version)
  for result in late:
    np.testing.assert_array_equal(result.token_ids, late[0].token_ids)


def test_continuing_partial_tokens_gives_the_uninterrupted_greedy_text(engine):
  async def run():
    task = asyncio.create_task(engine.generate("c", PROMPTS[3], num=600))
    await asyncio.sleep(0.3)
    await engine.replica.abort(["c"])
    part = await task
    rest = await engine.generate(
      "c2", np.concatenate([PROMPTS[3], part.token_ids]), num=16
    )
    return part, rest

  part, rest = engine.run(run())
  assert part.finish_reason == "abort" and 0 < len(part.token_ids) < 600
  whole = np.concatenate([part.token_ids, rest.token_ids])
  model = engine.model(engine.version)
  vllm_models.assert_greedy(model, PROMPTS[3], whole)


def test_sleep_frees_kv_and_weights_and_uses_no_cpu(engine):
  """Three rounds; the memory neither stays nor creeps."""

  async def run():
    rows = []
    core = psutil.Process(engine.replica._processes.pids[0])
    for i in range(3):
      awake = core.memory_info().rss
      before = await engine.generate(f"z{i}", PROMPTS[2])
      await engine.replica.sleep()
      with pytest.raises(replica.ReplicaUnavailable):
        await engine.generate("asleep", PROMPTS[0])
      assert shared_bytes(engine) == 0
      start = sum(core.cpu_times()[:2])
      await asyncio.sleep(1.0)
      cpu_s = sum(core.cpu_times()[:2]) - start
      asleep = core.memory_info().rss
      await engine.replica.wake_weights()
      engine.version -= 1  # The same weights again.
      await engine.load()
      await engine.replica.wake_kv_cache()
      after = await engine.generate(f"y{i}", PROMPTS[2])
      np.testing.assert_array_equal(before.log_probs, after.log_probs)
      rows.append((awake, asleep, cpu_s))
    return rows

  rows = engine.run(run())
  baseline = engine.run(memory_before_load(engine))
  for awake, asleep, cpu_s in rows:
    assert awake - asleep > 0.95 * KV_BYTES
    assert asleep < 1.1 * baseline
    assert cpu_s <= 0.1


def shared_bytes(engine):
  return os.path.getsize(engine.replica._file.path)


async def memory_before_load(engine):
  (memory,) = await engine.replica._engine.collective_rpc(
    "hybridrl_memory_before_load"
  )
  return memory


def test_wake_out_of_order_is_an_error_and_changes_nothing(engine):
  async def run():
    await engine.replica.sleep()
    with pytest.raises(RuntimeError, match="wake_weights"):
      await engine.load()
    engine.version -= 1
    await engine.replica.wake_weights()
    with pytest.raises(RuntimeError, match="no weights"):
      await engine.replica.wake_kv_cache()
    await engine.load()
    await engine.replica.wake_kv_cache()
    return await engine.generate("ok", PROMPTS[1])

  result = engine.run(run())
  check_against_oracle(engine, PROMPTS[1], result, engine.version)


def test_it_obeys_the_laws_of_a_replica(engine):
  async def run():
    kit = replica_conformance.Kit(
      replica=engine.replica,
      next_bundle=engine.next_bundle,
      prompts=PROMPTS,
      long_tokens=900,
      moment_s=0.3,
      bound_s=60.0,
    )
    for law in replica_conformance.LAWS:
      await law(kit)

  engine.run(run())


def test_a_wrong_canary_fails_the_replica_and_lets_no_token_out(engine):
  """Weights whose bytes are right but which are not the learner's."""

  async def run():
    tasks = [
      asyncio.create_task(engine.generate(f"w{i}", PROMPTS[i], num=900))
      for i in range(4)
    ]
    await asyncio.sleep(0.2)
    good = engine.next_bundle()
    other = vllm_models.make_bundle(engine.model(engine.version + 1), 0)
    wrong = vllm_models.with_canary(good, other.canary)
    with pytest.raises(replica.ReplicaFailed, match="canary of version"):
      await engine.replica.load_weights(wrong, KEEP)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    with pytest.raises(replica.ReplicaFailed, match="canary of version"):
      await engine.generate("after", PROMPTS[0])
    return outcomes, await engine.replica.stats()

  outcomes, stats = engine.run(run())
  assert all(isinstance(o, replica.ReplicaFailed) for o in outcomes), outcomes
  assert stats.state == replica.ReplicaState.FAILED
  assert stats.num_in_flight == 0
