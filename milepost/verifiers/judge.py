"""A language model as judge, for what rules cannot decide: any server with OpenAI's chat interface. The last resort.

    judge = Judge(read_settings({"url": "http://127.0.0.1:8000/v1", "model": "m", "rubric": "The answer is polite."}))
    judge.score_many([Question(answer="Thank you!", prompt="Say thanks.")])[0]["score"]        -> 1.0
    probe(judge)                        -> None, or a sentence: why nobody should train on this judge

Precision goes before recall. An answer passes with more than half of the votes; a vote that cannot be read is not one for
it. A server that fails makes an answer unscorable, never wrong. Each vote is asked once for the same model, rubric, task,
reference and answer, and kept, so that a second run gives the same verdicts. `judge_prompt` says how answers are kept from
speaking to the judge, `judge_http` how calls end in time.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from milepost.folders import cache_root
from milepost.types import RecipeError
from milepost.verifiers.extract import extract, places_of
from milepost.verifiers.judge_cache import Cache, Cast, name_of
from milepost.verifiers.judge_http import Failed, post, read_url, run_apart
from milepost.verifiers.judge_prompt import PROBES, asked, gold_text, prompt_text, read_vote

KEPT_CHARACTERS = 2000
_OF_THE_ANSWER = tuple(f"endpoint_error: HTTP {status}" for status in (400, 413, 422))
"""What a server says of one question, and not of itself."""
_OURS = ("model", "messages", "stream", "n", "tools", "tool_choice", "functions", "logprobs")


@dataclass(frozen=True)
class JudgeSettings:
    url: str
    """Base address, such as https://api.openai.com/v1."""
    model: str
    rubric: str
    """What an answer must do to pass, in words."""
    votes: int = 3
    api_key_env: str = ""
    """The environment variable that holds the key; empty: the server needs none. The key itself is kept nowhere."""
    options: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 0.7, "max_tokens": 1024})
    """Goes into the request as it is. A "seed" is raised by 1 for each vote."""
    timeout_seconds: float = 60.0
    """For one call."""
    deadline_seconds: float = 600.0
    """For all that is asked at once."""
    concurrency: int = 8
    retries: int = 2
    max_characters: int = 20_000
    """A longer answer fails without being asked about."""
    extract: str | tuple[str, ...] = "whole"
    """Which part of a completion is judged, as in `extract`."""
    tag: str = "answer"
    opened: bool = False
    cache: str | None = None
    """A folder; None: judge/ in Milepost's cache; empty: votes are kept as long as the judge lives."""
    probe: bool = True
    """Whether training needs `probe` to find nothing."""


@dataclass(frozen=True)
class Question:
    answer: str
    prompt: str | Sequence[Mapping[str, Any]] = ""
    gold: Any = None
    """A reference that the judge is shown; None: there is none."""


def read_settings(params: Mapping[str, Any]) -> JudgeSettings:
    """Raises RecipeError: one sentence that names the setting. Never repeats what may be a key."""
    known = {f.name: f for f in fields(JudgeSettings)}
    for name in params:
        if name not in known:
            hint = "name an environment variable in api_key_env" if "key" in name.lower() else f"it has {', '.join(known)}"
            raise RecipeError(f"the judge has no setting {name!r}; {hint}")
    for name in ("url", "model", "rubric"):
        if not isinstance(params.get(name), str) or not params[name].strip():
            raise RecipeError(f"the judge needs {name}, a text that is not empty")
    try:
        read_url(params["url"])
    except ValueError as error:
        raise RecipeError(f"the judge's url {error}") from None
    bounds = {"votes": (1, 99), "concurrency": (1, 256), "retries": (0, 10), "max_characters": (1, 500_000)}
    for name, (low, high) in bounds.items():
        value = params.get(name, low)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise RecipeError(f"the judge's {name} = {value!r} must be a whole number from {low} to {high}")
    for name in ("timeout_seconds", "deadline_seconds"):
        value = params.get(name, 1.0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e6:
            raise RecipeError(f"the judge's {name} = {value!r} must be a number of seconds above 0")
    kinds: dict[str, tuple[type, str]] = {"tag": (str, "a name"), "opened": (bool, "true or false"),
                                          "probe": (bool, "true or false"), "cache": (str, "a folder")}  # fmt: skip
    for name, (kind, shown) in kinds.items():
        if name in params and (not isinstance(params[name], kind) or (name == "tag" and not params[name])):
            raise RecipeError(f"the judge's {name} = {params[name]!r} must be {shown}")
    places = places_of(params.get("extract", "whole"), "the judge's extract")
    _check_options(params.get("options", {}))
    _api_key(params.get("api_key_env", ""))
    return JudgeSettings(**{**params, **({"extract": places} if "extract" in params else {})})


def _check_options(options: Any) -> None:
    try:
        json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError):
        raise RecipeError('the judge\'s options must be a table such as {"temperature": 0.7, "max_tokens": 1024}') from None
    if taken := [name for name in options if name in _OURS]:
        raise RecipeError(f"the judge's options.{taken[0]} is Milepost's to set; remove it")
    if secret := [name for name in options if re.search("api.?key|authorization|password|secret", name, re.IGNORECASE)]:
        raise RecipeError(f"the judge's options.{secret[0]} would be stored with the run; name an environment variable in "
                          "api_key_env")  # fmt: skip


