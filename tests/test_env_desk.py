"""The service desk: generated tasks, the difference of rows that is success, what is refused, and what never succeeds."""

import json
import re
import threading
from itertools import islice, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from milepost.env import Action, Call, canonical, fingerprint, state_key
from milepost.envs.desk import FIELDS, KNOWN_BAD, MAX_CREATED, SPEC, TOOLS, WORDS, Desk, finished
from milepost.envs.desk_tasks import KINDS, MAX_CHANGES, MAX_STEPS, NAMES, compare, reachable
from milepost.tools import parse
from milepost.types import DataError, RecipeError, Task

DIFFICULTIES = {
    "default": {},
    "terse": {"terse": True},
    "shortest": {"min_steps": 3, "max_steps": 3, "num_records": 8},
    "long": {"min_steps": 15, "max_steps": 40, "terse": True},
    "crowded": {"min_steps": 8, "max_steps": 20, "num_records": 60, "forbid": 1.0},
    "queue": {"min_steps": 15, "max_steps": 40, "terse": True, "queue": True},
    "queue of one": {"min_steps": 3, "max_steps": 5, "queue": True},
    "by id": {"min_steps": 15, "max_steps": 40, "queue": True, "by_id": True},
}


def as_task(row, key="t"):
    return Task(key=str(key), prompt=row["prompt"], columns={k: v for k, v in row.items() if k != "prompt"})


def tasks(num, seed=0, **difficulty):
    return [as_task(row, f"{seed}/{i}") for i, row in enumerate(SPEC.generate(num, seed, **difficulty))]


def play(task, script, most=100):
    """(states, observed texts) of one episode."""
    env = Desk()
    texts = [env.reset(task, 0).messages[-1]["content"]]
    states = [env.state()]
    for text in islice(script(task, env), most):
        seen = env.step(parse(text, TOOLS))
        texts += [message["content"] for message in seen.messages]
        states.append(env.state())
        if seen.ended:
            break
    env.close()
    return states, texts


def cost(name, task, states):
    return next(one for one in SPEC.costs if one.name == name).amount(task, states)


def held(task, start, now):
    return [m.name for m in SPEC.milestones if m.kind == "state" and m.reached(task, start, now)]


def small(wanted, **columns):
    """Anna 10: order 20 (late), order 21 (paid), ticket 30 (open). Paul 11: order 22 (late), ticket 31 (closed)."""
    ticket = {"subject": "noise", "priority": "low", "note": ""}
    records = {
        "customers": {"10": {"name": "Anna"}, "11": {"name": "Paul"}},
        "orders": {
            "20": {"customer": 10, "item": "lamp", "status": "late"},
            "21": {"customer": 10, "item": "pen", "status": "paid"},
            "22": {"customer": 11, "item": "lamp", "status": "late"},
        },
        "tickets": {
            "30": {"customer": 10, **ticket, "status": "open"},
            "31": {"customer": 11, **ticket, "status": "closed"},
        },
    }
    return Task(key="small", prompt="Work.", columns={"records": records, "wanted": wanted, "plan": [], **columns})


REFUND = [{"table": "orders", "id": "20", "set": {"status": "refunded"}}]
CLOSE = [{"table": "tickets", "id": "30", "set": {"status": "closed"}}]
NEW = {"customer": 10, "subject": "login", "priority": "high", "status": "open", "note": ""}


class Playing:
    """An opened desk with its states so far."""

    def __init__(self, task, seed=0):
        self.task, self.env = task, Desk()
        self.env.reset(task, seed)
        self.states = [self.env.state()]

    def do(self, text):
        observation = self.env.step(parse(text, TOOLS))
        self.states.append(self.env.state())
        return observation.messages[-1]["content"]

    @property
    def success(self):
        return SPEC.goal.holds(self.task, self.states[0], self.states[-1])


