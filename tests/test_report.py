"""Reports: reading runs, tables, findings and pages, on run folders written by hand."""
import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from reports import change, diverge, set_learner, study_of, write_report, write_run
from runs import ROOT, alma

from alma_jax import config as configs
from alma_jax import report
from alma_jax.errors import BadInput
from alma_jax.reports import cards, collect, drawing, figures, findings, page, statistics, studies, tables
from alma_jax.reports.cards import Card
from alma_jax.reports.page import Bullets, Section
from alma_jax.reports.tables import Table


def test_runs_are_read(runs):
  study = study_of(runs)
  assert (len(study.runs), len(study.stream)) == (24, 48)
  assert (study.name, study.scoring.metric, study.scoring.score) == ("digits, 2 mega-batches", "error", "cer")
  assert study.factors == ("model.width", "stream.waiting_time")
  row = study.runs[study.runs["run"].str.endswith("gens8w2s1")].iloc[0]
  assert row["cer"] == pytest.approx(0.9 + 0.372)
  assert (row["cumulative_params"], row["cumulative_fwd_macs"], row["last_params"]) == (14 + 14 + 16, 800, 16)
  table = studies.means(study, "cer", "cumulative_params")
  kind = table.set_index(["learner.name", "model.width", "stream.waiting_time"]).loc[("sm", 4, 1)]
  assert kind["cer"] == pytest.approx(2 * 0.361)
  assert kind["cer_sd"] == pytest.approx(0.002)  # 0.720, 0.722, 0.724
  assert kind["seeds"] == 3
  assert table["cer"].is_monotonic_increasing
  assert study.stream["stage"].dtype == "Int64"


def test_regret_is_against_the_best_run_from_scratch_on_all_data_of_the_seed(tmp_path):
  def write(name, values, learner="sm", **changes):
    return write_run(tmp_path / name, values, learner, **changes)

  for seed, best in ((0, 0.2), (1, 0.1)):
    write(f"oracle{seed}", [0.4, best], "retrain", seed=seed)
    write(f"narrow{seed}", [0.5, 0.5], "retrain", seed=seed, model__width=4)
    write(f"sm{seed}", [0.6, 0.3], seed=seed)
    write(f"waits{seed}", [0.1, 0.1], "retrain", seed=seed, stream__waiting_time=2)
  write("alone", [0.6, 0.3], seed=2)
  (study,), notes = collect.collect([tmp_path])
  by_run = study.runs.assign(run=study.runs["run"].str.rsplit("/").str[-1]).set_index("run")["regret"]
  expected = {"oracle0": 0, "sm0": 0.3, "sm1": 0.4, "narrow0": 0.4, "waits0": -0.4}
  np.testing.assert_allclose(by_run[[*expected]], [*expected.values()], atol=1e-9)
  assert np.isnan(by_run["alone"])
  of_sm = study.stream[study.stream["run"].str.endswith("sm1")]
  np.testing.assert_allclose(of_sm["regret"], [0.2, 0.4])
  assert "retrain, width 32, w 1, replay 1 (seed 0, 1). It leaves out the seeds without such a run: 2." in str(notes)
  assert "| regret |" in tables.overview(study)
  figure = drawing.draw(figures.plots(study)["regret"])
  np.testing.assert_allclose([axes.get_ylim()[0] for axes in figure.axes], 1.05 * -0.4)


def test_without_an_oracle_in_the_report_the_regret_is_that_of_the_runs(tmp_path):
  change(write_run(tmp_path / "run", [0.6, 0.4], log__oracle="other") / "summary.json", regret=0.7)
  (study,), notes = collect.collect([tmp_path])
  assert study.runs["regret"].tolist() == [0.7]
  assert "regret" not in figures.plots(study)
  assert "the regret is the CER minus the CER of the run that log.oracle names: other." in notes[-1]


