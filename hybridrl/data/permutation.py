"""Random-access shuffles: the i-th element without the first i-1.

A keyed Feistel network is a bijection on 2^(2b) numbers; walking along its
cycles until the value is below `length` restricts it to range(length) (Black &
Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Plain integers, so the
order is the same on every platform and version, which a saved position needs.
grain's index shuffle does the same, but its package cannot be imported from the
pinned set (it needs portpicker).
"""

_MASK = (1 << 64) - 1
# Four rounds make a pseudo-random permutation (Luby & Rackoff, 1988); the two
# more are for the tiny half-blocks of small sets.
_ROUNDS = 6


def _mix(value: int) -> int:
  """splitmix64's finaliser: 64 well-mixed bits."""
  value = (value + 0x9E3779B97F4A7C15) & _MASK
  value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
  value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
  return value ^ (value >> 31)


def shuffled_index(index: int, length: int, seed: int, epoch: int = 0) -> int:
  """Where position `index` of a shuffled range(length) points.

  Args:
    index: position, 0 <= index < length.
    length: number of elements.
    seed: any integer.
    epoch: each epoch has an order of its own, unrelated to other seeds' ones.

  Returns:
    An element of range(length); a bijection in index.
  """
  if not 0 <= index < length:
    raise ValueError(f"index {index} is not in 0..{length - 1}")
  key = _mix(_mix(seed & _MASK) + epoch)
  half_bits = max(1, -(-(length - 1).bit_length() // 2))
  half_mask = (1 << half_bits) - 1
  value = index
  while True:
    left, right = value >> half_bits, value & half_mask
    for round_index in range(_ROUNDS):
      mixed = _mix(key ^ _mix((round_index << 48) ^ right))
      left, right = right, left ^ (mixed & half_mask)
    value = left << half_bits | right
    if value < length:
      return value
