"""Every refusal: a command that cannot be done gets one sentence, which names the field or file and says how to fix it.

A row of a table is (arguments, the field or file, words that say how to fix it); `a.b=c` stands for --config.a.b=c,
and {tmp} for a folder of the test, in which a fourth entry of the row has written the files that it needs.
"""
import re
import shlex
import shutil
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from runs import alma, blobs, interrupted, small_config, text_config
from tokenizers import Tokenizer, models

import alma_jax
from alma_jax.predictors import folder as folders
from alma_jax.runs import exporting

# ---------------------------------------------------------------- what can be written


def config_file(code):
  """Writes {tmp}/c.py, whose config is that of the digits ensemble after `code`."""
  lines = ("def get_config(arg=''):", "from alma_jax import config", "c = config.base()", code, "return c\n")
  return file("c.py", "\n  ".join(lines))


def file(name, content=""):
  def write(tmp):
    path = tmp / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
  return write


def arrays(**changes):
  """Writes {tmp}/a.npz: six examples of 4x4 floats and three classes; None leaves an array out."""
  x, y = np.zeros((6, 4, 4), np.float32), np.arange(6) % 3
  made = dict(x_train=x, y_train=y, x_test=x, y_test=y) | changes
  return lambda tmp: np.savez(tmp / "a.npz", **{name: value for name, value in made.items() if value is not None})


def images(*paths, size=(4, 4), mode="RGB"):
  """Writes two images of noise as {tmp}/PATH/0.png and 1.png."""
  def write(tmp):
    rng = np.random.default_rng(0)
    for path in paths:
      (tmp / path).mkdir(parents=True, exist_ok=True)
      for i in range(2):
        Image.fromarray(rng.integers(256, size=(*size, 3)).astype(np.uint8)).convert(mode).save(tmp / path / f"{i}.png")
  return write


def parquet(**columns):
  """Writes {tmp}/a.parquet."""
  return lambda tmp: pq.write_table(pa.table(columns), tmp / "a.parquet")


def tokenizer(**options):
  """Writes the tokenizer {tmp}/t of whole words."""
  return lambda tmp: Tokenizer(models.WordLevel(**options)).save(str(tmp / "t"))


def both(*writers):
  return lambda tmp: [write(tmp) for write in writers]


def texts(*paths, content="the cat sat on a mat. " * 40):
  return both(*(file(path, content) for path in paths))


ALL_TEXTS = texts("train/a.txt", "train/b.txt", "valid/a.txt", "test/a.txt")


def once(make):
  """Writes what `make` writes, which is made once and copied."""
  def write(tmp):
    made = tmp.parent / make.__name__
    if not made.exists():
      made.mkdir()
      make(made)
    shutil.copytree(made, tmp, dirs_exist_ok=True)
  return write


@once
def finished(tmp):
  """The finished run {tmp}/done on images of 6x6 uint8, and {tmp}/new.npz with images that it has not seen."""
  alma_jax.run(small_config(), tmp / "done", data=(*blobs(120), *blobs(30, seed=1)))
  x, y = blobs(4, seed=2)
  np.savez(tmp / "new.npz", x=x, y=y)


@once
def finished_text(tmp):
  """The finished run {tmp}/done of a language model."""
  ALL_TEXTS(tmp / "books")
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the vocabulary, for which there are too few words
    config = text_config(tmp / "books", stream__num_megabatches=1, train__steps=3, log__predictor=True)
    alma_jax.run(config, tmp / "done")


def edited(tmp):
  """Another number of epochs in the config of {tmp}/done."""
  path = tmp / "done/config.json"
  path.write_text(path.read_text().replace('"epochs": 2', '"epochs": 5'))


