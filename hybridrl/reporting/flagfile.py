"""Echo of a run's flags as a flagfile that absl reads back."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from hybridrl.reporting.run_dir import RunDir, write_atomically


def _value_text(name: str, value: Any) -> str:
  if isinstance(value, Sequence) and not isinstance(value, str):
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="").writerow([str(v) for v in value])
    text = buffer.getvalue() if value else ""
  else:
    text = str(value)
  if "\n" in text or "\r" in text:
    raise ValueError(f"--{name}={text!r}: a flag's value must be one line")
  return text


def flagfile_text(values: Mapping[str, Any]) -> str:
  """One `--name=value` a line, in the order of the mapping.

  True and False become `--name` and `--noname`, sequences comma-separated
  text, and None is left out: it is a flag's 'not given'.
  """
  lines = []
  for name, value in values.items():
    if value is None:
      continue
    if isinstance(value, bool):
      lines.append(f"--{name}" if value else f"--no{name}")
    else:
      lines.append(f"--{name}={_value_text(name, value)}")
  return "".join(line + "\n" for line in lines)


def write_flagfile(run_dir: RunDir, values: Mapping[str, Any]) -> None:
  """Writes flags.flags; an earlier attempt's other flags are kept beside it."""
  text = flagfile_text(values)
  path = run_dir.flagfile
  if path.exists() and path.read_text(encoding="utf-8") != text:
    number = 1
    while (kept := path.with_name(f"flags.{number}.flags")).exists():
      number += 1
    path.rename(kept)
  write_atomically(path, text)
