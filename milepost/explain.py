"""`milepost explain`: any number of the training arithmetic, step by step, from the library's own functions.

Each `explain_*` function takes plain lists and returns an `Explanation`: values under stable keys (what --json prints),
the steps in words, and a table. Wrong input raises RecipeError with one sentence. torch is loaded only by `explain_loss`
and `explain_kl`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np

from milepost.advantages import advantages as credit_advantages
from milepost.advantages import discounted_returns, is_constant, overlong_penalty, standard_deviation
from milepost.credit import assign
from milepost.evaluate import pass_at_k
from milepost.forest import aggregation_weights
from milepost.formula import describe_advantage, describe_loss
from milepost.recipe import Recipe, defaults_table, make_recipe
from milepost.sections import LossSection, Objective
from milepost.types import Episode, EpisodeId, Group, RecipeError, Reward, Sampled, StopKind, StopReason, Task, Turn


@dataclass(frozen=True)
class Explanation:
    values: dict[str, Any]
    """JSON-able; the keys are stable."""
    steps: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = field(default=())

    def text(self) -> str:
        wrapped = [line for step in self.steps for line in textwrap.wrap(step, 100, subsequent_indent="  ")]
        return "\n".join([*wrapped, *([""] if wrapped and self.rows else []), *_table(self.columns, self.rows)])

    def json(self) -> str:
        return json.dumps(self.values, indent=2, ensure_ascii=False, allow_nan=False)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], widest: int = 46) -> list[str]:
    if not rows:
        return []
    cells = [[textwrap.wrap(_cell(value), widest) or [""] for value in row] for row in (columns, *rows)]
    widths = [max(len(line) for row in cells for line in row[i]) for i in range(len(columns))]
    texts = [any(isinstance(row[i], str) for row in rows) for i in range(len(columns))]
    lines = []
    for row in cells:
        for parts in itertools.zip_longest(*row, fillvalue=""):
            padded = (p.ljust(w) if is_text else p.rjust(w) for p, w, is_text in zip(parts, widths, texts))
            lines.append("  ".join(padded).rstrip())
    return [lines[0], "  ".join("─" * w for w in widths), *lines[1:]]


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# ---- advantage -------------------------------------------------------------------------------------------------------


def explain_advantage(
    rewards: Sequence[float | None],
    *,
    groups: Sequence[Any] | None = None,
    baseline: str = "auto",
    scale: str = "none",
    std: str = "population",
    delta: float = 1e-6,
    lengths: Sequence[int] | None = None,
    truncated: Sequence[bool] | None = None,
    rule: str = "keep_baseline",
    max_new_tokens: int = 256,
    soft_buffer: int = 0,
    aggregate: str = "token_mean",
) -> Explanation:
    """Advantages of one batch of episodes. None as a reward is unscorable; `lengths` in tokens; `truncated` by tokens.

    Values: rewards, scored (after a soft penalty), groups, baselines, divisors, advantages, trained, in_baseline, and
    with lengths also weights (per token, over the trained episodes).
    """
    n = _at_least_one("rewards", rewards)
    _finite("rewards", [r for r in rewards if r is not None])
    names = [str(g) for g in (groups if groups is not None else ["1"] * n)]
    for name, given in (("groups", names), ("lengths", lengths), ("truncated", truncated)):
        _same_count(name, given, "rewards", n)
    tokens = _lengths(lengths) if lengths is not None else [1] * n
    cut = list(truncated) if truncated is not None else [False] * n
    recipe = _recipe({
        "credit": {"baseline": baseline, "scale": scale, "std": std, "delta": delta},
        "rollout": {"truncated": rule, "max_new_tokens": max_new_tokens, "soft_buffer": soft_buffer},
        "loss": {"aggregate": aggregate, "constant": max_new_tokens},
    })  # fmt: skip
    episodes = [_episode(i, *facts) for i, facts in enumerate(zip(names, tokens, cut))]
    credits = _assign(episodes, names, rewards, recipe)
    soft = rule == "soft"
    scored = [
        None if r is None else r + (overlong_penalty(t, max_new_tokens, soft_buffer) if soft else 0.0)
        for r, t in zip(rewards, tokens)
    ]
    counted = [credit.in_baseline for credit in credits]
    values = {
        "rewards": list(rewards),
        "scored": scored,
        "baseline": recipe.credit.resolved_baseline,
        "scale": scale,
        "std": std,
        "delta": delta,
        **_statistics(scored, names, counted, recipe),
        "advantages": [float(c.advantages[0]) if len(c.advantages) else 0.0 for c in credits],
        "trained": [c.trained for c in credits],
        "in_baseline": counted,
    }
    if lengths is not None:
        values["lengths"] = tokens
        values["weights"] = _weights_of_trained(tokens, names, values["trained"], recipe)
    return Explanation(values, *_advantage_text(values, names, recipe, soft))


def _episode(index: int, group: str, tokens: int, cut: bool) -> Episode:
    stop = StopReason(StopKind.TRUNCATED, "tokens") if cut else StopReason(StopKind.TERMINATED, "end_of_turn")
    sampled = Sampled(np.zeros(tokens), np.zeros(tokens), 1.0, ((0, 0),), "length" if cut else "stop")
    return Episode(EpisodeId("explain", 0, group, index), group, (Turn(np.zeros(1), sampled),), stop)


def _assign(episodes: list[Episode], names: list[str], rewards: Sequence[float | None], recipe: Recipe) -> list[Any]:
    groups = [Group(name, Task(name, ""), (episode,)) for name, episode in zip(names, episodes)]
    judged = [[Reward.unscorable("none") if r is None else Reward(float(r))] for r in rewards]
    return [credit for (credit,) in assign(groups, judged, recipe.credit, recipe.rollout)]


def _statistics(scored: list[float | None], names: list[str], counted: list[bool], recipe: Recipe) -> dict[str, Any]:
    """Per group: count, mean, std, constancy; per episode: the baseline and the divisor that its advantage uses."""
    section = recipe.credit
    used = [r if c else None for r, c in zip(scored, counted)]
    batch = np.array([r for r in used if r is not None], np.float64)
    groups: list[dict[str, Any]] = []
    for name in dict.fromkeys(names):
        own = np.array([r for r, g in zip(used, names) if g == name and r is not None], np.float64)
        groups.append({"id": name, "num_counted": len(own), "mean": float(own.mean()) if len(own) else None,
                       "std": standard_deviation(own, section.std), "constant": is_constant(own)})  # fmt: skip
    centred = credit_advantages(used, names, baseline=section.resolved_baseline, scale="none")
    whole = standard_deviation(batch, section.std)
    spread = {g["id"]: g["std"] if section.scale == "group" else whole for g in groups}
    return {
        "groups": groups,
        "std_batch": whole,
        "baselines": [None if r is None else float(r - c) for r, c in zip(used, centred)],
        "divisors": [1.0 if section.scale == "none" else spread[g] + section.delta for g in names],
    }


def _weights_of_trained(tokens: list[int], names: list[str], trained: list[bool], recipe: Recipe) -> list[float]:
    kept = [i for i, t in enumerate(trained) if t and tokens[i]]
    weight = aggregation_weights(
        [tokens[i] for i in kept], [names[i] for i in kept], recipe.loss.aggregate, recipe.loss.constant
    )
    result = [0.0] * len(tokens)
    for i, w in zip(kept, weight):
        result[i] = float(w)
    return result


def _advantage_text(values: dict[str, Any], names: list[str], recipe: Recipe, soft: bool) -> tuple[Any, ...]:
    section = recipe.credit
    steps = [describe_advantage(recipe)]
    for group in values["groups"]:
        mean = "–" if group["mean"] is None else f"{group['mean']:.6g}"
        flat = (
            " · constant: every advantage is exactly 0" if group["constant"] and section.resolved_baseline != "none" else ""
        )
        steps.append(
            f"group {group['id']}: {group['num_counted']} in the statistics · mean {mean} · {section.std} std "
            f"{group['std']:.6g}{flat}"
        )
    if section.scale in ("batch", "source"):
        steps.append(f"{section.std} std of all rewards in the statistics: {values['std_batch']:.6g}")
    columns = ["episode", "group", "reward", *(["scored"] if soft else []), "baseline", "divisor", "advantage", "trained"]
    lists = [values["rewards"], *([values["scored"]] if soft else []), values["baselines"], values["divisors"],
             values["advantages"], values["trained"]]  # fmt: skip
    if "weights" in values:
        columns += ["tokens", "weight/token"]
        lists += [values["lengths"], values["weights"]]
    rows = tuple((i + 1, name, *row) for i, (name, *row) in enumerate(zip(names, *lists)))
    return tuple(steps), tuple(columns), rows


# ---- loss ------------------------------------------------------------------------------------------------------------


def explain_loss(
    ratios: Sequence[float],
    advantages: Sequence[float],
    *,
    loss: str = "clip",
    aggregate: str = "token_mean",
    lengths: Sequence[int] | None = None,
    groups: Sequence[Any] | None = None,
    old_probs: Sequence[float] | None = None,
    mismatch: Sequence[float] | None = None,
    correction: str = "none",
    **settings: Any,
) -> Explanation:
    """Loss value and gradient per token at given ratios π/π_old.

    Without `lengths` every token is an episode of its own. One ratio serves all tokens; advantages are one for all, one
    per episode or one per token. `old_probs` are π_old of the tokens (needed where a loss looks at probabilities);
    `mismatch` are π_old/μ. `settings` are keys of [loss]. Values: loss, gradient, surrogate, weights, ratios, advantages,
    clip_low and clip_high (fractions, where the objective clips), metrics, and correction where asked for.
    """
    import torch

    from milepost.loss import OBJECTIVES, Events, policy_loss, summarize

    recipe = _recipe({"loss": {"objective": loss, "aggregate": aggregate, **settings}, "correction": {"kind": correction},
                      "update": {"num_iterations": 2}})  # fmt: skip
    tokens = _lengths(lengths) if lengths is not None else [1] * max(len(ratios), len(advantages))
    episode = np.repeat(np.arange(len(tokens)), tokens)
    n = len(episode)
    ratio = np.array(_spread("ratios", ratios, n))
    advantage = np.array(_spread("advantages", advantages, n, per_episode=tokens))
    old = np.array(_spread("old_probs", _probabilities(old_probs, recipe.loss), n))
    sampler = old / np.array(_spread("mismatch", [1.0] if mismatch is None else mismatch, n))
    if (ratio <= 0).any() or (sampler <= 0).any() or not np.isfinite(sampler).all():
        raise RecipeError(
            "--ratios and --mismatch are quotients of probabilities and must be above 0, for example 0.8,1,1.3"
        )
    if old_probs is not None and (ratio * old > 1 + 1e-12).any():
        raise RecipeError("--ratios times --old-probs gives a probability above 1; lower one of them")
    names = [str(g) for g in groups] if groups is not None else ["1"] * len(tokens)
    _same_count("groups", names, "episodes", len(tokens))
    weight = aggregation_weights(tokens, names, aggregate, _constant(recipe.loss))[episode]
    tensor = lambda values: torch.tensor(np.asarray(values, np.float64))  # noqa: E731
    logprobs = tensor(np.log(ratio * old)).requires_grad_()
    events = Events(
        tensor(advantage), tensor(weight), torch.tensor(episode), len(tokens), tensor(np.log(sampler)), tensor(np.log(old))
    )
    value, stats = policy_loss(
        logprobs, events, recipe.loss, recipe.kl, recipe.correction, beta=0.0, correct=correction != "none"
    )
    value.backward()
    metrics = summarize([stats])
    surrogate = OBJECTIVES[loss](logprobs.detach(), tensor(np.log(old)), events, recipe.loss).value
    assert logprobs.grad is not None
    values: dict[str, Any] = {
        "loss": value.item(),
        "gradient": logprobs.grad.tolist(),
        "surrogate": surrogate.tolist(),
        "weights": weight.tolist(),
        "ratios": ratio.tolist(),
        "advantages": advantage.tolist(),
        "episode": episode.tolist(),
        "metrics": metrics,
    }
    values |= {key: metrics[key] for key in ("clip_low", "clip_high") if key in metrics}
    if stats.correction is not None:
        values["correction"] = stats.correction.tolist()
    return Explanation(values, *_loss_text(values, recipe))


def _probabilities(given: Sequence[float] | None, loss: LossSection) -> Sequence[float]:
    if given is None:
        if loss.objective in ("dppo_tv", "cross_entropy"):
            raise RecipeError(
                f"loss.objective = {loss.objective!r} looks at probabilities, so --old-probs is needed, e.g. 0.3"
            )
        return [1.0]
    if any(not 0 < p <= 1 for p in given):
        raise RecipeError("--old-probs are probabilities above 0 and at most 1, for example 0.3,0.9")
    return given


def _constant(loss: LossSection) -> int:
    if loss.aggregate == "constant" and not loss.constant:
        raise RecipeError("--constant is needed with --aggregate constant, for example --constant 10")
    return loss.constant


def _loss_text(values: dict[str, Any], recipe: Recipe) -> tuple[Any, ...]:
    steps = [
        describe_loss(recipe),
        f"loss = −Σ weight · surrogate = {values['loss']:.6g}",
        "The value and its sign carry no meaning (at ratio 1 it is minus a weighted mean of the advantages); the "
        "gradient does.",
    ]
    steps += [f"{key}: {values[key]:.6g} of the tokens" for key in ("clip_low", "clip_high") if key in values]
    columns = ["token", "episode", "ratio", "advantage", "weight", "surrogate", "∂loss/∂logp"]
    lists = [values["ratios"], values["advantages"], values["weights"], values["surrogate"], values["gradient"]]
    if "correction" in values:
        columns.append("correction")
        lists.append(values["correction"])
        steps.append(f"effective sample share under π_old/μ: {values['metrics']['mismatch/ess']:.6g}")
    rows = tuple((t + 1, e + 1, *row) for t, (e, *row) in enumerate(zip(values["episode"], *lists)))
    return tuple(steps), tuple(columns), rows


# ---- KL, returns, pass@k, defaults -----------------------------------------------------------------------------------

KL_NOTES = {
    "k1": "log(π/ref): as a loss its expected gradient is 0; it belongs in the reward",
    "k2": "½·log²(π/ref): gradient of KL(π‖ref)",
    "k3": "ref/π − log(ref/π) − 1: gradient of KL(ref‖π), the other direction",
    "k3_ratio": "(π/π_old)·k3: gradient of KL(π‖ref), also after earlier updates",
}


def explain_kl(logp: Sequence[float], ref: Sequence[float], old: Sequence[float] | None = None) -> Explanation:
    """Every KL estimator at given log-probs. Values: k1, k2, k3, k3_ratio (per token), gradient and mean (by estimator)."""
    import torch

    from milepost.loss import kl_terms

    n = _at_least_one("logp", logp)
    old = logp if old is None else old
    for name, given in (("ref", ref), ("old", old)):
        _same_count(name, given, "logp", n)
    for name, given in (("logp", logp), ("ref", ref), ("old", old)):
        _finite(name, given)
        if max(given) > 0:
            raise RecipeError(f"--{name} = {max(given):g}: log-probs are at most 0, for example -1.5")
    values: dict[str, Any] = {"logp": list(logp), "ref": list(ref), "gradient": {}, "mean": {}}
    for name in KL_NOTES:
        current = torch.tensor(list(logp), dtype=torch.float64, requires_grad=True)
        given_ref, given_old = (torch.tensor(list(x), dtype=torch.float64) for x in (ref, old))
        terms = kl_terms(current, given_ref, given_old, name)
        (gradient,) = torch.autograd.grad(terms.sum(), current)
        values[name], values["mean"][name] = terms.tolist(), terms.mean().item()
        values["gradient"][name] = gradient.tolist()
    steps = [f"{name} = {note} (mean {values['mean'][name]:.6g} nats per token)" for name, note in KL_NOTES.items()]
    columns = ("token", "logp", "ref", *KL_NOTES, *(f"∂{name}/∂logp" for name in KL_NOTES))
    lists = [logp, ref, *(values[name] for name in KL_NOTES), *(values["gradient"][name] for name in KL_NOTES)]
    return Explanation(values, tuple(steps), columns, tuple((t + 1, *row) for t, row in enumerate(zip(*lists))))


def explain_returns(rewards: Sequence[float], gamma: float) -> Explanation:
    """Discounted returns per step. Values: rewards, gamma, discounts (γ^t), returns."""
    _at_least_one("rewards", rewards)
    _finite("rewards", rewards)
    if not 0 <= gamma <= 1:
        raise RecipeError(f"--gamma = {gamma:g} must lie between 0 and 1, for example 0.99")
    returns = discounted_returns(rewards, gamma).tolist()
    discounts = [gamma**t for t in range(len(rewards))]
    steps = (
        f"G_t = r_t + {gamma:g}·G_(t+1), from the last step backwards",
        f"A reward {len(rewards) - 1} steps ahead counts {gamma:g}^{len(rewards) - 1} = {discounts[-1]:.6g} now.",
    )
    rows = tuple((t + 1, *row) for t, row in enumerate(zip(rewards, returns, discounts)))
    return Explanation(
        {"rewards": list(rewards), "gamma": gamma, "discounts": discounts, "returns": returns},
        steps, ("step", "reward", "return", "γ^(t−1)"), rows,
    )  # fmt: skip


def explain_passk(n: int, c: int, k: int) -> Explanation:
    """Values: n, c, k, pass_at_k, naive (the biased 1 − (1 − c/n)^k)."""
    value, naive = pass_at_k(n, c, k), 1 - (1 - c / n) ** k
    steps = (
        f"pass@{k} = 1 − C({n - c}, {k}) / C({n}, {k}) = 1 − {math.comb(n - c, k)}/{math.comb(n, k)} = {value:.6g}",
        f"The naive 1 − (1 − {c}/{n})^{k} = {naive:.6g} is biased: it draws with replacement.",
    )
    return Explanation({"n": n, "c": c, "k": k, "pass_at_k": value, "naive": naive}, steps)


def explain_defaults() -> Explanation:
    """Every setting. Values: defaults, a list of {key, default, why, seeds, symptom}."""
    table = defaults_table()
    columns = ("key", "default", "why", "seeds", "symptom")
    return Explanation({"defaults": table}, (), columns, tuple(tuple(row[c] for c in columns) for row in table))


# ---- checks of input -------------------------------------------------------------------------------------------------


def _at_least_one(name: str, values: Sequence[Any]) -> int:
    if not len(values):
        raise RecipeError(f"--{name} is empty; give comma-separated numbers, for example 0,1,1,0")
    return len(values)


def _finite(name: str, values: Sequence[float]) -> None:
    wrong = [v for v in values if not math.isfinite(v)]
    if wrong:
        hint = '; write "none" for an unscorable episode' if name == "rewards" else "; use finite numbers"
        raise RecipeError(f"--{name} holds {wrong[0]:g}, which is not a number to compute with{hint}")


_OPTIONS = {"loss.objective": "--loss", "rollout.truncated": "--truncated-rule", "correction.kind": "--correction"}


def _recipe(values: dict[str, Any]) -> Recipe:
    """The settings of one explanation; what is idle beside the others is no error here. Errors name the options."""
    try:
        return make_recipe(values, idle=True)
    except RecipeError as error:
        text = str(error)
        for key, option in _OPTIONS.items():
            text = re.sub(rf"\b{re.escape(key)}\b", option, text)
        named = re.sub(r"\b(?:credit|loss|rollout)\.([a-z_]+)", lambda m: "--" + m[1].replace("_", "-"), text)
        raise RecipeError(named) from None


def _same_count(name: str, values: Sequence[Any] | None, other: str, n: int) -> None:
    if values is not None and len(values) != n:
        raise RecipeError(f"--{name.replace('_', '-')} has {len(values)} entries but there are {n} {other}; give {n}")


def _lengths(values: Sequence[float]) -> list[int]:
    _at_least_one("lengths", values)
    _finite("lengths", values)
    if sum(values) > 100_000:
        raise RecipeError(f"--lengths sum to {sum(values):g} tokens; up to 100000 are explained, and ten show the same")
    if any(v != int(v) or v < 1 for v in values):
        raise RecipeError("--lengths are whole numbers of tokens, at least 1 each, for example 2,8")
    return [int(v) for v in values]


def _spread(name: str, values: Sequence[float], n: int, per_episode: Sequence[int] = ()) -> list[float]:
    """One value for all, one per episode (where allowed), or one per token."""
    _at_least_one(name, values)
    _finite(name, values)
    if len(values) == n:
        return list(values)
    if len(values) == len(per_episode):
        return [v for v, length in zip(values, per_episode) for _ in range(length)]
    if len(values) == 1:
        return list(values) * n
    counts = " or ".join(str(c) for c in sorted({1, *([len(per_episode)] if per_episode else []), n}))
    raise RecipeError(f"--{name.replace('_', '-')} has {len(values)} entries for {n} tokens; give {counts}")


# ---- command line ----------------------------------------------------------------------------------------------------


def numbers(option: str, text: str | None, *, blank: bool = False) -> list[Any] | None:
    """Comma-separated numbers; with `blank` the word none stands for a missing one."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")] if text.strip(" ,") else []
    result: list[Any] = []
    for part in parts:
        if blank and part.lower() == "none":
            result.append(None)
            continue
        try:
            result.append(float(part))
        except ValueError:
            raise RecipeError(f"{option} {text!r}: {part!r} is not a number; write for example {option} 0,1,1,0") from None
    return result


