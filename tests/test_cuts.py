"""Stopped at every cut and resumed, a run of every protocol and every kind of state equals one that was not stopped."""
import collections
import shutil

import jax
import numpy as np
import pytest
from runs import (
  alma,
  arrays_of_stages,
  assert_same_run,
  blobs,
  interrupted,
  lines,
  one_step_a_dispatch,
  slow,
  small_config,
  task_config,
  text_config,
)
from test_live import drop, live_config, make_folder

import alma_jax
from alma_jax.data import datasets, feed
from alma_jax.learners import dual

pytestmark = pytest.mark.filterwarnings("ignore:the vocabulary has")

IMAGES = ("sm", "ens", "gens", "bagging", "boosting", "gmoe", "ff")
# 2 epochs a stage, in batches of 32, which patience may end; earlier examples are replayed.
PLAIN = dict(train__epochs=2, train__patience=1, train__batch_size=32, stream__replay=0.5)
# 2 stages of 3 steps after mega-batches 1 and 2 of 3, with every option that keeps something from stage to stage.
FULL = dict(stream__num_megabatches=3, stream__schedule="geometric", stream__factor=2.0, stream__replay_share=0.5,
            stream__memory_size=30, train__steps=3, train__eval_every=2, train__batch_size=12, train__decay=0.5,
            learner__average=0.5, learner__shrink=0.7, learner__perturb=0.1)
ADAPTIVE = {field: value for field, value in FULL.items() if field != "stream__factor"} | dict(
    stream__schedule="adaptive", stream__price=1e-6, stream__num_megabatches=4)
OPTIONS = {
    "ens": dict(learner__num_members=2),
    "bagging": dict(learner__members_per_stage=2), "gmoe": dict(learner__gating="hard", learner__keep_optimizer=True),
    "hmoe": dict(learner__split_every=1, learner__min_shard=3, model__num_experts=2)}
DUAL = dict(stream__replay=0.0, stream__replay_share="uniform", stream__memory_policy="agreement", train__steps=6,
            train__patience=0)
MUON = dict(model__name="compact", model__width=2, train__augment=True, train__optimizer="muon",
            train__learning_rate=0.05, train__weight_decay=0.1, train__epochs=2, train__batch_size=32,
            stream__waiting_time=1, stream__num_megabatches=2)
FREE = dict(train__optimizer="schedule_free", train__learning_rate=0.01)
ROUNDS = dict(model__num_experts=3, learner__em_rounds=2, learner__expert_widths=(4, 6), learner__min_shard=1,
              learner__average=0.5, train__epochs=1, train__batch_size=32)
BUDGET = dict(model__width=0, train__steps=0, train__batch_size=0, train__budget=2e4)
TEXT = dict(stream__num_megabatches=2, stream__waiting_time=2, train__steps=2, train__warmup_steps=1,
            train__eval_every=1, train__learning_rate=0.01)
TEXTS = {
    "gens": TEXT | FREE | dict(model__dropout=(0.1, 0.0), stream__schedule="geometric", stream__factor=2.0,
                               stream__replay_share="uniform", stream__memory_size=8, train__micro_batch=2),
    "btm": TEXT | dict(learner__num_domains=2, learner__domains="random", stream__replay_share=0.25, train__steps=8,
                       dataset__cross_documents=False)}
TEXT_GMOE = TEXT | dict(
    model__gates="tree", learner__add_experts=(1,), train__learning_rate=(1e4, 0.01), learner__average=0.4,
    learner__start="average", stream__waiting_time=1, stream__replay=0.5)
TASK = dict(stream__num_megabatches=3, train__epochs=1, train__batch_size=150, log__lca=2)
TASKS = {learner: TASK for learner in ("finetune", "select", "mntdp")}
TASKS |= {"replay": TASK | dict(train__steps=2), "mntdp reinforce": TASK | dict(
    learner__search="reinforce", learner__search_steps=3), "independent": TASK | FREE | dict(
    train__learning_rate=(0.01, 0.001), train__weight_decay=(0.1,))}

CASES = {f"offline {learner}": FULL for learner in IMAGES}
CASES |= {"live gens": PLAIN}
CASES |= {"live sm": FULL, "offline expert": {},
          "offline sm half_life": FULL | dict(stream__memory_policy="half_life", stream__half_life=1.0,
                                              stream__memory_size=0),
          "live anytime": BUDGET, "live dual": PLAIN | DUAL, "live text gmoe": TEXT_GMOE,
          "drift gens": PLAIN | dict(dataset__change="rotate", dataset__megabatch_size=30),
          "offline hmoe adaptive": ADAPTIVE, "offline gens compact": MUON, "offline hmoe rounds": ROUNDS}
CASES |= {f"offline text {learner}": changes for learner, changes in TEXTS.items()}
CASES |= {f"tasks {learner}": changes for learner, changes in TASKS.items()}
QUICK = ("offline sm", "live gens", "tasks select", "drift gens")


