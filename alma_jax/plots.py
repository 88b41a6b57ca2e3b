"""Pictures of a run."""
import matplotlib

COLOUR = "#0072B2"  # blue of the Okabe-Ito palette, safe for colour-blind readers


def error_curve(lines, title, path, chance):
  """Error over the stream, as the paper's Figure 1; the area below it is the CER.

  Args:
    lines: entries of metrics.jsonl.
    title: above the picture.
    path: of the PNG.
    chance: error of guessing, drawn as a dotted line.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.ticker import MaxNLocator

  with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    # One bar of width 1 around every t: their area is the CER.
    edges = [entry["t"] - 0.5 for entry in lines] + [lines[-1]["t"] + 0.5]
    errors = [entry["error"] for entry in lines]
    axes.stairs(errors, edges, color=COLOUR, linewidth=2, baseline=None)
    axes.stairs(errors, edges, color=COLOUR, alpha=0.12, fill=True)
    updates = [(entry["t"], entry["error"]) for entry in lines if entry["updated"]]
    if len(updates) <= 60:
      axes.plot(*zip(*updates), "o", color=COLOUR, markersize=4, label="after an update")
    axes.axhline(chance, color="0.5", linestyle=":", linewidth=1, label="guessing")
    axes.annotate(f"{errors[-1]:.4f}", (edges[-1], errors[-1]), xytext=(5, 0), textcoords="offset points",
                  va="center", color=COLOUR, annotation_clip=False)
    axes.set(xlabel="mega-batches seen", ylabel="test error", xlim=(edges[0], edges[-1]),
             ylim=(0, max(chance, *errors) * 1.08))
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=150, metadata={"Software": None})
