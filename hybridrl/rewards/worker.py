"""The program of a grading worker: one process, one answer at a time.

Reads one JSON request a line from standard input and writes one JSON reply a
line to standard output; ends at the end of input. The parent kills it at its
deadline, so nothing here watches the clock. Its address space is limited, and
so is the processor time of a request, should the parent be gone by then.
"""

import base64
import importlib
import json
import os
import pickle
import resource
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from hybridrl.rewards.scores import to_reward

_MIB = 1024 * 1024


def main() -> None:
  """Arguments: memory limit in MiB, processor seconds of a request."""
  memory_bytes = int(sys.argv[1]) * _MIB
  request_cpu_s = int(sys.argv[2])
  resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
  # The reply channel is ours alone: what libraries print goes to stderr.
  replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
  os.dup2(2, 1)
  for line in sys.stdin:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used_s = int(usage.ru_utime + usage.ru_stime)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (used_s + request_cpu_s + 1, hard))
    replies.write(json.dumps(_reply(json.loads(line))) + "\n")
    replies.flush()


def _reply(request: Mapping[str, Any]) -> dict[str, Any]:
  """{'score': float}, or {'error': text, 'exception': pickle or None}."""
  try:
    # So that no request pays for an import within its deadline.
    for function in request.get("preload", ()):
      _function(function)
    if request["function"]:
      return {"score": _custom(request)}
    return {"score": float(_math(request["gold"], request["answer"]))}
  except Exception as error:
    return {
      "error": traceback.format_exc(limit=8),
      "exception": _pickled(error),
    }


def _math(gold: str, answer: str) -> bool:
  # Imported here, so that a failure is a reply and not a death.
  from hybridrl.rewards.algebra import equal

  try:
    return equal(gold, answer)
  except ImportError:
    raise  # A broken installation is not a wrong answer.
  except Exception:
    # What sympy cannot work out within its limits (recursion, memory, syntax)
    # is no equal expression. Faults of the set-up show in the parent's probe.
    return False


def _function(spec: str) -> Callable[..., Any]:
  module, _, name = spec.partition(":")
  return getattr(importlib.import_module(module), name)


def _custom(request: Mapping[str, Any]) -> float:
  function = _function(request["function"])
  return to_reward(function(request["text"], request["gold"], request["extra"]))


def _pickled(error: Exception) -> str | None:
  try:
    return base64.b64encode(pickle.dumps(error)).decode()
  except Exception:  # Not every exception can travel; its text does.
    return None


if __name__ == "__main__":
  main()
