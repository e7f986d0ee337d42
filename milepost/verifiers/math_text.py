"""From any typography to one that the parser reads."""

from __future__ import annotations

import re
import unicodedata

MAX_ANSWER_CHARACTERS = 2000


def close_of(text: str, start: int) -> int | None:
    """Where the brace that opens at text[start] closes; None if it never does. Escaped braces are text."""
    depth, at = 0, start
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return at
        at += 1
    return None


# --- one typography -------------------------------------------------------------------------------------------------

_GREEK = """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda nu xi rho sigma tau phi chi psi omega
Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega"""
"""Without μ, which begins units."""
_SIGNS = str.maketrans(
    dict.fromkeys("−﹣－‐‑‒–—", "-") | {"＋": "+", "×": r" \times ", "·": r" \cdot ", "⋅": r" \cdot ", "∙": r" \cdot ",
    "÷": "/", "⁄": "/", "∕": "/", "／": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "±": r"\pm ", "∪": r"\cup ", "∅": r"\emptyset ", "°": r"^\circ ", "∈": r"\in ", "ℝ": r"\mathbb{R}",
    "≈": r"\approx ", "，": ",", "、": ",", "．": ".", "（": "(", "）": ")", "｛": r"\{", "｝": r"\}", "［": "[", "］": "]",
    "＝": "=", "：": ":", "；": ";", "％": "%", "＜": "<", "＞": ">", "⟨": "(", "⟩": ")", "∶": ":", "’": "'", "＄": "$",
    "￥": "¥", "∧": r"\land ", "∨": r"\lor ", "∩": r"\cap ", "∣": r"\mid ", "ℤ": r"\mathbb{Z}"}
    | {letter: rf"\{name} " for letter, name in zip("αβγδεζηθικλνξρστφχψωΓΔΘΛΞΣΦΨΩ", _GREEK.split())}
)  # fmt: skip
_SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ"
_SUB = "₀₁₂₃₄₅₆₇₈₉"


