r"""What stands around a box: whether the box is a part of a larger formula, and whether it is said to be no answer.

    is_part(r"x > ", "")                 -> True     nor is 2·▢, ▢ + 1, ▢^2, ▢x or \frac{1}{▢} what is said
    is_part("x = ", r"\text{ cm}.")      -> False
    is_denied("it is not ", "")          -> True
    is_denied("", " is wrong.")          -> True

A box is what is said only if no sign of its formula works on it: all of =, ≈, arrows, commas, words, units, degrees and
percent may stand beside it; operators, other relations, functions and factors may not, whether signs or words such as
"million", "or more" and "at least". Outside of a formula + - * < > are signs only between two things, for a dash, a bullet
or a tag is none. Give at most `REACH` characters of either side.
"""

from __future__ import annotations

import re
from fractions import Fraction

REACH = 160

_GAP = r"[ \t\u00a0]|\\{1,2}[,;:! ]|~|\\{1,2}(?:q?quad|displaystyle|textstyle|left|right|[bB]igg?[lr]?)(?![A-Za-z])"
_DRESSED_BEFORE = re.compile(rf"(?:{_GAP}|\{{|\$|\\{{1,2}}[(\[]|[(\[]|&)++\Z")
_DRESSED_AFTER = re.compile(rf"(?:{_GAP}|\}}|\$|\\{{1,2}}[)\]]|[)\]])*+")

_OPERATORS = (
    "cdot|times|div|pm|mp|ast|cup|cap|setminus|backslash|bmod|over|atop|choose|lt|gt|leq?|geq?|leqslant|geqslant|ll|gg"
)
_FACTORS = (
    "sqrt|[dtc]?frac|[dt]?binom|pi|infty|alpha|beta|gamma|delta|theta|varphi|phi|lambda|sigma|tau|omega|sin|cos|tan|cot"
    "|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|lg|exp|gcd|lcm|overline|bar|hat|vec"
)
"""Without \\mu and \\Omega, with which units begin."""
_LETTER = r"(?<![A-Za-z\\])[A-Za-z]"
_OPERAND = rf"(?:\d|[)}}\]%]|{_LETTER})"
_NEXT = (
    r"(?:\d[\d.,]*+(?!\s+[A-Za-z]{2})|\\{1,2}(?!text|math|mbox|q?quad)[A-Za-z]|\(\s*[\d\\]"
    r"|[A-Za-z](?![A-Za-z]|\s+[A-Za-z]{2}))"
)
_VARIABLE = r"[abcdefijknopqrtuvwxyzBDEGHIMOPQRSTUXYZ](?![A-Za-z])"
"""A letter that is no unit."""

_BEFORE_CLOSE = re.compile(
    rf"(?:(?:\A|[\s=(:$\[])[-−]|(?<![A-Za-z])\d|{_LETTER}|(?:\d|(?<![A-Za-z])[A-Za-z])\(|(?:\d|[)}}]|{_LETTER})[-−]|\d[–—]"
    r"|\\{1,2}[dtc]?frac\s*\{[^{}]{0,80}\}\s*\{[^{}]{0,80}\})\Z"
)
_ARGUMENT = r"(?:\[[^\[\]]{0,20}\])?(?:[_^]\w|[_^]?\{[^{}]{0,80}\})?"
_BEFORE = re.compile(
    rf"(?:[=(] *[-−]|\$[-−]|\^|(?<=[A-Za-z0-9}})])_|\\{{1,2}}(?:{_OPERATORS}|(?:{_FACTORS})\s*{_ARGUMENT})\s*"
    rf"|[±∓√≤≥⩽⩾]|{_OPERAND}\s*[·⋅∙×÷/∪∩]|{_OPERAND}\s*\+|(?:\d|[)}}]|{_LETTER})\s*\*"
    rf"|(?:(?<![\w</])\w|(?<![\w</])\d[\d.]*+|(?<![A-Za-z</])[A-Za-z]_\w|[)}}])\s*[<>]=?)\Z"
)
_LABEL = r"(?<!problem )(?<!question )(?<!step )(?<!part )(?<!case )(?<!exercise )(?<!example )"
_MINUS_BEFORE = re.compile(
    rf"(?:\A|[^\w.])(?:{_LABEL}\d[\d.,]*|[a-z]|(?:\w*[\^_}}]|boxed)\{{[^{{}}]{{0,80}}\}})[ ]+[-−]\Z", re.IGNORECASE
)

