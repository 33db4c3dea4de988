"""One vLLM engine as a Replica.

Laws beside those of `replica.Replica`:
  * No result leaves generate() whose tokens were sampled by weights that the
    canary has not confirmed.
  * A request enters the engine under one version, whose KV blocks alone it can
    share; that version is its kv_version. Requests without a token when weights
    are loaded enter anew.
  * Once FAILED, every call raises ReplicaFailed with the first cause.
"""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from hybridrl.models.bundle import Canary, WeightBundle
from hybridrl.rollout import replica, vllm_engine, vllm_probes
from hybridrl.rollout.replica import ReplicaState, WeightUpdateMode
from hybridrl.rollout.vllm_admission import Turnstile
from hybridrl.rollout.vllm_config import VllmConfig, configure_process
from hybridrl.rollout.vllm_control import ControlLine
from hybridrl.rollout.vllm_processes import EngineProcesses
from hybridrl.rollout.vllm_sockets import EngineSockets
from hybridrl.rollout.vllm_weight_file import WeightFile

# The engine has nothing to save: it gets this long to end by itself, which has
# to fit into the 2.25 s that an interrupted run has for stopping its replicas.
_SHUTDOWN_S = 1.0


@dataclasses.dataclass
class _Attempt:
  """A generate() call that has not returned."""

  aborted: bool = False
  # The engine shall forget it and take it again under the next version.
  re_enter: bool = False


