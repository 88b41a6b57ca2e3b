"""Language modelling: windows of tokens, their log-probabilities, perplexity (docs/algorithms.md §5)."""
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from alma_jax.config import schema
from alma_jax.data import memory, text, tokens
from alma_jax.data.megabatches import Megabatches
from alma_jax.models.switch import Windows
from alma_jax.parallel import sharding
from alma_jax.parallel.sharding import DATA
from alma_jax.problems import contract, measures
from alma_jax.types import Array, Key, Variables

Arrays = Mapping[str, Any]  # a contribution: arrays [B, ...] of jax or of numpy by name

_EVAL_TOKENS = 8192  # tokens of an evaluation batch, unless a window is longer


class Pool(NamedTuple):
  """Windows on the device.

  Attributes:
    tokens: int32 [N, L + 1]; the first L are inputs, the last L are targets.
    length: int32 [N], number of targets that count, from the first.
  """
  tokens: Array
  length: Array


class HostPool(NamedTuple):
  """Windows of token ids on the host, memory-mapped from a file.

  Attributes:
    ids: uint16 or int32 [num_tokens].
    windows: text.Windows [N].
  """
  ids: np.ndarray
  windows: text.Windows


class Contexts(NamedTuple):
  """Inputs for predictions of what follows each token.

  Attributes:
    tokens: int32 [B, L].
  """
  tokens: Array


class Ends(NamedTuple):
  """Inputs for predictions of what follows one token of each window.

  Attributes:
    tokens: int32 [B, L].
    position: int32 [], position of that token.
  """
  tokens: Array
  position: Array


class Sums(NamedTuple):
  """Sums over the targets that count, which are divided by their number once, at the end.

  Attributes:
    loss: float32, negative log-likelihood in nats.
    tokens: int32, number of the targets.
    load: int32 [I, E], tokens by their most probable expert, for each of I mixture layers.
    dropped: int32 [I], tokens whose expert had no capacity left.
  """
  loss: Array
  tokens: Array
  load: Array
  dropped: Array


