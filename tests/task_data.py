"""Small data for streams of tasks."""
import functools

import numpy as np

from alma_jax.data import datasets, task_streams

PARTS = ("train", "val", "test")


@functools.cache
def images(train=600, test=6, blank=False):
  """Data sets mnist and cifar10 with so many examples of a class; the first pixel of an image is its label."""
  made, rng = {}, np.random.default_rng(0)
  for name, shape in (("mnist", (28, 28, 1)), ("cifar10", (32, 32, 3))):
    arrays = {}
    for split, num in ("train", train), ("test", test):
      y = np.arange(10 * num, dtype=np.int32) % 10
      x = np.broadcast_to(np.uint8(0), (len(y), *shape))
      if not blank:
        x = rng.integers(256, size=x.shape, dtype=np.uint8)
        x[:, 0, 0] = y[:, None]
      arrays |= {f"x_{split}": x, f"y_{split}": y}
    made[name] = datasets.Dataset(name, **arrays, num_classes=10, normalization=None, fingerprint=f"{name} {blank}")
  return made


def make(name, seed=0, **kwargs):
  few = {} if name.startswith("tasks") else dict(test_per_class=6, sources="stand_ins")
  return task_streams.make(name, seed, **dict(given=images()) | few | kwargs)


def parts(task):
  return {part: (getattr(task, f"x_{part}"), getattr(task, f"y_{part}")) for part in PARTS}


def same(a, b):
  return all(np.array_equal(x, y) for x, y in zip(a, b))


def counts(stream):
  return [info[3:6] for info in stream.infos]


def own(folder, *tasks, code=None):
  """Writes a file of tasks, or of any code; the name of its stream. `given` makes arrays for it."""
  tasks = repr(list(tasks)).replace("'ARRAYS", "").replace("ARRAYS'", "")
  (folder / "list.py").write_text(code or f"import numpy as np\n\ndef get_tasks(seed):\n  return {tasks}\n")
  return f"tasks:{folder}/list.py"


def given(**changes):
  """Code of six arrays, which `own` writes: 12 + 6 + 6 images of 6x6 pixels and 3 classes."""
  code = {}
  for part, num in zip(PARTS, (12, 6, 6)):
    code[f"x_{part}"] = f"np.random.default_rng({num}).integers(256, size=({num}, 6, 6), dtype=np.uint8)"
    code[f"y_{part}"] = f"np.arange({num}) % 3"
  return f"ARRAYS({', '.join((code | changes).values())})ARRAYS"
