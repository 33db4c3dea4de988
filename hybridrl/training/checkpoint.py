"""Checkpoints of learner and driver under one step, by orbax.

One checkpoint holds the learner's state and the driver's, so that neither can
be restored without the other. orbax renames the folder when all is written:
what has a step's name is complete, and an older checkpoint is deleted only
after a newer one is complete.
"""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import orbax.checkpoint as ocp

from hybridrl.training.state import TrainState


def _manager(directory: pathlib.Path, keep: int | None, create: bool):
  return ocp.CheckpointManager(
    directory,
    options=ocp.CheckpointManagerOptions(
      max_to_keep=keep, create=create, cleanup_tmp_directories=create
    ),
    item_handlers={
      "state": ocp.StandardCheckpointHandler(),
      "meta": ocp.JsonCheckpointHandler(),
    },
  )


class Checkpointer:
  """Writes numbered checkpoints into one folder."""

  def __init__(self, directory: str | pathlib.Path, *, keep: int):
    """Opens or makes the folder; removes what an earlier crash left half done.

    Args:
      directory: of all checkpoints.
      keep: how many of the newest to keep.
    """
    self._directory = pathlib.Path(directory).absolute()
    self._manager = _manager(self._directory, keep, create=True)

  def save(self, step: int, state: TrainState, meta: Mapping[str, Any]) -> str:
    """Writes one checkpoint; returns its path when it is durable.

    Args:
      step: names the checkpoint; must be new.
      state: of the learner.
      meta: JSON-like.

    Raises:
      ValueError: the step exists, or meta is not JSON-like.
    """
    try:
      meta = json.loads(json.dumps(meta, allow_nan=False))
    except (TypeError, ValueError) as error:
      raise ValueError(f"checkpoint {step}: not JSON-like: {error}") from error
    if step in self._manager.all_steps():
      raise ValueError(f"{self._directory}: step {step} is saved already")
    self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(state), meta=ocp.args.JsonSave(meta)
      ),
      force=True,
    )
    self._manager.wait_until_finished()
    if step not in self._manager.all_steps():
      raise RuntimeError(f"{self._directory}: step {step} was not written")
    return str(self._directory / str(step))

  def latest(self) -> str | None:
    """Path of the newest complete checkpoint, or None."""
    step = self._manager.latest_step()
    return None if step is None else str(self._directory / str(step))

  def close(self) -> None:
    self._manager.close()


def restore(
  path: str | pathlib.Path, like: TrainState
) -> tuple[TrainState, dict[str, Any]]:
  """Reads a checkpoint from any folder.

  Args:
    path: what save() returned.
    like: a state of the same structure, shapes and types.

  Returns:
    The state, placed like `like`, and the meta data.

  Raises:
    ValueError: there is no complete checkpoint at the path, or it is of another
      model or optimizer; the message names the path and the first difference.
  """
  path = pathlib.Path(path).absolute()
  if not path.name.isdecimal() or not (path / "meta").is_dir():
    raise ValueError(f"{path}: no checkpoint there")
  manager = _manager(path.parent, None, create=False)
  try:
    if int(path.name) not in manager.all_steps():
      raise ValueError(f"{path}: the checkpoint is not complete")
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    _check_shapes(path, manager.item_metadata(int(path.name)), abstract)
    found = manager.restore(
      int(path.name),
      args=ocp.args.Composite(
        state=ocp.args.StandardRestore(abstract),
        meta=ocp.args.JsonRestore(),
      ),
    )
  finally:
    manager.close()
  return found["state"], found["meta"]


def _check_shapes(path: pathlib.Path, metadata, abstract: TrainState) -> None:
  """orbax itself accepts, and silently pads or cuts, another shape."""
  saved = _shapes(metadata["state"].tree)
  wanted = _shapes(abstract)
  for name in sorted(saved.keys() | wanted.keys()):
    if saved.get(name) != wanted.get(name):
      raise ValueError(
        f"{path}: {name} is {saved.get(name, 'missing')} in the checkpoint,"
        f" {wanted.get(name, 'missing')} in this run"
      )


def _shapes(tree) -> dict[str, str]:
  """Leaf path, dots between keys -> 'float32[2,3]'."""
  out = {}
  for keys, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
    name = ".".join(
      str(getattr(k, "name", getattr(k, "key", getattr(k, "idx", k))))
      for k in keys
    )
    out[name] = f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
  return out
