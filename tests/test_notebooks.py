"""The notebooks of colabs/ run from end to end at toy size, and are kept with their outputs; their pictures."""
import importlib.machinery
import importlib.util
import itertools
import types

import matplotlib
import nbformat
import numpy as np
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from nbclient import NotebookClient
from runs import ROOT

from alma_jax.runs import plots

SMALL = '{"stream.num_megabatches": 4, "stream.waiting_time": 2, "train.epochs": 1, "model.width": 4, "devices": 1}'
TOY = {
    "quickstart": f"DIGITS = MNIST = {SMALL}",
    "learners": f"SMALLER = {SMALL}",
    "anytime": 'DIGITS = {"stream.num_megabatches": 4, "train.epochs": 2, "train.steps": 4, "model.width": 4, '
               '"devices": 1}\n'
               'MNIST = {"model.name": "mlp", "stream.num_megabatches": 5, "train.steps": 4, "devices": 1}\n'
               'BUDGET, EPOCHS = {"train.budget": 1e7}, {"train.epochs": 1}',
    "modular": 'PARTS, CODED, EXPERTS = 20, 100, 2\nIMAGES, RUNS = 200, {"train.epochs": 1, "devices": 1}\n'
               'TASKS = {"stream.num_megabatches": 5, "train.epochs": 1, "devices": 1}',
    "drift": 'SIZE = {"model.name": "mlp", "stream.num_megabatches": 4, "dataset.megabatch_size": 20, "devices": 1}\n'
             'BUDGET, STREAMS, NIGHTS, LIVE = {"train.budget": 1e7}, ["rotate"], 2, {"train.budget": 1e8}',
    "analysis": 'FIELDS = "--config.train.epochs=1 --config.stream.num_megabatches=5 --config.model.width=4"',
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
@pytest.mark.parametrize("name", TOY)
def test_notebooks_run(tmp_path, tfds_dir, monkeypatch, name):
  monkeypatch.setenv("PYTHONPATH", str(ROOT))
  monkeypatch.setenv("TFDS_DATA_DIR", str(tfds_dir))
  monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
  notebook = nbformat.read(ROOT / "colabs" / f"{name}.ipynb", 4)
  (place,) = (i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
  notebook.cells[place].source = TOY[name]
  where = {"metadata": {"path": str(tmp_path)}}
  NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
  pictures = [output for cell in notebook.cells for output in cell.get("outputs", [])
              if "image/png" in output.get("data", {})]
  assert len(pictures) >= 3


@pytest.mark.parametrize("name", TOY)
def test_notebooks_are_kept_with_their_outputs(name):
  notebook = nbformat.read(ROOT / "colabs" / f"{name}.ipynb", 4)
  nbformat.validate(notebook)
  assert f"/blob/main/colabs/{name}.ipynb)" in notebook.cells[0].source  # Open in Colab
  cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
  assert all(cell.execution_count for cell in cells)
  outputs = [output for cell in cells for output in cell.outputs]
  assert not [output for output in outputs if output.output_type == "error"]
  assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
  assert "is complete" not in str(outputs)


def first_cell(name):
  """The source of a notebook's first cell with code."""
  notebook = nbformat.read(ROOT / "colabs" / f"{name}.ipynb", 4)
  return next(cell.source for cell in notebook.cells if cell.cell_type == "code")


def test_the_first_cells_are_equal():
  assert {first_cell(name) for name in TOY} == {first_cell("quickstart")}
  assert "print(jax.devices())" in first_cell("quickstart")


@pytest.mark.parametrize(("beside", "source"), [
    (["alma_jax-0.2.0-py3-none-any.whl", "repo/alma_jax/version.py"], "{here}/alma_jax-0.2.0-py3-none-any.whl[tfds]"),
    (["repo/alma_jax/version.py", "note.txt"], "{here}/repo[tfds]"),
    (["alma_jax/alma_jax/version.py"], "{here}/alma_jax[tfds]"),
    (["../alma_jax/version.py"], "{above}[tfds]"), ([], "alma_jax[tfds] @ git+https://github.com/alma-jax/alma_jax"),
    (None, None)])
def test_the_first_cell_installs_what_lies_beside_the_notebook(tmp_path, monkeypatch, capsys, beside, source):
  here = tmp_path / "colabs"
  here.mkdir()
  for name in beside or []:
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).touch()
  monkeypatch.chdir(here)
  monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "8")
  if beside is not None:  # not installed; Python finds a folder alma_jax as a namespace
    folder = importlib.machinery.ModuleSpec("alma_jax", None) if (here / "alma_jax").is_dir() else None
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: folder)
  commands = []
  code = TransformerManager().transform_cell(first_cell("quickstart"))
  exec(code, {"get_ipython": lambda: types.SimpleNamespace(system=commands.append)})
  wanted = source and '{sys.executable} -m pip install -q "{source}"'
  assert commands == ([wanted] if wanted else [])
  assert "Device(id=0)" in capsys.readouterr().out


def test_the_quick_start_shows_true_labels():
  notebook = nbformat.read(ROOT / "colabs/quickstart.ipynb", 4)
  (source,) = (cell.source for cell in notebook.cells if "run.predict(" in cell.source)

  class Run:
    """Predicts 3 for every image."""
    predict = staticmethod(lambda images: np.eye(10)[[3] * len(images)])

  names = {"run": Run}
  exec(source, names)
  names["plt"].close(names["figure"])
  titles = [ax.get_title() for ax in names["axes"]]
  assert titles == [f"3 (100%)\ntrue: {label}" for label in names["labels"]]
  assert len(set(names["labels"])) > 2


TREES = {"one": [], "chain": [0] * 15, "two chains": [0] * 8 + [1] * 8,
         "many": [int(i) for i in np.random.default_rng(0).integers(0, range(1, 30))]}


@pytest.mark.parametrize(("tree", "inches"), [
    *((tree, (3, 3)) for tree in TREES), ("two chains", (1, 4)), ("two chains", (5, 1))])
def test_circles_of_a_gate_tree_do_not_touch(tree, inches):
  """With equal sizes, with those of one expert that has all, and when the figure is made smaller afterwards."""
  num = len(TREES[tree]) + 1
  for sizes in (None, [1.0] + [0.0] * (num - 1), [0.0] * (num - 1) + [1.0], [5.0] * num):
    figure = Figure(figsize=inches)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    plots.gate_tree(TREES[tree], axes, sizes)
    for scale in (1, 0.5):
      figure.set_size_inches(inches[0] * scale, inches[1])
      figure.canvas.draw()
      shapes = [shape for shape in (*axes.patches, *axes.collections)
                if matplotlib.colors.to_hex(np.ravel(shape.get_facecolor())).upper() == plots.COLOURS[0]]
      boxes = [shape.get_window_extent() for shape in shapes]
      assert len(boxes) == num
      for box, other in itertools.combinations(boxes, 2):
        apart = np.hypot((box.x0 + box.x1 - other.x0 - other.x1) / 2, (box.y0 + box.y1 - other.y0 - other.y1) / 2)
        assert apart > (box.width + other.width) / 2
      frame = figure.bbox
      assert all(frame.x0 <= box.x0 < box.x1 <= frame.x1 and frame.y0 <= box.y0 < box.y1 <= frame.y1 for box in boxes)
      assert all(box.width == pytest.approx(box.height, rel=1e-3) for box in boxes)
