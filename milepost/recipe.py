"""One TOML file per run, typed. Unknown or contradictory keys are refused in a sentence that names a working value.

`load_recipe(path, overrides)` is the only way in. Every setting carries its reason, the range that tutorials give and
the symptom that moves it; `defaults_table()` generates the documentation page from them.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from milepost.types import RecipeError
from milepost.unsafe_rewards import SAFE_LENGTHS, refuse_unsafe_keys, refuse_unsafe_length


def setting(default: Any, why: str, *, seeds: str = "", symptom: str = "", **limits: Any) -> Any:
    """A recipe key: its default, why it is so, the range common tutorials give, and the symptom that moves it."""
    extra: Any = {"seeds": seeds, "symptom": symptom}
    if isinstance(default, (list, dict)):
        return Field(default_factory=lambda: type(default)(default), description=why, json_schema_extra=extra, **limits)
    return Field(default, description=why, json_schema_extra=extra, **limits)


MAX_INTEGER = 2**53
"""No setting counts further; beyond it, floats and array sizes stop being exact."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _is_sane(cls, value: Any, info: ValidationInfo) -> Any:
        """Python takes true for 1, and knows integers of any size and NUL in texts; settings and file names do not."""
        kinds = (cls.model_fields[info.field_name or ""].annotation,)
        kinds = get_args(kinds[0]) or kinds
        if isinstance(value, bool) and bool not in kinds and {int, float} & set(kinds):
            raise PydanticCustomError("number", "a number is needed")
        if isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise PydanticCustomError("too_large", "the number is too large to be meant")
        if isinstance(value, str) and "\0" in value:
            raise PydanticCustomError("nul", "a text without NUL is needed")
        return value


class NewPolicySection(Section):
    """A small random policy in place of `model.path`; see `milepost policy new`."""

    size: Literal["", "tiny", "small", "medium", "large"] = setting("", "0.5, 1, 4 or 15 M weights; empty: off")
    layers: int = setting(0, "0: the size's own", ge=0)
    width: int = setting(0, "0: the size's own", ge=0)
    heads: int = setting(0, "0: the size's own", ge=0)
    texts: str = setting("", "module:NAME of a text (or texts) that holds the whole vocabulary; empty: printable ASCII")
    tokens: Literal["characters", "words", "pairs"] = setting(
        "characters", "or words of `texts` with digits singly (words) or in pairs (pairs: an id of two digits is one token)"
    )
    context: int = setting(2048, "longest sequence", ge=16)
    seed: int = setting(0, "of the weights", ge=0)

    @model_validator(mode="after")
    def _check(self) -> NewPolicySection:
        changed = [key for key, field in type(self).model_fields.items() if getattr(self, key) != field.default]
        if self.size == "" and changed:
            raise ValueError(f'model.new.{changed[0]} does nothing without model.new.size; set it to "tiny" or remove both')
        if self.tokens != "characters" and not self.texts:
            raise ValueError(
                f'model.new.tokens = "{self.tokens}" needs model.new.texts to take the words from; "characters" does not'
            )
        return self


class ModelSection(Section):
    path: str = setting("smollm2-135m", "the embedded default; any Hugging Face name or folder of a causal LM works")
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto",
        "of the working copy that samples and learns; the optimizer's masters are always float32. "
        "auto: bfloat16 from 20 M parameters on where the hardware multiplies it natively, else float32",
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "cuda when there is one, else cpu")
    new: NewPolicySection = Field(default_factory=NewPolicySection)

    @model_validator(mode="after")
    def _check(self) -> ModelSection:
        if self.new.size and self.path != type(self).model_fields["path"].default:
            raise ValueError(
                f"model.path = {self.path!r} and model.new.size = {self.new.size!r} name two models; remove one of them"
            )
        return self


class SourceSection(Section):
    kind: Literal["jsonl", "reasoning_gym", "datasets", "function", "environment"] = setting(
        "jsonl", "where the rows come from; environment: tasks that env.name generates, params are its difficulty"
    )
    path: str = setting("", "file, data-set path, or module:function")
    name: str = setting("", "name of this source in metrics; of the family for reasoning_gym")
    params: dict[str, Any] = setting({}, "passed to the family, the data set or the function")
    size: int = setting(0, "rows to generate (reasoning_gym, function, environment); 0: all the source has", ge=0)
    weight: float = setting(1.0, "share of this source in the training mixture", gt=0)


class TasksSection(Section):
    sources: list[SourceSection] = setting([], "one or several sources; a mixture by weight")
    validation: int = setting(64, "held-out tasks that pick the checkpoint; never trained on", ge=0)
    test: int = setting(200, "held-out tasks that are touched once, at the end", ge=0)
    order: Literal["shuffled", "as_given"] = setting("shuffled", "as_given keeps a curriculum")
    prompt_column: str = setting("prompt", "column with text or messages")
    answer_column: str = setting("", "gold column; empty: answer, else expected_answer")
    system: str = setting("", "system message put before every prompt")
    template: str = setting("{prompt}", "wraps a text prompt")
    format: Literal["auto", "chat", "text"] = setting("auto", "auto: chat when the tokenizer has a chat template")
    max_prompt_tokens: int = setting(512, "longer prompts follow `overlong`", seeds="512", ge=1)
    overlong: Literal["drop", "error"] = setting("drop", "prompts over the limit are dropped and counted, or refused")


class RewardFunctionSection(Section):
    name: str = setting(..., "exact | numeric | regex | reasoning_gym, or module:function, or file.py:function")
    weight: float = setting(1.0, "correctness 1, format 0.1", seeds="correctness 1, format .1")
    params: dict[str, Any] = setting({}, "passed to the function")
    label: str = setting("", "name of the part in metrics; empty: the function's name")


