import ml_dtypes
import numpy as np
import pytest

from hybridrl.models.bundle import pack, unpack


def arrays():
  rng = np.random.default_rng(0)
  return [
    ("first", rng.normal(size=(3, 5)).astype(np.float32)),
    ("odd", rng.normal(size=(7,)).astype(ml_dtypes.bfloat16)),
    ("last", rng.normal(size=(2, 1, 3)).astype(np.float32)),
  ]


def test_o22_every_tensor_arrives_bit_equal_first_bytes_included():
  sent = arrays()
  bundle = pack(sent, 7)
  assert bundle.version == 7
  received = list(unpack(bundle))
  assert [n for n, _ in received] == [n for n, _ in sent]
  for (_, a), (_, b) in zip(sent, received, strict=True):
    assert a.dtype == b.dtype
    assert a.tobytes() == b.tobytes()


def test_a_buffer_is_reused_and_a_wrong_one_refused():
  first = pack(arrays(), 1)
  second = pack(arrays(), 2, out=first.buffer)
  assert second.buffer is first.buffer
  with pytest.raises(ValueError, match="bytes"):
    pack(arrays()[:1], 3, out=first.buffer)


@pytest.mark.parametrize("position", [0, 3, 64, -1])
def test_one_damaged_byte_is_noticed(position):
  bundle = pack(arrays(), 1)
  bundle.buffer[position] ^= 1
  with pytest.raises(ValueError, match="version 1 arrived damaged"):
    list(unpack(bundle))
