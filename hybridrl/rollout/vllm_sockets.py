"""Removes the socket files that an engine leaves behind.

vLLM's processes talk through Unix sockets in VLLM_RPC_BASE_PATH and never
unlink them, three files an engine. Here that path is a folder of this process,
and a replica removes what its engine put there.
"""

import contextlib
import functools
import os
import tempfile

# Names have to stay short: a socket's path holds about 100 characters.
_PREFIX = "hrl-"


@functools.cache
def _path(pid: int) -> str:
  return tempfile.mkdtemp(prefix=f"{_PREFIX}{pid}-")


class EngineSockets:
  """The socket files of one engine, from before it is built to its end."""

  def __init__(self):
    self.folder = _path(os.getpid())
    # The replica before this one may have removed it.
    os.makedirs(self.folder, mode=0o700, exist_ok=True)
    os.environ["VLLM_RPC_BASE_PATH"] = self.folder
    self._others = set(os.listdir(self.folder))

  def remove(self) -> None:
    """Unlinks the files, and the folder when it is empty. Idempotent."""
    with contextlib.suppress(FileNotFoundError):
      for name in set(os.listdir(self.folder)) - self._others:
        with contextlib.suppress(FileNotFoundError):
          os.unlink(os.path.join(self.folder, name))
      with contextlib.suppress(OSError):  # another engine's files are there
        os.rmdir(self.folder)