class CostSection(Section):
    name: str = setting(..., "turns, calls, invalid, tokens, seconds, or a cost that the environment declares")
    free: float = setting(0.0, "units that cost nothing", ge=0)
    weight: float = setting(0.01, "what each further unit costs")
    cap: float = setting(0.1, "the most that all units together cost")

    @model_validator(mode="after")
    def _check(self) -> CostSection:
        if self.weight <= 0:
            raise ValueError(
                f"reward.costs {self.name}: weight = {self.weight:g} would pay for every unit: at −0.1, ten calls earn "
                "1.0, as much as success; use a weight above 0 such as 0.01"
            )
        if self.cap <= 0:
            raise ValueError(
                f"reward.costs {self.name}: cap = {self.cap:g} is no cap, and a cost without one outweighs success: at "
                "0.01, 150 units cost 1.5; use a cap above 0 such as 0.1"
            )
        return self


class TurnScorerSection(Section):
    name: str = setting(..., "module:function or file.py:function; it sees one turn and says 0 to 1, or None: cannot tell")
    weight: float = setting(0.05, "what a turn that is scored 1 earns; 0: only measured", ge=0)
    cap: float = setting(0.2, "the most that all turns of an episode earn by it", gt=0)
    params: dict[str, Any] = setting({}, "passed to the function")
    label: str = setting("", "name of the part in metrics; empty: the function's name")

    @model_validator(mode="after")
    def _check(self) -> TurnScorerSection:
        if not self.weight and self.cap != type(self).model_fields["cap"].default:
            raise ValueError(
                f"reward.turn_scorers {self.resolved_label}: cap = {self.cap:g} does nothing while weight = 0, which pays "
                "nothing; remove it, or use a weight above 0 such as 0.05"
            )
        return self

    @property
    def resolved_label(self) -> str:
        return self.label or self.name.rpartition(":")[2]


class LengthSection(Section):
    form: Literal["none", "kimi", "gr3", "l1_max", "overlong"] = setting(
        "none",
        "of the sampled tokens of an episode; only forms that never pay a wrong answer",
        symptom="output longer and worse",
    )
    weight: float = setting(0.0, "0: by form: kimi 0.1, gr3 0.1, l1_max 0.0003 per token, overlong 0.5", ge=0)
    target: int = setting(0, "l1_max: the length that pays half; overlong: where the whole penalty is reached", ge=0)
    buffer: int = setting(0, "overlong: tokens before target over which the penalty ramps up", ge=0)
    floor: float = setting(0.1, "l1_max: share of the outcome that the longest success keeps", ge=0, lt=1)
    max_mean: int = setting(0, "0: off; tokens above which a step's mean length raises the weight for the next one", ge=0)
    max_weight: float = setting(0.0, "max_mean: the weight rises no further", ge=0)
    rate: float = setting(0.1, "max_mean: how much the weight rises or falls per step, as a share", gt=0, le=1)

    @field_validator("form", mode="before")
    @classmethod
    def _is_safe(cls, form: Any) -> Any:
        refuse_unsafe_length(form)
        return form

    @model_validator(mode="after")
    def _check(self) -> LengthSection:
        uses = {"weight": SAFE_LENGTHS, "target": ("l1_max", "overlong"), "buffer": ("overlong",), "floor": ("l1_max",),
                "max_mean": SAFE_LENGTHS, "max_weight": SAFE_LENGTHS, "rate": SAFE_LENGTHS}  # fmt: skip
        for key, forms in uses.items():
            idle = self.form not in forms or (key in ("max_weight", "rate") and not self.max_mean)
            if idle and getattr(self, key) != type(self).model_fields[key].default:
                works = "reward.length.max_mean" if self.form in forms else f'reward.length.form = "{forms[0]}"'
                raise ValueError(
                    f"reward.length.{key} = {getattr(self, key)} does nothing while reward.length.form = "
                    f'"{self.form}"{" and max_mean = 0" if self.form in forms else ""}; remove it, or set {works}'
                )
        if self.form in ("l1_max", "overlong") and not self.target:
            raise ValueError(
                f'reward.length.form = "{self.form}" needs reward.length.target, in sampled tokens of an episode'
            )
        if self.form == "overlong" and not 0 < self.buffer <= self.target:
            raise ValueError(
                f"reward.length.buffer = {self.buffer} must lie between 1 and reward.length.target = {self.target}; a "
                "fifth of it works"
            )
        if self.max_mean and self.max_weight <= self.resolved_weight:
            raise ValueError(
                f"reward.length.max_weight = {self.max_weight:g} must exceed the weight, {self.resolved_weight:g}, that "
                f"max_mean is to raise; {2 * self.resolved_weight:g} works"
            )
        return self

    @property
    def resolved_weight(self) -> float:
        return self.weight or {"none": 0.0, "kimi": 0.1, "gr3": 0.1, "l1_max": 0.0003, "overlong": 0.5}[self.form]