def damaged(tmp):
  """Exports {tmp}/done to {tmp}/out, with another bit in its program."""
  program = exporting.export(tmp / "done", out=tmp / "out") / folders.PROGRAM
  data = bytearray(program.read_bytes())
  data[len(data) // 2] ^= 1
  program.write_bytes(data)


def begun(tmp):
  """Writes the run {tmp}/begun, which was stopped before the end of its first stage."""
  assert interrupted(small_config(train__epochs=6), tmp / "begun", 2, data=(*blobs(120), *blobs(30, seed=1)))


# ---------------------------------------------------------------- alma run: fields

FIELDS = [
    ("digits:ens stream.factor=1.0 stream.schedule=geometric", "stream.factor", "above 1"),
    ("digits:ens stream.val_fraction=0", "stream.val_fraction", "above 0 and below 1"),
    ("digits:ens stream.val_fraction=1", "stream.val_fraction", "above 0 and below 1"),
    ("digits:ens learner.start=first", "learner.start", "one of last, average"),
    ("digits:ens learner.combine=mean", "learner.combine", "probabilities, logits, vote"),
    ("lm:gmoe model.gates=hard", "model.gates", "one of flat, tree"),
    ("digits:gmoe learner.gating=warm", "learner.gating", "one of soft, hard"),
    ("digits:ens train.decay=1.1", "train.decay", "between 0 and 1"),
    ("digits:ens train.label_smoothing=1", "train.label_smoothing", "at least 0 and below 1"),
    ("digits:ens train.momentum=1 train.optimizer=sgd", "train.momentum", "at least 0 and below 1"),
    ("lm:sm model.num_layers=1", "model.num_layers=1", "at least 2"),
    ("lm:sm dataset.vocab_size=256", "dataset.vocab_size=256", "at least 257"),
    ("drift:sm,relabel dataset.change_at=1", "dataset.change_at=1.0", "at least 0 and below 1"),
    ("drift:sm,relabel dataset.megabatch_size=1", "dataset.megabatch_size=1", "at least 2"),
    ("digits:ens seed=-1", "seed", "at least 0 and below 2147483648"),
    ("digits:ens stream.waiting_time=21", "stream.waiting_time=21", "exceeds stream.num_megabatches=20"),
    ("digits:ens stream.waiting_time=0", "stream.waiting_time", "at least 1"),
    ("digits:ens stream.num_megabatches=0", "stream.num_megabatches", "at least 1"),
    ("digits:ens stream.replay=1.5", "stream.replay", "between 0 and 1"),
    ("digits:ens stream.replay_share=1.0", "stream.replay_share", "at least 0 and below 1 or uniform"),
    ("digits:ens stream.replay_share=half", "stream.replay_share", "at least 0 and below 1 or uniform"),
    ("digits:ens stream.replay_share=nan", "stream.replay_share", "at least 0 and below 1 or uniform"),
    ("digits:ens stream.memory_size=-1", "stream.memory_size", "at least 0"),
    ("digits:ens stream.schedule=daily", "stream.schedule", "one of every, power, geometric, adaptive"),
    ("digits:ens stream.schedule=power stream.num_trainings=-1", "stream.num_trainings", "at least 0"),
    ("digits:ens stream.exponent=0.5 stream.schedule=power stream.num_trainings=3", "stream.exponent", "at least 1"),
    ("digits:ens stream.price=-1 stream.schedule=adaptive", "stream.price", "at least 0"),
    ("digits:ens stream.untrained_error=zero", "stream.untrained_error", "chance, model"),
    ("digits:ens learner.average=1.1", "learner.average", "between 0 and 1"),
    ("digits:ens learner.start=average", "learner.start", "needs learner.average above 0"),
    ("digits:ens learner.shrink=1.5", "learner.shrink", "between 0 and 1"),
    ("digits:ens learner.perturb=-0.1", "learner.perturb", "at least 0"),
    ("digits:ens learner.num_members=0", "learner.num_members", "at least 1"),
    ("lm:sm model.gates=tree model.num_experts=1", "model.gates=tree", "set model.num_experts=2 or more"),
    ("digits:gmoe learner.grow_every=0", "learner.grow_every", "at least 1"),
    ("digits:gmoe learner.keep_optimizer=maybe", "learner.keep_optimizer", "True or False"),
    ("digits:gmoe learner.keep_optimizer=true train.optimizer=muon", "learner.keep_optimizer=True", "set it False"),
    ("digits:bagging learner.members_per_stage=0", "learner.members_per_stage", "at least 1"),
    ("digits:ff learner.growth_rate=0", "learner.growth_rate", "above 0"),
    ("digits:hmoe learner.add_beyond=-0.5", "learner.add_beyond", "at least 0"),
    ("digits:hmoe learner.split_every=1.5", "learner.split_every", "a whole number"),
    ("digits:ens model.name=other", "model.name", "one of auto, compact, mlp, resnet, vgg"),
    ("digits:ens model.width=0", "model.width", "lets train.budget decide"),
    ("digits:ens model.num_experts=2", "model.num_experts", "for the learners gmoe, hmoe, moe, not ens; leave it 1"),
    ("digits:ens model.num_experts=1025", "model.num_experts", "between 1 and 1024"),
    ("digits:ens train.steps=-1", "train.steps", "at least 0"),
    ("digits:ens train.eval_every=-1", "train.eval_every", "at least 0"),
    ("digits:ens train.eval_every=5", "train.eval_every", "for train.steps above 0"),
    ("digits:ens train.most_passes=2", "train.most_passes=2.0", "for train.steps above 0"),
    ("digits:ens train.augment=true train.flip=true", "train.augment=True", "already moves and flips images; set it"),
    ("digits:ens train.epochs=0", "train.epochs", "at least 1"),
    ("digits:ens train.epochs=2.5", "train.epochs", "a whole number"),
    ("digits:ens train.epochs=many", "train.epochs='many'", "a whole number"),
    ("digits:ens train.batch_size=0", "train.batch_size", "lets train.budget decide"),
    ("digits:ens train.optimizer=lion", "train.optimizer", "adadelta, adam, adamw, muon, schedule_free, sgd"),
    ("digits:ens train.optimizer=schedule_free learner.average=0.5", "learner.average=0.5", "set learner.average=0"),
    ("digits:gmoe train.optimizer=schedule_free learner.keep_optimizer=true", "learner.keep_optimizer", "set it False"),
    ("digits:ens train.learning_rate=0", "train.learning_rate", "above 0"),
    ("digits:ens train.learning_rate=nan", "train.learning_rate", "a finite number"),
    ("digits:ens train.nesterov=true train.optimizer=sgd", "train.nesterov", "needs train.momentum above 0"),
    ("digits:ens train.patience=-1", "train.patience", "at least 0"),
    ("digits:ens checkpoint.keep=0", "checkpoint.keep", "at least 1"),
    ("digits:ens checkpoint.seconds=inf", "checkpoint.seconds", "a finite number"),
    ("digits:ens precision=float16", "precision", "float32, bfloat16"),
    ("digits:ens dataset.image_size=-1 dataset.name=folder:x", "dataset.image_size", "at least 0"),
    ("digits:ens dataset.image_size=32", "dataset.image_size", "dataset.name=folder:DIR, dataset.name=live:DIR"),
    ("{tmp}/c.py train.patience=0", "train.epochs=True", "a whole number", config_file("c.train.epochs = True")),
    ("{tmp}/c.py train.patience=0", "train.augment=1", "True or False", config_file("c.train.augment = 1")),
    ("{tmp}/c.py train.patience=0", "dataset.name=3", "is not one of", config_file("c.dataset.name = 3")),
    ("{tmp}/c.py seed=0", "train.epochs=1.5", "a whole number",
     config_file("import numpy\n  c.train.epochs = numpy.float64(1.5)")),
    ("digits:ens train.batch_size=1000000000", "train.batch_size=1000000000", "so lower"),
    ("digits:ens model.width=10000000", "model.width=10000000", "so lower"),
    ("tasks:select,digits train.weight_decay=()", "train.weight_decay", "an empty list"),
    ("tasks:select,digits model.name=vgg", "model.name='vgg'", "at least 32x32 pixels"),
    # Fields that do not go together.
    ("digits:sm stream.schedule=power", "stream.num_trainings=0", "from 1 to stream.num_megabatches=20"),
    ("digits:sm stream.schedule=geometric stream.num_trainings=3", "stream.num_trainings",
     "this config has stream.schedule='geometric'"),
    ("digits:sm stream.schedule=power stream.num_trainings=21", "stream.num_trainings=21",
     "from 1 to stream.num_megabatches=20"),
    ("digits:sm stream.schedule=adaptive", "stream.price=0.0", "should be above 0"),
    ("digits:sm stream.replay=0.5 stream.replay_share=0.5", "stream.replay_share=0.5", "exclude each other"),
    ("digits:sm stream.memory_size=100", "stream.memory_size=100", "needs stream.replay_share above 0"),
    ("digits:sm stream.replay_share=0.003", "stream.replay_share=0.003", "is less than one example; raise"),
    ("digits:anytime stream.replay_share=1e-310", "stream.replay_share=1e-310", "is less than one example; raise"),
    ("digits:sm stream.replay_share=uniform train.batch_size=1", "stream.replay_share=uniform", "less than one"),
    # Of 70 examples 7 are for validation; half of a batch of 128 is 64. Of text none are for validation.
    ("digits:sm stream.memory_size=70 stream.replay_share=0.5", "stream.memory_size=70",
     "keeps 63 training examples, fewer than the 64 that stream.replay_share=0.5 of train.batch_size=128 asks for"),
    ("lm:sm stream.memory_size=3 stream.replay_share=0.5", "stream.memory_size=3",
     "keeps 3 training examples, fewer than the 4"),
    ("lm:sm model.capacity_factor=0", "model.capacity_factor", "above 0"),
    ("lm:sm model.num_heads=3", "model.num_heads=3", "an even multiple"),
    ("lm:sm model.block=modern model.width=132", "model.width=132", "a multiple of 8"),
    ("lm:sm train.optimizer=sgd", "train.optimizer='sgd'", "is not one of adam, adamw, muon, schedule_free"),
    ("lm:anytime,tiny,v9", "'anytime,v9' for text", "did you mean 'anytime,v1'"),
    ("lm:sm model.dropout=0,1", "model.dropout", "between 0 and 0.99"),
    ("lm:sm model.group_size=51200", "model.group_size=51200", "exceeds the"),
    ("lm:sm model.group_size=24", "model.group_size=24", "should divide dataset.sequence_length"),
    ("lm:sm model.name=mlp", "model.name='mlp'", "is not one of switch"),
    ("lm:sm dataset.name=text:x dataset.data_dir=x", "dataset.data_dir", "a field of dataset.name=tfds:NAME"),
    ("lm:sm train.warmup_steps=9999", "train.warmup_steps=9999", "should be above"),
    ("lm:sm train.steps=100000000 train.eval_every=0", "tokens between two validations", "should be below"),
    ("lm:sm train.learning_rate=0.1,-0.1", "train.learning_rate", "above 0"),
    ("lm:sm train.learning_rate=0.1,0.1", "train.learning_rate", "lists a value twice"),
    ("lm:sm train.learning_rate=fast", "train.learning_rate", "a number, or several as in (1,2)"),
    ("lm:sm train.micro_batch=9", "train.micro_batch=9", "exceeds train.batch_size=8"),
    ("lm:sm train.epochs=3", "'train.epochs'", "the fields under 'train' are optimizer, steps"),
    ("lm:gmoe model.num_experts=2 learner.add_experts=(3,)", "learner.add_experts=(3,)", "would add 3 experts to 2"),
    ("digits:sm dataset.name=text:x", "dataset.name='text:x'", "is not one of cifar10, data, digits, drift:NAME,"),
    ("lm:boosting", "'boosting' for text", "the learners are btm, "),
    ("live:sm stream.schedule=power stream.num_trainings=2", "stream.schedule='power'", "needs stream.num_megabatches"),
    ("live:sm dataset.name=digits", "stream.num_megabatches=0", "at least 1"),
    ("digits:sm dataset.idle_seconds=3", "dataset.idle_seconds", "a field of dataset.name=live:DIR"),
    ("live:sm dataset.name=live:", "dataset.name='live:'", "should be live:DIR"),
    ("live:sm dataset.name=live:s3://b/x", "live:s3://b/x", "mount the bucket"),
    ("lm:btm train.learning_rate=0.01,0.001", "train.learning_rate=(0.01, 0.001)", "give one"),
    ("lm:btm dataset.name=live:x train.learning_rate=0.01", "dataset.name='live:x'", "use text:DIR or tfds:NAME"),
    ("lm:sm,huge", "'huge'", "its sizes are tiny, base, large"),
    ("digits:sm,paper", "'paper'", "write NAME,authors"),
    ("tasks:select,s_minus dataset.sources=fake", "dataset.sources='fake'", "one of auto, real, stand_ins"),
    ("tasks:select stream.replay=0.5", "'stream.replay'", "the fields under 'stream' are num_megabatches"),
    ("tasks:select learner.average=0.5", "'learner.average'", "the fields under 'learner' are neighbors,"),
    ("tasks:select train.num_random=3 train.learning_rate=0.1", "train.num_random=3", "list two"),
    ("tasks:mntdp model.num_experts=2", "model.num_experts=2", "leave it 1"),
    ("digits:sm learner.shrink=0", "learner.shrink=0.0", "raise one of them"),
    ("digits:hmoe learner.expert_widths=(4,5,6,7,8)", "learner.expert_widths=(4, 5, 6, 7, 8)", "leave some out"),
    ("{tmp}/c.py", "'train' is a group of fields", "its fields are epochs", config_file("c.train = 'x'")),
    ("{tmp}/c.py", "c.py", "give a file that defines get_config", file("c.py", "x = 1")),
    ("configs", "'configs'", "is not a file"),
    ("digits:sm learner.shrink=0.5 learner.init_from_scratch=true", "learner.shrink=0.5", "leave them 1 and 0"),
    ("digits:sm train.steps=100 train.eval_every=10 train.patience=9", "train.patience=9", "set train.patience=0"),
    # Fields that do not exist, or have no value.
    ("digits:ens train.epoch=3", "'train.epoch'", "are epochs, steps,"),
    ("digits:ens train.epochs.x=3", "'train.epochs.x'", "did you mean 'train.epochs'?"),
    ("digits:ens epochs=3", "'epochs'", "the fields are seed, dataset, stream, learner, model, train,"),
    ("digits:ens train=3", "'train' is a group of fields", "its fields are epochs, steps,"),
    ("digits:ens --config.log", "'log' is a group of fields", "its fields are progress, "),
    ("digits:sm learner.num_members=3", "learner.num_members", "a field of learner.name=ens, learner.name=umix"),
    ("digits learner.name=hmoe", "learner", "after the colon of --config=configs/NAME.py:LEARNER"),
    ("digits:ens --config.seed", "--config.seed", "give --config.seed=VALUE"),
    ("digits:ens --config.dataset.name --overwrite", "dataset.name=None", "is not one of"),
    # Streams that change.
    ("drift:sm,rotat", "dataset.change='rotat'", "did you mean 'rotate'?"),
    ("drift:sm,mix dataset.duration=0", "dataset.duration=0.0", "above 0"),
    ("drift:sm,rotate dataset.change_at=0.5", "dataset.change_at", "leave the field out, or change dataset.change"),
    ("drift:sm,relabel dataset.name=digits", "dataset.name='digits'", "the form of 'drift:mnist'"),
    ("drift:sm,relabel dataset.name=drift:minst", "NAME='minst'", "did you mean 'mnist'?"),
    ("drift:sm,relabel dataset.name=drift:live:x", "dataset.name='drift:live:x'", "name one, as in drift:mnist"),
    ("drift:sm,classes stream.num_megabatches=3", "dataset.phases=5", "lower it"),
    ("drift:sm,river:Foo", "dataset.name='river:Foo'", "use one of Agrawal, Hyperplane,"),
    ("drift:sm,river:SEA dataset.concepts=(0,4)", "dataset.concepts=(0, 4)", "leave some out"),
    ("{tmp}/c.py seed=0", "'train.epoch'", "are epochs, steps", config_file("c.train.unlock()\n  c.train.epoch = 3")),
]

# ---------------------------------------------------------------- alma run: other arguments

COMMAND = [
    ("digits:foo", "'foo'", "the learners are bagging, boosting, dual, ens"),
    ("none.py:sm", "none.py", "cifar, digits, "),
    ("mnits:sm", "'mnits'", "the package's configs: cifar, digits, "),
    ("README.md", "README.md", "is not a Python file"),
    ("digits:sm --nosuchflag=1", "--nosuchflag", "--help lists the options"),
    ("digits:sm --dry_run", "'--dry_run'", "fields of the config are --config.FIELD"),
    ("digits:sm extra", "'extra'", "options start with --"),
    ("digits:gmoe --config=digits:ff", "--config", "give it once"),
    ("digits:sm --peer_timeout=0", "--peer_timeout", "above 0"),
    ("digits:sm --coordinator=localhost:1", "--coordinator", "should be given together"),
    ("digits:sm --coordinator=localhost --num_processes=2 --process_id=0", "--coordinator", "should be HOST:PORT"),
    ("digits:sm --coordinator=a:b --num_processes=2 --process_id=0", "--coordinator", "a port from 1 to 65535"),
    ("digits:sm --coordinator=a:1 --num_processes=1 --process_id=3", "--process_id", "below --num_processes=1"),
    ("digits:sm --workdir=s3://", "'s3://'", "write it as s3://BUCKET/PATH"),
    ("digits:sm --workdir=/proc/nowhere", "/proc/nowhere", "cannot be made"),
    ("digits:sm --workdir={tmp}/x", "{tmp}/x", "should be a new or existing folder", file("x")),
    ("digits:sm --workdir={tmp}/x", "train.jsonl", "choose another --workdir", file("x/train.jsonl", "[1, 2]")),
    ("digits:sm --workdir={tmp}/done", "dataset.name", "choose another --workdir, or --overwrite it", finished),
    ("digits:sm devices=1000", "devices=1000", "should be at most"),
    ("{tmp}/c.py", "c.py", "is not a Python file (line 3", file("c.py", "# A title\n\nno Python\n")),
    ("{tmp}/c.py", "c.py (line 2)", "failed with NameError",
     file("c.py", "def get_config(arg=None):\n  return undefined\n")),
    ("{tmp}/c.py", "c.py", "it should return a ConfigDict", file("c.py", "def get_config(arg=None):\n  return 3\n")),
]

# ---------------------------------------------------------------- alma run: data


def npz(field, words, **changes):
  return "npz:sm dataset.name=npz:{tmp}/a.npz", field, words, arrays(**changes)


def folder(field, words, *paths):
  return "folder:sm dataset.name=folder:{tmp}", field, words, images(*paths)


def text(field, words, write, more=""):
  return f"lm:sm dataset.name=text:{{tmp}} {more}", field, words, write


def tasks(field, words, made):
  """Of a list of tasks, in whose code x and y are six images and labels, and D a task that is drawn from the digits."""
  code = ("import numpy as np", "x, y = np.zeros((6, 6, 6), np.uint8), np.arange(6) % 3",
          "D = dict(name='a', data='digits', train=5, val=3)", "def get_tasks(seed):", f"  return {made}", "")
  return "tasks:select,tasks:{tmp}/a.py", field, words, file("a.py", "\n".join(code))


END = "<|endoftext|>"
X, Y = np.zeros((6, 4, 4), np.float32), np.arange(6) % 3
DATA = [
    ("digits:sm dataset.name=imagenet", "'imagenet'", "is not one of cifar10, data, digits, drift:NAME, folder:DIR"),
    ("digits:sm dataset.name=npz:", "'npz:'", "should be npz:PATH"),
    ("digits:sm stream.num_megabatches=2000 stream.val_fraction=0.5", "stream.num_megabatches",
     "exceeds the 1437 training examples"),
    ("digits:sm model.name=vgg", "vgg", "at least 32x32 pixels"),
    ("drift:sm,rotate dataset.name=drift:npz:{tmp}/a.npz", "dataset.change='rotate'", "choose another drift",
     arrays(x_train=X.reshape(6, 16), x_test=X.reshape(6, 16))),
    ("drift:sm,classes dataset.name=drift:npz:{tmp}/a.npz", "dataset.change='classes'", "number the classes from 0",
     arrays(y_train=Y + 7, y_test=Y + 7)),
    ("digits:ff learner.growth_rate=0.001", "growth_rate=0.001", "of 64 neurons rounds to 0"),
    ("digits:ff learner.growth_rate=9", "growth_rate=9.0", "exceeds the 128 that all splits and candidates"),
    ("digits:hmoe model.num_experts=1000", "model.num_experts", "exceed the 130 training examples"),
    ("mnist:sm dataset.name=tfds:mnist:three", "'mnist:three'", "write it as in mnist:3.0.1"),
    ("mnist:sm dataset.data_dir=/nowhere", "/nowhere", "no prepared TFDS data set 'mnist'"),
    ("npz:sm", "'data.npz'", "there is no file"),
    ("npz:sm dataset.name=npz:{tmp}/a.npz", "a.npz", "is not an .npz file", file("a.npz", "hello")),
    npz("y_test", "it has no array y_test; its arrays are x_test, x_train, y_train", y_test=None),
    npz("a.npz", "6 examples but 5 labels", y_train=np.zeros(5, int)),
    npz("y_train", "negative label -1", y_train=np.array([0, 1, -1, 0, 1, 2])),
    npz("y_test", "not whole", y_test=np.array([0, 1, 0.5, 0, 1, 2])),
    npz("a.npz", "give both parts the same kind of labels", y_test=np.array(list("abcabc"))),
    npz("x_train", "NaN", x_train=np.where(np.arange(96).reshape(6, 4, 4) == 7, np.nan, X)),
    npz("x_test", "is empty", x_test=X[:0], y_test=Y[:0]),
    npz("x_test", "dtype float32, but the training set has uint8", x_train=X.astype(np.int64)),
    npz("x_train", "shape (6,)", x_train=X[:, 0, 0]),
    npz("x_test", "but the training set has [4, 4, 1]; give examples of this", x_test=np.zeros((6, 4, 5), np.float32)),
    npz("y_train", "labels are [N]", y_train=Y[:, None]),
    npz("a.npz", "a single class", y_train=0 * Y, y_test=0 * Y),
    npz("y_train", "has the label 1000000000, but labels", y_train=np.array([0, 1, 2, 0, 1, 10**9])),
    npz("x_train", "numpy.moveaxis(x, 1, -1)", x_train=np.zeros((6, 3, 8, 8), np.uint8)),
    npz("y_train", "has no labels; give at least one labelled example", y_train=Y[:0]),
    npz("x_train", "divide them by a constant", x_train=X + np.float32(3e38) * Y[:, None, None]),
    npz("a.npz", "plain arrays", x_train=np.array(6 * [{}])),
    ("folder:sm dataset.name=folder:{tmp}/none", "none", "there is no folder"),
    folder("train", "no folder test", "train/a", "train/b"),
    folder("{tmp}", "needs at least two", "a"),
    folder("the class c", "give both the same classes", "train/a", "train/b", "train/c", "test/a", "test/b"),
    folder("{tmp}", "rename valid to test", "train/a", "train/b", "valid/a", "valid/b"),
    folder("A and B", "so it is unclear", "A/x", "A/y", "B/x", "B/y"),
    folder("0.png", "holds images at different depths", "a", "a/more", "b"),
    folder("train and training", "for the same split", "train/a", "training/a", "test/a"),
    ("folder:sm dataset.name=folder:{tmp}", "0.png", "set dataset.image_size=N for the run to resize all images",
     both(images("a"), images("b", size=(5, 5)))),
    ("folder:sm dataset.name=folder:{tmp}", "class", "give every class at least two",
     both(images("a", "b"), lambda tmp: [(tmp / name / "1.png").unlink() for name in "ab"])),
    ("folder:sm dataset.name=folder:{tmp}", "its class 'c'", "convert them", both(images("a", "b"), file("c/x.heic"))),
    ("folder:sm dataset.name=folder:{tmp}", "0.png", "repair, convert", both(images("a", "b"), file("a/0.png"))),
    text("{tmp}", "name yours by dataset.name=text:DIR", lambda tmp: tmp.rmdir()),
    text("{tmp}", "give train, valid and test", texts("train/a.txt", "test/a.txt")),
    text("{tmp}", "give a .txt file, a .jsonl file, or a folder", file("a.md")),
    text("test", "holds no text", both(ALL_TEXTS, file("test/a.txt", " \n"))),
    text("b.txt", "convert it to UTF-8", both(ALL_TEXTS, file("train/b.txt", b"ab\xff"))),
    text("val and valid", "keep one", both(ALL_TEXTS, texts("val/a.txt"))),
    text("stream.num_megabatches=9000", "is more than the", ALL_TEXTS, "stream.num_megabatches=9000"),
    text("mega-batch 1", "give more text, or lower dataset.sequence_length", ALL_TEXTS, "stream.num_megabatches=900"),
    text("dataset.tokenizer", "leave it empty to train one", ALL_TEXTS, "dataset.tokenizer={tmp}/none"),
    text("dataset.tokenizer", "is not JSON of the tokenizers package", both(ALL_TEXTS, file("t", "{}")),
         "dataset.tokenizer={tmp}/t"),
    text("<|endoftext|>", "add it", both(ALL_TEXTS, tokenizer(vocab={"a": 0})), "dataset.tokenizer={tmp}/t"),
    text("dataset.tokenizer", "set dataset.vocab_size=300",
         both(ALL_TEXTS, tokenizer(vocab={END: 0, **{str(i): i for i in range(1, 300)}})),
         "dataset.tokenizer={tmp}/t dataset.vocab_size=270"),
    text("<|endoftext|>", "give one that does not", both(ALL_TEXTS, tokenizer(vocab={END: 0}, unk_token=END)),
         "dataset.tokenizer={tmp}/t"),
    text("tokenizer cannot encode the text", "is it byte-level?", both(ALL_TEXTS, tokenizer(vocab={END: 0})),
         "dataset.tokenizer={tmp}/t"),
    ("lm:btm dataset.name=text:{tmp} train.steps=9 train.warmup_steps=1 dataset.sequence_length=8 "
     "learner.num_domains=9", "learner.num_domains=9", "raise train.steps", ALL_TEXTS),
    ("lm:sm dataset.name=digits", "dataset.name='digits'", "is not one of live:DIR, text:DIR, tfds:NAME"),
    ("lm:sm dataset.name=text:", "'text:'", "should be text:DIR"),
    ("tasks:select,s_plu", "'s_plu'", "did you mean 's_plus'?"),
    ("tasks:select,tasks:none.py", "'none.py'", "there is no file"),
    ("tasks:select,digits stream.num_megabatches=9", "stream.num_megabatches=9", "exceeds the 8 tasks"),
    ("tasks:select,digits dataset.image_size=16", "dataset.image_size", "a field of dataset.name=tasks:PATH.py"),
    ("tasks:select,tasks:{tmp}/a.py", "a.py", "has no function get_tasks", file("a.py", "x = 1")),
    ("tasks:select,tasks:{tmp}/a.py", "a.py", "is not a Python file", file("a.py", "def (")),
    ("tasks:select,tasks:{tmp}/a.py", "a.py", "it should return a list of dicts",
     file("a.py", "def get_tasks(seed):\n  return 5")),
    tasks("x_train of the task 'a'", "is empty", "[dict(name='a', arrays=[x[:0], y[:0], x, y, x, y])]"),
    tasks("task 'a'", "a single class", "[dict(name='a', arrays=3 * [x, 0 * y])]"),
    tasks("task 'a'", "no training example of class 3", "[dict(name='a', arrays=[x, y, x, y, x, np.arange(6)])]"),
    tasks("task 'a'", "no training example of class 0", "[dict(name='a', arrays=[x, y + 5, x, y, x, y])]"),
    tasks("y_test of the task 'a'", "negative label -1", "[dict(name='a', arrays=[x, y, x, y, x, y - 1])]"),
    tasks("val split", "6 examples but 5 labels", "[dict(name='a', arrays=[x, y, x, y[:5], x, y])]"),
    tasks("'a' has images of dtype float64", ".astype", "[dict(name='a', arrays=3 * [x / 255, y])]"),
    tasks("task 'a'", "examples of shape (6,)", "[dict(name='a', arrays=3 * [x[0], y])]"),
    tasks("task 'a'", "give six, x_train, y_train", "[dict(name='a', arrays=[1, 2])]"),
    tasks("task 1", "give one of them", "[dict(D, arrays=3 * [x, y])]"),
    tasks("class_names", "labels from 0 to 2", "[dict(name='a', arrays=3 * [x, y], class_names=['x'])]"),
    tasks("task 'b'", "to resize all", "[dict(name='a', arrays=3 * [x, y]), dict(D, name='b')]"),
    tasks("'mnits'", "there are mnist, digits,", "[dict(D, data='mnits')]"),
    tasks("'a'", "a task has at least two", "[dict(D, classes=[1])]"),
    tasks("class 10 of digits", "are 0 to 9", "[dict(D, classes=[1, 10])]"),
    tasks("class of digits", "twice", "[dict(D, classes=[1, 1])]"),
    tasks("classes=", "should be a whole number", "[dict(D, classes=['one', 'two'])]"),
    tasks("'a'", "ask for fewer", "[dict(D, train=599)]"),
    tasks("val=0", "should be at least 1", "[dict(D, val=0)]"),
    tasks("train=True", "should be a whole number", "[dict(D, train=True)]"),
    tasks("'colour'", "possible are name, family, returns, data", "[dict(D, colour='red')]"),
    tasks("lacks data, val", "give it arrays, or data", "[dict(name='a', train=5)]"),
    tasks("task 1", "give every task one of its own", "[dict(data='digits', train=5, val=3)]"),
    tasks("'a'", "two tasks with the name", "[D, D]"),
    tasks("('blur', 1)", "possible are ('permute', NUMBER)", "[dict(D, changes=[('blur', 1)])]"),
    tasks("'rotate'", "it should be ('rotate', QUARTER_TURNS)", "[dict(D, changes=[('rotate', 'left')])]"),
    tasks("changes", "as in [('rotate', 1)]", "[dict(D, changes=('rotate', 1))]"),
    tasks("name=1", "should be a string", "[dict(D, name=1)]"),
    tasks("draw=", "below 2147483648", "[dict(D, draw=2**40)]"),
    tasks("draw=-1", "at least 0", "[dict(D, draw=-1)]"),
    tasks("returns='a'", "names no earlier task of the list", "[dict(D, returns='a')]"),
    tasks("'b' returns to 'a'", "the same classes in the same order",
          "[D, dict(D, name='b', classes=[1, 0], returns='a')]"),
    tasks("a.py", "a list of dicts", "[]"),
    tasks("a.py", "failed with ZeroDivisionError", "1 / 0"),
    ("lm:sm dataset.name=text:README.md", "README.md", "give a .txt file, a .jsonl file, or a folder of them"),
    ("live:sm dataset.name=live:{tmp}/none", "none", "there is no folder"),
    ("live:sm dataset.name=live:{tmp}", "{tmp}", "there is no folder", file("x")),
    ("live:sm dataset.name=live:{tmp}", "classes.txt", "it should hold the names",
     both(file("stream/x"), file("classes.txt", "cat\n"))),
    ("live:sm dataset.name=live:{tmp}", "classes.txt", "names a class twice",
     both(file("stream/x"), file("classes.txt", "cat\ncat\n"))),
    ("live:sm dataset.name=live:{tmp}", "test.npz", "the test set", both(file("stream/x"), file("test.npz", "x"))),
    ("live:sm dataset.name=live:{tmp} stream.untrained_error=model", "stream.untrained_error", "needs a test set",
     both(file("stream/x"), file("end"))),
    ("live:sm dataset.name=live:{tmp}", "test", "the test set", both(file("stream/x"), file("test/x.md"))),
]

# ---------------------------------------------------------------- other commands


def bad(field, words, command="predict", **arrays):
  write = both(finished, lambda tmp: np.savez(tmp / "bad.npz", **arrays))
  return f"{command} --workdir={{tmp}}/done {'--data=' * (command == 'evaluate')}{{tmp}}/bad.npz", field, words, write


def sweep(points):
  code = f"from alma_jax.sweeps import *\ndef get_sweep():\n  return Sweep('digits', {points})"
  return file("s.py", code)


def axes(field, words, points):
  return "sweep --workdir={tmp}/run --config={tmp}/s.py", field, words, sweep(points)


X4, Y4 = blobs(4, seed=2)
OTHERS = [
    ("alma rum", "'rum' (did you mean 'run'?)", "the commands are run, demo, sweep,"),
    ("alma list learners", "'learners'", "the package's configs: cifar, digits,"),
    ("alma --config=digits:ens", "'--config=digits:ens'", "the commands are run, demo, sweep,"),
    ("stream {tmp}/x", "--config", "--help lists the arguments"),
    ("stream {tmp}/x --config=live:sm", "dataset.name='live:stream'", "such as mnist or drift:mnist"),
    ("stream {tmp}/x --config=lm:sm", "dataset.name='tfds:tiny_shakespeare'", "such as mnist or drift:mnist"),
    ("stream {tmp} --config=digits:sm", "{tmp}", "name a new or empty folder", file("x")),
    ("sample", "--workdir", "--help lists the arguments"),
    ("sample --workdir={tmp}/done", "done", "writes no text", finished),
    ("export --workdir={tmp}", "{tmp}", "there is no run"),
    ("sample --workdir={tmp}/done --num_tokens=0", "num_tokens=0", "at least 1", finished),
    ("sample --workdir={tmp}/done --temperature=nan", "temperature=nan", "at least 0", finished),
    ("export --workdir={tmp}/done", "done", "its folder checkpoints, which holds the saved learners; restore it",
     both(finished, lambda tmp: shutil.rmtree(tmp / "done/checkpoints"))),
    ("export --workdir={tmp}/done", "config.json", "restore it", both(finished, edited)),
    ("export --workdir={tmp}/done", "metrics.jsonl", "let the run's own command write it again",
     both(finished, file("done/metrics.jsonl"))),
    ("export --workdir={tmp}/done", "metrics.jsonl", "restore the file",
     both(finished, file("done/metrics.jsonl", "1\n"))),
    ("export --workdir={tmp}/done --out={tmp}/x", "{tmp}/x", "cannot be written", both(finished, file("x"))),
    ("predict --workdir={tmp}/done --task=2 {tmp}/new.npz", "done", "leave task='2' out", finished),
    ("export --workdir={tmp}/done --stage=7", "done", "has saved the stages [1], not 7", finished),
    ("predict --workdir={tmp}/none x", "none", "neither a run nor a predictor"),
    ("predict --workdir={tmp}/done {tmp}/none.npz", "none.npz", "no such file or folder; give an .npz", finished),
    ("predict --workdir={tmp}/done {tmp}/no.parquet", "no.parquet", "is not a readable Parquet file",
     both(finished, file("no.parquet", "no"))),
    ("predict --workdir={tmp}/done {tmp}/a", "/a'", "the predictor takes [6, 6, 1]", both(finished, images("a"))),
    bad("bad.npz", "but the predictor takes [6, 6, 1]; give examples of this", x=X4[:, :5]),
    bad("bad.npz", "but the predictor takes uint8", x=X4 / 255),
    bad("bad.npz", "is empty", x=X4[:0]),
    bad("bad.npz", "plain arrays", x=np.array([{}])),
    bad("bad.npz", "it has no array label, labels, y or class", "evaluate", x=X4),
    bad("bad.npz", "has 4 examples but 3 labels", "evaluate", x=X4, y=Y4[:3]),
    bad("bad.npz", "it has the label 4, but the predictor has 3 classes", "evaluate", x=X4, y=Y4 + 2),
    ("evaluate --workdir={tmp}/done --data={tmp}/a", "the class 'b'", "its classes are the numbers 0 to 2",
     both(finished, images("a/b", size=(6, 6), mode="L"))),
    ("predict --workdir={tmp}/done {tmp}/a.parquet", "a.parquet", "is empty",
     both(finished, parquet(image=pa.array([], pa.binary())))),
    ("evaluate --workdir={tmp}/done --data={tmp}/a.parquet", "a.parquet", "is not a readable Parquet file",
     both(finished, parquet(image=[[0] * 36], label=pa.array([b"\xff"]).view(pa.string())))),
    bad("bad.npz", "labels are names, or count", "evaluate", x=X4, y=Y4 + 0.5),
    bad("bad.npz", "y has the negative label -1", "evaluate", x=X4, y=Y4 - 1),
    ("predict --workdir={tmp}/done README.md", "'README.md'", "of a kind that cannot be read here; give", finished),
    ("predict --workdir={tmp}/done {tmp}/a.parquet", "a.parquet", "0 to 255",
     both(finished, parquet(image=[[999] * 36]))),
    ("predict --workdir={tmp}/done {tmp}/a.parquet", "a.parquet", "lists of different lengths",
     both(finished, parquet(image=[["x"] * 36]))),
    ("predict --workdir={tmp}/done {tmp}/a.parquet", "a.parquet", "neither an image nor numbers",
     both(finished, parquet(image=[None]))),
    ("evaluate --workdir={tmp}/done --data={tmp}/a", "train", "name the folder that holds the folders of the classes",
     both(finished, images("a/train/0", "a/train/1"))),
    ("predict --workdir={tmp}/done {tmp}/none", "none", "give a .txt file, a .jsonl file", finished_text),
    ("predict --workdir={tmp}/done {tmp}/a", "{tmp}/a", "give a .txt file, a .jsonl file",
     both(finished_text, file("a/x.md"))),
    ("predict --workdir={tmp}/done README.md", "'README.md'", "give a .txt file, a .jsonl file", finished_text),
    ("predict --workdir={tmp}/done {tmp}/a.txt", "a.txt", "convert it", both(finished_text, file("a.txt", b"\xff"))),
    ("predict --workdir={tmp}/done {tmp}/a.txt", "a.txt", "holds no text", both(finished_text, file("a.txt", " "))),
    ("predict --workdir={tmp}/done {tmp}/a.jsonl", "line 1", "a.jsonl", both(finished_text, file("a.jsonl", "{\n"))),
    ("predict --workdir={tmp}/done {tmp}/a.jsonl", "a.jsonl", "nested too deeply",
     both(finished_text, file("a.jsonl", "[" * 10**5 + "\n"))),
    ("predict --workdir={tmp}/out {tmp}/new.npz", "predictor.stablehlo", "is not what was written",
     both(finished, damaged)),
    ("predict --workdir={tmp}/begun x", "begun", "has saved no finished stage yet", begun),
    ("predict --workdir={tmp}/done {tmp}/empty", "empty", "holds no image", both(finished, file("empty/x.md"))),
    ("evaluate --workdir={tmp}/done --data=x --out={tmp}/n/o.json", "{tmp}/n", "there is no folder", finished),
    ("predict --workdir={tmp}/done {tmp}/new.npz --out=o.txt", "--out", "should end in .csv or .parquet", finished),
    ("predict --workdir={tmp}/done {tmp}/new.npz --out={tmp}/n/o.csv", "{tmp}/n", "there is no folder", finished),
    ("evaluate --workdir={tmp}/done", "without --data", "made from arrays in Python", finished),
    ("evaluate --workdir={tmp}/out", "without --data", "holds a predictor, and no run",
     both(finished, lambda tmp: exporting.export(tmp / "done", out=tmp / "out"))),
    ("evaluate --workdir={tmp}/done --data=nothing", "'nothing'", "there is no such file or folder", finished),
    ("evaluate --workdir={tmp}/done --data=mnist --data_dir={tmp}", "--data_dir", "no prepared", finished),
    ("serve --workdir={tmp}/none --port=0", "none", "neither a run nor a predictor"),
    ("serve --workdir={tmp}/done --port=70000", "--port=70000", "0 to 65535", finished),
    ("serve --workdir={tmp}/done --max_batch=0", "--max_batch=0", "above 0", finished),
    ("status {tmp}/none", "none", "there is no folder"),
    ("status {tmp}/empty", "empty", "holds no run", file("empty/x")),
    ("status {tmp}/odd", "odd", "move it away", file("odd/config.json", "{}")),
    ("status {tmp}/odd", "config.json", "cannot be read as JSON",
     file("odd/config.json", '{"data_fingerprint": "\\ud800"}')),
    ("status {tmp}/done", "metrics.jsonl", "a line that is not JSON",
     both(finished, file("done/metrics.jsonl", "{\n"))),
    ("board {tmp}/none", "none", "there is no folder"),
    ("board {tmp}/empty", "empty", "holds no run", file("empty/x")),
    ("compare {tmp}/done {tmp}/done --out={tmp}/n/a.png", "--out=", "cannot be written", finished),
    ("report {tmp}/done --waiting_times=1", "--waiting_times", "need --out=DIR", finished),
    ("report {tmp}/done --out={tmp}/o --waiting_times=x", "--waiting_times=x", "as in 1,10,50", finished),
    ("report", "RUNS", "--help lists the arguments"),
    ("report {tmp}/none --out={tmp}/out", "none", "there is no folder"),
    ("report {tmp}/done --out={tmp}/done/config.json", "config.json", "cannot be made or written", finished),
    ("apart --config=digits:sm --workdir={tmp}/run", "'sm'", "has no experts that can be trained apart"),
    ("apart --config=digits:hmoe learner.em_rounds=2 --workdir={tmp}/run", "learner.em_rounds=2", "the clusters later"),
    ("apart --config=digits:hmoe --workdir={tmp}/done", "{tmp}/done", "choose another one for the gate", finished),
    ("apart --config=digits:hmoe --workers=-1 --workdir={tmp}/run", "--workers", "at least 0"),
    ("sweep --workdir={tmp}/run --config={tmp}/none.py", "none.py", "is not a sweep file"),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "s.py", "has no function get_sweep", file("s.py", "x = 1")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "s.py", "is not a Python file", file("s.py", "def (")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "s.py", "has no points", sweep("[]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "'digits:sm'", "only the path of a config file",
     file("s.py", "def get_sweep():\n  from alma_jax.sweeps import Sweep\n  return Sweep('digits:sm', [{}])\n")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "not 3", "should be a list", sweep("3")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py model.width=3", "--config.model.width", "would change an axis",
     sweep("[{'width': 4}]")),
    axes("'seed'", "needs a list of values, not 5", "axis('seed', 5)"),
    axes("10,001 points", "at most 10,000 are allowed", "axis('seed', range(10_001))"),
    axes("zipped lists", "should be equally long", "zipped(axis('a', [1]), axis('b', [1, 2]))"),
    axes("'a'", "given twice", "product(axis('a', [1]), axis('a', [2]))"),
    axes("product", "as axis() makes them", "product(axis('a', [1]), [1, 2])"),
    ("sweep --workdir={tmp}/run --config=sweeps/digits --slurm=a=1", "--slurm", "is for --launcher=slurm"),
    ("sweep --workdir={tmp}/run --config=sweeps/digits --launcher=slurm --slurm=a", "--slurm='a'", "be NAME=VALUE"),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py --config.seed=3", "--config.seed", "give --seeds",
     sweep("[{'seed': 4}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py --seeds=3,3", "--seeds=3,3", "twice", sweep("[{'seed': 4}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py:full", "s.py", "takes no argument", sweep("[{}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py --seeds=3", "--seeds", "the axis 'seed'", sweep("[{}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py train.epochs=x", "train.epochs", "a whole number", sweep("[{}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "'widht'", "did you mean 'width'?", sweep("[{'widht': 4}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "learner.num_members", "this config has learner.name='sm'",
     sweep("[{'learner': 'sm', 'num_members': 2}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "'name'", "could be dataset.name or model.name",
     sweep("[{'name': 'mlp'}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "are the same run", "remove one of them",
     sweep("[{'seed': 0}, {'learner': 'ens', 'seed': 0}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "'dataset.name'", "the same run folder",
     sweep("[{'dataset.name': 'tfds:a'}, {'dataset.name': 'tfds::a'}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "model.width=0", "lets train.budget decide",
     sweep("[{'width': 0}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "'best'", "the learners are", sweep("[{'learner': 'best'}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "not 3", "should be dicts", sweep("[3]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "{4: 4}", "should be dicts", sweep("[{4: 4}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "'learner'", "names of learners, not ['sm']",
     sweep("[{'learner': ['sm']}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "model.width=<built-in", "a whole number",
     sweep("[{'width': print}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "'model.width' and 'width'", "are the same field",
     sweep("[{'width': 4, 'model.width': 8}]")),
    ("sweep --workdir={tmp}/run --config={tmp}/s.py", "namenpz_x", "at most 200",
     sweep("[{'dataset.name': 'npz:' + 300 * 'x'}]")),
    ("sweep --workdir={tmp}/run --config=sweeps/cifar:half", "'half'", "the sizes are night"),
    ("sweep --workdir={tmp}/run --config=sweeps/digits --workers=-1", "--workers=-1", "at least 0"),
    ("sweep --workdir={tmp}/run --config=sweeps/digits --seeds=1,x", "--seeds=1,x", "numbers with commas between"),
    ("sweep --workdir={tmp}/run --config=sweeps/digits --epochs=1", "'--epochs=1'", "are --config.FIELD=VALUE"),
    ("sweep --workdir={tmp}/run --config=sweeps/digits train.epoch=1", "'train.epoch'", "are epochs, steps"),
]
MODULES = {"alma": "cli"}  # of commands that are called otherwise


def contents(tmp):
  return {path: path.is_file() and path.stat().st_mtime_ns for path in tmp.rglob("*") if path.name != ".lock"}


def check(tmp, command, args, field, words, write=None):
  """The property of every row."""
  if write is not None:
    write(tmp)
  field, before = field.replace("{tmp}", str(tmp)), contents(tmp)
  done = alma(MODULES.get(command, command), *(arg.replace("{tmp}", str(tmp)) for arg in args))
  *notices, said = done.stderr.splitlines() or [""]  # what takes long is announced
  assert (done.returncode, done.stdout) == (2, ""), done.stderr
  assert all(notice.startswith(("loading the data", "encoding ", "warning: ")) for notice in notices), done.stderr
  assert said.startswith("error: "), said
  assert said.endswith((".", "?")), said
  assert not re.search("[.?!] [A-Z]", said), said  # one sentence
  assert field in said, said
  assert words in said, said
  assert contents(tmp) == before  # nor a run folder


@pytest.mark.parametrize("row", [*FIELDS, *COMMAND, *DATA], ids=lambda row: row[0].replace("{tmp}/", ""))
def test_a_run_is_refused_by_one_sentence(tmp_path, monkeypatch, row):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path.parent / "cache"))
  config, *rest = shlex.split(row[0])
  args = [f"--config={config}", *(arg if arg.startswith("--") or "=" not in arg else f"--config.{arg}" for arg in rest)]
  if not any(arg.startswith("--workdir") for arg in args):
    args.append("--workdir={tmp}/run")
  check(tmp_path, "main", args, *row[1:])


@pytest.mark.parametrize("row", OTHERS, ids=lambda row: row[0].replace("{tmp}/", ""))
def test_a_command_is_refused_by_one_sentence(tmp_path, row):
  command, *rest = shlex.split(row[0])
  args = [arg if arg.startswith("--") or "." not in arg.partition("=")[0] or "=" not in arg else f"--config.{arg}"
          for arg in rest]
  check(tmp_path, command, args, *row[1:])