# --- generated tasks ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIFFICULTIES)
def test_gold_succeeds_knowing_only_what_it_was_shown(name):
    difficulty = DIFFICULTIES[name]
    low, high = difficulty.get("min_steps", 3), difficulty.get("max_steps", 6)
    for task in tasks(40, **difficulty):
        states, texts = play(task, SPEC.gold)
        num_changes = len(task.columns["wanted"])
        assert SPEC.goal.holds(task, states[0], states[-1])
        assert low <= len(states) - 1 == task.columns["steps"] <= high
        assert held(task, states[0], states[-1]) == [f"change_{i + 1}" for i in range(num_changes)]
        assert any(SPEC.milestones[0].reached(task, a, b) for a, b in pairwise(states))
        assert (cost("calls", task, states), cost("damage", task, states)) == (task.columns["steps"], 0)
        shown = set(re.findall(r"\d+", texts[0]))
        for (_, arguments), answer in zip(task.columns["plan"], texts[1:], strict=True):
            used = {str(value) for value in arguments.values() if str(value).isdigit()}
            assert used <= shown, "the plan uses a number that stands in no prompt and no earlier answer"
            shown |= set(re.findall(r"\d+", answer))


@pytest.mark.parametrize("queue", [False, True])
def test_every_number_of_steps_from_3_to_40_can_be_had(queue):
    for steps in range(3, 41):
        (task,) = tasks(1, seed=steps, min_steps=steps, max_steps=steps, queue=queue)
        assert len(task.columns["plan"]) == steps
        assert len(task.columns["wanted"]) <= MAX_CHANGES
        assert canonical(dict(task.columns)) == canonical(json.loads(canonical(dict(task.columns))))


def test_a_queue_hands_out_one_job_at_a_time():
    task = small([*REFUND, *CLOSE], later=["Close ticket 30.", "Refund nothing."])
    playing = Playing(task)
    assert playing.do("refund(20)") == "order 20 refunded"
    assert playing.do("done()") == "Close ticket 30." and not playing.states[-1]["done"]
    saved = playing.env.snapshot()
    assert playing.do("close(30)") == "ticket 30 closed"
    assert playing.do("done()") == "Refund nothing." and playing.states[-1]["handed"] == 2 and not playing.success
    assert playing.do("done()") == "done" and playing.success
    again = Desk()
    again.restore(saved)
    assert again.state() == playing.states[2]  # the second job is handed out, nothing of it is done


def test_jobs_of_a_queue_stand_in_no_earlier_message():
    for task in tasks(30, min_steps=15, max_steps=40, queue=True):
        _, texts = play(task, SPEC.gold)
        later = list(task.columns["later"])
        assert len(later) + 1 == len(task.columns["kinds"]) == sum(name == "done" for name, _ in task.columns["plan"])
        assert [text for text in texts if text in later] == later
        assert not any(job in task.prompt for job in later)


def test_the_summary_of_a_queue_tells_the_job_under_way():
    task = small(REFUND, later=["Close ticket 30.", "Delete ticket 31."])
    playing = Playing(task)
    assert SPEC.summary(task, playing.states[0], playing.states[-1]) == "nothing updated"
    for text in ("done()", "done()", "delete(31)"):
        playing.do(text)
    assert SPEC.summary(task, playing.states[0], playing.states[-1]) == "job: Delete ticket 31.\ndeleted: ticket 31"


def test_default_tasks_are_small_and_differ():
    found = tasks(200, seed=5)
    assert len({task.prompt for task in found}) == 200
    assert {kind for task in found for kind in task.columns["kinds"]} == set(KINDS)
    assert {task.columns["steps"] for task in found} == {3, 4, 5, 6}
    assert all(20 <= sum(map(len, task.columns["records"].values())) <= 40 for task in found)
    forbidding = [task for task in found if task.columns["forbidden"]]
    assert 30 <= len(forbidding) <= 90  # 0.3 of 200, and more than four standard deviations around it
    for task in forbidding:
        (tool,) = task.columns["forbidden"]
        assert f"You must not {tool}." in task.prompt and tool not in {name for name, _ in task.columns["plan"]}


