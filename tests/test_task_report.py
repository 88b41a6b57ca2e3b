"""Reports of streams of tasks, on run folders written by hand."""
import json
import re

import numpy as np
import pandas as pd
import pytest
from reports import write_report, write_run

from alma_jax import config as configs
from alma_jax import report
from alma_jax.reports import ablation, collect, drawing, figures, tables, task_figures
from alma_jax.store import metrics, run_files


def write_task_run(path, accuracies, learner="independent", origins=None, paths=None, families=None, flops=1000,
                   size=10, **changes):
  """A finished run on a stream of tasks; `accuracies` are the rows R[t, 1..t], or R[i, i] if nothing is forgotten.

  Every part of a network has `size` parameters; without `paths` each task trains all of its three parts.
  """
  rows = [row if isinstance(row, list) else accuracies[:t] for t, row in enumerate(accuracies, 1)]
  num = len(rows)
  config = configs.tasks(learner)
  config.update_from_flattened_dict({key.replace("__", "."): value for key, value in changes.items()})
  path.mkdir(parents=True)
  seed = changes.get("seed", 0)
  tree = dict(configs.to_dict(configs.parse(config)), data_fingerprint=f"{seed:064}", alma_jax_version="0.2.0",
              format=run_files.FORMAT)
  (path / "config.json").write_text(json.dumps(tree))
  paths = paths or [[3 * t, 3 * t + 1, 3 * t + 2] for t in range(num)]
  made = {module: next(t for t, path in enumerate(paths) if module in path) for path in paths for module in path}
  part = {module: path.index(module) for path in paths for module in path}
  lines = []
  for t, row in enumerate(rows):
    stored = sum(task <= t for task in made.values())
    line = metrics.line("error", t + 1, t, True, 1 - row[-1], 1 - row[-1], 0.5, size * stored, flops // 4, flops)
    lines.append(line | dict(task=f"task {t + 1}", accuracies=row, num_modules=stored))
  (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  own = np.array([row[-1] for row in rows])
  summary = metrics.summarize(lines, 0) | dict(
      wall_seconds=2.0, compile_seconds=1.0, device="cpu", config_sha256=configs.digest(tree),
      average_accuracy=np.mean(rows[-1]),
      forgetting=np.mean(rows[-1] - own), cumulative_error=np.mean(1 - own), last_accuracy=own[-1],
      num_modules=len(made), memory=size * len(made))
  (path / "summary.json").write_text(json.dumps(summary))
  graph = dict(
      parts=["low", "mid", "head"], modules=[dict(part=["low", "mid", "head"][part[m]], task=made[m])
                                             for m in sorted(made)],
      tasks=[dict(name=f"task {t + 1}", family=(families or ["plain"] * num)[t], path=paths[t],
                  origin=(origins or [None] * num)[t]) for t in range(num)])
  (path / "graph.json").write_text(json.dumps(graph))
  return path


@pytest.fixture
def runs(tmp_path):
  """Three learners on three tasks, two seeds: mntdp reuses two modules of task 1 for task 3; replay forgets."""
  root = tmp_path / "runs"
  for seed in (0, 1):
    write_task_run(root / f"independent{seed}", [0.8, 0.7, 0.6 + 0.1 * seed], seed=seed)
    write_task_run(root / f"mntdp{seed}", [0.8, 0.7, 0.9], "mntdp", [None, None, 0],
                   [[0, 1, 2], [3, 4, 5], [0, 1, 6]], ["a", "b", "a"], flops=3000, seed=seed)
    write_task_run(root / f"finetune{seed}", [[0.8], [0.7, 0.9], [0.5, 0.8, 0.6]], "finetune", [None, 0, 1], seed=seed)
  return root


def test_metrics_are_tabled(runs, capsys):
  (study,), notes = collect.collect([runs])
  assert study.name == "digits, 3 tasks"
  assert notes == []
  assert any("Every seed draws the examples of the tasks anew" in line for line in tables.task_columns(study))
  table = tables.task_points(study).set_index("learner.name")
  assert table.index[0] == "mntdp"  # the best A comes first
  mntdp, finetune = table.loc["mntdp"], table.loc["finetune"]
  assert mntdp["average_accuracy"] == pytest.approx(0.8)
  assert mntdp["transfer"] == pytest.approx((0.9 - 0.6 + 0.9 - 0.7) / 2)
  assert mntdp["transfer_sd"] == pytest.approx(0.1 / np.sqrt(2))
  assert (mntdp["memory"], mntdp["num_modules"], mntdp["cumulative_train_flops"]) == (70, 7, 9000)
  assert finetune["average_accuracy"] == pytest.approx((0.5 + 0.8 + 0.6) / 3)
  assert finetune["forgetting"] == pytest.approx((0.5 - 0.8 + 0.8 - 0.9) / 3)
  assert finetune["cumulative_error"] == pytest.approx((0.2 + 0.1 + 0.4) / 3)
  assert finetune["transfer"] == pytest.approx(-0.05)
  # (C, E): finetune 3000, .233; independent 3000, .25; mntdp 9000, .2. (M, A): mntdp 70, .8 against 90 and lower.
  assert dict(table["on_cost_front"]) == {"mntdp": True, "finetune": True, "independent": False}
  assert dict(table["on_memory_front"]) == {"mntdp": True, "finetune": False, "independent": False}
  head, _, first, *_ = tables.task_overview(study).splitlines()
  assert head == "| learner | seeds | A | F | E | C | T | M | modules |"
  assert first == "| mntdp | 2 | 0.800 | 0.000 | 0.200 | 9 k | 0.250 ± 0.071 | 70 | 7 |"
  report.main([str(runs)])
  assert capsys.readouterr().out.startswith("Runs: mean ± standard deviation over seeds\n\n| learner")


def test_lca_is_shown_where_it_was_measured(runs):
  for seed, lca in ((0, 0.4), (1, 0.6)):
    file = runs / f"mntdp{seed}/summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lca": lca}))
  (study,), _ = collect.collect([runs])
  head, _, *rows = tables.task_overview(study).splitlines()
  assert head.endswith("| modules | LCA |")
  assert rows[0].endswith("| 0.500 ± 0.141 |")
  assert rows[1].endswith("| - |")


