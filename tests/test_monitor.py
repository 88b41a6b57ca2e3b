"""`alma status` and `alma compare`: runs that are alive, stopped, dead, diverged or finished, paired differences."""
import json
import os
import re
import subprocess
import sys
import time

import filelock
import pytest
from matplotlib import figure
from reports import change, change_lines, diverge, write_run
from runs import ROOT, alma, interrupted, small_config
from test_task_report import write_task_run

import alma_jax
from alma_jax import status
from alma_jax.monitor import board, pair, view
from alma_jax.store.record import Record


def rewrite(path, change):
  """Replaces each line of a run's metrics.jsonl by `change(entry)`, and makes the run unfinished."""
  entries = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
  entries = [entry for each in entries if (entry := change(each)) is not None]
  (path / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
  (path / "summary.json").unlink(missing_ok=True)


def test_a_row_for_each_run(tmp_path):
  runs = {name: write_run(tmp_path / "runs" / name, [0.4, 0.3, 0.2, 0.1], stream__waiting_time=1)
          for name in ("alive", "dead", "diverged", "finished")}
  for name in ("alive", "dead"):
    rewrite(runs[name], lambda entry: entry | dict(
        prequential_error=None if entry["t"] == 1 else 0.25, seconds=100.0,
        **({"drift_before": 0.1, "drift_after": 0.3} if entry["t"] == 2 else {}))
            if entry["t"] <= 3 else None)
  diverge(runs["diverged"])
  saved = runs["dead"] / "checkpoints/4"
  saved.mkdir(parents=True)
  with filelock.FileLock(runs["alive"] / ".lock"):
    done = alma("status", tmp_path / "runs")
    alive = view.cells(view.view(runs["alive"]))
  assert done.returncode == 3  # for runs that need help
  heads, *rows = done.stdout.splitlines()
  places = [heads.index(head) for head in alive]
  table = [[row[first:last].strip() for first, last in zip(places, [*places[1:], None])] for row in rows]
  assert [(row[0].rsplit("/", 1)[1], row[1]) for row in table] == [
      ("alive", "alive"), ("diverged", "diverged"), ("dead", "dead"), ("finished", "finished")]
  assert table[0][2:7] == ["sm on digits", "3 of 4", "3 of 4", "0.2", "0.25"]
  assert table[0] == [*alive.values()]
  assert alive["notes"].replace("2 min", "100 s") == (
      "1 drift alarm, the last at mega-batch 2, about 100 s left, nothing saved")
  assert "left" not in table[2][-1]
  assert table[3][3:] == ["4 of 4", "4 of 4", "0.1", "", ""]
  assert alma("status", runs["finished"]).returncode == 0
  os.utime(saved, 2 * (time.time() - 90,))
  assert re.search("(^|, )saved 9[01] s ago$", view.cells(view.view(runs["dead"]))["notes"])


def test_a_run_that_was_stopped_is_not_dead_until_a_later_session_is_killed(tmp_path, arrays):
  config, run = small_config(checkpoint__seconds=0.0), tmp_path / "run"
  kill = iter([False, True])

  def killed():
    if next(kill):
      raise KeyboardInterrupt
    return False

  assert interrupted(config, run, 1, data=arrays)
  assert (view.view(run).state, alma("status", run).returncode) == ("stopped", 3)
  with pytest.raises(KeyboardInterrupt):
    alma_jax.run(config, run, data=arrays, should_stop=killed)
  assert view.view(run).state == "dead"


def test_a_stream_of_tasks_shows_its_average_accuracy(tmp_path):
  run = write_task_run(tmp_path / "run", [[0.6], [0.6, 0.9]], stream__num_megabatches=2)
  (run / "summary.json").unlink()
  row = view.cells(view.view(run))
  assert row["learner"] == "independent on digits"
  assert (row["seen"], row["error"]) == ("2 of 2", "0.1 on the last task")
  assert row["notes"].startswith("average accuracy 0.75, ")
  (run / "metrics.jsonl").unlink()
  assert view.view(run).record.unit == "tasks"
  row = view.cells(view.view(run))
  assert (row["seen"], row["notes"]) == ("0 of 2", "nothing saved")


def test_how_many_old_mega_batches_are_left_out(tmp_path):
  path = write_run(tmp_path / "run", [0.4, 0.3, 0.2, 0.1, 0.1])
  change_lines(path, memory_weights={2: [0.0], 4: [0.1, 0.9]}, memory_span={4: 2})
  run, said = view.view(path), "leaves out 2 of 3 old mega-batches"
  assert (view.cells(run)["notes"], board.shown(run)["further"]) == (said, [said])


def test_entries_of_a_live_stream_that_need_a_look_are_counted(tmp_path, capsys):
  path, good = write_run(tmp_path / "runs/run", [0.4]), write_run(tmp_path / "runs/good", [0.4])
  (path / "rejected.jsonl").write_text(2 * '{"name": "a.npz"}\n' + '{"name": "b.npz"}\n')
  (path / "notices.jsonl").write_text('{"name": "c.npz", "notice": "changed"}\n')
  said = ["2 entries set aside (rejected.jsonl)", "1 notice about used entries (notices.jsonl)"]
  assert view.view(path).arrivals == board.shown(view.view(path))["further"] == said
  (path / "rejected.jsonl").write_text("damaged\n")
  assert status.main([str(tmp_path / "none"), str(good)]) == status.main([str(tmp_path / "runs")]) == 3
  shown = capsys.readouterr()
  assert good.name in shown.out  # one damaged run hides no other, nor does a missing folder
  assert "rejected.jsonl has a line that is not JSON" in shown.err
  assert "none" in shown.err


def test_the_gate_of_a_mixture_is_not_dead(tmp_path):
  """Its run has ended after the first stage, without a summary."""
  run = write_run(tmp_path / "run", [0.4, 0.3])
  rewrite(run, lambda entry: entry if entry["t"] == 1 else None)
  assert view.cells(view.view(run))["state"] == "dead"
  (run / "gate.msgpack").touch()
  row = view.cells(view.view(run))
  assert (row["state"], row["seen"], row["error"], row["notes"]) == ("published", "1 of 2", "0.4", "")


def test_a_stream_without_an_end_has_no_time_left(tmp_path):
  run = write_run(tmp_path / "run", [0.4, 0.3])
  rewrite(run, lambda entry: entry)
  tree = json.loads((run / "config.json").read_text())
  tree["stream"]["num_megabatches"] = 0
  (run / "config.json").write_text(json.dumps(tree))
  row = view.cells(view.view(run))
  assert (row["trainings"], row["seen"], row["error"], row["notes"]) == ("2", "2", "0.3", "nothing saved")


def test_two_runs_are_compared(tmp_path):
  first = write_run(tmp_path / "a", [0.5, 0.3, 0.2, 0.2])
  second = write_run(tmp_path / "b", [0.5, 0.2, 0.1, 0.1, 0.1], model__width=16)
  rewrite(first, lambda entry: entry | dict(prequential_error=[0.9, 0.4, 0.3, 0.4][entry["t"] - 1]))
  rewrite(second, lambda entry: entry | dict(prequential_error=[0.9, 0.2, 0.2, 0.2, 0.2][entry["t"] - 1]))
  done = alma("compare", first, second, "--out", tmp_path / "curves.png")
  assert done.returncode == 0, done.stderr
  assert "model.width (" in done.stdout
  # test errors: (0 + 0.1 + 0.1 + 0.1) / 4; prequential ones: (0 + 0.2 + 0.1 + 0.2) / 4, in blocks 0.1 and 0.15
  assert "  test error: mean +0.0750, CER +0.3000\n" in done.stdout
  # Student's t with 1 degree of freedom: 12.7062 * 0.025
  assert "  prequential error: mean +0.1250, 95 % interval -0.1927 to +0.4427 over 2 means" in done.stdout
  assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
  assert pair.shared(Record(first), Record(second), "error").t == [1, 2, 3, 4]
  sums = [sum(line["error"] for line in Record(run).lines[:4]) for run in (first, second)]
  rows = {line.split()[0]: line.split() for line in done.stdout.splitlines()[2:4]}
  assert done.stdout.startswith("The first 4 mega-batches, which both have:\n")
  assert [rows[letter][1] for letter in "AB"] == [f"{value:.4f}" for value in sums]
  # They cut the data into 4 and 5 mega-batches, which are no pairs.
  assert f"B's CER is {sums[0] / sums[1]:.2g} times lower, for " in done.stdout
  assert "The configurations are equal.\n\n" in alma("compare", first, first).stdout


def test_runs_on_other_mega_batches_are_no_pairs(tmp_path, monkeypatch):
  first, second = (write_run(tmp_path / name, [0.5, 0.3 - 0.1 * seed], seed=seed) for seed, name in enumerate("ab"))
  rewrite(first, lambda entry: entry | dict(prequential_error=0.5))
  text = pair.text(Record(first), Record(second))
  assert "\nB's CER is 1.1 times lower, for the same compute. That does not say which is better: " in text
  assert "A and B cut the data into different mega-batches" in text
  assert "\nMean difference A - B over the 2 mega-batches" in text
  assert "  prequential error: not measured by B (learners that freeze" in text
  drawn = []
  monkeypatch.setattr(figure.Figure, "savefig", lambda made, *_, **__: drawn.append(len(made.axes[0].lines)))
  pair.draw(Record(first), Record(second), "a.png")
  pair.draw(Record(first), Record(first), "a.png")
  assert drawn == [2, 4]  # without the prequential errors of only one of the runs
  write_run(tmp_path / "c", [0.5, 0.3])
  for name, contents in (("a", "xyz"), ("c", "xy")):
    (tmp_path / name / "stream.jsonl").write_text("".join(f'{{"content": "{each}"}}\n' for each in contents))
  compared = lambda: pair.text(Record(first), Record(tmp_path / "c"))
  assert "different" not in compared()
  (tmp_path / "c/stream.jsonl").write_text('{"content": "x"}\n{"content": "other"}\n')
  assert "A and B have different data" in compared()
  assert "Paired" not in compared()


@pytest.mark.parametrize(("name", "said"), [("folder:a", "form pairs if the files are the same.\n"),
                                            ("folder:b", "do not form pairs: ")])
def test_the_same_images_at_another_size_are_pairs(tmp_path, name, said):
  names = ("folder:a", name)
  runs = [write_run(tmp_path / f"{i}", [0.5, 0.3], dataset__name=names[i], dataset__image_size=(8, 16)[i],
                    num_params=(10, 31)[i]) for i in range(2)]
  change(runs[1] / "config.json", data_fingerprint="1" * 64)
  text = pair.text(*map(Record, runs))
  assert said in text
  assert ("Paired difference" in text) == (name == "folder:a")


def test_the_verdict_names_the_parameters_if_they_differ_much(tmp_path):
  runs = [write_run(tmp_path / name, [0.5, error], num_params=num) for name, error, num in (
      ("a", 0.5, 10), ("b", 0.25, 31), ("c", 0.25, 20))]
  verdict = lambda other: pair.text(Record(runs[0]), Record(other)).splitlines()[4]
  better = "B is better: its CER is 1.3 times lower, for the same compute"
  assert verdict(runs[1]) == f"{better} and 3.1 times the parameters."
  assert verdict(runs[2]) == f"{better}."


@pytest.mark.parametrize(("args", "sentence"), [
    (["compare", "run", "text"], "compare runs of one kind"),
    (["compare", "run", "new"], "no mega-batches with a test error in common"),
    (["compare", "run", "run", "--out=none/a.png"], "cannot be written")])
def test_bad_input_gets_one_sentence(tmp_path, args, sentence):
  write_run(tmp_path / "run", [0.4, 0.3])
  rewrite(write_run(tmp_path / "new", [0.4, 0.3]), lambda entry: None)
  write_run(tmp_path / "text", [40.0], language=True)
  done = alma(*args, cwd=tmp_path)
  assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
  assert sentence in done.stderr


def test_looking_at_runs_imports_no_jax():
  """With jax, `alma status` would take ten times as long."""
  code = ("import sys, alma_jax.status, alma_jax.compare, alma_jax.board, alma_jax.predict, alma_jax.serve\n"
          "assert not {'jax', 'pandas', 'scipy', 'pyarrow', 'fastapi'} & set(sys.modules), sorted(sys.modules)")
  subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
