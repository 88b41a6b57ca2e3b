"""The paper's claims, and the studies whose runs are evidence for them."""
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import paper
from compared import Judged
from evidence import Cell
from study_runs import (
  COMP,
  EXPERTS,
  FIXED,
  GATING,
  GROW,
  GROWING,
  MEM,
  PREDICT,
  RATE,
  SCRATCH,
  WIDTH,
  Runs,
)


class Study(NamedTuple):
  """A study.

  Attributes:
    label: its name on the page.
    data: the name of its data. Studies of the same data share seeds, and some of them runs.
    sweep: what `alma sweep --config=` needs to make its runs.
    fields: {field: all values} of its runs of the paper's learners, which tell it from the other studies.
    only: {field: value} of the runs that count.
    same: studies that train in the same way on the same data, whose runs count in the claims about all learners.
    larger: the study of the same data whose sweep has more widths, or "".
  """
  label: str
  data: str
  sweep: str
  fields: Mapping[str, set[Any]]
  only: Mapping[str, Any] = {}
  same: Sequence[str] = ()
  larger: str = ""


_MNIST = {"dataset.name": {"mnist"}, "train.epochs": {100}, "stream.replay": {0}, "stream.schedule": {"every"},
          "train.patience": {0}}
STUDIES = {
    "mnist": Study("MNIST", "MNIST", "sweeps/mnist", _MNIST, same=("mnist_replay",)),
    "mnist_replay": Study("MNIST, replay and growth", "MNIST", "sweeps/mnist_replay", _MNIST | {
        "stream.replay": {0, 1}}, same=("mnist",)),
    "replay": Study("MNIST in 50 mega-batches", "MNIST in 50 mega-batches", "sweeps/replay:mnist", {
        "dataset.name": {"mnist"}, "train.epochs": {20}, "stream.num_megabatches": {50}, "stream.replay": {0, 1}}),
    "mnist_authors": Study("MNIST, authors' early stopping", "MNIST", "sweeps/mnist_authors", _MNIST | {
        "train.patience": {0, 25}}),
    "cifar": Study("CIFAR-10, 3 epochs", "CIFAR-10", "sweeps/cifar", {
        "dataset.name": {"cifar10"}, "train.epochs": {3}}, larger="cifar-full"),
    "cifar-full": Study("CIFAR-10, 100 epochs", "CIFAR-10", "sweeps/cifar:full", {
        "dataset.name": {"cifar10"}, "train.epochs": {100}}),
    "text": Study("small text", "small text", "sweeps/text", {
        "dataset.name": {"text:part"}, "train.steps": {300}}),
}


class Claim(NamedTuple):
  """A claim of the paper.

  Attributes:
    text: what the paper says.
    source: version, section, figure or table.
    quantity: what is compared, as in "CER of the smaller network, against the larger one"; the number is by how much
      the first is larger, and supports the claim if it is positive.
    studies: those that can say something about it. Those behind `also` are left out as long as they cannot.
    cells: Runs -> cells, or a verdict without a test, or why there is none.
    exact: whether the compared numbers are counts.
    points: whether effects are differences of errors, instead of logarithms of ratios.
    of_all: whether the runs of the studies that train in the same way count, too (Study.same).
  """
  text: str
  source: str
  quantity: str
  studies: Sequence[str]
  also: Sequence[str]
  cells: Callable[[Runs], list[Cell] | Judged | str | None]
  exact: bool = False
  points: bool = False
  of_all: bool = False