def test_generation_is_a_function_of_seed_and_difficulty():
    assert list(SPEC.generate(5, 1)) == list(SPEC.generate(9, 1))[:5]
    assert list(SPEC.generate(5, 1)) != list(SPEC.generate(5, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_alone(kind):
    for task in tasks(10, kinds=[kind], max_steps=9):
        states, _ = play(task, SPEC.gold)
        assert SPEC.goal.holds(task, states[0], states[-1]) and set(task.columns["kinds"]) == {kind}


@pytest.mark.parametrize(
    ("difficulty", "message"),
    [
        ({"min_steps": 2}, "between 3 and 60"),
        ({"min_steps": 7}, "between 3 and 60"),
        ({"max_steps": MAX_STEPS + 1}, "between 3 and 60"),
        ({"num_records": 0}, "num_records = 0"),
        ({"kinds": ["refund", "fly"]}, "one or more of refund, close"),
        ({"kinds": "refund,fly"}, r"kinds = \['refund', 'fly'\] must be"),  # as on the command line: a text
        ({"kinds": []}, "one or more of refund, close"),
        ({"kinds": ["create"], "min_steps": 5, "max_steps": 6}, "takes 5 to 6 steps"),  # 4, 7, 10, … only
        ({"forbid": 2}, "forbid = 2"),
        ({"kinds": ["phone"], "max_steps": 4, "num_records": 1, "size": 17}, r"size = 17 is more .* \(16\)"),
    ],
)
def test_what_cannot_be_generated_is_refused(difficulty, message, monkeypatch):
    # Four names, one phone, three rules or none of them: 16 prompts.
    monkeypatch.setattr("milepost.envs.desk_tasks.NAMES", NAMES[:4])
    monkeypatch.setattr("milepost.envs.desk_tasks.new_phone", lambda draft: "5000")
    with pytest.raises(RecipeError, match=message):
        list(SPEC.generate(**{"size": 5, "seed": 0, "forbid": 0.5, **difficulty}))


def test_reachable_sums():
    assert reachable({3, 5}, 10) == {0, 3, 5, 6, 8, 9, 10}


# --- what is success ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN_BAD)
def test_known_bad_policies_never_succeed(name):
    for difficulty in ({}, {"min_steps": 3, "max_steps": 3, "num_records": 4}, {"min_steps": 12, "max_steps": 20}):
        for task in tasks(12, seed=3, **difficulty):
            states, _ = play(task, KNOWN_BAD[name])
            assert not any(SPEC.goal.holds(task, states[0], state) for state in states)


def test_refund_and_nothing_else():
    desk = Playing(small(REFUND))
    assert desk.do('search("Anna late")') == "order 20 Anna lamp late"
    assert desk.do("refund(20)") == "order 20 refunded"
    assert not desk.success  # not said to be done
    desk.do("done()")
    assert desk.success


def test_the_wanted_change_and_another_one_fails():
    desk = Playing(small(REFUND))
    for call in ("refund(20)", "refund(22)", "done()"):
        desk.do(call)
    assert compare(desk.task, desk.states[0], desk.states[-1]) == ([True], {("orders", "22")})
    assert not desk.success and cost("damage", desk.task, desk.states) == 1


def test_the_right_row_with_one_field_too_many_is_not_as_wanted():
    desk = Playing(small(CLOSE))
    for call in ("close(30)", 'update(30, "priority", "high")', "done()"):
        desk.do(call)
    assert compare(desk.task, desk.states[0], desk.states[-1]) == ([False], {("tickets", "30")})
    assert not desk.success


def test_one_of_two_wanted_fields_is_neither_made_nor_damage():
    both = [{"table": "tickets", "id": "30", "set": {"status": "closed", "priority": "high"}}]
    desk = Playing(small(both))
    desk.do("close(30)")
    assert compare(desk.task, desk.states[0], desk.states[-1]) == ([False], set())
    desk.do('update(30, "priority", "high")')
    assert compare(desk.task, desk.states[0], desk.states[-1]) == ([True], set())


def test_a_change_that_a_trigger_makes_elsewhere_fails():
    desk = Playing(small(REFUND))
    desk.env._db.executescript(
        """CREATE TABLE log (what TEXT);
        CREATE TRIGGER spy AFTER UPDATE ON orders BEGIN INSERT INTO log VALUES ('refunded ' || new.id); END;"""
    )
    desk.states = [desk.env.state()]
    for call in ("refund(20)", "done()"):
        desk.do(call)
    assert desk.states[-1]["tables"]["log"] == {"1": {"what": "refunded 20"}}
    assert compare(desk.task, desk.states[0], desk.states[-1]) == ([True], {("log", "1")})
    assert not desk.success


def test_deleting_a_customer_deletes_what_hangs_on_it():
    desk = Playing(small([{"table": "customers", "id": "11", "set": None}]))
    for call in ("delete(11)", "done()"):
        desk.do(call)
    made, unwanted = compare(desk.task, desk.states[0], desk.states[-1])
    assert (made, unwanted) == ([True], {("orders", "22"), ("tickets", "31")})
    assert not desk.success and cost("damage", desk.task, desk.states) == 2


def test_created_rows_count_by_content_in_any_order():
    low = {**NEW, "customer": 11, "priority": "low"}
    task = small([{"table": "tickets", "id": None, "set": row} for row in (NEW, low, NEW)])
    desk = Playing(task)
    assert desk.do('create(11, "login", "low")') == "ticket 100 created"
    assert compare(task, desk.states[0], desk.states[-1]) == ([False, True, False], set())
    desk.do('create(10, "login", "high")')
    desk.do('create(10, "login", "low")')  # not asked for
    assert compare(task, desk.states[0], desk.states[-1]) == ([True, True, False], {("tickets", "102")})
    desk.do('update(102, "priority", "high")')  # now it is
    desk.do("done()")
    assert desk.success and cost("damage", task, desk.states) == 1
    desk = Playing(task)
    for call in (*['create(10, "login", "high")'] * 3, 'create(11, "login", "low")', "done()"):
        desk.do(call)
    assert not desk.success  # one too many
    assert compare(task, desk.states[0], desk.states[-1]) == ([True, True, True], {("tickets", "102")})


def test_ids_are_not_given_out_twice():
    desk = Playing(small([{"table": "tickets", "id": None, "set": NEW}]))
    assert desk.do('create(10, "login", "low")') == "ticket 100 created"
    assert desk.do("delete(100)") == "ticket 100 deleted"
    assert desk.do('create(10, "login", "high")') == "ticket 101 created"
    desk.do("done()")
    assert desk.success


# --- milestones and costs -------------------------------------------------------------------------------------------------


def test_a_change_undone_is_taken_back_and_a_read_is_not():
    desk = Playing(small(CLOSE))
    read = SPEC.milestones[0]
    assert (read.name, read.kind) == ("read", "event")
    desk.do("read(31)")  # the wrong one
    assert not read.reached(desk.task, desk.states[-2], desk.states[-1])
    desk.do("read(30)")
    assert read.reached(desk.task, desk.states[-2], desk.states[-1])
    desk.do("read(30)")  # nothing new
    assert not read.reached(desk.task, desk.states[-2], desk.states[-1])
    desk.do("close(30)")
    assert held(desk.task, desk.states[0], desk.states[-1]) == ["change_1"]
    desk.do('update(30, "status", "open")')
    assert held(desk.task, desk.states[0], desk.states[-1]) == []
    assert desk.states[-1]["tables"] == desk.states[0]["tables"]


def test_damage_counts_rows_each_time_they_are_damaged():
    desk = Playing(small(CLOSE))
    for priority in ("high", "low", "high"):  # damaged, repaired, damaged
        desk.do(f'update(31, "priority", "{priority}")')
    desk.do("close(30)")  # wanted
    desk.do('update(31, "subject", "x")')  # the same row, damaged already
    assert cost("damage", desk.task, desk.states) == 2
    assert cost("calls", desk.task, desk.states) == 5


def test_claims_are_not_progress():
    task = small(CLOSE)
    desk = Playing(task)
    desk.do("Step 1 done. Ticket 30 is closed. success = true")
    assert not desk.success and held(task, desk.states[0], desk.states[-1]) == []
    assert fingerprint(desk.states[0]) == fingerprint(desk.states[-1])


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_forbidden_tool_changes_nothing():
    task = small([{"table": "tickets", "id": "30", "set": None}], forbidden=["delete"])
    desk = Playing(task)
    observation = desk.env.step(parse("delete(30)", TOOLS))
    assert observation.num_invalid == 1 and "not allowed" in observation.messages[0]["content"]
    assert fingerprint(desk.env.state()) == fingerprint(desk.states[0])
    states, _ = play(task, KNOWN_BAD["delete_all"])
    assert states[-1]["tables"] == states[0]["tables"]


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        ("read(99)", "there is no record 99"),
        (f"read({2**63 - 1})", f"there is no record {2**63 - 1}"),
        ("refund(30)", "30 is in tickets, not in orders"),
        ("close(20)", "20 is in orders, not in tickets"),
        ("close(31)", "ticket 31 is closed already"),
        ('create(20, "noise", "low")', "20 is in orders, not in customers"),
        ('create(10, "noise", "urgent")', "priority is low or high"),
        ('create(10, "", "low")', "subject is 1 to 16 plain characters"),
        ('update(10, "id", "5")', "the fields of 10 are name, phone"),
        ('update(10, "phone", "12345678901234567")', "phone is 1 to 16 plain characters"),
        ('update(10, "name", "Zoë")', "name is 1 to 16 plain characters"),
        ('update(20, "status", "refunded")', "status is paid or late"),
        ('update(30, "status", "open")', "status of 30 is open already"),
        ('search("")', "give 1 to 8 words"),
        ('search("a b c d e f g h i")', "give 1 to 8 words"),
    ],
)
def test_mistakes_are_answered_and_change_nothing(call, answer):
    desk = Playing(small(REFUND))
    assert desk.do(call) == f"error: {answer}"
    assert fingerprint(desk.states[0]) == fingerprint(desk.states[1])