class RewardSection(Section):
    functions: list[RewardFunctionSection] = setting([], "summed by weight", symptom="success flat while reward rises")
    success: str = setting("", "label of the part whose value ≥ success_at means success; empty: the first function")
    success_at: float = setting(1.0, "a shaped 0.1 is not success")
    extract: str = setting("", "regex whose last match's first group is the answer; empty: the whole completion")
    timeout_seconds: float = setting(10.0, "per completion; slower is unscorable, not zero", gt=0)
    canary_good: str = setting("", "a completion template that must score as success ({answer} is filled in)")
    outcome: float = setting(1.0, "environments: what success is worth", gt=0)
    milestones: dict[str, float] = setting(
        {}, "environments: name = weight; progress that the environment sees, paid once each"
    )
    milestone_cap: float = setting(0.5, "the most that all milestones together pay", gt=0)
    milestone_form: Literal["bonus", "potential"] = setting(
        "bonus",
        'added to the reward, or γΦ′ − Φ per turn, which leaves the optimum as it is and needs credit.rule = "turn"',
    )
    potential: float = setting(
        0.0,
        "environments: weight of the environment's own potential Φ, 0 to 1; each turn also gets weight · (γΦ′ − Φ), which "
        'leaves the optimum as it is and needs credit.rule = "turn"',
        ge=0,
    )
    costs: list[CostSection] = setting(
        [], 'environments: what an episode uses up, such as {name = "calls", free = 4, weight = 0.01, cap = 0.1}'
    )
    turn_scorers: list[TurnScorerSection] = setting(
        [], 'environments: what judges each turn, such as {name = "my_judge.py:judge", weight = 0.05, cap = 0.2}'
    )
    combine: Literal["sum", "gdpo"] = setting(
        "sum", "sum: by weight. gdpo: each part z-scored within its group, then weighted, then scaled over the batch"
    )
    length: LengthSection = Field(default_factory=LengthSection)

    @model_validator(mode="before")
    @classmethod
    def _is_safe(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            refuse_unsafe_keys(values)
        return values

    @model_validator(mode="after")
    def _check(self) -> RewardSection:
        for name, weight in self.milestones.items():
            if not weight > 0:
                raise ValueError(
                    f"reward.milestones.{name} = {weight:g}: a milestone is progress and pays more than 0; what should "
                    "cost something belongs under [[reward.costs]]"
                )
        for key in ("milestone_cap", "milestone_form"):
            if not self.milestones and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"reward.{key} = {_as_toml(getattr(self, key))} does nothing without reward.milestones; "
                                 "remove it, or name milestones of the environment")  # fmt: skip
        if twice := [name for name, count in Counter(cost.name for cost in self.costs).items() if count > 1]:
            raise ValueError(f"reward.costs: two of them are called {twice[0]!r}; one each")
        labels = Counter(scorer.resolved_label for scorer in self.turn_scorers)
        if twice := [label for label, count in labels.items() if count > 1]:
            raise ValueError(f"reward.turn_scorers: two of them are called {twice[0]!r}; give one of them another `label`")
        return self


class RolloutSection(Section):
    prompts_per_step: int = setting(8, "distinct tasks per step", ge=1)
    group_size: int = setting(
        8,
        "chance of a mixed group at p=.1 is .57 with 8, .34 with 4, .81 with 16",
        seeds="8–16",
        symptom="reward oscillates or most groups are constant",
    )
    max_new_tokens: int = setting(256, "tokens one completion may use", seeds="1024", symptom="truncation > 10 %", ge=1)
    temperature: float = setting(
        1.0,
        "log-probs are those of this temperature everywhere",
        seeds=".7–1.0",
        symptom="identical completions, or rubbish",
        gt=0,
    )
    top_p: float = setting(1.0, "below 1 cuts the support; refused for training", seeds=".95", gt=0, le=1)
    top_k: int = setting(0, "0: off; refused for training", ge=0)
    min_p: float = setting(0.0, "0: off; refused for training", ge=0, lt=1)
    truncated: Literal["keep_baseline", "score", "drop", "soft"] = setting(
        "keep_baseline",
        "a completion cut by the token budget: kept in the baseline and out of the loss; scored as it "
        "is; out of both; or scored with the soft overlong penalty",
    )
    soft_buffer: int = setting(0, "tokens before the cap over which the soft penalty ramps from 0 to −1", ge=0)

    @model_validator(mode="after")
    def _check(self) -> RolloutSection:
        if self.group_size < 2:
            raise ValueError(
                f"rollout.group_size = {self.group_size}: a group needs at least 2 members to be compared; "
                "8 is a good start"
            )
        if self.temperature < 0.01:
            raise ValueError(f"rollout.temperature = {self.temperature}: training needs sampling noise; use 0.7 to 1.0")
        if self.top_p < 1 or self.top_k > 0 or self.min_p > 0:
            raise ValueError(
                "rollout.top_p, top_k and min_p cut the support of sampling, which biases the ratio while "
                "training; leave them off (1.0, 0, 0.0) and set them under [eval] only"
            )
        if self.truncated != "soft" and self.soft_buffer:
            raise ValueError(
                f"rollout.soft_buffer = {self.soft_buffer} does nothing while rollout.truncated = "
                f'"{self.truncated}"; set rollout.truncated = "soft" or remove it'
            )
        if self.truncated == "soft" and not 0 < self.soft_buffer <= self.max_new_tokens:
            raise ValueError(
                f"rollout.soft_buffer = {self.soft_buffer} must lie between 1 and max_new_tokens = "
                f"{self.max_new_tokens}; a fifth of it works"
            )
        return self


