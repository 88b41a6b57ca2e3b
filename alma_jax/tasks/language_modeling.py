"""Language modelling: windows of tokens, their log-probabilities, perplexity (docs/algorithms.md §5)."""
import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from alma_jax import sharding
from alma_jax.data import stream as streams
from alma_jax.data import text
from alma_jax.models.switch import Windows
from alma_jax.sharding import DATA
from alma_jax.types import Array

_EVAL_TOKENS = 8192  # of an evaluation batch, about


class Pool(NamedTuple):
  """Windows on the device.

  Attributes:
    tokens: int32 [N, L + 1]; the first L are inputs, the last L targets.
    length: int32 [N], targets that count: the first so many.
  """
  tokens: Array
  length: Array


class HostPool(NamedTuple):
  """Windows of token ids that stay on the host, mapped from a file.

  Attributes:
    ids: uint16 or int32 [num_tokens].
    windows: text.Windows [N].
  """
  ids: np.ndarray
  windows: text.Windows


class Sums(NamedTuple):
  """Sums over the targets that count; divided by their number once, at the end. I mixture layers."""
  loss: Array  # float32, negative log-likelihood in nats
  tokens: Array  # int32
  load: Array  # int32 [I, E], tokens by their likeliest expert
  dropped: Array  # int32 [I], those that found it full


