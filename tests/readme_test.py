"""What the README shows works."""

import pathlib
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as RunPhase
from hypothesis import strategies as st

from hybridrl import scheduling
from hybridrl.testing import strategies
from hybridrl.testing.policy_conformance import LAWS

_README = pathlib.Path("README.md").read_text()


def _policy_block() -> str:
  blocks = re.findall(r"```python\n(.*?)```", _README, re.DOTALL)
  (block,) = [b for b in blocks if "register_policy" in b]
  return block


@pytest.fixture(scope="module", name="factory")
def _factory():
  namespace: dict = {}
  exec(compile(_policy_block(), "README.md", "exec"), namespace)  # noqa: S102
  assert "one_batch_ahead" in scheduling.POLICIES
  return namespace["one_batch_ahead"]


@pytest.mark.parametrize("law", sorted(LAWS))
def test_the_readmes_policy_obeys_the_laws(factory, law):
  @settings(
    max_examples=1,
    deadline=None,
    phases=(RunPhase.explicit, RunPhase.generate),
    suppress_health_check=list(HealthCheck),
  )
  @given(st.data())
  def check(data):
    fleet = data.draw(strategies.fleets(min_hybrid=1))
    contexts = [
      data.draw(strategies.contexts(fleet=fleet, phase=phase))
      for _ in range(3)
      for phase in scheduling.Phase
    ]
    LAWS[law](factory, fleet, contexts)

  check()


def test_the_readmes_policy_is_short():
  body = _policy_block().split("def one_batch_ahead", 1)[1]
  assert len(body.splitlines()) <= 28


def test_every_path_in_the_readme_exists():
  for path in re.findall(
    r"\b((?:launch|experiments|third_party)/[\w./-]+)", _README
  ):
    assert pathlib.Path(path.rstrip(".")).exists(), path