def add_explain_parser(subparsers: Any) -> argparse.ArgumentParser:
    """Adds `explain` with its own subcommands; `run_explain` runs the parsed arguments."""
    parser = subparsers.add_parser(
        "explain", help="compute advantages, losses, KL, returns or pass@k by hand, step by step"
    )
    topics = parser.add_subparsers(dest="topic", required=True, metavar="TOPIC")

    def topic(name: str, text: str) -> argparse.ArgumentParser:
        made = topics.add_parser(name, help=text)
        made.add_argument("--json", action="store_true", help="machine-readable, stable keys")
        # argparse takes "-1,1" for an option; here every word that begins like a number is one.
        made._negative_number_matcher = re.compile(r"^-[\d.]")  # type: ignore[attr-defined]
        return made

    advantage = topic("advantage", "rewards → advantages")
    advantage.add_argument("--rewards", required=True, help='one per episode; "none" is unscorable')
    advantage.add_argument("--groups", help="group id per episode (default: all in one)")
    advantage.add_argument("--baseline", default="auto", help="auto, loo, mean or none")
    advantage.add_argument("--scale", default="none", help="none, group or batch")
    advantage.add_argument("--std", default="population", help="population or sample")
    advantage.add_argument("--delta", type=float, default=1e-6, help="added to the std")
    advantage.add_argument("--lengths", help="tokens per episode; adds the weight per token")
    advantage.add_argument("--truncated", help="1 for each episode cut by the token budget, else 0")
    advantage.add_argument("--truncated-rule", default="keep_baseline", help="keep_baseline, score, drop or soft")
    advantage.add_argument("--max-new-tokens", type=int, default=256, help="cap of the soft penalty; constant divisor")
    advantage.add_argument("--soft-buffer", type=int, default=0, help="tokens over which the soft penalty ramps")
    advantage.add_argument("--aggregate", default="token_mean", help="which weight per token")
    _add_loss_options(topic("loss", "ratios and advantages → loss and its gradient"))
    kl = topic("kl", "log-probs → every KL estimator and its gradient")
    kl.add_argument("--logp", required=True, help="current log-probs")
    kl.add_argument("--ref", required=True, help="reference log-probs")
    kl.add_argument("--old", help="old log-probs (default: current)")
    returns = topic("returns", "rewards per step → discounted returns")
    returns.add_argument("--rewards", required=True)
    returns.add_argument("--gamma", type=float, required=True)
    passk = topic("passk", "unbiased pass@k")
    for name, text in (("--n", "samples drawn"), ("--c", "of them right"), ("--k", "samples allowed")):
        passk.add_argument(name, type=int, required=True, help=text)
    topic("defaults", "every setting: default, why, usual range, symptom that moves it")
    return parser


