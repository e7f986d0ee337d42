"""Playing and showing: the ids that are stored and trained are the sampled ones, whatever their text would encode to."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SHORT_ROWS, small_session
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from milepost.credit import assign
from milepost.credit_sections import CreditSection
from milepost.demonstrations import demonstrations
from milepost.engines.base import SamplingSettings
from milepost.forest import build_batch
from milepost.launch import codec_of
from milepost.learner import UpdateReport
from milepost.recipe import make_recipe
from milepost.render import prompt_ids
from milepost.rollout import play
from milepost.sections import RolloutSection
from milepost.stages.sft import Lesson, as_episodes, batch_at
from milepost.stages.step_metrics import episode_metrics, update_metrics
from milepost.types import Reward, Sampled, StopKind, Task


def merging_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE that knows " inter", "national" and, preferred where both would do, " international"."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    steps = [*spelt("Ġinter"), *spelt("natio"), ("n", "al"), ("a", "l"), ("natio", "nal"), ("Ġinter", "national")]
    merges = [("a", "l"), *[pair for pair in steps if pair != ("a", "l")]]
    vocabulary = {token: i for i, token in enumerate([*letters, *dict.fromkeys(a + b for a, b in merges)])}
    inner = Tokenizer(models.BPE(vocabulary, merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken("</s>", special=True)])
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", pad_token="</s>")


def spelt(word: str) -> list[tuple[str, str]]:
    return [(word[:i], word[i]) for i in range(1, len(word))]


TOKENIZER = merging_tokenizer()
END = TOKENIZER.eos_token_id
CODEC = codec_of(SimpleNamespace(tokenizer=TOKENIZER), make_recipe({}))  # type: ignore[arg-type]
TASK = Task("k", "An international agreement?")


class Forced:
    """A sampler that gives the ids it is told to, one list per request."""

    version = 0

    def __init__(self, completions):
        self.completions = completions

    def sample(self, requests, settings):
        assert len(requests) == len(self.completions)
        return [
            Sampled(ids, -0.25 * (1 + np.arange(len(ids))), settings.temperature, ((0, 0),),
                    "stop" if ids[-1] == END else "length")
            for ids in self.completions
        ]  # fmt: skip


def trained_on(completions):
    """(group, update batch) of one group with these completions, all of them in the loss."""
    (group,) = play([TASK], Forced(completions), CODEC, phase="train", step=1, num_samples=len(completions),
                    max_new_tokens=64, settings=SamplingSettings())  # fmt: skip
    rewards = [[Reward(float(m)) for m in range(len(completions))]]
    credits = assign([group], rewards, CreditSection(), RolloutSection(truncated="score"))
    return group, build_batch(group.episodes, credits[0])


def test_two_tokens_whose_text_is_one_token_are_trained_as_two():  # case B2
    whole = TOKENIZER.encode(" international", add_special_tokens=False)
    parts = [TOKENIZER.convert_tokens_to_ids("Ġinter"), TOKENIZER.convert_tokens_to_ids("national")]
    assert len(whole) == 1 and TOKENIZER.decode(parts) == TOKENIZER.decode(whole)
    group, batch = trained_on([[*parts, END], [*whole, END]])
    assert [e.completion for e in group.episodes] == [" international"] * 2
    assert batch.token_E.tolist() == [*parts, END, *whole, END]
    assert batch.sampler_E.tolist() == [-0.25, -0.5, -0.75, -0.25, -0.5]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, len(TOKENIZER) - 1), min_size=1, max_size=12), min_size=2, max_size=5))
def test_any_sampled_ids_are_trained_as_they_are_behind_the_prompt_that_was_sent(completions):
    """cases B2, B7, B14, B16, B18: broken UTF-8, no end or several; the end is trained, the prompt is not."""
    group, batch = trained_on(completions)
    sent = prompt_ids(TASK.prompt, TOKENIZER, make_recipe({}).tasks).tolist()
    assert [batch.token_E[batch.episode_E == m].tolist() for m in range(len(completions))] == completions
    for m, (episode, ids) in enumerate(zip(group.episodes, completions)):
        assert episode.turns[0].context_ids.tolist() == sent
        assert (episode.stop.kind is StopKind.TERMINATED) == (ids[-1] == END)
        nodes = batch.node_E[batch.episode_E == m]
        assert batch.forest.position_U[nodes].tolist() == list(range(len(sent) - 1, len(sent) - 1 + len(ids)))
        assert batch.forest.ids_U[nodes].tolist() == [sent[-1], *ids[:-1]]


def test_lengths_in_the_metrics_are_those_sampled():  # case B15: of ids that are all end and pad at once
    group, _ = trained_on([[END] * 3, [END] * 7])
    metrics = episode_metrics([group], [[Reward(0.0), Reward(1.0)]])
    assert (metrics["length/mean"], metrics["length/max"], metrics["tokens/sampled"]) == (5, 7, 10)


def test_an_average_over_updates_leaves_out_those_without_data():  # case L5
    kl = [{"kl/k3": 1.0}, {}, {"kl/k3": 1.0}]
    reports = [UpdateReport(True, 0.5, 2.0, 0.1, 3, metrics) for metrics in kl]
    metrics = update_metrics([*reports, UpdateReport(False, 0.0, 0.0, 0.1, 0)])
    assert (metrics["kl/k3"], metrics["loss"], metrics["grad_norm"]) == (1.0, 0.5, 2.0)
    assert (metrics["updates/stepped"], metrics["updates/empty"], metrics["tokens/trained"]) == (3, 1, 9)
    assert set(update_metrics([UpdateReport(False, 0.0, 0.0, 0.1, 0)])) == {"updates/stepped", "updates/empty"}


def test_ids_and_log_probs_are_of_one_length_from_the_start():  # case B5
    with pytest.raises(ValueError, match="2 sampled ids but 1 log-probs"):
        Sampled([5, 6], [-0.1], 1.0, ((0, 0),), "stop")  # type: ignore[arg-type]


def test_demonstrations_train_the_answer_and_its_end_and_nothing_else(tmp_path, warm):
    """cases B7, B14: one example after the other; the prompt is context, each token has one share of the mean."""
    with small_session(tmp_path, warm, SHORT_ROWS, sft__steps=1, sft__batch_size=3) as session:
        shown = demonstrations(session.recipe.sft, session.tasks.train, seed=0, shape=session.recipe.tasks, held_out=[])
        batch = batch_at([Lesson(as_episodes(session, shown), 3, 0)], 0, 0)
        assert batch is not None and len(batch.episodes) == 3
        text = {task.key: (task.prompt, completion) for task, completion in shown}
        encode, eos = session.policy.tokenizer.encode, session.policy.tokenizer.eos_token_id
        for i, episode in enumerate(batch.episodes):
            prompt, completion = text[episode.task_key]
            mine = batch.episode_E == i
            assert batch.token_E[mine].tolist() == [*encode(completion, add_special_tokens=False), eos]
            last = session.codec.encode(next(t for t in session.tasks.train if t.key == episode.task_key))[-1]
            assert batch.forest.ids_U[batch.node_E[mine]].tolist() == [last, *batch.token_E[mine][:-1]]
            assert session.policy.tokenizer.decode([last]) == str(prompt)[-1]
        assert batch.weight_E == pytest.approx(np.full(batch.num_events, 1 / batch.num_events))