def test_what_cannot_be_used_is_left_out_and_named(tmp_path, runs):
  half = write_run(tmp_path / "more/half", [0.5, 0.4], seed=7)
  (half / "summary.json").unlink()
  short = write_run(tmp_path / "more/short", [0.5, 0.4], seed=8)
  (short / "metrics.jsonl").write_text("")
  torn = write_run(tmp_path / "more/torn", [0.5, 0.4], seed=9)
  (torn / "metrics.jsonl").write_text('{"t": 1, "err')
  (tmp_path / "more/other").mkdir()
  (tmp_path / "more/other/config.json").write_text('{"stream": 3}')
  (tmp_path / "more/other/metrics.jsonl").write_text("")
  (write_run(tmp_path / "more/nameless", [0.5, 0.4], seed=10) / "config.json").unlink()
  (write_run(tmp_path / "more/binary", [0.5, 0.4], seed=11) / "metrics.jsonl").write_bytes(b"\xff\n")
  change(write_run(tmp_path / "more/seedless", [0.5, 0.4], seed=12) / "config.json", seed=None)
  write_run(tmp_path / "more/twin", [0.5, 0.4], seed=0, model__width=4)
  (study,), problems = collect.collect([runs, tmp_path / "more"])
  assert len(study.runs) == 24
  for name, sentence in (("half", "the run is not finished: it has 2 of 2 mega-batches and no summary.json"),
                         ("short", "metrics.jsonl has 0 of 2 mega-batches, although"),
                         ("torn", "metrics.jsonl has 0 of 2 mega-batches, although"),
                         ("other", "config.json is not from a run"), ("nameless", "it has no config.json"),
                         ("binary", "metrics.jsonl is not text"), ("seedless", "config.json lacks 'seed'"),
                         ("twin", "it is the same run as .*sm4w1s0")):
    assert sum(bool(re.search(f"{name} is left out: .*{sentence}", problem)) for problem in problems) == 1
  with pytest.raises(BadInput, match="no finished run to report.*half is left out"):
    collect.collect([half])
  with pytest.raises(BadInput, match="there is no folder"):
    collect.collect([tmp_path / "none"])
  (tmp_path / "empty").mkdir()
  with pytest.raises(BadInput, match="holds no run"):
    collect.collect([tmp_path / "empty"])


def test_runs_of_different_data_are_told_apart(tmp_path):
  write_run(tmp_path / "a", [0.5, 0.4])
  write_run(tmp_path / "b", [0.5, 0.4, 0.3])
  write_run(tmp_path / "c", [0.5, 0.4], dataset__name="mnist")
  found, notes = collect.collect([tmp_path])
  assert [study.name for study in found] == ["digits, 2 mega-batches", "digits, 3 mega-batches",
                                             "mnist, 2 mega-batches"]
  assert [len(study.runs) for study in found] == [1, 1, 1]
  assert notes == ["The runs belong to 3 streams, and each stream is reported by itself: digits, 2 mega-batches; "
                   "digits, 3 mega-batches; mnist, 2 mega-batches."]


def test_factors_that_vary_together_count_once(tmp_path):
  for wait, epochs in ((1, 5), (2, 6)):
    write_run(tmp_path / str(wait), [0.5, 0.4], stream__waiting_time=wait, train__epochs=epochs)
  write_run(tmp_path / "ens", [0.5, 0.4], "ens", learner__num_members=3)
  (study,), problems = collect.collect([tmp_path])
  assert study.factors == ("stream.waiting_time",)
  assert problems == ["digits, 2 mega-batches: train.epochs varies together with w; their effects cannot be separated."]


def test_tables(runs):
  head, _, first, *rest = tables.overview(study_of(runs)).splitlines()
  assert head == "| learner | width | w | parameters | seeds | CER | mean error | final error | Mem | Comp | seconds |"
  assert first.startswith("| gens | 8 | 1 | 14 to 16 | 3 | 0.544 ± 0.004 | 0.2720 ± 0.0020 |")
  assert len(rest) == 7
  # `gens` grows: with half as many stages it is smaller, and no comparison of the data alone.
  assert [line.split("|")[1].strip() for line in tables.iid(study_of(runs)).splitlines()[2:]] == ["sm", "sm"]
  assert tables.iid(study_of(runs)).splitlines()[2] == "| sm | 4 | 2 | 3 | 0.3610 ± 0.0010 | 0.4610 ± 0.0010 |"


def test_sequential_and_iid_training_after_any_number_of_megabatches(tmp_path):
  """The paper's Table 1: after k mega-batches, among runs with as many updates."""
  write_run(tmp_path / "w1", [400.0, 300.0, 250.0, 240.0], language=True)
  write_run(tmp_path / "w3", [None, None, 200.0, 190.0], language=True, stream__waiting_time=3,
            train__steps_multiplier=3)
  write_run(tmp_path / "short", [None, None, 500.0, 400.0], language=True, stream__waiting_time=3)  # fewer updates
  write_run(tmp_path / "w4", [None, None, None, 180.0], language=True, stream__waiting_time=4,
            train__steps_multiplier=4)
  assert tables.iid(study_of(tmp_path)).splitlines() == [
      "| learner | k | seeds | sequential | iid |", "| --- | ---: | ---: | ---: | ---: |",
      "| sm | 3 | 1 | 250.00 | 200.00 |", "| sm | 4 | 1 | 240.00 | 180.00 |"]


