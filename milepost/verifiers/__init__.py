"""What judges an answer by rule, one module per kind. Each has the same four functions.

    score(*, answer, gold, **params) -> {"score": 0 … 1 or None, "cause", "extracted", "extractable", "compared", "parts"}
    check_gold(gold, **params) -> None, or one sentence: what is wrong with this gold
    right(gold, **params) -> texts that must score 1;  wrong(gold, **params) -> texts that must score 0

Correct, wrong, unextractable (score 0, extractable False) and unscorable (score None, with a cause) are four things.
"""
