"""Reading a recipe: every mistake is one sentence that names the key and something that works."""

from __future__ import annotations

import tomllib

import pytest

from milepost.recipe import ANY, IDLE_UNLESS, PRESETS, iter_settings, load_recipe, make_recipe
from milepost.types import RecipeError

FILE = """
[[tasks.sources]]
path = "tasks.jsonl"
"""


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(FILE, encoding="utf-8")
    return lambda *overrides: load_recipe(path, overrides)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("grpo.steps", "must look like section.key=value"),
        ("=3", "must look like section.key=value"),
        ("grpo..steps=3", "must look like section.key=value"),
        (".steps=3", "must look like section.key=value"),
        ("grpo.steps.x=3", "grpo.steps = "),
        ("tasks.sources.7=1", "override tasks.sources.7: there is no entry '7' to set; only entry 0 exists"),
        ("tasks.sources.x=1", "override tasks.sources.x: there is no entry 'x'"),
        ("tasks.sources.-1.size=1", "there is no entry '-1'"),
        ("tasks.sources=3", "tasks.sources = 3: a list is needed; in the file, each entry is a table [[tasks.sources]]"),
        ("grpo=3", "grpo = 3: a section with keys of its own is needed, for example grpo.steps"),
        ("grop.steps=3", "grop is not a section; did you mean grpo?"),
        ("grpo.step=3", "grpo.step is not a setting; did you mean grpo.steps?"),
        ("tasks.sources.0.foo=1", "tasks.sources.0.foo is not a setting"),
        ("grpo.steps=abc", "grpo.steps = 'abc': a whole number is needed; the default 0 works"),
        ("grpo.steps=1.5", "grpo.steps = 1.5: a whole number is needed"),
        ("grpo.steps=true", "grpo.steps = True: a number is needed"),
        ("rollout.temperature=false", "rollout.temperature = False: a number is needed"),
        (f"grpo.steps={10**20}", "the number is too large to be meant"),
        ("preset=[1]", "preset = [1]: input should be"),
        ("preset={a=1}", "preset = {'a': 1}: input should be"),
        ("preset=grpo\nseed=1", r"preset = 'grpo\nseed=1': input should be"),
        ("kl.beta_end=-1", "kl.beta_end = -1"),
        ("rollout.soft_buffer=3", 'rollout.soft_buffer = 3 does nothing while rollout.truncated = "keep_baseline"'),
        ("rollout.temperature=0", "rollout.temperature = 0: input should be greater than 0; the default 1.0 works"),  # F6
        ("rollout.temperature=1e-6", "rollout.temperature = 1e-06: training needs sampling noise; use 0.7 to 1.0"),  # F6
        ("optimizer.betas=[1]", "optimizer.betas = [1]: two numbers are needed; the default [0.9, 0.95] works"),
        ("optimizer.betas=[0.9,1.0]", "optimizer.betas = [0.9, 1.0]: both must lie in [0, 1)"),
        ("optimizer.betas=[-1,0.5]", "optimizer.betas = [-1.0, 0.5]: both must lie in [0, 1)"),
    ],
)
def test_a_bad_override_is_one_sentence(load, override, sentence):
    with pytest.raises(RecipeError) as caught:
        load(override)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "key",
    ["rollout.temperature", "optimizer.lr", "optimizer.eps", "kl.beta", "reward.timeout_seconds", "reward.success_at"],
)
def test_numbers_are_finite(load, key, value):
    with pytest.raises(RecipeError, match=rf"^{key} = {value}: "):
        load(f"{key}={value}")


@pytest.mark.parametrize("text", ["7", "1.50", "2026-01-01", "12:30:00", "true", "[a]"])
def test_an_override_of_a_text_is_the_text(load, text):
    assert load(f"name={text}").name == text


def test_an_override_is_a_toml_value_elsewhere(load):
    assert load("seed=4 # four").seed == 4
    assert load("name='quoted'").name == "quoted"
    assert load("tasks.sources.0.params={level=2}").tasks.sources[0].params == {"level": 2}