class EnvSection(Section):
    """Episodes of many turns in an environment; everything is off while `name` is empty."""

    name: str = setting("", "calc, desk, maze, module:object or file.py:object; empty: single answers")
    tool_format: Literal["terse", "hermes", "llama", "model"] = setting(
        "terse",
        "how tool calls are written; terse costs fewest tokens; model: as the model's own chat template does, which is "
        "given the tools as JSON schemas",
    )
    old_reasoning: Literal["keep", "drop"] = setting(
        "keep",
        "thoughts of earlier turns (`<think>…</think>`) stay in the context, or are taken out of it as many chat templates "
        "do: then each turn after a thought is a new segment, read from its beginning",
    )
    max_turns: int = setting(8, "actions of one episode; used up: scored as it is", ge=1)
    max_tool_calls: int = setting(0, "0: off; used up: scored as it is", ge=0)
    max_invalid: int = setting(5, "invalid actions in a row that end an episode, which is scored", ge=1)
    max_episode_tokens: int = setting(0, "0: off; sampled tokens of all turns together", ge=0)
    max_context_tokens: int = setting(0, "0: the model's own; longer histories follow `context_rule`", ge=0)
    max_seconds: float = setting(0.0, "0: off; wall time of one episode", ge=0)
    context_rule: Literal["stop", "drop_oldest", "summary"] = setting(
        "stop", "a full history ends the episode, or goes on in a new segment: without its oldest turns, or summed up"
    )
    isolated: bool = setting(False, "each instance in a process of its own that can be killed; for code that may hang")
    step_seconds: float = setting(30.0, "deadline of one step; later is a fault, not a failure", gt=0)
    reset_seconds: float = setting(60.0, "deadline of a start", gt=0)
    retries: int = setting(1, "times an episode is played anew after a fault of the environment", ge=0)
    max_concurrent: int = setting(64, "episodes that are played at the same time", ge=1)


class CreditSection(Section):
    baseline: Literal["auto", "loo", "mean", "none"] = setting("auto", "loo is unbiased; auto: loo unscaled, mean scaled")
    scale: Literal["none", "group", "batch"] = setting(
        "none", "group std can flip the gradient's sign in stochastic groups, and inflates small bonuses"
    )
    std: Literal["population", "sample"] = setting("population", "differ by √(G/(G−1)): 1.07 at 8, 1.41 at 2")
    delta: float = setting(1e-6, "added to the std", ge=0)
    rule: Literal["episode", "discounted", "turn"] = setting(
        "episode",
        "episode: all tokens share the advantage; discounted: γ^(turns left) of it; turn: returns of the turns' rewards",
    )
    gamma: float = setting(
        1.0, "discount per turn; .99 leaves .904 after 10 turns and .366 after 100. Not a length normalisation", gt=0, le=1
    )

    @model_validator(mode="after")
    def _check(self) -> CreditSection:
        if self.gamma != 1 and self.rule == "episode":
            raise ValueError(
                f'credit.gamma = {self.gamma:g} does nothing while credit.rule = "episode"; remove it, or set '
                'credit.rule = "discounted"'
            )
        if self.gamma == 1 and self.rule == "discounted":
            raise ValueError(
                'credit.rule = "discounted" with credit.gamma = 1 is the rule "episode"; set credit.gamma below 1, say 0.99'
            )
        if self.rule == "turn" and self.scale != "none":
            raise ValueError(
                f'credit.rule = "turn" is defined without a std; set credit.scale = "none" instead of "{self.scale}"'
            )
        if self.baseline == "loo" and self.scale == "group":
            raise ValueError(
                'credit.baseline = "loo" with credit.scale = "group" divides by a std that can be zero; '
                'use baseline = "mean" with scale = "group", or scale = "none"'
            )
        return self

    @property
    def resolved_baseline(self) -> str:
        return self.baseline if self.baseline != "auto" else ("loo" if self.scale == "none" else "mean")


Objective = Literal["clip", "gspo", "gspo_token", "cispo_cap", "cispo_clip", "sapo", "gmpo", "dppo_tv", "cross_entropy"]


class LossSection(Section):
    objective: Objective = setting("clip", "PPO's clipped surrogate")
    clip_low: float = setting(
        0.2, "ratio may fall to 1−clip_low; from 1 on never clipped", seeds=".2", symptom="clip fraction high", gt=0
    )
    clip_high: float = setting(0.2, "ratio may rise to 1+clip_high; .28 is clip-higher", seeds=".2", gt=0)
    dual_clip: float = setting(0.0, "0: off; bound on the loss of negative advantages, 3 in verl", ge=0)
    cispo_cap: float = setting(5.0, "cispo_cap: the largest importance weight", gt=0)
    sapo_tau_positive: float = setting(1.0, "sapo: temperature for positive advantages", gt=0)
    sapo_tau_negative: float = setting(1.05, "sapo: temperature for negative advantages", gt=0)
    gmpo_clip: float = setting(0.4, "gmpo: clip in log space", gt=0)
    dppo_delta: float = setting(0.2, "dppo_tv: largest probability difference to the sampler", gt=0)
    aggregate: Literal["sequence_mean", "token_mean", "constant", "prompt_mean"] = setting(
        "token_mean",
        "always over the whole update batch; sequence_mean pushes long wrong answers down less",
        symptom="output longer and worse",
    )
    constant: int = setting(0, "aggregate = constant: divisor per episode; 0: rollout.max_new_tokens", ge=0)

    @model_validator(mode="after")
    def _check(self) -> LossSection:
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"loss.dual_clip = {self.dual_clip} must exceed 1 (3 is common), or be 0 for off")
        return self


class KlSection(Section):
    beta: float = setting(
        0.0,
        "0: no reference model exists",
        seeds=".01–.05, start .02, raise if KL > .1, lower if < .01",
        symptom="reward rises, then falls",
        ge=0,
    )
    estimator: Literal["k1", "k2", "k3", "k3_ratio"] = setting("k2", "k2 and k3_ratio have the gradient of KL(π‖ref)")
    place: Literal["loss", "reward"] = setting("loss", "k1 belongs in the reward, the others in the loss")
    beta_end: float | None = setting(None, "linear schedule from beta to beta_end over the run; none: constant", ge=0)

    @model_validator(mode="after")
    def _check(self) -> KlSection:
        if self.beta == 0 and (self.beta_end or self.place != "loss" or self.estimator != "k2"):
            raise ValueError(
                "kl.estimator, kl.place and kl.beta_end do nothing while kl.beta = 0; set kl.beta = 0.02 or remove them"
            )
        if self.estimator == "k1" and self.place == "loss":
            raise ValueError('kl.estimator = "k1" in the loss has expected gradient 0; use "k2", or place = "reward"')
        if self.estimator != "k1" and self.place == "reward":
            raise ValueError(f'kl.estimator = "{self.estimator}" in the reward has a wrong gradient; use "k1" there')
        return self


