"""The page of the paper's claims: its claims on made runs with a known answer, and the page itself."""
import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest
from runs import ROOT


@pytest.fixture(autouse=True)
def _path(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "benchmarks")


# Worlds: {learner: (share of the CER of `sm`, multiples of its multiply-adds, parameters, and costs of a prediction)}.
TRUE = {"sm": (1.0, 1, 1, 1), "ens": (0.7, 5, 5, 5), "umix": (0.72, 5, 5, 5), "gens": (0.9, 2, 25, 50),
        "gmoe": (0.92, 3, 3, 6), "ff": (0.91, 2, 2, 4), "moe": (0.6, 2, 2, 4)}
FALSE = {"sm": (0.8, 1, 1, 1), "ens": (1.2, 1, 1, 1), "umix": (1.25, 1, 1, 1), "gens": (1.0, 2, 1, 0.5),
         "gmoe": (1.0, 3, 3, 6), "ff": (1.0, 2, 2, 4), "moe": (1.3, 2, 2, 4)}


def image_runs(learners, sign, replay_gain=None, replay_cost=7):
  """(runs, stream) of a study of images.

  Args:
    learners: TRUE or FALSE, or another world.
    sign: 1: large networks, intermediate waiting times and replay are good; -1: they are bad.
    replay_gain: logarithm of what replay divides the CER of `sm` by; None: no run has replay.
    replay_cost: what replay multiplies the compute by.
  """
  rng, rows, stream = np.random.default_rng(0), [], []
  replays = {name: (0.0, 1.0) if name == "sm" and replay_gain is not None else (0.0,) for name in learners}
  for learner, width, wait, seed in itertools.product(learners, (4, 8, 32, 64), (1, 10, 50, 500), range(3)):
    for replay in replays[learner]:
      share, comp, mem, predict = learners[learner]
      step = 0.1 if width > 8 else 0.4
      waited = sign * {1: step, 10: 0.0, 50: 0.05, 500: 2 * step}[wait]
      noise = rng.normal(0, 1e-3)
      score = math.log(share) - sign * 0.5 * math.log(width) + waited + noise - (replay_gain or 0) * replay
      final = noise - sign * 0.5 * math.log(width) - 3 + sign * step * (wait == 1)
      name = f"{learner}-{width}-{wait}-{replay}-{seed}"
      rows.append({
          "run": f"runs/made/{name}", "seed": seed, "learner.name": learner, "model.width": width,
          "stream.waiting_time": wait, "stream.replay": replay, "stream.num_megabatches": 500,
          "dataset.name": "mnist", "dataset.data_dir": "/home/me/data", "train.epochs": 100, "train.patience": 0,
          "stream.schedule": "every", "data_fingerprint": "one", "alma_jax_version": "0.2.0", "precision": "float32",
          "learner.gating": "soft" if learner in ("gmoe", "moe") else None, "cer": math.exp(score),
          "final_error": math.exp(final), "cumulative_fwd_macs": width * comp * replay_cost ** replay,
          "cumulative_params": width * mem, "last_predict_macs": width * predict})
      stream += [{"run": f"runs/made/{name}", "t": t, "updated": t % wait == 0,
                  "error": math.exp(final) * (1.1 if t < 500 else 1)} for t in (5, 50, 500)]
  return pd.DataFrame(rows), pd.DataFrame(stream)


