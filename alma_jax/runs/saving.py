"""When a run is saved, and how it stops."""
import collections
import time
from collections.abc import Callable, Sequence

from alma_jax.errors import BadInput, Stopped
from alma_jax.parallel import runtime, sharding
from alma_jax.protocols.contract import State
from alma_jax.runs import progress, snapshot
from alma_jax.runs.listeners import Listener
from alma_jax.runs.settings import Setting
from alma_jax.runs.snapshot import Growth
from alma_jax.store import checkpoint, run_files
from alma_jax.store.run_folder import RunFolder


class Saver:
  """The checkpoints of a session of a run.

  Attributes:
    checkpoints: checkpoint.Checkpoints.
    opened: the newest checkpoint when the session began; None: the run begins.
    saved_in: the stage in training that the newest checkpoint holds; None: it holds none.
    is_saved: whether the newest checkpoint holds all lines of metrics.jsonl.
  """

  def __init__(self, setting: Setting, folder: RunFolder, shown: progress.Progress, listeners: Sequence[Listener],
               should_stop: Callable[[], bool]):
    """Opens the newest checkpoint.

    Args:
      setting, folder: of the run.
      shown: its progress.
      listeners: hear of checkpoints.
      should_stop: () -> bool; True saves and stops.

    Raises:
      BadInput: the checkpoints are damaged, or have disappeared: the run would start again and overwrite its lines.
    """
    self._config, self._protocol, self._folder = setting.config, setting.protocol, folder
    self._shown, self._listeners, self._should_stop = shown, listeners, should_stop
    lost = (folder.path / run_files.METRICS).exists() and not (folder.path / checkpoint.CHECKPOINTS).is_dir()
    if sharding.any_process(lost and sharding.is_main()):
      raise BadInput(f"{run_files.shown(folder.path)} holds {run_files.METRICS}, but its folder checkpoints has "
                     "disappeared; restore it, or --overwrite the run.")
    self.checkpoints = checkpoint.Checkpoints(folder.path, setting.config.checkpoint.keep)
    self.opened = self.checkpoints.newest()
    self.saved_in: int | None = None
    self.is_saved = True
    self._began = self._saved_at = time.monotonic()
    self._compiled_before = runtime.compile_seconds()
    # The last mega-batch of the last complete stage, at each of the newest checkpoints.
    self._covered: collections.deque[int] = collections.deque(maxlen=setting.config.checkpoint.keep + 1)

  def begin(self, state: State) -> None:
    """The session begins with what the opened checkpoint holds."""
    self.saved_in = state.stage if state.arrival else None

  def is_due(self) -> bool:
    """Whether the run should be saved now; all processes ask."""
    for listener in self._listeners:
      listener.check()
    late = time.monotonic() - self._saved_at >= self._config.checkpoint.seconds
    return sharding.any_process(self._should_stop() or late)

  def idle(self, state: State) -> None:
    """While the run waits for a mega-batch: saves what is not saved, and stops if it should."""
    self._folder.check_place()
    if self.is_due() and not self.is_saved:
      self.save(state)
    elif self._should_stop():
      raise Stopped(self._saved())

  def stage_ended(self, state: State) -> None:
    """Saves the run if it is time."""
    every = self._config.checkpoint.keep_every
    permanent = bool(every) and state.stage % every == 0
    if permanent or self.is_due():
      self.save(state, permanent=permanent)

  def end(self, state: State) -> None:
    """Saves the run at its end."""
    if not self.is_saved:
      self.save(state, permanent=True)
    with self._shown.phase("saving"):
      self.checkpoints.finish()

  def save(self, state: State, growth: Growth | None = None, permanent: bool = False) -> None:
    """Saves the run as it stands, inside a stage with its Growth; raises Stopped if the run should stop."""
    meta, trees, frozen = snapshot.take(self._config, state, self.seconds(state), growth)
    self._folder.sync()
    for listener in self._listeners:
      listener.flush()
    with self._shown.phase("saving"):
      self.checkpoints.save(meta, trees, frozen, permanent)
    self._saved_at, self.is_saved = time.monotonic(), True
    self.saved_in = state.stage if state.arrival else None
    self._covered.append(max(state.ends, default=0))
    if len(self._covered) == self._covered.maxlen:
      self._protocol.covered(self._covered[0])
    for listener in self._listeners:
      listener.saved(self.checkpoints.wait)
    if sharding.any_process(self._should_stop()):
      self.checkpoints.finish()
      raise Stopped(self._saved())

  def seconds(self, state: State) -> dict[str, float]:
    """Seconds of all sessions so far."""
    return dict(wall_seconds=state.wall_seconds + time.monotonic() - self._began,
                compile_seconds=state.compile_seconds + runtime.compile_seconds() - self._compiled_before)

  def _saved(self) -> str:
    return f"saved {self._folder.shown}; the same command goes on from there."