_AFTER_CLOSE = re.compile(rf"_[\d{{]|\d|[.,:]\d|–[\d\\]|{_VARIABLE}|(?:\\{{1,2}}left\s*)?\((?:\d+|[A-Za-z])\s*[-+*/^]")
_AFTER = re.compile(
    r"\^(?!\s*\{?\s*(?:\\{1,2}circ|°|\\{1,2}prime|\*))|!(?=[\s]*(?:\$|\\\)|\\\]|[-+*/=\^)]))|!="
    rf"|/\s*[({{]*\s*(?:\d|\\{{1,2}}(?!text|math|mbox)[A-Za-z]|{_VARIABLE})|[·⋅∙×÷±∓∪∩≤≥⩽⩾≠√]"
    rf"|\s*\\{{1,2}}(?:{_OPERATORS}|{_FACTORS}|neq?)(?![A-Za-z])|[-−+]\s*{_NEXT}|[<>]=?\s*(?:\d|\\|[A-Za-z](?![A-Za-z>/]))"
)
_STAR_AFTER = re.compile(rf"\*(?!\*)\s*{_NEXT}")

SCALE_WORDS = """hundred thousand million billion trillion quadrillion quintillion sextillion dozen dozens lakh lakhs lac
lacs crore crores grand gross myriad myriads hundreds thousands millions billions trillions quadrillions mil mln mld mn bn
mio mrd tsd bio hundert tausend tausende millionen milliarde milliarden billionen dutzend millones millón millon milliard
milliards
mille milliers douzaine douzaines milioni miliardo miliardi milione mila migliaia milhão milhões milhoes bilhão bilhões
cientos miles docena docenas тысяч тысячи тысяча тыс миллион миллиона миллионов млн миллиард миллиарда миллиардов млрд"""
"""Behind a number they multiply it. Capitals as in German do not count."""
_TEXT = r"(?:\\{1,2}(?:text\w*|mbox|mathrm)\s*\{)"
_SPACES = rf"(?:{_GAP}|\}}|\$|\\{{1,2}}[)\]]|[*_]{{1,2}}|{_TEXT})*+"
_SCALE = "|".join(word for word in SCALE_WORDS.split() if word != "miles")
_SCALED = re.compile(
    rf"{_SPACES}(?:(?i:[-–]?(?:{_SCALE})(?![^\W\d_])(?![ ]+(?:pianos?|total)))|[万萬亿億兆千百만억천백]"
    rf"|[kMB](?![A-Za-z/^²]))|\$?{_TEXT}?K(?![A-Za-z/^²])"
)
"""A K with a space before it is kelvin."""
_UNIT = (
    r"(?:feet|foot|ft|inch(?:es)?|in|yards?|miles?|hours?|hrs?|min(?:ute)?s?|sec(?:ond)?s?|days?|weeks?|months?|years?"
    r"|dollars?|cents?|euros?|pounds?|ounces?|lbs?|oz|kg|kilograms?|g|grams?|km|m|cm|mm|(?:kilo|centi|milli)?met(?:er|re)s?"
    r"|degrees?|lit(?:er|re)s?|ml)"
)
_MORE_OR_LESS = re.compile(
    rf"{_SPACES}(?:(?:squared|cubed)\b|(?:times|plus|minus|divided[ \t]+by)[ \t]+[$(]?-?\d"
    rf"|to[ \t]+[$(]?\d[\d.,]*+[$)]?[.,;!]?(?=\s|\Z)|(?:with[ \t]+)?(?:a[ \t]+)?(?:remainder|R|r)[ \t]+(?:of[ \t]+)?[$(]?\d"
    rf"|{_UNIT}\.?{_SPACES}(?:and[ \t]+)?{_SPACES}\d[\d.]*+{_SPACES}{_UNIT}(?![A-Za-z])"
    r"|or[ \t]+(?:more|less|fewer|higher|lower|greater|above|below|so)\b|and[ \t]+a[ \t]+(?:half|quarter)\b"
    r"|out[ \t]+of\b(?=[^\w\n]{0,6}(?:\d|\\|[a-z](?![a-z]))))",
    re.IGNORECASE,
)
_BOUND_BEFORE = re.compile(
    r"\b(?:at[ \t]+(?:least|most)|(?:more|less|fewer|greater|smaller|larger|higher|lower)[ \t]+than|up[ \t]+to"
    r"|(?:half|third|quarter|fourth|fifth|tenth|thirds|root|square|cube|reciprocal|inverse|opposite|negation)[ \t]+of"
    r"|twice|double|triple|negative|minus|between)(?:[ \t]|[$*_`{}]|\\{1,2}[(\[])*+\Z",
    re.IGNORECASE,
)