def test_tables_of_language_models(tmp_path):
  first = write_run(tmp_path / "gens", [300.0, 200.0], "gens", num_params=10**6, language=True)
  second = write_run(tmp_path / "gmoe", [None, 150.0], "gmoe", num_params=2 * 10**6, language=True,
                     stream__waiting_time=2, train__steps_multiplier=2)
  write_run(tmp_path / "sm1", [400.0, 250.0], language=True)
  write_run(tmp_path / "sm2", [None, 240.0], language=True, stream__waiting_time=2, train__steps_multiplier=2)
  (study,), notes = collect.collect([first, second])
  assert notes == ["tiny_shakespeare, 2 mega-batches: the learners differ in train.steps_multiplier: gens 1, gmoe 2."]
  lines = tables.overview(study).splitlines()
  assert lines[0] == "| learner | w | experts | parameters | seeds | t=1 | t=2 | average | Mem | Comp | seconds |"
  assert lines[2].startswith("| gmoe | 2 | 4 | 2 M | 1 | - | 150.00 | 150.00 |")
  assert lines[3].startswith("| gens | 1 | 4@1 to 4@2 | 1 M | 1 | 300.00 | 200.00 | 250.00 |")
  (study,), notes = collect.collect([tmp_path])
  assert notes[0].endswith("train.steps_multiplier varies together with w; their effects cannot be separated.")
  assert tables.iid(study).splitlines()[2:] == ["| sm | 2 | 1 | 250.00 | 240.00 |"]
  (answer, *rest) = findings.waiting_times(study)
  assert answer.startswith("- Waiting times are compared by the final perplexity")
  assert rest[0].startswith("- sm: w 2 perplexity 240, w 1 perplexity 250: **w 2 is not significantly better than w "
                            "1**")


@pytest.mark.parametrize(("fields", "first", "last"), [
    ({}, "4", "4"), ({"num_members": 2.0}, "4@2", "4@2"),  # pandas makes integers floats beside missing values
    ({"members_per_stage": 2}, "4@2", "4@6"), ({"add_experts": "[2, 2, 4]"}, "4", "8"), ({"add_experts": 3}, "4", "7"),
    ({"num_members": math.nan, "add_experts": "()"}, "4", "4"),
    ({"num_members": "some", "add_experts": "[0.5]"}, "4", "4"),  # fields of another learner with other meanings
])
def test_experts_follow_from_the_fields_of_a_run(fields, first, last):
  row = {"model.num_experts": 4, "num_stages": 3, **{f"learner.{field}": value for field, value in fields.items()}}
  assert tuple(map(str, studies.experts(row))) == (first, last)
  alone = studies.experts(row | {"num_stages": 1})
  assert str(alone[0]) == str(alone[1]) == first
  assert studies.Experts(4, 6).total == 24


def test_comparisons_by_hand():
  found = statistics.compare({0: 1.0, 1: 2.0, 2: 3.0, 9: 0.0}, {0: 2.0, 1: 4.0, 2: 6.0})
  # Differences -1, -2, -3: deviation 1, standard error 1/sqrt(3), and 4.3027 of it are 95 % at two degrees of freedom.
  assert (found.mean, found.num) == (-2.0, 3)
  assert found.margin == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
  assert found.error == pytest.approx(1 / math.sqrt(3))
  assert not found.is_lower
  alike = statistics.compare({0: 1.0, 1: 2.0}, {0: 5.0, 1: 6.0})  # exactly 4 on both: the variation is unknown
  assert (alike.mean, alike.is_lower) == (-4.0, False)
  assert statistics.compare({0: 1.0}, {1: 1.0}) is None
  single = statistics.compare({0: 1.0}, {0: 2.0})
  assert (single.mean, single.num, single.is_lower) == (-1.0, 1, False)


def test_the_best_waiting_time(runs):
  lines = findings.waiting_times(study_of(runs))
  assert lines[0].startswith("- gens, width 4: w 1 CER 0.624, w 2 CER 1.312: **w 1 is best**, difference -0.688 ± ")
  assert len(lines) == 4 + 1 + 1  # one power of ten of compute, two of parameters with one answer
  assert lines[4].startswith("- within 1 k multiply-adds: w 1, gens, width 8 (CER 0.544); against the best at "
                             "w 2: gens, width 8 (CER 1.272), difference -0.728 ± ")
  assert lines[5].startswith("- within 100 cumulative parameters: w 1, gens, width 8 (CER 0.544)")
  assert not any("significant" in line or "undecided" in line for line in lines)