def text_runs(false=False):
  """(runs, stream) of a study of texts in which every claim is true, or false."""
  sign, rng, rows, stream = (-1 if false else 1), np.random.default_rng(0), [], []
  kinds = [("sm", 4, None), ("sm", 8, None), ("sm", 12, None), ("ens", 4, 2), ("ens", 4, 4), ("gens", 4, None),
           ("gmoe", 4, None)]
  for (learner, experts, members), (wait, steps), seed in itertools.product(
      kinds, [(1, 1), (3, 1), (3, 3), (4, 1), (4, 4)], range(3)):
    worth = 0.02 * experts + {"sm": 0.0, "gens": 0.1, "gmoe": 0.1}.get(learner, 0.2) + 0.3 * (steps > 1)
    predict = {"ens": members, "gens": 0.1 if false else 8}.get(learner, 1)
    score = math.exp(5 - sign * worth + rng.normal(0, 1e-3))
    name = f"{learner}-{experts}-{members}-{wait}-{steps}-{seed}"
    rows.append({
        "run": f"runs/made/{name}", "seed": seed, "learner.name": learner, "model.width": 128,
        "model.num_experts": experts, "learner.num_members": members, "stream.waiting_time": wait, "stream.replay": 0.0,
        "train.steps_multiplier": steps, "stream.num_megabatches": 4, "average_perplexity": score,
        "dataset.name": "text:part", "dataset.sequence_length": 512, "train.steps": 300, "precision": "float32",
        "data_fingerprint": f"order{seed}", "alma_jax_version": "0.2.0", "cumulative_fwd_macs": 1.0,
        "cumulative_params": {("sm", 12): 2.0, ("ens", 4): members}.get((learner, experts), 1.0),
        "last_predict_macs": predict})
    stream += [{"run": f"runs/made/{name}", "t": t, "updated": t % wait == 0, "perplexity": score}
               for t in (1, 2, 3, 4)]
  return pd.DataFrame(rows), pd.DataFrame(stream)


def keep(folder, name, runs, stream):
  """Makes a study of a report with these tables."""
  import claims
  report = folder / f"report-{name}"
  report.mkdir(parents=True)
  runs.to_csv(report / "runs.csv", index=False)
  stream.to_csv(report / "stream.csv", index=False)
  claims.keep(report, folder, name)


def verdicts(folder, number=3):
  """{(claim, study): verdict} of the page of a folder, or another column of its table."""
  import claims
  found, text = {}, ""
  for line in claims.page(folder).splitlines():
    parts = [part.strip() for part in line.split("|")]
    if len(parts) == 7 and parts[3].startswith("*"):
      text = parts[1].split("**")[1].partition(". ")[2] if parts[1] else text
      found[text, study_of(parts[2])] = parts[number].strip("*")
  return found


def counts(folder, number):
  """{(claim, study): cell} of a column of the page's table of comparisons."""
  import claim_list
  import claims
  found = {}
  for line in claims.page(folder).splitlines():
    parts = [part.strip() for part in line.split("|")]
    if len(parts) == 11 and parts[1].isdigit():
      every = [*claim_list.CLAIMS, *claim_list.QUESTIONS]
      found[every[int(parts[1]) - 1].text, study_of(parts[3])] = parts[number]
  return found


def study_of(cell):
  """"CIFAR-10, 3 epochs" of "[CIFAR-10, 3 epochs](cifar/README.md), 64 of 192 runs"."""
  return re.sub(r", \d+ of \d+ runs$", "", re.sub(r"\[(.*)\]\(.*?\)", r"\1", cell))


ANY = "At equal compute a fixed network, at any waiting time, beats a growing one"
FIXED = [ANY, *(f"At equal {budget} a fixed network beats a growing one" for budget in (
    "compute", "memory", "compute and memory"))]
TRADE_OFF, LOWEST = "At equal compute replay is not better", "Replay has the lowest CER of all"
TRADE_OFF_ANY = "At equal compute replay is not better than no replay at any waiting time"
REPLAY = "MNIST, replay and growth"


def test_every_claim_on_runs_in_which_it_is_true(tmp_path):
  import claims
  keep(tmp_path, "mnist", *image_runs(TRUE, 1))
  keep(tmp_path, "mnist_replay", *image_runs(TRUE, 1, replay_gain=0.1))
  keep(tmp_path, "text", *text_runs())
  found = verdicts(tmp_path)
  measured = {key: verdict for key, verdict in found.items() if verdict != "not measured"}
  of_text = {claim.text for claim in claims.QUESTIONS if "text" in claim.studies}
  assert {text for text, _ in measured} == {claim.text for claim in claims.CLAIMS} | of_text
  # Replay that lowers the CER a little is no better than other learners at its compute, nor the best of all.
  assert {key: verdict for key, verdict in measured.items() if verdict != "agrees"} == {(LOWEST, REPLAY): "disagrees"}
  assert found["Replay lowers the CER", "CIFAR-10, 3 epochs"] == "not measured"
  assert ("Replay lowers the CER", "CIFAR-10, 100 epochs") not in found  # rows that would say nothing yet


