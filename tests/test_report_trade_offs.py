"""Reports of what a lower error costs: curves against compute, Pareto fronts, prices and ablations."""
import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from reports import change, diverge, drawn, legend, study_of, write_run
from runs import alma

from alma_jax import config as configs
from alma_jax.errors import BadInput
from alma_jax.reports import ablation, collect, drawing, figures, findings, page, read, studies, tables, trade_offs
from alma_jax.reports.drawing import Line, Panel, Plot
from alma_jax.reports.trade_offs import Best

COMP, MEM = read.COMP, read.MEM


def test_prices_by_hand():
  # J = 4 + λ and 2 + 2λ meet at λ = 2; 2 + 2λ and 1 + 4λ at 1/2. At no price is 1.9 + 3λ the lowest: at λ = 1/2 it is
  # 3.4 and the others are 3. 5 + 2λ is never better than 2 + 2λ.
  assert trade_offs.front([1, 2, 3, 3, 4, 5], [5, 6, 4, 3, 3, 1]) == [(1, 5), (3, 3), (5, 1)]
  found = trade_offs.prices([1, 2, 4, 3, 2], [4, 2, 1, 1.9, 5])
  assert found == [Best(2, 0, 0.5), Best(1, 0.5, 2), Best(0, 2, math.inf)]
  assert trade_offs.front([1, 2, 4, 3, 2], [4, 2, 1, 1.9, 5]) == [(1, 4), (2, 2), (3, 1.9), (4, 1)]
  assert trade_offs.prices([3], [7]) == [Best(0, 0, math.inf)]
  assert trade_offs.prices([1, 2], [1, 1]) == [Best(0, 0, math.inf)]  # the cheaper of equal ones, at price 0 too
  assert trade_offs.prices([1, 1], [2, 1]) == [Best(1, 0, math.inf)]
  assert trade_offs.prices([1, 2, 3], [3, 2, 1]) == [Best(2, 0, 1), Best(0, 1, math.inf)]  # all three meet at λ = 1


def test_prices_give_the_lowest_sum():
  rng = np.random.default_rng(0)
  for _ in range(20):
    costs, scores = rng.uniform(1, 2, 30), rng.uniform(1, 2, 30)
    found = trade_offs.prices(costs, scores)
    assert found[0].low == 0
    assert found[-1].high == math.inf
    assert all(first.high == second.low for first, second in itertools.pairwise(found))
    for price in 10 ** rng.uniform(-3, 3, 50):
      (best,) = [each.kind for each in found if each.low <= price < each.high]
      assert best == np.argmin(scores + price * costs)
    front = trade_offs.front(costs, scores)
    assert all((costs[each.kind], scores[each.kind]) in front for each in found)


@pytest.fixture
def three(tmp_path):
  """CER 4 at Comp 200, CER 2 at 400, CER 1 at 800, and gens, which is worse than ens at the same costs."""
  for seed, more in enumerate((-0.1, 0.1)):  # the mean is without it
    for learner, cer, macs, params in (("sm", 2.0, 200, 10), ("ens", 1.0, 400, 50), ("gens", 1.5, 400, 50)):
      write_run(tmp_path / f"{learner}{seed}", [cer / 2 + more, cer / 2], learner, params, macs, seed=seed)
    write_run(tmp_path / f"wide{seed}", [2 + more, 2.0], "sm", 5, 100, seed=seed, model__width=4)
  return tmp_path