def plain(text: str) -> str:
    """The same mathematics in one typography: ASCII digits and signs, \\frac, no spacing commands, no math delimiters."""
    text = _ROW_SPACE.sub(r"\\\\ ", _undressed(_INVISIBLE.sub("", text)))
    text = re.sub(f"[{_SUPER}]+", lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = re.sub(f"[{_SUB}]+", lambda m: "_{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = _ROOT.sub(r"\\sqrt{\1}", _SYSTEM.sub(_listed, _BRACED.sub(r"\\begin{cases}\1\\end{cases}", text)))
    text = text.replace("℃", "°C").replace("℉", "°F")
    text = "".join(_one(c) for c in text).translate(_SIGNS)
    text = text.replace(r"\%", "%")
    text = re.sub(r"\\(?:left|right|middle|[bB]igg?[lrm]?|displaystyle|textstyle|limits)(?![A-Za-z])\s*", "", text)
    text = re.sub(r"\\[dtc](frac|binom)(?![A-Za-z])", r"\\\1", text)
    text = re.sub(r"(?<!\\)\{([^{}\\]*)\\over(?![A-Za-z])([^{}\\]*)\}", r"\\frac{\1}{\2}", text)
    text = re.sub(r"(?<!\\)\{([^{}\\]*)\\choose(?![A-Za-z])([^{}\\]*)\}", r"\\binom{\1}{\2}", text)
    text = re.sub(r"\\([ij])math(?![A-Za-z])", r" \1", text)
    text = _VECTOR.sub(lambda m: rf"\vec{{{next(filter(None, m.groups()))}}}", text)
    text = _FONTS.sub(r"\\text{", _BARE_FONT.sub(r"\\text{\1}", text))
    text = _date(_DAY_FIRST.sub(r"\2 \1", _ORDINAL.sub(r"\1", text)))
    text = _MINUTES.sub(_degrees, _BASE_DIGITS.sub(r"\1", _MONEY.sub(_currency, text)))
    text = re.sub(r"(?<![A-Za-z])(?:per cent|pct)(?![A-Za-z])", "percent", text)
    text = re.sub(r"\\text\s*\{\s*(\\?%|i)\s*\}", r" \1 ", text)
    text = re.sub(r"(?<=\d)\s*(?:\\text\s*\{\s*to\s*\}|to)\s*(?=\d)", ":", text)
    text = re.sub(r"(?<=\d)\\text\s*\{,\}(?=\d{3}(?!\d))", ",", text)
    text = _joining_words(text)
    text = re.sub(r"\\text\s*\{\s*(-?[\d.][^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\text\s*\{\s*([A-Za-z](?:\s*,\s*[A-Za-z])+)\s*\}", r" \1 ", text)
    text = _CHOICES.sub(lambda m: f" {', '.join(re.findall(r'[A-J](?![a-z])', m[1]))} ", text)
    text = re.sub(r"\\text\s*\{\s*\(([A-Za-z ]{2,})\)\s*\}", r"\\text{ \1}", text)
    text = re.sub(rf"\\text\s*\{{\s*({_SCALE})\s+([A-Za-z][^{{}}]*)\}}", r"\\text{\1} \\text{\2}", text)
    text = _UNIT_FRACTION.sub(lambda m: rf"\text{{{m[1]}{m[2] or ''}/{m[3]}{(m[4] or '').translate(_NO_BRACES)}}}", text)
    text = _TEMPERATURE.sub(lambda m: rf"\text{{ {_SCALES[next(filter(None, m.groups()))[0].upper()]}}}", text)
    text = text.replace(r"\langle", "(").replace(r"\rangle", ")")
    text = _PROGRESSION.sub(_spelt, _numbers(text))
    text = re.sub(r"([\[\](])([^\[\]()]*)([\[\])])", _half_open, text)
    text = re.sub(r"\A\s*(\*\*|`|\$?\*)([^*`]+)\1\s*\Z", r"\2", text)
    text = re.sub(r"(?<=\d)(?:,\\!|\\!,)\s*(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"\{,\}|(?<=\d)\\[,!](?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"(?<!\\)\\(?:[,;:! ]|quad(?![a-z])|qquad(?![a-z]))|(?<=.)~|[\u00a0\u2000-\u200b\u202f\u3000]", " ", text)
    text = re.sub(r"(?<!\\)\\[()\[\]]|\$\$", " ", text).strip()
    text = _dollars(text).strip()
    # A blank between groups of three is one number only where nothing else stands there.
    return text.replace(" ", ",") if re.fullmatch(r"-?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?", text) else text


# Not those that turn the direction of writing: what is read then is not what is seen.
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200e\u2060-\u2064\ufeff]+")
_SCALE = "hundred|thousand|million|billion|trillion|dozen|quadrillion|lakh|crore"
_SIZES = r"tiny|scriptsize|footnotesize|small|normalsize|large|Large|LARGE|huge|Huge"
_NO_BRACES = str.maketrans("", "", "{}")
_UNIT_FRACTION = re.compile(
    r"\\frac\s*\{\s*\\text\s*\{([A-Za-z ]+)\}\s*(\^\d)?\s*\}\s*\{\s*\\text\s*\{([A-Za-z ]+)\}\s*(\^\d|\^\{\d\})?\s*\}"
)
_SWITCHES = re.compile(
    rf"\\(?:bf|it|rm|sf|tt|sl|bfseries|itshape|{_SIZES}|nonumber|notag|strut|null|nolimits|scriptstyle)(?![A-Za-z])\s*"
    r"|\\color\s*(?:\[[^\]]{0,20}\])?\s*\{[^{}]{0,40}\}"
)
_DRESS = re.compile(r"\\(?:underline|emph|hbox|textcolor\s*\{[^{}]{0,40}\}|colorbox\s*\{[^{}]{0,40}\})\s*(?=\{)")
_NAMED = {"lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "vert": "|",
          "wedge": r"\land", "vee": r"\lor", "degree": r"^\circ ", "top": "T", "intercal": "T", "varepsilon": r"\epsilon",
          "varphi": r"\phi", "vartheta": r"\theta", "Bbb": r"\mathbb",
          **dict.fromkeys(("dotsc", "dotsb", "dots", "cdots"), r"\ldots")}  # fmt: skip
_NAMES = re.compile(rf"\\({'|'.join(_NAMED)})(?![A-Za-z])")


def _undressed(text: str) -> str:
    """Without fonts, sizes and colours; of commands with two names the common one."""
    text = _NAMES.sub(lambda m: _NAMED[m[1]], text)
    text = re.sub(r"\{\s*\\(?:rm|bf|it|sf|tt)\s+([^{}\\]{1,80})\}", r"\\text{\1}", text)
    text = re.sub(r"\\[hv]space\*?\s*\{[^{}]{0,40}\}", " ", text)
    return _DRESS.sub("", _SWITCHES.sub("", text))


_ROW_SPACE = re.compile(r"\\\\\s*\[\s*-?[\d.]{1,8}\s*(?:pt|em|ex|mm|cm|in|pc|mu|bp)\s*\]")
"""Behind the end of a row."""
_SYSTEM = re.compile(
    r"\\begin\{(cases|aligned|align\*?|gathered)\}((?:(?!\\begin|\\end)[^=])*=(?:(?!\\begin).)*?)\\end\{\1\}", re.DOTALL
)
_BRACED = re.compile(
    r"\\left\s*\\\{\s*\\begin\{array\}\s*\{[clr| ]*\}((?:(?!\\begin|\\end).)*)\\end\{array\}\s*\\right\s*\.", re.DOTALL
)
_ROOT = re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-z](?![A-Za-z]))")
_CURRENCIES = {"rs": "₹", "inr": "₹", "us": r"\$", "usd": r"\$", "pounds": "£", "gbp": "£", "euro": "€", "eur": "€"}
_BY_NAME = r"US\s?\\?\$|\b(?:Rs|INR|USD|GBP|EUR)\b\.?|\\(?:pounds|euro)(?![a-z])"
_MONEY = re.compile(
    rf"\\text\s*\{{\s*(\\?\$|[€£¥₹]|{_BY_NAME})\s*(?:\}}\s*(?=-?\d|\\frac|\\sqrt)|(-?\d[\d.,]*)\s*\}})"
    rf"|({_BY_NAME})\s*(?=-?\d)"
)


