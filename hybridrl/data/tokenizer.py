"""Tokenizers: the embedded task's own, and any Hugging Face folder's.

A model folder holds its tokenizer (`tokenizer.json`, `tokenizer_config.json`
and the chat template, in the latter or in `chat_template.jinja`), so one loader
serves both. It reads these files itself: transformers would import torch into
the driver. The test compares it with transformers.
"""

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

PAD, USER, ASSISTANT, END = "<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"
_SPECIAL = (PAD, USER, ASSISTANT, END)

# Digits stand alone, so that sums are learnt digit by digit. A space belongs to
# the word after it, or before a digit to the word or sign in front of it: a
# digit is one and the same token wherever it stands.
_PATTERN = (
  r" ?[A-Za-z]+ (?=[0-9])| ?[A-Za-z]+|[0-9]"
  r"|[^A-Za-z0-9\s] (?=[0-9])|[^A-Za-z0-9\s]|\s"
)

_CHAT_TEMPLATE = (
  "{% for message in messages %}"
  "{% if message['role'] == 'assistant' %}"
  + f"{ASSISTANT}{{{{ message['content'] }}}}{END}"
  + "{% else %}"
  + f"{USER}{{{{ message['content'] }}}}"
  + "{% endif %}{% endfor %}"
  + f"{{% if add_generation_prompt %}}{ASSISTANT}{{% endif %}}"
)


class ChatTokenizer:
  """What data, rewards and the runtime need of a tokenizer.

  Attributes:
    vocab_size: number of ids, special ones included.
    stop_token_ids: ids that end a response; never empty.
    pad_token_id: an id for padding; its embedding is never read.
  """

  def __init__(
    self,
    tokenizer: tokenizers.Tokenizer,
    *,
    chat_template: str | None,
    special_tokens: Mapping[str, str],
    stop_token_ids: Sequence[int],
  ):
    """Args are those of `load_tokenizer`'s folder.

    Args:
      tokenizer: the text-to-ids part.
      chat_template: Jinja source, or None.
      special_tokens: such as {'eos_token': '<|end|>'}; templates read them.
      stop_token_ids: at least one id.
    """
    if not stop_token_ids:
      raise ValueError("the tokenizer names no end-of-sequence token")
    self._tokenizer = tokenizer
    self._template = None if chat_template is None else _compile(chat_template)
    self._special_tokens = dict(special_tokens)
    self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
    self.stop_token_ids: tuple[int, ...] = tuple(stop_token_ids)
    pad = tokenizer.token_to_id(special_tokens.get("pad_token", ""))
    self.pad_token_id: int = self.stop_token_ids[0] if pad is None else pad

  def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> np.ndarray:
    """[P] int32: the chat with its template, ready for generation.

    Without a chat template: the contents, joined by blank lines, and a newline.
    """
    if self._template is None:
      return self.encode("\n\n".join(m["content"] for m in messages) + "\n")
    text = self._template.render(
      messages=[dict(m) for m in messages],
      add_generation_prompt=True,
      **self._special_tokens,
    )
    return self.encode(text)

  def encode(self, text: str) -> np.ndarray:
    """[T] int32; no template, nothing added."""
    encoding = self._tokenizer.encode(text, add_special_tokens=False)
    return np.asarray(encoding.ids, np.int32)

  def decode(self, ids: Sequence[int] | np.ndarray) -> str:
    """Text of the ids, special tokens left out."""
    return self._tokenizer.decode(
      [int(i) for i in ids], skip_special_tokens=True
    )


def _compile(source: str) -> jinja2.Template:
  """A chat template in the environment that Hugging Face's expect."""

  def raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)

  def strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)

  # Templates come with downloaded models: sandboxed, as transformers does it.
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=[jinja2.ext.loopcontrols],
  )
  environment.globals["raise_exception"] = raise_exception
  environment.globals["strftime_now"] = strftime_now
  return environment.from_string(source)