def test_transfer_needs_an_independent_run_of_the_seed(tmp_path):
  write_task_run(tmp_path / "select0", [0.8, 0.7], "select", seed=0)
  (study,), notes = collect.collect([tmp_path])
  assert "there is no finished run of `independent`" in notes[0]
  assert tables.task_overview(study).splitlines()[2].split(" | ")[6] == "-"
  write_task_run(tmp_path / "select1", [0.8, 0.7], "select", seed=1)
  write_task_run(tmp_path / "independent1", [0.8, 0.6], seed=1)
  (study,), notes = collect.collect([tmp_path])
  assert any("the transfer to the last task (T) leaves out select (seed 0), because" in note for note in notes)
  row = next(line for line in tables.task_overview(study).splitlines() if "select" in line)
  assert row.split(" | ")[6] == "0.100 (1)"
  # Another width is another baseline.
  for width, last in ((8, 0.3), (16, 0.4)):
    write_task_run(tmp_path / f"wide{width}", [0.8, last], seed=1, model__width=width)
    write_task_run(tmp_path / f"select{width}", [0.8, 0.9], "select", seed=1, model__width=width)
  (study,), _ = collect.collect([tmp_path])
  wide = study.runs[study.runs["learner.name"] == "select"].set_index("model.width")["transfer"]
  assert (wide[8], wide[16]) == pytest.approx((0.6, 0.5))


