"""Rules about several fields of a config, one function each. A rule raises BadInput where the config breaks it."""
import dataclasses
from collections.abc import Callable

from alma_jax.config.fields import listed
from alma_jax.config.learner_options import BTM, LEARNERS, FlatGMoE, HMoE
from alma_jax.config.schema import (
  LIVE,
  Dataset,
  ImageConfig,
  LanguageConfig,
  RunConfig,
  Stream,
  TaskConfig,
  TaskStream,
)
from alma_jax.config.sections import memory_for_validation, memory_part
from alma_jax.config.task_options import MNTDP
from alma_jax.errors import BadInput
from alma_jax.files import ADDRESS

_DEFAULT, _LIVE_DEFAULTS = Stream(), Dataset()
MODULAR = ("mlp", "vgg", "resnet")  # networks whose layers can be divided into modules
_MOST_TOKENS = 2**31  # between two validations: they are counted in int32


def check(config: RunConfig) -> None:
  """Checks all rules.

  Raises:
    BadInput: the config breaks one.
  """
  if isinstance(config, TaskConfig):
    for task_rule in _TASK_RULES:
      task_rule(config)
    return
  for rule in _RULES:
    rule(config)
  if isinstance(config, ImageConfig):
    for image_rule in _IMAGE_RULES:
      image_rule(config)
  if isinstance(config, LanguageConfig):
    for language_rule in _LANGUAGE_RULES:
      language_rule(config)


def _only_live_streams_have_no_end(c: RunConfig) -> None:
  d, num = c.dataset, c.stream.num_megabatches
  if c.is_live:
    if not d.name.removeprefix(LIVE):
      raise BadInput(f"dataset.name={d.name!r} should name a folder, as in live:DIR.")
    if ADDRESS.match(d.name.removeprefix(LIVE)):
      raise BadInput(f"dataset.name={d.name!r} names an address, but a live stream is a folder; name one, or mount the "
                     "bucket and name the folder where it is mounted.")
    if not num and c.stream.schedule == "power":
      raise BadInput("stream.schedule='power' needs stream.num_megabatches above 0, because it spreads its trainings "
                     "over the whole stream.")
    return
  if not num:
    raise BadInput("stream.num_megabatches=0 should be at least 1; only the streams of dataset.name=live:DIR "
                   "have no limit.")
  for name in ("settle_seconds", "idle_seconds", "max_examples", "max_bytes", "image_column", "label_column"):
    default = getattr(_LIVE_DEFAULTS, name)
    if (value := vars(d).get(name, default)) != default:
      raise BadInput(f"dataset.{name}={value} is for dataset.name=live:DIR, not {d.name!r}.")


def _lca_is_for_tasks(c: RunConfig) -> None:
  if c.log.lca:
    raise BadInput(f"log.lca={c.log.lca} is for streams of tasks; leave it 0.")


def _waiting_fits_into_the_stream(c: RunConfig) -> None:
  if not c.stream.num_megabatches:
    return
  if c.stream.schedule == "every" and c.stream.waiting_time > c.stream.num_megabatches:
    raise BadInput(f"stream.waiting_time={c.stream.waiting_time} exceeds "
                   f"stream.num_megabatches={c.stream.num_megabatches}.")


def _schedule_has_its_fields(c: RunConfig) -> None:
  s = c.stream
  if s.schedule == "power" and not s.num_trainings:
    raise BadInput("stream.schedule='power' needs stream.num_trainings, the number of trainings.")
  if s.schedule != "power" and s.num_trainings:
    raise BadInput(f"stream.num_trainings={s.num_trainings} is for stream.schedule='power', not {s.schedule!r}.")
  if s.schedule != "power" and s.exponent != _DEFAULT.exponent:
    raise BadInput(f"stream.exponent={s.exponent} is for stream.schedule='power', not {s.schedule!r}.")
  if s.schedule != "geometric" and s.factor != _DEFAULT.factor:
    raise BadInput(f"stream.factor={s.factor} is for stream.schedule='geometric', not {s.schedule!r}.")
  if s.num_megabatches and s.num_trainings > s.num_megabatches:
    raise BadInput(f"stream.num_trainings={s.num_trainings} exceeds stream.num_megabatches={s.num_megabatches}.")
  if s.schedule == "adaptive" and not s.price:
    raise BadInput("stream.schedule='adaptive' needs stream.price, the price of a multiply-add.")
  if s.schedule != "adaptive" and s.price:
    raise BadInput(f"stream.price={s.price} is for stream.schedule='adaptive', not {s.schedule!r}.")


