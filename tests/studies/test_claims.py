"""The page of the paper's claims, on made runs with a known answer."""
import math

import numpy as np
import pandas as pd
import pytest
from made_studies import (  # noqa: F401
  FALSE,
  TRUE,
  _path,
  compared_once,
  image_runs,
  keep,
  text_runs,
  verdicts,
  with_growth,
)
from runs import ROOT

pytestmark = pytest.mark.slow

FIXED = [f"At equal {budget} a fixed network beats a growing one" for budget in (
    "compute", "memory", "compute and memory")]
FIXED_TOO = ["At equal compute a fixed network beats a growing one, each at its best waiting time",
             "At equal compute a fixed network beats a mixture of experts or a network that grows"]
TRADE_OFF, LOWEST = "At equal compute replay is not better", "Replay has the lowest CER of all"
TRADE_OFF_ANY = "At equal compute replay is not better, each at its best waiting time"
APART = {  # no world has these together with the others; see test_paper.py
    "UMix beats Ens for small networks", "Ens beats UMix for large networks",
    "At equal compute an ensemble beats a single network",
    "At equal compute a growing ensemble beats other growing learners",
    "At equal memory a growing ensemble loses to other growing learners", "Replay helps a growing ensemble least",
    "Training once, at the end, gives the lowest final error",
    "A large language model after the first mega-batch beats a small one after the last",
    "At equal compute a single language model beats an ensemble",
    "A growing mixture holds fewer parameters than a growing ensemble",
    "A mixture with a constant, intermediate number of experts beats one that grows",
    "With replay, the shortest waiting time has the lowest CER"}
REPLAY = "MNIST, replay and growth"
TWO = {name: TRUE[name] for name in ("sm", "umix")}  # for what does not need all learners


def test_the_page_on_growing_has_the_numbers_of_the_claims():
  import evidence
  table = pd.read_csv(ROOT / "docs/results/verdicts.csv")
  rows = [line.split("|")[2:5] for line in (ROOT / "docs/results/growth.md").read_text().splitlines() if "%" in line
          and line.startswith("|")]
  studies = ("MNIST", "MNIST, authors' early stopping", "CIFAR-10, 3 epochs")
  for claim, cells in zip((40, 6, 7, 8), rows, strict=True):
    for study, cell in zip(studies, cells, strict=True):
      row = table[(table["claim"] == claim) & (table["study"] == study)].iloc[0]
      assert cell.strip(" *") == row["number"].split(" (")[0]
      assert ("**" in cell) == (row["verdict"] not in evidence.OPEN)


def test_where_the_paper_says_it():
  """Figure 9 belongs to appendix E, C.1 is the lower half of Figure 7, and both factors of replay are of CIFAR-10."""
  import claims
  sources = {claim.text: claim.source for claim in claims.CLAIMS}
  for text, source in sources.items():
    assert "Figure 9" not in source, text
    assert "C.1" not in source or source == "appendix C.1; Figure 7, bottom", text
  assert sources["Large networks after a tenth of the stream beat small ones at its end"] == "§6.1; Figure 3"
  replay = sources["Replay takes 5 to 10 times the compute"]
  assert "4.5 times for CIFAR-10 (Figure 1)" in replay
  assert "MNIST" not in replay


def test_every_claim_on_runs_in_which_it_is_true(tmp_path, monkeypatch):
  import claims
  keep(tmp_path, "mnist", *image_runs(TRUE, 1))
  keep(tmp_path, "mnist_replay", *with_growth(*image_runs(TRUE, 1, replay_gain=0.1), 1))
  keep(tmp_path, "text", *text_runs())
  compared_once(monkeypatch, tmp_path)
  found = verdicts(tmp_path)
  measured = {key: verdict for key, verdict in found.items() if verdict != "not measured" and key[0] not in APART}
  assert {*APART, *(text for text, _ in measured)} == {claim.text for claim in (*claims.CLAIMS, *claims.QUESTIONS)}
  # Replay that lowers the CER a little is no better than other learners at its compute, nor the best of all.
  assert {key: verdict for key, verdict in measured.items() if verdict != "agrees"} == {(LOWEST, REPLAY): "disagrees"}
  assert found["Replay lowers the CER", "CIFAR-10, 3 epochs"] == "not measured"
  assert ("Replay lowers the CER", "CIFAR-10, 100 epochs") not in found  # rows that would say nothing yet
  comparisons = claims.comparisons(tmp_path)
  assert not comparisons.duplicated(["claim", "study", "comparison"]).any()  # each has a name of its own
  number = next(i for i, claim in enumerate(claims.CLAIMS, 1) if claim.points)
  points = comparisons[(comparisons["claim"] == number) & (comparisons["study"] == "mnist")]["mean"]
  assert points.between(0.5, 40).all()  # not shares, which are a hundredth of it