def test_a_refund_is_final():
    desk = Playing(small(REFUND))
    desk.do("refund(20)")
    assert desk.do('update(20, "status", "late")') == "error: a refund is final"
    assert desk.do('update(20, "item", "pen")') == "order 20 updated"


def test_a_loop_of_creations_does_not_fill_the_memory():
    desk = Playing(small(REFUND))
    for _ in range(MAX_CREATED):
        assert desk.do('create(10, "noise", "low")').endswith("created")
    assert desk.do('create(10, "noise", "low")') == "error: too many tickets"


def test_search_takes_all_words_and_says_how_many_more():
    desk = Playing(small(REFUND))
    assert desk.do('search("LATE orders")') == "order 20 Anna lamp late; order 22 Paul lamp late"
    assert desk.do('search("30")') == "ticket 30 Anna noise low open"
    assert desk.do('search("Ann")') == "nothing found"  # words, not parts of words
    assert desk.do('search("Anna% _")') == "nothing found"
    assert desk.do('search("lamp noise")') == "nothing found"
    for _ in range(4):
        desk.do('create(10, "noise", "low")')
    shown = desk.do('search("Anna ticket")')
    assert shown.count("Anna") == 4 and shown.endswith(" +1")
    terse = Playing(small(REFUND, terse=True))
    assert terse.do('search("Anna")') == "customer 10, order 20, order 21 +1"
    assert re.fullmatch(r"order 20 Anna 10 lamp late \d\d", terse.do("read(20)"))


