"""The cases that need algebra, without processes."""

import pytest

from hybridrl.rewards.algebra import equal, to_latex

_CASES = [
  ("g1_tiny_numbers_differ", r"\frac{1}{2004!}", r"\frac{1}{2006!}", False),
  ("g1_tiny_numbers_agree", r"\frac{1}{2004!}", r"\frac{1}{2004!}", True),
  ("g1_huge_numbers_differ", "100!", "100!+1", False),
  ("g2_exp_in_words", "e^{16}-1", "-1 + exp(16)", True),
  ("g3_pi_in_words", r"\dfrac{\pi}{2}", "pi/2", True),
  ("g4_decimal_complex", "14 - i", "14.0 + -1.0i", True),
  ("g4_decimal_complex_off", "14 - i", "14 - 1.0001i", False),
  ("g9_sets_have_no_order", r"\{1,2\}", r"\{2,1\}", True),
  ("g9_tuples_have_order", "(1,2)", "(2,1)", False),
  ("g9_interval_ends", "[1,2)", "[1,2]", False),
  ("g9_interval_same", "[1,2)", "[1,2)", True),
  ("g10_plus_minus", "2021", r"\pm 2021", False),
  ("g10_two_answers", "1728", r"1331 \text{ and } 1728", False),
  ("g10_two_of_two", r"\pm 2021", r"\pm 2021", True),
  ("g11_identities", r"\tan^2 y+1", r"\sec^2 y", True),
  ("g12_negated", "34x+45y-20z+100=0", "-34x-45y+20z-100=0", True),
  ("g12_another", "34x+45y-20z+100=0", "-34x-45y+20z+100=0", False),
  ("g13_rounded", "33.3", r"\frac{100}{3}", False),
  ("g14_short_fraction", r"\frac{1}{3}", r"\frac13", True),
  ("rounded_root", r"\sqrt{2}", "1.414214", False),
  ("root_in_words", r"\sqrt{2}", "sqrt(2)", True),
  ("units", "18", r"18\text{ dollars}", True),
  ("percent", "50", r"50\%", True),
  ("assignment", "5", "x=5", True),
  ("word", "5", "five", False),
  ("set_of_one", r"\{5\}", "5", False),
  ("order_of_terms", "x+1", "1+x", True),
  ("sign", "-3", "3", False),
]


@pytest.mark.parametrize(
  ("gold", "answer", "right"),
  [case[1:] for case in _CASES],
  ids=[case[0] for case in _CASES],
)
def test_equal(gold, answer, right):
  assert equal(gold, answer) is right


@pytest.mark.parametrize(
  ("plain", "latex"),
  [
    ("exp(16) + -2i", r"\exp(16) -2i"),
    ("2 - -3", "2 +3"),
    ("sqrt(2)/pi", r"\sqrt{2}/\pi"),
    (r"\sin x", r"\sin x"),
    ("pin", "pin"),
  ],
)
def test_plain_notation_becomes_latex(plain, latex):
  assert to_latex(plain) == latex