class CorrectionSection(Section):
    kind: Literal["auto", "none", "tis", "mis", "geometric_mask"] = setting(
        "auto",
        "importance weights π_old/μ for sampler–learner mismatch; auto: tis whenever their precision differs or is "
        "below float32",
    )
    cap: float = setting(2.0, "tis: largest token weight", gt=0)
    low: float = setting(0.5, "mis: tokens outside [low, high] are masked", gt=0)
    high: float = setting(2.0, "mis: see low", gt=0)
    sequence_low: float = setting(0.99, "geometric_mask: episodes whose mean ratio leaves the band are masked", gt=0)
    sequence_high: float = setting(1.01, "geometric_mask: see sequence_low", gt=0)

    @model_validator(mode="after")
    def _check(self) -> CorrectionSection:
        if not self.low < 1 < self.high or not self.sequence_low < 1 < self.sequence_high:
            raise ValueError("correction.low < 1 < correction.high is needed (0.5 and 2.0 work; sequences: 0.99, 1.01)")
        return self


class OptimizerSection(Section):
    lr: float = setting(
        0.0,
        "0: by model size (see docs); LoRA wants ten times as much",
        seeds="1e-6…5e-6 (full 7B)",
        symptom="reward flat (look at update size) or collapses",
        ge=0,
    )
    betas: tuple[float, float] = setting((0.9, 0.95), "AdamW moments")
    eps: float = setting(1e-8, "AdamW epsilon", gt=0)
    weight_decay: float = setting(0.0, "AdamW decay", ge=0)
    grad_clip: float = setting(1.0, "largest gradient norm", gt=0)
    warmup_steps: int = setting(
        -1,
        "linear warm-up; −1: a fifth of the updates, at most 10. Adam's first steps are as large as the rate allows, "
        "however small the gradient",
        ge=-1,
    )
    schedule: Literal["constant", "linear", "cosine"] = setting("constant", "after warm-up")

    @model_validator(mode="after")
    def _check(self) -> OptimizerSection:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas = {list(self.betas)}: both must lie in [0, 1); [0.9, 0.95] works")
        return self


class UpdateSection(Section):
    num_iterations: int = setting(1, "passes over one batch of episodes", ge=1)
    minibatches: int = setting(1, "optimizer steps per pass; whole groups are dealt out", ge=1)
    tokens_per_call: int = setting(
        4096, "unique tokens in one forward; longer histories are run in pieces. Memory, never the result", ge=1
    )
    executor: Literal["packed", "plain"] = setting("packed", "packed: every shared prefix once; plain: one row per episode")


class SftSection(Section):
    steps: int = setting(0, "0: no warm start", ge=0)
    batch_size: int = setting(16, "demonstrations per step", ge=1)
    demonstrations: str = setting(
        "",
        "JSONL with prompt and completion; or, of each training task, a template such as 'Answer: {answer}' or a Python "
        "function, module:function",
    )
    num_demonstrations: int = setting(0, "how many are used; 0: all", ge=0)
    loss_on: Literal["actions", "everything"] = setting(
        "actions",
        "everything: prompts and observations too, from which a policy made from nothing learns to read and to copy",
    )
    lr: float = setting(0.0, "0: by model size", ge=0)
    schedule: Literal["constant", "linear", "cosine"] = setting("linear", "after warm-up")
    warmup_steps: int = setting(-1, "linear warm-up; −1: a fifth of the steps, at most 10", ge=-1)


class GrpoSection(Section):
    steps: int = setting(0, "one batch of episodes each", seeds="effect after 100–500, full run 1,000–5,000", ge=0)
    panel_every: int = setting(10, "steps between measurements of drift on the fixed panel", ge=1)
    random_reward: bool = setting(False, "control: rewards drawn by coin; success must not rise")
    no_signal: Literal["warn", "stop"] = setting("warn", "what a batch without any signal does")
    truncated_batch: Literal["warn", "stop"] = setting("warn", "what a batch of only truncated completions does")


class EvalSection(Section):
    every: int = setting(0, "0: every 100 steps or a tenth of the run, whichever is sooner", seeds="100", ge=0)
    samples: int = setting(2, "completions per validation task at `temperature`", ge=1)
    test_samples: int = setting(4, "completions per test task; greedy is reported beside it", ge=1)
    temperature: float = setting(1.0, "of held-out sampling; stored with the score", ge=0)
    top_p: float = setting(1.0, "free here", gt=0, le=1)


class SaveSection(Section):
    every: int = setting(0, "0: with every evaluation", seeds="100", ge=0)
    keep: int = setting(1, "latest checkpoints kept, besides the best", ge=1)


