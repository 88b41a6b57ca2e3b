"""The figures of reports, on run folders written by hand."""
import itertools
import re
import shutil

import matplotlib.colors
import numpy as np
import pandas as pd
import pytest
from reports import change_lines, diverge, drawn, legend, set_learner, study_of, write_run

from alma_jax import config as configs
from alma_jax import report
from alma_jax.config.registry import LEARNERS
from alma_jax.errors import BadInput
from alma_jax.reports import collect, drawing, figures, studies, svg
from alma_jax.reports.drawing import Line, Panel, Plot


def titles(study, name="stream", waits=()):
  """Those of the panels of a figure."""
  return [panel.title for panel in figures.plots(study, waits)[name].panels]


def test_panels_show_every_learner(tmp_path):
  """Fields that vary for one learner make lines, not panels; what varies for several makes panels."""
  for learner in ("sm", "ens"):
    for width in (4, 8):
      write_run(tmp_path / f"{learner}{width}", [0.5, 0.4], learner, model__width=width)
  write_run(tmp_path / "ens3", [0.3, 0.2], "ens", learner__num_members=3, model__width=4)
  write_run(tmp_path / "replay", [0.9, 0.6], model__width=8, stream__replay=1.0)
  study = study_of(tmp_path)
  figure = drawn(study, "stream")
  axes = figure.axes
  assert [ax.get_title() for ax in axes] == ["w = 1, width = 4", "w = 1, width = 8"]
  assert legend(figure) == ["sm", "sm, replay 1", "ens, members 3", "ens, members 5"]
  shown = [sorted((line.get_color(), line.get_linestyle()) for line in ax.lines) for ax in axes]
  keys = {key.get_label(): (key.get_color(), key.get_linestyle()) for key in figure.legends[0].get_lines()}
  assert len(set(keys.values())) == 4
  assert shown == [sorted(keys[name] for name in names) for names in (
      ("sm", "ens, members 3", "ens, members 5"),
      ("sm", "sm, replay 1", "ens, members 5"))]
  assert axes[0].lines[0].get_ydata().tolist() == [0.5, 0.4]
  for width in range(9, 18):
    write_run(tmp_path / f"wide{width}", [0.5, 0.4], model__width=width, stream__replay=1.0)
  panels = drawn(study_of(tmp_path), "stream").axes
  assert max(len(ax.lines) for ax in panels) <= 10


def test_panels_without_runs_are_left_out_if_they_are_many(tmp_path):
  for wait, replay in ((1, 0.0), (2, 0.0), (2, 1.0), (3, 0.0), (3, 0.5)):
    for learner in ("sm", "ens"):
      write_run(tmp_path / f"{learner}{wait}{replay}", [0.5, 0.4, 0.3], learner, stream__waiting_time=wait,
                stream__replay=replay)
  assert titles(study_of(tmp_path)) == [f"w = {wait}, replay = {replay}" for wait, replay in (
      (1, 0), (2, 0), (3, 0), (3, 0.5), (2, 1))]
  for learner in ("sm", "ens"):
    for wait, replay in ((2, 0.5), (3, 1.0)):
      write_run(tmp_path / f"{learner}{wait}{replay}", [0.5, 0.4, 0.3], learner, stream__waiting_time=wait,
                stream__replay=replay)
  assert len(titles(study_of(tmp_path))) == 9  # two of nine panels are empty


