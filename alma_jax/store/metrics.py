"""From the lines of metrics.jsonl to the paper's metrics (docs/algorithms.md §1)."""
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:  # it imports jax, which `alma status`, `compare`, `board` and `report` do without
  from alma_jax.types import Cost

Entry = dict[str, Any]

UNTRAINED = "untrained_error"  # e_0, in the first line
DRIFT_BEFORE, DRIFT_AFTER = "drift_before", "drift_after"  # in the line of a drift alarm
DEVIATION = "prequential_deviation"  # of the losses of windows of text, if drift is watched
RENORMALIZED = "renormalized"  # columns or channels that got new normalisation constants
WEIGHTS, SPAN = "memory_weights", "memory_span"  # what a training replayed, and the mega-batches of a weight
ACCURACIES = "accuracies"  # R[t, 1..t], in the line of task t of a stream of tasks


class Measure(NamedTuple):
  """What the metric of a run is measured on. Everything that shows a metric asks here for its name and its values.

  Attributes:
    metric: error or perplexity.
    is_prequential: whether it is measured on every mega-batch before the learner uses it, because a live stream has no
      test set. Otherwise it is measured on a test set.
  """
  metric: str
  is_prequential: bool = False

  @property
  def key(self) -> str:
    """The entry of metrics.jsonl with the measured value; it is None if nothing was measured."""
    return f"prequential_{self.metric}" if self.is_prequential else self.metric

  @property
  def name(self) -> str:
    """E.g. "test error" or "prequential error"."""
    return f"{'prequential' if self.is_prequential else 'test'} {self.metric}"

  def values(self, lines: Sequence[Entry]) -> list[float]:
    """What was measured, in the order of the lines."""
    return [line[self.key] for line in lines if line.get(self.key) is not None]

  def named(self, result: str) -> str:
    """The name of a result of the whole stream, e.g. "CER" or "prequential CER"."""
    return f"prequential {result}" if self.is_prequential else result

  def logged(self, entry: Entry) -> Entry:
    """A line of metrics.jsonl, without the metric if it only repeats the prequential one or stands in for it."""
    return {key: value for key, value in entry.items() if key != self.metric} if self.is_prequential else entry


ERROR = Measure("error")


def metric_of(lines: Sequence[Entry]) -> str:
  """Name of the metric of a run with these lines of metrics.jsonl, error or perplexity."""
  return "perplexity" if lines and "perplexity" in lines[0] else "error"


def measure(metric: str, lines: Sequence[Entry]) -> Measure:
  """The Measure of a run with these lines of metrics.jsonl.

  Without a test set, trainings have no test loss, and mega-batches have a prequential metric.
  """
  return Measure(metric, any(line.get("updated") and line.get("loss", 0.0) is None and f"prequential_{metric}" in line
                             for line in lines))


def line(metric: str, t: int, stage: int | None, updated: bool, value: float | None, val_value: float | None,
         loss: float | None, num_params: int, fwd_macs: int = 0, train_flops: int = 0, growth_macs: int = 0,
         seconds: float = 0.0, predict_macs: int = 0) -> Entry:
  """The entry of a mega-batch.

  Args:
    metric: name of the task's metric, error or perplexity.
    t: number of the mega-batch, from 1.
    stage: the last stage that was trained, from 0; None before the first.
    updated: whether the learner was trained at this t.
    value: the task's metric, see Measure; None if there is none yet.
    val_value: of the selected members on the stage's validation data.
    loss: mean test loss in nats.
    num_params: trainable parameters held.
    fwd_macs: multiply-adds of forward passes in training and growing, spent at this t.
    train_flops: floating-point operations of all passes, likewise.
    growth_macs: the part of `fwd_macs` that growing took.
    seconds: seconds that this t took.
    predict_macs: multiply-adds of the prediction of one example (text: of one window).
  """
  return {"t": t, "stage": stage, "updated": updated, metric: value, f"val_{metric}": val_value, "loss": loss,
          "num_params": num_params, "fwd_macs": fwd_macs, "train_flops": train_flops, "growth_macs": growth_macs,
          "seconds": seconds, "predict_macs": predict_macs}


def waiting(metric: str, t: int, previous: Entry | None, untrained: float | None, cost: "Cost") -> Entry:
  """The entry of a mega-batch after which the learner is not trained: the last error counts again.

  Args:
    metric: name of the task's metric.
    t: number of the mega-batch, from 1.
    previous: entry of t - 1, or None.
    untrained: the metric before the first update, or None.
    cost: what the learner that waits costs.
  """
  stage, value, val_value, loss = (None, untrained, None, None) if previous is None else (
      previous[key] for key in ("stage", metric, f"val_{metric}", "loss"))
  return line(metric, t, stage, False, value, val_value, loss, cost.num_params, predict_macs=cost.predict_macs)


def ends(lines: list[Entry]) -> tuple[int, ...]:
  """The mega-batches after which the learner was trained, counted from 1."""
  return tuple(entry["t"] for entry in lines if entry["updated"])


def summarize(lines: list[Entry], initial_params: int) -> Entry:
  """CER (or average perplexity), Mem and Comp of a whole stream.

  Args:
    lines: one dict per mega-batch, t = 1..B in order.
    initial_params: |θ_0|, the untrained learner, which Mem counts too.

  Returns:
    Dict of cer = Σ_{t=1}^{B} e_t, mean_error = cer / B, final_error = e_B and
    cer_from_zero = Σ_{t=0}^{B} e_t (the paper's first version; a stream
    without a test set lacks it), or of average_perplexity, the mean over the
    stages' perplexities, and final_perplexity; cumulative_params =
    Σ_{t=0}^{B} |θ_t|, num_megabatches = B, cumulative_fwd_macs, cumulative_train_flops and
    cumulative_growth_macs = Σ_t, num_stages. Without a test set, errors and perplexities are
    prequential, `measured` names the metric, and means are over the mega-batches that were predicted by a trained
    learner; in `cer` those before the first training count as guesses.
  """
  found = measure(metric_of(lines), lines)
  values = found.values(lines) if found.is_prequential else []
  if "error" in lines[0]:
    errors = [entry["error"] for entry in lines]
    values = values or errors
    judged = dict(cer=sum(errors), mean_error=sum(values) / len(values), final_error=errors[-1])
    if UNTRAINED in lines[0]:
      judged["cer_from_zero"] = lines[0][UNTRAINED] + judged["cer"]
  else:
    values = values or [entry["perplexity"] for entry in lines if entry["updated"] and entry["perplexity"] is not None]
    if not values:  # without a test set the first stage has none
      values = [entry["val_perplexity"] for entry in lines if entry["updated"]]
    judged = dict(average_perplexity=sum(values) / len(values), final_perplexity=values[-1])
  if found.is_prequential:
    judged["measured"] = found.name
  return dict(
      **judged,
      num_megabatches=len(lines),
      cumulative_params=initial_params + sum(entry["num_params"] for entry in lines),
      cumulative_fwd_macs=sum(entry["fwd_macs"] for entry in lines),
      cumulative_train_flops=sum(entry["train_flops"] for entry in lines),
      cumulative_growth_macs=sum(entry["growth_macs"] for entry in lines),
      num_stages=sum(entry["updated"] for entry in lines))