class Recipe(Section):
    """A whole run."""

    name: str = setting("run", "names the run directory")
    seed: int = setting(0, "everything random derives from it", ge=0)
    out: str = setting("runs", "where run directories go")
    preset: Literal["", "grpo", "dr_grpo", "dapo", "trl", "deepseek_r1", "rloo", "gspo", "cispo", "sapo"] = setting(
        "", "expands into credit, loss and kl settings and prints them"
    )
    model: ModelSection = Field(default_factory=ModelSection)
    tasks: TasksSection = Field(default_factory=TasksSection)
    reward: RewardSection = Field(default_factory=RewardSection)
    rollout: RolloutSection = Field(default_factory=RolloutSection)
    env: EnvSection = Field(default_factory=EnvSection)
    credit: CreditSection = Field(default_factory=CreditSection)
    loss: LossSection = Field(default_factory=LossSection)
    kl: KlSection = Field(default_factory=KlSection)
    correction: CorrectionSection = Field(default_factory=CorrectionSection)
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    update: UpdateSection = Field(default_factory=UpdateSection)
    sft: SftSection = Field(default_factory=SftSection)
    grpo: GrpoSection = Field(default_factory=GrpoSection)
    eval: EvalSection = Field(default_factory=EvalSection)
    save: SaveSection = Field(default_factory=SaveSection)

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if self.update.minibatches > self.rollout.prompts_per_step:
            raise ValueError(
                f"update.minibatches = {self.update.minibatches} deals out whole groups, but there are only "
                f"rollout.prompts_per_step = {self.rollout.prompts_per_step}; use at most that"
            )
        if self.loss.objective == "cross_entropy" and self.grpo.steps:
            raise ValueError('loss.objective = "cross_entropy" ignores rewards; use "clip" for grpo')
        if self.loss.objective == "dppo_tv" and self.correction.kind not in ("auto", "none"):
            raise ValueError(
                f'correction.kind = "{self.correction.kind}" does nothing while loss.objective = "dppo_tv", whose '
                'ratio is to the sampler already; remove it, or set loss.objective = "clip"'
            )
        _check_credit_of_reward(self)
        if self.env.name and self.reward.functions:
            raise ValueError(
                f'reward.functions does nothing while env.name = "{self.env.name}", whose own goal judges; remove it, and '
                "say what else counts with reward.milestones and reward.costs"
            )
        if not self.env.name and (self.reward.turn_scorers or self.reward.potential):
            key = "reward.turn_scorers" if self.reward.turn_scorers else f"reward.potential = {self.reward.potential:g}"
            raise ValueError(f'{key} does nothing while env.name is empty: single answers have no turns to tell apart; '
                             'remove it, or name an environment, for example env.name = "maze"')  # fmt: skip
        if self.env.tool_format == "model" and self.tasks.format == "text":
            raise ValueError(
                'env.tool_format = "model" hands the tools to the chat template, which tasks.format = "text" leaves out; '
                'set tasks.format = "chat", or env.tool_format = "terse"'
            )
        if not self.env.name and any(source.kind == "environment" for source in self.tasks.sources):
            raise ValueError('tasks.sources: kind = "environment" needs env.name, for example "calc"')
        names = [s.name or s.path for s in self.tasks.sources]
        if len(set(names)) != len(names):
            raise ValueError("tasks.sources: two sources share a name; give each its own `name`")
        return self

    @property
    def eval_every(self) -> int:
        return self.eval.every or max(1, min(100, self.grpo.steps // 10 or 1))

    @property
    def save_every(self) -> int:
        return self.save.every or self.eval_every


def _check_credit_of_reward(recipe: Recipe) -> None:
    """Refuses rewards that the credit rule would drop, and credit settings that GDPO would drop."""
    reward, credit = recipe.reward, recipe.credit
    if (reward.milestone_form == "potential" or reward.potential) and credit.rule != "turn":
        instead = 'reward.milestone_form = "bonus"' if reward.milestone_form == "potential" else "reward.potential = 0"
        raise ValueError(
            f"potential shaping with `{credit.rule}` credit has no effect: Φ is 0 at every end, so that it adds the same "
            f'to each member of a group; set credit.rule = "turn", or {instead}'
        )
    if reward.combine != "gdpo":
        return
    others = (
        ("credit.scale", credit.scale, "none"),
        ("credit.baseline", credit.baseline, "auto"),
        ("credit.rule", credit.rule, "episode"),
        ("kl.place", recipe.kl.place, "loss"),
    )
    for key, value, needed in others:
        if value != needed:
            raise ValueError(
                f'{key} = "{value}" has no place beside reward.combine = "gdpo", which normalises each part of an '
                f'episode\'s reward by itself; set {key} = "{needed}", or reward.combine = "sum"'
            )
    if reward.length.form in ("gr3", "l1_max"):
        raise ValueError(
            f'reward.length.form = "{reward.length.form}" multiplies success and is no part that reward.combine = "gdpo" '
            'could normalise; use reward.length.form = "kimi" or "overlong"'
        )
    if recipe.rollout.truncated == "soft":
        raise ValueError(
            'rollout.truncated = "soft" is no part that reward.combine = "gdpo" could normalise; use reward.length.form = '
            '"overlong"'
        )


# What each preset expands into. Sources: DeepSeekMath 2402.03300, Dr. GRPO 2503.20783, DAPO 2503.14476, TRL 1.16
# defaults, DeepSeek-R1 (ε = 10, β = .001), RLOO 2402.14740, GSPO 2507.18071, CISPO 2506.13585, SAPO 2511.20347.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "grpo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "clip", "aggregate": "sequence_mean"},
        "kl": {"beta": 0.04, "estimator": "k3"},
    },
    "dr_grpo": {
        "credit": {"baseline": "mean", "scale": "none"},
        "loss": {"objective": "clip", "aggregate": "constant"},
    },
    "dapo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "clip", "clip_low": 0.2, "clip_high": 0.28, "aggregate": "token_mean"},
    },
    "trl": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "clip", "aggregate": "token_mean"},
    },
    "deepseek_r1": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "clip", "clip_low": 10.0, "clip_high": 10.0, "aggregate": "sequence_mean"},
        "kl": {"beta": 0.001, "estimator": "k3"},
    },
    "rloo": {
        "credit": {"baseline": "loo", "scale": "none"},
        "loss": {"objective": "clip", "aggregate": "sequence_mean"},
    },
    "gspo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregate": "sequence_mean"},
    },
    "cispo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "cispo_cap", "cispo_cap": 5.0, "aggregate": "token_mean"},
    },
    "sapo": {
        "credit": {"baseline": "mean", "scale": "group", "std": "sample", "delta": 1e-4},
        "loss": {"objective": "sapo", "aggregate": "sequence_mean"},
    },
}