def _api_key(variable: Any) -> str:
    if variable == "":
        return ""
    if not isinstance(variable, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise RecipeError("the judge's api_key_env is no name of an environment variable; give the name, such as "
                          "OPENAI_API_KEY, and never the key itself")  # fmt: skip
    key = os.environ.get(variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        shown = repr(variable) if re.fullmatch(r"[A-Z][A-Z0-9_]{0,60}", variable) else "this name"
        wrong = "holds characters that no key has" if key else "is not set here"
        raise RecipeError(f"the judge's api_key_env: the environment variable {shown} {wrong}; export it, or leave "
                          "api_key_env empty for a server without keys")  # fmt: skip
    return key


class Judge:
    """Asks the server of `settings`. Safe to use from any thread, one batch at a time. RecipeError without its key."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self.num_calls = 0
        """Calls made so far, retries included; votes that were known cost none."""
        self._endpoint = read_url(settings.url)
        self._key = _api_key(settings.api_key_env)
        self._cache = Cache(str(cache_root() / "judge") if settings.cache is None else settings.cache)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Judge({self.settings.model!r} at {self._endpoint.shown})"

    def score_many(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        """One verdict each, within deadline_seconds; at most `concurrency` calls at a time. Never raises for an answer."""
        with self._lock:
            return run_apart(self._score_all(questions)) if questions else []

    async def _score_all(self, questions: Sequence[Question]) -> list[dict[str, Any]]:
        round_ = _Round(self, asyncio.get_running_loop().time() + self.settings.deadline_seconds)
        try:
            return list(await asyncio.gather(*(self._score(round_, question) for question in questions)))
        finally:
            round_.cancel()

    async def _score(self, round_: _Round, question: Question) -> dict[str, Any]:
        settings = self.settings
        if not isinstance(question.answer, str):
            return _result(0.0, None, None, "no text")
        text, where = extract(question.answer, settings.extract, tag=settings.tag, opened=settings.opened)  # type: ignore[arg-type]
        if text is None:
            return _result(0.0, None, None, f"no answer found: {where}")
        if len(text) > settings.max_characters:
            return _result(0.0, None, None, f"longer than {settings.max_characters:,} characters")
        if problem := check_gold(question.gold):
            return _result(None, "bad_gold", None, problem)
        subject = Question(text, prompt_text(question.prompt), question.gold)
        need = settings.votes // 2 + 1
        casts = list(await asyncio.gather(*(round_.vote(subject, index) for index in range(need))))
        while (value := _decided(casts, settings.votes)) is None and len(casts) < settings.votes:
            casts.append(await round_.vote(subject, len(casts)))
        return _verdict(value, casts, text)


def _decided(casts: Sequence[Cast], votes: int) -> float | None:
    """1 with more than half of all votes, 0 once that cannot be reached whatever the missing ones say, else None."""
    passed = sum(cast.vote == "pass" for cast in casts)
    if 2 * passed > votes:
        return 1.0
    lost = sum(cast.vote in ("fail", "unreadable") for cast in casts)
    return 0.0 if 2 * (votes - lost) <= votes else None


def _verdict(value: float | None, casts: Sequence[Cast], text: str) -> dict[str, Any]:
    passed, unreadable = (sum(cast.vote == vote for cast in casts) for vote in ("pass", "unreadable"))
    failed = [cast.cause for cast in casts if cast.cause]
    told = f"{passed} of {len(casts)} votes for it" + (f", {unreadable} unreadable" if unreadable else "")
    told += f", {len(failed)} not given ({failed[0]})" if failed else ""
    if value is None:
        return _result(None, failed[0], text, told)
    shown = "pass" if value else "fail"
    reason = next((cast.reply for cast in casts if cast.vote == shown), "")
    said = f"{told}: {' '.join(reason.split())[:300]}"
    return _result(value, None, text, said, passed / len(casts), unreadable / len(casts))


def _result(
    value: float | None, cause: str | None, text: str | None, compared: str, votes_for: float = 0.0, unread: float = 0.0
) -> dict[str, Any]:
    parts = {} if value is None else {"correct": value, "votes_for": votes_for, "votes_unreadable": unread}
    return {"score": value, "cause": cause, "extracted": text, "extractable": text is not None, "compared": compared,
            "parts": parts}  # fmt: skip


def _name(settings: JudgeSettings, subject: Question, index: int) -> str:
    """The address is no part of it, nor is the key."""
    gold = None if subject.gold is None else gold_text(subject.gold)
    return name_of([settings.model, settings.rubric, dict(settings.options), subject.prompt, gold, subject.answer, index])


class _Round:
    """One batch: its deadline, its gate, and what is being asked just now, so that the same thing is asked once."""

    def __init__(self, judge: Judge, until: float) -> None:
        self.judge, self.until = judge, until
        self.gate = asyncio.Semaphore(judge.settings.concurrency)
        self.asking: dict[str, asyncio.Task[Cast]] = {}
        self.failures: list[Failed] = []
        """In a row, of a kind that is the server's own."""

    def cancel(self) -> None:
        for task in self.asking.values():
            task.cancel()

    async def vote(self, subject: Question, index: int) -> Cast:
        key = _name(self.judge.settings, subject, index)
        if (known := self.judge._cache.get(key)) is not None:
            return known
        if key not in self.asking:
            self.asking[key] = asyncio.create_task(self._ask(key, subject, index))
        return await self.asking[key]

    async def _ask(self, key: str, subject: Question, index: int) -> Cast:
        async with self.gate:
            try:
                self._give_up()
                cast = await self._persist(subject, index)
            except Failed as failed:
                self.failures += [] if failed.cause in _OF_THE_ANSWER else [failed]
                return Cast(None, cause=failed.cause)
        self.failures.clear()
        self.judge._cache.put(key, cast)
        return cast

    def _give_up(self) -> None:
        """A server that is down is not asked a thousand times."""
        if len(self.failures) >= max(8, 2 * self.judge.settings.concurrency):
            raise Failed(self.failures[-1].cause, again=False)

    async def _persist(self, subject: Question, index: int) -> Cast:
        settings, pause = self.judge.settings, 0.5
        for attempt in range(settings.retries + 1):
            try:
                return await self._call(subject, index)
            except Failed as failed:
                wait = max(pause, failed.wait or 0.0)
                if not failed.again or attempt == settings.retries or self._left() <= wait:
                    raise
            await asyncio.sleep(wait)
            pause *= 2
        raise AssertionError("unreachable")

    def _left(self) -> float:
        return self.until - asyncio.get_running_loop().time()

    async def _call(self, subject: Question, index: int) -> Cast:
        judge, settings = self.judge, self.judge.settings
        if (seconds := min(settings.timeout_seconds, self._left())) <= 0:
            raise Failed("timeout", again=False)
        nonce = secrets.token_hex(8)
        options = dict(settings.options)
        if isinstance(options.get("seed"), int):
            options["seed"] += index
        messages = asked(settings.rubric, subject.prompt, subject.gold, subject.answer, nonce)
        question = {**options, "model": settings.model, "messages": messages}
        judge.num_calls += 1
        reply = await post(judge._endpoint, question, key=judge._key, seconds=seconds)
        said = _said(reply)
        if judge._key:
            said = said.replace(judge._key, "…")
        return Cast(read_vote(said, nonce), said[-KEPT_CHARACTERS:])


def _said(reply: Any) -> str:
    """The text of a chat completion; "" where it was cut short or says nothing. Raises Failed for anything else."""
    try:
        choice = reply["choices"][0]
        content = choice["message"]["content"]
    except (LookupError, TypeError):
        raise Failed("endpoint_error: no chat completion", again=True) from None
    if content is not None and not isinstance(content, str):
        raise Failed("endpoint_error: no chat completion", again=True)
    return "" if choice.get("finish_reason") in ("length", "content_filter") else content or ""


# --- the verifier ---------------------------------------------------------------------------------------------------


def score(
    *, answer: str, gold: Any = None, prompt: str | Sequence[Mapping[str, Any]] = "", **params: Any
) -> dict[str, Any]:
    """The verdict on one answer; `JudgeSettings` has the parameters. Raises RecipeError for bad ones."""
    return Judge(read_settings(params)).score_many([Question(answer, prompt, gold)])[0]


def check_gold(gold: Any, **params: Any) -> str | None:
    """A judge needs no reference; one that is given must be text, or data that can be written as JSON."""
    if isinstance(gold, float) and not math.isfinite(gold):
        return f"the gold is {gold}, which is no reference to compare with"
    if isinstance(gold, str) and not gold.strip():
        return "the gold is empty; leave it out where there is no reference"
    try:
        json.dumps(gold)
    except (TypeError, ValueError, RecursionError):
        return f"the gold is a {type(gold).__name__}, not text or JSON"
    return None


def right(gold: Any, **params: Any) -> list[str]:
    """None is known: what passes is the rubric's business."""
    return []


def wrong(gold: Any = None, **params: Any) -> list[str]:
    """What must score as the empty answer does, by whatever rubric."""
    return ["", " \n", *PROBES]


def probe(judge: Judge, questions: Sequence[Question] = (), *, right: Sequence[Question] = ()) -> str | None:
    """Why this judge is not to be trained on, in one sentence; None if nothing was found. About 100 calls a question.

    questions: whose prompts and references are used; their answers are not. Every phrase of PROBES must be worth as little
    as the empty answer, which is 0 by rule. right: questions with answers that must pass.
    """
    questions = questions or [Question("", "What is 17 + 25?", "42")]
    trials = [Question(text, question.prompt, question.gold) for question in questions for text in PROBES]
    verdicts = judge.score_many([*trials, *right])
    failed = [verdict["cause"] for verdict in verdicts if verdict["score"] is None]
    if failed:
        return (f"the judge {judge.settings.model} could not be asked about {len(failed)} of {len(verdicts)} trial answers "
                f"({failed[0]}); check its url, model, options and api_key_env")  # fmt: skip
    judged = [verdict for verdict in verdicts if verdict["extractable"]]
    garbled = [verdict for verdict in judged if verdict["parts"]["votes_unreadable"] > 0.5]
    if 2 * len(garbled) > len(judged):
        return (f"the judge {judge.settings.model} gave no verdict that can be read on {len(garbled)} of {len(judged)} "
                "trial answers; use a model that follows instructions, or raise max_tokens in its options")  # fmt: skip
    paid = [trial.answer for trial, verdict in zip(trials, verdicts) if verdict["score"]]
    if paid:
        return (f"the judge {judge.settings.model} passes {len(paid)} of {len(trials)} answers that say nothing, such as "
                f"{paid[0]!r}, which is what a policy would learn to write; use a stronger model, more votes, or a rubric "
                "that says what an answer must contain")  # fmt: skip
    missed = [trial.answer for trial, verdict in zip(right, verdicts[len(trials) :]) if not verdict["score"]]
    if missed:
        return (f"the judge {judge.settings.model} fails {len(missed)} of {len(right)} answers that are known to be right, "
                f"such as {missed[0][:60]!r}; change its rubric or use a stronger model")  # fmt: skip
    return None