def _memory_is_used(c: RunConfig) -> None:
  s = c.stream
  if s.replay and s.replay_share:
    raise BadInput(f"stream.replay={s.replay} and stream.replay_share={s.replay_share} exclude each other: the first "
                   "unites old data with new ones, the second draws a part of every batch from old data.")
  if s.memory_size and not s.replay_share:
    raise BadInput(f"stream.memory_size={s.memory_size} needs stream.replay_share above 0.")
  if s.replay_share and not memory_part(c.train.batch_size, 0.5 if isinstance(s.replay_share, str) else s.replay_share):
    raise BadInput(f"stream.replay_share={s.replay_share} of train.batch_size={c.train.batch_size} is not one example; "
                   "raise one of them, or set stream.replay_share=0.")
  if isinstance(s.replay_share, str) or not s.memory_size:
    return
  kept, part = s.memory_size - memory_for_validation(s), memory_part(c.train.batch_size, s.replay_share)
  if kept < part:
    raise BadInput(f"stream.memory_size={s.memory_size} keeps {kept} training examples, fewer than the {part} that "
                   f"stream.replay_share={s.replay_share} of train.batch_size={c.train.batch_size} asks for; raise the "
                   "memory or lower the share.")


def _average_is_used(c: RunConfig) -> None:
  if c.learner.start == "average" and not c.learner.average:
    raise BadInput("learner.start='average' needs learner.average above 0.")


def _old_weights_are_perturbed(c: RunConfig) -> None:
  o = c.learner
  if not o.shrink and not o.perturb:
    raise BadInput("learner.shrink=0.0 without learner.perturb makes all weights 0; raise one of them, or set "
                   "learner.init_from_scratch.")
  if o.init_from_scratch and (o.shrink != 1 or o.perturb):
    raise BadInput(f"learner.shrink={o.shrink} and learner.perturb={o.perturb} change the weights of the stage before, "
                   "but every stage starts from scratch; leave them 1 and 0.")


def _validations_fit_into_the_steps(c: ImageConfig | TaskConfig) -> None:
  t = c.train
  if t.eval_every and not t.steps:
    raise BadInput(f"train.eval_every={t.eval_every} is for train.steps above 0; without, every epoch is validated.")
  if t.steps and t.eval_every and t.patience and (t.patience + 1) * t.eval_every >= t.steps:
    raise BadInput(f"train.patience={t.patience} can never end a stage of train.steps={t.steps} with "
                   f"train.eval_every={t.eval_every}; set train.patience=0, or lower train.eval_every.")


def _data_are_images(c: ImageConfig) -> None:
  if c.dataset.name.startswith("text:"):
    raise BadInput(f"dataset.name={c.dataset.name!r} is for language models; use configs/lm.py.")


def _only_folders_are_resized(c: ImageConfig) -> None:
  if c.dataset.image_size and not c.dataset.name.startswith(("folder:", LIVE)):
    raise BadInput(f"dataset.image_size={c.dataset.image_size} is for dataset.name=folder:DIR or live:DIR; leave "
                   f"it 0 for {c.dataset.name!r}.")


def _learner_has_experts(c: ImageConfig) -> None:
  if c.model.num_experts != 1 and not c.learner.has_experts:
    having = listed(name for name, options in LEARNERS.items() if options.has_experts)
    raise BadInput(f"model.num_experts={c.model.num_experts} is for the learners {having}, not {c.learner.name}.")


def _widths_have_experts(c: ImageConfig) -> None:
  if isinstance(c.learner, HMoE) and len(c.learner.expert_widths) > c.model.num_experts:
    raise BadInput(f"learner.expert_widths={c.learner.expert_widths} has more widths than model.num_experts="
                   f"{c.model.num_experts} experts, which take turns; leave some out, or raise model.num_experts.")


