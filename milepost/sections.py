"""The typed sections of a recipe: every setting with its default, its reason, and the checks within a section.

`reward_sections` holds those of the reward, `recipe` the whole that they make up, with its presets.
"""

from __future__ import annotations

import json
from typing import Any, Literal, cast, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError


def setting(default: Any, why: str, *, seeds: str = "", symptom: str = "", **limits: Any) -> Any:
    """A recipe key: its default, why it is so, the range common tutorials give, and the symptom that moves it."""
    extra: Any = {"seeds": seeds, "symptom": symptom}
    if isinstance(default, (list, dict)):
        return Field(default_factory=lambda: type(default)(default), description=why, json_schema_extra=extra, **limits)
    return Field(default, description=why, json_schema_extra=extra, **limits)


MAX_INTEGER = 2**53
"""No setting counts further; beyond it, floats and array sizes stop being exact."""


def as_toml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


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
        "auto: bfloat16 on a GPU from 20 M parameters on, on a CPU that multiplies it natively from 500 M on, else float32",
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
    answer_column: str = setting(
        "", "gold column; empty: answer, else expected_answer; row: the whole row; none: no reward needs one"
    )
    system: str = setting("", "system message put before every prompt")
    template: str = setting("{prompt}", "wraps a text prompt")
    format: Literal["auto", "chat", "text"] = setting("auto", "auto: chat when the tokenizer has a chat template")
    max_prompt_tokens: int = setting(512, "longer prompts follow `overlong`", seeds="512", ge=1)
    overlong: Literal["drop", "error"] = setting("drop", "prompts over the limit are dropped and counted, or refused")


OWN_BUDGETS = ("turns", "tool_calls", "invalid_actions")
"""Reasons to stop that the policy brought about by its own choices: scored, unless a recipe says otherwise."""

OTHER_LIMITS = ("tokens", "context", "time", "environment")
"""Reasons to stop that say little about what the policy chose; `environment`: a limit of the world's own."""

StopRule = Literal["keep_baseline", "score", "drop"]


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
        "episodes that tokens, context, time or a limit of the environment cut: kept in the baseline and out of the loss; "
        "scored as they are; out of both; or scored with the soft overlong penalty",
    )
    stop_rules: dict[str, str] = setting(
        {},
        "reason = keep_baseline, score or drop, where it differs from `truncated` (tokens, context, time, environment) or "
        "from score (turns, tool_calls, invalid_actions)",
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
        for reason, rule in self.stop_rules.items():
            _check_stop_rule(reason, rule)
        return self

    def stop_rule(self, reason: str) -> StopRule:
        """What it means for an episode that this truncation ended it: the one place that says so. Reasons that nobody
        knows are treated like running out of tokens."""
        usual = "score" if reason in OWN_BUDGETS or self.truncated == "soft" else self.truncated
        return cast(StopRule, self.stop_rules.get(reason, usual))


_FAULTS = ("fault", "crash", "hang", "garbage", "reset", "dead", "start")


def _check_stop_rule(reason: str, rule: str) -> None:
    if reason in _FAULTS:
        raise ValueError(f"rollout.stop_rules.{reason}: what the infrastructure broke says nothing about the policy, so "
                         "that faults are always in neither baseline nor loss; remove it")  # fmt: skip
    if reason not in OWN_BUDGETS + OTHER_LIMITS:
        raise ValueError(f"rollout.stop_rules.{reason}: no episode is cut short by that; the reasons are "
                         f"{', '.join(OWN_BUDGETS + OTHER_LIMITS)}")  # fmt: skip
    if rule == "soft":
        raise ValueError(f'rollout.stop_rules.{reason} = "soft": the soft penalty is of every episode, whatever ended it; '
                         'set rollout.truncated = "soft", which scores, or use keep_baseline, score or drop')  # fmt: skip
    if rule not in get_args(StopRule):
        raise ValueError(f'rollout.stop_rules.{reason} = "{rule}" is no rule; use {", ".join(get_args(StopRule))}')


class EnvSection(Section):
    """Episodes of many turns in an environment; everything is off while `name` is empty."""

    name: str = setting("", "calc, desk, maze, repair, babyai, …, module:object or file.py:object; empty: single answers")
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
    patience: float | None = setting(
        None,
        "seconds that the other episodes wait for one answer of an environment before they go on without it; none: 1, "
        "isolated: .02. While every answer comes sooner, the same weights give the same bits",
        ge=0,
    )
    step_seconds: float = setting(30.0, "deadline of one step; later is a fault, not a failure", gt=0)
    reset_seconds: float = setting(60.0, "deadline of a start", gt=0)
    retries: int = setting(1, "times an episode is played anew after a fault of the environment", ge=0)
    max_concurrent: int = setting(64, "episodes that are played at the same time", ge=1)

    @property
    def resolved_patience(self) -> float:
        """Seconds: long beside a quick tool in-process; isolated, where tools may be slow, short beside a decoding step."""
        if self.patience is not None:
            return self.patience
        return 0.02 if self.isolated else 1.0


Objective = Literal["clip", "gspo", "gspo_token", "cispo_cap", "cispo_clip", "sapo", "gmpo", "dppo_tv", "cross_entropy"]


class LossSection(Section):
    objective: Objective = setting("clip", "PPO's clipped surrogate")
    clip_low: float = setting(
        0.2, "ratio may fall to 1−clip_low; from 1 on never clipped", seeds=".2", symptom="clip fraction high", gt=0
    )
    clip_high: float = setting(0.2, "ratio may rise to 1+clip_high; .28 is clip-higher", seeds=".2", gt=0)
    ratio: Literal["token", "turn", "episode"] = setting(
        "token",
        "clip: what an importance ratio is of: a token, or the product over a turn or an episode. LOOP measured 71 % per "
        "token, 64 % per turn and 53 % per episode; products drift out of the clipping range with their length",
    )
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
    negative_mask: float = setting(
        0.0,
        "0: off; δ: tokens of A < 0 in episodes with mean log(sampler/policy) above it have no surrogate, .5 in TRL. For: "
        "part of DeepSeek-V3.2. Against: no ablation; acts on old samples only",
        ge=0,
    )
    top_entropy: float = setting(
        1.0,
        "share of tokens, those of highest entropy, that have a surrogate; 1: all, .2 in its paper. For: +7.7 and +11 on "
        "AIME at 32B (2506.01939). Against: nothing gained at 8B; one forward more per batch, unless it has several "
        "updates",
        gt=0,
        le=1,
    )
    kl_cov_share: float = setting(
        0.0,
        "0: off; share of tokens with the largest covariance of advantage and log-prob that are held near the old policy, "
        ".002 to .0002 (KL-Cov). For: 38.6 to 40.6 at 7B, 45.8 to 52.2 at 32B (2505.22617). Against: one laboratory",
        ge=0,
        lt=1,
    )
    kl_cov_beta: float = setting(1.0, "kl_cov_share: weight of |log ρ| of these tokens", gt=0)

    @model_validator(mode="after")
    def _check(self) -> LossSection:
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"loss.dual_clip = {self.dual_clip} must exceed 1 (3 is common), or be 0 for off")
        if self.kl_cov_beta != 1 and not self.kl_cov_share:
            raise ValueError(
                f"loss.kl_cov_beta = {self.kl_cov_beta:g} does nothing without loss.kl_cov_share; set loss.kl_cov_share = "
                "0.002 or remove it"
            )
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
        le=1,
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