def is_part(before: str, after: str) -> bool:
    """Whether a box with this text before and behind it is only a part of what its formula says."""
    starred = before.endswith("*")  # *▢* and **▢** are emphasis
    bare, rest = _DRESSED_BEFORE.sub("", before), after[_DRESSED_AFTER.match(after).end() :]  # type: ignore[union-attr]
    return bool(
        _BEFORE_CLOSE.search(before)
        or (_BEFORE.search(bare) and not (bare.endswith("*") and (bare.endswith("**") or after.startswith("*"))))
        or (_MINUS_BEFORE.search(bare))
        or _AFTER_CLOSE.match(after)
        or _AFTER.match(rest)
        or _SCALED.match(after)
        or _MORE_OR_LESS.match(after)
        or _BOUND_BEFORE.search(before)
        or (not starred and _STAR_AFTER.match(rest))
    )


_PLAIN = r"[-−]?\d[\d,]*+(?:\.\d++)?"
_OR, _OR_AND = (
    rf"(?:\s*\(?(?:\\{{1,2}}lor(?![A-Za-z])|{_TEXT}?\s*\b(?:{words})\b)(?:\s+(?:possibly|maybe|perhaps|also|even))?\s*\}}?)"
    for words in ("or", "or|and")
)
_ANOTHER_BEHIND = re.compile(
    rf"{_SPACES}(?P<joint>{_OR_AND}|[=,;]){_SPACES}(?P<other>{_PLAIN}){_SPACES}\)?[.!]?"
    r"(?:\s*\Z|\s*\n|[.!]\s|,?\s*(?:perhaps|maybe|possibly|probably|if|depending|when|otherwise|unless)\b)"
)
_ANOTHER_BEFORE = re.compile(rf"(?<![\w.])({_PLAIN})(?:[ \t$]|\\{{1,2}}[)\]])*+{_OR}(?:[ \t$*]|\\{{1,2}}[(\[])*+\Z")


_SEQUENCE = re.compile(r"\d\s*,(?:[ \t$]|\\{1,2}[)(\]\[,; ])*+\Z")
"""3, 5, ▢, 9 asks for what is missing."""


def is_one_of_two(before: str, after: str, content: str) -> bool:
    """Whether another number than the one in the box is joined to it: "▢ or 74", "74 or ▢", "▢ and 74.", "▢, 74"."""
    if not re.fullmatch(_PLAIN, content.strip()):
        return False
    behind, ahead = _ANOTHER_BEHIND.match(after), _ANOTHER_BEFORE.search(before)
    if behind and behind["joint"] == "," and _SEQUENCE.search(before):
        behind = None
    others = [*([behind["other"]] if behind else []), *([ahead[1]] if ahead else [])]
    number = content.replace(",", "").replace("−", "-")
    return any(_value(other) != _value(number) for other in others)


def _value(number: str) -> Fraction:
    return Fraction(number.replace(",", "").replace("−", "-").strip()[:300])


# --- what is taken back ---------------------------------------------------------------------------------------------