def _momentum_is_for_sgd(c: ImageConfig) -> None:
  t = c.train
  if t.optimizer != "sgd" and (t.momentum or t.nesterov):
    raise BadInput(f"train.momentum={t.momentum} and train.nesterov={t.nesterov} need "
                   f"train.optimizer='sgd', not {t.optimizer!r}.")
  if t.nesterov and not t.momentum:
    raise BadInput("train.nesterov=True needs train.momentum above 0.")


def _data_are_text(c: LanguageConfig) -> None:
  name, data_dir = c.dataset.name, c.dataset.data_dir
  if not name.startswith(("text:", "tfds:", LIVE)):
    raise BadInput(f"dataset.name={name!r} should be text:DIR, tfds:NAME or live:DIR for model.name='switch'.")
  if data_dir and name.startswith("text:"):
    raise BadInput(f"dataset.data_dir={data_dir!r} is for tfds:NAME; text:DIR already names the folder of the text.")


def _heads_divide_the_width(c: LanguageConfig) -> None:
  m = c.model
  if m.width % m.num_heads or m.width % 2:
    raise BadInput(f"model.width={m.width} should be an even multiple of model.num_heads={m.num_heads}.")


def _candidates_differ(c: LanguageConfig) -> None:
  _differ("train.learning_rate", c.train.learning_rate)
  _differ("model.dropout", c.model.dropout)


def _differ(field: str, values: tuple[float, ...]) -> None:
  """Raises BadInput unless the values of a field that are tried are one or more different ones."""
  if not values:
    raise BadInput(f"{field} is an empty list; give one value, or several to choose from.")
  if len(set(values)) < len(values):
    raise BadInput(f"{field}={values} lists a value twice.")


def _warmup_ends(c: LanguageConfig) -> None:
  t = c.train
  if t.steps * t.steps_multiplier <= t.warmup_steps:
    raise BadInput(f"train.steps={t.steps} times train.steps_multiplier={t.steps_multiplier} should be above "
                   f"train.warmup_steps={t.warmup_steps}.")


def _groups_fit_into_a_step(c: LanguageConfig) -> None:
  length, windows = c.dataset.sequence_length, c.train.batch_size
  group = c.model.group_size or length
  if length % group and group % length:
    raise BadInput(f"model.group_size={group} should divide dataset.sequence_length={length}, or be a multiple of it.")
  if group > windows * length:
    raise BadInput(f"model.group_size={group} exceeds the {windows * length} tokens of a step, train.batch_size="
                   f"{windows} windows.")


def _tokens_can_be_counted(c: LanguageConfig) -> None:
  num = c.train.plan(0).per_round * c.train.batch_size * c.dataset.sequence_length
  if num >= _MOST_TOKENS:
    raise BadInput(f"train.eval_every={c.train.eval_every} would have {num:,} tokens between two validations; they "
                   "should be below 2**31.")


def _micro_batch_fits_into_the_batch(c: LanguageConfig) -> None:
  if c.train.micro_batch > c.train.batch_size:
    raise BadInput(f"train.micro_batch={c.train.micro_batch} exceeds train.batch_size={c.train.batch_size}.")


