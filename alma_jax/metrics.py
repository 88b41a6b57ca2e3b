"""From the lines of metrics.jsonl to the paper's metrics (docs/algorithms.md §1)."""


def line(metric, t, stage, updated, value, val_value, loss, num_params, fwd_macs=0, train_flops=0, growth_macs=0,
         seconds=0.0):
  """One mega-batch t = 1..B, as metrics.jsonl holds it; fwd_macs includes growth_macs.

  Args:
    metric: name of the task's metric, error or perplexity.
    value, val_value: of it, on test and on validation data.
    others: as in the line.
  """
  return {"t": t, "stage": stage, "updated": updated, metric: value, f"val_{metric}": val_value, "loss": loss,
          "num_params": num_params, "fwd_macs": fwd_macs, "train_flops": train_flops, "growth_macs": growth_macs,
          "seconds": seconds}


def waiting(metric, t, previous, untrained, num_params):
  """The line of a mega-batch that is only collected: the last error stands.

  Args:
    metric: as in `line`.
    t: its number, from 1.
    previous: the line of t-1, or None.
    untrained: the metric before the first update, or None.
    num_params: parameters of the learner that waits.
  """
  if previous is None:
    return line(metric, t, None, False, untrained, None, None, num_params)
  return line(metric, t, previous["stage"], False, previous[metric], previous[f"val_{metric}"], previous["loss"],
              num_params)


def summarize(lines, initial_params):
  """CER (or average perplexity), Mem and Comp of a whole stream.

  Args:
    lines: one dict per mega-batch, t = 1..B in order.
    initial_params: |θ_0|, the untrained learner, which Mem counts too.

  Returns:
    Dict of cer = Σ_{t=1}^{B} e_t, mean_error = cer / B, final_error = e_B, or
    of average_perplexity, the mean over the stages' test perplexities, and
    final_perplexity; cumulative_params = Σ_{t=0}^{B} |θ_t|, cumulative_fwd_macs,
    cumulative_train_flops and cumulative_growth_macs = Σ_t, num_stages.
  """
  if "error" in lines[0]:
    cer = sum(entry["error"] for entry in lines)
    judged = dict(cer=cer, mean_error=cer / len(lines), final_error=lines[-1]["error"])
  else:
    perplexities = [entry["perplexity"] for entry in lines if entry["updated"]]
    judged = dict(average_perplexity=sum(perplexities) / len(perplexities), final_perplexity=perplexities[-1])
  return dict(
      **judged,
      cumulative_params=initial_params + sum(entry["num_params"] for entry in lines),
      cumulative_fwd_macs=sum(entry["fwd_macs"] for entry in lines),
      cumulative_train_flops=sum(entry["train_flops"] for entry in lines),
      cumulative_growth_macs=sum(entry["growth_macs"] for entry in lines),
      num_stages=sum(entry["updated"] for entry in lines))