def test_every_claim_on_runs_in_which_it_is_false(tmp_path):
  keep(tmp_path, "mnist", *image_runs(FALSE, -1))
  keep(tmp_path, "mnist_replay", *image_runs(FALSE, -1, replay_gain=-0.1, replay_cost=16))
  keep(tmp_path, "text", *text_runs(false=True))
  measured = {key: verdict for key, verdict in verdicts(tmp_path).items() if verdict != "not measured"}
  # A growing learner that is worse than `sm`, and replay that is worse than none, make these true.
  assert {text for (text, _), verdict in measured.items() if verdict != "disagrees"} == {
      *FIXED, TRADE_OFF, TRADE_OFF_ANY}


def test_growing_and_replay_that_are_better_than_all_else(tmp_path):
  growing = {name: (share * (0.5 if name in ("gens", "gmoe", "ff") else 1), *costs)
             for name, (share, *costs) in TRUE.items()}
  keep(tmp_path, "mnist_replay", *image_runs(growing, 0, replay_gain=2.0))
  found = verdicts(tmp_path)
  assert [found[text, REPLAY] for text in (FIXED[-1], TRADE_OFF, LOWEST)] == ["disagrees", "disagrees", "agrees"]


def test_verdicts_on_a_study_do_not_depend_on_other_studies(tmp_path):
  import claims
  numbers = lambda: [line for line in claims.page(tmp_path).splitlines() if "| MNIST, 336 of 648 runs |" in line]
  keep(tmp_path, "mnist", *image_runs(TRUE, 1))
  before = numbers()
  keep(tmp_path, "text", *text_runs())
  assert numbers() == before
  assert sum(line.startswith("| **") for line in before) > 3


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


def test_a_study_that_is_not_complete(tmp_path):
  """The widest networks, and one kind of all widths, have only their first seed, with a CER that is very different."""
  runs, stream = image_runs(TRUE, 1)
  keep(tmp_path, "mnist", runs, stream)
  before = verdicts(tmp_path)
  late = (runs["model.width"] == 64) | ((runs["learner.name"] == "sm") & (runs["stream.waiting_time"] == 50))
  runs.loc[late, "cer"] *= 0.1
  keep(tmp_path / "part", "mnist", runs[~late | (runs["seed"] == 0)], stream)
  found = verdicts(tmp_path / "part")
  # Without the widest networks, all learners have runs only within a factor of two in compute.
  trade_off = "No learner has the best trade-off everywhere", "MNIST"
  assert {key: found[key] for key in found if found[key] != before[key]} == {trade_off: "not measured"}
  # Of 7 learners, 4 widths and 4 waiting times, all at 3 widths, besides `sm` at one waiting time.
  claim = "Larger networks have a lower CER", "MNIST"
  assert "81 of 112 kinds of runs are complete" in counts(tmp_path / "part", 9)[claim]
  assert "complete" not in counts(tmp_path, 9)[claim]


def test_why_a_claim_is_not_measured(tmp_path):
  """With one seed, and without large networks."""
  runs, stream = image_runs(TRUE, 1)
  keep(tmp_path, "mnist", runs[(runs["seed"] == 0) & (runs["model.width"] < 32)], stream)
  numbers = verdicts(tmp_path, 4)
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
  assert verdicts(tmp_path)["Replay lowers the CER", "MNIST, replay and growth"] == "cannot tell"


def test_all_data_at_once_is_compared_for_learners_that_do_not_grow(tmp_path):
  import claims
  import paper
  keep(tmp_path, "text", *text_runs())
  cells = paper.all_at_once_is_better(claims.read(tmp_path / "text", {}))
  assert [cell.name.split(",")[0] for cell in cells] == [*["ens"] * 4, *["sm"] * 6]


def test_ensembles_and_mixtures_of_the_same_memory(tmp_path):
  """`ens` of 2 members holds what `sm` with 12 experts holds; of 4 members it holds more than all of them."""
  import claims
  import paper
  keep(tmp_path, "text", *text_runs())
  cells = paper.ensembles_beat_mixtures(claims.read(tmp_path / "text", {}))
  assert len(cells) == 5  # waiting times and steps
  assert all("num_experts 12" in cell.name for cell in cells)