def _currency(found: re.Match[str]) -> str:
    sign = found[1] or found[3]
    name = sign.strip("\\$. ").lower()
    return f" {_CURRENCIES.get(name, sign if name else chr(92) + '$')}{found[2] or ''}"


_BASE_DIGITS = re.compile(r"\\text\s*\{\s*([0-9A-F]{1,40})\s*\}(?=[0-9A-F]*\s*_)")
_MINUTES = re.compile(
    r"(\d{1,6})\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})\s*(\d{1,2})\s*(?:\^\s*\\prime|')(?!')\s*(?:(\d{1,2})\s*(?:''|\"))?"
)


def _degrees(found: re.Match[str]) -> str:
    """45°30' as a fraction of degrees."""
    seconds = 3600 * int(found[1]) + 60 * int(found[2]) + int(found[3] or 0)
    return rf"{{\frac{{{seconds}}}{{3600}}}}^\circ "


_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_ORDINAL = re.compile(rf"((?:{_MONTH})\s+\d{{1,2}}|\d{{1,2}}(?=(?:st|nd|rd|th)\s+(?:of\s+)?(?:{_MONTH})))(?:st|nd|rd|th)\b")
_DAY_FIRST = re.compile(rf"(?<!\d)(?<!\d )(\d{{1,2}})\s+(?:of\s+)?({_MONTH})\b(?!\s+\d{{1,2}}\b)")
_A_DATE = re.compile(
    rf"(?:\\text\s*\{{)?\s*(?:({_MONTH})\s*\}}?\s*(\d{{1,2}})|(\d{{1,2}})\s*(?:\\text\s*\{{)?\s*({_MONTH}))\s*\}}?"
    r"\s*(?:\\text\s*\{)?\s*(?:st|nd|rd|th)?\s*\}?\s*(?:,?\s*(\d{4}))?\s*\}?\.?"
)


def _date(text: str) -> str:
    """A text that is a date and nothing else, as words: \\text{March 15}."""
    found = _A_DATE.fullmatch(text.strip().strip("$").strip())
    return rf"\text{{{found[1] or found[4]} {found[2] or found[3]} {found[5] or ''}}}" if found else text


_CHOICES = re.compile(r"\\text\s*\{\s*(\(?[A-J]\)?(?:\s*(?:,\s*and\b|,|and\b|&)\s*\(?[A-J]\)?)+)\s*\}")


def _listed(system: re.Match[str]) -> str:
    """Equations one below the other as a list of them."""
    rows = [row.replace("&", " ").strip(" .,;") for row in re.split(r"\\\\(?:\s*\[[^\]]*\])?", system[2])]
    return ", ".join(row for row in rows if row)