class VllmReplica:
  """See the module's docstring and `replica.Replica`."""

  def __init__(self, name: str, config: VllmConfig):
    self.name = name
    self._config = config
    self._state = ReplicaState.STARTING
    self._version = -1
    self._engine: Any = None
    self._processes: EngineProcesses | None = None
    self._file = WeightFile(name)
    self._sockets: EngineSockets | None = None
    self._turnstile = Turnstile(config.max_num_seqs)
    self._attempts: dict[str, _Attempt] = {}
    self._confirmed = asyncio.Event()
    self._control = asyncio.Lock()
    self._line = ControlLine(name, config.control_timeout_s, self._on_failure)
    self._weights_resident = True
    self._kv_resident = True
    self._canary: Canary | None = None
    self._temperature_probed = False
    self._num_probes = 0
    self._generated_tokens = 0
    self._prefilled_tokens = 0

  async def start(self) -> None:
    """See Replica. Configures this process unless the host did it before.

    Raises:
      ReplicaFailed: the engine did not come up, with vLLM's reason.
    """
    if self._engine is not None or self._state != ReplicaState.STARTING:
      raise RuntimeError(f"{self.name} was started already ({self._state})")
    configure_process(self._config)
    loop = asyncio.get_running_loop()
    building = loop.run_in_executor(
      None, vllm_engine.build_engine, self._config
    )
    try:
      async with asyncio.timeout(self._config.start_timeout_s):
        self._engine = await asyncio.shield(building)
    except BaseException as error:
      # A thread cannot be stopped: whatever it still builds is torn down.
      building.add_done_callback(_discard)
      self._line.fail(f"engine did not start: {error or type(error).__name__}")
      if isinstance(error, Exception):
        raise self._line.error() from error
      raise
    self._processes = EngineProcesses(self._engine)
    self._processes.watch(self._line.fail)
    async with self._control:
      await self._rpc("hybridrl_watch_parent", os.getpid())
      await self._line.call("start", self._engine.get_supported_tasks())
      from vllm.distributed.weight_transfer.base import (
        WeightTransferInitRequest,
      )

      await self._line.call(
        "start",
        self._engine.init_weight_transfer_engine(WeightTransferInitRequest({})),
      )
    self._state = ReplicaState.AWAKE

  async def generate(
    self, request: replica.GenerationRequest
  ) -> replica.GenerationResult:
    """See Replica.

    Raises:
      ValueError: the request does not fit max_model_len, or its id is in use.
    """
    self._check_takes_requests()
    self._check_request(request)
    attempt = _Attempt()
    self._attempts[request.request_id] = attempt
    try:
      return await self._generate(request, attempt)
    finally:
      del self._attempts[request.request_id]

  async def abort(self, request_ids: Sequence[str] | None = None) -> None:
    """See Replica. Ids that are not in flight are ignored."""
    self._check_not_failed()
    keys = [
      key
      for key in (self._attempts if request_ids is None else request_ids)
      if key in self._attempts
    ]
    await self._abort(keys)

  async def load_weights(
    self, bundle: WeightBundle, mode: WeightUpdateMode
  ) -> None:
    """See Replica."""
    async with self._control:
      self._check_not_failed()
      if self._state == ReplicaState.AWAKE:
        await self._load_awake(bundle, mode)
      elif self._state == ReplicaState.ASLEEP and self._weights_resident:
        await self._load(self._file.write(bundle), bundle)
      else:
        raise RuntimeError(
          f"{self.name} is {self._state}; wake_weights() comes first"
        )

  async def sleep(self) -> None:
    """See Replica. Idempotent."""
    self._check_not_failed()
    if self._state == ReplicaState.STARTING:
      raise RuntimeError(f"{self.name} is not started")
    # From here on generate() rejects, also while a load still runs.
    self._state = ReplicaState.ASLEEP
    async with self._control, self._line.switching("sleep"):
      if not (self._weights_resident or self._kv_resident):
        return
      self._turnstile.close()
      await self._abort(list(self._attempts))
      await self._line.call(
        "sleep", self._engine.pause_generation(mode="abort", clear_cache=True)
      )
      if self._config.device == "cuda":
        await self._line.call(
          "sleep", self._engine.sleep(level=2, mode="abort")
        )
      else:
        await self._rpc("hybridrl_sleep")
      self._weights_resident = self._kv_resident = False
      self._version = -1
      self._canary = None
      self._file.shrink()

  async def wake_weights(self) -> None:
    """See Replica."""
    async with self._control, self._line.switching("wake"):
      self._check_asleep()
      if self._weights_resident:
        return
      if self._config.device == "cuda":
        await self._line.call("wake", self._engine.wake_up(tags=["weights"]))
      else:
        await self._rpc("hybridrl_wake_weights")
      self._weights_resident = True

  async def wake_kv_cache(self) -> None:
    """See Replica. Weights have to be loaded by then."""
    async with self._control, self._line.switching("wake"):
      if self._state == ReplicaState.AWAKE:
        return
      self._check_asleep()
      if self._version < 0:
        raise RuntimeError(f"{self.name} has no weights; load_weights() first")
      if self._config.device == "cuda":
        await self._line.call("wake", self._engine.wake_up(tags=["kv_cache"]))
      else:
        await self._rpc("hybridrl_wake_kv_cache")
      self._kv_resident = True
      await self._resume_and_probe()
      self._state = ReplicaState.AWAKE

  async def stats(self) -> replica.ReplicaStats:
    return replica.ReplicaStats(
      state=self._state,
      version=self._version,
      num_in_flight=len(self._attempts),
      resident_bytes=self._processes.resident_bytes() if self._processes else 0,
      generated_tokens=self._generated_tokens,
      prefilled_tokens=self._prefilled_tokens,
    )

  async def stop(self) -> None:
    """See Replica. Works in every state, also beside a stuck call."""
    if self._state == ReplicaState.STOPPED:
      return
    failed = self._state == ReplicaState.FAILED
    self._state = ReplicaState.STOPPED
    self._turnstile.fail(replica.ReplicaUnavailable(f"{self.name} is stopped"))
    self._confirmed.set()
    if self._engine is not None and self._processes is not None:
      if not failed:
        # Partial tokens are in this process; the engine needn't answer.
        with contextlib.suppress(Exception):
          await self._engine.abort(list(self._attempts))
      self._processes.unwatch()
      if self._engine.output_handler is not None:
        # It would report the engine's end as an error.
        self._engine.output_handler.cancel()
      with contextlib.suppress(Exception):
        await asyncio.wait_for(
          asyncio.to_thread(self._engine.shutdown, _SHUTDOWN_S),
          2 * _SHUTDOWN_S,
        )
      await asyncio.to_thread(self._processes.kill)
      # Its __del__ would shut down once more, at interpreter exit noisily.
      self._engine.shutdown = _nothing
      self._engine = None
    self._file.remove()
    if self._sockets is not None:
      self._sockets.remove()

  # Generation.

  async def _generate(
    self, request: replica.GenerationRequest, attempt: _Attempt
  ) -> replica.GenerationResult:
    while True:
      if not await self._turnstile.enter(request.request_id):
        return vllm_engine.empty_abort()
      try:
        if attempt.aborted:
          return vllm_engine.empty_abort()
        version = self._version
        output = await vllm_engine.run_request(self._engine, request, version)
      except Exception as error:
        if self._processes is not None and self._engine.errored:
          # It may be known here before the process's end is.
          self._line.fail(self._processes.exit_text())
        if self._line.cause is not None:
          raise self._line.error() from error
        raise
      finally:
        self._turnstile.leave()
      result = vllm_engine.to_result(output, version)
      if attempt.re_enter and not attempt.aborted and not len(result.token_ids):
        attempt.re_enter = False
        continue
      await self._confirmed.wait()
      self._check_not_failed()
      self._generated_tokens += len(result.token_ids)
      self._prefilled_tokens += len(request.token_ids) - (
        output.num_cached_tokens or 0
      )
      return result

  async def _abort(self, keys: Sequence[str]) -> None:
    for key in keys:
      self._attempts[key].aborted = True
      self._turnstile.cancel(key)
    if not keys:
      return
    await self._line.call("abort", self._engine.abort(keys))
    # The engine handles messages in order and between steps: once it answers
    # this one, it works on none of the aborted requests.
    await self._line.call("abort", self._engine.is_paused())

  def _check_takes_requests(self) -> None:
    self._check_not_failed()
    if self._state != ReplicaState.AWAKE:
      raise replica.ReplicaUnavailable(f"{self.name} is {self._state}")
    if self._version < 0:
      raise replica.ReplicaUnavailable(f"{self.name} has no weights yet")

  def _check_request(self, request: replica.GenerationRequest) -> None:
    key, length = request.request_id, len(request.token_ids)
    if key in self._attempts:
      raise ValueError(f"request {key} is in flight already")
    if length < 1 or request.max_new_tokens < 1:
      raise ValueError(
        f"request {key} has {length} prompt tokens and a budget of"
        f" {request.max_new_tokens}; both must be >= 1"
      )
    if length + request.max_new_tokens > self._config.max_model_len:
      raise ValueError(
        f"request {key}: {length} prompt tokens and a budget of"
        f" {request.max_new_tokens} exceed max_model_len"
        f" {self._config.max_model_len}"
      )

  # Weights.

  async def _load_awake(
    self, bundle: WeightBundle, mode: WeightUpdateMode
  ) -> None:
    """Pause, load, resume, confirm."""
    async with self._line.switching("load"):
      update = self._file.write(bundle)  # before the pause, to keep it short
      self._turnstile.close()
      self._confirmed.clear()
      keep = mode == WeightUpdateMode.KEEP
      await self._line.call(
        "pause",
        self._engine.pause_generation(
          mode="keep" if keep else "abort", clear_cache=not keep
        ),
      )
      if keep:
        await self._expel_requests_without_tokens()
      await self._load(update, bundle)
      if self._state == ReplicaState.AWAKE:
        await self._resume_and_probe()
      else:  # sleep() waits for this load
        self._confirmed.set()

  async def _expel_requests_without_tokens(self) -> None:
    """Makes requests that have not begun enter again under the new version.

    They may have part of a prompt's KV, or be salted with the old version;
    entering anew keeps their kv_version true and costs at most one prefill.
    """
    keys = [
      key
      for key in self._attempts
      if vllm_engine.has_no_tokens(self._engine, key)
    ]
    for key in keys:
      self._attempts[key].re_enter = True
    if keys:
      await self._line.call("load", self._engine.abort(keys))

  async def _load(self, update: dict[str, Any], bundle: WeightBundle) -> None:
    """Runs vLLM's native weight transfer; the engine is paused or asleep."""
    from vllm.distributed.weight_transfer.base import (
      WeightTransferUpdateRequest,
    )

    what = f"load of version {bundle.version}"
    async with self._line.switching(what):
      await self._line.call(what, self._engine.start_weight_update())
      await self._line.call(
        what, self._engine.update_weights(WeightTransferUpdateRequest(update))
      )
      await self._line.call(
        what,
        self._engine.finish_weight_update(weight_version=str(bundle.version)),
      )
    self._version = bundle.version
    self._canary = bundle.canary

  async def _resume_and_probe(self) -> None:
    await self._line.call("resume", self._engine.resume_generation())
    if self._canary is not None:
      self._num_probes += 1
      found = await self._line.call(
        "canary",
        vllm_engine.prompt_log_probs(
          self._engine,
          self._canary.token_ids,
          f"{self.name}-canary-{self._num_probes}",
          self._version,
        ),
      )
      wrong = vllm_probes.canary_mismatch(
        found, self._canary, self._version, self._config.canary_tolerance
      )
      if wrong:
        self._line.fail(wrong)
        self._line.check()
      if not self._temperature_probed:
        await self._probe_temperature(self._canary)
        self._temperature_probed = True
    self._confirmed.set()
    self._turnstile.open()

  async def _probe_temperature(self, canary: Canary) -> None:
    """Checks that log-probs are those of the sampled distribution (T = 0.5)."""
    at = {
      temperature: await self._line.call(
        "temperature probe",
        vllm_engine.next_token_log_probs(
          self._engine,
          canary.token_ids,
          temperature,
          f"{self.name}-probe-{temperature}",
          self._version,
        ),
      )
      for temperature in (1.0, 0.5)
    }
    wrong = vllm_probes.temperature_mismatch(
      at[1.0], at[0.5], 0.5, self._config.canary_tolerance
    )
    if wrong:
      self._line.fail(wrong)
      self._line.check()

  # Failures and deadlines.

  async def _rpc(self, method: str, *args: Any) -> None:
    await self._line.call(
      method, self._engine.collective_rpc(method, args=args)
    )

  def _on_failure(self) -> None:
    """Becomes FAILED and ends what waits on the engine."""
    if self._state == ReplicaState.STOPPED:
      return
    self._state = ReplicaState.FAILED
    self._turnstile.fail(self._line.error())
    self._confirmed.set()
    if self._engine is not None:
      vllm_engine.end_requests(self._engine, self._line.error())

  def _check_not_failed(self) -> None:
    if self._state == ReplicaState.STOPPED:
      raise replica.ReplicaUnavailable(f"{self.name} is stopped")
    self._line.check()

  def _check_asleep(self) -> None:
    self._check_not_failed()
    if self._state != ReplicaState.ASLEEP:
      raise RuntimeError(f"{self.name} is {self._state}, not asleep")


def _discard(building: "asyncio.Future[Any]") -> None:
  """Shuts down an engine that came up after nobody waited for it."""
  if not building.cancelled() and building.exception() is None:
    building.result().shutdown(timeout=_SHUTDOWN_S)


def _nothing(timeout: float | None = None) -> None:
  del timeout