def test_waiting_for_texts_is_grouped_by_its_steps(tmp_path):
  """At w = 3 the fourth mega-batch is a stage of its own, with 3 times the steps as well."""
  import claims
  import paper
  keep(tmp_path, "text", *text_runs())
  cells = paper.waiting_ends_lower(claims.read(tmp_path / "text", {}))
  groups = {(cell.groups["stream.waiting_time"], cell.groups["train.steps_multiplier"]) for cell in cells}
  assert groups == {("w = 3", "as many steps a stage"), ("w = 3", "1.5 times the steps in all"),
                    ("w = 4", "as many steps a stage"), ("w = 4", "as many steps in all")}
  assert paper.waiting_ends_lower(claims.read(tmp_path / "text", {})._replace(stream=None)) == []


def test_counts_that_hold_in_part(tmp_path):
  """Growing costs more than `ens` at w = 10; `ens` of two sizes, of which the dearer one predicts like `gens`."""
  import claims
  runs, stream = image_runs(TRUE, 1)
  growing = runs["learner.name"].isin(["gens", "gmoe", "ff"]) & (runs["stream.waiting_time"] == 10)
  runs.loc[growing, "cumulative_fwd_macs"] *= 10
  keep(tmp_path, "mnist", runs, stream)
  claim = "Learners that grow cost less compute than ensembles", "MNIST"
  assert verdicts(tmp_path)[claim] == "in part"
  assert counts(tmp_path, 9)[claim] == "w = 1: 12 of 12, w = 10: 0 of 12, w = 50: 12 of 12"

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


def test_a_study_names_no_folder_of_the_machine(tmp_path):
  keep(tmp_path, "mnist", *image_runs(TRUE, 1))
  assert "/home/me" not in (tmp_path / "mnist/runs.csv").read_text()


def test_runs_in_folders_with_numbers_for_names(tmp_path):
  runs, stream = image_runs(TRUE, 1)
  number = {name: f"runs/made/{i}" for i, name in enumerate(runs["run"])}
  keep(tmp_path, "mnist", *(table.assign(run=table["run"].map(number)) for table in (runs, stream)))
  assert "not measured" not in [v for (_, study), v in verdicts(tmp_path).items() if study == "MNIST"]


def test_kinds_of_runs_are_not_mixed(tmp_path):
  """Runs that differ in a field that no claim knows are refused, instead of the last one being taken."""
  import claims

  from alma_jax.errors import BadInput
  runs, stream = image_runs(TRUE, 1)
  keep(tmp_path, "mnist", pd.concat([runs, runs.assign(run=runs["run"] + "-other")]), stream)
  with pytest.raises(BadInput, match="width 4, waiting_time 1, replay 0: several runs have seed 0"):
    claims.page(tmp_path)


def test_the_page_is_that_of_the_committed_runs():
  import claims
  folder = ROOT / "docs/results"
  assert (folder / claims.PAGE).read_text() == claims.page(folder)
  kept = pd.read_csv(folder / claims.COMPARISONS)
  pd.testing.assert_frame_equal(kept, claims.comparisons(folder), check_exact=False, rtol=1e-5, check_dtype=False)


def judged(claim, rows):
  """What a claim's function says of made runs; a row is (learner, width, waiting time, replay, seed, CER, compute)."""
  import study_runs
  columns = ["learner.name", "model.width", "stream.waiting_time", "stream.replay", "seed", "cer",
             "cumulative_fwd_macs"]
  table = pd.DataFrame(rows, columns=columns).assign(**{"stream.num_megabatches": 500})
  table = table.assign(run=[str(i) for i in range(len(rows))], final_error=table["cer"]).reindex(
      columns=[*table, "run", "final_error", *(f for f in study_runs.FACTORS if f not in table)])
  runs = study_runs.Runs(table, None, "cer")
  return claim(runs)


SEEDS = range(3)