def test_points_of_a_study(tmp_path, three, monkeypatch):
  study = study_of(three)
  table = trade_offs.points(study).set_index(["learner.name", "model.width"])
  assert table["cer"].to_dict() == pytest.approx({("ens", 32): 1, ("gens", 32): 1.5, ("sm", 32): 2, ("sm", 4): 4})
  assert table[COMP].to_dict() == {("ens", 32): 800, ("gens", 32): 800, ("sm", 32): 400, ("sm", 4): 200}
  assert table["on_compute_front"].to_dict() == {
      ("ens", 32): True, ("gens", 32): False, ("sm", 32): True, ("sm", 4): True}
  assert table.loc[("sm", 32), ["price_low", "price_high"]].tolist() == pytest.approx([1 / 400, 2 / 200])
  assert table.loc[("gens", 32), ["price_low", "price_high"]].isna().all()
  rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables.prices(study).splitlines()]
  assert [row[:5] for row in rows] == [
      ["price from", "price to", "learner", "width", "seeds"], ["---:", "---:", "---", "---:", "---:"],
      ["0", "0.0025", "ens", "32", "2"], ["0.0025", "0.01", "sm", "32", "2"], ["0.01", "∞", "sm", "4", "2"],
      ["never", "", "gens", "", ""]]
  monkeypatch.setattr(page, "_write_figures", lambda *unused: {})
  page.write([study], [], tmp_path / "out")
  stored = pd.read_csv(tmp_path / "out/pareto.csv")
  assert stored.columns[0] == "study"
  assert stored["on_memory_front"].sum() == 3
  assert stored["price_high"].max() == math.inf
  assert "Best choice at each price λ of compute" in (tmp_path / "out/index.html").read_text()


def test_prices_count_seeds_that_diverged(three):
  diverge(three / "sm1")
  (study,), _ = collect.collect([three])
  assert "| sm | 32 | 1 (1 diverged) |" in tables.prices(study)


def test_language_models_are_compared_by_their_final_perplexity(tmp_path):
  write_run(tmp_path / "one", [300.0, 200.0], language=True, macs=100)
  write_run(tmp_path / "two", [None, 210.0], language=True, macs=100, stream__waiting_time=2)
  (study,), _ = collect.collect([tmp_path])
  table = trade_offs.points(study)
  assert table["final_perplexity"].tolist() == [200, 210]  # the averages are 250 and 210
  assert table["on_compute_front"].tolist() == [True, True]
  heads = [table.heading for table in tables.all_of(study)]
  assert any("lowest final perplexity + λ Comp; λ in perplexity per multiply-add" in head for head in heads)
  assert drawn(study, "pareto").axes[0].get_ylabel() == "final perplexity"


def test_curves_against_compute_by_hand():
  """Two seeds: 0.8 from compute 10 on and 0.4 from 30 on; 0.6 from 20 on, 0.2 from 40 on."""
  stream = pd.DataFrame(
      [("a", 1, 0, 0.9), ("a", 2, 10, 0.8), ("a", 3, 30, 0.4), ("a", 4, 30, 0.4),
       ("b", 1, 0, 0.9), ("b", 2, 20, 0.6), ("b", 3, 20, 0.6), ("b", 4, 40, 0.2)], columns=["run", "t", COMP, "error"])
  table = figures.mean_curve(stream, COMP, "error")
  assert table.index.tolist() == [20, 30, 40]  # at 10 one of them is not trained yet
  np.testing.assert_allclose(table["mean"], [0.7, 0.5, 0.3])
  np.testing.assert_allclose(table["min"], [0.6, 0.4, 0.2])
  np.testing.assert_allclose(table["max"], [0.8, 0.6, 0.4])
  np.testing.assert_allclose(figures.mean_curve(stream, "t", "error")["mean"], [0.9, 0.7, 0.5, 0.3])


def test_the_figure_against_compute(tmp_path):
  for wait in (1, 2):
    write_run(tmp_path / f"sm{wait}", [0.5, 0.4], macs=100 * wait, stream__waiting_time=wait)
  write_run(tmp_path / "idle", [0.9, 0.9], "ens", macs=0)  # it has no compute to be drawn at
  study = study_of(tmp_path)
  assert study.stream.groupby("run")[COMP].last().to_dict() == {
      str(tmp_path / "sm1"): 200, str(tmp_path / "sm2"): 200, str(tmp_path / "idle"): 0}
  first, second = drawn(study, "stream-compute").axes
  assert first.get_xscale() == second.get_xscale() == "log"
  assert first.lines[0].get_xydata().tolist() == [[100, 0.5], [200, 0.4]]
  assert second.lines[0].get_xydata().tolist() == [[200, 0.4]]
  assert first.get_title() == "w = 1"
  assert "stream-compute" in figures.plots(study)
  (study,), _ = collect.collect([tmp_path / "idle"])
  assert not {"stream-compute", "pareto"} & set(figures.plots(study))
  assert tables.prices(study) is None