def test_rows_of_panels_that_compare_learners_come_first_if_not_all_fit(tmp_path):
  """Widths 8 and 12 have one learner, as the fixed rivals of a study."""
  widths = {4: ("sm", "ens"), 6: ("sm", "ens"), 8: ("sm",), 10: ("sm", "ens"), 12: ("ens",), 16: ("sm", "ens")}
  for width, learners in widths.items():
    for learner in learners:
      write_run(tmp_path / f"{learner}{width}", [0.5, 0.4], learner, model__width=width)
  shown = lambda: [int(title.removeprefix("w = 1, width = ")) for title in titles(study_of(tmp_path))]
  assert shown() == [4, 6, 10, 16]
  caption = figures.plots(study_of(tmp_path))["stream"].caption
  assert caption.endswith("The figure shows 4 of 6 values of width; the table shows all.")
  shutil.rmtree(tmp_path / "sm16")
  shutil.rmtree(tmp_path / "ens16")
  assert shown() == [4, 6, 8, 10, 12]  # all fit
  for learner, width in (("ens", 4), ("ens", 6), ("sm", 10)):
    shutil.rmtree(tmp_path / f"{learner}{width}")
  for learner, width in (("sm", 14), ("ens", 16)):
    write_run(tmp_path / f"{learner}{width}", [0.5, 0.4], learner, model__width=width)
  assert shown() == [4, 8, 10, 12, 16]  # of seven, none compares learners


def weighted_run(path, **changes):
  """A run of five mega-batches; the weights at t = 5 stand for two old mega-batches each, and t = 4 has none."""
  write_run(path, [0.5] * 5)
  change_lines(path, **{
      "prequential_error": {t: t / 10 for t in range(2, 6)}, "memory_span": {5: 2},
      "memory_weights": {2: [1.0], 3: [0.5, 0.75], 5: [0.0, 0.9]}, **changes})
  return path


def test_what_the_memory_replays(tmp_path):
  weighted_run(tmp_path / "weighted")
  change_lines(write_run(tmp_path / "other", [0.5] * 5, "ens"), prequential_error={t: 0.1 for t in range(1, 6)})
  plot = figures.plots(study_of(tmp_path))["memory"]
  assert [(line.key.get_label(), line.x.tolist(), line.y.tolist()) for line in plot.panels[0].lines] == [
      ("sm", [2, 3, 4, 5], [0.2, 0.3, 0.4, 0.5]), ("ens", [1, 2, 3, 4, 5], [0.1] * 5)]
  text = svg.figure(plot, drawing.draw(plot))
  cells = {(int(old), int(t)): (float(weight), colour) for colour, old, t, weight in re.findall(
      r'fill="(\S+)" data-tip="old mega-batch: (\d+)\nmega-batch: (\d+)\nweight: (\S+)"', text)}
  assert {place: weight for place, (weight, _) in cells.items()} == {
      (1, 2): 1, (1, 3): 0.5, (2, 3): 0.75, (1, 4): 0.5, (2, 4): 0.75,
      (1, 5): 0, (2, 5): 0, (3, 5): 0.9, (4, 5): 0.9}
  assert (cells[1, 2][1], cells[1, 5][1]) == ("#0072b2", "#f0b27a")  # blue: replayed, orange: left out
  first, second = (axes.get_position() for axes in drawing.draw(plot).axes[:2])
  assert (first.x0, first.x1) == (second.x0, second.x1)  # one x axis
  assert "memory" not in figures.plots(study_of(tmp_path / "other"))


def test_a_cell_of_a_long_stream_is_a_mean():
  cells = figures.weight_cells([[], [0.2], [0.4, 0.6], [0.4, 0.6, 0.8], []], 2)
  np.testing.assert_allclose(cells, [[0.2, 0.5, 0.5], [np.nan, 0.8, 0.8], [np.nan] * 3])


@pytest.mark.parametrize("changes", [{"memory_weights": {3: [1.5, 0]}}, {"memory_weights": {3: 1}},
                                     {"memory_span": {3: 0}}, {"memory_span": {3: 10**12}}])
def test_weights_that_are_none(tmp_path, changes):
  weighted_run(tmp_path / "run", **changes)
  with pytest.raises(BadInput, match="metrics.jsonl has a line whose memory_weights are not numbers from 0 to 1"):
    collect.collect([tmp_path])


