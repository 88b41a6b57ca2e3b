"""Reports: reading runs, tables, findings and figures, on run folders written by hand."""
import html
import json
import math
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from runs import ROOT

import alma_jax
from alma_jax import config as configs
from alma_jax import metrics, report
from alma_jax.errors import BadInput
from alma_jax.reports import collect, figures, findings, page, tables


def write_run(path, values, learner="sm", num_params=10, macs=100, grown=0, **changes):
  """A finished run of one stage per mega-batch; `values` are its errors or, of a language model, perplexities.

  It holds num_params in the end, and `grown` less before the last mega-batch.
  """
  language = changes.pop("language", False)
  config = (configs.language if language else configs.base)(learner)
  fields = {"stream.num_megabatches": len(values), "stream.waiting_time": 1} | changes
  config.update_from_flattened_dict({key.replace("__", "."): value for key, value in fields.items()})
  path.mkdir(parents=True)
  tree = dict(configs.to_dict(configs.parse(config)), data_fingerprint="0" * 64)
  (path / "config.json").write_text(json.dumps(tree))
  wait = tree["stream"]["waiting_time"]
  metric = "perplexity" if language else "error"
  lines = [metrics.line(metric, t, (t - 1) // wait, t % wait == 0, value, value, 0.5,
                        num_params - grown * (t < len(values)), macs if t % wait == 0 else 0)
           for t, value in enumerate(values, 1)]
  (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  summary = metrics.summarize(lines, num_params - grown) | dict(wall_seconds=2.0, compile_seconds=1.0, device="cpu")
  (path / "summary.json").write_text(json.dumps(summary))
  return path


@pytest.fixture
def runs(tmp_path):
  """sm and gens at two widths and two waiting times, three seeds; CERs 0.6 + ..., see `error`."""
  root = tmp_path / "runs"
  for learner, better in (("sm", 0.0), ("gens", 0.05)):
    for width in (4, 8):
      for wait in (1, 2):
        for seed in range(3):
          error = 0.4 - better - 0.01 * width + 0.1 * (wait - 1) + 0.001 * seed * (1 if learner == "sm" else 2)
          write_run(root / f"{learner}{width}w{wait}s{seed}", [0.9 if wait == 2 else error, error], learner,
                    num_params=width * (2 if learner == "gens" else 1), macs=width * 50 * wait, model__width=width,
                    grown=2 * (learner == "gens"), stream__waiting_time=wait, seed=seed)
  return root


def study_of(*paths):
  (study,), problems = collect.collect(paths)
  assert problems == []
  return study


def test_runs_are_read(runs):
  study = study_of(runs)
  assert (len(study.runs), len(study.stream)) == (24, 48)
  assert (study.name, study.metric, study.judged) == ("digits, 2 mega-batches", "error", "cer")
  assert study.factors == ("model.width", "stream.waiting_time")
  row = study.runs[study.runs["run"].str.endswith("gens8w2s1")].iloc[0]
  assert row["cer"] == pytest.approx(0.9 + 0.372)
  assert (row["cumulative_params"], row["cumulative_fwd_macs"], row["last_params"]) == (14 + 14 + 16, 800, 16)
  table = collect.means(study, "cer", "cumulative_params")
  kind = table.set_index(["learner.name", "model.width", "stream.waiting_time"]).loc[("sm", 4, 1)]
  assert kind["cer"] == pytest.approx(2 * 0.361)
  assert kind["cer_sd"] == pytest.approx(0.002)  # 0.720, 0.722, 0.724
  assert kind["seeds"] == 3
  assert table["cer"].is_monotonic_increasing


def test_what_cannot_be_used_is_left_out_and_named(tmp_path, runs):
  half = write_run(tmp_path / "more/half", [0.5, 0.4], seed=7)
  (half / "summary.json").unlink()
  short = write_run(tmp_path / "more/short", [0.5, 0.4], seed=8)
  (short / "metrics.jsonl").write_text("")
  torn = write_run(tmp_path / "more/torn", [0.5, 0.4], seed=9)
  (torn / "metrics.jsonl").write_text('{"t": 1, "err')
  for name, contents in (("other", "{}"), ("list", "[]"), ("number", '{"stream": 3}')):
    (tmp_path / "more" / name).mkdir()
    (tmp_path / "more" / name / "config.json").write_text(contents)
    (tmp_path / "more" / name / "metrics.jsonl").write_text("")
  (write_run(tmp_path / "more/nameless", [0.5, 0.4], seed=10) / "config.json").unlink()
  (write_run(tmp_path / "more/binary", [0.5, 0.4], seed=11) / "metrics.jsonl").write_bytes(b"\xff\n")
  for name, file, key in (("costless", "summary.json", "cer"), ("seedless", "config.json", "seed")):
    place = write_run(tmp_path / "more" / name, [0.5, 0.4], seed=12) / file
    tree = json.loads(place.read_text())
    del tree[key]
    place.write_text(json.dumps(tree))
  write_run(tmp_path / "more/twin", [0.5, 0.4], seed=0, model__width=4)
  (study,), problems = collect.collect([runs, tmp_path / "more"])
  assert len(study.runs) == 24
  for name, sentence in (("half", "2 of 2 mega-batches and no summary.json"), ("short", "not finished, 0 of 2"),
                         ("torn", "not finished, 0 of 2"), ("other", "not those of a run .KeyError: 'stream'"),
                         ("list", "not those of a run"), ("number", "not those of a run"),
                         ("nameless", "it has no config.json"), ("binary", "one of its files cannot be read"),
                         ("costless", "KeyError: 'cer'"), ("seedless", "KeyError: 'seed'"),
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
  studies, _ = collect.collect([tmp_path])
  assert [study.name for study in studies] == ["digits, 2 mega-batches", "digits, 3 mega-batches",
                                               "mnist, 2 mega-batches"]
  assert [len(study.runs) for study in studies] == [1, 1, 1]
  assert any("of 3 streams, which are reported one after the other" in note for note in report._notes(studies, []))


def test_factors_that_vary_together_count_once(tmp_path):
  for wait, epochs in ((1, 5), (2, 6)):
    write_run(tmp_path / str(wait), [0.5, 0.4], stream__waiting_time=wait, train__epochs=epochs)
  write_run(tmp_path / "ens", [0.5, 0.4], "ens", learner__num_members=3)
  (study,), problems = collect.collect([tmp_path])
  assert study.factors == ("stream.waiting_time",)
  assert problems == ["digits, 2 mega-batches: train.epochs varies together with w, and is not told apart from it."]


def test_tables(runs):
  head, _, first, *rest = tables.overview(study_of(runs)).splitlines()
  assert head == "| learner | width | w | parameters | seeds | CER | mean error | final error | Mem | Comp | seconds |"
  assert first.startswith("| gens | 8 | 1 | 14 to 16 | 3 | 0.544 ± 0.004 | 0.2720 ± 0.0020 |")
  assert len(rest) == 7
  assert tables.iid(study_of(runs)).splitlines()[4] == "| sm | 4 | 3 | 0.3610 ± 0.0010 | 0.4610 ± 0.0010 |"


def test_numbers_of_parameters_are_short():
  assert [tables._number(n) for n in (16, 17_330, 2_633_216, 1_500_000_000)] == ["16", "17.3k", "2.63M", "1.5B"]


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
  assert lines[2].startswith("| gmoe | 2 | 4 | 2M | 1 | - | 150.00 | 150.00 |")
  assert lines[3].startswith("| gens | 1 | 4@1 to 4@2 | 1M | 1 | 300.00 | 200.00 | 250.00 |")
  (study,), notes = collect.collect([tmp_path])
  assert notes[0].endswith("train.steps_multiplier varies together with w, and is not told apart from it.")
  assert tables.iid(study).splitlines()[2:] == ["| sm | 1 | 250.00 | 240.00 |"]
  (answer, *rest) = findings.waiting_times(study)
  assert answer.startswith("- Judged by the last perplexity")
  assert rest[0].startswith("- sm: w 2 perplexity 240, w 1 perplexity 250: **the runs cannot tell w 2 from w 1**")


def test_comparisons_by_hand():
  found = findings.compare({0: 1.0, 1: 2.0, 2: 3.0, 9: 0.0}, {0: 2.0, 1: 4.0, 2: 6.0})
  # Differences -1, -2, -3: deviation 1, standard error 1/sqrt(3), and 4.3027 of it are 95 % at two degrees of freedom.
  assert (found.mean, found.num) == (-2.0, 3)
  assert found.margin == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
  assert not found.sure
  alike = findings.compare({0: 1.0, 1: 2.0}, {0: 5.0, 1: 6.0})  # exactly 4 on both: nothing tells how it varies
  assert (alike.mean, alike.sure) == (-4.0, False)
  assert findings.compare({0: 1.0}, {1: 1.0}) is None
  single = findings.compare({0: 1.0}, {0: 2.0})
  assert (single.mean, single.num, single.sure) == (-1.0, 1, False)


def test_the_best_waiting_time(runs):
  lines = findings.waiting_times(study_of(runs))
  assert lines[0].startswith("- gens, width 4: w 1 CER 0.624, w 2 CER 1.312: **w 1 is best**, difference -0.688 ± ")
  assert len(lines) == 4 + 1 + 1  # one power of ten of compute, two of parameters with one answer
  assert lines[4].startswith("- within 1e3 multiply-adds: w 1, gens, width 8 (CER 0.544); against the best at "
                             "w 2: gens, width 8 (CER 1.272), difference -0.728 ± ")
  assert lines[5].startswith("- within 1e2 cumulative parameters: w 1, gens, width 8 (CER 0.544)")
  assert not any("cannot tell" in line for line in lines)


def test_whether_growing_paid(tmp_path, runs):
  lines = findings.growth(study_of(runs))
  # gens of width 4 computes half of what sm of width 8 does: only sm of width 4 is within its budget.
  assert lines[0].startswith("- gens, width 4, w 1 (CER 0.624) against sm, width 4, w 1 (CER 0.722; 100% of the "
                             "compute, 60% of the memory): better, but with a larger budget: **the runs cannot tell** "
                             "whether growing paid, difference -0.098 ± ")
  assert len(lines) == 4
  def told(*kinds):
    """Lines on kinds of runs: learner, width, parameters, multiply-adds, error of a seed, how much it has grown."""
    folder = tmp_path / f"more{len(list(tmp_path.iterdir()))}"
    for learner, width, params, macs, error, grown in kinds:
      for seed in range(3):
        write_run(folder / f"{learner}{width}{seed}", [error(seed), 0.1], learner, num_params=params, macs=macs,
                  seed=seed, model__width=width, grown=grown)
    return findings.growth(study_of(folder))

  rival = lambda error: ("umix", 8, 20, 500, error, 0)
  grown = lambda error: ("gens", 4, 20, 500, error, 1)
  flat = rival(lambda seed: 0.1)
  (line,) = told(("gmoe", 4, 8, 10, lambda seed: 0.1, 1), flat)
  assert line.endswith(": no fixed learner within its compute and memory was run on its seeds.")
  (line,) = told(grown(lambda seed: 0.1 + 0.01 * (seed - 1)), flat)
  assert "umix, width 8 (CER 0.2; 100% of the compute, 103% of the memory): **the runs cannot tell**, differ" in line
  (line,) = told(grown(lambda seed: 0.04 + 0.001 * seed), flat)
  assert "**growing paid**, difference -0.059 ± 0.0025" in line
  (line,) = told(grown(lambda seed: 0.2 + 0.001 * seed), flat)
  assert "**growing did not pay**, difference +0.101 ± 0.0025" in line
  # Surely better than umix, but not than ens, whose mean is worse still: the runs cannot tell.
  wild = ("ens", 8, 20, 500, lambda seed: 0.1 + 0.2 * seed, 0)
  (line,) = told(grown(lambda seed: 0.04 + 0.001 * seed), flat, wild)
  assert "against ens, width 8" in line
  assert "**the runs cannot tell**" in line
  # Worse than one alternative is enough not to have paid.
  (line,) = told(grown(lambda seed: 0.2 + 0.001 * seed), flat, wild)
  assert "against umix, width 8" in line
  assert "**growing did not pay**" in line
  # Rivals on other seeds are named; those that share some are compared.
  for seed in (0, 1):
    write_run(tmp_path / f"seeds/sm{seed}", [0.1, 0.1], num_params=20, macs=500, seed=seed)
  for seed in (0, 1, 2):
    write_run(tmp_path / f"seeds/gens{seed}", [0.04 + seed / 1e4, 0.1], "gens", 20, 500, grown=1, seed=seed)
  write_run(tmp_path / "seeds/ens5", [0.1, 0.1], "ens", 20, 500, seed=5)
  (study,), _ = collect.collect([tmp_path / "seeds"])
  (line,) = findings.growth(study)
  assert "against sm (" in line
  assert line.endswith("on 2 seeds; not compared for want of shared seeds: ens.")
  assert "**the runs cannot tell**" in line


def test_only_shared_seeds_are_compared(tmp_path):
  """Over all of its seeds w=1 looks better; on the seeds of both it is worse."""
  for wait, errors in ((1, [1.0, 1.051, 0.25, 0.25]), (2, [0.95, 1.0])):
    for seed, error in enumerate(errors):
      write_run(tmp_path / f"w{wait}s{seed}", [error / 2, error / 2], stream__waiting_time=wait, seed=seed)
  (study,), notes = collect.collect([tmp_path])
  assert notes == ["digits, 2 mega-batches: its kinds of runs have 2 to 4 seeds; tables and figures show the mean over "
                   "those that each has."]
  line = findings.waiting_times(study)[0]
  assert line == ("- sm: w 2 CER 0.975, w 1 CER 0.6378: **w 2 is best**, difference -0.0505 ± 0.0064 on 2 seeds.")


def test_best_is_better_than_every_other(tmp_path):
  """Against the second in the mean the best is sure, against a third that varies more it is not."""
  for wait, errors in ((1, [1.0, 1.0, 1.0]), (2, [1.10, 1.11, 1.12]), (4, [0.8, 1.0, 1.9])):
    for seed, error in enumerate(errors):
      write_run(tmp_path / f"w{wait}s{seed}", [error / 4] * 4, stream__waiting_time=wait, seed=seed)
  line = findings.waiting_times(study_of(tmp_path))[0]
  assert line.startswith("- sm: w 1 CER 1, w 2 CER 1.11, w 4 CER 1.233: **the runs cannot tell w 1 from w 4**, "
                         "difference -0.233 ± ")


@pytest.mark.parametrize(("other", "told"), [
    (0, "w 4 CER 0.4, w 1 CER 1.004, w 2 CER 1.4: **the runs cannot tell w 4 from w 1, w 2**, difference -0.4 on one "
        "seed."),
    (9, "w 1 CER 1.004, w 4 CER 0.4, w 2 CER 1.4: **the runs cannot tell**, difference -0.396 ± 0.014 on 3 seeds; not "
        "compared for want of shared seeds: w 4."),
])
def test_a_better_kind_with_fewer_seeds_is_not_passed_over(tmp_path, other, told):
  for wait, errors in ((1, {0: 0.2, 1: 0.251, 2: 0.302}), (2, {0: 0.3, 1: 0.35, 2: 0.4}), (4, {other: 0.1})):
    for seed, error in errors.items():
      write_run(tmp_path / f"w{wait}s{seed}", [error] * 4, stream__waiting_time=wait, seed=seed)
  (study,), _ = collect.collect([tmp_path])
  assert findings.waiting_times(study)[0] == f"- sm: {told}"


def test_data_of_one_name_and_other_contents_are_apart(tmp_path):
  def contents(path, print_):
    tree = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(tree | {"data_fingerprint": print_}))

  for seed in range(3):  # digits of another seed are split otherwise; arrays are not
    contents(write_run(tmp_path / f"split/{seed}", [0.5, 0.4], seed=seed), str(seed) * 64)
    contents(write_run(tmp_path / f"own/{seed}", [0.5, 0.4], seed=seed, dataset__name="data"), str(seed // 2) * 64)
  assert study_of(tmp_path / "split").runs["seed"].tolist() == [0, 1, 2]
  studies, _ = collect.collect([tmp_path / "own"])
  assert [study.name for study in studies] == ["data, 2 mega-batches, contents 00000000",
                                               "data, 2 mega-batches, contents 11111111"]
  tmp_path = tmp_path / "changed"
  for name in ("a", "b"):
    path = write_run(tmp_path / name, [0.5, 0.4 if name == "a" else 0.3])
    contents(path, name * 64)
  write_run(tmp_path / "seed", [0.5, 0.4], seed=1, dataset__name="npz:x/d.npz")
  write_run(tmp_path / "other", [0.5, 0.4], seed=1, dataset__name="npz:y/d.npz")
  studies, _ = collect.collect([tmp_path])
  assert len(studies) == 4
  assert len({study.name for study in studies}) == 4
  assert all(len(study.runs) == 1 for study in studies)


def test_what_sets_learners_apart_is_told(tmp_path):
  write_run(tmp_path / "sm", [0.5, 0.4], model__width=64, train__epochs=5)
  write_run(tmp_path / "ens", [0.5, 0.4], "ens", model__width=4, train__epochs=1)
  (study,), notes = collect.collect([tmp_path])
  assert study.factors == ("model.width",)
  assert notes == ["digits, 2 mega-batches: the learners differ in train.epochs: ens 1, sm 5."]


def test_panels_show_every_learner(tmp_path):
  """Fields that only some learners have make lines, not panels; what all have makes panels."""
  write_run(tmp_path / "sm", [0.5, 0.4], model__width=4)
  for members in (2, 3):
    write_run(tmp_path / f"ens{members}", [0.3, 0.2], "ens", learner__num_members=members, model__width=4)
  for share in (0.0, 1.0):
    write_run(tmp_path / f"wide{share}", [0.9, 0.1 + share / 2], model__width=8, stream__replay=share)
  study = study_of(tmp_path)
  axes = figures.over_the_stream(study).axes
  names = {ax.get_title(): sorted(text.get_text() for text in ax.texts) for ax in axes}
  assert names == {"w = 1, width = 4, replay = 0": ["ens, num_members 2", "ens, num_members 3", "sm"],
                   "w = 1, width = 8, replay = 0": ["sm"], "w = 1, width = 8, replay = 1": ["sm"]}
  assert axes[0].lines[0].get_ydata().tolist() == [0.5, 0.4]


def test_what_was_judged_once_is_drawn_as_a_point(tmp_path):
  write_run(tmp_path / "iid", [None, 240.0], language=True, stream__waiting_time=2)
  for wait, value in ((1, 300.0), (4, 160.0)):  # four perplexities, and one
    write_run(tmp_path / f"w{wait}", [value if t % wait == 0 else None for t in range(1, 5)], language=True,
              stream__waiting_time=wait, macs=100)
  studies, _ = collect.collect([tmp_path])
  (axes,) = figures.over_the_stream(studies[0]).axes
  (line,) = axes.lines
  assert (line.get_marker(), line.get_ydata().tolist()) == ("o", [240.0])
  # Who waits longer is no rival on the front of language models.
  fronts = [axes.lines[0].get_ydata().tolist() for axes in figures.against(studies[1], "cumulative_fwd_macs").axes]
  assert fronts == [[300.0], [160.0]]


def test_captions_tell_what_is_left_out(tmp_path):
  for wait in range(1, 9):
    write_run(tmp_path / f"w{wait}", [0.5] * 8, stream__waiting_time=wait, stream__replay=0.5 * (wait == 1))
  write_run(tmp_path / "without", [0.5] * 8)
  told = {name: caption for name, (caption, _) in figures.all_of(study_of(tmp_path)).items()}
  for name in ("stream", "compute", "parameters"):
    assert told[name].endswith("Shown are 5 of 8 waiting times; all are in the table."), told[name]
  assert told["replay"].startswith("From no replay to replay of up to 50%.")


def test_learners_of_others_are_drawn(tmp_path):
  for share in (0.0, 1.0):
    path = write_run(tmp_path / str(share), [0.5, 0.4 - share / 10], stream__replay=share)
    tree = json.loads((path / "config.json").read_text())
    tree["learner"]["name"] = "fittest"
    (path / "config.json").write_text(json.dumps(tree))
  study = study_of(tmp_path)
  assert set(figures.all_of(study)) == {"stream", "compute", "parameters", "replay"}
  assert figures.over_the_stream(study).axes[0].texts[0].get_text() == "fittest"


def test_a_panel_for_each_waiting_time_and_size(tmp_path, runs):
  assert len(figures.over_the_stream(study_of(runs)).axes) == 2 * 2
  for wait in (1, 2):
    for seed in (0, 1):
      write_run(tmp_path / f"one/{wait}{seed}", [0.5, 0.4 - seed / 10], stream__waiting_time=wait, seed=seed)
  study = study_of(tmp_path / "one")
  assert len(figures.over_the_stream(study).axes) == len(figures.against(study, "cumulative_params").axes) == 2
  assert study.stream["stage"].dtype == "Int64"


def test_one_seed_cannot_tell(tmp_path):
  for wait, errors in ((1, [0.5, 0.1]), (2, [0.9, 0.1])):
    write_run(tmp_path / str(wait), errors, stream__waiting_time=wait)
  assert "the runs cannot tell w 1 from w 2**, difference -0.4 on one seed" in findings.waiting_times(
      study_of(tmp_path))[0]


def test_the_pareto_front_by_hand():
  points = {(1, 5), (2, 6), (3, 4), (3, 3), (4, 3), (5, 1)}
  assert figures.pareto(*zip(*points)) == [(1, 5), (3, 3), (5, 1)]


def test_names_do_not_touch():
  figure = figures._figure(4, 3)
  axes = figure.subplots()
  axes.set(xlim=(0, 1), ylim=(0, 1))
  figures.label_ends(axes, [("sm", 1, 0.5), ("ens", 1, 0.5), ("gens", 1, 0.51), ("umix", 1, 0.9)])
  figure.canvas.draw()
  boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
  assert len(boxes) == 4
  for name, box in boxes.items():
    for other, its in boxes.items():
      assert name == other or not box.overlaps(its), (name, other)
  assert boxes["umix"].y0 < axes.transData.transform((1, 0.9))[1] < boxes["umix"].y1  # it had room
  axes = figures._figure(4, 3).subplots()
  axes.set(xlim=(0, 1), ylim=(0, 1))
  figures.label_ends(axes, [(name, 1, height) for name in ("sm", "ens", "gens") for height in (0, 1)])
  axes.figure.canvas.draw()
  boxes = [text.get_window_extent() for text in axes.texts]
  assert len(boxes) == 6
  frame = axes.get_window_extent()
  assert all(frame.y0 - 1 <= box.y0 < box.y1 <= frame.y1 + 1 for box in boxes)  # beside the axes, not above or below
  assert not any(box.overlaps(other) for box in boxes for other in boxes if box is not other)


def test_learners_look_apart():
  assert set(figures.STYLES) == set(configs.LEARNERS)
  assert len({colour for colour, _ in figures.STYLES.values()}) == len(figures.STYLES)
  assert len({marker for _, marker in figures.STYLES.values()}) == len(figures.STYLES)
  rgb = lambda colour: np.array([int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)])
  for colour, _ in figures.STYLES.values():
    assert figures.contrast(rgb(colour)) > 1.9  # of lines
    assert figures.contrast(rgb(figures.ink(colour))) >= 4.49  # of text
  assert figures.contrast(np.zeros(3)) == pytest.approx(21)
  assert figures.contrast(rgb("#777777")) == pytest.approx(4.48, abs=0.01)


def test_a_report_of_everything(tmp_path, runs):
  for seed in range(2):
    for share in (0.0, 1.0):
      write_run(tmp_path / f"replay{seed}{share}", [0.5, 0.3 - 0.1 * share], "ens", seed=seed, stream__replay=share,
                macs=100 * (1 + share))
  write_run(tmp_path / "text", [300.0, 200.0], language=True)
  place = report.report([runs, *tmp_path.glob("replay*"), tmp_path / "text"], tmp_path / "out")
  out = tmp_path / "out"
  names = {file.name for file in out.iterdir()}
  assert {"runs.csv", "stream.csv", "report.md", "index.html"} <= names
  for stem in ("digits-2-mega-batches-stream", "digits-2-mega-batches-compute", "digits-2-mega-batches-parameters",
               "digits-2-mega-batches-replay", "tiny-shakespeare-2-mega-batches-stream"):
    assert (out / f"{stem}.png").read_bytes()[:4] == b"\x89PNG"
    assert (out / f"{stem}.pdf").read_bytes()[:4] == b"%PDF"
  text = place.read_text()
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
  report.report([tmp_path / "text"], out)
  assert {file.name for file in out.iterdir() if file.suffix in (".png", ".pdf")} == {
      "mine.png", *(f"{name}.{kind}" for name in ("stream", "compute", "parameters", "experts")
                    for kind in ("png", "pdf"))}  # of what was there only what the earlier report had put there is gone


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
@pytest.mark.parametrize("pixels", [360, 1200])
def test_a_browser_shows_the_page(tmp_path, runs, pixels):
  """Every picture loads; tables and figures that are wider than the window scroll by themselves, the page does not."""
  text = report.report([runs], tmp_path / "out").read_text()
  script = ("const d = document.querySelector('iframe').contentDocument, e = d.documentElement;"
            "document.title = JSON.stringify({page: e.scrollWidth, window: e.clientWidth,"
            " pictures: [...d.images].map(i => i.naturalWidth > 0), rows: d.querySelectorAll('tr').length,"
            " tops: [...d.querySelectorAll('h2, h3, figure')].map(e => e.getBoundingClientRect().top)})")
  frame = f'<iframe style="border:0;width:{pixels}px;height:800px" srcdoc="{html.escape(text)}"></iframe>'
  (tmp_path / "frame.html").write_text(f'<!doctype html><body onload="{html.escape(script)}">{frame}</body>')
  done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/browser",
                         "--dump-dom", f"file://{tmp_path}/frame.html"], capture_output=True, text=True, check=True)
  shown = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout)[1]))
  assert pixels - 20 < shown["page"] == shown["window"] <= pixels  # a scroll bar may take some
  assert shown["pictures"] == [True] * 3
  assert shown["rows"] == 1 + 8 + 1 + 4  # heads, kinds of runs, and pairs of sequential and iid ones
  assert shown["tops"] == sorted(shown["tops"])


