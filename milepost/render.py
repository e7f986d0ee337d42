"""Messages and text become ids here and nowhere else, so that what is counted, sampled from and trained on is one thing.

Chat: the tokenizer's template with the generation prompt; its special tokens are the template's business. Text: the
plain encoding after the tokenizer's own leading tokens (its BOS), once. Nothing here ever cuts a prompt: one that is
too long is dropped whole and counted, or refused. Text that spells out a special token means that token.

What a template does is found by asking it; how it writes tool calls, in call_style.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from milepost.sections import TasksSection
from milepost.types import DataError, Message, RecipeError

_QUESTION, _PROBE = "?", "milepost"  # a question and an answer, to see what a template does with them
_MARK = '[milepost "{}"]'  # stands for a message while its template is rendered; in JSON it reads otherwise
_KEPT = ("<tool_call>", "</tool_call>", "<think>", "</think>")  # what a reader of actions looks for, special token or not

Schemas = Sequence[Mapping[str, Any]]
"""Tools, as a chat template is given them."""


def uses_chat(tokenizer: Any, section: TasksSection) -> bool:
    """Whether prompts go through the chat template. Raises RecipeError if chat is asked for and there is none."""
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if section.format == "chat" and not has_template:
        raise RecipeError('tasks.format = "chat", but the model\'s tokenizer has no chat template; use "text" or "auto"')
    return section.format == "chat" or (section.format == "auto" and has_template)


def prompt_ids(prompt: str | Sequence[Message], tokenizer: Any, section: TasksSection, schemas: Schemas = ()) -> np.ndarray:
    """int32 [n]: exactly the ids the policy is given. A text prompt is one user message; messages are taken as they are.

    In text format messages are joined by newlines; in chat the template is given `schemas` to show. Raises DataError when
    the template refuses the messages or the tokenizer does not know a character.
    """
    ids = _encode(tokenizer, _prompt_text(prompt, tokenizer, section, schemas))
    if not uses_chat(tokenizer, section):
        lead = leading_ids(tokenizer)
        ids = ids if ids[: len(lead)] == lead and lead else lead + ids
    if not ids:
        raise DataError(f"prompt {prompt!r} is empty once encoded; every prompt needs at least one token")
    return np.array(ids, dtype=np.int32)


def _prompt_text(prompt: str | Sequence[Message], tokenizer: Any, section: TasksSection, schemas: Schemas = ()) -> str:
    """What is encoded: the rendered template, or the text as it is."""
    if not uses_chat(tokenizer, section):
        return prompt if isinstance(prompt, str) else "\n".join(_content(m) for m in prompt)
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    text = templated(tokenizer, messages, schemas, add_generation_prompt=True)
    if not text.endswith(assistant_header(tokenizer)):
        raise DataError("the tokenizer's chat template does not end this prompt with the assistant's header; check "
                        "that its last message is not the assistant's own")  # fmt: skip
    return text


def length(prompt: str | Sequence[Message], tokenizer: Any, section: TasksSection) -> int:
    """Number of prompt tokens: of the very ids that `prompt_ids` returns, template and system message included.

    Beyond twice `max_prompt_tokens` it may be the count of the prompt's beginning alone: megabytes need not be encoded to
    be refused. A cut changes the tokens next to it only, so a beginning of over twice the limit leaves no doubt.
    """
    limit = 2 * section.max_prompt_tokens
    text = _prompt_text(prompt, tokenizer, section)
    size = 8 * limit  # characters; usual text has 2 to 5 of them in a token
    while size < len(text):
        if (num_tokens := len(_ids(tokenizer, text[:size]))) > limit:
            return num_tokens
        size *= 4
    return len(prompt_ids(prompt, tokenizer, section))


def completion_ids(text: str, tokenizer: Any, section: TasksSection) -> np.ndarray:
    """int32 [n]: a demonstration as the policy would have sampled it, the end-of-turn id included.

    In chat, prompt_ids + completion_ids is how the template renders the whole exchange up to the end of that turn,
    wherever the template writes the answer as it is.
    """
    chat = uses_chat(tokenizer, section)
    end = turn_end_id(tokenizer) if chat else tokenizer.eos_token_id
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise RecipeError("the model's tokenizer has no end-of-turn token, so demonstrations cannot end; set its eos_token")
    header = assistant_header(tokenizer) if chat else ""
    before, both = _encode(tokenizer, header), _encode(tokenizer, header + text)
    # Encoded behind its header: some tokenizers write a space before whatever comes first.
    ids = both[len(before) :] if before and both[: len(before)] == before else _encode(tokenizer, text)
    return np.array([*ids, end], dtype=np.int32)


def opening_ids(messages: Sequence[Message], tokenizer: Any, section: TasksSection, schemas: Schemas = ()) -> np.ndarray:
    """int32 [n]: what an episode of many turns begins with. In text format a line break ends it, as it ends every
    observation: actions stand on lines of their own. Raises DataError like `prompt_ids`."""
    ids = prompt_ids(messages, tokenizer, section, schemas)
    if uses_chat(tokenizer, section):
        return ids
    return np.concatenate([ids, np.array(_ids(tokenizer, "\n", plain=True), np.int32)])


def observation_ids(
    messages: Sequence[Message], last: int, tokenizer: Any, section: TasksSection, schemas: Schemas = ()
) -> np.ndarray:
    """int32 [n]: all that stands between an action and the next one, appended to a history that is never rendered again.

    Chat: what the template writes after an assistant's answer (its end token only if `last`, the last sampled id, is not
    it already; the line break after it always), then the messages, then the assistant's header. Text: the messages, each
    on lines of its own. What an environment says never becomes a special token, whatever it spells out: a policy's own
    words may stand in it; what the tokenizer does not know becomes its unknown token. Raises DataError if the template
    does not take such messages.
    """
    contents = [_content(message) for message in messages]
    if not uses_chat(tokenizer, section):
        return np.array(_ids(tokenizer, "\n" + "".join(f"{text}\n" for text in contents), plain=True), np.int32)
    asked = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _PROBE}]
    marked = [{**m, "content": _MARK.format(i)} for i, m in enumerate(messages)]
    text = templated(tokenizer, [*asked, *marked], schemas, add_generation_prompt=True)
    _, found, frame = text.partition(_PROBE)
    ids = _filled(tokenizer, frame, contents) if found and text.endswith(assistant_header(tokenizer)) else None
    if ids is None:
        roles = ", ".join(dict.fromkeys(str(m.get("role")) for m in messages))
        raise DataError(f"the tokenizer's chat template does not write an answer followed by messages of the roles {roles} "
                        'as they are; use tasks.format = "text"')  # fmt: skip
    return np.array(ids[1:] if ids and ids[0] == last == turn_end_id(tokenizer) else ids, np.int32)


def _filled(tokenizer: Any, frame: str, contents: Sequence[str]) -> list[int] | None:
    """The ids of a rendered template with its marks replaced by texts in which nothing is a special token.

    None if a mark is missing. Where the template writes contents as JSON, so are these.
    """
    ids: list[int] = []
    for i, content in enumerate(contents):
        mark = _MARK.format(i)
        as_json = mark not in frame
        before, found, frame = frame.partition(json.dumps(mark)[1:-1] if as_json else mark)
        if not found:
            return None
        content = json.dumps(content, ensure_ascii=False)[1:-1] if as_json else content
        ids += [*_encode(tokenizer, before), *_ids(tokenizer, content, plain=True)]
    return ids + _encode(tokenizer, frame)


def resumed_ids(
    messages: Sequence[Message], text: str, tokenizer: Any, section: TasksSection, schemas: Schemas = ()
) -> np.ndarray:
    """int32 [n]: a history that begins with `messages` and a text that an environment wrote, at the end of the last message
    if that is the user's, else in one of its own. As in observations, nothing in the text becomes a special token. Raises
    DataError if the template does not write the user's words as they are.
    """
    if not uses_chat(tokenizer, section):
        said = _ids(tokenizer, f"{text}\n", plain=True)
        return np.concatenate([opening_ids(messages, tokenizer, section), np.array(said, np.int32)])
    *before, last = messages
    mark = _MARK.format("text")
    if last.get("role") == "user":
        asked = [*before, {**last, "content": f"{_content(last)}\n{mark}"}]
    else:
        asked = [*messages, {"role": "user", "content": mark}]
    head, found, tail = _prompt_text(asked, tokenizer, section, schemas).rpartition(mark)
    if not found:
        raise DataError("the tokenizer's chat template does not write the user's words as they are; use tasks.format = "
                        '"text"')  # fmt: skip
    said = _ids(tokenizer, text, plain=True)
    return np.array([*_encode(tokenizer, head), *said, *_encode(tokenizer, tail)], np.int32)


def decode(ids: Sequence[int] | np.ndarray, tokenizer: Any) -> str:
    """The text of sampled ids without special tokens and without any tidying of spaces.

    The marks of tool calls and of thought stay, also where the tokenizer has them as special tokens: they are read.
    """
    kept, given = _marks(tokenizer), [int(i) for i in ids]
    if kept.isdisjoint(given):
        return str(tokenizer.decode(given, skip_special_tokens=True, clean_up_tokenization_spaces=False))
    dropped = _special_ids(tokenizer) - kept
    return decode_all([i for i in given if i not in dropped], tokenizer)


def check_format(tokenizer: Any, section: TasksSection) -> str:
    """One sentence on how prompts are rendered. Run at the start: raises RecipeError if the assistant's header is lost."""
    if not uses_chat(tokenizer, section):
        lead = tokenizer.convert_ids_to_tokens(leading_ids(tokenizer))
        return f"prompts are plain text{f' after {lead[0]}' if lead else ''}"
    header = assistant_header(tokenizer)
    tail = prompt_ids(_QUESTION, tokenizer, section)[-len(_encode(tokenizer, header)) :] if header else None
    if tail is not None and decode_all(tail, tokenizer) != header:
        raise RecipeError(f"the chat template's prompt does not end with the ids of its assistant header {header!r}; use "
                          'tasks.format = "text" or fix the template')  # fmt: skip
    return (
        f"prompts go through the chat template and end with {header!r}"
        if header
        else "prompts go through the chat template"
    )


