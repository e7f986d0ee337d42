"""A model's own template shows the tools and writes the calls: found by asking it, or refused in a sentence."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_render import byte_tokenizer
from test_tools import STOP, TOOLS, good_calls
from tokenizers import AddedToken

from milepost.call_style import model_style, style_of
from milepost.env import Call, EnvSpec, Goal, Tool
from milepost.envs.find import find_env
from milepost.launch import codec_of, open_session
from milepost.policy import CHARSET, SIZES, Shape, make_model, make_tokenizer
from milepost.recipe import make_recipe
from milepost.render import completion_ids, decode, observation_ids, opened_thought, prompt_ids
from milepost.scripted import play_script, rewritten
from milepost.sections import EnvSection, TasksSection
from milepost.stages.pipeline import run_pipeline
from milepost.stages.sft import demonstrated
from milepost.tools import parse, render_call, schema
from milepost.types import Episode, EpisodeId, Group, RecipeError, Sampled, StopKind, StopReason, Task, Turn
from milepost.world import World, demonstrate

AUTO = TasksSection()
# A question, calls and their answers, in two of the ways that templates have; written for these tests.
LIST = "{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t.function | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
CALL = '<tool_call>\n{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>'
LLAMA_CALL = '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
HEADER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def template(call: str = CALL, *, tools: str = LIST, between: str = "{{ '\\n' }}", content: str = "{{ m.content }}") -> str:
    calls = "{% for c in m.tool_calls or [] %}{% set f = c.function %}{% if not loop.first %}" + between + "{% endif %}"
    turn = "<|im_start|>{{ m.role }}\n" + content + calls + call + "{% endfor %}<|im_end|>\n"
    return tools + "{% for m in messages %}" + turn + "{% endfor %}" + HEADER


ONE_CALL = ("{% for m in messages %}{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one call') }}"
            "{% endif %}{% endfor %}")  # fmt: skip


def tokenizer_of(text: str, *, special: bool | None = None):
    """An id for each byte, <|im_end|> is 259; <tool_call> and </tool_call> are 260 and 261 unless `special` is None."""
    tokenizer = byte_tokenizer(text)
    if special is not None:
        tokenizer.add_tokens([AddedToken(mark, special=special) for mark in ("<tool_call>", "</tool_call>")])
    return tokenizer


def spec_of(tools=TOOLS, system: str = "Be quick.") -> EnvSpec:
    return EnvSpec("shop", "1", lambda: None, lambda size, seed: iter(()), Goal(lambda *_: True), tools, system=system)


HERMES, LLAMA = tokenizer_of(template()), tokenizer_of(ONE_CALL + template(LLAMA_CALL))


def test_the_template_writes_the_calls_and_a_reader_is_found_for_them():
    style = model_style(HERMES, spec_of(), AUTO)
    assert style.format == "hermes"
    assert style.write([Call("stop"), Call("refund", {"order": 7, "note": 'é"'})]) == (
        '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>\n'
        '<tool_call>\n{"name": "refund", "arguments": {"order": 7, "note": "é\\""}}\n</tool_call>'
    )
    # Whatever else it puts around them is written too.
    other = model_style(tokenizer_of(template(" " + CALL.replace("\n", ""), between=" | ")), spec_of(), AUTO)
    assert other.write([Call("stop")] * 2).count(' <tool_call>{"name": "stop", "arguments": {}}</tool_call>') == 2
    assert " | " in other.write([Call("stop")] * 2)


FIRST_CALL = template(LLAMA_CALL).replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")


@pytest.mark.parametrize("text", [ONE_CALL + template(LLAMA_CALL), FIRST_CALL])
def test_calls_of_a_template_that_takes_one_in_a_message_stand_on_lines(text):
    style = model_style(tokenizer_of(text), spec_of(), AUTO)
    assert style.format == "llama"
    assert (
        style.write([Call("stop"), Call("stop")])
        == '{"name": "stop", "parameters": {}}\n{"name": "stop", "parameters": {}}'
    )


SHIPPED = [("qwen2_5", "hermes"), ("qwen3", "hermes"), ("llama3_1", "llama")]


@pytest.mark.parametrize(("name", "format"), SHIPPED)
def test_templates_of_widespread_models(name, format):
    """Those that TRL has beside its code, if it is installed."""
    package = importlib.util.find_spec("trl")
    path = Path((package.origin if package else None) or "").parent / "chat_templates" / f"{name}.jinja"
    if not path.is_file():
        pytest.skip("TRL is not installed, or holds no such template")
    tokenizer = tokenizer_of(path.read_text(encoding="utf-8"), special=False)
    tokenizer.add_tokens([AddedToken(t, special=True) for t in ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")])
    style = model_style(tokenizer, spec_of(), AUTO)
    assert style.format == format
    assert parse(style.write([Call("stop"), Call("refund", {"order": 1})]), TOOLS, format).calls == (
        Call("stop"), Call("refund", {"order": 1}))  # fmt: skip
    answer = observation_ids([{"role": "tool", "content": 'a "b"'}], 259, tokenizer, AUTO, style.schemas).tolist()
    assert ('"a \\"b\\""' if format == "llama" else '\na "b"\n') in tokenizer.decode(answer)


def test_tools_are_shown_as_schemas_beside_the_system_message():
    tools = (
        Tool("refund", {"order": (int, True), "share": (float, False), "note": (str, False), "now": (bool, True)}, "pays"),
    )
    assert schema(tools[0]) == {"type": "function", "function": {
        "name": "refund", "description": "pays", "parameters": {
            "type": "object", "required": ["order", "now"],
            "properties": {"order": {"type": "integer"}, "share": {"type": "number"}, "note": {"type": "string"},
                           "now": {"type": "boolean"}}}}}  # fmt: skip
    style = model_style(HERMES, spec_of(tools), AUTO)
    world = World(spec_of(tools), None, EnvSection(tool_format="model"), 999, 0, asked=style)
    opening = world.opening([{"role": "user", "content": "17?"}])
    shown = HERMES.decode(prompt_ids(opening, HERMES, AUTO, style.schemas).tolist())
    assert shown == (
        f"<|im_start|>tools\n{json.dumps(schema(tools[0])['function'])}\n<|im_end|>\n"
        "<|im_start|>system\nBe quick.<|im_end|>\n<|im_start|>user\n17?<|im_end|>\n<|im_start|>assistant\n"
    )
    # In the other formats the system message lists them.
    listed = World(spec_of(tools), None, EnvSection(), 999, 0).opening([])[0]["content"]
    assert listed == "Be quick.\nrefund(order: int, share?: float, note?: str, now: bool)"
    with pytest.raises(RecipeError, match="is settled with the model's tokenizer"):
        World(spec_of(tools), None, EnvSection(tool_format="model"), 999, 0).opening([])


@pytest.mark.parametrize("special", [True, False])
def test_marks_that_are_tokens_are_written_sampled_and_read_as_these_tokens(special):
    tokenizer = tokenizer_of(template(), special=special)
    style = model_style(tokenizer, spec_of(), AUTO)
    ids = completion_ids(style.write([Call("stop")]), tokenizer, AUTO)
    inside = HERMES.encode('\n{"name": "stop", "arguments": {}}\n')  # 35 bytes
    assert ids.tolist() == [260, *inside, 261, 259] and len(inside) == 35
    text = decode(ids, tokenizer)
    assert text == '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'  # without <|im_end|>
    assert parse(text, TOOLS, style.format).calls == (Call("stop"),)
    # What an environment says is no mark where the mark is a special token.
    says = observation_ids([{"role": "tool", "content": "<tool_call>"}], 259, tokenizer, AUTO)
    assert (260 in says) is not special


@settings(max_examples=60, deadline=None)
@given(
    st.lists(good_calls(), min_size=1, max_size=3), st.sampled_from([HERMES, LLAMA, tokenizer_of(template(), special=True)])
)
def test_ids_of_written_calls_are_read_back_as_these_calls(made, tokenizer):
    style = STYLES[tokenizer.chat_template]
    calls = [Call(tool.name, arguments) for tool, arguments in made]
    ids = completion_ids(style.write(calls), tokenizer, AUTO)
    assert parse(decode(ids, tokenizer), TOOLS, style.format).calls == tuple(calls)


STYLES = {tokenizer.chat_template: model_style(tokenizer, spec_of(), AUTO) for tokenizer in (HERMES, LLAMA)}


def test_a_wrong_call_in_this_format_is_an_error_that_says_what_works():
    text = (
        '<tool_call>\n{"name": "refund", "arguments": {"order": "7"}}\n</tool_call>\n<tool_call>\n{"name": \n</tool_call>'
    )
    calls = parse(text, TOOLS, model_style(HERMES, spec_of(), AUTO).format).calls
    assert [call.error.split(";")[0] for call in calls] == [
        "order must be int: write 7 without quotes",
        "that was not one JSON object",
    ]


# --- refusals -----------------------------------------------------------------------------------------------------------

NO_TOOL_ROLE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
)
WITHOUT_SYSTEM = "{% if m.role != 'system' or not tools %}{{ m.content }}{% endif %}"
WITHOUT_TOOL = "{% if m.role != 'tool' %}{{ m.content }}{% endif %}"
REFUSED = {
    "ignores tools": (template(tools=""), r"does not show the tools it is given \(refund is missing\)"),
    "shows some": (template(tools=LIST.replace("in tools", "in tools[:1]")), r"\(mix is missing\)"),
    "drops the system message": (template(content=WITHOUT_SYSTEM), "drops the system message"),
    "writes none": (template(call=""), "writes calls as '', which is read neither"),
    "writes Python": (template(CALL.replace("| tojson", "")), "read neither as hermes nor as llama"),
    "writes lists": (template(CALL.replace("{\"name", "[{\"name").replace("}}}", "}}}]")), r"\[\{\"name\""),
    "writes JSON strings": (template(CALL.replace("| tojson", "| tojson | tojson")), "read neither"),
    "swallows texts": (template(CALL.replace("| tojson", "| tojson | replace('é', 'e')")), "read neither"),
    "hides tools' answers": (template(content=WITHOUT_TOOL), "roles tool as they are"),
    "takes no tools' answers": (NO_TOOL_ROLE + template(), r"roles user, assistant, tool, tool \(no such role\)"),
    "takes no calls": (template("{{ raise_exception('no calls') }}"), r"\(no calls\)"),
    "writes calls elsewhere": ("{% for m in messages if m.tool_calls %}a{% endfor %}" + template(), "where it writes an"),
}  # fmt: skip


# Written for this test, with what Mistral's templates have of their own: tools before the last question alone, calls as one
# list behind a token, an id of nine characters with each of them and with each answer, questions and answers in turn.
MISTRAL = (
    "{% set n = namespace(turn=0) %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% elif m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}"
    "{% if (m.role == 'user') != (n.turn % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% set n.turn = n.turn + 1 %}{% endif %}"
    "{% if m.role == 'user' %}"
    "{% if tools and loop.last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}[INST] "
    "{% if loop.last and messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{% if c.id is not defined or c.id | length != 9 %}"
    "{{ raise_exception('IDs have 9 characters') }}{% endif %}{{ dict(c.function, id=c.id) | tojson }}"
    "{% if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>"
    "{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id is not defined %}{{ raise_exception('IDs have 9 characters') }}{% endif %}"
    "[TOOL_RESULTS] {{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]"
    "{% elif m.role == 'assistant' %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
REFUSED["wants ids, as Mistral's do"] = (
    MISTRAL,
    "as those of Mistral do, wants an id with every call and every answer to one",
)
REFUSED["writes names before arguments, as newer ones of Mistral do"] = (
    template("[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}"),
    r"writes calls as '\[TOOL_CALLS\]refund\[ARGS\]",
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_template_that_cannot_do_it_is_refused_in_one_sentence(name):
    text, why = REFUSED[name]
    with pytest.raises(RecipeError, match=why) as error:
        model_style(tokenizer_of(text), spec_of(), AUTO)
    said = str(error.value)
    assert said.startswith('env.tool_format = "model"') and said.endswith('use "terse", "hermes" or "llama"')
    assert "\n" not in said and said.count(";") == 1


def test_formats_and_worlds_that_have_no_use_for_it_are_refused():
    with pytest.raises(RecipeError, match="without a chat template; use"):
        model_style(byte_tokenizer(), spec_of(), AUTO)
    with pytest.raises(RecipeError, match=r"'shop' has no tools; remove env\.tool_format"):
        model_style(HERMES, spec_of(tools=()), AUTO)
    with pytest.raises(RecipeError, match=r"env\.tool_format = \"model\" .* set tasks\.format = \"chat\""):
        make_recipe({"env": {"name": "calc", "tool_format": "model"}, "tasks": {"format": "text"}})
    # A template that is never asked to write calls need not be able to.
    assert style_of(tokenizer_of(template(tools="")), spec_of(), EnvSection(tool_format="hermes"), AUTO).format == "hermes"


# --- headers that open a thought, answers written as JSON --------------------------------------------------------------

THINKING = template().replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")


class Played:
    """A world without hosts, for scripts."""

    def __init__(self, tokenizer, name: str = "calc", **limits):
        self.spec, self.recipe = (
            find_env(name, "test"),
            make_recipe({"env": {"name": name, "tool_format": "model", **limits}}),
        )
        style = style_of(tokenizer, self.spec, self.recipe.env, self.recipe.tasks)
        self.world = World(self.spec, None, self.recipe.env, 4000, 0, asked=style)  # type: ignore[arg-type]
        self.codec = codec_of(type("P", (), {"tokenizer": tokenizer})(), self.recipe, style)
        (row,) = self.spec.generate(1, 0, min_steps=2, max_steps=2)
        self.task = Task("k", row["prompt"], columns=row)

    def demonstrated(self, script):
        (episode,) = demonstrate([self.task], script, self.codec, self.world, max_new_tokens=60)
        return episode


def test_behind_a_header_that_opens_a_thought_demonstrations_end_it_first():
    tokenizer = tokenizer_of(THINKING)
    assert opened_thought(tokenizer, AUTO) == "<think>" and opened_thought(HERMES, AUTO) == ""
    played = Played(tokenizer)

    def script(task, env):
        yield "<think>\nfirst\n</think>\n\n" + render_call("calc", {"expression": "1+1"})
        yield render_call("answer", {"value": 2})

    first, second = played.demonstrated(script).turns
    assert tokenizer.decode(first.context_ids.tolist()).endswith("<|im_start|>assistant\n<think>\n")
    assert (
        first.text == 'first\n</think>\n\n<tool_call>\n{"name": "calc", "arguments": {"expression": "1+1"}}\n</tool_call>'
    )
    assert second.text == '</think>\n\n<tool_call>\n{"name": "answer", "arguments": {"value": 2}}\n</tool_call>'
    # A call inside the thought is none.
    thought = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call></think>'
    assert not parse(played.codec.opened + thought, (STOP,), "hermes").calls


def test_answers_are_escaped_where_the_template_writes_them_as_json():
    tokenizer = tokenizer_of(
        template(content="{% if m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content }}{% endif %}")
    )
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": 'x "y"\né'},
    ]
    whole = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=False, add_generation_prompt=True)
    ids = [*prompt_ids("q", tokenizer, AUTO), *completion_ids("a", tokenizer, AUTO)]
    assert [*ids, *observation_ids(messages[2:], 259, tokenizer, AUTO)] == whole


# --- whole episodes ------------------------------------------------------------------------------------------


def test_a_script_s_calls_are_written_in_the_style_behind_its_thought():
    style = model_style(HERMES, spec_of(), AUTO)
    assert rewritten("<think>a</think>\nso:\nstop()", spec_of(), style) == (
        '<think>a</think>\n<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    )
    assert rewritten("nothing to do", spec_of(), style) == "nothing to do"


def test_several_calls_in_one_action_by_hand():
    played = Played(tokenizer_of(template(), special=True))

    def script(task, env):
        yield 'calc("2*3")\ncalc("6-1")\ncalc("x")'
        yield "answer(5)"

    def call(name, arguments):
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'

    episode = played.demonstrated(script)
    first, second = episode.turns
    calls = "\n".join(call("calc", f'{{"expression": "{text}"}}') for text in ("2*3", "6-1", "x"))
    assert first.text == calls and second.text == call("answer", '{"value": 5}')
    assert first.sampled.ids.tolist().count(260) == 3
    assert played.codec.decode(first.sampled.ids) == calls
    error = 'error: write whole numbers, + - * and brackets, such as "(12+3)*45"'
    tools = [f"<|im_start|>tool\n{answer}<|im_end|>\n" for answer in ("6", "5", error)]
    shown = tokenizer_of(template(), special=True).decode(second.context_ids.tolist())
    assert shown == "\n" + "".join(tools) + "<|im_start|>assistant\n"
    # The wrong one of the three was counted and changed nothing.
    steps = play_script(played.spec, played.task, script, style=played.world.style).steps
    assert steps[0].observation.num_invalid == 1 and steps[0].state["results"] == [6, 5]


def test_what_a_policy_is_told_that_called_nothing_is_in_its_format():
    played = Played(HERMES)
    steps = play_script(played.spec, played.task, lambda task, env: iter(["well"]), style=played.world.style).steps
    assert (
        steps[0]
        .observation.messages[0]["content"]
        .startswith('error: no tool was called; write a call, such as <tool_call>{"name": "calc", "arguments": ')
    )


@pytest.fixture(scope="module")
def chat_policy(tmp_path_factory):
    """A random policy with a chat template and calls marked by special tokens."""
    folder = tmp_path_factory.mktemp("chat") / "policy"
    tokenizer = make_tokenizer(sorted(CHARSET), "characters", 4096)
    tokenizer.add_tokens(
        [AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")]
    )
    tokenizer.chat_template = template()
    shape = Shape(layers=1, width=32, heads=2, inner=SIZES["tiny"].inner)
    make_model(shape, len(tokenizer), 4096, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run_recipe(folder, policy, **env):
    return make_recipe({
        "out": str(folder / "runs"), "model": {"path": str(policy), "device": "cpu"},
        "tasks": {"validation": 2, "test": 2, "sources": [{"kind": "environment", "size": 30, "params": {"max_steps": 1}}]},
        "env": {"name": "calc", "tool_format": "model", "max_turns": 3, **env},
        "rollout": {"max_new_tokens": 60, "prompts_per_step": 2, "group_size": 2, "truncated": "score"},
        "sft": {"demonstrations": "gold", "steps": 4, "batch_size": 4, "lr": 1e-2, "num_demonstrations": 8},
        "grpo": {"steps": 1}, "optimizer": {"lr": 1e-3}, "eval": {"every": 1, "samples": 1, "test_samples": 1},
    })  # fmt: skip


def test_a_whole_run_in_the_model_s_own_format(tmp_path, chat_policy):
    with open_session(run_recipe(tmp_path, chat_policy), quiet=True) as session:
        assert session.world is not None and session.world.style.format == "hermes"
        shown = demonstrated(session, session.recipe.sft, session.tasks.train)
        run_pipeline(session, stages=("sft", "grpo"))
        stored = [found.episode for found in session.run.episodes(phase="grpo", step=1)]
    mark = session.policy.tokenizer.convert_tokens_to_ids("<tool_call>")
    for turn in (turn for episode in shown for turn in episode.turns):
        assert turn.sampled.ids[0] == mark
        (call,) = parse(session.codec.decode(turn.sampled.ids), session.world.spec.tools, "hermes").calls
        assert call.error is None
    assert len(stored) == 4
    for episode in stored:
        begin = session.policy.tokenizer.decode(episode.turns[0].context_ids.tolist())
        assert begin.startswith('<|im_start|>tools\n{"name": "calc", "description"')
        # Barely warmed, it calls badly: each such turn is counted and answered.
        for turn in episode.turns:
            assert bool(turn.facts["num_invalid"]) == any(
                m["content"].startswith("error: ") for m in turn.facts.get("messages", ()))  # fmt: skip


def test_rewards_know_of_the_thought_that_the_header_opens(tmp_path, chat_policy):
    """What stands in a thought that never ends is no answer, when it is trained on and when it is judged again."""
    folder = shutil.copytree(chat_policy, tmp_path / "policy")
    (folder / "chat_template.jinja").write_text(THINKING)
    tasks = {"validation": 1, "test": 1}
    recipe = make_recipe({"out": str(tmp_path / "runs"), "model": {"path": str(folder), "device": "cpu"}, "tasks": tasks,
                          "reward": {"functions": [{"name": "math"}]}})  # fmt: skip
    rows = [{"prompt": f"{n} + 1?", "answer": str(n + 1)} for n in range(6)]
    with open_session(recipe, rows=rows, quiet=True) as session:
        task = session.tasks.train[0]
        sampled = Sampled([5], [-0.1], 1.0, ((0, 0),), "stop")
        texts = (rf"Is it \boxed{{{task.answer}}}?", rf"It is.</think> \boxed{{{task.answer}}}")
        done = StopReason(StopKind.TERMINATED, "end_of_turn")
        turns = [Turn([1], sampled, text=text) for text in texts]
        episodes = tuple(Episode(EpisodeId("train", 1, task.key, i), "g", (turn,), done) for i, turn in enumerate(turns))
        (rewards,) = session.grader.score([Group("g", task, episodes)])
        assert [reward.success for reward in rewards] == [False, True]
        assert session.run.meta()["opened_thought"] == "<think>"


def test_the_refusal_comes_before_weights_are_read(tmp_path, chat_policy):
    broken = shutil.copytree(chat_policy, tmp_path / "policy")
    (broken / "model.safetensors").unlink()
    (broken / "chat_template.jinja").write_text(template(tools=""))
    with (
        pytest.raises(RecipeError, match="does not show the tools"),
        open_session(run_recipe(tmp_path, broken), quiet=True),
    ):
        pass
