"""What benchmarks/torture.py does to processes, and the runs that it does it to."""
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

HUNG = 124  # the code of `timeout` for a process that took too long
_LONGEST = 600.0  # seconds
_SHORT = ("--config.checkpoint.seconds=0.2", "--config.log.progress=False")
_STAGES, _WAIT = "--config.stream.num_megabatches=8", "--config.stream.waiting_time=2"
_WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran", "to", "see", "some", "dog", "by", "that",
          "old", "red")
_TOY = {"dataset.vocab_size": 300, "dataset.sequence_length": 16, "model.width": 16, "model.num_layers": 2,
        "model.num_heads": 2, "train.steps": 60, "train.warmup_steps": 2, "train.batch_size": 4, "train.eval_every": 10,
        "train.learning_rate": 0.01}
_CLOCK = """
import sys, time
_time, _calls, _after = time.time, 0, {after}
def back():
  global _calls
  _calls += 1
  return _time() - (86400 if _calls > _after else 0)
time.time = back
"""


class Case(NamedTuple):
  """A run of seconds.

  Attributes:
    name: names the case.
    config: NAME:ARGUMENT.
    flags: further fields.
    without: parts of torture.py that leave it out.
  """
  name: str
  config: str
  flags: tuple[str, ...]
  without: tuple[str, ...] = ()

  def command(self, folder: pathlib.Path) -> list[str]:
    """The command that runs or resumes it in this run folder."""
    return [sys.executable, "-m", "alma_jax.main", f"--config={self.config}", *_SHORT, *self.flags,
            f"--workdir={folder}"]


class Ended(NamedTuple):
  """How a process has ended: its exit code (negative: by that signal), and what it said on stderr."""
  code: int
  said: str

  @property
  def last(self) -> str:
    """The last line."""
    return self.said.strip().rpartition("\n")[2][:200]


def cases(folder: pathlib.Path) -> list[Case]:
  """All learners, both protocols, all schedules, language models and live streams; data are written to `folder`."""
  digits = lambda name, *flags: Case(name.replace("digits:", ""), name, (_STAGES, *flags))
  epochs = lambda num: f"--config.train.epochs={num}"
  adaptive = ("--config.stream.schedule=adaptive", "--config.stream.price=1e-10")
  found = [
      *(digits(f"digits:{learner}", _WAIT, epochs(200))
        for learner in ("sm", "ens", "umix", "gens", "bagging", "boosting", "moe")),
      *(digits(f"digits:{learner}", _WAIT, epochs(num)) for learner, num in (("gmoe", 60), ("ff", 20), ("hmoe", 100))),
      digits("digits:anytime", "--config.train.steps=200"),
      digits("digits:sm", _WAIT, "--config.stream.replay=1", epochs(100))._replace(name="replay"),
      digits("digits:ens", "--config.train.steps=200", "--config.stream.memory_size=200",
             "--config.stream.replay_share=0.5", "--config.learner.average=0.9", "--config.stream.schedule=power",
             "--config.stream.num_trainings=3")._replace(name="power, reservoir, averaged weights"),
      digits("digits:anytime", *adaptive, "--config.train.steps=100")._replace(name="adaptive"),
      *(Case(f"tasks:{learner}", f"tasks:{learner},digits", ("--config.stream.num_megabatches=4", epochs(30)),
             ("sweeps",)) for learner in ("finetune", "select", "mntdp")),
      *(Case(f"text:{learner}", f"lm:{learner},tiny", _text(folder), ("sweeps",))
        for learner in ("sm", "ens", "gens")),
      Case("live", "live:anytime", (f"--config.dataset.name=live:{_live(folder)}", "--config.train.budget=1e8"),
           ("sweeps",)),
  ]
  return found


