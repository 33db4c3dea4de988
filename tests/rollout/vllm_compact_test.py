import importlib.util

import numpy as np
import pytest

if importlib.util.find_spec("vllm") is None:
  pytest.skip("vllm is not installed", allow_module_level=True)

pytestmark = pytest.mark.vllm


def test_norms_equal_vllms_native_ones_also_on_strided_inputs():
  import torch
  from vllm import ir
  from vllm.platforms import current_platform

  from hybridrl.rollout import vllm_compact

  if not current_platform.is_cpu():
    pytest.skip("CPU kernels")
  current_platform.import_kernels()
  vllm_compact.register_kernels()
  vllm_compact.register_kernels()
  torch.manual_seed(0)
  qkv = torch.randn(7, 256)
  heads = qkv[:, :128].view(7, 4, 32)  # as the model splits them: strided
  assert not heads.is_contiguous()
  weight = torch.randn(32)
  plain, add = ir.ops.rms_norm.impls, ir.ops.fused_add_rms_norm.impls
  name = vllm_compact.PROVIDER
  torch.testing.assert_close(
    plain[name].impl_fn(heads, weight, 1e-6),
    plain["native"].impl_fn(heads, weight, 1e-6),
  )
  x, residual, wide = torch.randn(7, 128), torch.randn(7, 128), torch.randn(128)
  expected = add["native"].impl_fn(x, residual, wide, 1e-6)
  found = add[name].impl_fn(x.clone(), residual.clone(), wide, 1e-6)
  torch.testing.assert_close(found, expected)


def test_log_probs_come_back_bit_by_bit():
  from hybridrl.rollout import vllm_compact

  ids = np.asarray([0, 5, 151_000], np.int32)
  log_probs = np.asarray([-0.0, -1.234567e-8, -87.5], np.float32)
  pairs = np.stack([ids, log_probs.view(np.int32)], 1).reshape(-1).tolist()
  found_ids, found = vllm_compact.unpack(pairs)
  np.testing.assert_array_equal(found_ids, ids)
  np.testing.assert_array_equal(found.view(np.int32), log_probs.view(np.int32))
  assert [len(part) for part in vllm_compact.unpack([])] == [0, 0]