def _add_loss_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ratios", required=True, help="π/π_old: one for all, or one per token")
    parser.add_argument("--advantages", required=True, help="one for all, one per episode or one per token")
    parser.add_argument("--loss", default="clip", help=", ".join(get_args(Objective)))
    parser.add_argument("--aggregate", default="token_mean", help="sequence_mean, token_mean, constant or prompt_mean")
    parser.add_argument("--lengths", help="tokens per episode (default: every token is an episode)")
    parser.add_argument("--groups", help="group id per episode, for prompt_mean")
    parser.add_argument("--old-probs", help="π_old of the tokens, where a loss needs it")
    parser.add_argument("--mismatch", help="π_old/μ of the tokens")
    parser.add_argument("--correction", default="none", help="none, tis, mis or geometric_mask")
    for name, info in LossSection.model_fields.items():
        if name not in _OF_A_BATCH:
            kind = int if info.annotation is int else float
            parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=None, help=info.description)


_OF_A_BATCH = ("objective", "aggregate", "top_entropy", "kl_cov_share", "kl_cov_beta")
"""Settings of [loss] with options of their own, or that choose among the tokens of a whole batch by more than is given."""


def run_explain(args: argparse.Namespace) -> int:
    """Prints the explanation of the chosen topic. Raises RecipeError on bad input."""
    explanation = _TOPICS[args.topic](args)
    print(explanation.json() if args.json else explanation.text())
    return 0


