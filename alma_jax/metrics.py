"""From the lines of metrics.jsonl to the paper's metrics (ALGORITHMS §1)."""


def line(t, stage, updated, error, val_error, loss, num_params, fwd_macs=0, train_flops=0, growth_macs=0,
         seconds=0.0):
  """One mega-batch t = 1..B, as metrics.jsonl holds it (DESIGN §3); fwd_macs includes growth_macs."""
  return dict(t=t, stage=stage, updated=updated, error=error, val_error=val_error, loss=loss, num_params=num_params,
              fwd_macs=fwd_macs, train_flops=train_flops, growth_macs=growth_macs, seconds=seconds)


def waiting(t, previous, untrained_error, num_params):
  """The line of a mega-batch that is only collected: the last error stands.

  Args:
    t: its number, from 1.
    previous: the line of t-1, or None.
    untrained_error: error before the first update.
    num_params: parameters of the learner that waits.
  """
  if previous is None:
    return line(t, None, False, untrained_error, None, None, num_params)
  return line(t, previous["stage"], False, previous["error"], previous["val_error"], previous["loss"], num_params)


def summarize(lines, initial_params):
  """CER, Mem and Comp of a whole stream.

  Args:
    lines: one dict per mega-batch, t = 1..B in order.
    initial_params: |θ_0|, the untrained learner, which Mem counts too.

  Returns:
    Dict of cer = Σ_{t=1}^{B} e_t, mean_error = cer / B, final_error = e_B,
    cumulative_params = Σ_{t=0}^{B} |θ_t|, cumulative_fwd_macs,
    cumulative_train_flops and cumulative_growth_macs = Σ_t, num_stages.
  """
  cer = sum(entry["error"] for entry in lines)
  return dict(
      cer=cer,
      mean_error=cer / len(lines),
      final_error=lines[-1]["error"],
      cumulative_params=initial_params + sum(entry["num_params"] for entry in lines),
      cumulative_fwd_macs=sum(entry["fwd_macs"] for entry in lines),
      cumulative_train_flops=sum(entry["train_flops"] for entry in lines),
      cumulative_growth_macs=sum(entry["growth_macs"] for entry in lines),
      num_stages=sum(entry["updated"] for entry in lines))
