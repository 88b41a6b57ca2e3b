"""Measures what it costs `select` and `mntdp` to search the stored networks for a new task.

    python benchmarks/retrieval.py --out docs/results/tasks/retrieval.csv

The task has all digits of scikit-learn's images at 32x32 pixels, 90 training and 40 validation examples of a class.
The stored networks have the same random weights: the cost of searching does not depend on them. `shared` means that
four tasks share each body, as tasks of `mntdp` do that add a head alone. Seconds are medians of --turns searches. A
search that compiles a program does not count; a line says how many programs were compiled for so many networks, after
the searches among fewer.
"""
import argparse
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pandas as pd

from alma_jax import config as configs
from alma_jax.learners.contract import LearnerState
from alma_jax.learners.paths import Paths
from alma_jax.models import path
from alma_jax.parallel import runtime
from alma_jax.runs import settings

COUNTS = (1, 2, 5, 10, 20, 50, 100)
COLUMNS = ["learner", "network", "stored", "bodies", "programs", "seconds", "macs"]
_SHARING = 4  # tasks to a body, where they share
_MODELS = {"vgg": 8, "mlp": 32}  # widths
_TASKS = """
def get_tasks(seed):
  return [dict(name=f"task {t}", data="digits32", train=90, val=40) for t in range(2)]
"""
_SECTION = """## The cost of searching

A search embeds the images of a task (here 900 for training, 400 for validation) once by each stored body, so its cost
grows linearly with the number of bodies. The lines fit the seconds of up to {} stored networks on two shared CPU cores.

{}

All networks of a kind share one program, compiled for the first search; {} for more networks{}.
`python benchmarks/retrieval.py --out docs/results/tasks/retrieval.csv` measures all points.
"""


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--counts", type=int, nargs="+", default=COUNTS, help="numbers of stored networks, ascending")
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--out", help="CSV file to write")
  args = parser.parse_args()
  rows = []
  for model, width in _MODELS.items():
    for learner, shared in (("select", False), ("mntdp", False), ("mntdp", True)):
      for row in measured(learner, model, width, shared, args.counts, args.turns):
        rows.append(row)
        print(*row, flush=True)
  table = pd.DataFrame(rows, columns=COLUMNS)
  if args.out:
    table.to_csv(args.out, index=False)
  print(section(table))


def measured(learner: str, model: str, width: int, shared: bool, counts: Any, turns: int
             ) -> Iterator[tuple[Any, ...]]:
  """Rows of a learner and a network, with COLUMNS."""
  config = configs.tasks(learner, "digits")
  config.model.name, config.model.width, config.log.progress = model, width, False
  with tempfile.TemporaryDirectory() as folder:
    file = pathlib.Path(folder) / "two.py"
    file.write_text(_TASKS)
    config.dataset.name = f"tasks:{file}"
    parsed = configs.parse(config)
    runtime.setup(parsed)
    setting = settings.prepare(parsed)
    data = setting.protocol.stage((1, 2), setting.learner, {}).data
  assert isinstance(setting.learner, Paths)
  compiled = _Compilations()
  for num in counts:
    state = stored(setting.learner, num, _SHARING if shared else 1)
    before, seconds, programs = compiled.num, list[float](), 0
    while len(seconds) < turns:
      start = time.monotonic()
      found = setting.learner.propose(state, data)
      took = time.monotonic() - start
      if not seconds and compiled.num > before + programs:
        programs = compiled.num - before
      else:
        seconds.append(took)
    bodies = len({tuple(task["path"][:-1]) for task in state.spec["tasks"]})
    yield (f"{learner}, shared" if shared else learner, f"{model} of width {width}", num, bodies, programs,
           round(statistics.median(seconds), 4), found.macs)


def stored(learner: Paths, num: int, sharing: int) -> LearnerState:
  """The state after `num` tasks, of which `sharing` after one another have the same body, and each its own head."""
  state, modules, frozen, tasks = learner.init(), [], [], []
  whole = learner.whole(learner.context.problem.num_outputs)
  made = jax.device_get(whole.init(jax.random.key(0), learner.context.example))
  for t in range(num):
    trained = [t % sharing == 0 or part == len(learner.parts) - 1 for part in range(len(learner.parts))]
    used = list(tasks[-1]["path"]) if tasks else [0] * len(learner.parts)
    for part, is_new in enumerate(trained):
      if is_new:
        used[part] = len(modules)
        modules.append([part, learner.context.problem.num_outputs if part == len(trained) - 1 else 0, t])
        frozen.append(path.part(made, learner.parts[part]))
    tasks.append(dict(path=used, origin=-1, pair=0, classes=10, labels=0, mean=[0.0] * 3, std=[1.0] * 3))
  spec = {**state.spec, "num_frozen": len(frozen), "modules": modules, "tasks": tasks}
  return state._replace(spec=spec, frozen=tuple(frozen), host={"notes": [{}]})


def section(table: pd.DataFrame) -> str:
  """The section of the page about these rows."""
  fits = ["| learner | network | seconds of a body | largest error of the line | multiply-adds of a body |",
          "| --- " * 5 + "|"]
  for (learner, network), mine in table.groupby(["learner", "network"], sort=False):
    bodies, seconds = mine["bodies"].to_numpy(float), mine["seconds"].to_numpy(float)
    slope, besides = fit(bodies, seconds)
    error = np.abs((slope * bodies + besides) / seconds - 1).max()
    macs = mine["macs"].iloc[0] / (mine["bodies"].iloc[0] + (learner == "select"))
    fits.append(f"| {learner} | {network} | {slope:.3g} | {error:.0%} | {macs:.3g} |")
  more = table[table["stored"] > table.groupby(["learner", "network"])["stored"].transform("min")]["programs"]
  every = f" (programs compiled there: {int(more.sum())} in {len(more)} searches)" if more.any() else ""
  return _SECTION.format(table["stored"].max(), "\n".join(fits),
                         "none is compiled" if not more.any() else "few are", every)


def fit(bodies: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
  """(slope, intercept) of the line through these points with the least squares of relative errors."""
  slope, besides = np.polyfit(bodies, seconds, 1, w=1 / seconds)
  return float(slope), float(besides)


class _Compilations:
  """Counts the programs that are compiled."""

  def __init__(self) -> None:
    self.num = 0
    jax.monitoring.register_event_duration_secs_listener(self._count)

  def _count(self, event: str, duration: float, **kwargs: Any) -> None:
    del duration, kwargs
    self.num += event == "/jax/core/compile/backend_compile_duration"


if __name__ == "__main__":
  main()
