"""Makes the embedded task's model: a short supervised warm start.

  python -m experiments.warm_start --out=/tmp/warm --seed=0

About a minute on one core. The folder is a Hugging Face model folder, which
--model_path of experiments.dapo_math takes.
"""

import sys

from absl import app, flags

from hybridrl.rewards.answers import is_right
from hybridrl.training.warm_start import WarmStartFailed, warm_start

_OUT = flags.DEFINE_string(
  "out", None, "Folder to write the model and its tokenizer to.", required=True
)
_SEED = flags.DEFINE_integer(
  "seed", 0, "Of the initial weights and of the problems.", lower_bound=0
)


def main(argv: list[str]) -> None:
  del argv
  try:
    report = warm_start(
      _OUT.value,
      _SEED.value,
      is_right=is_right,
      progress=lambda line: print(line, flush=True),
    )
  except (OSError, WarmStartFailed) as error:
    print(f"warm start failed: {error}", file=sys.stderr)
    sys.exit(1)
  print(
    f"{_OUT.value}: sampled accuracy {report.accuracy:.2f} on held-out"
    f" problems, responses of {report.mean_response_tokens:.0f} tokens on"
    f" average; {report.fact_steps} steps on facts, {report.problem_steps} on"
    f" problems, {report.rounds} rounds, {report.seconds:.0f} s"
  )


if __name__ == "__main__":
  app.run(main)