def test_runs_that_train_twice_do_not_count_for_growth_and_replay():
  rows = [(learner, 4, wait, replay, seed, 1.0 + seed, 1.0) for learner, replay in (("sm", 0), ("sm", 1), ("ff", 0))
          for wait in (10, 250, 500) for seed in SEEDS]
  import paper
  for claim in (paper.fixed_is_better("cumulative_fwd_macs"), paper.growing_helps(small=True)):
    assert [cell.groups["stream.waiting_time"] for cell in judged(claim, rows)] == ["w = 10"]
  for claim in (paper.replay_lowers_the_score, paper.replay_is_no_better_trade_off(same_wait=False)):
    assert len(judged(claim, rows)) == 1


def test_one_seed_compares_no_budgets():
  """Which of several rivals is the best cannot be chosen by other seeds; then a single rival counts no more."""
  import paper
  rows = [(learner, 4, 10, 0, seed, cer, 1.0) for learner, cer in (("sm", 1.0), ("ff", 2.0)) for seed in SEEDS]
  ((*effects,),) = ([*cell.effects.values()] for cell in judged(paper.fixed_is_better("cumulative_fwd_macs"), rows))
  assert effects == [math.log(2)] * 3
  one = [row for row in rows if row[4] == 0]
  assert [cell.effects for cell in judged(paper.fixed_is_better("cumulative_fwd_macs"), one)] == [{}]


def test_the_cost_of_replay_is_that_of_fixed_learners():
  import paper
  costs = lambda low, high, *learners: judged(paper.replay_costs(low, high), [
      (learner, 4, wait, replay, seed, 1.0, 1 + replay * (500 / wait - 1) / 2 * (3 if learner == "gmoe" else 1))
      for learner in learners for wait in (10, 50) for replay in (0, 1) for seed in SEEDS])
  assert costs(5, 26, "sm", "gmoe") == ("agrees", "25.5 times at w = 10, 5.5 times at w = 50", 3, None)
  assert costs(5, 10, "sm").verdict == "in part"
  assert costs(6, 10, "sm").verdict == "disagrees"
  assert costs(5, 10, "gmoe") is None


@pytest.mark.parametrize(("best", "seeds", "verdict", "number"), [
    # From compute 2, the cheapest run of `ens`, to 4, the dearest one of `sm`; {seed: CER of ens at 2}.
    ({0: 1.0, 1: 1.01, 2: 1.0}, 3, "agrees", "lowest: `ens` at 2, `ens` at 2.8, `sm` at 4"),
    ({0: 9.0, 1: 9.1, 2: 9.0}, 3, "disagrees", "lowest: `sm` at 2, `sm` at 2.8, `sm` at 4"),
    ({0: 5.0, 1: 7.5, 2: 6.1}, 3, "", "lowest: `sm` at 2, `sm` at 2.8, `sm` at 4"),
    ({0: 1.0, 1: 1.01}, 2, "", "lowest: `ens` at 2, `ens` at 2.8, `sm` at 4"),
])
def test_who_has_the_best_trade_off(best, seeds, verdict, number):
  import paper
  rows = [row for seed in range(seeds) for row in (
      ("sm", 4, 10, 0, seed, 8.0, 1.0), ("sm", 8, 10, 0, seed, 6.0, 1.5), ("sm", 64, 10, 0, seed, 0.5, 4.0),
      ("ens", 4, 10, 0, seed, best[seed], 2.0), ("ens", 64, 10, 0, seed, 0.1, 100.0))]
  found = judged(paper.no_learner_is_always_best, rows)
  assert (found.number, found.seeds) == (number, seeds)
  assert (found.verdict if found.p < 0.05 else "") == verdict
  apart = [row if row[0] == "sm" else (*row[:-1], 100.0) for row in rows if row[5] != 0.1]
  assert judged(paper.no_learner_is_always_best, apart) is None  # no budget at which both have runs
  near = [(*row[:-1], 3.9) if row[5] == 0.5 else row for row in rows]
  assert judged(paper.no_learner_is_always_best, near) is None  # both have runs from 2 to 3.9


