"""Definitions of utilisation and their aggregation over a cycle. Pure."""

from hybridrl.metrics.bounds import (
  efficiency,
  perfect_cycle_time,
  throughput_per_device,
)
from hybridrl.metrics.catalogue import METRICS, timing_name
from hybridrl.metrics.cycle import (
  MicroStep,
  aggregate,
  by_version,
  cycle_metrics,
)
from hybridrl.metrics.declaration import (
  Metric,
  MetricError,
  Reduction,
  declare,
)
from hybridrl.metrics.device_time import (
  PRIORITY,
  SPAN_STATES,
  DeviceState,
  Interval,
  Span,
  device_lanes,
  device_seconds,
  device_timelines,
  idle_ratio,
  idle_time_s,
  lane_timeline,
)
from hybridrl.metrics.utilization import (
  TRAIN_COMPUTE_KEYS,
  RolloutUsage,
  hybrid_rollout_fraction,
  observe,
  resource_utilization,
  rollout_resource_utilization,
  start_usage,
  train_compute_time_s,
  train_resource_utilization,
  usage_utilization,
)

__all__ = [
  "METRICS",
  "PRIORITY",
  "SPAN_STATES",
  "TRAIN_COMPUTE_KEYS",
  "DeviceState",
  "Interval",
  "Metric",
  "MetricError",
  "MicroStep",
  "Reduction",
  "RolloutUsage",
  "Span",
  "aggregate",
  "by_version",
  "cycle_metrics",
  "declare",
  "device_lanes",
  "device_seconds",
  "device_timelines",
  "efficiency",
  "hybrid_rollout_fraction",
  "idle_ratio",
  "idle_time_s",
  "lane_timeline",
  "observe",
  "perfect_cycle_time",
  "resource_utilization",
  "rollout_resource_utilization",
  "start_usage",
  "throughput_per_device",
  "timing_name",
  "train_compute_time_s",
  "train_resource_utilization",
  "usage_utilization",
]