def start(case: Case, folder: pathlib.Path, set_back: int = 0, memory: int = 0) -> subprocess.Popen[str]:
  """Starts a process in a session of its own.

  Args:
    case: what it runs.
    folder: run folder.
    set_back: number of calls of time.time after which the clock goes back by a day; 0: never.
    memory: bytes of data that the process may have; 0: no limit.
  """
  env = dict(os.environ)
  if set_back:
    place = folder.parent / "clock"
    place.mkdir()
    (place / "sitecustomize.py").write_text(_CLOCK.format(after=set_back))
    env["PYTHONPATH"] = os.pathsep.join([str(place), *filter(None, [env.get("PYTHONPATH")])])
  limit = ["prlimit", f"--data={memory}"] if memory else []
  return subprocess.Popen([*limit, *case.command(folder)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, errors="replace", start_new_session=True)


def start_sweep(case: Case, folder: pathlib.Path) -> subprocess.Popen[str]:
  """Starts a sweep of the case with two seeds, of which the first is that of the case, in two workers."""
  config, _, learner = case.config.partition(":")
  file = folder.parent / "sweep.py"
  file.write_text("from alma_jax.sweeps import Sweep, axis, product\n\n\ndef get_sweep():\n  return Sweep("
                  f"{f'configs/{config}.py'!r}, product(axis('learner', [{learner!r}]), axis('seed', [0, 1])))\n")
  return subprocess.Popen([sys.executable, "-m", "alma_jax.sweep", f"--config={file}", f"--workdir={folder}",
                           "--workers=2", *_SHORT, *case.flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, errors="replace", start_new_session=True)


def of_sweep(folder: pathlib.Path) -> list[pathlib.Path]:
  """The run of the first seed, of a finished sweep."""
  return [path.parent for path in folder.glob("*seed0*/summary.json")]


def wait(process: subprocess.Popen[str], seconds: float | None = None, number: int = 0) -> Ended:
  """Waits for the end of a process; after `seconds` its session gets a signal.

  Without `seconds` a process may take ten minutes. Then it hangs: it is killed, and its code is HUNG.
  """
  hung = False
  try:
    said = process.communicate(timeout=seconds or _LONGEST)[1]
  except subprocess.TimeoutExpired:
    hung = seconds is None
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL if hung else number)
    said = process.communicate(timeout=_LONGEST)[1]
  return Ended(HUNG if hung else process.returncode, said)


def has_small_disks() -> bool:
  """Whether this user may mount disks."""
  return sys.platform.startswith("linux") and subprocess.run(
      ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0


@contextlib.contextmanager
def small_disk(folder: pathlib.Path, size: int, later: int) -> Iterator[Callable[[], object]]:
  """Mounts a disk of `size` bytes at a folder; calling what is given enlarges it to `later` bytes."""
  mount = lambda options: subprocess.run(["mount", *options, str(folder)], check=True)
  mount(["-t", "tmpfs", "-o", f"size={max(size, 2**16)}", "none"])
  try:
    yield lambda: mount(["-o", f"remount,size={max(later, 2**24)}"])
  finally:
    subprocess.run(["umount", "-l", str(folder)], check=True)


@contextlib.contextmanager
def read_only(folder: pathlib.Path) -> Iterator[None]:
  """What is opened below the folder from now on cannot be written."""
  unmount = lambda: subprocess.run(["umount", "-l", str(folder)], check=True)
  for _ in range(100):
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    if not subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], capture_output=True).returncode:
      break
    unmount()  # busy: the process opened a file for writing between the two calls
  else:
    raise OSError(f"{folder} did not become read-only in 100 attempts")
  try:
    yield
  finally:
    unmount()


def _text(folder: pathlib.Path) -> tuple[str, ...]:
  """Documents of random sentences, and the fields of a small language model."""
  rng, place = np.random.default_rng(0), folder / "text"
  for split, num in (("train", 12), ("valid", 2), ("test", 2)):
    (place / split).mkdir(parents=True, exist_ok=True)
    for i in range(num):
      (place / split / f"{i:02d}.txt").write_text("\n".join(" ".join(rng.choice(_WORDS, 8)) for _ in range(60)))
  return (f"--config.dataset.name=text:{place}", *(f"--config.{name}={value}" for name, value in _TOY.items()))


def _live(folder: pathlib.Path) -> pathlib.Path:
  """A live stream of 8 mega-batches, which has ended."""
  images, labels = load_digits(return_X_y=True)
  place, size = folder / "live", 150
  (place / "stream").mkdir(parents=True, exist_ok=True)
  arrays = lambda i: dict(x=images.reshape(-1, 8, 8).astype(np.uint8)[i * size:(i + 1) * size],
                          y=labels[i * size:(i + 1) * size])
  for i in range(8):
    np.savez(place / "stream" / f"{i}.npz", **arrays(i))
  np.savez(place / "test.npz", **arrays(10))
  (place / "end").touch()
  return place
