"""From any typography to one that the parser reads; and what of a last line is its answer."""

from __future__ import annotations

import re
import unicodedata

MAX_ANSWER_CHARACTERS = 2000

_LEAD_IN = re.compile(r"(?:answer|result)(?:\*\*)?\s*(?:is|:|=)(?:\*\*)?\s*:?", re.IGNORECASE)
_SEGMENT = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")


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


def after_lead_in(line: str) -> str:
    """What a line answers: what follows "the answer is", or its only formula, or all of it."""
    if lead := list(_LEAD_IN.finditer(line)):
        line = line[lead[-1].end() :]
    elif len(formulas := _SEGMENT.findall(line)) == 1:
        line = "".join(formulas[0])
    return line.strip().strip("*").strip()


# --- one typography -------------------------------------------------------------------------------------------------

_SIGNS = str.maketrans(
    dict.fromkeys("−﹣－‐‑‒–—", "-") | {"＋": "+", "×": r" \times ", "·": r" \cdot ", "⋅": r" \cdot ", "∙": r" \cdot ",
    "÷": "/", "⁄": "/", "∕": "/", "／": "/", "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "±": r"\pm ", "∪": r"\cup ", "∅": r"\emptyset ", "°": r"^\circ ", "∈": r"\in ", "ℝ": r"\mathbb{R}",
    "≈": r"\approx ", "，": ",", "．": ".", "（": "(", "）": ")", "｛": r"\{", "｝": r"\}", "［": "[", "］": "]",
    "＝": "=", "：": ":", "；": ";", "％": "%", "＜": "<", "＞": ">", "⟨": "(", "⟩": ")", "∶": ":", "’": "'", "＄": "$",
    "￥": "¥"}
)  # fmt: skip
_SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁽⁾ⁿ"
_SUB = "₀₁₂₃₄₅₆₇₈₉"


def plain(text: str) -> str:
    """The same mathematics in one typography: ASCII digits and signs, \\frac, no spacing commands, no math delimiters."""
    text = re.sub(f"[{_SUPER}]+", lambda m: "^{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = re.sub(f"[{_SUB}]+", lambda m: "_{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
    text = "".join(_one(c) for c in text).translate(_SIGNS)
    text = text.replace(r"\%", "%")
    text = re.sub(r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|limits)(?![A-Za-z])\s*", "", text)
    text = re.sub(r"\\[dtc](frac|binom)(?![A-Za-z])", r"\\\1", text)
    text = re.sub(r"(?<!\\)\{([^{}\\]*)\\over(?![A-Za-z])([^{}\\]*)\}", r"\\frac{\1}{\2}", text)
    text = re.sub(
        r"\\(?:mathbf|mathrm|mathit|textbf|textit|textrm|textsf|boldsymbol|bm|mbox|operatorname)\s*\{", r"\\text{", text
    )
    text = re.sub(r"\\text\s*\{\s*(-?[\d.][^{}]*)\}", r" \1 ", text)
    text = re.sub(r"\\text\s*\{\s*([A-Za-z](?:\s*,\s*[A-Za-z])+)\s*\}", r" \1 ", text)
    text = re.sub(r"\\text\s*\{\s*\(([A-Za-z ]{2,})\)\s*\}", r"\\text{ \1}", text)
    text = text.replace(r"\langle", "(").replace(r"\rangle", ")")
    text = re.sub(r"\A\s*(\*\*|`|\$?\*)([^*`]+)\1\s*\Z", r"\2", text)
    text = re.sub(r"(?<=\d)(?:,\\!|\\!,)\s*(?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"\{,\}|(?<=\d)\\[,!](?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))", ",", text)
    text = re.sub(r"(?<!\\)\\(?:[,;:! ]|quad(?![a-z])|qquad(?![a-z]))|(?<=.)~|[\u00a0\u2000-\u200b\u202f\u3000]", " ", text)
    text = re.sub(r"(?<!\\)\\[()\[\]]|\$\$", " ", text).strip()
    text = _dollars(text).strip()
    # A blank between groups of three is one number only where nothing else stands there.
    return text.replace(" ", ",") if re.fullmatch(r"-?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?", text) else text


def unwrap(text: str) -> str:
    """Without what surrounds a whole: boxes, superfluous braces, a full stop, "x \\in"."""
    for _ in range(40):
        before = text
        text = text.strip().rstrip("\\") if not text.endswith(r"\\") else text.strip()
        text = re.sub(r"(?<=[^.])\.$", "", text)
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
