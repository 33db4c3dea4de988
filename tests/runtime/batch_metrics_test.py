"""Tests of batch_metrics.py against values by hand."""

import numpy as np
import pytest

from hybridrl.data.sample import Response, Sample
from hybridrl.metrics import METRICS
from hybridrl.runtime.batch_metrics import batch_metrics, score_metrics
from hybridrl.testing.scripted_run import make_prompts


def make_response(versions, finish_reason="stop"):
  n = len(versions)
  return Response(
    token_ids=np.arange(n, dtype=np.int32),
    log_probs=np.zeros(n, np.float32),
    versions=np.asarray(versions, np.int32),
    kv_versions=np.asarray(versions, np.int32),
    loss_mask=np.ones(n, bool),
    finish_reason=finish_reason,
    reward=0.0,
  )


def make_sample(sample_id, *responses):
  prompt = make_prompts(1).prompts[0]  # three tokens
  return Sample(sample_id=sample_id, prompt=prompt, responses=responses)


def test_batch():
  out = batch_metrics(
    [
      make_sample(0, make_response([3, 3]), make_response([3] * 4)),
      make_sample(
        1, make_response([1, 1, 3], "length"), make_response([3] * 7)
      ),
    ],
    version=3,
  )
  assert out == {
    "training/num_samples": 2.0,
    "response_length/mean": 4.0,
    "response_length/max": 7.0,
    "response_length/min": 2.0,
    "response_length/clip_ratio": 0.25,
    "prompt_length/mean": 3.0,
    "perf/total_num_tokens": 16.0 + 4 * 3.0,
    "fully_async/count/stale_samples_processed": 1.0,
    "fully_async/count/stale_trajectory_processed": 1.0,
    "fully_async/partial/total_partial_num": 1.0,
    "fully_async/partial/max_partial_span": 2.0,
  }


def test_an_empty_response_is_no_error():
  out = batch_metrics([make_sample(0, make_response([]))], version=2)
  assert out["response_length/mean"] == 0.0
  assert out["fully_async/partial/max_partial_span"] == 0.0


def test_scores_weigh_groups_alike():
  out = score_metrics([[1.0, 1.0], [0.0, 0.5], [0.0, 0.0]])
  assert out["critic/score/mean"] == pytest.approx((1 + 0.25 + 0) / 3)
  assert out["critic/score/num_samples"] == 3.0
  assert out["critic/score/max"] == 1.0
  assert out["critic/score/min"] == 0.0
  assert score_metrics([]) == {}


def test_every_name_is_declared():
  names = [
    *batch_metrics([make_sample(0, make_response([1]))], 1),
    *score_metrics([[1.0]]),
  ]
  assert [n for n in names if n not in METRICS] == []
