"""Puts the driver's own parts together; nothing here waits or starts."""

import asyncio
import dataclasses
from collections.abc import Callable

import numpy as np

from hybridrl import scheduling
from hybridrl.accounting import max_required_samples
from hybridrl.rollout.balancer import LoadBalancer
from hybridrl.rollout.client import GenerationClient
from hybridrl.rollout.replica import (
  GenerationResult,
  SamplingConfig,
  WeightUpdateMode,
)
from hybridrl.rollout.workflow import Generate, single_turn
from hybridrl.runtime.config import RunConfig
from hybridrl.runtime.controller import DynamicResourceController, Switch
from hybridrl.runtime.ledger import Ledger
from hybridrl.runtime.message_queue import MessageQueue
from hybridrl.runtime.parts import Limits, Parts
from hybridrl.runtime.policy_runner import PolicyRunner
from hybridrl.runtime.replica_set import ReplicaSet
from hybridrl.runtime.rollouter import RolloutConfig, Rollouter
from hybridrl.runtime.waiting import Waits
from hybridrl.runtime.weight_sync import WeightSync


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machinery:
  """What shares the driver's loop; see the class of each."""

  waits: Waits
  ledger: Ledger
  queue: MessageQueue
  balancer: LoadBalancer
  client: GenerationClient
  generate: Generate
  sampling: SamplingConfig
  replicas: ReplicaSet
  weights: WeightSync
  runner: PolicyRunner
  controller: DynamicResourceController
  rollouter: Rollouter


def assemble(
  config: RunConfig,
  parts: Parts,
  *,
  clock: Callable[[], float],
  on_switch: Callable[[Switch], None],
  on_change: Callable[[], None],
  on_request: Callable[[], None],
) -> Machinery:
  """Builds the machinery of one run.

  Args:
    config: of the run.
    parts: its heavy parts.
    clock: seconds since the run began.
    on_switch: told of every activation and reclaim.
    on_change: told when the number of samples in flight changed.
    on_request: told when a request found a replica or ended.
  """
  limits, reporter = parts.limits, parts.reporter
  waits = Waits(clock)
  balancer = LoadBalancer()
  ledger = _ledger(config)
  queue = MessageQueue(ledger, ledger.max_required_samples, waits.notify)
  replicas = ReplicaSet(
    parts.standalone,
    parts.hybrid,
    balancer=balancer,
    waits=waits,
    stop_s=limits.stop_s,
    on_event=reporter.event,
  )
  mode = WeightUpdateMode(config.weight_update_mode)
  client = _client(config, limits, replicas, balancer, clock)
  weights = WeightSync(
    replicas,
    balancer,
    mode=mode,
    waits=waits,
    load_s=limits.switch_s,
    clock=clock,
    reporter=reporter,
  )
  runner = PolicyRunner(
    parts.policy, scheduling_fleet(config, parts), reporter.decision
  )
  controller = DynamicResourceController(
    replicas=replicas,
    balancer=balancer,
    client=client,
    weights=weights,
    enable_rebalance=config.dynamic_schedule_enable_rebalance,
    custom_rebalance=runner.request_rebalance,
    waits=waits,
    limits=limits,
    clock=clock,
    reporter=reporter,
    on_switch=on_switch,
  )

  def notify() -> None:
    on_request()
    waits.notify()

  generate = _notifying(client.generate, notify)
  sampling = SamplingConfig(
    temperature=config.temperature, stop_token_ids=parts.stop_token_ids
  )
  rollouter = Rollouter(
    _rollout_config(config, limits, sampling),
    ledger=ledger,
    queue=queue,
    cursor=parts.cursor,
    workflow=single_turn,
    generate=generate,
    grader=parts.grader,
    decode=parts.decode,
    active_replicas=lambda: len(balancer.routable()),
    waits=waits,
    clock=clock,
    on_event=reporter.event,
    on_change=on_change,
  )
  return Machinery(
    waits=waits,
    ledger=ledger,
    queue=queue,
    balancer=balancer,
    client=client,
    generate=generate,
    sampling=sampling,
    replicas=replicas,
    weights=weights,
    runner=runner,
    controller=controller,
    rollouter=rollouter,
  )


def _ledger(config: RunConfig) -> Ledger:
  return Ledger(
    required_samples=config.required_samples,
    trigger_parameter_sync_step=config.trigger_parameter_sync_step,
    staleness_threshold=config.staleness_threshold,
    concurrent_samples_per_replica=config.concurrent_samples_per_replica,
    target_samples=config.total_training_steps * config.required_samples,
  )


def _client(
  config: RunConfig,
  limits: Limits,
  replicas: ReplicaSet,
  balancer: LoadBalancer,
  clock: Callable[[], float],
) -> GenerationClient:
  return GenerationClient(
    replicas.all,
    balancer,
    partial_rollout=config.partial_rollout,
    weight_update_mode=WeightUpdateMode(config.weight_update_mode),
    clock=clock,
    # Where all replicas are hybrid, requests wait while the learner trains.
    wait_timeout_s=limits.train_s + limits.publish_s + limits.save_s,
    on_replica_failed=replicas.fail,
  )


def _rollout_config(
  config: RunConfig, limits: Limits, sampling: SamplingConfig
) -> RolloutConfig:
  return RolloutConfig(
    rollout_n=config.rollout_n,
    max_response_length=config.max_response_length,
    sampling=sampling,
    filter_groups=config.filter_groups,
    failures_in_a_row=limits.failures_in_a_row,
    alike_in_a_row=limits.alike_in_a_row,
  )


def scheduling_fleet(config: RunConfig, parts: Parts) -> scheduling.Fleet:
  """The fleet as policies see it."""
  return scheduling.Fleet(
    num_standalone=len(parts.standalone),
    num_hybrid=len(parts.hybrid),
    required_samples=config.required_samples,
    trigger_parameter_sync_step=config.trigger_parameter_sync_step,
    staleness_threshold=float(config.staleness_threshold),
    max_required_samples=max_required_samples(
      config.step_required_samples, config.staleness_threshold
    ),
  )


def _notifying(generate: Generate, notify: Callable[[], None]) -> Generate:
  """Notifies when a request has found a replica and when it is done."""

  async def generate_and_notify(
    prompt_ids: np.ndarray,
    max_new_tokens: int,
    sampling: SamplingConfig,
    key: str,
  ) -> GenerationResult:
    asyncio.get_running_loop().call_soon(notify)
    try:
      return await generate(prompt_ids, max_new_tokens, sampling, key)
    finally:
      notify()

  return generate_and_notify
