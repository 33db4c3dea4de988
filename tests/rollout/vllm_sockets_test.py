"""An engine's socket files go, those of others stay."""

import os
import pathlib

from hybridrl.rollout.vllm_sockets import EngineSockets


def test_files_and_folder_are_removed(monkeypatch):
  monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
  first = EngineSockets()
  folder = pathlib.Path(os.environ["VLLM_RPC_BASE_PATH"])
  assert len(str(folder)) < 60
  (folder / "a").touch()
  second = EngineSockets()
  assert second.folder == first.folder
  (folder / "b").touch()
  second.remove()
  assert sorted(p.name for p in folder.iterdir()) == ["a"]
  first.remove()
  assert not folder.exists()
  first.remove()


def test_a_later_engine_of_the_process_gets_the_folder_again():
  first = EngineSockets()
  first.remove()
  second = EngineSockets()
  assert os.path.isdir(second.folder)
  second.remove()