def test_the_figure_of_the_fronts(three):
  figure = drawn(study_of(three), "pareto")
  compute, memory = figure.axes
  assert compute.lines[0].get_xydata().tolist() == [[200, 4], [400, 2], [800, 1]]
  assert memory.lines[0].get_xydata().tolist() == [[15, 4], [30, 2], [150, 1]]  # three times
  assert {axes.lines[0].get_drawstyle() for axes in figure.axes} == {"steps-post"}
  assert {text.get_text() for text in compute.texts} == {"sm, width 4", "sm, width 32", "ens"}  # those on the front
  assert legend(figure) == ["sm", "ens", "gens"]


def test_texts_at_points_do_not_touch():
  places = np.array([(0.5, 0.5), (0.5, 0.51), (0.51, 0.5), (0.98, 0.5), (0.02, 0.98), (0.5, 0.02)])
  corners = np.array([(0.1, 0.47), (0.9, 0.47), (0.9, 0.01)])

  def axes_of(places, texts):
    key, corner_key = drawing.key("", "sm", joined=False), drawing.key("", "sm")
    lines = [Line(key, *places.T, places[:, 1], places[:, 1], texts=texts),
             Line(corner_key, *corners.T, corners[:, 1], corners[:, 1])]
    (axes,) = drawing.draw(Plot("", [Panel("", lines)], size=(5, 4), log=(False, False))).axes
    axes.figure.draw_without_rendering()
    return axes

  axes = axes_of(places, [f"a longer name {i}" for i in range(6)])
  assert len(axes.texts) == 6
  boxes = [Text.get_window_extent(text) for text in axes.texts]
  dots, frame = axes.transData.transform(places), axes.get_window_extent()
  for i, box in enumerate(boxes):
    assert not any(box.overlaps(other) for other in boxes[:i])
    assert not any(box.contains(*dot) for dot in dots)
    assert not any(box.contains(*axes.transData.transform((x, 0.47))) for x in np.linspace(0.1, 0.9, 200))
    assert frame.x0 <= box.x0 < box.x1 <= frame.x1
    assert frame.y0 <= box.y0 < box.y1 <= frame.y1
  # There are fewer places than points; the first texts are the most important.
  texts = [text.get_text() for text in axes_of(np.full((60, 2), 0.5), [f"name {i}" for i in range(60)]).texts]
  assert 0 < len(texts) < 60
  assert "name 59" not in texts


def ablated(root, cers, seeds=(0, 1, 2), **fields):
  """Runs of sm with three parts: cers is {(augment, replay, patience): CER}; Comp is 200, and 100 without replay."""
  for (augment, replay, patience), cer in cers.items():
    for seed in seeds:
      write_run(root / f"{augment}{replay}{patience}{seed}", [(cer + 0.1 * seed) / 2] * 2, seed=seed,
                macs=100 if replay else 50, train__augment=augment, stream__replay=replay, train__patience=patience,
                **fields)
  return root


PARTS = ablation.parse("augment=false, replay=0,train.patience=0")
CERS = {(True, 1.0, 5): 1.0, (False, 1.0, 5): 1.1, (True, 0.0, 5): 1.2, (True, 1.0, 0): 0.9, (False, 0.0, 5): 1.5,
        (False, 1.0, 0): 1.4, (True, 0.0, 0): 1.3, (False, 0.0, 0): 2.0}


