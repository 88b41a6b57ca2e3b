"""Reads checkpoints of version 0.1, and of 0.2 before its release."""
from typing import Any

import numpy as np

# Entries of a learner's state that version 0.1 stored among the static facts.
_HOST = ("scores", "scored", "grown", "growth", "alphas", "prototypes", "counts", "losses", "shares", "spread",
         "base_cost", "tuning", "chosen")


def is_complete(meta: dict[str, Any]) -> bool:
  """Whether the LearnerState in a checkpoint's meta is that of a complete stage.

  Version 0.1 did not note it. There, the candidates of a language model (learners/tuned.py) are the only trainings
  after which a stage goes on.
  """
  if "complete" in meta:
    return bool(meta["complete"])
  return not meta["spec"].get("tuning", {}).get("next")


def split(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
  """(spec, host) of a LearnerState from the `spec` of a checkpoint of version 0.1, which held both."""
  facts = {name: value for name, value in spec.items() if name not in _HOST}
  host = {name: value for name, value in spec.items() if name in _HOST}
  if "counts" in host:  # hmoe
    counts, prototypes, shares = (host.pop(name) for name in ("counts", "prototypes", "shares"))
    facts["num_experts"] = len(counts)
    if counts:
      host |= dict(prototypes=np.float64(prototypes), counts=np.int64(counts))
    if shares:
      host |= dict(train_shares=np.int32(shares[0]), val_shares=np.int32(shares[1]))
  facts = with_size(facts)
  if "tuning" in host:
    facts["tuning"] = bool(host["tuning"]["next"])
    host["tuning"] = {"diverged": [], **host["tuning"]}
    chosen = [entry if isinstance(entry, list) else [entry, []] for entry in host.get("chosen", [])]
    host["chosen"] = chosen
  return facts, host


def with_size(spec: dict[str, Any]) -> dict[str, Any]:
  """`spec` with the capacity of the mixture layers of moe and gmoe, which was the next power of two."""
  if "splits" not in spec or "size" in spec:
    return spec
  num_experts = len(next(iter(spec["splits"].values()))) + 1
  return {**spec, "size": 1 << (num_experts - 1).bit_length()}
