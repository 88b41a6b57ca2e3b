"""Studies to which `benchmarks/claims.py --keep` adds the runs of reports."""
import pandas as pd
import pytest
from made_studies import TRUE, _path, image_runs, keep, text_runs, verdicts  # noqa: F401

pytestmark = pytest.mark.slow

TWO = {name: TRUE[name] for name in ("sm", "ens")}  # for what does not need all learners


def test_a_study_that_is_kept(tmp_path):
  import claims

  from alma_jax.errors import BadInput
  runs, stream = image_runs(TRUE, 1)
  keep(tmp_path, "mnist", runs, stream)
  kept = pd.read_csv(tmp_path / "mnist/stream.csv.gz")
  assert kept["updated"].all()
  assert len(kept) == stream["updated"].sum() < len(stream)
  assert pd.read_csv(tmp_path / "mnist/runs.csv")["run"][0] == "sm-4-1-0.0-0"
  with pytest.raises(BadInput, match="is not the folder of a report"):
    claims.keep(tmp_path, tmp_path, "mnist")
  with pytest.raises(BadInput, match="several runs in folders of the same name"):
    keep(tmp_path, "mnist_replay", pd.concat([runs, runs]), stream)


def test_runs_join_a_study(tmp_path):
  """One seed after the other makes the same study as all at once, and a run that is there is replaced."""
  from alma_jax.errors import BadInput
  runs, stream = image_runs(TWO, 1)
  of = lambda seed: (runs[runs["seed"] == seed], stream[stream["run"].str.endswith(f"-{seed}")])
  said = keep(tmp_path / "whole", "mnist", runs, stream)
  assert said == f"mnist: {len(runs)} new runs, 0 replaced, {len(runs)} in all"
  one = len(of(0)[0])
  for seed in range(3):
    said = keep(tmp_path / str(seed), "mnist", *of(seed), results=tmp_path / "parts")
  assert said == f"mnist: {one} new runs, 0 replaced, {len(runs)} in all"
  for name in ("runs.csv", "stream.csv.gz"):
    whole, parts = (pd.read_csv(tmp_path / folder / "mnist" / name) for folder in ("whole", "parts"))
    by = ["run", *(["t"] if "t" in whole else [])]
    pd.testing.assert_frame_equal(whole.sort_values(by, ignore_index=True), parts.sort_values(by, ignore_index=True))
  assert verdicts(tmp_path / "parts") == verdicts(tmp_path / "whole")

  first = tmp_path / "parts/mnist/runs.csv"
  # Of the same kinds and seed, with other names, and with whole numbers where the study has floats.
  again = of(0)[0].assign(cer=1.0, run=of(0)[0]["run"] + "-renamed", **{"stream.replay": 0})
  said = keep(tmp_path / "again", "mnist", again, of(0)[1].assign(run=of(0)[1]["run"] + "-renamed"),
              results=tmp_path / "parts")
  assert said == f"mnist: 0 new runs, {one} replaced, {len(runs)} in all"
  table = pd.read_csv(first)
  assert (table["cer"] == 1).sum() == table["run"].str.endswith("-renamed").sum() == one
  assert set(pd.read_csv(tmp_path / "parts/mnist/stream.csv.gz")["run"]) == set(table["run"])
  other = pd.DataFrame([again.iloc[0]]).assign(**{"learner.name": "anytime"})  # FACTORS do not tell its kinds apart
  for seed in (0, 1):
    said = keep(tmp_path / f"other{seed}", "mnist", pd.concat([runs, other.assign(run=f"other{seed}")]), stream,
                results=tmp_path / "more")
  assert said.endswith(f"{len(runs)} replaced, {len(runs) + 2} in all")
  before = first.read_bytes()
  names = [*again["run"][1:], again["run"].iloc[0]]
  for i, (table, sentence) in enumerate((
      (again.assign(seed=3, run=again["run"] + "-3", data_fingerprint="other"),
       "with the runs of .* cannot be compared; their data differs: one and other"),
      (again.assign(seed=3, run=again["run"] + "-3", **{"train.learning_rate": 0.5, "stream.num_megabatches": 50}),
       "the runs of .* cannot be compared; stream.num_megabatches is 50 and 500"),
      (again.assign(run=names), "its run .* is another kind of run than that of the study"),
      (pd.concat([again, again.assign(run=names).replace("-renamed$", "-twice", regex=True)]),
       "several runs of .* have the same seed"))):
    with pytest.raises(BadInput, match=sentence):
      keep(tmp_path / f"bad{i}", "mnist", table, stream.iloc[:0], results=tmp_path / "parts")
  assert first.read_bytes() == before