def decode_all(ids: Sequence[int] | np.ndarray, tokenizer: Any) -> str:
    """The text of ids with every special token shown, for people."""
    return str(tokenizer.decode([int(i) for i in ids], skip_special_tokens=False, clean_up_tokenization_spaces=False))


# --- facts about a tokenizer, found by asking it ----------------------------------------------------------------------


@lru_cache(maxsize=16)
def _header(tokenizer: _ByTemplate) -> str:
    ask = [{"role": "user", "content": _QUESTION}]
    bare = templated(tokenizer.inner, ask, add_generation_prompt=False)
    prompt = templated(tokenizer.inner, ask, add_generation_prompt=True)
    header = prompt.removeprefix(bare) if prompt.startswith(bare) else ""
    answered = _exchange(tokenizer.inner)
    before = answered[: answered.rindex(_PROBE)] if answered else prompt
    if not header and before.rstrip() != prompt.rstrip():
        raise RecipeError("the tokenizer's chat template ignores add_generation_prompt: prompts would end without "
                          f'{before.removeprefix(bare)!r}; fix the template or use tasks.format = "text"')  # fmt: skip
    return header


class _ByTemplate:
    """Hashes a tokenizer by its template: facts asked once per template."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner = tokenizer
        self.key = str(tokenizer.chat_template)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByTemplate) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


def assistant_header(tokenizer: Any) -> str:
    """What the template writes to hand over to the assistant ("" for templates that write nothing). Raises RecipeError
    when the template writes a header before answers but not at the end of prompts: then the flag was lost."""
    return _header(_ByTemplate(tokenizer))


def opened_thought(tokenizer: Any, section: TasksSection) -> str:
    """ "<think>" if the template's header for the assistant opens a thought, else ""."""
    opens = uses_chat(tokenizer, section) and assistant_header(tokenizer).rstrip().endswith("<think>")
    return "<think>" if opens else ""