_IMAGES, _FULL, _REPLAY = ("mnist", "mnist_authors", "cifar"), ("cifar-full",), ("mnist_replay", "replay", "cifar")
_UNSTOPPED = ("mnist", "cifar")  # ensembles never stop early, so mnist_authors has the same runs of them
CLAIMS = [
    Claim("Larger networks have a lower CER", "abstract A; Figure 2",
          "CER of a network, against the next larger one", _IMAGES, _FULL, paper.larger_is_better(WIDTH)),
    Claim("Larger mixtures have a lower perplexity", "Table 2",
          "average perplexity of a mixture, against the next larger one", ("text",), (),
          paper.larger_is_better(EXPERTS)),
    Claim("Ensembles have a lower CER than learners that grow", "abstract B; Figures 2 and 7",
          "CER of a growing learner, against the better of `ens` and `umix` of its width and waiting time",
          _IMAGES, _FULL, paper.ensembles_are_better),
    Claim("Ensembles have a lower perplexity than learners that grow", "Table 2, Figure 5",
          "average perplexity of a growing learner, against the best `ens`", ("text",), (), paper.ensembles_are_better),
    Claim("Learners that grow cost less compute than ensembles", "abstract B; Figure 2",
          "multiply-adds of `ens`, against each growing learner", _IMAGES, _FULL,
          paper.costs_more(("ens",), GROWING, COMP), True),
    Claim("At equal compute a fixed network beats a growing one", "Figure 2",
          "CER of the best growing learner within a budget of compute, against the best fixed one", _IMAGES, _FULL,
          paper.fixed_is_better(COMP), of_all=True),
    Claim("At equal memory a fixed network beats a growing one", "Figure 7",
          "the same within a budget of parameters held over the stream", _IMAGES, _FULL,
          paper.fixed_is_better(MEM), of_all=True),
    Claim("At equal compute and memory a fixed network beats a growing one", "Figures 2 and 7",
          "the same within a budget of both", _IMAGES, _FULL, paper.fixed_is_better(COMP, MEM), of_all=True),
    Claim("Growing helps if the first network is small", "abstract A",
          "CER of `sm` up to width 8, against a growing learner that starts as `sm`", _IMAGES, _FULL,
          paper.growing_helps(small=True)),
    Claim("Growing a mixture helps language models", "Table 2, Figure 5",
          "average perplexity of `sm`, against `gmoe`, which starts as `sm`", ("text",), (),
          paper.growing_helps(small=False, learners=("gmoe",))),
    Claim("Growing an ensemble helps language models", "Table 2, Figure 5",
          "average perplexity of `sm`, against `gens`, which starts as `sm`", ("text",), (),
          paper.growing_helps(small=False, learners=("gens",))),
    Claim("No learner has the best trade-off everywhere", "abstract B",
          "the learner with the lowest CER at three budgets of compute; agrees if every learner has a better rival at "
          "one, disagrees if one beats all others at all", _IMAGES, _FULL, paper.no_learner_is_always_best),
    Claim("Of the learners that grow, an ensemble holds the most parameters", "Figure 7",
          "parameters held by `gens` over the stream, against other growing learners", _IMAGES, _FULL,
          paper.costs_more(("gens",), ("gmoe", "ff"), MEM), True),
    Claim("A prediction of a growing ensemble costs the most compute", "Table 2",
          "multiply-adds of a prediction of `gens` at the end, against every other learner", ("mnist", "cifar", "text"),
          _FULL, paper.costs_more(("gens",), (*FIXED, "gmoe", "ff"), PREDICT), True),
    Claim("An intermediate waiting time is best for small networks", "Figure 3",
          "CER of networks up to width 8 at the better of the shortest and the longest waiting time, against the best "
          "one between", _IMAGES, _FULL, paper.waiting_helps("small")),
    Claim("An intermediate waiting time is best for large networks", "abstract A, which names no size; "
          "in Figure 3 only small ones gain",
          "the same of networks from width 32 on", _IMAGES, _FULL, paper.waiting_helps("large")),
    Claim("An intermediate waiting time helps large networks less than small ones", "Figure 3, on MNIST",
          "the gain of claim 15, against that of claim 16",
          _IMAGES, _FULL, paper.waiting_helps("difference")),
    Claim("The shortest waiting time ends with a higher error", "appendix C.1; Figure 7, bottom",
          "final error at the shortest waiting time, against longer ones", _IMAGES, _FULL,
          paper.short_waits_end_worse(difference=False)),
    Claim("The shortest waiting time raises the final error most for small networks",
          "appendix C.1; Figure 7, bottom",
          "points by which the shortest waiting time raises the final error over longer ones: up to width 8, "
          "against width 32 and more", _IMAGES, _FULL,
          paper.short_waits_end_worse(difference=True), points=True),
    Claim("Large networks after a tenth of the stream beat small ones at its end", "§6.1; Figure 3",
          "final error of the smallest network, against the largest one after a tenth of the stream",
          ("mnist", "cifar"), ("mnist_authors", *_FULL), paper.large_networks_lead_early),
    Claim("Replay lowers the CER", "abstract B; Figures 4 and 8", "CER without replay, against replay",
          _REPLAY, _FULL, paper.replay_lowers_the_score),
    Claim("Replay has the lowest CER of all", "abstract B",
          "CER of the best learner without replay, against the best one with it, at any waiting time", _REPLAY, _FULL,
          paper.replay_is_best, of_all=True),
    Claim("Replay takes 5 to 10 times the compute", "abstract B; appendix E: 4.5 times for CIFAR-10 (Figure 1) at w "
          "= 10, [122.5 times](#how-the-verdicts-are-made) at w = 1",
          "multiply-adds of fixed learners with replay, against none",
          _REPLAY, _FULL, paper.replay_costs(5, 10)),
    Claim("At equal compute replay is not better", "Figures 4 and 8",
          "CER of the best learner with replay within a budget of compute, against the best one without it; agrees "
          "only if replay is worse", _REPLAY, _FULL, paper.replay_is_no_better_trade_off(same_wait=True), of_all=True),
    Claim("Training on all data at once is better than on one mega-batch after the other", "Table 1",
          "perplexity after k mega-batches one by one, against all k at once, with as many steps", ("text",),
          (), paper.all_at_once_is_better),
    Claim("UMix beats Ens for small networks", "§6.1",
          "CER of `ens` up to width 8, against `umix`", _UNSTOPPED, _FULL, paper.mixed_or_apart(small=True)),
    Claim("Ens beats UMix for large networks", "§6.1",
          "CER of `umix` from width 32 on, against `ens`", _UNSTOPPED, _FULL, paper.mixed_or_apart(small=False)),
    Claim("At equal compute an ensemble beats a single network", "conclusions; §7.2",
          "CER of the best `sm` within a budget of compute, against the best `ens`", _IMAGES, _FULL,
          paper.fixed_is_better(COMP, learners=("sm",), rivals=("ens",)), of_all=True),
    Claim("At equal compute a growing ensemble beats other growing learners", "Figure 2",
          "CER of the best `gmoe` or `ff` within a budget of compute, against the best `gens`", _IMAGES, _FULL,
          paper.fixed_is_better(COMP, learners=("gmoe", "ff"), rivals=("gens",)), of_all=True),
    Claim("At equal memory a growing ensemble loses to other growing learners", "Figure 7",
          "CER of the best `gens` within a budget of parameters, against the best `gmoe` or `ff`", _IMAGES, _FULL,
          paper.fixed_is_better(MEM, learners=("gens",), rivals=("gmoe", "ff")), of_all=True),
    Claim("Replay helps a growing ensemble least", "appendix C.2",
          "gain in CER from replay of another learner, against the gain of `gens`", ("mnist_replay", "replay"), (),
          paper.replay_helps_less),
    Claim("Training once, at the end, gives the lowest final error", "abstract A; Figure 7, bottom",
          "final error of a fixed learner at its best shorter waiting time, against a single training on all data at "
          "the end", _UNSTOPPED, _FULL, paper.waiting_for_all_ends_lowest),
    Claim("A large language model after the first mega-batch beats a small one after the last", "Table 2",
          "final perplexity of the smallest mixture, against the perplexity of the largest one after the first "
          "mega-batch", ("text",), (),
          paper.large_after_one_beats_small),
    Claim("At equal compute a single language model beats an ensemble", "Table 2",
          "average perplexity of the best `ens` within a budget of compute, against the best `sm`, at any waiting time",
          ("text",), (),
          paper.fixed_is_better(COMP, same_wait=False, learners=("ens",), rivals=("sm",))),
    Claim("A growing mixture holds fewer parameters than a growing ensemble", "Table 2",
          "parameters held by `gens` over the stream, against `gmoe`", ("text",), (),
          paper.costs_more(("gens",), ("gmoe",), MEM), True),
    Claim("A mixture with a constant, intermediate number of experts beats one that grows", "Table 2",
          "average perplexity of `gmoe`, from 4 to 12 experts at w = 1, against `sm` with 8", ("text",), (),
          functools.partial(paper.final_size_is_better, between=True)),
    Claim("With replay, the shortest waiting time has the lowest CER", "appendix C.2",
          "CER with replay at the best longer waiting time, against the shortest one", ("replay",), (),
          paper.replay_ends_waiting),
]
# What the paper asks, or chooses, without an answer of its own; the numbers go on.
QUESTIONS = [
    Claim("A mixture of experts that has its last size from the beginning beats one that grows", "Table 2",
          "average perplexity of `gmoe`, from 4 to 12 experts at w = 1, against `sm` with 12", ("text",),
          (), paper.final_size_is_better),
    Claim("At equal memory an ensemble beats a larger mixture of experts", "Table 2",
          "average perplexity of the best `sm` within a budget of parameters, against the best `ens`",
          ("text",), (), paper.ensembles_beat_mixtures),
    Claim("At equal compute a fixed network beats a mixture of experts or a network that grows", "Figure 2",
          "claim 6 with `gmoe` and `ff` as the only growing learners", _IMAGES, _FULL,
          paper.fixed_is_better(COMP, learners=("gmoe", "ff")), of_all=True),
    Claim("At equal compute a fixed network beats a growing one, each at its best waiting time", "Figure 2",
          "claim 6 at any waiting time", _IMAGES, _FULL, paper.fixed_is_better(COMP, same_wait=False), of_all=True),
    Claim("At equal compute replay is not better, each at its best waiting time", "Figures 4 and 8",
          "claim 24 at any waiting time", _REPLAY, _FULL,
          paper.replay_is_no_better_trade_off(same_wait=False), of_all=True),
    Claim("Growing more often lowers the CER", "abstract, a question",
          "CER at an interval between growths, against the next shorter one", ("mnist_replay",), (),
          paper.ordered(GROW, GROWING, descending=True)),
    Claim("Growing by more at a time lowers the CER", "abstract, a question",
          "CER of `ff` at a growth rate, against the next higher one", ("mnist_replay",), (),
          paper.ordered(RATE, GROWING)),
    Claim("Soft gates have a lower CER than hard ones", "the authors' choice",
          "CER of a mixture with hard gates, against soft ones", ("mnist_replay",), (),
          paper.ordered(GATING, ("gmoe", "moe"))),
    Claim("Training from the parameters of the stage before has a lower CER than from scratch", "the authors' choice",
          "CER with replay from scratch, against from the stage before",
          ("mnist_replay",), (), paper.ordered(SCRATCH, FIXED, descending=True, with_replay=True)),  # on the same data
    Claim("Learners that wait end with a lower perplexity", "abstract, a question; Table 2",
          "final perplexity at w = 1, against longer waiting times", ("text",), (), paper.waiting_ends_lower),
]