def load_tokenizer(model_dir: str | Path) -> ChatTokenizer:
  """Loads the tokenizer of a Hugging Face model folder; never downloads.

  Raises:
    ValueError: names the file that is missing or broken, or says that no stop
      token is declared.
  """
  model_dir = Path(model_dir)
  path = model_dir / "tokenizer.json"
  if not path.is_file():
    raise ValueError(f"{path}: no such file")
  try:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # The library raises bare Exception.
    raise ValueError(f"{path}: not a tokenizer ({error})") from error
  config = _read_json(model_dir / "tokenizer_config.json")
  special_tokens = {}
  for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
    token = config.get(name)
    token = token["content"] if isinstance(token, dict) else token
    if token is not None:
      special_tokens[name] = token
  template_path = model_dir / "chat_template.jinja"
  template = config.get("chat_template")
  if template_path.is_file():
    template = template_path.read_text(encoding="utf-8")
  if isinstance(template, list):  # Several, by name.
    template = {t["name"]: t["template"] for t in template}.get("default")
  eos = tokenizer.token_to_id(special_tokens.get("eos_token", ""))
  try:
    return ChatTokenizer(
      tokenizer,
      chat_template=template,
      special_tokens=special_tokens,
      stop_token_ids=_stop_token_ids(model_dir, eos),
    )
  except (ValueError, jinja2.TemplateError) as error:
    raise ValueError(f"{model_dir}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
  """The file's object; {} where there is no such file."""
  if not path.is_file():
    return {}
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except json.JSONDecodeError as error:
    raise ValueError(f"{path}: not JSON ({error})") from error


def _stop_token_ids(model_dir: Path, eos: int | None) -> tuple[int, ...]:
  """All ids that the folder declares as ends, in a fixed order."""
  found = set() if eos is None else {eos}
  for name in ("generation_config.json", "config.json"):
    declared = _read_json(model_dir / name).get("eos_token_id")
    if declared is not None:
      found.update(declared if isinstance(declared, list) else [declared])
  return tuple(sorted(found))


def save_embedded_tokenizer(
  model_dir: str | Path, fragments: Sequence[str]
) -> None:
  """Writes a byte-level tokenizer that knows the fragments' words whole.

  Any text survives encoding and decoding: what is no known word falls to bytes.

  Args:
    model_dir: folder to write tokenizer.json and tokenizer_config.json to.
    fragments: texts; each of their pre-tokens becomes one token.
  """
  splitter = pre_tokenizers.Sequence(
    [
      pre_tokenizers.Split(tokenizers.Regex(_PATTERN), behavior="isolated"),
      pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
  )
  words = dict.fromkeys(
    piece
    for fragment in fragments
    for piece, _ in splitter.pre_tokenize_str(fragment)
  )
  pieces = dict.fromkeys(
    [*_SPECIAL, *words, *sorted(pre_tokenizers.ByteLevel.alphabet())]
  )
  vocab = {piece: i for i, piece in enumerate(pieces)}
  # Without merges a piece is either known whole (ignore_merges) or bytes.
  tokenizer = tokenizers.Tokenizer(
    models.BPE(vocab=vocab, merges=[], ignore_merges=True)
  )
  tokenizer.pre_tokenizer = splitter
  tokenizer.decoder = decoders.ByteLevel()
  tokenizer.add_special_tokens(
    [tokenizers.AddedToken(t, special=True) for t in _SPECIAL]
  )
  model_dir = Path(model_dir)
  model_dir.mkdir(parents=True, exist_ok=True)
  tokenizer.save(str(model_dir / "tokenizer.json"))
  config = {
    "chat_template": _CHAT_TEMPLATE,
    "clean_up_tokenization_spaces": False,
    "eos_token": END,
    "pad_token": PAD,
    "tokenizer_class": "PreTrainedTokenizerFast",
  }
  (model_dir / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