@pytest.mark.parametrize(("study", "changes", "message"), [
    ("mnist_authors", {}, "'mnist_authors': train.patience is 0 in it instead of 0 and 25"),
    ("mnist", {"train.patience": 25}, "'mnist': train.patience is 25 in it instead of 0"),
    ("cifar", {"dataset.name": "cifar10"}, "'cifar': train.epochs is 100 in it instead of 3"),
    ("mnist_replay", {}, "'mnist_replay': stream.replay is 0 in it instead of 0 and 1"),
    ("text", {}, "'text': dataset.name is mnist in it instead of text:part"),
])
def test_a_report_of_another_study_is_refused(tmp_path, study, changes, message):
  from alma_jax.errors import BadInput
  runs, stream = image_runs(TRUE, 1)
  with pytest.raises(BadInput, match=message):
    keep(tmp_path, study, runs.assign(**changes), stream)
  assert not (tmp_path / study).exists()


@pytest.mark.parametrize(("study", "field", "message"), [
    ("mnist", "data_fingerprint", "their data differs: one and other"),
    ("mnist", "precision", "their precision differs: float32 and other"),
    ("text", "data_fingerprint", "their data differs: order0 and order1 and order2 and other"),
])
def test_runs_of_different_data_or_precision_are_not_compared(tmp_path, study, field, message):
  """The fingerprint of a text differs between seeds, which order it; that of one run differs from its seed's."""
  import claims

  from alma_jax.errors import BadInput
  runs, stream = text_runs() if study == "text" else image_runs(TRUE, 1)
  keep(tmp_path, study, runs, stream)
  runs.loc[runs.index[-1], field] = "other"
  with pytest.raises(BadInput, match=message):
    keep(tmp_path / "again", study, runs, stream)
  runs.to_csv(tmp_path / study / "runs.csv", index=False)
  with pytest.raises(BadInput, match=message):
    claims.page(tmp_path)


def test_a_study_names_no_folder_of_the_machine(tmp_path):
  keep(tmp_path, "mnist", *image_runs(TRUE, 1))
  assert "/home/me" not in (tmp_path / "mnist/runs.csv").read_text()


def test_runs_in_folders_with_numbers_for_names(tmp_path):
  runs, stream = image_runs(TWO, 1)
  number = {name: f"runs/made/{i}" for i, name in enumerate(runs["run"])}
  keep(tmp_path, "mnist", *(table.assign(run=table["run"].map(number)) for table in (runs, stream)))
  found = verdicts(tmp_path)
  assert found["Larger networks have a lower CER", "MNIST"] == "agrees"
  assert found["Large networks after a tenth of the stream beat small ones at its end", "MNIST"] == "agrees"


def test_kinds_of_runs_are_not_mixed(tmp_path):
  """Runs that differ in a field that no claim knows are refused, instead of the last one being taken."""
  import claims

  from alma_jax.errors import BadInput
  runs, stream = image_runs(TRUE, 1)
  keep(tmp_path, "mnist", runs, stream)
  other = runs.assign(run=runs["run"].str.rsplit("/").str[-1] + "-other").drop(columns="dataset.data_dir")
  for table, sentence in ((other, "several runs of .* have the same seed"),
                          (other.assign(seed=other["seed"] + 3, **{"train.patience": 25}),
                           "the runs of .* cannot be compared; train.patience is 0 and 25")):
    pd.concat([pd.read_csv(tmp_path / "mnist/runs.csv")[:len(runs)], table]).to_csv(
        tmp_path / "mnist/runs.csv", index=False)
    with pytest.raises(BadInput, match=sentence):
      claims.page(tmp_path)