_VECTOR = re.compile(
    r"\\(?:vec|overrightarrow)\s*(?:\{\s*([A-Za-z0])\s*\}|([A-Za-z0])(?![A-Za-z]))|\\hat\s*(?:\{\s*([ijk])\s*\}|([ijk])(?![A-Za-z]))"
    r"|\\(?:mathbf|boldsymbol|bm)\s*(?:\{\s*([a-z0])\s*\}|([a-z0])(?![A-Za-z]))"
)
"""Of vectors the arrow is as good as bold letters."""
_DEGREES = r"(?:\^\s*(?:\\circ|\{\s*\\circ\s*\})|degrees?)"
_OF_SCALE = r"(C|F|[Cc]elsius|[Ff]ahrenheit|[Cc]entigrade)\.?"
_GAP = r"(?:\s|~|\\[,;:! ])*"
_TEMPERATURE = re.compile(
    rf"(?<=\d){_GAP}(?:\\text\s*\{{{_GAP}{_DEGREES}{_GAP}{_OF_SCALE}\s*\}}|{_DEGREES}{_GAP}\\text\s*\{{\s*{_OF_SCALE}\s*\}}"
    rf"|{_DEGREES}{_GAP}{_OF_SCALE}(?![A-Za-z_^]))"
)
_SCALES = {"C": "celsius", "F": "fahrenheit"}
_FONTS = re.compile(r"\\(?:math(?:bf|rm|it|sf)|text(?:bf|it|rm|sf|up|normal)|boldsymbol|bm|mbox|operatorname)\s*\{")
_BARE_FONT = re.compile(r"\\(?:math(?:bf|rm|it|sf)|boldsymbol|bm)\s+([A-Za-z])(?![A-Za-z])")
_JOINT = re.compile(r"\\text\s*\{\s*([,;]?)\s*(or|and|)\s*([,;]?)\s*\}", re.IGNORECASE)
_TEXT_OF_FORMULAS = re.compile(r"\\text\s*\{([^{}$]*(?:\$[^{}$]+\$[^{}$]*)+)\}")
_WORDS_AND_JOINT = re.compile(r"\\text\s*\{\s*([^{}]*?\w)\s+(or|and)\s*\}")


def _joining_words(text: str) -> str:
    """Words that join, each by itself: \\text{, or } is a comma and \\text{or}; \\text{ cm or } a unit and the word."""
    text = _TEXT_OF_FORMULAS.sub(r" \1 ", text)
    text = _WORDS_AND_JOINT.sub(r"\\text{\1} \\text{\2} ", text)
    return _JOINT.sub(lambda m: f"{m[1] or m[3]} " + (rf"\text{{{m[2].lower()}}} " if m[2] else ""), text)


_ON_AND_ON = re.compile(r"(?<![\d.])(\d+)\.(\d{0,9}?)(\d{1,6}?)(\3{2,9})\s*(?:\.\.\.|…|\\ldots(?![A-Za-z]))")
_BARRED = re.compile(r"(?<=[\d.])\\(?:overline|bar)\s*(?:\{\s*(\d{1,50})\s*\}|(\d))")
_DOTTED = re.compile(r"(\d\.\d*)\\dot\s*(?:\{(\d)\}|(\d))(?:(\d*)\\dot\s*(?:\{(\d)\}|(\d)))?")
_REPEATING = re.compile(r"(?<![\d.])(\d+\.\d{0,30})\((\d{1,50})\)")
_CUT = re.compile(r"=\s*(\d+\.\d+)\s*(?:\.\.\.|…|\\ldots(?![A-Za-z]))")
"""= 0.142857…"""
_GROUPS = re.compile(r"(?<![\w.,'])\d{1,3}(?:(?:\.\d{3}){2,}|(?:_\d{3}){2,}|(?:'\d{3})+)(?![\w.,'])")


