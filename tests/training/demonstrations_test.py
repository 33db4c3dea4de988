import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.data import embedded
from hybridrl.data.tokenizer import load_tokenizer, save_embedded_tokenizer
from hybridrl.training import demonstrations


def _sequences(lengths):
  return [
    (np.full(2, i + 1, np.int32), np.full(n - 2, i + 1, np.int32))
    for i, n in enumerate(lengths)
  ]


@settings(deadline=None)
@given(st.lists(st.integers(4, 60), min_size=1, max_size=40), st.integers(1, 3))
def test_every_sequence_is_packed_once_and_whole(lengths, num_rows):
  pool, seen = _sequences(lengths), []
  rounds = 0
  while pool:
    oldest = pool[0][0][0]
    rows = demonstrations.fill_rows(pool, num_rows, 64)
    assert rows.tokens.shape == (num_rows, 64)
    assert oldest in rows.tokens  # Nothing waits for ever.
    for tokens, segments, mask in zip(
      rows.tokens, rows.segments, rows.loss_mask, strict=True
    ):
      for segment in range(1, segments.max() + 1):
        ids = tokens[segments == segment]
        assert len(set(ids)) == 1
        assert len(ids) == lengths[ids[0] - 1]
        assert mask[segments == segment].sum() == len(ids) - 2
        seen.append(int(ids[0]))
    rounds += 1
    assert rounds <= len(lengths)
  assert sorted(seen) == list(range(1, len(lengths) + 1))


def test_rows_are_filled_well():
  rng = np.random.default_rng(0)
  pool, used = [], 0
  for _ in range(100):
    while len(pool) < 48:
      pool += _sequences(
        np.clip(rng.lognormal(4.3, 0.6, 8), 20, 260).astype(int)
      )
    used += (demonstrations.fill_rows(pool, 1, 272).segments > 0).sum()
  assert used / (100 * 272) > 0.93


def test_fact_rows_carry_loss_on_results_alone(tmp_path):
  save_embedded_tokenizer(tmp_path, embedded.words())
  tokenizer = load_tokenizer(tmp_path)
  rows = demonstrations.fact_rows(tokenizer, np.random.default_rng(0), 3, 64)
  assert (rows.segments == 1).all()
  for tokens, mask in zip(rows.tokens, rows.loss_mask, strict=True):
    pieces = [tokenizer.decode([t]) for t in tokens]
    marked = "".join(
      f"[{p}]" if m else p for p, m in zip(pieces, mask, strict=True)
    )
    # The last sum is cut off at the row's end.
    whole = re.sub(r"[^\n,]*$", "", marked)
    facts = re.split(r"\n|, ", whole.rstrip(",\n"))
    assert len(facts) >= 6
    for fact in facts:
      left, sign, right, result = re.fullmatch(
        r"(\d+)([+-])(\d)=((?:\[\d\])+)", fact
      ).groups()
      change = int(right) if sign == "+" else -int(right)
      assert int(re.sub(r"\D", "", result)) == int(left) + change


def test_problem_rows_hold_demonstrations(tmp_path):
  save_embedded_tokenizer(tmp_path, embedded.words())
  tokenizer = load_tokenizer(tmp_path)
  batches = demonstrations.problem_rows(
    tokenizer, np.random.default_rng(0), 2, 136
  )
  for _ in range(5):
    rows = next(batches)
    for tokens, segments, mask in zip(
      rows.tokens, rows.segments, rows.loss_mask, strict=True
    ):
      for segment in range(1, segments.max() + 1):
        ids = tokens[segments == segment]
        learnt = mask[segments == segment]
        first = int(np.argmax(learnt))
        assert learnt[first:].all()
        assert ids[-1] in tokenizer.stop_token_ids
        question = tokenizer.decode(ids[:first])
        answer = tokenizer.decode(ids[first:])
        start, *changes, steps = map(int, re.findall(r"\d+", question))
        equations = re.findall(r"(\d+)([+-]\d)=(\d+)", answer)
        assert int(equations[0][0]) == start
        assert len(equations) == steps * len(changes)
        assert all(int(a) + int(c) == int(r) for a, c, r in equations)
        assert answer.endswith(f"Answer: {equations[-1][2]}")