def test_whether_growing_is_better(tmp_path, runs):
  lines = [each.line for each in findings.growth(study_of(runs))]
  # gens of width 4 computes half of what sm of width 8 does: only sm of width 4 is within its budget.
  assert lines[0].startswith("- gens, width 4, w 1 (CER 0.624) against sm, width 4, w 1 (CER 0.722; 100% of the "
                             "compute, 60% of the memory): growing is better, but has a larger budget: **undecided**, "
                             "difference -0.098 ± ")
  assert len(lines) == 4

  def lines_on(*kinds):
    """Findings on kinds of runs: learner, width, parameters, multiply-adds, error of a seed, how much it has grown."""
    folder = tmp_path / f"more{len(list(tmp_path.iterdir()))}"
    for learner, width, params, macs, error, grown in kinds:
      for seed in range(3):
        write_run(folder / f"{learner}{width}{seed}", [error(seed), 0.1], learner, num_params=params, macs=macs,
                  seed=seed, model__width=width, grown=grown)
    return [each.line for each in findings.growth(study_of(folder))]

  rival = lambda error: ("umix", 8, 20, 500, error, 0)
  grown = lambda error: ("gens", 4, 20, 500, error, 1)
  flat = rival(lambda seed: 0.1)
  (line,) = lines_on(("gmoe", 4, 8, 10, lambda seed: 0.1, 1), flat)
  assert line.endswith(": no fixed learner within its compute and memory has a finished run with one of its seeds.")
  (line,) = lines_on(grown(lambda seed: 0.1 + 0.01 * (seed - 1)), flat)
  assert "umix, width 8 (CER 0.2; 100% of the compute, 103% of the memory): **undecided**, difference" in line
  (line,) = lines_on(grown(lambda seed: 0.04 + 0.001 * seed), flat)
  assert "**growing is better**, difference -0.059 ± 0.0025" in line
  (line,) = lines_on(grown(lambda seed: 0.2 + 0.001 * seed), flat)
  assert "**the fixed learner is better**, difference +0.101 ± 0.0025" in line
  # Significantly better than umix, but not than ens, whose mean is higher but varies more: undecided.
  wild = ("ens", 8, 20, 500, lambda seed: 0.1 + 0.2 * seed, 0)
  (line,) = lines_on(grown(lambda seed: 0.04 + 0.001 * seed), flat, wild)
  assert "against ens, width 8" in line
  assert "**undecided**" in line
  # One fixed learner that is better is enough.
  (line,) = lines_on(grown(lambda seed: 0.2 + 0.001 * seed), flat, wild)
  assert "against umix, width 8" in line
  assert "**the fixed learner is better**" in line
  # Fixed learners that share no seed are named; the others are compared.
  for seed in (0, 1):
    write_run(tmp_path / f"seeds/sm{seed}", [0.1, 0.1], num_params=20, macs=500, seed=seed)
  for seed in (0, 1, 2):
    write_run(tmp_path / f"seeds/gens{seed}", [0.04 + seed / 1e4, 0.1], "gens", 20, 500, grown=1, seed=seed)
  write_run(tmp_path / "seeds/ens5", [0.1, 0.1], "ens", 20, 500, seed=5)
  (study,), _ = collect.collect([tmp_path / "seeds"])
  (found,) = findings.growth(study)
  line = found.line
  assert found.verdict == findings.UNDECIDED
  assert "against sm (" in line
  assert line.endswith("on 2 seeds; not compared, because no seed is shared: ens.")
  assert "**undecided**" in line


def test_only_shared_seeds_are_compared(tmp_path):
  """Over all of its seeds w=1 looks better; on the seeds of both it is worse."""
  for wait, errors in ((1, [1.0, 1.051, 0.25, 0.25]), (2, [0.95, 1.0])):
    for seed, error in enumerate(errors):
      write_run(tmp_path / f"w{wait}s{seed}", [error / 2, error / 2], stream__waiting_time=wait, seed=seed)
  (study,), notes = collect.collect([tmp_path])
  assert notes == ["digits, 2 mega-batches: the kinds of runs have 2 to 4 seeds; tables and figures show the mean over "
                   "the seeds of each kind."]
  line = findings.waiting_times(study)[0]
  assert line == ("- sm: w 2 CER 0.975, w 1 CER 0.6378: **w 2 is best**, difference -0.0505 ± 0.0064 (95 % CI) on 2 "
                  "seeds.")


def test_best_is_better_than_every_other(tmp_path):
  """The best is significantly better than the second in the mean, but not than the third, which varies more."""
  for wait, errors in ((1, [1.0, 1.0, 1.0]), (2, [1.10, 1.11, 1.12]), (4, [0.8, 1.0, 1.9])):
    for seed, error in enumerate(errors):
      write_run(tmp_path / f"w{wait}s{seed}", [error / 4] * 4, stream__waiting_time=wait, seed=seed)
  line = findings.waiting_times(study_of(tmp_path))[0]
  assert line.startswith("- sm: w 1 CER 1, w 2 CER 1.11, w 4 CER 1.233: **w 1 is not significantly better than w 4**, "
                         "difference -0.233 ± ")


@pytest.mark.parametrize(("other", "expected"), [
    (0, "w 4 CER 0.4, w 1 CER 1.004, w 2 CER 1.4: **w 4 is not significantly better than w 1, w 2**, difference -0.4 "
        "on one seed."),
    (9, "w 1 CER 1.004, w 4 CER 0.4, w 2 CER 1.4: **undecided**, difference -0.396 ± 0.014 (95 % CI) on 3 seeds; not "
        "compared, because no seed is shared: w 4."),
])
def test_a_better_kind_with_fewer_seeds_is_compared(tmp_path, other, expected):
  for wait, errors in ((1, {0: 0.2, 1: 0.251, 2: 0.302}), (2, {0: 0.3, 1: 0.35, 2: 0.4}), (4, {other: 0.1})):
    for seed, error in errors.items():
      write_run(tmp_path / f"w{wait}s{seed}", [error] * 4, stream__waiting_time=wait, seed=seed)
  (study,), _ = collect.collect([tmp_path])
  assert findings.waiting_times(study)[0] == f"- sm: {expected}"