class LessonSection(Section):
    """A part of the warm start that comes before what [sft] itself says: easier tasks first."""

    steps: int = setting(..., "how many of sft.steps it takes", ge=1)
    size: int = setting(
        0, "tasks that the environment makes for it alone, none of them held out; 0: the training tasks", ge=0
    )
    params: dict[str, Any] = setting({}, "difficulty of these tasks")
    demonstrations: str = setting("", "empty: as sft.demonstrations; all of them are used")
    batch_size: int = setting(0, "0: as sft.batch_size", ge=0)

    @model_validator(mode="after")
    def _check(self) -> LessonSection:
        if self.params and not self.size:
            raise ValueError(
                "sft.lessons.params does nothing while sft.lessons.size = 0, which shows the training tasks; set size to "
                "the number of tasks to make, for example 4000"
            )
        return self


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
    lr: float = setting(0.0, "0: by model size", ge=0, le=1)
    schedule: Literal["constant", "linear", "cosine"] = setting("linear", "after warm-up")
    warmup_steps: int = setting(-1, "linear warm-up; −1: a fifth of the steps, at most 10", ge=-1)
    lessons: list[LessonSection] = setting(
        [],
        "what is shown first, in order, such as {steps = 200, size = 4000, params = {max_steps = 5}}; the rest of the "
        "steps is for sft.demonstrations",
    )

    @model_validator(mode="after")
    def _check(self) -> SftSection:
        taken = sum(lesson.steps for lesson in self.lessons)
        if self.lessons and taken >= self.steps:
            raise ValueError(
                f"sft.lessons take {taken} steps, but sft.steps = {self.steps} are all of them; use more than {taken}, so "
                "that some are left for sft.demonstrations"
            )
        return self


class GrpoSection(Section):
    steps: int = setting(0, "one batch of episodes each", seeds="effect after 100–500, full run 1,000–5,000", ge=0)
    tokens: int = setting(
        0,
        "0: off; training ends with the step in which so many tokens have been sampled for it in all, those of "
        "continuations and replaced groups included: for comparisons at equal cost. `steps` stays the most there may be",
        ge=0,
    )
    panel_every: int = setting(10, "steps between measurements of drift on the fixed panel", ge=1)
    random_reward: bool = setting(False, "control: rewards drawn by coin; success must not rise")
    no_signal: Literal["warn", "stop"] = setting("warn", "what a batch without any signal does")
    truncated_batch: Literal["warn", "stop"] = setting("warn", "what a batch of only truncated completions does")

    @model_validator(mode="after")
    def _check(self) -> GrpoSection:
        if self.tokens and not self.steps:
            raise ValueError(
                f"grpo.tokens = {self.tokens} does nothing while grpo.steps = 0; set grpo.steps to the most there may be"
            )
        return self


class EvalSection(Section):
    every: int = setting(0, "0: every 100 steps or a tenth of the run, whichever is sooner", seeds="100", ge=0)
    samples: int = setting(2, "completions per validation task at `temperature`", ge=1)
    test_samples: int = setting(4, "completions per test task; greedy is reported beside it", ge=1)
    temperature: float = setting(1.0, "of held-out sampling; stored with the score", ge=0)
    top_p: float = setting(1.0, "free here", gt=0, le=1)


class SaveSection(Section):
    every: int = setting(0, "0: with every evaluation", seeds="100", ge=0)
    keep: int = setting(1, "latest checkpoints kept, besides the best", ge=1)
