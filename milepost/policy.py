"""Makes a small policy: a Llama of 0.5 to 15 million random weights with a tokenizer of its own, as a plain folder.

It is the test bed for everything that must be shown to learn within a minute. Its tokenizer knows characters (by
default printable ASCII and newline) or the words of given texts, and nothing else: an unknown character is an error
when a prompt is rendered, never a silent <unk>. Prompts are plain text; <end> ends a turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from milepost.embedded import cache_root, quiet
from milepost.models import writing
from milepost.sections import MAX_INTEGER, NewPolicySection
from milepost.sources import load_named
from milepost.types import RecipeError

PAD, END, UNKNOWN = "<pad>", "<end>", "<unk>"
"""Ids 0, 1, 2. Padding is never the end of a turn, so that a mask taken from ids could not lose the end either."""

CHARSET = "\n" + "".join(map(chr, range(32, 127)))
"""The default characters: newline and printable ASCII."""

_PATTERNS = {
    "characters": r"[\s\S]",
    # Digits singly, so that numbers never seen are known; every blank is a token, so that decoding is exact.
    "words": r"\d|[^\W\d]+|[\s\S]",
    # Digits in pairs from the left: an id of two digits is one token, and copying it one step.
    "pairs": r"\d{1,2}|[^\W\d]+|[\s\S]",
}


@dataclass(frozen=True)
class Shape:
    """Of a Llama with tied embeddings and one key head per head: layers · (4·width² + 3·width·inner) + V·width weights."""

    layers: int
    width: int
    heads: int
    inner: int


SIZES = {
    "tiny": Shape(layers=4, width=96, heads=4, inner=288),  # 0.5 M with the default characters
    "small": Shape(layers=5, width=128, heads=4, inner=352),  # 1.0 M
    "medium": Shape(layers=5, width=256, heads=8, inner=688),  # 4.0 M
    "large": Shape(layers=6, width=448, heads=7, inner=1248),  # 14.9 M
}


def new_policy(
    folder: str | Path,
    *,
    texts: Iterable[str] | None = None,
    charset: str | None = None,
    tokens: Literal["characters", "words", "pairs"] = "characters",
    size: str = "tiny",
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    context: int = 2048,
    seed: int = 0,
) -> int:
    """Writes a new policy to `folder`, which must not exist yet, and returns its number of weights.

    The vocabulary is that of `texts` (characters or words), or `charset`, or CHARSET. `layers`, `width` and `heads`
    override the named size. The same arguments write the same bytes. Raises RecipeError.
    """
    target = Path(folder)
    if target.exists():
        raise RecipeError(f"policy new: {target} exists already; name a folder that does not, or delete it first")
    if not 0 <= seed <= MAX_INTEGER:
        raise RecipeError(f"policy new: seed = {seed} must be a whole number from 0 to {MAX_INTEGER}; 0 works")
    shape = shape_of(size, layers, width, heads)
    tokenizer = make_tokenizer(vocabulary(texts, charset, tokens), tokens, context)
    model = make_model(shape, len(tokenizer), context, seed)
    with writing(target) as work, quiet():
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)
    return sum(parameter.numel() for parameter in model.parameters())


def made_policy(section: NewPolicySection) -> Path:
    """The policy that `[model.new]` describes: made on first use, in a folder of the cache that is named by what it is.

    Raises RecipeError.
    """
    texts = load_named(section.texts, "model.new.texts", "text", _is_text, _is_text) if section.texts else None
    texts = [texts] if isinstance(texts, str) else texts
    pieces = vocabulary(texts, None, section.tokens)
    shape = shape_of(section.size, section.layers or None, section.width or None, section.heads or None)
    what = repr((astuple(shape), pieces, section.tokens, section.context, section.seed, transformers.__version__))
    folder = cache_root() / f"{section.size}-{hashlib.blake2b(what.encode(), digest_size=6).hexdigest()}"
    if not folder.exists():
        new_policy(folder, texts=texts, tokens=section.tokens, size=section.size, layers=section.layers or None,
                   width=section.width or None, heads=section.heads or None, context=section.context,
                   seed=section.seed)  # fmt: skip
    return folder


def _is_text(value: Any) -> bool:
    return isinstance(value, (str, list, tuple)) and bool(value) and all(isinstance(text, str) for text in value)


def shape_of(size: str, layers: int | None, width: int | None, heads: int | None) -> Shape:
    """A named size with overrides; the inner width stays 8/3 of the width, in steps of 16. Raises RecipeError."""
    if size not in SIZES:
        raise RecipeError(f"policy new: size = {size!r} is not one of {', '.join(SIZES)}; tiny trains in seconds")
    base = SIZES[size]
    width = base.width if width is None else width
    heads = base.heads if heads is None else heads
    layers = base.layers if layers is None else layers
    if min(layers, width, heads) < 1:
        raise RecipeError("policy new: layers, width and heads must be at least 1; leave them out to take the size's own")
    if width % (2 * heads):
        works = 2 * heads * max(1, round(width / (2 * heads)))
        raise RecipeError(f"policy new: width = {width} must be a multiple of twice heads = {heads}; {works} works")
    inner = base.inner if width == base.width else 16 * max(1, round(width * 8 / 3 / 16))
    return Shape(layers, width, heads, inner)


def vocabulary(texts: Iterable[str] | None, charset: str | None, tokens: str) -> list[str]:
    """The distinct pieces, sorted, without the special tokens. Raises RecipeError if there are none to be had."""
    if tokens not in _PATTERNS:
        raise RecipeError(
            f'policy new: tokens = {tokens!r} is not one of {", ".join(_PATTERNS)}; "characters" always works'
        )
    if tokens != "characters" and texts is None:
        raise RecipeError(
            f'policy new: tokens = "{tokens}" needs texts to take the words from; use "characters" without them'
        )
    if texts is not None and charset is not None:
        raise RecipeError("policy new: give texts or charset, not both; texts already brings its own characters")
    if texts is None:
        pieces = set(CHARSET if charset is None else charset)
    else:
        split = _splitter(tokens)
        pieces = {piece for text in texts for piece, _ in split.pre_tokenize_str(text)}
        pieces |= {*"0123456789 \n"} if tokens != "characters" else set()
        pieces |= {f"{pair:02}" for pair in range(100)} if tokens == "pairs" else set()
    pieces.discard("")
    if not pieces:
        raise RecipeError("policy new: the vocabulary would be empty; give texts or a charset with at least one character")
    return sorted(pieces)


def make_tokenizer(pieces: list[str], tokens: str, context: int) -> PreTrainedTokenizerFast:
    """Each piece is one id, from 3 on in the order given; decoding joins them as they are."""
    ids = {piece: i for i, piece in enumerate([PAD, END, UNKNOWN, *pieces])}
    inner = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    inner.pre_tokenizer = _splitter(tokens)
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token=PAD, eos_token=END, unk_token=UNKNOWN, model_max_length=context,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def _splitter(tokens: str) -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(_PATTERNS[tokens]), behavior="isolated")


def make_model(shape: Shape, num_tokens: int, context: int, seed: int) -> LlamaForCausalLM:
    """Random float32 weights that depend on `seed` alone; the caller's random state is left as it was."""
    config = LlamaConfig(
        vocab_size=num_tokens, hidden_size=shape.width, intermediate_size=shape.inner, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, num_key_value_heads=shape.heads, max_position_embeddings=context,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=1, pad_token_id=0,
        # Half of 1/√width: 400 steps on two-digit sums reached loss 0.12, against 0.33 with the usual 0.02.
        initializer_range=0.5 * shape.width**-0.5,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    model.generation_config = GenerationConfig(eos_token_id=1, pad_token_id=0)
    return model.eval()