def unopened_ids(ids: np.ndarray, tokenizer: Any, section: TasksSection) -> np.ndarray:
    """int32 [n]: a history that ends with the assistant's header, without the thought that this header opens."""
    if not (mark := opened_thought(tokenizer, section)):
        return ids
    header = assistant_header(tokenizer)
    bare = _encode(tokenizer, header[: header.rindex(mark)])
    return np.concatenate([ids[: len(ids) - len(_encode(tokenizer, header))], np.array(bare, np.int32)])


def turn_end_id(tokenizer: Any) -> int | None:
    """The special token that the chat template writes right after an assistant's answer, or None."""
    answered = _exchange(tokenizer) if getattr(tokenizer, "chat_template", None) else ""
    if not answered:
        return None
    rest = tokenizer.encode(answered[answered.rindex(_PROBE) + len(_PROBE) :].lstrip(), add_special_tokens=False)
    return int(rest[0]) if rest and rest[0] in _special_ids(tokenizer) else None


def leading_ids(tokenizer: Any) -> list[int]:
    """What the tokenizer puts before any plain text by itself: [BOS] or nothing."""
    plain = tokenizer.encode("a", add_special_tokens=False)
    marked = tokenizer.encode("a", add_special_tokens=True)
    for start in range(len(marked) - len(plain) + 1):
        if marked[start : start + len(plain)] == plain:
            return [int(i) for i in marked[:start]]
    return []