def test_every_claim_on_runs_in_which_it_is_false(tmp_path):
  keep(tmp_path, "mnist", *image_runs(FALSE, -1))
  keep(tmp_path, "mnist_replay", *with_growth(*image_runs(FALSE, -1, replay_gain=-0.1, replay_cost=16), -1))
  keep(tmp_path, "text", *text_runs(false=True))
  measured = {key: verdict for key, verdict in verdicts(tmp_path).items()
              if verdict != "not measured" and key[0] not in APART}
  # A growing learner that is worse than `sm`, and replay that is worse than none, make these true.
  assert {text for (text, _), verdict in measured.items() if verdict != "disagrees"} == {
      *FIXED, *FIXED_TOO, TRADE_OFF, TRADE_OFF_ANY}


def test_growing_and_replay_that_are_better_than_all_else(tmp_path):
  growing = {name: (share * (0.5 if name in ("gens", "gmoe", "ff") else 1), *costs)
             for name, (share, *costs) in TRUE.items()}
  keep(tmp_path, "mnist_replay", *image_runs(growing, 0, replay_gain=2.0))
  keep(tmp_path, "mnist", *image_runs(growing, 0))
  found = verdicts(tmp_path)
  assert [found[text, REPLAY] for text in (TRADE_OFF, TRADE_OFF_ANY, LOWEST)] == ["disagrees", "disagrees", "agrees"]
  assert {found[text, "MNIST"] for text in (*FIXED, *FIXED_TOO)} == {"disagrees"}


def test_rivals_within_a_budget_come_from_both_studies(tmp_path):
  """Both studies have `sm`; only one has a network that grows, or one with replay, which is better or worse."""
  costs, cost = {"sm": (1.0, 1, 1, 1), "ff": (0.5, 1, 1, 1)}, "cumulative_fwd_macs"
  runs, stream = image_runs(costs, 0, replay_gain=0.5, replay_cost=1)
  replay = runs[runs["learner.name"] == "sm"]
  growing = runs[runs["stream.replay"] == 0]
  keep(tmp_path, "mnist", growing.assign(**{cost: 1.0}), stream)
  keep(tmp_path, "mnist_replay", replay.assign(**{cost: 1.0}), stream)
  found = verdicts(tmp_path)
  assert found[FIXED[0], "MNIST"] == "disagrees"
  assert found[TRADE_OFF, REPLAY] == found[TRADE_OFF_ANY, REPLAY] == "agrees"  # against `ff` of the other study
  (tmp_path / "mnist/runs.csv").unlink()
  found = verdicts(tmp_path)
  assert found[TRADE_OFF, REPLAY] == found[TRADE_OFF_ANY, REPLAY] == "disagrees"
  keep(tmp_path / "again", "mnist", growing[growing["learner.name"] == "ff"].assign(**{cost: 1.0}), stream,
       results=tmp_path)
  assert verdicts(tmp_path)[FIXED[0], "MNIST"] == "disagrees"  # against `sm` of the other study


def test_verdicts_on_a_study_do_not_depend_on_other_studies(tmp_path):
  import claims
  numbers = lambda: claims.verdicts(tmp_path).query("study == 'MNIST'").to_dict("records")
  keep(tmp_path, "mnist", *image_runs(TWO, 1))
  before = numbers()
  keep(tmp_path, "text", *text_runs())
  assert numbers() == before
  assert sum(line["verdict"] == "agrees" for line in before) > 3


def test_a_study_that_is_not_complete(tmp_path):
  """The widest networks, and one kind of all widths, have only their first seed, with a CER that is very different."""
  runs, stream = image_runs(TRUE, 1)
  keep(tmp_path, "mnist", runs, stream)
  before, where_before = verdicts(tmp_path, "where")
  late = (runs["model.width"] == 64) | ((runs["learner.name"] == "sm") & (runs["stream.waiting_time"] == 50))
  runs.loc[late, "cer"] *= 0.1
  keep(tmp_path / "part", "mnist", runs[~late | (runs["seed"] == 0)], stream)
  found, where = verdicts(tmp_path / "part", "where")
  # Without the widest networks, all learners have runs only within a factor of two in compute.
  trade_off = "No learner has the best trade-off everywhere", "MNIST"
  assert {key: found[key] for key in found if found[key] != before[key]} == {trade_off: "not measured"}
  # Of 7 learners, 4 widths and 4 waiting times, all at 3 widths, besides `sm` at one waiting time.
  claim = "Larger networks have a lower CER", "MNIST"
  assert "81 of 112 kinds of runs are complete" in where[claim]
  assert "complete" not in where_before[claim]


