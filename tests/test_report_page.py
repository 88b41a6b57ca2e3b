"""The page of a report: its answers, and its figures, which show values on hover."""
import html
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from reports import study_of, write_report, write_run
from test_task_report import write_task_run

from alma_jax.reports import cards, collect, drawing, findings, page, svg, tables
from alma_jax.reports.drawing import Grid, Line, Panel, Plot

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
SCRIPT = """
const d = document.querySelector('iframe').contentDocument, w = d.defaultView, tip = d.getElementById('tip');
for (const each of d.querySelectorAll('details')) each.open = true;
const plots = [...d.querySelectorAll('svg.plot')];
function hover(plot, x, y) {
  plot.dispatchEvent(new w.PointerEvent('pointermove', {clientX: x, clientY: y, bubbles: true}));
  return tip.hidden ? '' : [...tip.children].map(line => line.textContent).join('|');
}
const points = plots[0], curves = plots[2], mark = points.querySelector('use').getBoundingClientRect();
const frame = curves.getBoundingClientRect(), [low, high] = curves.dataset.scale.split(' ').map(Number);
const at = t => frame.x + frame.width * (t - low) / (high - low);
const shown = {page: d.documentElement.scrollWidth, window: d.documentElement.clientWidth,
  outside: plots.filter(p => p.getBoundingClientRect().right > d.documentElement.clientWidth).length,
  across: new Set(plots.slice(2, 6).map(p => p.getBoundingClientRect().x)).size, rows: d.querySelectorAll('tr').length,
  point: hover(points, mark.x + mark.width / 2 + 3, mark.y + mark.height / 2),
  first: hover(curves, at(1.1), frame.y + 5), second: hover(curves, at(2), frame.y + 5)};
curves.closest('figure').querySelector('.legend button').click();
shown.alone = hover(curves, at(2), frame.y + 5);
document.title = JSON.stringify(shown);
"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
def test_a_browser_shows_the_page(tmp_path, runs):
  """No part is wider than the window, figures have values on hover, and a click on a name shows it alone."""
  text = write_report([runs], tmp_path / "out").read_text()
  for pixels in (360, 1200):
    frame = f'<iframe style="border:0;width:{pixels}px;height:800px" srcdoc="{html.escape(text)}"></iframe>'
    (tmp_path / "frame.html").write_text(f'<!doctype html><body onload="{html.escape(SCRIPT)}">{frame}</body>')
    done = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/chrome",
                           "--dump-dom", f"file://{tmp_path}/frame.html"], capture_output=True, text=True, check=True)
    shown = json.loads(html.unescape(re.search("<title>(.*?)</title>", done.stdout)[1]))
    assert pixels - 20 < shown["page"] == shown["window"] <= pixels  # a scroll bar may take some
    assert shown["outside"] == 0
    assert shown["across"] == (2 if pixels == 1200 else 1)
  assert shown["rows"] == 1 + 8 + 1 + 2 + 1 + 3  # heads, kinds of runs, pairs of sequential and iid ones, prices
  # Of the panel of width 4 at w = 1: means of 0.36, 0.361, 0.362 and of 0.31, 0.312, 0.314.
  assert shown["first"] == "mega-batches seen: 1|0.361  sm|0.312  gens"
  assert shown["second"] == "mega-batches seen: 2|0.361  sm|0.312  gens"
  assert shown["alone"] == "mega-batches seen: 2|0.361  sm"
  name, score, cost = shown["point"].split("|")
  assert re.fullmatch(r"(sm|gens), width [48], w [12]", name)
  assert re.fullmatch(r"CER: [\d.]+ ± 0.00[24]", score)
  assert cost.startswith("cumulative compute (multiply-adds): ")


def drawn(panel, **fields):
  """HTML of a figure with one panel."""
  plot = Plot("", [panel], [line.key for line in panel.lines], **fields)
  return svg.figure(plot, drawing.draw(plot))


def test_steps_and_points_by_hand():
  key = drawing.key("sm", "sm")
  x, y = np.array([1.0, 2, 3]), np.array([0.5, 0.2, 0.2])
  panel = Panel("", [Line(key, x, y, y, y, "after")], x="t", y="error")
  text = drawn(panel, log=(False, False))
  (path,) = re.findall(r'class="curve" d="([^"]*)"', text)
  x0, y0, *rest = map(float, re.fullmatch(r"M(\S+) (\S+)h(\S+)v(\S+)h(\S+)", path).groups())
  low, high, bottom, top, *kinds = re.search('data-scale="([^"]*)"', text)[1].split()
  assert kinds == ["linear", "linear"]
  wide, tall = 1000 / (float(high) - float(low)), 1000 / (float(top) - float(bottom))
  # In thousandths of the panel, from its upper left: from (1, 0.5) right by 1, down by 0.3, right by 1.
  assert [x0, y0] == pytest.approx([(1 - float(low)) * wide, 1000 - (0.5 - float(bottom)) * tall], abs=0.1)
  assert rest == pytest.approx([wide, 0.3 * tall, wide], abs=0.1)
  assert "band" not in text  # of one run
  names = ["first", "second", "<third>"]
  text = drawn(Panel("", [Line(key, x, y, y - 0.1, y + 0.1, names=names)], x="w", y="CER"))
  assert [html.unescape(tip) for tip in re.findall('data-tip="([^"]*)"', text)] == [
      f"{name}\nCER: {value} ± 0.1\nw: {at}" for name, value, at in zip(names, (0.5, 0.2, 0.2), (1, 2, 3))]
  assert "<third>" not in text
  assert 'id="m111"' in svg.symbols()  # "o", to which the points refer
  assert text.count('href="#m111"') == 3 + 1  # with the legend


def test_cells_say_what_they_are():
  colours = np.array([[[0.2, 0.2, 0.2], [1, 1, 1]]])
  text = drawn(Panel("", grid=Grid(["1"], ["a", "b"], colours, [["96", ""]]), x="task i", y="after task t"),
               size=(2, 1))
  assert re.findall('data-tip="([^"]*)"', text) == ["after task t: 1\ntask i: a\n96"]  # an empty white cell is none


@pytest.mark.parametrize(("low", "high"), [(80, 180), (1.5, 5.2), (0.03, 0.9), (2e10, 2e12), (3, 5e5)])
def test_axes_have_several_ticks(low, high):
  key, y = drawing.key("sm", "sm"), np.array([low, high])
  text = drawn(Panel("", [Line(key, y, y, y, y)], x="x", y="y"))
  for axis in "xy":
    assert 2 <= len(re.findall(f'<text class="{axis}"', text)) <= 7


def answers(study):
  plain = lambda text: text.replace("\xa0", " ")
  return {card.question: (plain(card.answer), card.value, plain(card.details))
          for card in cards.of(study, findings.growth(study))}


def test_the_answers_of_a_study(runs):
  study = study_of(runs)
  assert cards.headline(study) == "digits: 24 runs, 2 learners, 2 widths, 2 waiting times"
  assert cards.about(study) == "2 mega-batches · 3 seeds · 14.4 k multiply-adds and 48 s in all"
  shown = answers(study)
  assert [*shown] == ["Best", "Next best for less compute", "Which waiting time?", "Did growing pay?"]
  # CERs of gens: 0.54 + 0.004 seed; of width 4 0.62 + 0.004 seed, for half the compute.
  assert shown["Best"] == ("gens, width = 8, w = 1", "CER 0.5440 ± 0.0040",
                           "next gens, width = 4, w = 1 with 0.6240 ± 0.0040; no significant lead (3 seeds, 7 "
                           "comparisons)")
  assert shown["Next best for less compute"] == ("gens, width = 4, w = 1", "CER 0.6240 ± 0.0040",
                                                 "+15 %, for 400 instead of 800 multiply-adds")
  assert shown["Which waiting time?"] == ("w = 1", "", "lowest CER for 4 of 4 settings")
  assert shown["Did growing pay?"] == (
      "In none of 4 cases", "", "a fixed learner of equal compute and memory won 0; 4 undecided")
  assert cards.of(study, [])[2].line == "- **Which waiting time?** w = 1 (lowest CER for 4 of 4 settings)."


def test_whether_a_lead_is_significant(tmp_path):
  for wait, errors in ((1, [0.5]), (2, [0.6, 0.61]), (4, [0.8, 0.82])):
    for seed, error in enumerate(errors):
      write_run(tmp_path / f"w{wait}s{seed}", [error] * 4, stream__waiting_time=wait, seed=seed)
  value = ("CER 2.00", "next sm, w = 2 with 2.420 ± 0.028; one seed cannot show whether the lead is significant")
  shown = answers(collect.collect([tmp_path])[0][0])
  assert shown["Best"] == ("sm, w = 1", *value)
  assert shown["Which waiting time?"] == ("w = 1", *value)
  write_run(tmp_path / "more", [0.5001] * 4, seed=1)
  assert answers(study_of(tmp_path))["Best"][2].endswith("; no significant lead (2 seeds, 2 comparisons)")
  for seed in (2, 3):
    for wait, error in ((1, 0.5), (2, 0.6), (4, 0.8)):
      write_run(tmp_path / f"w{wait}s{seed}", [error + seed / 1e3] * 4, stream__waiting_time=wait, seed=seed)
  assert answers(study_of(tmp_path))["Best"][2].endswith("; the lead is significant")


def test_the_cheapest_that_is_nearly_as_good(tmp_path):
  for seed in range(3):
    for learner, error, macs in (("ens", 0.5, 500), ("umix", 0.54, 100), ("sm", 0.52, 200), ("moe", 0.8, 10)):
      write_run(tmp_path / f"{learner}{seed}", [error + seed / 1000] * 2, learner, macs=macs, seed=seed)
  shown = answers(study_of(tmp_path))
  # Of a CER of 1.002, umix has 1.082; moe is cheaper, but has 1.602.
  assert shown["Cheapest within 10 % of the best"] == ("umix", "CER 1.0820 ± 0.0020",
                                                      "+8 %, for 200 instead of 1 k multiply-adds")


def test_one_run_has_its_numbers_and_no_deviation(tmp_path):
  write_run(tmp_path / "run", [0.5, 0.4], "ens", num_params=17330, macs=1.1e9)
  study = study_of(tmp_path)
  assert cards.headline(study) == "digits: 1 run of ens"
  assert answers(study) == {
      "CER": ("0.900", "", "mean error 0.4500 · final error 0.4000"),
      "Cost": ("2.2 G", "", "multiply-adds of the forward passes in training"),
      "Size": ("17.3 k", "", "parameters at the end of the stream")}
  text = write_report([tmp_path / "run"], tmp_path / "out").read_text()
  assert "± " not in re.sub("<small>.*?</small>|<figcaption>.*?</figcaption>", "", text)


def test_the_answers_of_a_stream_of_tasks(tmp_path):
  write_task_run(tmp_path / "independent", [0.8, 0.8, 0.8], flops=4000)
  write_task_run(tmp_path / "mntdp", [0.8, 0.8, 0.79], "mntdp", paths=[[0, 1, 2], [0, 1, 3], [0, 1, 4]], flops=1000)
  write_task_run(tmp_path / "finetune", [[0.8], [0.7, 0.8], [0.5, 0.6, 0.9]], "finetune", flops=500)
  (study,), _ = collect.collect([tmp_path])
  assert answers(study) == {
      "Best": ("independent", "accuracy 0.800", "mean over all tasks after the last one"),
      "Cheapest within a point of the best": ("mntdp", "accuracy 0.797",
                                              "for 3 k instead of 12 k floating-point operations"),
      "Smallest within a point of the best": ("mntdp", "accuracy 0.797", "for 50 instead of 90 parameters"),
      "Who forgets?": ("1 of 3", "", "finetune -0.167"),
      "Most transfer to the last task": ("finetune", "+0.100 accuracy",
                                         "against independent, which learns each task alone")}


def test_of_a_long_table_of_runs_the_best_ones_are_shown_first(tmp_path, monkeypatch):
  for width in range(4, 13):
    write_run(tmp_path / str(width), [0.5, 0.4 - width / 100], "sm" if width % 2 else "ens", model__width=width)
  runs = tables.all_of(study_of(tmp_path))[0]
  assert [line.split(" | ")[:2] for line in tables.summary(runs).markdown.splitlines()[2:]] == [
      ["| ens", "12"], ["| sm", "11"]]
  shutil.rmtree(tmp_path / "4")
  assert tables.summary(tables.all_of(study_of(tmp_path))[0]) is None
  monkeypatch.setattr(page, "_write_figures", lambda *unused: {})
  text = write_report([tmp_path], tmp_path / "out").read_text()
  assert f"--c:{drawing.style('sm')[0]}" in text  # the dot of a learner