def test_an_ablation_by_hand(tmp_path):
  study = study_of(ablated(tmp_path, CERS))
  (found,) = ablation.of(study, PARTS)
  table = ablation.frame(study, found).set_index("setting")
  assert table.index.tolist() == ["all on", "without augment", "without replay", "without patience", "only patience",
                                  "only replay", "only augment", "all off"]
  # The seeds add 0, 0.1 and 0.2: the mean is higher by 0.1, and the deviation is 0.1.
  assert table["cer"].tolist() == pytest.approx([1.1, 1.2, 1.3, 1.0, 1.6, 1.5, 1.4, 2.1])
  assert table["cer_se"].tolist() == pytest.approx([0.1 / math.sqrt(3)] * 8)
  assert table[COMP].tolist() == [200, 200, 100, 200, 100, 200, 100, 100]
  assert table.loc["all off", "cer_difference_percent"] == pytest.approx(100 * 1.0 / 1.1)
  assert table.loc["all off", "cer_difference_percent_se"] == pytest.approx(0, abs=1e-9)  # equal on all seeds
  assert table.loc["without replay", f"{COMP}_difference_percent"] == -50
  text = ablation.table(study, found)
  assert text.heading.startswith("Ablation of sm: mean ± standard error over seeds. ")
  lines = text.markdown.splitlines()
  assert lines[0].startswith("| setting | augment | replay | patience | seeds | CER | CER difference | Comp |")
  assert lines[2].startswith("| all on | True | 1 | 5 | 3 | 1.100 ± 0.058 |  | 200 |  |")
  assert lines[-1].startswith("| all off | False | 0 | 0 | 3 | 2.100 ± 0.058 | +90.9 % | 100 | -50.0 % ")


def test_differences_of_an_ablation_are_paired(tmp_path):
  """Seeds 1 and 2 are shared: 0.3 and 0.5 above 1.1 and 1.2. The mean, 0.4, is 34.8 % of 1.15; the error is 0.1."""
  for seed in range(3):
    write_run(tmp_path / f"on{seed}", [0.5 + 0.05 * seed] * 2, seed=seed, train__augment=True)
  for seed, cer in ((1, 1.4), (2, 1.7), (7, 9.0)):
    write_run(tmp_path / f"off{seed}", [cer / 2] * 2, seed=seed, train__augment=False)
  (study,), _ = collect.collect([tmp_path])
  (found,) = ablation.of(study, ablation.parse("augment=False"))
  assert [setting.name for setting in found.settings] == ["all on", "all off"]
  off = ablation.frame(study, found).iloc[1]
  assert off["cer"] == pytest.approx((1.4 + 1.7 + 9) / 3)
  assert off["cer_difference_percent"] == pytest.approx(100 * 0.4 / 1.15)
  assert off["cer_difference_percent_se"] == pytest.approx(100 * 0.1 / 1.15)
  assert not off["cer_difference_significant"]  # with two seeds 0.4 ± 1.27


def test_significant_differences_are_bold(tmp_path):
  for seed in range(4):
    write_run(tmp_path / f"on{seed}", [0.5, 0.5], seed=seed, train__augment=True)
    write_run(tmp_path / f"off{seed}", [0.6 + 0.001 * seed, 0.6], seed=seed)
  study = study_of(tmp_path)
  (found,) = ablation.of(study, ablation.parse("train.augment=0"))
  assert "| **+20.1 % ± 0.1** |" in ablation.table(study, found).markdown


def test_settings_without_runs_are_shown_and_divergences_are_counted(tmp_path):
  cers = {key: cer for key, cer in CERS.items() if key != (True, 0.0, 5)}
  diverge(ablated(tmp_path, cers) / "False1.051")
  for seed in range(3):
    diverge(tmp_path / f"True1.00{seed}")
  (study,), _ = collect.collect([tmp_path])
  (found,) = ablation.of(study, PARTS)
  lines = ablation.table(study, found).markdown.splitlines()
  assert lines[3].startswith("| without augment | False | 1 | 5 | 2 (1 diverged) | 1.200 ± 0.100 | ")
  assert lines[4] == "| without replay | True | 0 | 5 | 0 | - |  | - |  | - |  |"
  assert lines[5] == "| without patience | True | 1 | 0 | 0 (3 diverged) | - |  | - |  | - |  |"