def test_equal_learners_rarely_have_different_trade_offs():
  """Two learners whose CER is a function of the compute alone, with noise, and a third one that is worse everywhere."""
  import paper
  rng, wrong = np.random.default_rng(0), 0
  for _ in range(100):
    rows = [(learner, width, 10, 0, seed, worse * width**-2.0 * math.exp(0.05 * rng.normal()), float(width))
            for learner, worse in (("sm", 1.0), ("ens", 1.0), ("umix", 3.0)) for width in (4, 8, 16, 32)
            for seed in SEEDS]
    wrong += judged(paper.no_learner_is_always_best, rows).p < 0.05
  assert wrong <= 12  # 5 % of 100 are 5; 12 are three deviations above that


def with_field(field, values):
  """Makes a claim's function see a field with these values, in the order of the rows."""
  return lambda claim: lambda runs: claim(runs._replace(table=runs.table.assign(**{field: values})))


@pytest.mark.parametrize(("field", "values", "descending", "expected"), [
    ("learner.grow_every", [2, 5, 25], True, {"25 and 5": 3, "5 and 2": 2}),
    ("learner.growth_rate", [0.5, 0.25, 0.1], False, {"0.1 and 0.25": 3, "0.25 and 0.5": 2}),
    ("learner.gating", ["soft", "hard", None], False, {"hard and soft": 2}),
    ("learner.init_from_scratch", [False, True, None], True, {"1 and 0": 2}),
])
def test_kinds_in_an_order(field, values, descending, expected):
  """CERs of 1, 2 and 6 at the values of a field; without a value a kind is not compared, nor one that trains twice."""
  import paper
  rows = [("gmoe", 4, wait, 1, seed, cer, 1.0) for wait in (10, 250) for seed in SEEDS for cer in (1.0, 2.0, 6.0)]
  claim = paper.ordered(field, ("gmoe",), descending)
  cells = judged(with_field(field, values * 6)(claim), rows)
  assert {cell.name.rsplit(", ", 1)[-1]: round(math.exp(cell.effects[1])) for cell in cells} == expected
  assert judged(with_field(field, values * 6)(paper.ordered(field, ("ff",), descending)), rows) == []
  no_replay = [(*row[:3], 0, *row[4:]) for row in rows]
  assert bool(judged(with_field(field, values * 6)(claim), no_replay)) == (field != "learner.init_from_scratch")


def test_rivals_at_the_same_waiting_time_and_at_any():
  import paper
  rows = [(learner, 4, wait, replay, seed, cer, 1.0) for learner, wait, replay, cer in (
      ("sm", 10, 0, 4.0), ("sm", 50, 0, 1.0), ("sm", 10, 1, 8.0), ("gens", 10, 0, 2.0)) for seed in SEEDS]
  effect = lambda claim: [round(math.exp(cell.effects[0]), 9) for cell in judged(claim, rows)]
  compute = "cumulative_fwd_macs"
  assert effect(paper.replay_is_no_better_trade_off(same_wait=True)) == [4.0]  # against gens at w = 10
  assert effect(paper.replay_is_no_better_trade_off(same_wait=False)) == [8.0]
  no_replay = [row for row in rows if not row[3]]
  assert [round(math.exp(judged(paper.fixed_is_better(compute, same_wait=same), no_replay)[0].effects[0]), 9)
          for same in (True, False)] == [0.5, 2.0]


def test_the_lowest_of_all_is_that_of_both_studies(tmp_path):
  """Replay has the lowest CER of the runs of its study, and not of those of the other one, at another waiting time."""
  import claims
  runs, stream = image_runs(TRUE, 0, replay_gain=2.0)
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
  assert len(one.joined(one._replace(table=one.table.assign(**{"learner.init_from_scratch": False}))).table) == len(
      one.table)  # a missing switch is off
  assert len(one.joined(two).table) == len(one.table) + better.sum()


