"""Comparing mathematical expressions with math-verify and sympy.

Runs in a grading worker only: sympy may take unbounded time and memory on
hostile input, and no time-out inside a process stops a long integer power.
"""

import logging
import re
from typing import Any

from math_verify import parse, verify
from math_verify.parser import LatexExtractionConfig
from sympy import Basic, Expr, N, Set, Symbol, Tuple, nsimplify, simplify

# Words that people write without a backslash, as in 'exp(16)' or 'pi/2'.
_WORDS = (
  "arccos",
  "arcsin",
  "arctan",
  "cos",
  "exp",
  "infty",
  "ln",
  "log",
  "pi",
  "sin",
  "sqrt",
  "tan",
)
_BARE_WORD = re.compile(rf"(?<![\\A-Za-z])({'|'.join(_WORDS)})(?![A-Za-z])")
_SQRT_OF = re.compile(r"\\sqrt\s*\(([^()]*)\)")
# math-verify compares numbers after rounding to six decimals, which makes all
# tiny numbers equal and 1.414214 equal to sqrt(2). So where its yes may come
# from rounding, the numbers must also agree in relative terms, evaluated to 30
# digits.
_ROUNDING = 1e-5
_DIGITS = 30
_RELATIVE_ERROR = 1e-12

_CONFIG = (LatexExtractionConfig(boxed_match_priority=0),)

# The deadline is the parent's, so math-verify's time-outs are off, of which it
# would warn.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def equal(gold: str, answer: str) -> bool:
  """Whether the answer is the gold answer, up to notation."""
  parsed_gold, parsed_answer = _parse(gold), _parse(answer)
  if not parsed_gold or not parsed_answer:
    return False
  first_gold, first_answer = parsed_gold[0], parsed_answer[0]
  if verify(parsed_gold, parsed_answer, timeout_seconds=None):
    return not _refuted(first_gold, first_answer)
  return _same_exactly(first_gold, first_answer)


def _parse(expression: str) -> list:
  return parse(f"\\boxed{{{to_latex(expression)}}}", _CONFIG, parsing_timeout=0)


def to_latex(expression: str) -> str:
  """Plain notation as LaTeX: 'exp(16) + -2i' -> '\\exp(16) - 2i'."""
  expression = _BARE_WORD.sub(r"\\\1", expression)
  expression = _SQRT_OF.sub(r"\\sqrt{\1}", expression)
  expression = re.sub(r"\+\s*-", "-", expression)
  return re.sub(r"-\s*-", "+", expression)


def _refuted(gold: object, answer: object) -> bool:
  """Whether math-verify's yes is wrong: sets of one, rounded numbers."""
  if not isinstance(gold, Basic) or not isinstance(answer, Basic):
    return False
  collections = (Set, Tuple)
  if isinstance(gold, collections) != isinstance(answer, collections):
    return True
  if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
    return False
  if gold.free_symbols or answer.free_symbols:
    return False
  a, b = (N(x.doit(), _DIGITS) for x in (gold, answer))
  if not (a.is_number and b.is_number):
    return False
  difference, size = N(abs(a - b)), N(max(abs(a), abs(b)))
  return bool(_RELATIVE_ERROR * size < difference < _ROUNDING)


def _same_exactly(gold: object, answer: object) -> bool:
  """Whether their difference vanishes when decimals are read as fractions."""
  if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
    return False
  difference = (_bare(gold) - _bare(answer)).doit()
  return simplify(nsimplify(difference, rational=True)) == 0


def _bare(expression: Expr) -> Any:
  """Symbols without assumptions: the parser guesses them for each side."""
  return expression.xreplace(
    {s: Symbol(str(s)) for s in expression.free_symbols}
  )
