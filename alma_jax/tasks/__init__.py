"""Tasks: what batches, losses, evaluation and selection are.

The training loop and the learners know a task by these members of its frozen
dataclass (tasks/classification.py, tasks/language_modeling.py); its arrays are
pytrees that only it looks into.

- `metric`: name of what is judged; `val_METRIC` is the same on validation data.
- `selects`: whether the best round of a stage is chosen, or its last one kept.
- `in_epochs`: whether a round is an epoch; else a stage's examples come in one
  endless order, permutation after permutation, and every batch is full.
- `group`: examples that a device must take together; 1: any.
- `max_rows`, `eval_batch`: training steps of a dispatch, examples of an
  evaluation batch, at most.
- `size`, `load`, `take`, `inputs`, `train_inputs`: from a pool of examples to
  what a network reads.
- `zeros`, `sums`, `norm`, `objective`: what a network's output adds up to, and
  what is minimised.
- `better` (of those that select), `report`: from sums to selection and to numbers for people.
- `num_outputs`: of the network.
- `contribution`, `merge`, `join`, `resolve`: predictions of several networks.
- `answer`, `average`: the same in one traceable function, for export.

Beside it stands the task's source: data, stream, pools and test set of a run.
"""