def test_figures_show_the_runs(runs):
  (study,), _ = collect.collect([runs])
  plots = task_figures.plots(study)
  figures_of = {name: drawing.draw(plot) for name, plot in plots.items()}
  assert list(plots) == ["task-pareto", "task-memory", "task-origins", "task-modules", "task-matrix"]
  assert "Without any arrow: independent" in plots["task-origins"].caption
  panels = figures_of["task-pareto"].axes
  assert [axes.get_ylabel() for axes in panels] == ["cumulative error E", "average error 1 - A"]
  assert {text.get_text() for text in panels[0].texts} == {"independent", "mntdp", "finetune"}
  for axes, expected in zip(figures_of["task-memory"].axes, ({(30, 60, 90), (30, 60, 70)}, {(3, 6, 9), (3, 6, 7)})):
    assert {tuple(line.get_ydata()) for line in axes.lines} == expected
  panels = {axes.get_title(): axes for axes in figures_of["task-origins"].axes}
  assert list(panels) == ["finetune", "mntdp"]
  assert [len(axes.patches) for axes in panels.values()] == [2, 1]
  assert plots["task-origins"].panels[1].grid.arrows[0][:2] == (0, 2)
  assert [filled for _, filled in plots["task-origins"].panels[1].grid.nodes] == [False, False, True]
  (panel,) = plots["task-modules"].panels
  assert panel.title == "mntdp: 7 modules"
  assert panel.grid.rows == ("head", "mid", "low")
  head, mid, low = panel.grid.colours.tolist()
  assert low[0] == low[2] == mid[2] != head[2]
  assert low[1] == head[2]  # grey: of one task alone
  assert panel.grid.texts == [["1", "2", "3"], ["1", "2", "1"], ["1", "2", "1"]]
  (grid,) = (panel.grid for panel in plots["task-matrix"].panels if panel.title == "finetune")
  assert grid.texts == [["80", "", ""], ["70", "90", ""], ["50", "80", "60"]]
  assert len({tuple(grid.colours[t, i]) for t in range(3) for i in range(t + 1)}) == 5  # 80 % twice


def test_coinciding_lines_show_all_colours(runs):
  (study,), _ = collect.collect([runs])
  _, modules = drawing.draw(task_figures.memory(study)).axes
  dashed = [line for line in modules.lines if line.get_linestyle() == "--"]
  assert {line.get_color().lower() for line in dashed} == {
      drawing.style(name)[0].lower() for name in ("independent", "finetune")}


def test_a_report_beside_other_streams(tmp_path, runs, monkeypatch):
  monkeypatch.setattr(figures, "plots", lambda *_: {})  # those of mega-batches are slow, and tested elsewhere
  others = [write_run(tmp_path / "images", [0.5, 0.4]), write_run(tmp_path / "text", [9.0, 8.0], language=True)]
  alone, out = tmp_path / "alone", tmp_path / "out"
  write_report(others, alone)
  html = write_report([runs, *others], out).read_text()
  for heading in ("digits, 3 tasks", "digits, 2 mega-batches", "What the columns mean"):
    assert heading in html
  assert pd.read_csv(out / "tasks.csv")["learner.name"].tolist() == ["mntdp", "independent", "finetune"]
  assert (alone / "pareto.csv").read_text() == (out / "pareto.csv").read_text()
  rows = [{line for line in (folder / "report.md").read_text().splitlines() if line.startswith(("|", "- "))}
          for folder in (alone, out)]
  assert rows[0] < rows[1]  # the others are reported as they are alone
  stream = pd.read_csv(out / "stream.csv").dropna(subset=["task"])
  assert stream[stream["run"].str.endswith("mntdp0")]["accuracy"].tolist() == [0.8, 0.7, 0.9]
  names = re.findall(r"\((\S+)\.png\)", (out / "report.md").read_text())
  assert len(names) == 5
  assert all((out / f"{name}{suffix}").stat().st_size > 1000 for name in names for suffix in (".png", ".pdf"))
  write_report(others, out)  # another report in the same folder
  assert not (out / "tasks.csv").exists()
  assert not list(out.glob("*task-*"))


def test_ablations_are_of_the_metrics(tmp_path):
  for seed in (0, 1):
    write_task_run(tmp_path / f"knn{seed}", [0.8, 0.8 + 0.1 * seed], "mntdp", seed=seed)
    write_task_run(tmp_path / f"random{seed}", [0.8, 0.5], "mntdp", seed=seed, learner__prior="random")
  studies, _ = collect.collect([tmp_path])
  ((_, (found,)),) = ablation.of_all(studies, ablation.parse("prior=random"))
  off = ablation.table(studies[0], found).markdown.splitlines()[3]
  assert off.startswith("| all off | random | 2 | 0.350 | +100.0 % ")  # E, against 0.2 and 0.15


