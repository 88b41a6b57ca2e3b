"""The tables and figures of the pages of studies."""
import numpy as np
import pandas as pd
import pytest
from made_studies import TRUE, _path, image_runs, keep  # noqa: F401
from runs import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("study", ["mnist", "mnist_replay", "replay", "mnist_authors", "cifar", "text"])
def test_the_tables_of_studies_are_those_of_the_committed_runs(study):
  import study_table
  folder = ROOT / "docs/results" / study
  page = (folder / "README.md").read_text()
  tables = study_table.all_of(folder)
  assert tables
  assert all(table in page for table in tables)
  assert all(each in " ".join(page.split()) for each in study_table.cost(folder))


def test_the_table_of_a_study(tmp_path):
  """Fields are named where they tell kinds of a learner apart; the best waiting time is that of the kinds there are."""
  import study_table
  runs, stream = image_runs({"sm": TRUE["sm"], "ens": TRUE["ens"]}, 1, replay_gain=0.1)
  runs["cer"] = (runs["model.width"] + runs["stream.waiting_time"] + 100 * (runs["learner.name"] == "ens")
                 + runs["stream.replay"] / 2 + runs["seed"] - 1)  # the standard deviation over seeds is 1
  runs = runs[runs["model.width"].isin([4, 64]) & runs["stream.waiting_time"].isin([1, 10])]
  keep(tmp_path, "mnist_replay", runs[~((runs["learner.name"] == "ens") & (runs["model.width"] == 64)
                                        & (runs["stream.waiting_time"] == 1))], stream)
  (table,) = study_table.all_of(tmp_path / "mnist_replay")
  assert table.splitlines() == [
      "| | width 4 | width 64 |",
      "| --- | ---: | ---: |",
      "| `sm`, replay 0 | 5.0 ± 1.0 (w = 1) | 65.0 ± 1.0 (w = 1) |",
      "| `sm`, replay 1 | 5.5 ± 1.0 (w = 1) | 65.5 ± 1.0 (w = 1) |",
      "| `ens` | 105.0 ± 1.0 (w = 1) | 174.0 ± 1.0 (w = 10) |"]


def test_the_costs_of_growing_at_several_intervals(tmp_path):
  """`sm` has CER x multiply-adds = 256, so that its CER is 10.67 at the 24 of gmoe, which is at 1.2 and 0.95 of it."""
  import study_table
  runs, stream = image_runs({name: TRUE[name] for name in ("sm", "gmoe", "moe")}, 1, replay_gain=0.1)
  learner, width, wait = runs["learner.name"], runs["model.width"], runs["stream.waiting_time"]
  runs = runs[wait.isin([1, 10]) & ((width == 8) | (width == 64) & (learner == "sm"))]
  learner, width, wait = runs["learner.name"], runs["model.width"], runs["stream.waiting_time"]
  cheap = runs[(learner == "gmoe") & (wait == 10)]
  scratch = runs[(learner == "sm") & (width == 8) & (wait == 10) & (runs["stream.replay"] == 0)]
  runs = runs.assign(**{"stream.replay": np.where(learner == "moe", 1.0, runs["stream.replay"]),
                        "learner.grow_every": np.where(learner == "gmoe", 5, None)})
  more = [cheap.assign(run=cheap["run"] + f"-{every}", cumulative_fwd_macs=macs, **{"learner.grow_every": every})
          for every, macs in ((2, 99), (25, 4))]
  runs = pd.concat([pd.concat([runs, *more]).assign(**{"learner.init_from_scratch": False}), scratch.assign(
      run=scratch["run"] + "-s", cumulative_fwd_macs=16, **{"learner.init_from_scratch": True})])
  of_gmoe = np.where(runs["seed"] == 1, 256 / 24 * 0.95, 256 / 24 * 1.2)
  cers = np.select([runs["learner.name"] == "gmoe", runs["model.width"] == 64], [of_gmoe, 4.0], 32.0)
  keep(tmp_path, "mnist_replay", runs.assign(cer=cers), stream)
  first, table = study_table.all_of(tmp_path / "mnist_replay")  # of w = 10 alone, without replay
  assert f"{(1.2 * 1.2 * 0.95)**(1 / 3) - 1:.0%}" == "11%"  # the arithmetic mean of the ratios gives 12 %
  assert table.splitlines()[2:] == [
      "| `sm` | 8 | 32.0 ± 0.0 | 8 | |",
      "| `sm`, init_from_scratch | 8 | 32.0 ± 0.0 | 16 | |",
      "| `gmoe`, grow_every 2 | 8 | 11.9 ± 1.5 | 99 | |",
      "| `gmoe`, grow_every 5 | 8 | 11.9 ± 1.5 | 24 | +11 % |",
      "| `gmoe`, grow_every 25 | 8 | 11.9 ± 1.5 | 4 | |",
      "| `sm` | 64 | 4.0 ± 0.0 | 64 | |"]
  assert "`gmoe`, grow_every 5" in first  # which has it at w = 1, too
  assert "grow_every 2" not in first
  assert "`moe`" in first  # with replay alone


def test_a_study_of_nothing_but_growth(tmp_path):
  import study_table
  runs, stream = image_runs({"gmoe": TRUE["gmoe"]}, 1)
  runs = runs[(runs["model.width"] == 8) & (runs["stream.waiting_time"] == 10)]
  keep(tmp_path, "mnist", pd.concat([runs.assign(run=runs["run"] + f"-{every}", **{"learner.grow_every": every})
                                            for every in (2, 5)]), stream)
  (table,) = study_table.all_of(tmp_path / "mnist")
  assert "multiply-adds" in table
  assert len(table.splitlines()) == 4


def test_the_figures_of_a_study_from_the_runs_that_are_kept(tmp_path):
  """The error before the first training follows from the CER; an error stays until the next training."""
  import study_figures
  runs, _ = image_runs({"sm": TRUE["sm"]}, 1)
  runs = runs[(runs["model.width"] == 4) & (runs["stream.waiting_time"] == 50) & (runs["seed"] == 0)]
  runs = runs.assign(cer=49 * 0.9 + 450 * 0.3 + 0.2)
  name = runs["run"].iloc[0]
  kept = pd.DataFrame({"run": name, "t": [50, 500], "stage": [0, 9], "updated": True, "error": [0.3, 0.2],
                       "cumulative_fwd_macs": [5.0, 50.0]})
  keep(tmp_path, "mnist", runs, kept)
  made = study_figures.study_of(tmp_path / "mnist").stream
  assert len(made) == 500
  assert made["error"].tolist() == pytest.approx([0.9] * 49 + [0.3] * 450 + [0.2])
  assert made["cumulative_fwd_macs"].tolist() == [0.0] * 49 + [5.0] * 450 + [50.0]
  (tmp_path / "mnist" / "compute.svg").touch()  # of other runs; a single kind of run has none
  captions = study_figures.draw(tmp_path / "mnist")
  assert [*captions] == [path.stem for path in (tmp_path / "mnist").glob("*.svg")] == ["stream"]


def test_a_folder_that_is_no_study(tmp_path):
  import study_figures

  from alma_jax.errors import BadInput
  with pytest.raises(BadInput, match="other is not the folder of a study; the studies are mnist, "):
    study_figures.draw(tmp_path / "other")
  with pytest.raises(BadInput, match="there is no .*mnist/runs.csv; `alma sweep --config=sweeps/mnist` makes"):
    study_figures.draw(tmp_path / "mnist")
