"""The model card of a predictor: predictor.json as a page for people. Imports no jax."""
from collections.abc import Mapping
from typing import Any

_MOST_CLASSES = 100  # names of classes that a card lists


def text(facts: Mapping[str, Any]) -> str:
  """Markdown of a model card (Mitchell et al., 2019); `facts` are the entries of predictor.json."""
  measured, source, metric, task = facts["metrics"], facts["provenance"], facts["metric"], facts.get("task")
  rows = {
      f"{metric} on the run's test set": measured.get(metric), "test loss, nats": measured.get("loss"),
      f"{metric} on the {'task' if task else 'stage'}'s validation data": measured.get(f"val_{metric}"),
      f"prequential {metric}, the mean over {measured['prequential_megabatches']} mega-batches":
          measured["prequential"]}
  description = facts["description"].splitlines()[0]
  if task:
    title, trained = f"task {task['number']}", f"for task {task['number']} of {task['of']}, {task['name']!r}"
  else:
    title, trained = f"stage {facts['stage']}", (f"trained until mega-batch {facts['megabatch']} of "
                                                 f"{source['num_megabatches'] or 'a stream without an end'}")
  lines = [
      f"# {facts['learner']} on {source['dataset']}, {title}", "", f"{description}, {trained}.", "",
      "## Input and output", "", f"- input: {facts['input']}", f"- output: {facts['output']}"]
  if "normalization" in facts:
    lines.append("- normalisation: (x - mean) / std, inside the program, where a std of 0 counts as 1; the constants "
                 "stand in predictor.json")
  if "classes" in facts:
    names = facts.get("class_names") or []
    shown = f": {', '.join(names)}" if 0 < len(names) <= _MOST_CLASSES else ""
    lines.append(f"- {facts['classes']} classes{shown}")
  lines += ["", "## Metrics", "", "| metric | value |", "| --- | ---: |",
            *(f"| {name} | {value:.6g} |" for name, value in rows.items() if value is not None)]
  lines += ["", "## Cost", "", "| | |", "| --- | ---: |",
            *(f"| {name} | {value:,} |" for name, value in (
                ("parameters", measured.get("num_params")),
                ("multiply-adds of a prediction", measured.get("predict_macs"))) if value is not None)]
  lines += ["", "## Provenance", "", "| | |", "| --- | --- |",
            *(f"| {name} | {value} |" for name, value in source.items() if value is not None)]
  return "\n".join([*lines, ""])
