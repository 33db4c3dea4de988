import fractions

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridrl.rewards.answers import (
  compare_exactly,
  extract_answer,
  is_right,
  parse_number,
)


@pytest.mark.parametrize(
  ("text", "answer"),
  [
    (r"so \boxed{5}", "5"),
    (r"\boxed{\frac{1}{2}} ok", r"\frac{1}{2}"),
    (r"\boxed {7}", "7"),
    (r"\fbox{8}", "8"),
    (r"\boxed{\{1,2\}}", r"\{1,2\}"),
    (r"\boxed{a\}b}", r"a\}b"),
    ("Answer: +7", "+7"),
    ("**Answer:** 12", "12"),
    ("Answer: **12**", "12"),
    ("answer : 3\nand more", "3"),
    ("Answer:\n5", "5"),
    ("Answer: 1\nAnswer: 2", "2"),
    ("The answer is 3.5. Sure.", "3.5"),
    ("the final answer is: $x+1$", "$x+1$"),
    ("Therefore the answer is -3", "-3"),
    ("no cue at all: 5", None),
    ("", None),
    ("Answer:", None),
    (r"Answer: 4, or \boxed{5", None),
  ],
)
def test_extraction(text, answer):
  assert extract_answer(text) == answer


def test_g5_an_unterminated_last_box_is_no_answer():
  assert extract_answer(r"We get \boxed{5} then also try \boxed{") is None


def test_g8_the_last_box_wins():
  assert extract_answer(r"\boxed{3} … \boxed{5}") == "5"


@pytest.mark.parametrize(
  ("text", "value"),
  [
    ("1,234", 1234),
    ("-1,234,567.50", fractions.Fraction("-1234567.5")),
    ("+7", 7),
    (r"\$18", 18),
    ("$18$", 18),
    ("5.", 5),
    (".5", fractions.Fraction(1, 2)),
    ("3/4", fractions.Fraction(3, 4)),
    (r"-\frac{3}{4}", fractions.Fraction(-3, 4)),
    (r"\dfrac{ 6 }{ -8 }", fractions.Fraction(-3, 4)),
    ("\N{MINUS SIGN}3", -3),
    ("007", 7),
  ],
)
def test_numbers(text, value):
  assert parse_number(text) == value


@pytest.mark.parametrize(
  "text",
  [
    "",
    "x",
    "1,2",
    "1,23,456",
    "1/0",
    "(1,2)",
    "1 2",
    r"\pm 3",
    "1e5",
    "5 or 6",
  ],
)
def test_what_is_no_plain_number(text):
  assert parse_number(text) is None


def test_g13_a_rounded_decimal_is_not_the_fraction():
  assert compare_exactly("33.3", r"\frac{100}{3}") is False


@settings(deadline=None)
@given(st.fractions(max_denominator=10**6))
def test_every_rational_is_read_back(value):
  text = f"{value.numerator}/{value.denominator}"
  assert parse_number(text) == value
  assert (
    compare_exactly(
      text,
      rf"\frac{{{value.numerator}}}"
      rf"{{{value.denominator}}}",
    )
    is True
  )
  assert compare_exactly(text, str(value + 1)) is False


@settings(deadline=None)
@given(st.integers())
def test_thousands_separators_change_nothing(value):
  assert compare_exactly(str(value), f"{value:,}") is True


@settings(deadline=None)
@given(st.text(alphabet="\\boxed{}answer: is the5\n", max_size=200))
def test_extraction_never_fails(text):
  answer = extract_answer(text)
  assert answer is None or answer in text


@settings(deadline=None)
@given(st.text(alphabet="0123456789xyz+-{}\\ ", max_size=50))
def test_a_balanced_box_is_returned_whole(inner):
  depth, escaped = 0, False
  for char in inner:
    if escaped:
      escaped = False
    elif char == "\\":
      escaped = True
    else:
      depth += (char == "{") - (char == "}")
    if depth < 0:
      return
  if depth or escaped:
    return
  assert extract_answer(f"so \\boxed{{{inner}}}.") == inner.strip()


@pytest.mark.parametrize(
  ("gold", "text", "expected"),
  [
    ("7", "3+4=7\nAnswer: 7", True),
    ("7", "Answer: 8", False),
    ("7", "seven", False),
    ("1/2", r"\boxed{0.5}", True),
  ],
)
def test_is_right(gold, text, expected):
  assert is_right(gold, text) is expected