def test_a_date_in_the_file_is_its_text():
    assert make_recipe(tomllib.loads("name = 2026-01-01")).name == "2026-01-01"


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_bytes(b'\xef\xbb\xbfname = "marked"\r\nseed = 3\r\n')
    assert (load_recipe(path).name, load_recipe(path).seed) == ("marked", 3)


def test_a_missing_required_key_is_named():
    with pytest.raises(RecipeError, match=r"reward\.functions.*name is missing"):
        make_recipe({"reward": {"functions": [{"weight": 1.0}]}})


@pytest.mark.parametrize("key", ["name", "out", "model.path", "sft.demonstrations", "tasks.sources.0.path"])
def test_no_text_holds_nul(load, key):
    with pytest.raises(RecipeError, match=rf"^{key} = 'a\\x00': a text without NUL is needed"):
        load(f"{key}=a\0")


@pytest.mark.parametrize(  # case I5
    ("override", "sentence"),
    [
        ("loss.cispo_cap=4", 'loss.cispo_cap = 4.0 does nothing while loss.objective = "clip"'),
        ("loss.sapo_tau_negative=2", 'set loss.objective = "sapo"'),
        ("loss.gmpo_clip=1", 'set loss.objective = "gmpo"'),
        ("loss.dppo_delta=0.1", 'set loss.objective = "dppo_tv"'),
        ("loss.constant=40", 'set loss.aggregate = "constant"'),
        ("credit.delta=1e-4", 'credit.delta = 0.0001 does nothing while credit.scale = "none"'),
        ("credit.std=sample", 'set credit.scale = "group"'),
        ("correction.low=0.9", 'set correction.kind = "mis"'),
        ("correction.sequence_high=1.1", 'set correction.kind = "geometric_mask"'),
    ],
)
def test_a_setting_that_does_nothing_is_refused(load, override, sentence):
    with pytest.raises(RecipeError) as error:
        load(override)
    assert sentence in str(error.value)


def test_each_such_setting_is_taken_where_it_does_something():
    for section, keys, switch, values in IDLE_UNLESS:
        for key in keys:
            default = next(f.default for k, f in iter_settings() if k == f"{section}.{key}")
            other = {"std": "sample", "constant": 7, "ratio": "turn", "several_answers": True} | IN_A_WORLD
            given = {key: other[key] if key in other else default * 1.001}
            for value in ("maze",) if values is ANY else values:
                if "." not in switch:
                    baseline = {"baseline": "mean"} if section == "credit" else {}
                    make_recipe({section: {switch: value, **given, **baseline}})
                    continue
                env = {"env": {"name": value, **(given if section == "env" else {})}}
                credit = {"credit": {"rule": "turn"}} if key == "potential" else {}
                judge = "mine.py:judge" if key == "several_answers" else "exact"
                functions = {} if value else {"functions": [{"name": judge}]}
                make_recipe(env | credit | ({"reward": given | functions} if section == "reward" else {}))
                with pytest.raises(RecipeError, match=rf"^{section}\.{key}\b.* does nothing while env\.name"):
                    make_recipe(credit | {"env": {"name": "" if value else "maze"} | (given if section == "env" else {})}
                                | ({"reward": given} if section == "reward" else {}))  # fmt: skip


IN_A_WORLD = {
    "tool_format": "hermes", "old_reasoning": "drop", "max_turns": 3, "max_tool_calls": 3, "max_invalid": 3,
    "max_episode_tokens": 99, "max_context_tokens": 99, "max_seconds": 9, "context_rule": "drop_oldest", "isolated": True,
    "patience": 0.5, "retries": 2, "max_concurrent": 8, "milestones": {"door": 0.1}, "potential": 0.3,
    "costs": [{"name": "calls", "free": 4, "weight": 0.01, "cap": 0.1}], "turn_scorers": [{"name": "my_judge.py:judge"}],
    "success": "exact", "extract": "(", "canary_good": "x",
}  # fmt: skip