def _special_ids(tokenizer: Any) -> set[int]:
    return {i for i, token in tokenizer.added_tokens_decoder.items() if token.special} | set(tokenizer.all_special_ids)


def _marks(tokenizer: Any) -> set[int]:
    """The ids of single tokens that mark calls or thought."""
    found = zip(_KEPT, tokenizer.convert_tokens_to_ids(list(_KEPT)))
    return {int(i) for mark, i in found if i is not None and tokenizer.convert_ids_to_tokens(i) == mark}


def _exchange(tokenizer: Any) -> str:
    """A rendered question and answer, or "" if the template refuses assistant messages."""
    messages = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _PROBE}]
    try:
        text = templated(tokenizer, messages, add_generation_prompt=False)
    except DataError:
        return ""
    return text if _PROBE in text else ""


def templated(
    tokenizer: Any, messages: Sequence[Mapping[str, Any]], schemas: Schemas = (), *, add_generation_prompt: bool
) -> str:
    """What the tokenizer's chat template makes of messages and tools. Raises DataError."""
    tools = [dict(tool) for tool in schemas] or None
    try:
        text = tokenizer.apply_chat_template(list(messages), tools=tools, tokenize=False,
                                             add_generation_prompt=add_generation_prompt)  # fmt: skip
    except Exception as error:  # jinja raises what the template's author chose
        roles = ", ".join(str(m.get("role")) for m in messages)
        raise DataError(f"the model's chat template refuses messages with the roles {roles} ({error}); change the roles or "
                        'use tasks.format = "text"') from error  # fmt: skip
    return str(text)


def _content(message: Message) -> str:
    content = message.get("content")
    if not isinstance(content, str):
        raise DataError(f"a message of role {message.get('role')!r} has no text content; text format needs a string there")
    return content


def _encode(tokenizer: Any, text: str) -> list[int]:
    """Ids without added special tokens. Raises DataError naming the first character the tokenizer does not know."""
    ids = _ids(tokenizer, text)
    unknown = getattr(tokenizer, "unk_token_id", None)
    if unknown is not None and unknown in ids:
        piece = _unknown_piece(tokenizer, text, unknown)
        if piece is not None:
            raise DataError(f"the tokenizer does not know {piece!r} (U+{ord(piece[0]):04X}) in {_near(text, piece)!r}; use "
                            "characters it knows, or make the policy with a charset or texts that hold it")  # fmt: skip
    return ids


def _ids(tokenizer: Any, text: str, *, plain: bool = False) -> list[int]:
    """Ids without added special tokens; `plain`: nor those that the text spells out. What is unknown is the unknown id."""
    # verbose: what is too long is told by Milepost, with its line
    own = {"split_special_tokens": True} if plain else {}
    return [int(i) for i in tokenizer.encode(text, add_special_tokens=False, verbose=False, **own)]


def _unknown_piece(tokenizer: Any, text: str, unknown: int) -> str | None:
    """The unknown character or word; None where the text spells out the unknown token itself, which is then meant."""
    if tokenizer.is_fast:
        coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        pieces = [text[a:b] for i, (a, b) in zip(coded["input_ids"], coded["offset_mapping"]) if i == unknown]
    else:
        pieces = [c for c in dict.fromkeys(text) if unknown in tokenizer.encode(c, add_special_tokens=False)]
    return next((piece for piece in pieces if piece.strip() != tokenizer.unk_token and piece), None)


def _near(text: str, piece: str) -> str:
    at = text.find(piece)
    return text[max(0, at - 20) : at + len(piece) + 20]
