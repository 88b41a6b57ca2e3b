"""Pictures of a run."""
import matplotlib

COLOUR = "#0072B2"  # blue of the Okabe-Ito palette, safe for colour-blind readers


def curve(lines, metric, title, path, chance=None):
  """Error or perplexity over the stream, as the paper's Figure 1; the area below the error is the CER.

  Args:
    lines: entries of metrics.jsonl.
    metric: which of their values, error or perplexity.
    title: above the picture.
    path: of the PNG.
    chance: error of guessing, drawn as a dotted line; None: there is none.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.ticker import MaxNLocator

  with matplotlib.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    # One bar of width 1 around every t: their area is the CER. None before the first update of a language model.
    total, lines = len(lines), [entry for entry in lines if entry[metric] is not None]
    edges = [entry["t"] - 0.5 for entry in lines] + [lines[-1]["t"] + 0.5]
    errors = [entry[metric] for entry in lines]
    axes.stairs(errors, edges, color=COLOUR, linewidth=2, baseline=None)
    axes.stairs(errors, edges, color=COLOUR, alpha=0.12, fill=True)
    updates = [(entry["t"], entry[metric]) for entry in lines if entry["updated"]]
    if len(updates) <= 60:
      axes.plot(*zip(*updates), "o", color=COLOUR, markersize=4, label="after an update")
    if chance is not None:
      axes.axhline(chance, color="0.5", linestyle=":", linewidth=1, label="guessing")
    last = f"{errors[-1]:.4f}" if metric == "error" else f"{errors[-1]:.1f}"
    axes.annotate(last, (edges[-1], errors[-1]), xytext=(5, 0), textcoords="offset points",
                  va="center", color=COLOUR, annotation_clip=False)
    axes.set(xlabel="mega-batches seen", ylabel=f"test {metric}", xlim=(0.5, total + 0.5),
             ylim=(0, max(chance or 0, *errors) * 1.08))
    axes.set_title(title, fontsize=11)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="best")
    figure.savefig(path, dpi=150, metadata={"Software": None})


def gate_tree(splits, axes, sizes=None):
  """Draws the binary tree of a mixture's gates: experts are its leaves.

  Args:
    splits: of a layer, as `Run.spec(stage)["splits"][layer]` tells them: the i-th is the expert that growth i split.
    axes: matplotlib Axes, emptied of ticks.
    sizes: share of each expert that its circle shows; None: all alike.
  """
  from alma_jax.models import moe
  num = len(splits) + 1
  sizes = [1 / num] * num if sizes is None else sizes
  leaves = iter(range(num))

  def draw(node, depth):
    """Draws what is below a node; returns where it stands."""
    if isinstance(node, int):
      x = next(leaves)
      axes.scatter(x, -depth, s=120 + 900 * sizes[node], color=COLOUR, zorder=2)
      axes.annotate(str(node), (x, -depth), color="white", ha="center", va="center", fontsize=8, zorder=3)
      return x
    ends = [draw(child, depth + 1) for child in node[1:]]
    x = sum(ends) / 2
    for end in ends:
      axes.plot([x, end], [-depth, -depth - 1], color="0.6", linewidth=1.2, zorder=1)
    axes.scatter(x, -depth, s=30, color="0.6", zorder=2)
    return x

  draw(moe.nested(splits), 0)
  axes.set(xticks=[], yticks=[], xlim=(-0.7, num - 0.3))
  axes.margins(y=0.15)
  axes.set_frame_on(False)
