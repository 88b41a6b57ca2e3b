"""The notebooks of colabs/ run from end to end at toy size, and are kept with their outputs."""
import nbformat
import pytest
from nbclient import NotebookClient
from runs import ROOT

TOY = {
    "quickstart": 'DIGITS = {"train.epochs": 2}\nMNIST = {"stream.num_megabatches": 4, "stream.waiting_time": 2, '
                  '"train.epochs": 1, "model.width": 4, "devices": 1}',
    "learners": 'SMALLER = {"stream.num_megabatches": 4, "train.epochs": 1, "model.width": 4, "devices": 1}',
    "analysis": 'FIELDS = "--config.train.epochs=1 --config.stream.num_megabatches=5 --config.model.width=4"',
}


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