def test_why_a_claim_is_not_measured(tmp_path):
  """With one seed, and without large networks."""
  runs, stream = image_runs(TRUE, 1)
  keep(tmp_path, "mnist", runs[(runs["seed"] == 0) & (runs["model.width"] < 32)], stream)
  _, numbers = verdicts(tmp_path, "number")
  why = [numbers[claim, study] for claim, study in (
      ("An intermediate waiting time is best for small networks", "MNIST"),
      ("An intermediate waiting time is best for large networks", "MNIST"),
      ("An intermediate waiting time helps large networks less than small ones", "MNIST"),
      ("The shortest waiting time raises the final error most for small networks", "MNIST"),
      ("Large networks after a tenth of the stream beat small ones at its end", "MNIST"),
      ("Replay lowers the CER", "CIFAR-10, 3 epochs"))]
  assert why == ["too few seeds", *["the study lacks the runs that are compared"] * 4, "there are no runs yet"]


def test_replay_is_compared_without_runs_from_scratch(tmp_path):
  """Replay does nothing; without replay, stages from scratch are bad."""
  runs, stream = image_runs(TRUE, 1, replay_gain=0.0)
  bad = np.where(runs["stream.replay"] == 0, 2.0, 1.0)
  scratch = runs.assign(run=runs["run"] + "-scratch", cer=runs["cer"] * bad, **{"learner.init_from_scratch": True})
  keep(tmp_path, "mnist_replay", pd.concat([runs.assign(**{"learner.init_from_scratch": False}), scratch]), stream)
  assert verdicts(tmp_path)["Replay lowers the CER", "MNIST, replay and growth"] == "no difference"


def test_counts_that_hold_in_part(tmp_path):
  """Growing costs more than `ens` at w = 10; `ens` of two sizes, of which the dearer one predicts like `gens`."""
  import claims
  runs, stream = image_runs(TRUE, 1)
  growing = runs["learner.name"].isin(["gens", "gmoe", "ff"]) & (runs["stream.waiting_time"] == 10)
  runs.loc[growing, "cumulative_fwd_macs"] *= 10
  keep(tmp_path, "mnist", runs, stream)
  claim = "Learners that grow cost less compute than ensembles", "MNIST"
  found, where = verdicts(tmp_path, "where")
  assert (found[claim], where[claim]) == ("in part", "w = 1: 12 of 12, w = 10: 0 of 12, w = 50: 12 of 12")

  runs, stream = text_runs()
  dear = (runs["learner.name"] == "ens") & (runs["learner.num_members"] == 4)
  runs.loc[dear, "last_predict_macs"] = 8
  keep(tmp_path, "text", runs, stream)
  found = next(c for c in claims.CLAIMS if c.text == "A prediction of a growing ensemble costs the most compute")
  effects = [e for cell in found.cells(claims.read(tmp_path / "text", {})) for e in cell.effects.values()]
  assert min(effects) == 0


def test_a_fixed_network_of_half_the_budget_is_no_rival(tmp_path):
  """`ff` has twice the cost of `sm`. Without the rivals of its size, nothing is compared."""
  runs, stream = image_runs({name: TRUE[name] for name in ("sm", "ff")}, 1)
  keep(tmp_path, "mnist", runs[runs["model.width"].isin([4, 32])], stream)
  assert verdicts(tmp_path)[FIXED[-1], "MNIST"] == "not measured"
  keep(tmp_path / "more", "mnist", runs, stream)
  assert verdicts(tmp_path / "more")[FIXED[-1], "MNIST"] == "agrees"


def test_the_page_is_that_of_the_committed_runs(monkeypatch):
  import claims
  folder = ROOT / "docs/results"
  compared_once(monkeypatch, folder)
  assert (folder / claims.PAGE).read_text() == claims.page(folder)
  kept = pd.read_csv(folder / claims.COMPARISONS)
  pd.testing.assert_frame_equal(kept, claims.comparisons(folder), check_exact=False, rtol=1e-5, check_dtype=False)
  assert (folder / claims.VERDICTS).read_text() == claims.verdicts(folder).to_csv(index=False)