# (section, settings, the switch they depend on, the values of the switch with which they do something).
IDLE_UNLESS: tuple[tuple[str, tuple[str, ...], str, tuple[str, ...]], ...] = (
    ("credit", ("std", "delta"), "scale", ("group", "batch")),
    ("loss", ("clip_low", "clip_high"), "objective", ("clip", "gspo", "gspo_token", "cispo_clip")),
    ("loss", ("dual_clip",), "objective", ("clip", "gspo", "gspo_token")),
    ("loss", ("cispo_cap",), "objective", ("cispo_cap",)),
    ("loss", ("sapo_tau_positive", "sapo_tau_negative"), "objective", ("sapo",)),
    ("loss", ("gmpo_clip",), "objective", ("gmpo",)),
    ("loss", ("dppo_delta",), "objective", ("dppo_tv",)),
    ("loss", ("constant",), "aggregate", ("constant",)),
    ("correction", ("cap",), "kind", ("tis", "auto")),
    ("correction", ("low", "high"), "kind", ("mis",)),
    ("correction", ("sequence_low", "sequence_high"), "kind", ("geometric_mask",)),
)


def load_recipe(path: str | Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Reads a TOML recipe and applies dotted `key=value` overrides. Raises RecipeError with one sentence."""
    values, text = ({}, "") if path is None else read_toml(path)
    for override in overrides:
        apply_override(values, override)
    try:
        return make_recipe(values)
    except RecipeError as error:
        there = _line_of_first(str(error), text, [override.partition("=")[0].strip() for override in overrides])
        raise RecipeError(f"{error} ({Path(path).name}, line {there})" if path and there else str(error)) from None


def read_toml(path: str | Path) -> tuple[dict[str, Any], str]:
    """(what a TOML file says, its text), unchecked. Raises RecipeError with one sentence."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        return tomllib.loads(text), text
    except OSError as error:
        raise RecipeError(f"recipe {path}: {error.strerror or error}; `milepost init` writes one") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path} is not valid TOML: {error}") from error


def make_recipe(values: Mapping[str, Any], *, idle: bool = False) -> Recipe:
    """Validates a nested mapping over its preset. Settings without effect beside the others are refused unless `idle`."""
    merged = json.loads(json.dumps(values, default=str))  # a date in TOML is the text it was written as
    preset = merged.get("preset", "")
    expanded: dict[str, Any] = {}
    for section, defaults in PRESETS.get(preset if isinstance(preset, str) else "", {}).items():
        own = merged.setdefault(section, {})
        if not isinstance(own, dict) or (section == "kl" and own.get("beta") == 0):
            continue  # without KL, the estimator that the preset names goes with it
        expanded |= {f"{section}.{key}": value for key, value in defaults.items() if key not in own}
        merged[section] = {**defaults, **own}
    try:
        recipe = Recipe.model_validate(merged)
    except ValidationError as error:
        sentence = _sentence(error)
        named = [f"{k} = {_as_toml(v)}" for k, v in expanded.items() if re.search(rf"\b{re.escape(k)}\b", sentence)]
        raise RecipeError(sentence + (f'; preset = "{preset}" sets {", ".join(named)}' if named else "")) from None
    if not idle:
        _refuse_idle(recipe)
    return recipe


def _refuse_idle(recipe: Recipe) -> None:
    """Refuses a setting that was changed from what its preset or default says, and does nothing with the others."""
    whole, preset = recipe.model_dump(), PRESETS.get(recipe.preset, {})
    known = dict(iter_settings())
    for section, keys, switch, values in IDLE_UNLESS:
        if whole[section][switch] in values or (section == "credit" and recipe.reward.combine == "gdpo"):
            continue
        for key in keys:
            usual = preset.get(section, {}).get(key, known[f"{section}.{key}"].default)
            if whole[section][key] not in (usual, known[f"{section}.{key}"].default):
                raise RecipeError(
                    f"{section}.{key} = {_as_toml(whole[section][key])} does nothing while {section}.{switch} = "
                    f'"{whole[section][switch]}"; remove it, or set {section}.{switch} = "{values[0]}"'
                )
    for i, function in enumerate(recipe.reward.functions):
        if function.weight == 0 and len(recipe.reward.functions) == 1:
            raise RecipeError(
                f"reward.functions.{i}.weight = 0 leaves no reward at all; use 1.0 (0 is for parts that are only measured)"
            )


