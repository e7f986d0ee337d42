r"""What a line of prose answers: neither what leads to its answer nor the courtesies behind it.

    after_lead_in("So the answer is 17.")                                 -> "17."
    after_lead_in("答えは17です。")                                         -> "17"
    without_courtesy("The answer is $17$. I hope it is correct.")         -> "The answer is $17$."
    without_courtesy("The answer is $17$. I hope it is not correct.")     -> the same, for that says something

Of lead-ins the last one of a line counts; those of the languages in `LANGUAGES` are known.
"""

from __future__ import annotations

import re

from milepost.verifiers.around import REACH, is_denied, is_one_of_two, is_part

# --- lead-ins -------------------------------------------------------------------------------------------------------

_SPACED = {
    "German": (r"(?:Antwort|Ergebnis|Lösung)", r"(?:ist|lautet|beträgt)"),
    "French": (r"(?:réponse|résultat)(?: finale?| correcte?)?", r"(?:est|vaut)"),
    "Spanish": (r"(?:respuesta|resultado)(?: final| correct[ao])?", r"es"),
    "Portuguese": (r"(?:resposta|resultado)(?: final| corret[ao])?", r"é"),
    "Italian": (r"(?:risposta|risultato)(?: finale| corrett[ao])?", r"(?:è|vale)"),
    "Russian": (r"(?:ответ|результат)", r"равен"),
}
_UNSPACED = {
    "Chinese": (r"(?:答案|结果|結果)", r"[是为為]"),
    "Japanese": (r"(?:答え|解答|正解)", r"は"),
    "Korean": (r"(?:정답|답)", r"[은는]"),
}
"""The words for answer and result, and the verb between them and it where no colon or dash is."""
LANGUAGES = ("English", *_SPACED, *_UNSPACED)
_LETTER = r"[^\W\d_]"

_LEAD_IN = re.compile(
    "|".join([
        r"(?<!wrong )(?<!incorrect )(?:answer|result|(?:correct|right) (?:option|choice))\*{0,2}\s*(?:is|:|=)\*{0,2}\s*:?",
        *(rf"(?<!{_LETTER}){word}(?:\*\*)?\s*(?:{verb}(?!{_LETTER})|[:=]|[—–](?=\s))(?:\*\*)?\s*:?"
          for word, verb in _SPACED.values()),
        r"故选\s*[:：]?",
        *(rf"{word}(?:\*\*)?\s*(?:{verb}|[:：=])(?:\*\*)?\s*[:：]?" for word, verb in _UNSPACED.values()),
    ]),
    re.IGNORECASE,
)  # fmt: skip
_VERB_BEHIND = re.compile(r"\s*(?:(?:です|である|だ|となります|になります|입니다|이다)[\s*]*[。.]?|。)[\s*]*\Z")
"""Of Japanese and Korean. What says "is not" ends otherwise."""
_SEGMENT = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")

# What may stand before an answer and behind it without saying anything.
_THUS = re.compile(
    r"(?:=(?=\s)|(?:and|so|thus|hence|therefore|then|consequently|finally|we (?:get|have|find|obtain|conclude)(?: that)?"
    r"|(?:this|which|it) (?:gives|means|yields|follows)(?: us)?(?: that)?)\b[\s,:]*+)+",
    re.IGNORECASE,
)
_SO_TO_SAY = re.compile(
    r"\s*(?:(?:equal to|exactly|definitely|simply|just|clearly|indeed|therefore|thus|then)\b\s*)*", re.IGNORECASE
)
_BOLD = re.compile(r"\s*(\*{1,3}|__?|\"|“|`)([^*_\"“”`]+)(?:\1|”)([.!]?)\s*\Z")
_WHY = re.compile(
    r"[,;]?\s*[(\[]?(?:because|since|as)\b(?!.*(?:\b(?:not|no|or|wrong|but|actually|wait)\b|n['’]t\b)).*\Z", re.IGNORECASE
)
_QED = re.compile(r"(?:[∎□■◻◼]|\$?\\(?:blacksquare|square|Box|qed)(?![A-Za-z])\$?|Q\.?E\.?D\.?)\Z")
_LONGEST_REASON = 300
_ORNAMENTS = " \ufe0f✅✔✓☑🎉👍🙂😊✨"

# What makes of a lead-in none.
_NO_LEAD = "not|no|never|either|neither|wrong|incorrect|false|mistaken"
_NO_LEAD_IN = re.compile(rf"\b(?:{_NO_LEAD})\b", re.IGNORECASE)
_DOUBTED = re.compile(
    r"\b(?:not|n['’]t|doubt|doubts|whether|nobody|never|previous|earlier|unlikely)\b[^,.;:!?]*\Z", re.IGNORECASE
)

# In a box or a tag only words may stand before the lead-in, which may be a label too.
_WORDS_BEFORE = re.compile(rf"(?:\*\*|\\text\s*\{{|\s)*(?:(?!(?:{_NO_LEAD})\b){_LETTER}++[ ,]*+){{0,8}}", re.IGNORECASE)
_LABEL = re.compile(r"(?:\*\*|\\text\s*\{|\s)*([A-Za-z]{3,}+(?: [A-Za-z]++){0,4})\}?:(?:\*\*|\s|\})+")
_NO_LABEL = re.compile(
    r"\b(?:less|more|than|half|twice|double|ruled|least|most|between|one of|except|not|no)\b", re.IGNORECASE
)

_DECIMAL_COMMA = re.compile(r"(?<![\d,.])(\d+),(\d{1,2}|\d{4,})(?![\d,]|\.\d)")