def test_rows_of_another_environment_are_refused():
    with pytest.raises(DataError, match="no column records"):
        Desk().reset(Task(key="x", prompt="Hi"), 0)


# --- the contract: determinism, isolation, snapshots ----------------------------------------------------------------------


def test_same_task_and_seed_same_start_and_the_seed_counts():  # case E8
    task = tasks(1)[0]
    starts = [fingerprint(Playing(task, seed).states[0]) for seed in (7, 7, 8)]
    assert starts[0] == starts[1] != starts[2]
    for seed in range(5):  # whatever the seed, the task is the same task
        desk = Playing(task, seed)
        for text in SPEC.gold(task, desk.env):
            desk.do(text)
        assert desk.success


def test_reset_begins_afresh():  # case E6
    task = small(REFUND)
    desk = Playing(task)
    for call in ("read(20)", "refund(20)", 'create(10, "noise", "low")', "done()"):
        desk.do(call)
    desk.env.reset(task, 0)
    assert fingerprint(desk.env.state()) == fingerprint(desk.states[0])


def test_two_desks_do_not_see_each_other():
    one, other = Playing(small(REFUND)), Playing(small(REFUND))
    one.do("delete(10)")
    assert other.env.state() == other.states[0] != one.env.state()
    kept = other.states[0]["tables"]["orders"]["20"]["status"]
    other.do("refund(20)")
    assert other.states[0]["tables"]["orders"]["20"]["status"] == kept  # a state returned is a copy


def test_snapshots_round_trip_into_a_fresh_desk():
    task = small(CLOSE, forbidden=["refund"], terse=True)
    desk = Playing(task)
    for call in ('create(10, "noise", "low")', "delete(100)", "read(30)"):
        desk.do(call)
    saved = desk.env.snapshot()
    assert len(saved) < 20_000
    desk.do("delete(11)")
    fresh = Desk()
    fresh.restore(saved)
    assert fresh.state() == desk.states[-2]
    assert fresh.step(parse("refund(20)", TOOLS)).num_invalid == 1  # the lock is saved too
    desk.env.restore(saved)
    for env in (desk.env, fresh):  # both go on alike; foreign keys still hold
        answers = [env.step(parse(c, TOOLS)).messages[0]["content"] for c in ('create(10, "noise", "low")', "delete(11)")]
        assert answers == ["ticket 101 created", "customer 11 deleted"]
        assert env.state()["tables"]["orders"].keys() == {"20", "21"}
    assert fresh.state() == desk.env.state()