def _advantage_of(args: argparse.Namespace) -> Explanation:
    cut = numbers("--truncated", args.truncated)
    if cut and any(c not in (0, 1) for c in cut):
        raise RecipeError("--truncated has one 0 or 1 per episode, for example 0,0,1,0")
    return explain_advantage(
        numbers("--rewards", args.rewards, blank=True) or [],
        groups=_words(args.groups), baseline=args.baseline, scale=args.scale, std=args.std, delta=args.delta,
        lengths=numbers("--lengths", args.lengths), truncated=None if cut is None else [bool(c) for c in cut],
        rule=args.truncated_rule, max_new_tokens=args.max_new_tokens, soft_buffer=args.soft_buffer,
        aggregate=args.aggregate,
    )  # fmt: skip


def _loss_of(args: argparse.Namespace) -> Explanation:
    names = [name for name in LossSection.model_fields if name not in _OF_A_BATCH]
    settings = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return explain_loss(
        numbers("--ratios", args.ratios) or [], numbers("--advantages", args.advantages) or [], loss=args.loss,
        aggregate=args.aggregate, lengths=numbers("--lengths", args.lengths), groups=_words(args.groups),
        old_probs=numbers("--old-probs", args.old_probs), mismatch=numbers("--mismatch", args.mismatch),
        correction=args.correction, **settings,
    )  # fmt: skip


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


_TOPICS: dict[str, Callable[[argparse.Namespace], Explanation]] = {
    "advantage": _advantage_of,
    "loss": _loss_of,
    "kl": lambda a: explain_kl(numbers("--logp", a.logp) or [], numbers("--ref", a.ref) or [], numbers("--old", a.old)),
    "returns": lambda a: explain_returns(numbers("--rewards", a.rewards) or [], a.gamma),
    "passk": lambda a: explain_passk(a.n, a.c, a.k),
    "defaults": lambda a: explain_defaults(),
}
