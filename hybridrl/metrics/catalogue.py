"""Every metric that a run emits: names exactly as the seed spells them."""

import types
from collections.abc import Mapping

from hybridrl.metrics.declaration import (
  Metric,
  MetricError,
  Reduction,
  declare,
)
from hybridrl.metrics.utilization import TRAIN_COMPUTE_KEYS

_SUM, _MEAN, _MIN, _MAX, _LAST, _DERIVED = (
  Reduction.SUM,
  Reduction.MEAN,
  Reduction.MIN,
  Reduction.MAX,
  Reduction.LAST,
  Reduction.DERIVED,
)

# Weights of the means: micro-steps differ in size only at the end of the data.
NUM_SAMPLES = "training/num_samples"
NUM_TOKENS = "training/num_tokens"

_DYNAMIC_RESOURCE = (
  Metric(
    "dynamic_resource/train_resource_utilization",
    "1",
    _DERIVED,
    "Training compute over wall time of the trainer's turns (seed, 4.1).",
  ),
  Metric(
    "dynamic_resource/train_compute_time_s",
    "s",
    _SUM,
    "Training compute: numerator of train_resource_utilization.",
  ),
  Metric(
    "dynamic_resource/train_allocated_time_s",
    "s",
    _SUM,
    "Wall time of micro-steps: denominator of train_resource_utilization.",
  ),
  Metric(
    "dynamic_resource/rollout_resource_utilization",
    "1",
    _DERIVED,
    "Concurrency in use over capacity, by capacity-time (seed, 4.2).",
  ),
  Metric(
    "dynamic_resource/resource_utilization",
    "1",
    _DERIVED,
    "Utilisation of all devices, hybrid time split by waits (seed, 4.3).",
  ),
  Metric(
    "dynamic_resource/mq_size",
    "samples",
    _LAST,
    "Finished samples in the queue after the cycle's last micro-step.",
  ),
  Metric(
    "dynamic_resource/activations",
    "1",
    _SUM,
    "Hybrid replicas woken for generation.",
  ),
  Metric(
    "dynamic_resource/lent_replicas",
    "1",
    _MAX,
    "Most hybrid replicas that served at one time.",
  ),
  Metric(
    "dynamic_resource/deactivate_wait_samples",
    "samples",
    _MAX,
    "Backlog for which the policy kept lending.",
  ),
)

_COUNTS = (
  Metric(
    "fully_async/rollouter/step_generated_samples",
    "samples",
    _LAST,
    "Samples fully generated since the last weight sync.",
  ),
  Metric(
    "fully_async/rollouter/idle_ratio",
    "1",
    _DERIVED,
    "Share of the cycle in which no sample was being generated.",
  ),
  Metric(
    "fully_async/trainer/idle_ratio",
    "1",
    _DERIVED,
    "Share of the cycle in which the trainer waited for samples.",
  ),
  Metric(
    "fully_async/count/current_param_version",
    "1",
    _LAST,
    "Version of the weights that the cycle published.",
  ),
  Metric(
    "fully_async/count/total_generated_samples",
    "samples",
    _LAST,
    "Samples fully generated since the run began.",
  ),
  Metric(
    "fully_async/count/dropped_samples",
    "samples",
    _SUM,
    "Samples dropped, whatever the reason.",
  ),
  Metric(
    "fully_async/count/stale_samples_processed",
    "samples",
    _SUM,
    "Trained samples with a token of an older version than the newest.",
  ),
  Metric(
    "fully_async/count/stale_trajectory_processed",
    "responses",
    _SUM,
    "Trained responses with a token of an older version than the newest.",
  ),
  Metric(
    "fully_async/partial/total_partial_num",
    "responses",
    _SUM,
    "Trained responses whose tokens come from more than one version.",
  ),
  Metric(
    "fully_async/partial/max_partial_span",
    "versions",
    _MAX,
    "Most versions between the first and last token of a response.",
  ),
  Metric(
    "fully_async/count/moved_requests",
    "1",
    _SUM,
    "Requests that went on at another replica.",
  ),
  Metric(
    "fully_async/count/aborted_requests",
    "1",
    _SUM,
    "Attempts that ended before their response did.",
  ),
  Metric(
    "fully_async/count/reprefilled_tokens",
    "tokens",
    _SUM,
    "Tokens prefilled again because a request was moved or interrupted.",
  ),
  Metric(
    "fully_async/count/generated_tokens",
    "tokens",
    _SUM,
    "Tokens sampled by all replicas.",
  ),
)