def test_a_title_that_is_wider_than_its_panel_has_lines(tmp_path):
  for learner in ("sm", "ens"):
    for wait, width, replay in itertools.product((1, 2), (4, 8), (0.0, 1.0)):
      write_run(tmp_path / f"{learner}{wait}{width}{replay}", [0.5, 0.4], learner, stream__waiting_time=wait,
                model__width=width, stream__replay=replay)
  figure = drawn(study_of(tmp_path), "stream")
  figure.draw_without_rendering()
  assert figure.axes[0].get_title() == "w = 1, width = 4,\nreplay = 0"
  boxes = [axes.title.get_window_extent() for axes in figure.axes]
  frames = [axes.get_window_extent() for axes in figure.axes]
  legend_box = figure.legends[0].get_window_extent()
  assert not any(a.overlaps(b) for a, b in itertools.combinations([legend_box, *boxes], 2))
  assert not any(box.overlaps(frame) for box in boxes for frame in frames)


def line(x, y, texts=(), learner="sm"):
  x, y = np.array(x, float), np.array(y, float)
  return Line(drawing.key(learner, learner), x, y, y, y, texts=texts)


@pytest.mark.parametrize(("low", "high"), [(0.012, 0.9), (0.3, 0.9), (10.2, 10.9), (24.6, 449), (63, 90), (3, 70000),
                                           (2e11, 2.4e11), (2e11, 1e13), (2e11, 2e16), (5, 5)])
def test_a_logarithmic_axis_has_short_numbers(low, high):
  (axes,) = drawing.draw(Plot("", [Panel("", [line([1, 2], [low, high])], x="x", y="y")])).axes
  first, last = axes.get_ylim()
  assert first < low <= high < last
  labels = [label.get_text() for tick, label in zip(axes.get_yticks(), axes.get_yticklabels()) if first <= tick <= last]
  assert 2 <= len(labels) <= 9
  assert all(len(label) <= 7 for label in labels)


def test_kinds_of_one_learner_look_apart(tmp_path):
  for seed, rate in enumerate((0.1, 0.2, 0.3, 0.4, 0.5, 0.6)):
    write_run(tmp_path / str(rate), [0.5, 0.4 - seed / 100], num_params=10 + seed, train__learning_rate=rate)
  study = study_of(tmp_path)
  for figure in (drawn(study, "stream"), drawn(study, "parameters")):
    looks = {(key.get_color(), key.get_linestyle()) for key in figure.legends[0].get_lines()}
    assert len(legend(figure)) == len(looks) == 6


def test_learners_of_other_packages_look_apart(tmp_path):
  names = [f"mine{i}" for i in range(40)]
  assert len({drawing.style(name) for name in names}) > 8
  mine = names[0]
  yours = next(name for name in names[1:] if drawing.style(name) == drawing.style(mine))
  for i, learner in enumerate((mine, yours)):
    set_learner(write_run(tmp_path / learner, [0.5, 0.4 - i / 100]), name=learner)
  keys = drawn(study_of(tmp_path), "stream").legends[0].get_lines()
  assert [key.get_label() for key in keys] == sorted([mine, yours])
  assert keys[0].get_linestyle() != keys[1].get_linestyle()


def test_equal_scores_have_an_axis(tmp_path):
  """Their limits on a logarithmic axis differ by one rounding step."""
  for wait in range(1, 6):
    for width in (4, 8):
      write_run(tmp_path / f"{wait}{width}", list(np.linspace(0.5, 0.3, 8)), stream__waiting_time=wait,
                model__width=width)
  figures.plots(study_of(tmp_path))


