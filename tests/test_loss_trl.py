"""Our presets against TRL's own trainer on identical tensors: advantages, loss, gradient of every parameter, metrics.

TRL's `GRPOTrainer._compute_loss` runs on a tiny random Llama. Differences that remain by choice, none of them in these
numbers because each preset names TRL's side of them:

- standard deviation: TRL divides by the sample std (n − 1) plus 1e-4; our default is no scale, and where scaled
  population std and 1e-6. A constant group is exactly 0 with us, noise / 1e-4 with TRL.
- baseline: TRL's is the group mean; ours without scale is leave-one-out, G/(G−1) times as large.
- TRL's `bnpo`, `grpo`, `sapo` and `dr_grpo` are means per micro-batch, divided by the number of micro-batches: they
  depend on the split when lengths or row counts differ (the last test shows it). Ours never do.
- TRL's RLOO lives in another trainer and forms one ratio per sequence from the summed log-probs; the `rloo` preset takes
  token ratios. The two agree in the first update, where every ratio is 1.
- log-ratios beyond ±20 are clamped before exp with us.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from milepost.advantages import advantages
from milepost.forest import aggregation_weights
from milepost.loss import Events, policy_loss, summarize, top_entropy
from milepost.recipe import make_recipe
from milepost.sections import CorrectionSection, KlSection, LossSection

pytest.importorskip("trl")

PROMPT, CAP = 3, 6
LENGTHS = [6, 2, 5, 1, 3, 6, 4, 2]
REWARDS = [1.0, 0.0, 0.0, 0.0, 0.5, 1.0, None, 0.3]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *"abcdefghijklmnop"])}
    inner = Tokenizer(models.WordLevel(words, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(words), **sizes, pad_token_id=0, eos_token_id=1, bos_token_id=None))
    args = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, report_to="none", per_device_train_batch_size=8,
        num_generations=4, max_completion_length=CAP, bf16=False, steps_per_generation=1,
    )  # fmt: skip
    rows = Dataset.from_list([{"prompt": "a b c"}, {"prompt": "d e f"}] * 4)
    made = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: REWARDS,
        args=args,
        train_dataset=rows,
        processing_class=tokenizer,
    )
    made.current_gradient_accumulation_steps = 1
    made.model.double().train()
    return made


@pytest.fixture(scope="module")
def inputs(trainer):
    """A padded batch, and log-probs of an old policy, a reference and a sampler near the current one."""
    generator = torch.Generator().manual_seed(1)
    mask = (torch.arange(CAP)[None] < torch.tensor(LENGTHS)[:, None]).long()
    tensors = {
        "prompt_ids": torch.randint(2, 18, (8, PROMPT), generator=generator),
        "prompt_mask": torch.ones(8, PROMPT, dtype=torch.long),
        "completion_ids": torch.randint(2, 18, (8, CAP), generator=generator) * mask,
        "completion_mask": mask,
        "advantages": torch.tensor([1.5, -0.5, -0.5, -0.5, -0.3, 1.1, 0.0, -0.8], dtype=torch.float64),
        "num_items_in_batch": mask.sum(),
    }
    with torch.no_grad():
        now = logprobs_of(trainer, tensors)
    for name, spread in (("old_per_token_logps", 0.3), ("ref_per_token_logps", 0.5), ("sampling_per_token_logps", 0.6)):
        tensors[name] = now + spread * torch.randn(now.shape, generator=generator, dtype=torch.float64)
    return tensors


def logprobs_of(trainer, tensors):
    ids = torch.cat([tensors["prompt_ids"], tensors["completion_ids"]], 1)
    attention = torch.cat([tensors["prompt_mask"], tensors["completion_mask"]], 1)
    return trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, CAP)[0]


def gradient(trainer, value):
    parameters = [p for p in trainer.model.parameters() if p.requires_grad]
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, parameters)])


def theirs(trainer, inputs, options):
    options = {"loss_type": "dapo", "beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2, **options}
    arguments = {"delta": None, "use_bias_correction_kl": False}
    before = {name: getattr(trainer, name) for name in options if name not in arguments}
    for name, value in (arguments | options).items():
        setattr(trainer.args if name in arguments else trainer, name, value)
    trainer._metrics["train"].clear()
    try:
        value = trainer._compute_loss(trainer.model, inputs)
        return value.item(), gradient(trainer, value), {k: v[-1] for k, v in trainer._metrics["train"].items()}
    finally:
        for name, old in before.items():
            setattr(trainer, name, old)


def ours(trainer, inputs, loss: LossSection, kl: KlSection, correction: CorrectionSection | None = None, rows=slice(None),
         masked=None):  # fmt: skip
    """Our loss over the flat events of some rows; weights always over the whole batch."""
    lengths = inputs["completion_mask"].sum(1).numpy()
    weights = aggregation_weights(lengths, ["a"] * 4 + ["b"] * 4, loss.aggregate, loss.constant or CAP)[rows]
    mask = inputs["completion_mask"].bool()[rows]
    number = torch.arange(len(mask))[:, None].expand_as(mask)[mask]
    flat = {k: inputs[k][rows][mask] for k in inputs if k.endswith("_logps") and inputs[k] is not None}
    events = Events(
        inputs["advantages"][rows][number], torch.tensor(weights)[number], number, len(mask),
        flat["sampling_per_token_logps"], flat.get("old_per_token_logps"), flat["ref_per_token_logps"] if kl.beta else None,
        masked,
    )  # fmt: skip
    value, stats = policy_loss(
        logprobs_of(trainer, inputs)[rows][mask], events, loss, kl, correction or CorrectionSection(kind="none"),
        beta=kl.beta, correct=correction is not None,
    )  # fmt: skip
    return value.item(), gradient(trainer, value), summarize([stats])


def check_equal(left, right):
    # The model's norms and rotary tables compute in float32, which is what limits the gradient's precision.
    assert left[0] == pytest.approx(right[0], abs=1e-12)
    assert right[1].norm() > 1e-3
    assert (left[1] - right[1]).norm() <= 1e-6 * right[1].norm()


PRESETS = {
    "grpo": {"loss_type": "grpo", "beta": 0.04},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "trl": {},
    "deepseek_r1": {"loss_type": "grpo", "epsilon_low": 10.0, "epsilon_high": 10.0, "beta": 0.001},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
}


@pytest.mark.parametrize("first_update", [False, True])
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_preset_equals_trl(trainer, inputs, preset, first_update):
    recipe = make_recipe({"preset": preset})
    tensors = {**inputs, "old_per_token_logps": None} if first_update else inputs
    trl = theirs(trainer, tensors, PRESETS[preset])
    mine = ours(trainer, tensors, recipe.loss, recipe.kl)
    check_equal(mine, trl)
    if "clip_ratio/low_mean" in trl[2] and preset != "gspo":
        assert mine[2]["clip_low"] == pytest.approx(trl[2]["clip_ratio/low_mean"], abs=1e-6)
        assert mine[2]["clip_high"] == pytest.approx(trl[2]["clip_ratio/high_mean"], abs=1e-6)
        assert first_update or preset == "deepseek_r1" or mine[2]["clip_low"] + mine[2]["clip_high"] > 0.05
    if recipe.kl.beta:
        assert mine[2]["kl/k3"] == pytest.approx(trl[2]["kl"], abs=1e-6)


def test_the_trl_preset_names_its_defaults():
    from trl import GRPOConfig

    fields = {
        name: GRPOConfig.__dataclass_fields__[name].default for name in ("loss_type", "epsilon", "beta", "scale_rewards")
    }
    assert fields == {"loss_type": "dapo", "epsilon": 0.2, "beta": 0.0, "scale_rewards": "group"}


VARIANTS = {
    "two_sided": ({"delta": 1.5}, LossSection(dual_clip=1.5), KlSection()),
    "ratio_weighted_kl": (
        {"beta": 0.1, "use_bias_correction_kl": True},
        LossSection(),
        KlSection(beta=0.1, estimator="k3_ratio"),
    ),
    "sequence_level_wide": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        LossSection(objective="gspo", aggregate="sequence_mean"),
        KlSection(),
    ),
    "bnpo_in_one_batch": ({"loss_type": "bnpo", "beta": 0.1}, LossSection(), KlSection(beta=0.1, estimator="k3")),
    "cispo_low_cap": (
        {"loss_type": "cispo", "epsilon_high": 1.1},
        LossSection(objective="cispo_cap", cispo_cap=1.1),
        KlSection(),
    ),
}


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_variant_equals_trl(trainer, inputs, name):
    options, loss, kl = VARIANTS[name]
    check_equal(ours(trainer, inputs, loss, kl), theirs(trainer, inputs, options))


def test_masks_of_tokens_equal_trl(trainer, inputs):
    """V3.2's mask of negative sequences, and the half of the tokens with the highest entropy, each alone and both."""
    mask = inputs["completion_mask"].bool()
    with torch.no_grad():
        ids, attention = (torch.cat([inputs[f"{p}_{n}"] for p in ("prompt", "completion")], 1) for n in ("ids", "mask"))
        entropy = trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, CAP, compute_entropy=True)[1]
    flat = entropy[mask].double().numpy()
    masked = torch.from_numpy(~top_entropy(flat, np.ones(len(flat), bool), 0.5))
    for delta, share in ((0.05, 1.0), (None, 0.5), (0.05, 0.5)):
        trl = theirs(trainer, inputs, {"off_policy_mask_threshold": delta, "top_entropy_quantile": share})
        mine = ours(
            trainer, inputs, LossSection(negative_mask=delta or 0.0), KlSection(), masked=None if share == 1 else masked
        )
        check_equal(mine, trl)
        assert all(0 < mine[2][name] < 1 for name in mine[2] if name.startswith("tokens/masked"))
    assert mine[2]["tokens/masked_any"] > mine[2]["tokens/masked_negative"] > 0