def test_what_does_nothing_with_or_without_an_environment_says_so():
    with pytest.raises(RecipeError) as error:
        make_recipe({"env": {"max_turns": 3}})
    assert str(error.value) == (
        "env.max_turns = 3 does nothing while env.name is empty, for single answers have no turns and no world; "
        'remove it, or name an environment, for example env.name = "maze"'
    )
    with pytest.raises(RecipeError) as error:
        make_recipe({"env": {"name": "maze"}, "reward": {"extract": "("}})
    assert str(error.value) == (
        'reward.extract = "(" does nothing while env.name = "maze", whose own goal judges; remove it'
    )


def test_a_resolved_recipe_can_be_read_again_whatever_was_changed_after_its_preset():
    for preset in PRESETS:
        for changes in ({"loss": {"objective": "clip"}}, {"credit": {"scale": "none"}}, {"loss": {"objective": "gmpo"}}):
            recipe = make_recipe({"preset": preset, "env": {"name": "maze"}, **changes})
            assert make_recipe(recipe.model_dump()) == recipe


def test_a_correction_beside_an_objective_that_corrects_is_refused(load):
    with pytest.raises(RecipeError, match=r'correction\.kind = "tis" does nothing'):
        load("loss.objective=dppo_tv", "correction.kind=tis")


def test_a_single_reward_of_no_weight_is_refused():
    with pytest.raises(RecipeError, match="leaves no reward at all"):
        make_recipe({"reward": {"functions": [{"name": "exact", "weight": 0}]}})


@pytest.mark.parametrize(  # case A19
    ("estimator", "place", "sentence"),
    [("k1", "loss", 'in the loss has expected gradient 0; use "k2", or place = "reward"'),
     ("k2", "reward", 'in the reward has a wrong gradient; use "k1" there'),
     ("k3", "reward", 'in the reward has a wrong gradient; use "k1" there')],
)  # fmt: skip
def test_kl_forms_that_pull_the_wrong_way_are_refused(estimator, place, sentence):
    with pytest.raises(RecipeError) as error:
        make_recipe({"kl": {"beta": 0.1, "estimator": estimator, "place": place}})
    assert str(error.value) == f'kl.estimator = "{estimator}" {sentence}'


# --- case I4: an error is about what the user wrote, and says where ---------------------------------------------------


def test_a_preset_without_its_kl_is_no_contradiction():
    for preset in PRESETS:
        kl = make_recipe({"preset": preset, "env": {"name": "maze"}, "kl": {"beta": 0}}).kl
        assert (kl.beta, kl.estimator, kl.place) == (0, "k2", "loss")


def test_a_sentence_says_what_the_preset_and_not_the_user_has_set():
    with pytest.raises(RecipeError, match=r'use "k1" there; preset = "grpo" sets kl.estimator = "k3"$'):
        make_recipe({"preset": "grpo", "kl": {"place": "reward"}})
    with pytest.raises(RecipeError, match=r'; preset = "rloo" sets credit.baseline = "loo"$'):
        make_recipe({"preset": "rloo", "credit": {"scale": "group"}})
    with pytest.raises(RecipeError, match=r'scale = "none"$'):  # all of it is the user's own
        make_recipe({"preset": "rloo", "credit": {"baseline": "loo", "scale": "group"}})


def test_a_sentence_names_the_line_of_the_file(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "a"\n\n[[tasks.sources]]\npath = "a.jsonl"\n\n[[tasks.sources]]\npath = "b.jsonl"\nweight = -1\n'
        "\n[ rollout ]\ngroup_size = 1 # no group\n", encoding="utf-8")  # fmt: skip
    for override, end in (
        ("rollout.group_size=8", "weight = -1: input should be greater than 0; the default 1.0 works (mine.toml, line 8)"),
        ("tasks.sources.1.weight=1", "8 is a good start (mine.toml, line 11)"),
    ):
        with pytest.raises(RecipeError) as error:
            load_recipe(path, [override])
        assert str(error.value).endswith(end)
    with pytest.raises(RecipeError) as error:  # given on the command line: there is no line to name
        load_recipe(path, ["tasks.sources.1.weight=1", "rollout.group_size=0"])
    assert str(error.value).startswith("rollout.group_size = 0") and "line" not in str(error.value)
