#!/usr/bin/env bash
# Makes .venv (or $HYBRIDRL_VENV) with the pinned CPU environment; idempotent.
# Sourced or called by quickstart.sh and test.sh. Prints what it does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${HYBRIDRL_VENV:-$PWD/.venv}
pins=third_party/requirements-cpu-py311.txt

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3 python; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
      2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "setup: no Python 3.11 found; install it or set PYTHON=/path/to/it" >&2
  exit 2
}

wanted=$(cat "$pins" setup.py | sha256sum | cut -d' ' -f1)
if [ "$(cat "$venv/.hybridrl-stamp" 2>/dev/null)" = "$wanted" ]; then
  echo "setup: $venv is up to date"
  exit 0
fi

python=$(find_python)
echo "setup: making $venv with $("$python" --version) (a few minutes, 3.4 GB)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
if ! "${pip[@]}" install --quiet --no-deps -r "$pins" >"$venv/install.log" 2>&1
then
  tail -n 20 "$venv/install.log" >&2
  echo "setup: the installation failed; whole log: $venv/install.log" >&2
  exit 1
fi
# A default index may serve a CUDA build of torch, which cannot be imported
# without NVIDIA's libraries; the CPU build lies on PyTorch's own index.
if ! "$venv/bin/python" -c 'import torch' >>"$venv/install.log" 2>&1; then
  echo "setup: this torch does not import; fetching the CPU build"
  "${pip[@]}" install --quiet --no-deps --force-reinstall \
    --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
    >>"$venv/install.log" 2>&1 || {
    echo "setup: no importable torch; see $venv/install.log" >&2
    exit 1
  }
fi
"${pip[@]}" install --quiet --no-deps --no-build-isolation -e . \
  >>"$venv/install.log" 2>&1 || {
  tail -n 5 "$venv/install.log" >&2
  exit 1
}
# Byte code makes later imports of vLLM three times faster.
echo "setup: compiling byte code"
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -m compileall -q -j 2 \
  "$venv"/lib/python3.11/site-packages/{vllm,torch,transformers,ray,jax,flax,optax,orbax,chex,sympy,numpy,scipy,pydantic,fastapi,openai} \
  >/dev/null 2>&1 || true
echo "$wanted" >"$venv/.hybridrl-stamp"
echo "setup: done"