def test_verdicts_do_not_depend_on_the_numbers_of_seeds(tmp_path):
  """Scores with so much noise that which kind is the best depends on the seed."""
  import claims
  runs, stream = image_runs({name: TRUE[name] for name in ("sm", "ens", "gens", "gmoe")}, 1)
  runs["cer"] *= np.exp(np.random.default_rng(0).normal(0, 0.3, len(runs)))
  pages = []
  for i, labels in enumerate(({0: 0, 1: 1, 2: 2}, {0: 9, 1: 5, 2: 3})):
    keep(tmp_path / str(i), "mnist", runs.assign(seed=runs["seed"].map(labels)), stream)
    pages.append(claims.verdicts(tmp_path / str(i)).query("study == 'MNIST'").drop(columns="command").to_csv())
  assert len(set(pages)) == 1
  assert ",agrees," in pages[0]


def test_seeds_that_the_sweep_does_not_have_are_not_counted(tmp_path):
  import claims
  runs, stream = image_runs(TWO, 1)
  keep(tmp_path, "mnist", runs.assign(seed=runs["seed"] + 2), stream)
  assert "MNIST, 32 of 648 runs" in claims.page(tmp_path)  # seed 2


def test_claims_of_both_studies_take_their_common_seeds(tmp_path):
  import claims
  runs, stream = image_runs(TWO, 0, replay_gain=2.0)
  keep(tmp_path, "mnist_replay", runs, stream)
  plain, its = image_runs(TWO, 0)
  keep(tmp_path, "mnist", plain.assign(seed=plain["seed"] + 1), its)
  one, two = (claims.read_all(tmp_path)[name] for name in ("mnist_replay", "mnist"))
  assert set(one.joined(two).table["seed"]) == {1, 2}
  assert verdicts(tmp_path)[LOWEST, REPLAY] == "cannot tell"  # two seeds
  keep(tmp_path / "other", "mnist", plain.assign(seed=plain["seed"] + 5, run="other" + plain["run"]), its.iloc[:0],
       results=tmp_path / "apart")
  keep(tmp_path / "more", "mnist_replay", runs, stream, results=tmp_path / "apart")
  assert verdicts(tmp_path / "apart")[LOWEST, REPLAY] == "not measured"  # no common seed


def test_the_lowest_of_all_is_that_of_both_studies(tmp_path):
  """Replay has the lowest CER of the runs of its study, and not of those of the other one, at another waiting time."""
  import claims
  runs, stream = image_runs(TWO, 0, replay_gain=2.0)
  keep(tmp_path, "mnist_replay", runs, stream)
  assert verdicts(tmp_path)[LOWEST, REPLAY] == "agrees"
  other, its = image_runs({"umix": TRUE["umix"]}, 0)
  better = other["stream.waiting_time"] == 10
  other.loc[better, "cer"] *= 0.01
  other.loc[better, "stream.waiting_time"] = 5
  keep(tmp_path, "mnist", other, its)
  assert verdicts(tmp_path)[LOWEST, REPLAY] == "disagrees"
  # Of runs that both have, those of the study itself are taken.
  one, two = (claims.read_all(tmp_path)[name] for name in ("mnist_replay", "mnist"))
  assert len(one.joined(one).table) == len(one.table)
  assert len(one.joined(two).table) == len(one.table) + better.sum()


def test_the_command_that_makes_what_is_missing(tmp_path, monkeypatch):
  """A complete study of small networks: the larger sweep has large ones, or no sweep has them."""
  import claims
  runs, stream = image_runs({"sm": TRUE["sm"]}, 1)
  runs = runs[runs["model.width"] <= 8]
  keep(tmp_path, "mnist", runs, stream)
  keep(tmp_path, "cifar", runs.assign(**{"dataset.name": "cifar10", "train.epochs": 3}), stream)
  large = "An intermediate waiting time is best for large networks"
  _, commands = verdicts(tmp_path, "command")
  assert commands[large, "MNIST"] == "`alma sweep --config=sweeps/mnist`"
  monkeypatch.setattr(claims, "_seeds", lambda study: [*runs["seed"]])
  _, commands = verdicts(tmp_path, "command")
  assert commands[large, "MNIST"] == ""
  assert commands[large, "CIFAR-10, 3 epochs"] == "`alma sweep --config=sweeps/cifar:full`"
  assert commands["Larger networks have a lower CER", "MNIST"] == "`alma sweep --config=sweeps/mnist`"


@pytest.mark.parametrize("made", ["turned", "normal"])
def test_studies_with_made_scores_have_no_effects(tmp_path, made):
  """Every width has the same scores but for noise; with the scores of a study that has effects, there is a verdict."""
  import claims
  import null_studies
  keep(tmp_path, "mnist", *image_runs({"sm": TRUE["sm"]}, 1))
  studies = claims.read_all(tmp_path)
  table = getattr(null_studies, made)(studies["mnist"], np.random.default_rng(0)).table
  logs = np.log(table["cer"])
  assert logs.std() > 0
  assert abs(logs[table["model.width"] == 4].mean() - logs[table["model.width"] == 64].mean()) < 4 * 0.05 / math.sqrt(6)
  assert table["cumulative_fwd_macs"].equals(studies["mnist"].table["cumulative_fwd_macs"])
  assert null_studies.wrong_verdicts(studies, "mnist", studies["mnist"])[1] == "agrees"