def test_each_reference_has_a_table(tmp_path):
  """Other factors, and parts that are on with several values, tell tables apart; what follows a part does not."""
  for width in (4, 8):
    for patience in (0, 5, 9):
      write_run(tmp_path / f"{width}{patience}", [0.5, 0.4], model__width=width, train__patience=patience,
                train__epochs=7 if patience else 3)
  write_run(tmp_path / "ens", [0.5, 0.4], "ens", train__patience=5)  # there is no run with patience off
  (study,), _ = collect.collect([tmp_path])
  found = ablation.of(study, ablation.parse("patience=0"))
  assert sorted(each.name for each in found) == ["sm, width 4, patience 5", "sm, width 4, patience 9",
                                                 "sm, width 8, patience 5", "sm, width 8, patience 9"]
  assert all(len(setting.runs) == 1 for each in found for setting in each.settings)


def test_the_schedule_as_a_part(tmp_path):
  """Without its schedule a learner has a waiting time, and each of them is a setting."""
  for wait in (1, 2):
    write_run(tmp_path / f"w{wait}", [0.5, 0.4], stream__waiting_time=wait)
    write_run(tmp_path / f"ens{wait}", [0.3, 0.2], "ens", stream__waiting_time=wait)
  write_run(tmp_path / "geometric", [0.3, 0.2], stream__schedule="geometric")
  study = study_of(tmp_path)
  (found,) = ablation.of(study, ablation.parse("schedule=every"))
  assert [setting.name for setting in found.settings] == ["all on", "all off, w 1", "all off, w 2"]
  assert [len(setting.runs) for setting in found.settings] == [1, 1, 1]
  # In figures such a run is compared with those of every waiting time, but it is no answer to the best waiting time.
  figure = drawn(study, "stream")
  assert legend(figure) == ["sm, schedule every", "sm, schedule geometric", "ens"]
  assert all(len(axes.lines) == 3 for axes in figure.axes)
  assert [axes.get_title() for axes in figure.axes] == ["w = 1, other schedules", "w = 2, other schedules"]
  caption = figures.plots(study)["stream-compute"].caption
  assert caption.endswith("Runs whose schedule has no waiting time are in every panel.")
  lines = findings.waiting_times(study)
  assert lines
  assert not any("geometric" in line or "nan" in line for line in lines)
  assert "| sm | geometric |  |" in tables.overview(study)
  (study,), _ = collect.collect([tmp_path / "geometric"])
  assert set(figures.plots(study)) == {"stream", "stream-compute"}  # a single kind of run has nothing to trade off
  assert findings.waiting_times(study) == []


@pytest.mark.parametrize("text", ["optimizer=adadelta", "train.optimizer=sgd"])
def test_a_name_with_fields_of_its_own_as_a_part(tmp_path, text):
  """`sgd` alone has a momentum: each of its values is a setting, or a reference."""
  for seed in (0, 1):
    write_run(tmp_path / f"adadelta{seed}", [0.5, 0.4 + seed / 100], seed=seed, train__optimizer="adadelta")
    for momentum in (0.0, 0.9):
      run = write_run(tmp_path / f"sgd{momentum}{seed}", [0.5, 0.3 - momentum / 10 + seed / 90], seed=seed)
      tree = json.loads((run / "config.json").read_text())
      change(run / "config.json", train=tree["train"] | {"optimizer": "sgd", "momentum": momentum})
      tree = json.loads((run / "config.json").read_text())
      change(run / "summary.json", config_sha256=configs.digest(tree))
  study = study_of(tmp_path)
  ablations = ablation.of(study, ablation.parse(text))
  names = {each.name: [(setting.name, len(setting.runs)) for setting in each.settings] for each in ablations}
  assert names == ({"sm, momentum 0": [("all on", 2), ("all off", 2)], "sm, momentum 0.9": [("all on", 2), (
      "all off", 2)]} if "adadelta" in text else
      {"sm": [("all on", 2), ("all off, momentum 0", 2), ("all off, momentum 0.9", 2)]})