@dataclasses.dataclass(frozen=True)
class LanguageModeling:
  """Static facts of the task; what a task is stands in tasks/__init__.py.

  Attributes:
    vocab_size: V.
    sequence_length: L.
    group_size: tokens of a routing group: a divisor or a multiple of L.
    balance: weight of the load-balancing loss.
    draws: whether training draws dropout or jitter.
  """
  vocab_size: int
  sequence_length: int
  group_size: int
  balance: float
  draws: bool

  metric: ClassVar[str] = "perplexity"
  selects: ClassVar[bool] = False
  in_epochs: ClassVar[bool] = False
  max_rows: ClassVar[int] = 8

  @property
  def group(self):
    """Windows that are routed together."""
    return max(1, self.group_size // self.sequence_length)

  @property
  def eval_batch(self):
    """Windows of an evaluation batch."""
    return max(1, _EVAL_TOKENS // self.sequence_length)

  @property
  def num_outputs(self):
    """Of the network."""
    return self.vocab_size

  def size(self, pool):
    """Windows in a pool."""
    return pool.tokens.shape[0]

  def load(self, pool, index):
    """(Pool of the windows of `index` alone, as host arrays, index into it); `pool` is a HostPool."""
    flat = index.reshape(-1)
    loaded = Pool(text.gather(pool.ids, pool.windows.start[flat], self.sequence_length), pool.windows.length[flat])
    return loaded, np.arange(index.size, dtype=np.int32).reshape(index.shape)

  def take(self, pool, index_B, weight_B=None):
    """The windows of the pool at `index_B`."""
    del weight_B
    return Pool(pool.tokens[index_B], pool.length[index_B])

  def inputs(self, pool, batch):
    """What a network reads in evaluation."""
    del pool
    return Windows(batch.tokens, batch.length)

  def train_inputs(self, pool, batch, key, offset, total):
    """What it reads in training: window i of the whole batch has key i, whichever device it lies on."""
    del pool, total
    if not self.draws:
      return Windows(batch.tokens, batch.length)
    place = offset + jnp.arange(batch.length.shape[0])
    keys = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i)))(place)
    return Windows(batch.tokens, batch.length, keys)

  def zeros(self, network):
    """Sums of nothing."""
    num, module = network.module.num_layers // 2, network.module
    return Sums(jnp.float32(0), jnp.int32(0), jnp.zeros((num, module.num_experts), jnp.int32),
                jnp.zeros(num, jnp.int32))

  def sums(self, output, batch, mask_B):
    """A network's output, summed over the targets that count in the windows of `mask_B`."""
    return Sums(output.loss, jnp.where(mask_B, batch.length, 0).sum(), output.load, output.dropped)

  def norm(self, batch, mask_B, count):
    """What losses are divided by: targets that count, and groups with such, of the batch on all devices."""
    del count
    length_B = jnp.where(mask_B, batch.length, 0)
    groups = -(-length_B.reshape(-1, self.group).max(1) // self.group_size)
    return sharding.psum((length_B.sum(), groups.sum()), DATA)

  def objective(self, output, sums, norm):
    """Mean loss per token and mean balance loss per group, summed over parts of a batch."""
    tokens, groups = norm
    return sums.loss / tokens + self.balance * output.balance / groups

  def report(self, sums, own_M, num_M):
    """({name: number}, {name: [M]}) of loss in nats per token and perplexity.

    The joint perplexity is that of the members' mean loss; with it come
    load: shares [I][E] of the tokens, and dropped: shares [I].
    """
    del own_M, num_M
    losses = sums.loss / np.maximum(sums.tokens, 1).astype(np.float64)
    loss, tokens = float(losses.mean()), max(int(sums.tokens.sum(dtype=np.int64)), 1)
    share = lambda counts: (counts.sum(0, dtype=np.int64) / tokens).tolist()
    joint = dict(loss=loss, perplexity=_perplexity(loss), load=share(sums.load), dropped=share(sums.dropped))
    return joint, dict(loss=losses, perplexity=np.array([_perplexity(x) for x in losses]))

  def contribution(self, output, batch, combine):
    """One network's part of a joint prediction: {"log_sum": log-probabilities [B, L] of the targets}."""
    del batch, combine  # only probabilities are ever averaged
    return {"log_sum": output.log_probs}

  def merge(self, stacked):
    """Contributions of stacked members [M, B, L] as one."""
    return {"log_sum": jax.nn.logsumexp(stacked["log_sum"], axis=0)}

  def answer(self, network, member, tokens, combine):
    """One network's contribution for windows of tokens: log-probabilities [B, L, V] of what follows, traceable."""
    del combine
    return {"log_sum": jax.nn.log_softmax(network.logits(member, tokens))}

  def average(self, total, count, combine):
    """Log-probabilities under `count` networks' averaged probabilities, traceable."""
    del combine
    return total["log_sum"] - jnp.float32(np.log(count))

  def join(self, first, second):
    """Adds two contributions' probabilities; either may be None."""
    if first is None or second is None:
      return dict(first or second or {})
    return {"log_sum": np.logaddexp(first["log_sum"], second["log_sum"])}

  def resolve(self, joined, count, combine):
    """Log-probabilities [N, L] of the targets under `count` networks' averaged probabilities (§5)."""
    del combine
    return joined["log_sum"] - np.float32(np.log(count))


class Texts:
  """The texts of a run: token ids, stream of windows, and test text.

  Attributes:
    task: LanguageModeling.
    stream: data.stream.WindowStream.
    example_shape: (L + 1,).
    fingerprint: of the tokens and their tokenizer.
    corpus: text.Corpus.
    untrained, chance: None; before the first update there is no perplexity.
  """
  untrained = chance = None

  def __init__(self, config):
    """Loads and cuts `config.dataset`.

    Raises:
      BadInput: there is no such text, or it is too short.
    """
    c = config.dataset
    self.corpus = text.load(c, config.stream.num_megabatches, config.seed)
    parts = [text.megabatch_windows(self.corpus, t, c.sequence_length, c.cross_documents)
             for t in range(1, config.stream.num_megabatches + 1)]
    self._train = text.Windows(*map(np.concatenate, zip(*parts)))
    self._held_out = {split: text.split_windows(self.corpus, split, c.sequence_length, c.cross_documents,
                                                c.eval_tokens) for split in ("valid", "test")}
    bounds = np.cumsum([0, *(len(part.start) for part in parts)])
    self.stream = streams.of_windows(bounds, len(self._held_out["valid"].start), config.stream, config.seed)
    self.fingerprint = self.corpus.fingerprint
    self.task, self.example_shape = of_meta(config, self.meta())
    self.files = {"tokenizer.json": self.corpus.tokenizer}

  def meta(self):
    """What `of_meta` and sampling need, JSON-able."""
    return dict(vocab_size=self.corpus.vocab_size, end=self.corpus.end)

  def pools(self, mesh):
    """Training windows, which stay on the host, and the validation windows on the devices."""
    return HostPool(self.corpus.tokens["train"], self._train), self._pool("valid", mesh)

  def test_pool(self, mesh):
    return self._pool("test", mesh)

  def score(self, prediction):
    """(perplexity, loss) of log-probabilities [N, L] of the test text; loss in nats per token."""
    length = self._held_out["test"].length
    counts = np.arange(prediction.shape[1])[None] < length[:, None]
    loss = -float(prediction[counts].sum(dtype=np.float64)) / int(length.sum())
    return _perplexity(loss), loss

  def _pool(self, split, mesh):
    windows = self._held_out[split]
    tokens = text.gather(self.corpus.tokens[split], windows.start, self.task.sequence_length)
    return sharding.put(Pool(tokens, windows.length), mesh)


def of_meta(config, meta):
  """(LanguageModeling, shape of a window) of what `Texts.meta` has noted."""
  length, model = config.dataset.sequence_length, config.model
  draws = bool(max(model.dropout) or model.jitter)
  task = LanguageModeling(meta["vocab_size"], length, model.group_size or length, model.balance, draws)
  return task, (length + 1,)


def _perplexity(loss):
  with np.errstate(over="ignore"):  # infinite is told as divergence
    return float(np.exp(loss))