def _most_trainings(c: RunConfig) -> int:
  s = c.stream
  if not s.num_megabatches:
    return 2**31
  return {"every": -(-s.num_megabatches // s.waiting_time), "power": s.num_trainings}.get(s.schedule, s.num_megabatches)


def _growth_at_most_doubles(c: LanguageConfig) -> None:
  if not isinstance(c.learner, FlatGMoE):
    return
  num = c.model.num_experts
  for more in c.learner.add_experts[:_most_trainings(c) - 1]:
    if more > num:
      raise BadInput(f"learner.add_experts={c.learner.add_experts} would add {more} experts to {num}; each can be "
                     "duplicated once a stage.")
    num += more


def _domains_are_found_once(c: LanguageConfig) -> None:
  if not isinstance(c.learner, BTM):
    return
  if c.is_live:
    raise BadInput(f"learner.name='btm' divides whole documents, which dataset.name={c.dataset.name!r} does not keep; "
                   "use text:DIR or tfds:NAME.")
  for field, values in (("train.learning_rate", c.train.learning_rate), ("model.dropout", c.model.dropout)):
    if len(values) > 1:
      raise BadInput(f"{field}={values} lists several values, but learner.name='btm' chooses none of them; give one.")


def _only_lists_are_resized(c: TaskConfig) -> None:
  d = c.dataset
  if d.image_size and not d.name.startswith("tasks:"):
    raise BadInput(f"dataset.image_size={d.image_size} is for dataset.name=tasks:PATH.py; leave it 0 for {d.name!r}, "
                   "whose images have one size.")


def _tasks_are_trained_one_by_one(c: TaskConfig) -> None:
  for name, value in dataclasses.asdict(TaskStream()).items():
    if name != "num_megabatches" and getattr(c.stream, name) != value:
      raise BadInput(f"stream.{name}={getattr(c.stream, name)!r} is for streams of mega-batches; leave it {value!r}.")
  for name, value in (("average", 0.0), ("start", "last"), ("shrink", 1.0), ("perturb", 0.0)):
    if getattr(c.learner, name) != value:
      raise BadInput(f"learner.{name}={getattr(c.learner, name)!r} is for streams of mega-batches; leave it {value!r}.")


def _nothing_watches_tasks(c: TaskConfig) -> None:
  if c.log.drift:
    raise BadInput(f"log.drift={c.log.drift} is for streams of mega-batches; leave it 0.0.")


def _pairs_differ(c: TaskConfig) -> None:
  _differ("train.learning_rate", c.train.learning_rate)
  _differ("train.weight_decay", c.train.weight_decay)


def _random_pairs_have_a_range(c: TaskConfig) -> None:
  rates = c.train.learning_rate
  if c.train.num_random and len(rates) == 1:
    raise BadInput(f"train.num_random={c.train.num_random} draws learning rates between the smallest and the largest "
                   f"of train.learning_rate, which lists only {rates[0]}; list two.")


def _search_is_used(c: TaskConfig) -> None:
  options = c.learner
  if isinstance(options, MNTDP) and options.search == "all":
    for name in ("search_steps", "price", "entropy"):
      if getattr(options, name) != getattr(MNTDP(), name):
        raise BadInput(f"learner.{name}={getattr(options, name)} is for learner.search='reinforce', not 'all'.")


def _tasks_have_no_experts(c: TaskConfig) -> None:
  if c.model.num_experts != 1:
    raise BadInput(f"model.num_experts={c.model.num_experts} is for streams of mega-batches; leave it 1.")
  if c.model.name not in MODULAR:
    raise BadInput(f"model.name={c.model.name!r} has no modules; the networks for streams of tasks are "
                   f"{listed(MODULAR)}.")


_TASK_RULES: tuple[Callable[[TaskConfig], None], ...] = (
    _tasks_are_trained_one_by_one, _only_lists_are_resized, _nothing_watches_tasks, _pairs_differ,
    _tasks_have_no_experts, _validations_fit_into_the_steps, _random_pairs_have_a_range, _search_is_used)
_RULES: tuple[Callable[[RunConfig], None], ...] = (
    _only_live_streams_have_no_end, _lca_is_for_tasks, _waiting_fits_into_the_stream, _schedule_has_its_fields,
    _memory_is_used, _average_is_used, _old_weights_are_perturbed)
_IMAGE_RULES: tuple[Callable[[ImageConfig], None], ...] = (
    _data_are_images, _only_folders_are_resized, _learner_has_experts, _widths_have_experts,
    _momentum_is_for_sgd,
    _validations_fit_into_the_steps)
_LANGUAGE_RULES: tuple[Callable[[LanguageConfig], None], ...] = (
    _data_are_text, _heads_divide_the_width, _candidates_differ, _warmup_ends, _groups_fit_into_a_step,
    _tokens_can_be_counted, _micro_batch_fits_into_the_batch, _growth_at_most_doubles, _domains_are_found_once)