def test_words_and_numbers_in_one_field(tmp_path):
  """stream.replay_share is a number or `uniform`; runs of different values are never averaged together."""
  for share in (0.5, "uniform", 0, 0.25):
    for average in (0.0, 0.2):
      for seed in range(2):
        write_run(tmp_path / f"{share}{average}{seed}", [0.5, 0.4], seed=seed, stream__replay_share=share,
                  learner__average=average)
  study = study_of(tmp_path)
  assert study.factors == ("stream.replay_share", "learner.average")
  assert studies.means(study, "cer")["seeds"].tolist() == [2] * 8
  assert tables.overview(study).splitlines()[0].startswith("| learner | share | average |")
  page.write([study], [], tmp_path / "out")
  names = legend(drawn(study, "stream"))
  assert names[:3] == ["sm", "sm, average 0.2", "sm, share 0.25"]
  assert names[-1] == "sm, share uniform, average 0.2"
  values = ["uniform", 0.5, None, "12", 3, "every", math.nan]
  assert sorted(values, key=studies.order)[:5] == [0.5, 3, "12", "every", "uniform"]


def test_memory_policies_have_a_column(tmp_path):
  kinds = [{"memory_policy": "uniform"}, {"memory_policy": "window", "window": 2},
           *({"memory_policy": "half_life", "half_life": half} for half in (2.0, 4.0))]
  for i, kind in enumerate(kinds):
    write_run(tmp_path / str(i), [0.5, 0.4], stream__replay_share="uniform",
              **{f"stream__{field}": value for field, value in kind.items()})
  head, _, *rows = tables.overview(study_of(tmp_path)).splitlines()
  assert head.startswith("| learner | policy | half_life |")
  assert sorted(row.split("|")[2:4] for row in rows) == [
      [" half_life ", " 2 "], [" half_life ", " 4 "], [" uniform ", "  "], [" window ", "  "]]


@pytest.mark.parametrize(("text", "sentence"), [
    ("x=1", "no run has the field 'x'"), ("augment", "should name different fields and the values"),
    ("width=32", "no learner has finished runs with width all on, and others"),
    ("width=4", "no run has width=4; the runs have 32."),
    ("a=1,a=2", "should name different fields"), ("augment=", "should name different fields"), ("", "should name"),
    ("name=3", "'name' may be dataset.name or learner.name;"),
])
def test_ablations_that_cannot_be_made(tmp_path, text, sentence):
  write_run(tmp_path / "run", [0.5, 0.4])
  with pytest.raises(BadInput, match=sentence):
    ablation.of_all([study_of(tmp_path)], ablation.parse(text))


def test_the_command_writes_an_ablation(tmp_path, monkeypatch):
  monkeypatch.setattr(page, "_write_figures", lambda *unused: {})
  ablated(tmp_path / "runs", CERS)
  fields = "--ablation=augment=false,replay=0,patience=0"
  done = alma("report", tmp_path / "runs", fields)
  assert done.returncode == 0, done.stderr
  assert done.stdout.count("Ablation of sm") == 1
  assert "| without augment | False | 1 | 5 | 3 |" in done.stdout
  out = tmp_path / "out"
  assert alma("report", tmp_path / "runs", fields, "--out", out).returncode == 0
  assert len(pd.read_csv(out / "ablation.csv")) == 8
  for name in ("report.md", "index.html"):
    assert "Ablation of sm" in (out / name).read_text()
  done = alma("report", tmp_path / "runs", "--ablation=epochs=3")
  assert (done.returncode, done.stderr.count("\n")) == (2, 1)
  assert alma("report", tmp_path / "runs", "--out", out).returncode == 0
  assert not (out / "ablation.csv").exists()  # of the earlier report
  (out / "ablation.csv").write_text("mine")
  assert alma("report", tmp_path / "runs", "--out", out).returncode == 0
  assert (out / "ablation.csv").read_text() == "mine"