def test_pages_escape_what_they_show():
  text = page.page("a<b", [("x & y", [("list", "why", ["- **bold** `code` <script>"]),
                                      ("table", "t", "| a | b |\n| --- | ---: |\n| x |  |")])], ["5 < 6"])
  assert "<script>" not in text
  assert "a&lt;b" in text
  assert "<strong>bold</strong> <code>code</code>" in text
  assert '<td class="number"></td>' in text


def test_the_command_line(tmp_path, runs):
  def run(*args):
    return subprocess.run([sys.executable, "-m", "alma_jax.report", *map(str, args)], cwd=ROOT, capture_output=True,
                          text=True, check=False)

  done = run(runs)
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith("| learner | width | w |")
  done = run(runs, "--out", tmp_path / "out")
  assert done.stdout.strip() == str(tmp_path / "out/index.html")
  for args, sentence in (([], "required: RUNS"), ([tmp_path / "none"], "there is no folder"),
                         ([runs, "--out", runs / "sm4w1s0" / "config.json"], "cannot be made or written")):
    done = run(*args)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert sentence in done.stderr


def test_real_runs_are_read(tmp_path, make_config, arrays):
  run = alma_jax.run(make_config(stream__waiting_time=3), tmp_path / "run", data=arrays)
  study = study_of(tmp_path)
  assert study.runs["cer"].iloc[0] == run.summary["cer"]
  np.testing.assert_array_equal(study.stream["error"], run.metrics["error"])