@dataclasses.dataclass(frozen=True)
class LanguageModeling(contract.Problem):
  """The problem of predicting the next token.

  Attributes:
    vocab_size: V.
    sequence_length: L.
    group_size: number of tokens of a routing group, a divisor or a multiple of L.
    balance: weight of the load-balancing loss.
    draws: whether training draws random numbers, for dropout or jitter.
  """
  vocab_size: int
  sequence_length: int
  group_size: int
  balance: float
  draws: bool

  metric, decimals, files = "perplexity", 1, ("tokenizer.json",)
  selects, in_epochs, max_steps = False, False, 8

  @property
  def group(self) -> int:
    """Number of windows that are routed together."""
    return max(1, self.group_size // self.sequence_length)

  @property
  def eval_batch(self) -> int:
    """Number of windows of an evaluation batch."""
    return max(1, _EVAL_TOKENS // self.sequence_length)

  @property
  def num_outputs(self) -> int:
    """V, the number of logits of a token."""
    return self.vocab_size

  def interface(self, meta: Mapping[str, Any], votes: bool) -> contract.Interface:
    """Windows of tokens -> log-probabilities of what follows each token."""
    del votes
    length = self.sequence_length
    facts = dict(
        input=f"tokens int32 [batch, {length}], as tokenizer.json encodes text, beginning with {meta['end']} (the end "
              "of a document); the output at a position does not depend on later tokens",
        output=f"log-probabilities float32 [batch, {length}, vocabulary] of what follows each token",
        vocabulary=meta["vocab_size"], end=meta["end"], sequence_length=length)
    return contract.Interface(facts, jax.ShapeDtypeStruct((length,), jnp.int32), Contexts,
                              lambda prediction: (prediction,))

  def batch_bytes(self, num: int, num_devices: int) -> tuple[int, int]:
    """Of windows as they are indexed, int64, and loaded, int32. Every device may get all of them."""
    del num_devices
    num_tokens = num * (self.sequence_length + 1)
    return 8 * num_tokens, 4 * num_tokens

  @property
  def guessing_loss(self) -> float:
    """Loss of guessing a token in nats."""
    return math.log(self.vocab_size)

  def load(self, pool: HostPool, index: np.ndarray) -> tuple[Pool, np.ndarray]:
    """(Pool of the windows `index` as numpy arrays, indices into it)."""
    flat = index.reshape(-1)
    loaded: Any = text.gather(pool.ids, pool.windows.start[flat], self.sequence_length), pool.windows.length[flat]
    return Pool(*loaded), np.arange(index.size, dtype=np.int32).reshape(index.shape)

  def take(self, pool: Pool, index_B: Array, weight_B: Array | None = None) -> Pool:
    """Weights are not supported."""
    del weight_B
    return Pool(pool.tokens[index_B], pool.length[index_B])

  def inputs(self, pool: Pool, batch: Pool) -> Windows:
    del pool
    return Windows(batch.tokens, batch.length)

  def train_inputs(self, pool: Pool, batch: Pool, key: Key, offset: Array, total: int) -> Windows:
    """What a network reads in training. Window i of the whole batch has key i, whichever device holds it."""
    del pool, total
    if not self.draws:
      return Windows(batch.tokens, batch.length)
    place = offset + jnp.arange(batch.length.shape[0])
    keys = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i)))(place)
    return Windows(batch.tokens, batch.length, keys)

  def zeros(self, network: Any) -> Sums:
    num, module = network.module.num_layers // 2, network.module
    return Sums(jnp.float32(0), jnp.int32(0), jnp.zeros((num, module.num_experts), jnp.int32),
                jnp.zeros(num, jnp.int32))

  def sums(self, output: Any, batch: Pool, mask_B: Array) -> Sums:
    """Sums over the targets that count in the windows of `mask_B`; `output` is a network's for the batch."""
    return Sums(output.loss, jnp.where(mask_B, batch.length, 0).sum(), output.load, output.dropped)

  def norm(self, batch: Pool, mask_B: Array, count: Array) -> tuple[Array, Array]:
    """(number of targets that count, number of groups that have any) of the batch on all devices."""
    del count
    length_B = jnp.where(mask_B, batch.length, 0)
    groups = -(-length_B.reshape(-1, self.group).max(1) // self.group_size)
    return sharding.psum((length_B.sum(), groups.sum()), DATA)

  def objective(self, output: Any, batch: Pool, mask_B: Array, sums: Sums, norm: tuple[Array, Array]) -> Array:
    """Mean loss of a token in nats, and `balance` times the mean load-balancing loss of a group."""
    del batch, mask_B
    tokens, groups = norm
    return sums.loss / tokens + self.balance * output.balance / groups

  def report(self, sums: Sums, own_M: np.ndarray, num_M: np.ndarray) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Loss in nats per token and perplexity.

    The joint perplexity is exp of the members' mean loss. The joint numbers include two lists: `load`, the share [I][E]
    of the tokens that choose each expert, and `dropped`, the share [I] of tokens whose expert had no capacity left.
    """
    del own_M, num_M
    losses = np.asarray(sums.loss) / np.maximum(sums.tokens, 1).astype(np.float64)
    loss, tokens = float(losses.mean()), max(int(sums.tokens.sum(dtype=np.int64)), 1)
    share = lambda counts: (counts.sum(0, dtype=np.int64) / tokens).tolist()
    joint = dict(loss=loss, perplexity=_perplexity(loss), load=share(sums.load), dropped=share(sums.dropped))
    return joint, dict(loss=losses, perplexity=np.array([_perplexity(x) for x in losses]))

  def contribution(self, network: Any, member: Variables, inputs: Windows | Contexts | Ends, combine: str
                   ) -> dict[str, Array]:
    """One network's part of a joint prediction.

    Args:
      network: models.switch.SwitchNetwork.
      member: its Variables.
      inputs: decide what is predicted: the targets of Windows, what follows each token of Contexts, or what follows
        one token of Ends.
      combine: not used; probabilities are averaged.

    Returns:
      {"log_sum": float32 log-probabilities}, [B, L] for Windows, [B, L, V] for Contexts, [B, V] for Ends.
    """
    del combine
    if isinstance(inputs, Ends):
      logits = network.logits_at(member, inputs.tokens, inputs.position)
    elif isinstance(inputs, Contexts):
      logits = network.logits(member, inputs.tokens)
    else:
      mask = jnp.ones(inputs.tokens.shape[0], bool)
      return {"log_sum": network.apply(member, inputs, mask, train=False)[0].log_probs}
    return {"log_sum": jax.nn.log_softmax(logits)}

  def merge(self, stacked: Arrays) -> dict[str, Array]:
    """The joint contribution of stacked members: arrays [M, B, ...] -> [B, ...]."""
    return {"log_sum": jax.nn.logsumexp(stacked["log_sum"], axis=0)}

  def join(self, first: Arrays | None, second: Arrays) -> dict[str, Any]:
    """The joint contribution of two, whose probabilities are added. None stands for no networks."""
    if first is None:
      return dict(second)
    xp: Any = np if isinstance(second["log_sum"], np.ndarray) else jnp
    return {"log_sum": xp.logaddexp(first["log_sum"], second["log_sum"])}

  def resolve(self, joined: Arrays, count: float, combine: str) -> Any:
    """Logarithm of the mean probabilities of `count` networks (docs/algorithms.md §5); traceable."""
    del combine
    return joined["log_sum"] - np.float32(np.log(count))


class Texts(contract.Source):
  """The texts of a run.

  Attributes:
    corpus: text.Corpus.
    untrained: None, since no perplexity is given before the first update.
  """

  def __init__(self, config: schema.TextConfig):
    """Loads the data set that `config.dataset` names, and cuts it into windows and the stream.

    Raises:
      BadInput: the text does not exist, or is too short.
    """
    c, num = config.dataset, config.stream.num_megabatches
    self._measure(config)
    held_out = self._use(config, text.load(c, num, config.seed))
    parts = [text.megabatch_windows(self.corpus, t, c.sequence_length, c.cross_documents) for t in range(1, num + 1)]
    self._train = text.Windows(*map(np.concatenate, zip(*parts)))
    self.megabatches = Megabatches(
        np.cumsum([0, *(len(part.start) for part in parts)]), held_out=held_out)
    self.memory = memory.make(config.stream, self.megabatches, config.seed)

  def _measure(self, config: schema.TextConfig) -> None:
    """Chooses what is measured."""
    self._metrics, self._watches = measures.tried(measures.chosen(config), measures.blank_text), config.log.drift > 0

  def _use(self, config: schema.TextConfig, corpus: text.Corpus) -> np.ndarray:
    """Makes the problem of a text, and cuts what is held out into windows; the numbers of those for validation, int32.
    """
    c = config.dataset
    self.corpus, self.fingerprint, self.files = corpus, corpus.fingerprint, {"tokenizer.json": corpus.tokenizer}
    self.has_test = "test" in corpus.splits
    self._held_out: dict[str, text.Windows] = {
        split: text.split_windows(corpus, split, c.sequence_length, c.cross_documents, c.eval_tokens)
        for split in ("valid", "test") if split in corpus.splits}
    self._most_tested = -(-c.eval_tokens // c.sequence_length)
    self.problem, self.example_shape = self.of_meta(config, self.meta())
    return np.arange(len(self._held_out["valid"].start), dtype=np.int32)

  @property
  def num_bytes(self) -> tuple[int, int]:
    """Of the validation windows, int32."""
    num = 4 * len(self._held_out["valid"].start) * self.example_shape[0]
    return num, num

  @staticmethod
  def of_meta(config: Any, meta: Mapping[str, Any]) -> tuple[LanguageModeling, tuple[int, ...]]:
    """(LanguageModeling, shape of a window) from what `meta` returned."""
    length, model = config.dataset.sequence_length, config.model
    draws = bool(max(model.dropout) or model.jitter)
    problem = LanguageModeling(meta["vocab_size"], length, model.group_size or length, model.balance, draws)
    return problem, (length + 1,)

  def meta(self, ends: Sequence[int] = ()) -> dict[str, Any]:
    """What `of_meta` and sampling need."""
    return dict(vocab_size=self.corpus.vocab_size, end=self.corpus.end)

  def load(self, data: memory.StageData, mesh: Mesh) -> memory.StageData:
    """The data with its pools: the training windows, which stay on the host, and the validation windows."""
    return data._replace(pool=self._pool_on_host, val_pool=self._pool("valid", mesh))

  def select(self, examples: np.ndarray, mesh: Mesh) -> tuple[HostPool, np.ndarray]:
    """(the pool of all training windows, which stays on the host; the examples)."""
    del mesh
    return self._pool_on_host, examples

  def test_pool(self, mesh: Mesh, t: int = 1) -> Pool:
    """The test windows."""
    return self._pool("test", mesh)

  def score(self, prediction: np.ndarray, t: int = 1) -> measures.Entry:
    """Perplexity, loss in nats per token and the chosen metrics of log-probabilities [N, L] of the test text."""
    windows = self._held_out["test"]
    perplexity, loss = score_windows(prediction, windows.length)
    ids = lambda rows: text.gather(self.corpus.splits["test"].ids, windows.start[rows], self.problem.sequence_length)
    return self._measured(prediction, windows.length, ids) | dict(perplexity=perplexity, loss=loss)

  def tested(self, t: int) -> np.ndarray:
    """Windows of mega-batch t, evenly spread; so many that they have about `dataset.eval_tokens` tokens."""
    windows, most = self.megabatches.part(t)[0], self._most_tested
    return windows[np.linspace(0, len(windows) - 1, min(most, len(windows))).astype(int)] if most else windows

  def score_training(self, prediction: np.ndarray, which: np.ndarray) -> measures.Entry:
    """The prequential perplexity and chosen metrics of log-probabilities [N, L] of the windows `which`.

    If drift is watched, also `deviation_of_windows`.
    """
    length, ids = self._windows(which)
    entry = self._measured(prediction, length, ids) | dict(perplexity=score_windows(prediction, length)[0])
    if self._watches:
      entry["deviation"] = deviation_of_windows(prediction, length)
    return measures.prequential(entry)

  def _windows(self, which: np.ndarray) -> tuple[np.ndarray, Callable[[slice], np.ndarray]]:
    """(numbers of targets of the training windows `which`, a slice of them -> their tokens int32 [n, L + 1])."""
    start, length = self._train.start[which], self.problem.sequence_length
    return self._train.length[which], lambda rows: text.gather(self.corpus.splits["train"].ids, start[rows], length)

  def _measured(self, prediction: np.ndarray, length: np.ndarray, ids: Callable[[slice], np.ndarray]) -> measures.Entry:
    def targets(rows: slice) -> measures.Targets:
      following = ids(rows)[:, 1:]
      return measures.Targets(following, self._num_bytes[following])

    return measures.of_text(self._metrics, prediction, length, targets)

  @functools.cached_property
  def _num_bytes(self) -> np.ndarray:
    """UTF-8 bytes of each token, see tokens.num_bytes."""
    return tokens.num_bytes(tokens.parse(self.corpus.tokenizer))

  @property
  def _pool_on_host(self) -> HostPool:
    return HostPool(self.corpus.splits["train"].ids, self._train)

  @functools.cached_property
  def _pool(self) -> Callable[[str, Mesh], Pool]:
    """(split, mesh) -> the pool of a text that is held out, which is put on the devices once."""
    def pool(split: str, mesh: Mesh) -> Pool:
      windows, length = self._held_out[split], self.problem.sequence_length
      loaded: Any = text.gather(self.corpus.splits[split].ids, windows.start, length), windows.length
      return sharding.put(Pool(*loaded), mesh)
    return functools.cache(pool)


def score_windows(prediction: np.ndarray, length: np.ndarray) -> tuple[float, float]:
  """(perplexity, loss in nats per token) of log-probabilities [N, L], of which the first `length` [N] count."""
  counts = np.arange(prediction.shape[1])[None] < length[:, None]
  loss = -float(prediction[counts].sum(dtype=np.float64)) / int(length.sum())
  return _perplexity(loss), loss


def deviation_of_windows(prediction: np.ndarray, length: np.ndarray) -> float:
  """Standard deviation of the windows' losses in nats per token, weighted by their tokens; see `score_windows`."""
  counts = np.arange(prediction.shape[1])[None] < length[:, None]
  total = -np.where(counts, prediction, 0).sum(1, dtype=np.float64)
  loss, mean = total / np.maximum(length, 1), total.sum() / length.sum()
  with np.errstate(invalid="ignore"):  # of infinite losses it is NaN
    return float(np.sqrt((length * (loss - mean) ** 2).sum() / length.sum()))


def _perplexity(loss: float) -> float:
  with np.errstate(over="ignore"):  # an infinite perplexity is reported as a divergence
    return float(np.exp(loss))