def test_made_scores_are_as_noisy_as_those_of_the_study(tmp_path):
  """A rotation keeps the noise of every kind, and how alike two kinds are, up to the mean over three seeds."""
  import claims
  import null_studies
  keep(tmp_path, "mnist", *image_runs({"sm": TRUE["sm"]}, 1))
  runs, rng = claims.read_all(tmp_path)["mnist"], np.random.default_rng(0)
  kind = ["model.width", "stream.waiting_time"]
  scores = lambda table: np.log(table.pivot(index=kind, columns="seed", values="cer"))
  rest = scores(runs.table).pipe(lambda logs: logs.sub(logs.mean(axis=1), axis=0)).to_numpy()
  made = scores(null_studies.turned(runs, rng).table).to_numpy()
  np.testing.assert_allclose(made @ made.T, 1.5 * rest @ rest.T, atol=1e-12)


def test_studies_of_the_same_data_corrected_together(tmp_path):
  """A claim with p below 0.05 in its own study, and a second study of MNIST whose claims raise the correction."""
  import claims
  import evidence
  found = lambda p: evidence.Evidence(0.1, 0.05, 0.15, p, 3, 1, 1, 0, 0, (0.1, 0.1, 0.1))
  rows = [(9, "mnist", found(0.03)), (1, "mnist_authors", found(0.9)), (1, "text", found(0.04))]
  adjusted = claims.adjusted_of(rows, lambda study: study)
  assert adjusted == [0.03, 0.9, 0.04]
  text = " ".join(" ".join(claims._together(rows, adjusted)).split())
  assert text.endswith("these would no longer be significant: claim 9 on MNIST (p = 0.06).")
  none = found(0.9)._replace(p_equivalent=0.03)
  rows = [(9, "mnist", none), (1, "mnist_authors", none._replace(p_equivalent=0.9)), rows[2]]
  text = " ".join(" ".join(claims._together(rows, claims.adjusted_of(rows, lambda study: study))).split())
  assert text.endswith("claim 9 on MNIST (p = 0.06).")
  rows[0] = (9, "mnist", found(0.02))
  text = " ".join(claims._together(rows, claims.adjusted_of(rows, lambda study: study)))
  assert "no verdict would change" in " ".join(text.split())


def test_claims_and_questions_are_corrected_apart():
  """Two claims and three questions with p = 0.02 on one study."""
  import claims
  import evidence
  found = evidence.Evidence(0.1, 0.05, 0.15, 0.02, 3, 1, 1, 0, 0, (0.1, 0.1, 0.1))
  first = len(claims.CLAIMS) + 1
  rows = [(number, "mnist", found) for number in (1, first - 1, first, first + 1, first + 2)]
  assert claims.adjusted_of(rows, lambda study: study) == pytest.approx([0.04, 0.04, 0.06, 0.06, 0.06])


def test_verdicts_on_flat_hard_mixtures():
  """Made errors: at width 4 hmoe is better than all but the wider network, at width 64 it is worse than all."""
  import evidence
  import experts
  errors = {("sm", 4, 1): 0.2, ("sm", 8, 1): 0.05, ("sm", 64, 1): 0.02, ("sm", 120, 1): 0.015}
  for k, factor in ((5, 1.2), (25, 1.0), (50, 0.8)):
    errors |= {("hmoe", 4, k): 0.1 * factor, ("hmoe", 64, k): 0.03, ("ens", 4, k): 0.15, ("ens", 64, k): 0.01}
  rng = np.random.default_rng(0)
  rows = [("", learner, width, k, seed, error * rng.uniform(0.999, 1.001), 0.0, 1, 1, 1, 1.0)
          for (learner, width, k), error in errors.items() for seed in range(3)]
  table = pd.DataFrame(rows, columns=experts.COLUMNS)
  verdicts = [line.split("|")[2].strip(" *") for line in experts.page(table).splitlines() if "; p = " in line]
  assert verdicts == ["agrees"] * 5 + ["disagrees"] * 3
  gain = evidence.weigh(experts.claims(table)[0].cells)
  assert gain.mean == pytest.approx(math.log(2) - math.log(1.2 * 0.8) / 3, abs=2e-3)