_TIMES = (
  Metric(
    "timing_s/step",
    "s",
    _SUM,
    "Wall time of micro-steps, collection and sync included.",
  ),
  Metric("timing_s/gen", "s", _SUM, "Time spent collecting samples."),
  Metric(
    "timing_s/wait_for_enough_samples",
    "s",
    _SUM,
    "Time for which training waited while hybrid replicas served.",
  ),
  Metric("timing_s/param_sync", "s", _SUM, "Weight sync to all replicas."),
  Metric("timing_s/publish", "s", _SUM, "Copy of the weights out of devices."),
  Metric("timing_s/activate", "s", _SUM, "Activations of hybrid replicas."),
  Metric("timing_s/deactivate", "s", _SUM, "Reclaims of hybrid replicas."),
  Metric("timing_s/rebalance", "s", _SUM, "Moves of requests."),
  Metric("timing_s/testing", "s", _SUM, "Validation."),
  Metric("timing_s/save_checkpoint", "s", _SUM, "Checkpoints."),
  *(
    Metric(f"timing_s/{key}", "s", _SUM, f"Training compute: {key}.")
    for key in TRAIN_COMPUTE_KEYS
  ),
)


def _mean(name: str, unit: str, text: str, weight: str) -> Metric:
  return Metric(name, unit, _MEAN, text, weight)


_LEARNING = (
  _mean("actor/pg_loss", "1", "Policy loss, token mean.", NUM_TOKENS),
  _mean("actor/entropy", "nat", "Entropy of the policy.", NUM_TOKENS),
  _mean("actor/ppo_kl", "nat", "Mean old minus new log-prob.", NUM_TOKENS),
  _mean("actor/pg_clipfrac", "1", "Tokens whose ratio is clipped.", NUM_TOKENS),
  _mean(
    "actor/pg_clipfrac_lower",
    "1",
    "Tokens that the dual clip bounds.",
    NUM_TOKENS,
  ),
  Metric("actor/grad_norm", "1", _MEAN, "Global norm before clipping."),
  Metric("actor/lr", "1", _LAST, "Learning rate."),
  _mean(
    "training/rollout_log_prob_diff_mean",
    "nat",
    "Mean |log-prob of rollout - of trainer| over tokens.",
    NUM_TOKENS,
  ),
  Metric(
    "training/rollout_log_prob_diff_max",
    "nat",
    _MAX,
    "Largest |log-prob of rollout - of trainer| of a token.",
  ),
  Metric("training/global_step", "1", _LAST, "Micro-steps so far."),
  Metric("training/epoch", "1", _LAST, "Epoch of the last offered prompt."),
  Metric("training/num_samples", "samples", _SUM, "Samples trained."),
  Metric("training/num_tokens", "tokens", _SUM, "Tokens that carried loss."),
  Metric(
    "training/num_padded_tokens",
    "tokens",
    _SUM,
    "Tokens that the learner computed, padding included.",
  ),
  Metric(
    "training/compilations",
    "1",
    _LAST,
    "Compilations of the training step since the learner started.",
  ),
)

_DATA = (
  _mean(
    "critic/score/mean",
    "1",
    "Mean raw reward of the samples offered to training, before any filter.",
    "critic/score/num_samples",
  ),
  Metric(
    "critic/score/num_samples",
    "samples",
    _SUM,
    "Samples graded, dropped ones included: weight of critic/score/mean.",
  ),
  Metric("critic/score/max", "1", _MAX, "Largest raw reward."),
  Metric("critic/score/min", "1", _MIN, "Smallest raw reward."),
  _mean(
    "critic/rewards/mean",
    "1",
    "Mean shaped reward of the trained samples.",
    NUM_SAMPLES,
  ),
  _mean("response_length/mean", "tokens", "Mean length trained.", NUM_SAMPLES),
  Metric("response_length/max", "tokens", _MAX, "Longest response trained."),
  Metric("response_length/min", "tokens", _MIN, "Shortest response trained."),
  _mean(
    "response_length/clip_ratio",
    "1",
    "Share of trained responses that were truncated.",
    NUM_SAMPLES,
  ),
  _mean("prompt_length/mean", "tokens", "Mean prompt length.", NUM_SAMPLES),
  Metric("val/reward_mean", "1", _LAST, "Mean raw reward on held-out prompts."),
  Metric("perf/total_num_tokens", "tokens", _SUM, "Trained, prompts included."),
  Metric(
    "perf/throughput",
    "tokens/s/device",
    _DERIVED,
    "Tokens trained per second and device, rollout devices included.",
  ),
  Metric(
    "perf/elapsed_s", "s", _LAST, "Seconds since the run began, at cycle end."
  ),
  Metric("perf/driver_resident_bytes", "B", _MAX, "Memory of the driver."),
)

METRICS: Mapping[str, Metric] = types.MappingProxyType(
  declare((*_DYNAMIC_RESOURCE, *_COUNTS, *_TIMES, *_LEARNING, *_DATA))
)


def timing_name(key: str) -> str:
  """Full name of the timer `key`: 'param_sync' -> 'timing_s/param_sync'.

  Raises:
    MetricError: the key has a prefix already, or no such timer is declared.
  """
  name = f"timing_s/{key}"
  if key.startswith("timing_s/") or name not in METRICS:
    raise MetricError(f"no timer {key!r} is declared (would be {name!r})")
  return name