def test_the_command_that_makes_what_is_missing(tmp_path, monkeypatch):
  """A complete study of small networks: the larger sweep has large ones, or no sweep has them."""
  import claims
  runs, stream = image_runs({"sm": TRUE["sm"]}, 1)
  runs = runs[runs["model.width"] <= 8]
  keep(tmp_path, "mnist", runs, stream)
  keep(tmp_path, "cifar", runs.assign(**{"dataset.name": "cifar10", "train.epochs": 3}), stream)
  large = "An intermediate waiting time is best for large networks"
  commands = verdicts(tmp_path, 5)
  assert commands[large, "MNIST"] == "`alma sweep --config=sweeps/mnist`"
  monkeypatch.setattr(claims, "_num_runs", lambda study: len(runs))
  commands = verdicts(tmp_path, 5)
  assert commands[large, "MNIST"] == ""
  assert commands[large, "CIFAR-10, 3 epochs"] == "`alma sweep --config=sweeps/cifar:full`"
  assert commands["Larger networks have a lower CER", "MNIST"] == "`alma sweep --config=sweeps/mnist`"


def test_studies_with_made_scores_have_no_effects(tmp_path, monkeypatch):
  """Every width has the same scores but for noise; with the scores of a study that has effects, there is a verdict."""
  import claims
  import null_studies
  keep(tmp_path, "mnist", *image_runs({"sm": TRUE["sm"]}, 1))
  studies, rng = claims.read_all(tmp_path), np.random.default_rng(0)
  made = null_studies.without_effects(studies["mnist"], rng).table
  logs = np.log(made["cer"])
  assert abs(logs[made["model.width"] == 4].mean() - logs[made["model.width"] == 64].mean()) < 4 * 0.05 / math.sqrt(6)
  assert made["cumulative_fwd_macs"].equals(studies["mnist"].table["cumulative_fwd_macs"])
  monkeypatch.setattr(null_studies, "without_effects", lambda runs, rng: runs)
  assert null_studies.wrong_verdicts(studies, "mnist", rng)[1] == "agrees"


def test_the_best_with_replay_is_compared_with_the_best_of_its_width():
  import paper
  rows = [("sm", width, 10, replay, seed, cer, 1.0) for width, replay, cer in (
      (4, 0, 8.0), (4, 1, 4.0), (32, 0, 2.0), (32, 1, 1.0)) for seed in SEEDS]
  assert [(cell.name, *cell.effects.values()) for cell in judged(paper.replay_is_best, rows)] == [
      ("width 4", *[math.log(2)] * 3), ("width 32", *[math.log(2)] * 3)]


def test_the_largest_network_is_the_one_that_leads_early(monkeypatch):
  import paper
  import study_runs
  rows = [("sm", width, wait, 0, seed, 1.0, 1.0) for width in (4, 8, 32, 64) for wait in (10, 100) for seed in SEEDS]
  seen = []
  def at(runs, t):
    seen.append(t)
    return runs._replace(table=runs.table.assign(cer=1.0 / runs.table["model.width"]))
  monkeypatch.setattr(study_runs.Runs, "at", at)
  cells = judged(paper.large_networks_lead_early, rows)
  assert seen == [50]  # once: w = 100 has no training yet
  assert [*cells[0].effects.values()] == [math.log(64)] * 3


def test_studies_of_the_same_data_corrected_together(tmp_path):
  """A claim with p below 0.05 in its own study, and a second study of MNIST whose claims raise the correction."""
  import claims
  import evidence
  found = lambda p: evidence.Evidence(0.1, 0.05, 0.15, p, 3, 1, 1, 0, 0, (0.1, 0.1, 0.1))
  rows = [(9, "mnist", found(0.03)), (1, "mnist_authors", found(0.9)), (1, "text", found(0.04))]
  adjusted = claims.adjusted_of(rows, lambda study: study)
  assert adjusted == [0.03, 0.9, 0.04]
  text = " ".join(" ".join(claims._together(rows, adjusted)).split())
  assert text.endswith("these would not be significant any more: claim 9 on MNIST (p = 0.06).")
  rows[0] = (9, "mnist", found(0.02))
  assert "no verdict would change" in " ".join(claims._together(rows, claims.adjusted_of(rows, lambda study: study)))


def test_every_comparison_has_a_name_of_its_own(tmp_path):
  import claims
  keep(tmp_path, "mnist", *image_runs(TRUE, 1))
  keep(tmp_path, "text", *text_runs())
  found = claims.comparisons(tmp_path)
  assert not found.duplicated(["claim", "study", "comparison"]).any()
  number = next(i for i, claim in enumerate(claims.CLAIMS, 1) if claim.points)
  points = found[found["claim"] == number]["mean"]
  assert points.between(0.5, 40).all()  # not shares, which are a hundredth of it


