"""Finding a response's answer and comparing plain numbers: exact and cheap.

Pure text functions, linear in the length of the text whatever it holds.
"""

import re
from fractions import Fraction

# The last of these counts. White space after it may hold the line's end.
_UNBOXED = re.compile(
  r"answer\s*\**\s*:\s*|\bthe\s+(?:\w+\s+)?answer\s+is\s*:?\s*",
  re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)")
_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_NUMBER = re.compile(rf"([+-]?)\s*({_UNSIGNED})")
_RATIO = re.compile(rf"([+-]?)\s*({_UNSIGNED})\s*/\s*([+-]?)({_UNSIGNED})")
_FRAC = re.compile(
  rf"([+-]?)\s*\\[dt]?frac\s*\{{\s*([+-]?{_UNSIGNED})\s*\}}"
  rf"\s*\{{\s*([+-]?{_UNSIGNED})\s*\}}"
)
# Longer numerals cost quadratic time and are nobody's answer.
_MAX_NUMERAL_CHARS = 400


def extract_answer(text: str) -> str | None:
  r"""The response's answer, or None.

  The content of the last \boxed{...}; if that box is not closed, there is no
  answer. Without any box: what follows the last "Answer:" or "the answer is",
  up to the end of the line or sentence.
  """
  box_ends = [match.end() for match in _BOX.finditer(text)]
  if box_ends:
    return _braced(text, box_ends[-1])
  cue_ends = [match.end() for match in _UNBOXED.finditer(text)]
  if not cue_ends:
    return None
  line = text[cue_ends[-1] :].split("\n", 1)[0]
  end = _SENTENCE_END.search(line)
  return (line[: end.start()] if end else line).strip(" \t\r*") or None


def _braced(text: str, start: int) -> str | None:
  """text[start:] up to the brace that closes the one before start."""
  depth, position = 1, start
  while position < len(text):
    char = text[position]
    if char == "\\":
      position += 1  # An escaped brace is a character of the answer.
    elif char == "{":
      depth += 1
    elif char == "}":
      depth -= 1
      if depth == 0:
        return text[start:position].strip()
    position += 1
  return None


def parse_number(text: str) -> Fraction | None:
  """An integer, decimal or fraction of these as an exact number, else None.

  Takes thousands separators, a sign, dollar signs and LaTeX's thin spaces.
  """
  if len(text) > _MAX_NUMERAL_CHARS:
    return None
  for noise in ("\\$", "$", "\\,", "\\!", "\\ ", "\\left", "\\right"):
    text = text.replace(noise, "")
  text = text.replace("\N{MINUS SIGN}", "-").strip().rstrip(".")
  if match := _NUMBER.fullmatch(text):
    return _signed(match[1] + match[2])
  if match := _RATIO.fullmatch(text):
    return _divide(match[1] + match[2], match[3] + match[4])
  if match := _FRAC.fullmatch(text):
    value = _divide(match[2], match[3])
    return -value if value is not None and match[1] == "-" else value
  return None


def _signed(numeral: str) -> Fraction:
  numeral = numeral.replace(",", "")
  return Fraction(numeral + "0" if numeral.endswith(".") else numeral)


def _divide(numerator: str, denominator: str) -> Fraction | None:
  divisor = _signed(denominator)
  return _signed(numerator) / divisor if divisor else None


def compare_exactly(gold: str, answer: str) -> bool | None:
  """True or False where that needs no algebra, else None.

  Two numbers are equal only exactly: 33.3 is not 100/3.
  """
  if "".join(gold.split()) == "".join(answer.split()):
    return True
  gold_number = parse_number(gold)
  answer_number = parse_number(answer)
  if gold_number is not None and answer_number is not None:
    return gold_number == answer_number
  return None


def is_right(gold: str, text: str) -> bool:
  """Whether a response's answer equals a numeric gold answer exactly."""
  answer = extract_answer(text)
  return answer is not None and compare_exactly(gold, answer) is True
