import asyncio
import collections
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
  Bundle,
  RuleBasedStateMachine,
  invariant,
  rule,
)

from hybridrl.rollout import balancer as balancer_lib
from hybridrl.rollout.balancer import LoadBalancer, NoReplica
from hybridrl.testing.virtual_loop import run_virtual


def _balancer(*names, **options):
  balancer = LoadBalancer(**options)
  for name in names:
    balancer.add(name)
  return balancer


def test_b1_readding_a_server_keeps_its_load():
  balancer = _balancer("s0")
  leases = [balancer.acquire(str(i)) for i in range(5)]
  balancer.add("s0")
  assert balancer.loads() == {"s0": 5}
  for lease in leases:
    balancer.release(lease)
  assert balancer.loads() == {"s0": 0}


@pytest.mark.parametrize("num", [1, 2, 3, 7])
def test_b2_idle_ties_spread(num):
  balancer = _balancer(*(f"s{i}" for i in range(num)))
  totals = collections.Counter(dict.fromkeys(balancer.routable(), 0))
  for i in range(2 * num + 1):
    lease = balancer.acquire(str(i))
    totals[lease.replica] += 1
    balancer.release(lease)
    assert max(totals.values()) - min(totals.values()) <= 1


@given(
  st.lists(st.integers(0, 5), max_size=40),
  st.permutations(["s0", "zeta", "a", "\N{SNOWMAN}", "10.0.0.1:80", "B"]),
)
def test_b4_placement_does_not_depend_on_names(gaps, names):
  """The same calls choose the same positions under any names."""

  def positions(balancer, names):
    held, chosen = [], []
    for i, gap in enumerate(gaps):
      for _ in range(min(gap, len(held))):
        balancer.release(held.pop(0))
      held.append(balancer.acquire(str(i)))
      chosen.append(names.index(held[-1].replica))
    return chosen

  plain = [f"n{i}" for i in range(len(names))]
  assert positions(_balancer(*names), list(names)) == positions(
    _balancer(*plain), plain
  )


def test_b4_placement_does_not_depend_on_the_hash_seed():
  script = (
    "from hybridrl.rollout.balancer import LoadBalancer\n"
    "b = LoadBalancer()\n"
    "for name in ('s2', 's0', 's1'): b.add(name)\n"
    "print([b.acquire(str(i)).replica for i in range(7)])\n"
  )
  outputs = {
    subprocess.run(
      [sys.executable, "-c", script],
      env=os.environ | {"PYTHONHASHSEED": seed},
      capture_output=True,
      check=True,
    ).stdout
    for seed in ("0", "1", "77")
  }
  assert len(outputs) == 1


def test_a_late_release_does_not_touch_a_new_life():
  balancer = _balancer("s0")
  old = balancer.acquire("a")
  assert balancer.remove("s0")
  balancer.add("s0")
  new = balancer.acquire("b")
  balancer.release(old)
  assert balancer.loads() == {"s0": 1}
  balancer.release(new)
  balancer.release(new)
  assert balancer.loads() == {"s0": 0}
  assert not balancer.remove("s0", life=old.life)
  assert balancer.routable() == ("s0",)
  assert balancer.remove("s0", life=new.life)


def test_nothing_routable_is_an_error():
  balancer = _balancer("s0")
  balancer.remove("s0")
  assert not balancer.remove("s0")
  with pytest.raises(NoReplica):
    balancer.acquire("a")


def test_a_key_sticks_within_its_slack():
  balancer = _balancer("s0", "s1", sticky_slack=2)
  home = balancer.acquire("a").replica
  others = [balancer.acquire("a").replica for _ in range(2)]
  assert others == [home] * 2  # loads 3 and 0
  assert balancer.acquire("a").replica != home  # and now the key lives there
  balancer.clear_sticky("a")
  assert balancer.acquire("a").replica != home


def test_a_key_does_not_stick_to_a_former_life():
  balancer = _balancer("s0", "s1")
  balancer.release(balancer.acquire("a"))
  balancer.remove("s0")
  balancer.add("s0")  # registered anew: its cache is cold
  assert balancer.acquire("a").replica == "s1"


def test_clear_sticky_forgets_every_key():
  balancer = _balancer("s0", "s1")
  first = balancer.acquire("a").replica
  balancer.clear_sticky()
  assert balancer.acquire("a").replica != first


def test_avoid_is_a_wish():
  balancer = _balancer("s0", "s1")
  assert balancer.acquire("a", avoid="s0").replica == "s1"
  assert balancer.acquire("a", avoid="s1").replica == "s0"
  balancer.remove("s1")
  assert balancer.acquire("a", avoid="s0").replica == "s0"


def test_sticky_keys_are_bounded(monkeypatch):
  monkeypatch.setattr(balancer_lib, "MAX_STICKY_KEYS", 10)
  balancer = _balancer("s0")
  for i in range(100):
    balancer.release(balancer.acquire(str(i)))
  assert list(balancer._sticky) == [str(i) for i in range(90, 100)]


def test_wait_routable():
  async def main():
    balancer = LoadBalancer()
    waiter = asyncio.create_task(balancer.wait_routable())
    await asyncio.sleep(1)
    assert not waiter.done()
    balancer.add("s0")
    await waiter
    await balancer.wait_routable()
    balancer.remove("s0")
    with pytest.raises(TimeoutError):
      async with asyncio.timeout(5):
        await balancer.wait_routable()

  run_virtual(main())


class BalancerMachine(RuleBasedStateMachine):
  """Loads are exactly the open leases of each current life."""

  leases = Bundle("leases")

  def __init__(self):
    super().__init__()
    self.balancer = LoadBalancer(sticky_slack=1)
    self.open = set()

  @rule(name=st.sampled_from("abc"))
  def add(self, name):
    self.balancer.add(name)

  @rule(name=st.sampled_from("abc"))
  def remove(self, name):
    self.balancer.remove(name)
    self.open = {lease for lease in self.open if lease.replica != name}

  @rule(target=leases, key=st.sampled_from("wxyz"))
  def acquire(self, key):
    if not self.balancer.routable():
      return None
    loads = self.balancer.loads()
    lease = self.balancer.acquire(key)
    assert loads[lease.replica] <= min(loads.values()) + 1
    self.open.add(lease)
    return lease

  @rule(lease=leases)
  def release(self, lease):
    if lease is not None:
      self.balancer.release(lease)
      self.open.discard(lease)

  @invariant()
  def loads_are_open_leases(self):
    held = collections.Counter(lease.replica for lease in self.open)
    assert self.balancer.loads() == {
      name: held[name] for name in self.balancer.routable()
    }


BalancerMachine.TestCase.settings = settings(
  max_examples=60, stateful_step_count=40, deadline=None
)
TestBalancer = BalancerMachine.TestCase