def test_a_desk_may_be_played_from_several_threads_and_closed_twice():
    desk = Playing(small(REFUND))
    answers = []
    thread = threading.Thread(target=lambda: answers.append(desk.do("refund(20)")))
    thread.start()
    thread.join()
    assert answers == ["order 20 refunded"]
    desk.env.close()
    desk.env.close()


def test_counters_are_no_part_of_where_an_episode_is():
    desk = Playing(small(REFUND))
    for call in ('search("Anna")', 'create(10, "noise", "low")', "delete(100)"):
        desk.do(call)
    assert fingerprint(desk.states[0]) != fingerprint(desk.states[-1])
    assert state_key(desk.states[0], SPEC.volatile) == state_key(desk.states[-1], SPEC.volatile)


ANY = st.one_of(st.integers(), st.integers(9, 35), st.text(max_size=20), st.booleans(), st.none(), st.floats())
TEXTS = "Anna late order open phone status priority name low high closed paid"
RIGHT = {int: st.integers(9, 35), str: st.sampled_from(TEXTS.split())}


@st.composite
def calls(draw):
    """Half of them could be carried out."""
    tool = draw(st.sampled_from(TOOLS[:-1]))
    right = draw(st.booleans())
    arguments = {key: draw(RIGHT[kind] if right else ANY) for key, (kind, _) in tool.parameters.items()}
    return Call(tool.name if right else draw(st.sampled_from([tool.name, "fly", ""])), arguments)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(calls(), max_size=3), max_size=12), st.booleans())
def test_whatever_is_called_is_answered(turns, terse):
    task = small(REFUND, terse=terse)
    desk = Playing(task)
    for turn in turns:
        before = desk.env.state()
        observation = desk.env.step(Action("", tuple(turn)))
        after = desk.env.state()
        canonical(after)
        assert len(observation.messages) == max(1, len(turn)) and not observation.ended
        if observation.num_invalid == max(1, len(turn)):
            assert before == after
        made, unwanted = compare(task, desk.states[0], after)
        assert not finished(task, desk.states[0], after)
        assert after["tables"].keys() == FIELDS.keys()
        assert (made == [True] and not unwanted) == ([*_differing(desk.states[0], after)] == [("orders", "20", "refunded")])
        desk.states.append(after)
    assert 0 <= cost("damage", task, desk.states) <= 7 * len(turns) + MAX_CREATED


def _differing(start, now):
    """The difference of the tables, found in another way than the environment's."""
    for table in FIELDS:
        for number in {*start["tables"][table], *now["tables"][table]}:
            old, new = start["tables"][table].get(number), now["tables"][table].get(number)
            if old != new:
                yield table, number, (new or {}).get("status")


# --- tokens ---------------------------------------------------------------------------------------------------------------


def split_words(text):
    """As a policy that knows words reads: digits, blanks and signs singly."""
    return re.findall(r"\d|[^\W\d]+|[\s\S]", text)


def count_words(text):
    return len(split_words(text))


def count_with_smollm2():
    path = Path.home() / ".cache/milepost/smollm2-135m/tokenizer.json"
    if not path.exists():
        pytest.skip("the default model's tokenizer is not on this machine")
    tokenizer = pytest.importorskip("tokenizers").Tokenizer.from_file(str(path))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(("terse", "most"), [(False, 60), (True, 25)])
def test_observations_fit_their_budget(terse, most):
    counts = [count_words] if terse else [count_words, count_with_smollm2()]
    for task in tasks(15, seed=9, terse=terse, min_steps=3, max_steps=40, num_records=40):
        episodes = [play(task, SPEC.gold), play(task, KNOWN_BAD["random"]), play(task, KNOWN_BAD["loop"], 1)]
        observed = [text for _, (_, *texts) in episodes for text in texts if "not allowed in this task" not in text]
        for count in counts:
            assert max(map(count, observed)) <= most