def _numbers(text: str) -> str:
    """Other ways to write numbers (and full hours): 0.333…, 0.(3), 0.\\bar3, 0.\\dot{3}, 1.000.000, 1'000, 1.5 x 10^3."""
    text = _ON_AND_ON.sub(r"\1.\2\\overline{\3}", text)
    text = re.sub("((?:\\d\u0305){1,50})", lambda m: rf"\overline{{{m[1].replace(chr(0x305), '')}}}", text)
    text = _BARRED.sub(lambda m: rf"\overline{{{m[1] or m[2]}}}", text)
    text = re.sub(r"(?<![\d.])\.(?=\\overline\{\d)", "0.", text)
    text = _DOTTED.sub(lambda m: rf"{m[1]}\overline{{{m[2] or m[3]}{m[4] or ''}{m[5] or m[6] or ''}}}", text)
    text = _REPEATING.sub(lambda m: rf"{m[1]}\overline{{{m[2]}}}" if _stands_alone(m) else m[0], text)
    text = _GROUPS.sub(lambda m: re.sub(r"\D", "", m[0]), text)
    text = re.sub(r"(?<=\d)\s*[xX]\s*(?=10\s*(?:\^|\*\*))", r" \\times ", text)
    text = _CUT.sub(r"\\approx \1", text)
    text = re.sub(r"\b([apAP])\.\s?([mM])\.?(?![A-Za-z])", r"\1\2", text)
    return re.sub(r"\b(\d{1,2}):00(?=\s*(?:\\text\s*\{\s*)?[apAP][mM]\b)", r"\1", text)


_PROGRESSION = re.compile(r"(-?\d{1,6}(?:\s*,\s*-?\d{1,6}){1,9})\s*,\s*\\ldots\s*,\s*(-?\d{1,6})(?![\d.])")


def _spelt(found: re.Match[str]) -> str:
    """1, 2, \\ldots, 10 in full, where its steps are equal and no more than a hundred."""
    first = [int(number) for number in found[1].split(",")]
    last, step = int(found[2]), first[1] - first[0]
    numbers = range(first[0], last + (1 if step > 0 else -1), step) if step else range(0)
    if list(numbers[: len(first)]) != first or len(numbers) > 100 or numbers[-1] != last:
        return found[0]
    return ", ".join(map(str, numbers))


def _stands_alone(number: re.Match[str]) -> bool:
    """Whether 0.1(6) is no factor of anything: 2.5(3)(4) and 4 - 2.5(3) are products, and 2.(3) is always a number."""
    if number[1].endswith("."):
        return True
    before, after = number.string[: number.start()].rstrip(), number.string[number.end() :]
    begins = re.search(
        r"(?:\A|[=,;({\[$<>&]|\\approx|\b(?:or|and)|\\text\s*\{\s*(?:or|and)\s*\})\Z", before.removesuffix("-").rstrip()
    )
    goes_on = r"\s*[\d(^*/+!-]|[A-Za-z]|\s+[A-Za-z](?![A-Za-z])|\s*\\(?!text|ldots|q?quad|approx|[,;:! )\]}%$])"
    return bool(begins) and not re.match(goes_on, after)


def _half_open(found: re.Match[str]) -> str:
    """]0,1[ and [0,1[, which are (0,1) and [0,1). What stands between two brackets of a list is no interval."""
    if not re.match(r"[^,;]*\w[^,;]*[,;].*\w", found[2], re.DOTALL):
        return found[0]
    return f"{found[1].replace(']', '(')}{found[2]}{found[3].replace('[', ')')}"


def unwrap(text: str) -> str:
    """Without what surrounds a whole: boxes, superfluous braces, a full stop, "x \\in"."""
    for _ in range(40):
        before = text
        text = re.sub(r"\\\\\Z", "", text.strip()).rstrip("\\").strip()
        text = re.sub(r"(?<=[^.])[.,;]$", "", text)
        if match := re.match(r"(?:\\(?:boxed|fbox)\s*)?(?=\{)", text):
            close = close_of(text, match.end())
            if close == len(text) - 1:
                text = text[match.end() + 1 : -1].strip()
        if text == before:
            return text
    return text


def _one(c: str) -> str:
    digit = unicodedata.decimal(c, None)
    if digit is not None:
        return str(digit)
    parts = unicodedata.decomposition(c).split() if ord(c) > 127 else []
    if parts[:1] == ["<fraction>"] and "2044" in parts[2:-1]:
        top, _, bottom = "".join(chr(int(p, 16)) for p in parts[1:]).partition("\u2044")
        return rf" \frac{{{top}}}{{{bottom}}}"
    return c


def _dollars(text: str) -> str:
    """Pairs of $ are delimiters; \\$ and a lone $ are money."""
    if (text.count("$") - text.count(r"\$")) % 2 == 0:
        text = re.sub(r"(?<!\\)\$", " ", text)
    return text.replace(r"\$", "$")