def _line_of_first(message: str, text: str, overridden: Sequence[str]) -> int:
    """The line of the recipe's text that sets the first setting named in `message`; 0 if none of them stands there."""
    lines: dict[str, int] = {}
    section, tables = "", Counter[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*(\[\[?)\s*([\w.-]+)\s*\]", line):
            section = header[2]
            lines.setdefault(section, number)
            if header[1] == "[[":
                section = f"{section}.{tables[section]}"
                tables[header[2]] += 1
                lines.setdefault(section, number)
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            lines.setdefault(f"{section}.{key[1]}".lstrip("."), number)
    named = re.findall(r"\w+(?:\.\w+)+|^\w+", message)
    return next((lines[name] for name in named if name in lines and name not in overridden), 0)


def apply_override(values: dict[str, Any], override: str) -> None:
    """Sets what `section.key=value` names in a nested mapping. Raises RecipeError."""
    key, found, text = override.partition("=")
    key = key.strip()
    if not found or not all(key.split(".")):
        raise RecipeError(f"override {override!r} must look like section.key=value, for example grpo.steps=20")
    *sections, last = key.split(".")
    node: Any = values
    for part in sections:
        node = node.setdefault(part, {}) if isinstance(node, dict) else _item(node, part, key)
    if isinstance(node, list):
        _item(node, last, key)
        node[int(last)] = _override_value(key, text)
    elif isinstance(node, dict):
        node[last] = _override_value(key, text)
    else:
        raise RecipeError(f"override {key}: {sections[-1]} is a value, not a section")


def _override_value(key: str, text: str) -> Any:
    """TOML where the text is one TOML value and the setting is no text, else the text itself."""
    try:
        parsed = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    kinds = {k: f.annotation for k, f in iter_settings()}
    is_text = kinds.get(_no_index(key)) is str and not isinstance(parsed["v"], str)  # name=7, name=2026-01-01
    return text if is_text or len(parsed) > 1 else parsed["v"]


def _item(node: Any, part: str, key: str) -> Any:
    if not isinstance(node, list):
        raise RecipeError(f"override {key}: there is no {part!r} to set")
    if part.isdecimal() and int(part) < len(node):
        return node[int(part)]
    there = (
        f"entries are numbered 0 to {len(node) - 1}" if len(node) > 1 else "only entry 0 exists" if node else "none exists"
    )
    raise RecipeError(f"override {key}: there is no entry {part!r} to set; {there}")


def _sentence(error: ValidationError) -> str:
    """The first problem, as a sentence that names the key and something that works."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    given, kind = problem.get("input"), problem["type"]
    settings = dict(iter_settings())
    if kind == "extra_forbidden":
        return _unknown(where, given, settings)
    message = problem["msg"].removeprefix("Value error, ")
    if not where or kind == "value_error":
        return message
    if kind in ("missing", "tuple_type", "too_long") and where not in settings:
        where = next((k for k in (_no_index(where), where) if k in settings), where)
    known = settings.get(_no_index(where))
    if kind == "missing" and known is not None and known.is_required():
        return f"{where} is missing; it says: {known.description}"
    default = known.get_default(call_default_factory=True) if known is not None else None
    works = f"; the default {_as_toml(default)} works" if default not in (None, "", [], {}) else ""
    if kind in ("model_type", "dict_type"):
        works, message = "", "a section with keys of its own is needed" + _example(_no_index(where), settings)
    elif kind == "list_type":
        works, message = "", f"a list is needed; in the file, each entry is a table [[{where}]]"
    elif kind in ("missing", "tuple_type", "too_long"):
        message = "two numbers are needed"
    else:
        message = _PLAIN.get(kind, message)
    shown = repr(given) if len(repr(given)) <= 120 else repr(given)[:119] + "…"
    return f"{where} = {shown}: {message[0].lower() + message[1:]}{works}"


_PLAIN = {
    "int_parsing": "a whole number is needed",
    "int_from_float": "a whole number is needed",
    "int_type": "a whole number is needed",
    "float_parsing": "a number is needed",
    "float_type": "a number is needed",
    "finite_number": "a finite number is needed",
    "bool_parsing": "true or false is needed",
    "bool_type": "true or false is needed",
    "string_type": "a text is needed",
}


def _unknown(where: str, given: Any, settings: Mapping[str, Any]) -> str:
    sections = {key.rpartition(".")[0] for key in settings}
    of_its_kind = sections if isinstance(given, dict) else set(settings) - sections
    near = difflib.get_close_matches(_no_index(where), sorted(of_its_kind), n=1, cutoff=0.5)
    if not near and not isinstance(given, dict):
        last = {k.split(".")[-1]: k for k in sorted(settings)}
        near = [last[m] for m in difflib.get_close_matches(where.split(".")[-1], list(last), n=1)]
    hint = f"did you mean {near[0]}?" if near else "`milepost explain defaults` lists every key"
    return f"{where} is not a {'section' if isinstance(given, dict) else 'setting'}; {hint}"


def _example(section: str, settings: Mapping[str, Any]) -> str:
    inside = next((key for key in settings if key.startswith(f"{section}.")), "")
    return f", for example {inside}" if inside else ""


def _as_toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def _no_index(where: str) -> str:
    return ".".join(part for part in where.split(".") if not part.isdigit())


def iter_settings(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, pydantic field) of every setting, in reading order."""
    for name, info in model.model_fields.items():
        kind: Any = info.annotation
        inner = getattr(kind, "__args__", (kind,))[0]
        if isinstance(inner, type) and issubclass(inner, Section):
            if kind is not inner:
                yield prefix + name, info
            yield from iter_settings(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, info


def defaults_table() -> list[dict[str, str]]:
    """One row per setting: key, default, choices, why, the range tutorials give, the symptom that moves it."""
    rows = []
    for key, info in iter_settings():
        extra = info.json_schema_extra or {}
        choices = filter(None, get_args(info.annotation)) if get_origin(info.annotation) is Literal else ()
        default = "required" if info.is_required() else json.dumps(info.get_default(call_default_factory=True), default=str)
        rows.append(
            {
                "key": key,
                "default": default,
                "choices": ", ".join(choices),
                "why": info.description or "",
                "seeds": extra.get("seeds", ""),
                "symptom": extra.get("symptom", ""),
            }
        )
    return rows
