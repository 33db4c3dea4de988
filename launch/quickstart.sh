#!/usr/bin/env bash
# Sets up and runs the main job on the embedded task; further arguments are
# flags of experiments/dapo_math.py.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup_env.sh
exec "${HYBRIDRL_VENV:-$PWD/.venv}/bin/python" -m experiments.dapo_math \
  --flagfile=experiments/flagfiles/quickstart.flags "$@"