def test_a_policy_of_words_knows_every_word():
    known = set(split_words(WORDS))
    found = tasks(15, seed=10, max_steps=20) + tasks(15, seed=11, max_steps=20, terse=True, forbid=1.0)
    for task in found:
        for script in (SPEC.gold, KNOWN_BAD["random"], KNOWN_BAD["delete_all"], KNOWN_BAD["undo_redo"]):
            said = list(islice(script(task, Playing(task).env), 30))
            assert not {word for text in (*play(task, script)[1], *said) for word in split_words(text)} - known
    desk = Playing(small(CLOSE))
    malformed = """hm|read()|read("10")|read(10, "a")|read(note=1)|read(1.5)|read(10|read(true)|read(10) (|search(Anna)|
        read(id=10, id=10)|read(9999999999999999999)|search(text="a", 1)|close(31)|update(10, "item", "pen")|
        update(10, "phone", "")|search("")|refund(30)|read(99)"""
    for text in re.sub(r"\n +", "", malformed).split("|"):
        answer = desk.do(text)
        assert answer.startswith("error: ")
        assert not set(split_words(answer)) - known, text


def test_names_are_single_tokens():
    count = count_with_smollm2()
    assert [name for name in NAMES if count(f" {name}") != 1] == []


# --- what it sums up ---------------------------------------------------------------------------------------------------


def summed_up(playing):
    return SPEC.summary(playing.task, playing.states[0], playing.states[-1])


def test_the_summary_tells_what_was_read_and_changed_by_hand():
    desk = Playing(small(REFUND))
    assert summed_up(desk) == "nothing updated"
    desk.do('search("late order")')  # what it found is not in the facts
    assert summed_up(desk) == "nothing updated"
    desk.do("read(22)")
    total = desk.states[0]["tables"]["orders"]["22"]["total"]
    read = f"read: order 22: customer Paul 11, item lamp, status late, total {total}"
    assert summed_up(desk) == read
    for call in ("refund(20)", 'update(30, "priority", "high")', 'create(10, "login", "low")', "delete(21)", "refund(21)"):
        desk.do(call)
    made = "updated: order 20 status refunded; ticket 30 priority high\ncreated: ticket 100: customer 10, subject login, "
    assert summed_up(desk) == f"{read}\n{made}priority low, status open\ndeleted: order 21"
    desk.do('update(30, "priority", "low")')  # undone: as it was
    assert "ticket 30" not in summed_up(desk)
    desk.do("delete(11)")  # its order 22 and ticket 31 went with it; it never saw the ticket
    assert summed_up(desk).endswith("deleted: customer 11; order 21") and "31" not in summed_up(desk)
    assert "read" not in summed_up(desk)


def test_a_terse_summary_by_hand():
    desk = Playing(small(REFUND, terse=True))
    for call in ("read(10)", "read(30)", 'create(10, "login", "high")'):
        desk.do(call)
    phone = desk.states[0]["tables"]["customers"]["10"]["phone"]
    assert summed_up(desk) == (
        f"read: customer 10 Anna {phone}; ticket 30 Anna 10 noise low open\ncreated: ticket 100 10 login high open"
    )


@pytest.mark.parametrize("script", ["gold", "random", "half", "touch", "delete_all", "loop"])
@pytest.mark.parametrize("terse", [False, True])
def test_the_summary_tells_nothing_that_the_policy_has_not_read_or_written(script, terse):
    """Every word and number of it stands in its prompt, an answer or an action of its own, or names a field or a kind of
    record. A policy that knows words knows all but its own."""
    whole = re.compile(r"\d+|[^\W\d]+")
    common = {"read", "updated", "created", "deleted", "nothing", "customer", "order", "ticket", "open"}
    common |= {field for fields in FIELDS.values() for field in fields}
    for task in tasks(6, seed=3, max_steps=12, terse=terse):
        desk, seen = Playing(task), {*whole.findall(task.prompt), *common}
        known = set(split_words(WORDS))
        for text in (SPEC.gold if script == "gold" else KNOWN_BAD[script])(task, desk.env):
            seen |= {*whole.findall(text), *whole.findall(desk.do(text))}
            known |= set(split_words(text))
            told = summed_up(desk)
            assert set(whole.findall(told)) <= seen, told
            assert set(split_words(told)) <= known | {"\n"}, told