def test_a_single_value_is_drawn_as_a_point(tmp_path):
  write_run(tmp_path / "iid", [None, 240.0], language=True, stream__waiting_time=2)
  for wait, value in ((1, 300.0), (4, 160.0)):  # four perplexities, and one
    write_run(tmp_path / f"w{wait}", [value if t % wait == 0 else None for t in range(1, 5)], language=True,
              stream__waiting_time=wait, macs=100)
  found, _ = collect.collect([tmp_path])
  (axes,) = drawn(found[0], "stream").axes
  (line,) = axes.lines
  assert (line.get_marker(), line.get_ydata().tolist()) == ("o", [240.0])
  # Each waiting time of language models has a front of its own.
  fronts = [axes.lines[0].get_ydata().tolist() for axes in drawn(found[1], "compute").axes]
  assert fronts == [[300.0], [160.0]]


def test_captions_say_what_is_left_out(tmp_path):
  for wait in range(1, 9):
    write_run(tmp_path / f"w{wait}", [0.5] * 8, stream__waiting_time=wait, stream__replay=0.5 * (wait == 1),
              num_params=10 + wait)
  write_run(tmp_path / "without", [0.5] * 8)
  captions = {name: plot.caption for name, plot in figures.plots(study_of(tmp_path)).items()}
  for name in ("stream", "compute", "parameters"):
    assert captions[name].endswith("The figure shows 5 of 8 waiting times; the table shows all."), captions[name]
  assert "with the most replay (open marker, stream.replay up to 0.5). Means over seeds." in captions["replay"]


def test_waiting_times_that_figures_show(tmp_path, monkeypatch):
  for wait in range(1, 9):
    write_run(tmp_path / "runs" / f"w{wait}", [0.5] * 8, num_params=10 + wait, stream__waiting_time=wait)
  study = study_of(tmp_path / "runs")
  # w = 8 is the whole stream, whose only training ends it.
  assert titles(study) == titles(study, "parameters") == [f"w = {wait}" for wait in (1, 3, 4, 5, 7)]
  assert titles(study, "stream", [8, 2, 100]) == ["w = 2", "w = 8"]
  plots = figures.plots
  monkeypatch.setattr(figures, "plots", lambda *args: {"stream": plots(*args)["stream"]})
  for wait in (1, 2, 3):
    write_run(tmp_path / "few" / f"w{wait}", [0.5] * 3, stream__waiting_time=wait)
  assert report.main([str(tmp_path / "few"), "--out", str(tmp_path / "out"), "--waiting_times=2,3"]) == 0
  assert "The figure shows 2 of 3 waiting times" in (tmp_path / "out/report.md").read_text()


@pytest.mark.parametrize(("given", "sentence"), [
    ("1;2", "--waiting_times=1;2 should be whole numbers with commas between them"),
    ("", "--waiting_times= should be whole numbers with commas"), ("1_0", "should be whole numbers"),
    ("1,77", "no run has the waiting time 77; those of the runs are 1, 2, 3, 4, 5, 6, 7."),
    ("1,2,3,4,5,6", "names 6 panels in a row; name at most 5.")])
def test_waiting_times_that_figures_cannot_show(tmp_path, capsys, given, sentence):
  for wait in range(1, 8):
    write_run(tmp_path / "runs" / f"w{wait}", [0.5] * 8, stream__waiting_time=wait)
  assert report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out"), f"--waiting_times={given}"]) == 2
  assert sentence in capsys.readouterr().err
  assert not (tmp_path / "out").exists()


