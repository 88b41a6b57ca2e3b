"""The page of results on streams of tasks: verdicts on made runs with a known answer, and the page itself."""
import itertools

import numpy as np
import pandas as pd
import pytest
from made_studies import _path  # noqa: F401
from runs import ROOT
from test_task_report import write_task_run

pytestmark = pytest.mark.slow

STREAMS = {"s_minus": 6, "s_in": 6, "s_pl": 5, "s_plus": 6, "s_out": 6, "nevis_mini": 24, "s_long": 100}
# {learner: (gain on the last task, error, cost)}.
TRUE = {"independent": (0.0, 0.3, 1.0), "select": (0.1, 0.25, 1.1), "mntdp": (0.08, 0.26, 3.0),
        "oracle": (0.12, 0.2, 9.0)}
FALSE = {"independent": (0.0, 0.2, 1.0), "select": (-0.1, 0.3, 1.1), "mntdp": (-0.08, 0.31, 3.0),
         "oracle": (-0.12, 0.4, 9.0)}


def table(world, modules, longest, seeds=3):
  """Runs in which `mntdp` stores `modules` modules on short streams, and chains of `select` have `longest` arrows."""
  import task_runs
  rng, rows = np.random.default_rng(0), []
  for (stream, num), (learner, (gain, error, cost)), seed in itertools.product(
      STREAMS.items(), world.items(), range(seeds)):
    noise = rng.uniform(-1e-3, 1e-3) if learner != "independent" else 0.0
    accuracy = 1 - error + noise
    stored = modules * num // 6 if learner == "mntdp" else 6 * num
    rows.append({
        "study": f"{stream}, {num} tasks", "network": "vgg of width 8", "run": f"{stream}-{learner}-{seed}",
        "learner.name": learner, "seed": seed, "num_tasks": num, "num_parts": 6,
        "average_accuracy": accuracy, "forgetting": 0.0 if modules < 20 else -0.1,
        "cumulative_error": error + noise, "cumulative_train_flops": cost * 1e9, "transfer": gain + noise,
        "memory": 1000 * stored, "num_modules": stored, "from_scratch": 4, "mean_depth": 1.5, "max_depth": longest,
        "deeper": num // 2, "top_origins": num - 6, "visits_apart": False})
  return pd.DataFrame(rows, columns=task_runs.COLUMNS)


def test_verdicts():
  import task_verdicts
  verdicts = lambda runs: [row.verdict for row in task_verdicts.rows(runs)]
  agrees, above = ["agrees"] * 11, "`oracle`, `select`, `mntdp` above"
  assert verdicts(table(TRUE, 15, 5)) == [*agrees, above, above]
  assert verdicts(table(FALSE, 36, 20)) == ["disagrees"] * 11 + [above.replace("above", "below")] * 2
  # Two seeds are too few for intervals, fronts and graphs; counts stay as they are.
  two = verdicts(table(TRUE, 15, 5, seeds=2))
  assert two == ["cannot tell"] * 4 + ["agrees"] * 2 + ["cannot tell"] * 3 + ["agrees"] * 2 + ["cannot tell"] * 2
  assert verdicts(table(TRUE, 15, 5).iloc[:0]) == ["not measured"] * 13
  both = task_verdicts.rows(pd.concat([table(TRUE, 15, 5).assign(network="mlp of width 64"), table(FALSE, 36, 20)]))
  assert [row.verdict for row in both[:4]] == ["agrees", "disagrees"] * 2


def test_a_learner_that_is_slightly_below_is_no_verdict():
  """-0.1, 0 and -0.1 points: 0.067 below, with a standard error of 0.033, but p = 0.18."""
  import task_verdicts
  runs = table(TRUE, 15, 5)
  runs.loc[(runs["study"] == "s_pl, 5 tasks") & (runs["learner.name"] == "select"), "transfer"] = [-0.001, 0, -0.001]
  row = task_verdicts.plasticity(runs)
  assert (row.verdict, "**`select` -0.1 ± 0.0**" in row.number) == ("cannot tell", True)


def test_p_is_corrected_for_all_tests_about_a_network():
  """2 of the transfer, 3 learners on s_pl, and 1 of the long stream; the smallest p is multiplied by 6."""
  import task_verdicts
  runs = table(TRUE, 15, 5)
  alone = [*(task_verdicts.transfer(runs, name).p for name in ("select", "mntdp")), task_verdicts.gain(runs).p,
           *(each.p for each in task_verdicts.measured(runs, "s_pl").values())]
  found = task_verdicts.corrected(runs)
  assert (len(alone), min(found.values())) == (6, pytest.approx(6 * min(alone)))
  assert f"p = {found['s_minus', 'mntdp']:.2g}" in task_verdicts.transfers(runs)[1].number
  # The lines that explore leave it alone.
  assert task_verdicts.corrected(runs[~runs["study"].str.startswith("s_out")]) == found


def test_the_front_is_described_by_the_seeds_that_all_learners_have():
  """Seed 2 lacks `oracle`: an error of 0.9 there moves neither the gain nor the mean errors."""
  import task_verdicts
  runs = table(TRUE, 15, 5)
  front = runs["study"] == "nevis_mini, 24 tasks"
  runs = runs[~(front & (runs["learner.name"] == "oracle") & (runs["seed"] == 2))]
  before = task_verdicts.pareto(runs).number
  runs.loc[front & (runs["learner.name"] == "independent") & (runs["seed"] == 2), "cumulative_error"] = 0.9
  assert task_verdicts.pareto(runs).number == before
  assert "`independent` 0.300" in before


def test_what_a_graph_says(tmp_path):
  """Tasks 2 and 3 start from task 1, task 4 from task 3, which is deeper than 1; task 5 is from scratch."""
  import task_runs
  for seed in (0, 1):
    write_task_run(tmp_path / f"select{seed}", [0.5] * 5, "select", [None, 0, 0, 2, None], seed=seed)
  found = task_runs.table(task_runs.collected([tmp_path])).iloc[0]
  assert (found["from_scratch"], found["mean_depth"], found["max_depth"], found["deeper"]) == (2, 4 / 5, 2, 1)
  assert (found["top_origins"], found["num_parts"], found["num_tasks"], found["run"]) == (3, 3, 5, "select0")
  # The t-th task of 3 has depth 0, 1, 1 + 1/2.
  assert task_runs.random_depth(3) == pytest.approx(2.5 / 3)


def test_the_page_is_that_of_the_committed_runs():
  import task_claims
  folder = ROOT / "docs/results/tasks"
  assert (folder / task_claims.PAGE).read_text() == task_claims.text(folder)
  kept, made = pd.read_csv(folder / task_claims.STREAMS), task_claims.streams(pd.read_csv(folder / task_claims.RUNS))
  pd.testing.assert_frame_equal(kept, made, check_exact=False, rtol=1e-5, check_dtype=False)
