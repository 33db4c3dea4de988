import pytest

from hybridrl import scheduling
from hybridrl.scheduling import (
  POLICIES,
  DynamicSchedulePolicyBase,
  SchedulingPolicy,
  default,
  make_policy,
  never,
  register_policy,
  registry,
)


@pytest.fixture
def clean_registry(monkeypatch):
  """Registrations of a test end with it."""
  names = dict(registry._factories)
  yield
  registry._factories.clear()
  registry._factories.update(names)


@pytest.mark.parametrize(
  "name", ["default", "static_fully_async", "fixed_ratio", "always", "never"]
)
def test_s11_every_documented_name_resolves(name):
  policy = make_policy(name, deactivate_ratio=0.5)
  assert isinstance(policy, SchedulingPolicy)
  assert policy.jittable
  assert policy.request_rebalance is None


def test_s11_an_unknown_name_lists_the_known_ones():
  with pytest.raises(ValueError) as error:
    make_policy("defualt")
  message = str(error.value)
  assert "'defualt'" in message
  assert "--dynamic_schedule_policy" in message
  for name in POLICIES:
    assert name in message


@pytest.mark.parametrize("name", ["default", "mine"])
def test_s11_a_duplicate_is_an_error(clean_registry, name):
  if name == "mine":
    register_policy(name)(never)
  with pytest.raises(ValueError, match=f"'{name}' is registered already"):
    register_policy(name)(never)


def test_a_factory_can_be_added_and_stays_what_it_is(clean_registry):
  @register_policy("mine")
  def mine(deactivate_ratio=0.9):
    return default(deactivate_ratio)

  assert POLICIES["mine"] is mine
  policy = make_policy("mine", deactivate_ratio=0.25)
  fleet = scheduling.Fleet(
    num_standalone=1,
    num_hybrid=1,
    required_samples=4,
    trigger_parameter_sync_step=1,
    staleness_threshold=0.0,
    max_required_samples=4,
  )
  assert float(policy.init(fleet).ratio) == 0.25


def test_the_table_is_read_only():
  with pytest.raises(TypeError):
    POLICIES["mine"] = never  # pyright: ignore[reportIndexIssue]


@pytest.mark.parametrize("ratio", [0.0, 1.2, -0.5])
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_s2_make_policy_refuses_a_ratio_out_of_range(name, ratio):
  with pytest.raises(ValueError) as error:
    make_policy(name, deactivate_ratio=ratio)
  message = str(error.value)
  assert f"--dynamic_schedule_deactivate_ratio) is {ratio}" in message
  assert "(0, 1]" in message


@pytest.mark.parametrize("target", [3, int])
def test_what_is_no_policy_is_refused(clean_registry, target):
  with pytest.raises(TypeError):
    register_policy("mine")(target)
  assert "mine" not in POLICIES


def test_an_empty_name_is_refused():
  with pytest.raises(ValueError, match="empty"):
    register_policy("")


def test_public_names_exist_in_order():
  assert sorted(scheduling.__all__) == sorted(set(scheduling.__all__))
  for name in scheduling.__all__:
    assert hasattr(scheduling, name), name
  assert issubclass(DynamicSchedulePolicyBase, object)