def test_truncated_importance_weights_equal_trl(trainer, inputs):
    ratio = (inputs["old_per_token_logps"] - inputs["sampling_per_token_logps"]).exp().clamp(max=2.0)
    assert (ratio == 2.0).any()
    options = {"use_vllm": True, "vllm_importance_sampling_correction": True, "beta": 0.1}
    trl = theirs(trainer, {**inputs, "importance_sampling_ratio": ratio}, options)
    kl, correction = KlSection(beta=0.1, estimator="k3"), CorrectionSection(kind="tis", cap=2.0)
    check_equal(ours(trainer, inputs, LossSection(), kl, correction), trl)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_equal_trl(trainer, scale):
    """TRL generates and scores for real; one completion is unscorable."""
    trainer.scale_rewards = scale
    trainer.model.float()
    try:
        out = trainer._generate_and_score_completions([{"prompt": "a b c"}] * 4 + [{"prompt": "d e f"}] * 4)
    finally:
        trainer.model.double()
    mine = advantages(REWARDS, [0] * 4 + [1] * 4, baseline="mean", scale=scale, std="sample", delta=1e-4)
    np.testing.assert_allclose(mine, out["advantages"].double().numpy(), atol=5e-6)


def test_only_ours_is_the_same_for_every_split(trainer, inputs):
    """The named difference: bnpo's denominator is local, so two uneven micro-batches give another gradient."""
    whole = ours(trainer, inputs, LossSection(), KlSection())
    parts = [ours(trainer, inputs, LossSection(), KlSection(), rows=rows) for rows in (slice(0, 2), slice(2, 8))]
    assert sum(part[0] for part in parts) == pytest.approx(whole[0], abs=1e-12)
    assert (sum(part[1] for part in parts) - whole[1]).norm() <= 1e-6 * whole[1].norm()
    trainer.current_gradient_accumulation_steps = 2
    try:
        local = []
        for a, b in itertools.pairwise((0, 2, 8)):
            cut = {k: v[a:b] if v is not None and v.dim() else v for k, v in inputs.items()}
            local.append(theirs(trainer, cut, {"loss_type": "bnpo"})[1])
    finally:
        trainer.current_gradient_accumulation_steps = 1
    assert (sum(local) - whole[1]).norm() > 0.05 * whole[1].norm()