_NOT = re.compile(
    r"(?:(?:\b(?:not|never|cannot|anything but|instead of|rather than|other than|rul(?:e|es|ed|ing) out|reject(?:s|ed)?"
    r"|exclud(?:e|es|ed|ing))|n['’]t)(?:[ \t]+(?:be|equal(?:[ \t]+to)?))?"
    r"|\b(?:(?:do|did|would|could|can|should)(?:n['’]t|[ \t]*not)|never)[ \t]+(?:think|believe|say|claim|agree|mean"
    r"|conclude|suppose)\b(?:[ \t]+[a-z'’]+){0,6}"
    r"|\b(?:wrong|incorrect|false)[ \t]+(?:final[ \t]+)?(?:answer|value|result|choice|option)[ \t]+"
    r"(?:is|was|would[ \t]+be)[ \t]*:?"
    r"|不是|不為|不为|并非|並非|\bnicht|\bkeine?|\bno[ \t]+(?:es|son)|n['’]est[ \t]+pas|\bnon[ \t]+è|\bnão[ \t]+é|\bне"
    r"(?:[ \t]+(?:равен|является|это))?|[负負]"
    r"|\\neq?(?![A-Za-z])|\\(?:neg|lnot)(?![A-Za-z])|\\not[ \t]*=?|[≠¬]|!=)[ \t]*(?:[$*_`}]|\\[(\[])*[ \t]*\Z",
    re.IGNORECASE,
)
_IS_NOT = (
    r"(?:(?:(?:is|was|would|could|must|should)(?:n['’]t|[ \t]*not|[ \t]+never)|can(?:['’]t|[ \t]*not))[ \t]+(?:be[ \t]+)?)"
)
_TAKEN_BACK = re.compile(
    r"(?:[ \t]|\\{1,2}[,;:! ]|~|\$|\\{1,2}[)\]]|[*_`}]|\\{1,2}(?:text\w*|mbox|mathrm)\s*\{)*+"
    rf"(?:では(?:ない|ありません|なく)|じゃない|[이가]?[ \t]*(?:아닙니다|아니다|아니라)|不[是对對]"
    r"|ist[ \t]+(?:falsch|nicht)"
    rf"|(?:{_IS_NOT}|(?:is|was)[ \t]+no[ \t]+)(?:(?:(?!only\b|just\b|merely\b)[a-z]+[ \t]+){{0,3}}?answer\b|it\b)"
    r"|(?:is|was)[ \t]+(?:an?|the)[ \t]+(?:wrong|incorrect)[ \t]+(?:answer|value|result|choice|option|solution)\b"
    r"|(?P<wrong>(?:[,;]?[ \t]*which[ \t]+)?"
    r"(?:(?:is|was|must be|would be|seems|turns out to be)[ \t]+(?:[a-z]+ly[ \t]+)?|[,:;(–—-][ \t]*)?"
    r"(?:wrong|incorrect|mistaken|extraneous|ruled out|rejected|discarded|excluded)\b"
    r"(?![ \t]+(?!because|as|since|and|so|but)[a-z])"
    rf"|{_IS_NOT}(?:right|correct|(?:a|the|our|my)[ \t]+(?:[a-z]+[ \t]+)?(?:solution|result))\b"
    r"|does(?:n['’]t|[ \t]*not)[ \t]+work\b))",
    re.IGNORECASE,
)


_OTHER_ANSWER = re.compile(
    r"[ \t]*[,;.:—–-][ \t]*(?:(?:so|and|but|thus|hence|therefore)[ ,\t]+)*(?:the[ \t]+)?"
    r"(?:(?:correct|right|final|true|real)[ \t]+)*"
    r"(?:answer|choice|option)\b",
    re.IGNORECASE,
)


def is_denied(before: str, after: str, content: str = "") -> bool:
    """Whether what stands between these is said not to be the answer.

    Of a single letter "is wrong" says so only where another answer follows: "statement B is wrong" may be asked for.
    """
    if _NOT.search(before):
        return True
    found = _TAKEN_BACK.match(after)
    if found is None or not found["wrong"]:
        return found is not None
    letter = len(content) <= 30 and re.fullmatch(r"\W*(?:\\text\w*\{)?\W*[A-Za-z]\W*", content)
    return not letter or _OTHER_ANSWER.match(after, found.end()) is not None
