import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.rollout.replica import GenerationRequest, SamplingConfig
from hybridrl.testing import scripted_text
from hybridrl.testing.scripted_engine import ScriptedEngine
from hybridrl.testing.virtual_loop import run_virtual


def _request(i, max_new_tokens=1000):
  return GenerationRequest(
    request_id=f"{i}/0",
    token_ids=np.array([1, 2, 3], np.int32),
    max_new_tokens=max_new_tokens,
    sampling=SamplingConfig(),
  )


def _engine(step_s, length=1000, prefill=0.0):
  engine = ScriptedEngine(
    lengths=scripted_text.fixed_length(length),
    step_s=step_s,
    prefill_steps_per_token=prefill,
  )
  engine.load(0)
  return engine


def _finish_times(arrivals, step_s, prefill):
  """Oracle: processor sharing, advanced in small steps of work."""
  left, start = {}, dict(enumerate(arrivals))
  finished, now = {}, 0.0
  while len(finished) < len(arrivals):
    for i, (at_s, tokens) in list(start.items()):
      if at_s <= now + 1e-12:
        left[i] = tokens + prefill * 3
        del start[i]
    until_arrival = min((a for a, _ in start.values()), default=np.inf) - now
    if not left:
      now += until_arrival
      continue
    step = step_s(len(left))
    passed = min(until_arrival, min(left.values()) * step)
    now += passed
    for i in list(left):
      left[i] -= passed / step
      if left[i] <= 1e-9:
        finished[i] = now
        del left[i]
  return [finished[i] for i in range(len(arrivals))]


@settings(max_examples=60, deadline=None)
@given(
  st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 60)), min_size=1, max_size=12
  ),
  st.sampled_from([0.0, 0.5]),
)
def test_finish_times_are_those_of_processor_sharing(arrivals, prefill):
  def step_s(n):
    return 0.01 + 0.004 * n

  async def main():
    engine = _engine(step_s, prefill=prefill)
    loop = asyncio.get_running_loop()

    async def one(i, at_s, tokens):
      await asyncio.sleep(at_s)
      result = await engine.add(_request(i, tokens)).done
      assert len(result.token_ids) == tokens
      assert result.finish_reason == "length"
      return loop.time()

    tasks = [one(i, at_s, n) for i, (at_s, n) in enumerate(arrivals)]
    times = await asyncio.gather(*tasks)
    assert len(engine) == 0
    assert engine.generated_tokens == sum(n for _, n in arrivals)
    return times

  expected = _finish_times(arrivals, step_s, prefill)
  np.testing.assert_allclose(run_virtual(main()), expected, atol=1e-5)


def test_a_pause_costs_its_time_and_loads_label_later_tokens():
  async def main():
    engine = _engine(lambda n: 1.0, length=10)
    loop = asyncio.get_running_loop()
    attempt = engine.add(_request(0))
    await asyncio.sleep(3.5)  # three tokens are there
    engine.pause()
    await asyncio.sleep(100)
    late = engine.add(_request(1))
    engine.load(5)
    engine.resume()
    await asyncio.sleep(2)
    engine.pause()
    engine.load(6)
    engine.resume()
    first, second = await asyncio.gather(attempt.done, late.done)
    return first, second, loop.time()

  first, second, now = run_virtual(main())
  assert first.versions.tolist() == [0] * 3 + [5] * 2 + [6] * 5
  assert first.kv_versions.tolist() == [0] * 10
  assert first.finish_reason == "stop"
  assert second.versions.tolist() == [5] * 2 + [6] * 8
  assert second.kv_versions.tolist() == [5] * 10
  assert now == pytest.approx(113.5, abs=1e-6)


def test_an_abort_delivers_what_is_there():
  async def main():
    engine = _engine(lambda n: 1.0, length=10)
    attempts = [engine.add(_request(i)) for i in range(3)]
    await asyncio.sleep(4)
    engine.abort(["0/0", "unknown"])
    await asyncio.sleep(2.5)
    engine.abort()
    return [await attempt.done for attempt in attempts]

  results = run_virtual(main())
  assert [len(r.token_ids) for r in results] == [4, 6, 6]
  assert {r.finish_reason for r in results} == {"abort"}


def test_an_abort_at_the_last_token_comes_too_late():
  async def main():
    engine = _engine(lambda n: 1.0, length=4)
    attempt = engine.add(_request(0))
    asyncio.get_running_loop().call_at(4.0, engine.abort)
    return await attempt.done

  result = run_virtual(main())
  assert len(result.token_ids) == 4
  assert result.finish_reason == "stop"


def test_going_on_after_the_end_is_refused():
  async def main():
    engine = _engine(lambda n: 1.0, length=4)
    result = await engine.add(_request(0)).done
    request = GenerationRequest(
      request_id="0/1",
      token_ids=np.concatenate([[1, 2, 3], result.token_ids]),
      max_new_tokens=3,
      sampling=SamplingConfig(),
    )
    with pytest.raises(ValueError, match="after the end"):
      engine.add(request)

  run_virtual(main())