def test_waiting_times_without_figures(tmp_path, capsys):
  write_run(tmp_path / "runs" / "adaptive", [0.5] * 8, stream__schedule="geometric")
  assert report.main([str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--waiting_times=1"]) == 2
  assert "no run has the waiting time 1; no run has one." in capsys.readouterr().err


def growth_runs(folder, widths=(4, 8, 16), waits=(1,), replays=(0.0, 1.0)):
  """gmoe with soft gates at the intervals 1, 2 and 3, of width 16 at 2 alone; with hard gates at 2; sm, and two ens.

  CERs are 0.9 - width / 100 of gmoe and 0.8 - width / 100 of others, 0.02 more and less of two seeds.
  """
  for wait in waits:
    for width in widths:
      for seed, more in ((0, 0.02), (1, -0.02)):
        fields = dict(seed=seed, model__width=width, stream__waiting_time=wait)
        for gating, intervals in (("soft", (1, 2, 3) if width < 16 else (2,)), ("hard", (2,))):
          for interval in intervals:
            write_run(folder / f"{wait}-{width}-{seed}-{interval}-{gating}", [0.5, 0.4 - width / 100 + more], "gmoe",
                      macs=60 * width // interval, learner__grow_every=interval, learner__gating=gating, **fields)
        for replay in replays:
          write_run(folder / f"{wait}-{width}-{seed}-{replay}", [0.5, 0.3 - width / 100 + more], macs=width,
                    stream__replay=replay, **fields)
        if width < 16:
          write_run(folder / f"{wait}-{width}-{seed}-ens", [0.5, 0.3 - width / 100 + more], "ens", macs=5 * width,
                    **fields)
  return folder


def test_growth_at_several_intervals(tmp_path):
  """A panel for each width from which gmoe grows at several intervals, with the other learners of every width."""
  diverge(write_run(tmp_path / "lost", [0.5, 0.4], "gmoe", learner__grow_every=2, seed=5))
  (study,), _ = collect.collect([growth_runs(tmp_path)])
  plot = figures.plots(study)["growth"]
  caption, figure = plot.caption, drawing.draw(plot)
  assert "from the width in the title" in caption
  assert "in all widths (numbers)" in caption
  assert caption.endswith("Runs with replay are not shown. 1 run that diverged is not shown.")
  assert [axes.get_title() for axes in figure.axes] == ["w = 1, width = 4", "w = 1, width = 8"]
  assert legend(figure) == ["sm", "ens", "gmoe, gating hard", "gmoe, gating soft"]
  for axes, width in zip(figure.axes, (4, 8)):
    sm, ens, hard, soft = (axes.containers[i].lines[0].get_xydata() for i in range(4))
    np.testing.assert_allclose(sm, [(2 * each, 0.8 - each / 100) for each in (4, 8, 16)])
    np.testing.assert_allclose(ens, [(10 * each, 0.8 - each / 100) for each in (4, 8)])
    cer = 0.9 - width / 100
    np.testing.assert_allclose(hard, [(60 * width, cer)])
    np.testing.assert_allclose(soft, [(40 * width, cer), (60 * width, cer), (120 * width, cer)])
    (bar,) = axes.containers[0].lines[2][0].get_segments()[:1]
    assert np.ptp(bar[:, 1]) == pytest.approx(2 * 0.02 * 2**0.5)
    for text, xy in {"every 2": hard[0], "every 1": soft[2], "4": sm[0], "8": sm[1], "16": sm[2]}.items():
      assert any(np.allclose(shown.xy, xy) for shown in axes.texts if shown.get_text() == text)


def test_growth_is_not_crowded_by_much_higher_scores(tmp_path):
  """gmoe has CERs up to 0.86 at width 4: a learner with 1.3 is not shown, one with 1.2 is."""
  growth_runs(tmp_path)
  for width, error in ((2, 0.7), (3, 0.8)):
    for seed in (0, 1):
      write_run(tmp_path / f"high{width}{seed}", [0.5, error], "umix", model__width=width, seed=seed)
  (axes, _) = drawn(study_of(tmp_path), "growth").axes
  scores = {float(y) for bars in axes.containers for y in bars.lines[0].get_ydata()}
  assert any(y == pytest.approx(1.2) for y in scores)
  assert max(scores) < 1.25
  assert axes.get_ylim()[1] < 1.6


@pytest.mark.parametrize(("change", "expected"), [
    (lambda runs: runs["learner.grow_every"] != 1, True),  # 2 and 3 are left
    (lambda runs: ~runs["learner.grow_every"].isin([1, 3]), False),
    # Every learner has one interval, but soft and hard gates have different ones.
    (lambda runs: ~runs["learner.grow_every"].isin([1, 3]) | (runs["learner.gating"] == "soft")
     & (runs["learner.grow_every"] == 3), True),
    (lambda runs: ~((runs["learner.gating"] == "soft") & (runs["learner.grow_every"] < 3)), False)])
def test_whether_a_learner_grows_at_several_intervals(tmp_path, change, expected):
  study = study_of(growth_runs(tmp_path))
  assert ("growth" in figures.plots(study._replace(runs=study.runs[change(study.runs)]))) == expected


def test_which_panels_of_growth_are_shown(tmp_path):
  study = study_of(growth_runs(tmp_path, (4, 5, 6, 7), (1, 2), (0.0,)))

  assert titles(study, "growth") == [f"w = {wait}, width = {width}" for wait, width in (
      (1, 4), (1, 6), (2, 4), (2, 5), (2, 7))]
  caption = figures.plots(study)["growth"].caption
  assert caption.endswith("The figure shows 5 of 8 pairs of waiting time and width.")
  assert titles(study, "growth", [2]) == [f"w = 2, width = {width}" for width in (4, 5, 6, 7)]


def test_growth_of_networks_of_one_size(tmp_path):
  for interval in (1, 2):
    write_run(tmp_path / f"{interval}", [0.5, 0.4], "gmoe", macs=10 / interval, learner__grow_every=interval)
  write_run(tmp_path / "sm", [0.5, 0.3], macs=4)
  plot = figures.plots(study_of(tmp_path))["growth"]
  caption, figure = plot.caption, drawing.draw(plot)
  assert caption.endswith("“every 2”: before every second stage). Points are learners without an interval.")
  (axes,) = figure.axes
  assert axes.get_title() == "w = 1"
  assert [text.get_text() for text in axes.texts] == ["every 1"]


def test_growth_without_a_waiting_time(tmp_path):
  for interval in (1, 2):
    for width in (4, 8):
      write_run(tmp_path / f"{interval}{width}", [0.5, 0.4], "gmoe", learner__grow_every=interval, model__width=width)
  study = study_of(tmp_path)
  study = study._replace(runs=study.runs.assign(**{"stream.waiting_time": float("nan")}))
  assert titles(study, "growth") == ["width = 4", "width = 8"]


def waiting_runs(folder, learners=("sm", "ens"), widths=(4, 8), waits=(1, 2, 10)):
  """CERs 4 + width / 100 + w / 10, 0.02 more and less of two seeds, and 1 less of ens."""
  for learner in learners:
    for width in widths:
      for wait in waits:
        for seed, more in ((0, 0.02), (1, -0.02)):
          cer = 4 + width / 100 + wait / 10 + more - (learner == "ens")
          write_run(folder / f"{learner}-{width}-{wait}-{seed}", [cer / 10] * 10, learner, seed=seed,
                    model__width=width, stream__waiting_time=wait)
  return folder


def test_the_figure_of_waiting(tmp_path):
  """A panel for each width with at least three waiting times; runs with replay or with a switch on are left out."""
  waiting_runs(tmp_path)
  waiting_runs(tmp_path / "few", ("sm",), (16,), (1, 2))
  write_run(tmp_path / "replay", [0.1] * 10, model__width=4, stream__replay=1.0)
  write_run(tmp_path / "scratch", [0.1] * 10, model__width=4, learner__init_from_scratch=True)
  diverge(write_run(tmp_path / "lost", [0.5] * 10, model__width=4, seed=5))
  (study,), _ = collect.collect([tmp_path])
  plot = figures.plots(study)["waiting"]
  caption, figure = plot.caption, drawing.draw(plot)
  assert caption.startswith("CER against the waiting time w: mean ± standard deviation over seeds.")
  assert caption.endswith("Runs with replay are not shown. Runs with a switch on that other runs of the learner have "
                          "off are not shown. The figure shows 2 of 3 values of width: those with at least 3 waiting "
                          "times. 1 run that diverged is not shown.")
  assert [axes.get_title() for axes in figure.axes] == ["width = 4", "width = 8"]
  assert legend(figure) == ["sm", "ens"]
  for axes, width in zip(figure.axes, (4, 8)):
    assert axes.get_xscale() == axes.get_yscale() == "log"
    for i, learner in enumerate(("sm", "ens")):
      line, _, (bars,) = axes.containers[i].lines
      assert (line.get_color(), line.get_marker()) == drawing.style(learner)
      np.testing.assert_allclose(line.get_xydata(), [(w, 4 + width / 100 + w / 10 - i) for w in (1, 2, 10)])
      np.testing.assert_allclose([np.ptp(bar[:, 1]) for bar in bars.get_segments()], 2 * 0.02 * 2**0.5)
  assert len({axes.get_ylim() for axes in figure.axes}) == 1


def test_whether_waiting_is_drawn(tmp_path):
  assert "waiting" not in figures.plots(study_of(waiting_runs(tmp_path, widths=(4,), waits=(1, 2))))
  assert titles(study_of(waiting_runs(tmp_path / "more", widths=(4,))), "waiting") == [""]


def test_waiting_of_language_models_is_not_drawn(tmp_path):
  for wait in (1, 2, 4):
    write_run(tmp_path / f"{wait}", [200.0 if t % wait == 0 else None for t in range(1, 5)], language=True,
              stream__waiting_time=wait)
  assert "waiting" not in figures.plots(study_of(tmp_path))


def test_costs_that_are_equal_have_no_figure(tmp_path):
  """They differ by less than 1 %: points in one column say nothing."""
  for i, learner in enumerate(("sm", "ens")):
    write_run(tmp_path / learner, [0.5, 0.4 - i / 10], learner, macs=1000 + i, num_params=10 * (1 + i))
  found = figures.plots(study_of(tmp_path))
  assert "parameters" in found
  assert "compute" not in found


def test_numbers_do_not_stand_on_the_front(tmp_path):
  """Widths are written beside the dotted line, which belongs to another waiting time, and beside bars."""
  for width, macs in ((4, 100), (8, 210), (16, 400)):
    for wait, cer in ((1, 400 / macs), (2, 900 / macs)):
      for seed in (0, 1):
        write_run(tmp_path / f"{width}{wait}{seed}", [cer / 2 * (1 + seed / 10)] * 2, macs=macs * wait, seed=seed,
                  model__width=width, stream__waiting_time=wait)
  figure = drawn(study_of(tmp_path), "compute")
  figure.canvas.draw()
  num = 0
  for axes in figure.axes:
    front = axes.lines[0]
    segments = [*axes.containers[0].lines[2][0].get_segments(),
                *zip(front.get_xydata()[:-1], front.get_xydata()[1:].tolist())]
    corners = [axes.transData.transform(np.asarray(segment)) for segment in segments]
    assert front.get_drawstyle() == "steps-post"
    for text in axes.texts:
      box = text.get_window_extent()
      num += 1
      for (x0, y0), (x1, y1) in corners:
        steps = [((x0, y0), (x1, y0)), ((x1, y0), (x1, y1))]
        assert not any(box.contains(*np.array(a) + share * (np.array(b) - a)) for a, b in steps
                       for share in np.linspace(0, 1, 200))
  assert num > 3


@pytest.mark.parametrize(("values", "names"), [
    ([False, True], ["sm", "sm, init_from_scratch"]), ([False, None], ["sm, init_from_scratch False", "sm"])])
def test_labels_of_switches_tell_kinds_apart(tmp_path, values, names):
  for width in (4, 8):
    write_run(tmp_path / f"{width}", [0.5, 0.4], model__width=width)
  study = study_of(tmp_path)
  field = "learner.init_from_scratch"
  assert studies.brief_labels(study.runs.assign(**{field: pd.Series(values, dtype=object)}), [field]) == names


def test_an_arrow_of_replay_names_what_varies_for_its_learner(tmp_path):
  for replay in (0.0, 1.0):
    for width in (4, 8):
      write_run(tmp_path / f"sm{width}{replay}", [0.5, width / 20], macs=width * (1 + replay), stream__replay=replay,
                model__width=width)
      write_run(tmp_path / f"gmoe{width}{replay}", [0.6, width / 10], "gmoe", macs=3 * width * (1 + replay),
                stream__replay=replay, model__width=width)
  write_run(tmp_path / "extra", [0.6, 0.3], "gmoe", macs=5, model__width=4, learner__grow_every=2)  # without an arrow
  study = study_of(tmp_path)
  figure = drawn(study, "replay")
  assert [axes.get_title() for axes in figure.axes] == ["w = 1, width = 4", "w = 1, width = 8"]
  assert legend(figure) == ["sm", "gmoe"]
  for axes, width in zip(figure.axes, (4, 8)):
    found = [line.get_xydata()[0].tolist() for line in axes.lines]
    assert sorted(found) == sorted([2.0 * factor * width * (1 + replay), 0.5 + width / 20 + (0.1 + width / 20) * more]
                                   for factor, more in ((1, 0), (3, 1)) for replay in (0, 1))
  assert titles(study._replace(runs=study.runs[study.runs["model.width"] == 4]), "replay") == ["w = 1"]


def test_other_fields_of_an_arrow_of_replay(tmp_path):
  """Kinds of a learner in one panel have dashes, which the legend names."""
  for replay in (0.0, 1.0):
    for epochs in (1, 2, 3):
      write_run(tmp_path / f"{epochs}{replay}", [0.5, epochs / 20 - 0.02 * replay], macs=10**epochs * (1 + 9 * replay),
                stream__replay=replay, train__epochs=epochs)
  assert legend(drawn(study_of(tmp_path), "replay")) == ["sm, epochs 1", "sm, epochs 2", "sm, epochs 3"]


@pytest.mark.parametrize(("num", "letters"), [(1, 3), (5, 4), (7, 30), (40, 12), (27, 42)])
def test_the_legend_covers_nothing(num, letters):
  names = [f"{i:0{letters}}" for i in range(num)]
  panels = [Panel("w = 1", [line([1, 10], [1, 10])], x="mega-batches seen", y="error")] * 2
  figure = drawing.draw(Plot("", panels, [drawing.key(name, "sm") for name in names], 2))
  figure.draw_without_rendering()
  assert legend(figure) == names
  box, label = figure.legends[0].get_window_extent(), figure._supxlabel.get_window_extent()
  assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
  assert figure.bbox.y0 <= label.y0
  assert box.y1 <= figure.bbox.y1 + 1
  for axes in figure.axes:
    assert axes.title.get_window_extent().y1 <= box.y0 + 1
    assert label.y1 <= min(text.get_window_extent().y0 for text in axes.get_xticklabels()) + 1
    assert axes.get_window_extent().height > 40  # the panels have room


def test_learners_look_apart():
  assert set(drawing.STYLES) == {*LEARNERS["images"], *configs.RECIPES["images"]}
  assert set(drawing.TASK_STYLES) >= {*LEARNERS["tasks"]}
  for styles in (drawing.STYLES, drawing.TASK_STYLES):
    assert len({colour for colour, _ in styles.values()}) == len(styles)
    assert len({marker for _, marker in styles.values()}) == len(styles)
  for colour, _ in (*drawing.STYLES.values(), *drawing.TASK_STYLES.values()):
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    light = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ (0.2126, 0.7152, 0.0722)
    assert 1.05 / (light + 0.05) > 1.9  # contrast with white (WCAG 2)