def test_different_data_of_one_name_are_separate_studies(tmp_path):
  for seed in range(3):
    run = write_run(tmp_path / f"own/{seed}", [0.5, 0.4], seed=seed, dataset__name="data")
    change(run / "config.json", data_fingerprint=str(seed // 2) * 64)
  found, _ = collect.collect([tmp_path / "own"])
  assert [study.name for study in found] == ["data, 2 mega-batches, contents 00000000",
                                             "data, 2 mega-batches, contents 11111111"]
  tmp_path = tmp_path / "changed"
  for name in ("a", "b"):
    path = write_run(tmp_path / name, [0.5, 0.4 if name == "a" else 0.3])
    change(path / "config.json", data_fingerprint=name * 64)
  write_run(tmp_path / "seed", [0.5, 0.4], seed=1, dataset__name="npz:x/d.npz")
  write_run(tmp_path / "other", [0.5, 0.4], seed=1, dataset__name="npz:y/d.npz")
  found, _ = collect.collect([tmp_path])
  assert len(found) == 4
  assert len({study.name for study in found}) == 4
  assert all(len(study.runs) == 1 for study in found)


def test_fields_in_which_learners_differ_are_noted(tmp_path):
  write_run(tmp_path / "sm", [0.5, 0.4], model__width=64, train__epochs=5)
  write_run(tmp_path / "ens", [0.5, 0.4], "ens", model__width=4, train__epochs=1)
  (study,), notes = collect.collect([tmp_path])
  assert study.factors == ("model.width",)
  assert notes == ["digits, 2 mega-batches: the learners differ in train.epochs: ens 1, sm 5."]


def test_means_are_in_units_and_digits_that_people_read():
  assert [tables.mean(value, deviation, "3") for value, deviation in ((0.0421, 0.0012), (3.14159, 0.2), (731.4, 12.6))
          ] == ["0.0421 ± 0.0012", "3.14 ± 0.20", "731 ± 13"]
  assert tables.mean(0.0, math.nan, "3") == "0"
  assert [tables.mean(*each, "brief") for each in ((2.2e9, 3.1e7), (2.2e9, 0.0), (17330, math.nan))
          ] == ["2.2 G ± 31 M", "2.2 G", "17.3 k"]
  assert tables.mean(0.5, 0.00004, ".4f") == "0.5000"  # equal in the digits shown


def test_the_command_line(tmp_path, runs):
  """The tables and findings of the runs; with --out all that a report can have, in files."""
  done = alma("report", runs)
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith("Runs: mean ± standard deviation over seeds\n\n| learner | width | w |")
  best, *answers = done.stdout.split("\n\n")[-1].splitlines()
  assert best.startswith("- **Best:** ")
  assert answers[-1] == findings.growth(study_of(runs))[-1].line
  heads = [line for line in done.stdout.splitlines() if line and not line.startswith(("| ", "- "))]
  assert heads == ["Runs: mean ± standard deviation over seeds",
                   "Training on k mega-batches one after the other (sequential) and on all k at once (iid): mean ± "
                   "standard deviation over seeds",
                   "Best choice at each price λ of compute (lowest CER + λ Comp; λ in error × mega-batches per "
                   "multiply-add): mean ± standard deviation over seeds"]
  for seed in range(2):
    for share in (0.0, 1.0):
      write_run(tmp_path / f"replay{seed}{share}", [0.5, 0.3 - 0.1 * share], "ens", seed=seed, stream__replay=share,
                macs=100 * (1 + share))
  write_run(tmp_path / "text", [300.0, 200.0], language=True)
  out = tmp_path / "out"
  done = alma("report", runs, *tmp_path.glob("replay*"), tmp_path / "text", "--out", out)
  assert done.stdout.strip() == str(out / "index.html")
  names = {file.name for file in out.iterdir()}
  assert {"runs.csv", "stream.csv", "pareto.csv", "report.md", "index.html"} <= names
  for stem in ("digits-2-mega-batches-stream", "digits-2-mega-batches-compute", "digits-2-mega-batches-parameters",
               "digits-2-mega-batches-replay", "tiny-shakespeare-2-mega-batches-stream"):
    assert (out / f"{stem}.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / f"{stem}.pdf").read_bytes()[:4] == b"%PDF"
  for name in ("report.md", "index.html"):
    text = re.sub("</?small>", "", (out / name).read_text())
    assert all(head in text for head in heads)
    assert {*re.findall(r"difference \S+ ± \S+ (.{9})", text)} == {"(95 % CI)"}
    assert text.count("mean ± standard deviation over seeds. A line joins the sizes") >= 2  # captions of figures
  text = (out / "index.html").read_text()
  assert 'name="viewport"' in text
  assert not re.search(r'(src|href)="(?!data:|#)', text)  # nothing from elsewhere
  assert text.count("<figure>") == len([name for name in names if name.endswith(".png")])
  table = pd.read_csv(out / "runs.csv")
  assert len(table) == 29
  assert {"learner.name", "model.width", "stream.waiting_time", "seed", "cer", "average_perplexity"} <= set(table)
  stream = pd.read_csv(out / "stream.csv")
  assert list(stream.columns[:4]) == ["run", "t", "stage", "updated"]
  assert len(stream) == 58
  (out / "mine.png").write_bytes(b"")
  write_report([tmp_path / "text"], out)
  assert {file.name for file in out.iterdir() if file.suffix in (".png", ".pdf")} == {
      "mine.png", *(f"{name}.{kind}" for name in ("stream", "stream-compute", "experts")
                    for kind in ("png", "pdf"))}  # only the files of the earlier report were removed


def test_pages_escape_what_they_show():
  text = page.page([Section("a<b", "x & y", [Card("q?", "1 < 2", "", "")], [
      Bullets("why", ["- **bold** `code` <script>"]), Table("t", "| a | b |\n| --- | ---: |\n| x |  |")])], ["5 < 6"])
  assert text.count("<script>") == 1  # that of the page
  assert all(each in text for each in ("<title>a&lt;b", "x &amp; y", "1 &lt; 2", "5 &lt; 6"))
  assert "<strong>bold</strong> <code>code</code>" in text
  assert '<td class="number"></td>' in text


def test_diverged_runs_are_named_and_counted(tmp_path, monkeypatch):
  """sm on seeds 0 to 2 at w 1, of which one diverged, at w 2, and at w 4, where all diverged."""
  for wait, errors in ((1, [0.1, 0.11, 0.12]), (2, [0.3, 0.33, 0.35]), (4, [0.2, 0.2, 0.2])):
    for seed, error in enumerate(errors):
      run = write_run(tmp_path / f"w{wait}s{seed}", [error] * 4, stream__waiting_time=wait, seed=seed,
                      model__width=wait)
      if wait == 4 or (wait, seed) == (1, 2):
        diverge(run)
  (study,), notes = collect.collect([tmp_path])
  assert notes[0] == (f"{tmp_path}/w1s2 is left out: it diverged after 1 of 4 mega-batches: train_loss is no longer "
                      "finite in stage 1, epoch 2.")
  assert sum("is left out: it diverged" in note for note in notes) == 4
  assert ("digits, 4 mega-batches: sm, width 1, w 1: 1 of 3 seeds diverged; its means include only the seeds that "
          "finished, which favours it.") in notes
  assert "digits, 4 mega-batches: sm, width 4, w 4: all 3 seeds diverged; it has no mean." in notes
  rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.overview(study).splitlines()]
  assert [row[:6] for row in rows[2:]] == [["sm", "1", "1", "10", "2 (1 diverged)", "0.420 ± 0.028"],
                                           ["sm", "2", "2", "10", "3", "1.307 ± 0.101"],
                                           ["sm", "4", "4", "-", "0 (3 diverged)", "-"]]
  assert tables.iid(study) is None  # no run that trains once has finished
  assert figures.plots(study)["stream"].caption.endswith("4 runs that diverged are not shown.")
  monkeypatch.setattr(page, "_write_figures", lambda *unused: {})
  write_report([tmp_path], tmp_path / "out")
  for name in ("report.md", "index.html"):
    text = (tmp_path / "out" / name).read_text()
    assert "1 of 3 seeds diverged" in text
    assert "all 3 seeds diverged" in text
    assert "2 (1 diverged)" in text


def test_a_kind_with_diverged_seeds_is_not_simply_the_best(tmp_path):
  for wait, errors in ((1, [0.1, 0.11, 0.12, 0.9]), (2, [0.3, 0.33, 0.35, 0.36]), (4, [0.2] * 4)):
    for seed, error in enumerate(errors):
      run = write_run(tmp_path / f"w{wait}s{seed}", [error] * 4, stream__waiting_time=wait, seed=seed)
      if wait == 4 or error == 0.9:
        diverge(run)
  (study,), _ = collect.collect([tmp_path])
  line, *budgets = findings.waiting_times(study)
  assert line.startswith("- sm: w 1 CER 0.44 with 1 of 4 seeds diverged, w 2 CER 1.34: **w 1 is best on the seeds that "
                         "finished**, difference -0.867 ± ")
  assert line.endswith("; w 4: all 4 seeds diverged.")
  assert all("w 1, sm (CER 0.44 with 1 of 4 seeds diverged)" in line for line in budgets)
  assert all(line.endswith("**w 1 is best on the seeds that finished**.") for line in budgets)
  best = cards.of(study, [])[0]
  assert best.value == "CER 0.440 ± 0.040 (1 of 4 seeds diverged)"
  assert best.details.endswith("; the lead is significant on the seeds that finished")
  _, further = page.parts(study, [], findings.growth(study))
  assert findings.HOW_DIVERGED in next(part for part in further if isinstance(part, Bullets)).how
  for seed in range(4):
    diverge(tmp_path / f"w2s{seed}")
  (study,), _ = collect.collect([tmp_path])
  assert findings.waiting_times(study) == ["- sm: w 1 CER 0.44 with 1 of 4 seeds diverged; w 2: all 4 seeds diverged; "
                                           "w 4: all 4 seeds diverged."]


@pytest.mark.parametrize(("diverged", "better", "verdict"), [
    ("gmoe3", True, "**growing is better on the seeds that finished**"), ("sm3", True, "**growing is better**"),
    ("gmoe3", False, "**the fixed learner is better**"),
    ("sm3", False, "**the fixed learner is better on the seeds that finished**"),
])
def test_growing_is_compared_with_its_divergences(tmp_path, diverged, better, verdict):
  for seed in range(4):
    write_run(tmp_path / f"sm{seed}", [0.3 + seed / 100] * 2, num_params=20, seed=seed)
    write_run(tmp_path / f"gmoe{seed}", [(0.1 if better else 0.6) + seed / 50] * 2, "gmoe", num_params=20, grown=1,
              seed=seed)
  diverge(tmp_path / diverged)
  (study,), _ = collect.collect([tmp_path])
  (found,) = findings.growth(study)
  assert verdict in found.line
  assert found.verdict == (findings.GROWING if better else findings.FIXED)
  assert found.line.count("with 1 of 4 seeds diverged") == 1
  for seed in range(4):
    if diverged != f"gmoe{seed}":
      diverge(tmp_path / f"gmoe{seed}")
  write_run(tmp_path / "wide", [0.5, 0.4], "gmoe", num_params=20, grown=1, model__width=64)
  (study,), _ = collect.collect([tmp_path])
  assert findings.growth(study)[-1] == findings.Growth("- gmoe, width 32: all 4 seeds diverged.")


def test_if_all_runs_diverged_only_their_names_are_reported(tmp_path):
  diverge(write_run(tmp_path / "lost/sm", [0.5, 0.4]))
  (tmp_path / "lost/sm/diverged.json").write_text("[]")
  with pytest.raises(BadInput, match="no finished run to report. .*sm is left out: it diverged after 1 of 2 mega"):
    collect.collect([tmp_path])
  with pytest.raises(BadInput) as error:
    collect.collect([tmp_path, tmp_path / "lost", tmp_path / "lost/sm"])
  assert str(error.value).count("it diverged") == 1
  assert [studies.Kind(None, pd.DataFrame(), num).divergence for num in (1, 2, 3)] == [
      "its only seed diverged", "both seeds diverged", "all 3 seeds diverged"]
  write_run(tmp_path / "other", [0.5, 0.4, 0.3])
  (study,), notes = collect.collect([tmp_path])
  assert len(study.runs) == 1
  assert "digits, 2 mega-batches: all runs diverged; there is nothing to report." in notes


def test_pairs_of_sequential_and_iid_runs_count_what_diverged(tmp_path):
  for seed in range(3):
    for wait in (1, 2):
      write_run(tmp_path / f"w{wait}s{seed}", [0.5, 0.4], stream__waiting_time=wait, seed=seed)
  diverge(tmp_path / "w2s1")
  (study,), _ = collect.collect([tmp_path])
  assert tables.iid(study).splitlines()[2] == "| sm | 2 | 2 (1 diverged) | 0.4000 | 0.4000 |"


BAD_LINES = [({"error": "0.4"}, "a line with error='0.4'"), ({"error": math.nan}, "a line with error=nan"),
             ({"num_params": None}, "a line with num_params=None"), ({"t": 7}, "should have lines with t from 1 to 2"),
             ({"updated": "yes"}, "a line with updated='yes'"), ({"fwd_macs": "many"}, "a line with fwd_macs='many'"),
             ({"stage": [1]}, r"a line with stage=\[1\]")]
_EDITED = "config.json was changed after the run"
BAD_RUNS = [
    *[("summary.json", value, sentence) for value, sentence in [
        ({}, "summary.json lacks 'cer'"), ([], r"summary.json holds \[\] instead"), ("x", "summary.json holds 'x'")]],
    *[("summary.json", {"cer": value}, "summary.json has cer=.*, which is not a finite number") for value in [
        "0.5", math.nan, math.inf, None, [1], True, {}]],
    *[("summary.json", {key: "?"}, f"summary.json has {key}='.'") for key in [
        "final_error", "wall_seconds", "cumulative_fwd_macs", "compile_seconds"]],
    ("summary.json", {"cumulative_params": 10**400}, "has cumulative_params=1000"),
    *[("config.json", value, sentence) for value, sentence in [
        ([], "config.json is not from a run"), ({}, "config.json is not from a run"), ({"seed": 5}, _EDITED),
        ({"seed": "0"}, "has seed='0', which is not a valid value"),
        ({"stream": {}}, "lacks 'stream.num_megabatches'"), ({"dataset": "digits"}, "lacks 'dataset.name'"),
        ({"data_fingerprint": 3}, "has data_fingerprint=3"),
        ({"learner": {"name": ["sm"]}}, r"has learner.name=\['sm'\]"), ({"log": {"label": 4}}, "has log.label=4")]],
    ("config.json", {"model": {"name": "mlp", "width": "x", "num_experts": 1}}, _EDITED),
    *[("metrics.jsonl", value, sentence) for value, sentence in BAD_LINES],
    ("metrics.jsonl", None, "metrics.jsonl has 0 of 2 mega-batches, although"),
    ("metrics.jsonl", [], "a line that is not a JSON object"),
]


@pytest.mark.parametrize(("file", "value", "sentence"), BAD_RUNS)
def test_one_bad_run_does_not_end_a_report(tmp_path, file, value, sentence):
  good = write_run(tmp_path / "runs/good", [0.5, 0.4])
  place = write_run(tmp_path / "runs/bad", [0.5, 0.3], seed=1) / file
  if value is None:
    place.unlink()
  elif file == "metrics.jsonl":
    first, second = place.read_text().splitlines()
    second = json.dumps(json.loads(second) | value if value else value)
    place.write_text(f"{first}\n{second}\n")
  elif isinstance(value, dict) and value:
    place.write_text(json.dumps(json.loads(place.read_text()) | value))
  else:
    place.write_text(json.dumps(value))
  (study,), (problem,) = collect.collect([tmp_path / "runs"])
  assert study.runs["run"].tolist() == [str(good)]
  assert re.search(f"/bad is left out: .*{sentence}", problem)
  assert "\n" not in problem
  assert len(problem) < 500
  assert tables.overview(study).count("\n") == 2


def test_odd_values_that_are_possible_are_reported(tmp_path):
  """No errors at all, costs beyond 64 bits, and options of a learner of one's own that are text in one run alone."""
  write_run(tmp_path / "perfect", [0.0, 0.0])
  change(write_run(tmp_path / "large", [0.5, 0.4], seed=1) / "summary.json", cumulative_fwd_macs=2**70)
  for seed, strength in enumerate((1, "high", 3)):
    set_learner(write_run(tmp_path / f"own{seed}", [0.5, 0.4], seed=seed), name="fittest", strength=strength)
  write_report([tmp_path], tmp_path / "out")
  table = pd.read_csv(tmp_path / "out/runs.csv")
  assert len(table) == 5
  assert table["learner.strength"].dropna().tolist() == ["1", "3", "high"]


def test_runs_whose_config_was_changed_are_left_out(tmp_path):
  tree = {}
  for name in ("kept", "edited", "elsewhere"):
    run = write_run(tmp_path / name, [0.5, 0.4], model__width=["kept", "edited", "elsewhere"].index(name) + 4)
    tree = json.loads((run / "config.json").read_text())
    digest = configs.digest(configs.parse({k: v for k, v in tree.items() if k not in configs.STORED}))
    assert digest == configs.digest(tree)
    change(run / "summary.json", config_sha256=digest)
  change(tmp_path / "edited/config.json", model=dict(tree["model"], width=64))
  # No result depends on these.
  change(tmp_path / "elsewhere/config.json", dataset=dict(tree["dataset"], data_dir="/other"), checkpoint=None)
  (study,), (problem,) = collect.collect([tmp_path])
  assert sorted(study.runs["model.width"]) == [4, 6]
  assert re.search("edited is left out: .*config.json was changed after the run", problem)


def test_a_reader_that_stops_reading_is_no_failure(runs, monkeypatch):
  """As in `python -m alma_jax.report runs | head -n 1`."""
  for argv, errors, code in ((["--help"], False, 141), (["--out"], True, 2)):
    reading, writing = os.pipe()
    os.close(reading)
    with monkeypatch.context() as patch, open(writing, "w", buffering=1) as stream:
      patch.setattr(sys, "stderr" if errors else "stdout", stream)
      assert report.main(argv) == code
      stream.flush()  # Python does so once more when it ends
  done = subprocess.run(f"{sys.executable} -m alma_jax.report {runs} | true; echo ${{PIPESTATUS[0]}}", shell=True,
                        executable="/bin/bash", cwd=ROOT, capture_output=True, text=True, check=True)
  assert (done.stdout, done.stderr) == ("141\n", "")