def live_images(folder, arrays):
  """Four mega-batches; the third brings a new class."""
  make_folder(folder, arrays)
  for t, classes in enumerate(([0, 2], [0, 2], [0, 1, 2], [0, 1, 2])):
    which = np.flatnonzero(np.isin(arrays[1], classes))[20 * t:][:24]
    drop(folder, t, arrays[0][which], arrays[1][which])
  (folder / "end").touch()
  return folder


def prepared(case, folder, request):
  """(config, what `run` needs besides) of a case; what it reads is written to `folder`."""
  protocol, *words = case.split()
  changes, arrays = {"checkpoint__seconds": 1e9} | CASES[case], request.getfixturevalue("arrays")
  if protocol == "tasks":
    return task_config(words[0], **changes), {}
  if words[0] == "text":
    texts = request.getfixturevalue("books")
    if protocol == "live":
      make_folder(folder)
      for path in sorted((texts / "train").iterdir())[:2]:
        shutil.copyfile(path, folder / "stream" / path.name)
      (folder / "end").touch()
      changes |= dict(dataset__name=f"live:{folder}", dataset__settle_seconds=0.0, stream__num_megabatches=0)
    return text_config(texts, words[1], **changes), {}
  if words[0] == "expert":
    request.getfixturevalue("in_process")
    done = alma("apart", "--config=configs/digits.py:hmoe", "--config.model.num_experts=2", "--config.model.width=4",
                "--config.stream.num_megabatches=4", "--config.train.epochs=2", "--config.log.progress=false",
                "--config.devices=1", "--config.train.batch_size=128", "--workdir", folder)
    assert done.returncode == 0, done.stderr
    return alma_jax.load_run(folder / "expert1").config, {}
  changes = OPTIONS.get(words[0], {}) | changes
  if protocol == "live":
    return live_config(live_images(folder, arrays), words[0], **changes), {}
  if protocol == "drift":
    np.savez(folder.with_suffix(".npz"), **dict(zip(datasets.ARRAYS, arrays)))
    return small_config(words[0], dataset__name=f"drift:npz:{folder}.npz", **changes), {}
  if words[-1] == "compact":
    arrays = (*blobs(80, (9, 8, 3)), *blobs(12, (9, 8, 3), seed=1))
  return small_config(words[0], **changes), {"data": arrays}


class Killed(BaseException):
  """As SIGKILL: nothing is saved after it."""


def killed(config, folder, polls, **options):
  """Runs until the run has asked for the last of so many times whether to stop; whether it was killed there."""
  left = [polls]

  def should_stop():
    left[0] -= 1
    if not left[0]:
      raise Killed
    return False

  try:
    alma_jax.run(config, folder, should_stop=should_stop, **options)
  except Killed:
    return True
  return False


def assert_same(first, second):
  """The same files and the same arrays of the last stage."""
  assert_same_run(first, second)
  sums = [max(arrays_of_stages(folder).items(), key=lambda each: int(each[0])) for folder in (first, second)]
  assert sums[0] == sums[1]


@pytest.mark.parametrize("case", [case if case in QUICK else slow(case) for case in CASES])
def test_resumed_at_every_cut_a_run_ends_the_same(tmp_path, monkeypatch, request, case):
  """Stopped after every training step and every stage; and killed after the first stop in each stage."""
  one_step_a_dispatch(monkeypatch)
  monkeypatch.setattr(feed, "_POLL_SECONDS", 0.01)
  config, options = prepared(case, tmp_path / "data", request)
  whole = alma_jax.run(config, tmp_path / "whole", **options)
  begun = [line["t"] - 1 for line in whole.lines if line["updated"]]
  stops, kills = collections.Counter(), 0  # by mega-batches before
  while interrupted(config, tmp_path / "cut", 0, **options):
    before = len(lines(tmp_path / "cut", "metrics.jsonl"))
    stops[before] += 1
    if before in begun and stops[before] == 1:  # at the third poll there are lines that no checkpoint covers
      kills += killed(config, tmp_path / "cut", 3 if before < begun[-1] else 1, **options)
  assert_same(tmp_path / "whole", tmp_path / "cut")
  assert set(begun) | {len(whole.lines)} <= stops.keys()  # inside every stage, and after the last one
  assert kills


def test_two_networks_are_compared_by_their_averages_after_a_stop_too(tmp_path, monkeypatch, arrays):
  one_step_a_dispatch(monkeypatch)
  seen, compared = set(), dual.Dual._compared

  def noted(self, state, data, test):
    seen.add((data.stage, float(abs(jax.tree.leaves(state.predicting.params)[0]).sum())))
    return compared(self, state, data, test)

  monkeypatch.setattr(dual.Dual, "_compared", noted)
  config = small_config("dual", checkpoint__seconds=1e9, **FULL | DUAL)
  options = {"data": arrays}
  alma_jax.run(config, tmp_path / "whole", **options)
  assert len(seen) == 2
  while interrupted(config, tmp_path / "stopped", 0, **options):
    pass
  assert len(seen) == 2
  assert_same(tmp_path / "whole", tmp_path / "stopped")