def after_lead_in(line: str) -> str:
    """What a line answers: what follows "the answer is", or its only formula, or all of it but a "so" and a ∎."""
    line = _unbold(without_courtesy(line).rstrip().rstrip(_ORNAMENTS))
    line = line[:-20] + _QED.sub("", line[-20:]).rstrip()
    if lead := list(_LEAD_IN.finditer(line)):
        start, end = lead[-1].span()
        if _DOUBTED.search(line, max(0, start - REACH), start):
            return line
        english = re.match("answer|result|correct|right", line[start:end], re.IGNORECASE)
        line = _behind(line, end)
        line = line if english else _DECIMAL_COMMA.sub(r"\1.\2", line)
    elif len(formulas := list(_SEGMENT.finditer(line))) == 1:
        only, said = formulas[0], "".join(part or "" for part in formulas[0].groups())
        before, after = line[max(0, only.start() - REACH) : only.start()], line[only.end() : only.end() + REACH]
        if not (is_denied(before, after) or is_part(before, after) or is_one_of_two(before, after, said)):
            line = said
    elif not formulas and (thus := _THUS.match(line)):
        line = line[thus.end() :]
    return line.strip().strip("*").strip()


def _unbold(line: str) -> str:
    """Without the ** of bold numbers, which units may follow: **18** dollars, **Answer: 18** dollars. Not of 2**3."""
    marks = [mark.span() for mark in re.finditer(r"\*\*+", line)]
    paired = len(marks) == 2 and line[marks[0][1] : marks[0][1] + 1].strip() and line[: marks[1][0]][-1:].strip()
    if not paired or re.search(r"[\w)]\*\*+[\w(]", line):
        return line
    (begin, start), (end, behind) = marks
    return line[:begin] + line[start:end] + line[behind:]


def led_in(text: str) -> str | None:
    """What follows in "The answer is 17", "Total: 17", \\text{Answer: } 17; None where nothing leads in, or a "not"."""
    lead = _LEAD_IN.search(text, 0, 100)
    label = None if lead else _LABEL.match(text)
    if not (lead := lead or label) or _DOUBTED.search(text, 0, lead.start()) or _NO_LEAD_IN.search(lead[0]):
        return None
    if not _WORDS_BEFORE.fullmatch(text, 0, lead.start()) or (label and _NO_LABEL.search(label[0])):
        return None
    return _behind(text, lead.end()).strip("* ") or None


def _behind(text: str, at: int) -> str:
    """What stands there, without what dresses it, its reason, and the brace that closes the \\text of a lead-in."""
    said = _VERB_BEHIND.sub("", text[at:])
    if bold := _BOLD.match(said):
        said = bold[2] + bold[3]
    if re.match(r"(?:\*\*|\s)*\\text", text[:at]) and said.count("}") > said.count("{"):
        said = said.replace("}", "", 1)
    if len(said) <= _LONGEST_REASON:
        said = _WHY.sub("", _SO_TO_SAY.sub("", said, count=1))
    return said


# --- courtesies -----------------------------------------------------------------------------------------------------

# A courtesy says nothing: no digit, no formula, no letter alone, and none of the words by which a sentence takes back.
_SAYS_MORE = (
    "not|no|never|none|nor|wrong|incorrect|mistaken|mistakes?|errors?|but|yet|however|actually|instead|rather|although|though"
    "|unless|except|otherwise|wait|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
)
_WORD = rf"(?:[ ,]+(?!(?:{_SAYS_MORE})\b|[a-z]+n['’]t\b)(?:[a-z]{{2,20}}(?:['’][a-z]{{1,3}})?|i|a)(?![\w'’]))"
_ABOUT_HELP = r"(?=[^.!?]*\b(?:questions?|help|clarif\w+|expla\w+|details?|steps?|know|ask|unclear)\b)"
_COURTESY = re.compile(
    r"(?:(?<=[^\w\s,;:+=<>(\\-])\s+|\A\s*)\**(?:"
    rf"(?:(?:i|we)[ ]+)?(?:(?:really|sincerely|do)[ ]+)?hope(?:fully)?{_WORD}{{1,12}}"
    r"|(?:(?:and|so|please|just)[ ,]+){0,3}(?:let (?:me|us) know|feel free|reach out|(?:do not|don['’]t) hesitate)"
    rf"{_WORD}{{0,24}}"
    rf"|(?:should|if){_ABOUT_HELP}{_WORD}{{1,24}}"
    rf"|(?:do you have|is there anything|would you like){_ABOUT_HELP}{_WORD}{{1,12}}"
    rf"|(?:many )?thank(?:s| you){_WORD}{{0,10}}"
    r"|have an? (?:great|nice|good|wonderful|lovely) (?:day|time|week|weekend)(?: ahead)?"
    rf"|(?:good luck|best of luck|you['’]re welcome|(?:glad|happy) (?:to|i)){_WORD}{{0,8}}"
    r"|best regards|my pleasure|happy (?:learning|studying|solving|calculating|coding)"
    rf"|i(?: am|['’]m) (?:glad|happy|here){_WORD}{{0,8}}"
    r")\s*[.!?…]*\**\s*[^\w\s\\${}()<>\[\]#|^=]{0,6}\s*\Z",
    re.IGNORECASE,
)
_LONGEST = 400


def without_courtesy(text: str) -> str:
    """The text without closing sentences such as "I hope it is correct." or "Let me know if you have questions!"; "" if it
    holds nothing else. What they say beside that, such as "not" or a number, keeps them."""
    for _ in range(4):
        tail = max(0, len(text) - _LONGEST)
        found = _COURTESY.search(text, tail) if tail else _COURTESY.search(text)
        if not found or (tail and found.start() == tail):
            return text
        text = text[: found.start()]
    return text