@pytest.mark.parametrize("study", ["mnist", "mnist_replay", "mnist_authors", "cifar", "text"])
def test_the_tables_of_studies_are_those_of_the_committed_runs(study):
  import study_table
  folder = ROOT / "docs/results" / study
  page = (folder / "README.md").read_text()
  tables = study_table.all_of(folder)
  assert tables
  assert all(table in page for table in tables)
  assert all(each in " ".join(page.split()) for each in study_table.cost(folder))


def test_the_table_of_a_study(tmp_path):
  """Fields are named where they tell kinds of a learner apart; missing kinds leave their places empty."""
  import study_table
  runs, stream = image_runs({"sm": TRUE["sm"], "ens": TRUE["ens"]}, 1, replay_gain=0.1)
  runs["cer"] = (runs["model.width"] + runs["stream.waiting_time"] + 100 * (runs["learner.name"] == "ens")
                 + runs["stream.replay"] / 2 + runs["seed"] - 1)  # the standard deviation over seeds is 1
  runs = runs[runs["model.width"].isin([4, 64]) & runs["stream.waiting_time"].isin([1, 10])]
  keep(tmp_path, "mnist_replay", runs[~((runs["learner.name"] == "ens") & (runs["model.width"] == 64)
                                        & (runs["stream.waiting_time"] == 1))], stream)
  (table,) = study_table.all_of(tmp_path / "mnist_replay")
  assert table.splitlines() == [
      "| | width | w = 1 | w = 10 |",
      "| --- | ---: | ---: | ---: |",
      "| `sm`, replay 0 | 4 | 5.0 ± 1.0 | 14.0 ± 1.0 |",
      "| `sm`, replay 0 | 64 | 65.0 ± 1.0 | 74.0 ± 1.0 |",
      "| `sm`, replay 1 | 4 | 5.5 ± 1.0 | 14.5 ± 1.0 |",
      "| `sm`, replay 1 | 64 | 65.5 ± 1.0 | 74.5 ± 1.0 |",
      "| `ens` | 4 | 105.0 ± 1.0 | 114.0 ± 1.0 |",
      "| `ens` | 64 | | 174.0 ± 1.0 |"]


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
      "| `sm` | 8 | 32.0 ± 0.0 | 8 | 8 | |",
      "| `sm`, init_from_scratch | 8 | 32.0 ± 0.0 | 16 | 8 | |",
      "| `gmoe`, grow_every 2 | 8 | 11.9 ± 1.5 | 99 | 24 | |",
      "| `gmoe`, grow_every 5 | 8 | 11.9 ± 1.5 | 24 | 24 | +11 % |",
      "| `gmoe`, grow_every 25 | 8 | 11.9 ± 1.5 | 4 | 24 | |",
      "| `sm` | 64 | 4.0 ± 0.0 | 64 | 64 | |"]
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
  verdicts = [line.split("|")[2].strip(" *") for line in experts.page(table).splitlines() if "comparisons for" in line]
  assert verdicts == ["agrees"] * 5 + ["disagrees"] * 3
  gain = evidence.weigh(experts.claims(table)[0].cells)
  assert gain.mean == pytest.approx(math.log(2) - math.log(1.2 * 0.8) / 3, abs=2e-3)


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
  (tmp_path / "mnist" / "compute.png").touch()  # of other runs; a single kind of run has none
  captions = study_figures.draw(tmp_path / "mnist")
  assert [*captions] == [path.stem for path in (tmp_path / "mnist").glob("*.png")] == ["stream"]


def test_a_folder_that_is_no_study(tmp_path):
  import study_figures

  from alma_jax.errors import BadInput
  with pytest.raises(BadInput, match="other is not the folder of a study; the studies are mnist, "):
    study_figures.draw(tmp_path / "other")
  with pytest.raises(BadInput, match="there is no .*mnist/runs.csv; `alma sweep --config=sweeps/mnist` makes"):
    study_figures.draw(tmp_path / "mnist")
