#!/usr/bin/env bash
# Sets up, lints and runs the tests; further arguments go to pytest instead of
# the whole suite.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup_env.sh
venv=${HYBRIDRL_VENV:-$PWD/.venv}
export JAX_PLATFORMS=cpu
if [ $# -gt 0 ]; then
  exec "$venv/bin/python" -m pytest "$@"
fi
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
# Engines of real vLLM take a core each: they run one at a time, after the rest.
# Soak tests (-m soak) take minutes each; what they check runs here in a short
# form too.
"$venv/bin/python" -m pytest -n 2 --dist loadfile \
  -m "not vllm and not ray and not soak"
"$venv/bin/python" -m pytest -m "vllm or ray"