def test_one_task_and_crowds(tmp_path):
  write_task_run(tmp_path / "one", [0.8], "select")
  (one,), _ = collect.collect([tmp_path / "one"])
  assert one.name == "digits, 1 task"
  assert task_figures.plots(one) == {}
  for i in range(10):
    write_task_run(tmp_path / f"many{i}", [0.5] * 41, "select", [None, *range(40)], learner__neighbors=i + 1)
  (many,), _ = collect.collect([tmp_path / f"many{i}" for i in range(10)])
  captions = {name: plot.caption for name, plot in task_figures.plots(many).items()}
  for plot in task_figures.plots(many).values():
    drawing.draw(plot)
  assert list(captions) == ["task-pareto", "task-memory", "task-origins", "task-matrix"]
  assert "The first 9 of 10 kinds of runs are shown." in captions["task-matrix"]


def test_odd_folders_are_named(tmp_path, runs):
  more = tmp_path / "more"
  (write_task_run(more / "half", [0.8, 0.7], seed=5) / "summary.json").unlink()
  torn = write_task_run(more / "torn", [0.8, 0.7, 0.9], seed=6) / "metrics.jsonl"
  torn.write_text(torn.read_text()[:-40])
  for name, change in (("ragged", {"accuracies": [0.5]}), ("high", {"accuracies": [0.5, 0.5, 2]}),
                       ("nameless", {"task": None}), ("countless", {"num_modules": "many"})):
    file = write_task_run(more / name, [0.8, 0.7, 0.9], seed=7) / "metrics.jsonl"
    *lines, last = file.read_text().splitlines()
    file.write_text("\n".join([*lines, json.dumps(json.loads(last) | change), ""]))
  file = write_task_run(more / "resultless", [0.8, 0.7, 0.9], seed=7) / "summary.json"
  file.write_text(json.dumps({k: v for k, v in json.loads(file.read_text()).items() if k != "memory"}))
  (write_task_run(more / "ungraphed", [0.8, 0.7, 0.9], seed=8) / "graph.json").unlink()
  (write_task_run(more / "torn graph", [0.8, 0.7, 0.9], seed=9) / "graph.json").write_text("{")
  for seed, (name, change) in enumerate((
      ("ahead", lambda graph: graph["tasks"][1].update(origin=2)),
      ("wild", lambda graph: graph["tasks"][1].update(path=[0, 1, 99])),
      ("swapped", lambda graph: graph["tasks"][1]["path"].reverse()),
      ("short", lambda graph: graph["tasks"].pop()), ("empty", lambda graph: graph.clear()))):
    file = write_task_run(more / name, [0.8, 0.7, 0.9], "select", seed=seed) / "graph.json"
    graph = json.loads(file.read_text())
    change(graph)
    file.write_text(json.dumps(graph))
  (study,), notes = collect.collect([runs, more])
  bad = lambda name, sentence: f"{name} is left out: {more / name}/{sentence}"
  for sentence in ("half is left out: the run is not finished: it has 2 tasks and no summary.json",
                   bad("torn", "metrics.jsonl has 2 of 3 tasks, although summary.json exists"),
                   bad("ragged", "metrics.jsonl should have 'accuracies' in line 3, a list of 3 numbers"),
                   bad("high", "metrics.jsonl should have 'accuracies' in line 3, a list of 3 numbers"),
                   bad("nameless", "metrics.jsonl has a line with task=None"),
                   bad("countless", "metrics.jsonl has a line with num_modules='many'"),
                   bad("resultless", "summary.json lacks 'memory'"),
                   *(f"{name} is not drawn, because {more / name}/graph.json {sentence}" for name, sentence in (
                       ("ungraphed", "is missing; the run's own command writes it again"),
                       ("torn graph", "cannot be read as JSON"),
                       *((name, "is not the graph of 3 tasks; the run's own command writes it again")
                         for name in ("ahead", "wild", "swapped", "short", "empty"))))):
    assert sum(sentence in note for note in notes) == 1, sentence
  assert len(study.runs) == 6 + 2 + 5
