"""Work for the service desk: generated records, a prompt, and the difference of rows that it asks for. Torch-free.

A task is a chain of jobs that cannot disturb each other: each works on records of a customer that no other job of the
same table touches, beside records that look alike and must stay as they are. All ids come from the task.

    jobs → prompt, plan (what the gold policy calls), wanted (one row each):
      {"table": "orders", "id": "17", "set": {"status": "refunded"}}     changed
      {"table": "tickets", "id": "52", "set": None}                      deleted
      {"table": "tickets", "id": None, "set": {all its fields}}          created, whatever its id

In a `queue` the prompt holds the first job alone, and done() answers with the next one until there is none.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypedDict

from milepost.env import State
from milepost.types import RecipeError, Task

# One token each for SmolLM2 and for a tokenizer of words: observations stay short and numbers comparable.
_NAMES = """
Anna Paul Tom Eva Max Leo Ben Sam Kim Amy Joe Ann Eric Emma Lisa Peter Laura Mark Sara Nina Adam Jack Lucy Alan Ruth Rose
Luke Mary John Alex Carl Dan Ella Fred Greg Helen Ivan Jane Karl Mia Noah Omar Rosa Hugo Vera Otto Tim Jon Kate Maria
Simon David Susan Brian Diana Grace Henry James Kevin Linda Oscar Alice Clara Julia Frank George Sofia"""
_ITEMS = "lamp pen chair cable book clock shelf mouse screen router camera watch bike table heater radio piano tent"
_SUBJECTS = "login delivery damage repair noise invoice battery"
NAMES, ITEMS, SUBJECTS = _NAMES.split(), _ITEMS.split(), _SUBJECTS.split()

PHRASES = f"""{_NAMES} {_ITEMS} {_SUBJECTS}
search(text="Anna") null
Create a ticket for Anna: login, high. Refund the late orders of Anna. Refund order 17. Close the open ticket of Anna.
Close ticket 45. Delete the spam tickets of Anna. Delete ticket 45. Set the phone of Anna to 0123456789. Set ticket 45 to
high. Set the phone of Anna to the note of the phone ticket, then close it. You must not create. low paid closed item job
total; order 17, ticket 45; customer +2 refunded updated created deleted; nothing found. Nobody error: there is no record
99; 30 is in tickets, not in orders, customers; is closed already; the fields of 10 are; "too many"; give 1 to 8 words; a
refund is final; is 1 to 16 plain characters; no tool was called; write a call, one per line, such as text; there is no
tool of that name; use; is not allowed in this task; needs; it is; takes no such parameter; must be int: without quotes,
not bool float; is too large; use at most digits; argument is no plain value: write a number, true or false; end the call
with ); write nothing behind the call on its line; a comma; texts in quotes; too many arguments; name every argument
behind a named one; is given twice"""
"""Every word of prompts and answers, those of tools.py included."""

MAX_STEPS = 60
MAX_CHANGES = 36
"""No plan of MAX_STEPS calls holds more: the densest job changes three rows with five calls."""

Call = tuple[str, dict[str, Any]]
Row = dict[str, Any]


@dataclass
class Draft:
    """A desk's records while a task is being made."""

    rng: random.Random
    tables: dict[str, dict[str, Row]] = field(default_factory=lambda: {"customers": {}, "orders": {}, "tickets": {}})
    taken: set[tuple[str, str]] = field(default_factory=set)
    """(customer, table): a job's own, so nothing else may be put or done there."""

    def __post_init__(self) -> None:
        self.ids = _numbers(self.rng)
        self.names = iter(self.rng.sample(NAMES, len(NAMES)))

    @property
    def num_records(self) -> int:
        return sum(map(len, self.tables.values()))

    def add(self, table: str, row: Row) -> str:
        number = str(next(self.ids))
        self.tables[table][number] = row
        return number

    def customer(self, *tables: str) -> str:
        """A customer whose records in these tables are still free, now taken; a new one if need be."""
        free = [one for one in self.tables["customers"] if not any((one, table) in self.taken for table in tables)]
        number = self.rng.choice(free) if free else self.add("customers", {"name": next(self.names)})
        self.taken.update((number, table) for table in tables)
        return number

    def name(self, customer: str) -> str:
        return self.tables["customers"][customer]["name"]

    def order(self, customer: str, **fixed: Any) -> str:
        row = {"item": self.rng.choice(ITEMS), "status": self.rng.choice(("paid", "late"))}
        return self.add("orders", {"customer": int(customer), **row, **fixed})

    def ticket(self, customer: str, **fixed: Any) -> str:
        pick = self.rng.choice
        row = {"subject": pick(SUBJECTS), "priority": pick(("low", "high")), "status": pick(("open", "closed")), "note": ""}
        return self.add("tickets", {"customer": int(customer), **row, **fixed})


def _numbers(rng: random.Random) -> Iterator[int]:
    """Two digits as long as they last: an id then costs the same everywhere."""
    for digits in (10, 100):
        yield from rng.sample(range(digits, 10 * digits), 9 * digits)


@dataclass(frozen=True)
class Job:
    text: str
    plan: list[Call]
    wanted: list[Row]


@dataclass(frozen=True)
class Sweep:
    """A kind of job that treats some records of one customer alike: found by a search, or named by their id."""

    table: str
    target: Row
    decoy: Row
    query: str
    many: str
    """Asks for it, given {n} ("" or "2 "), {s} ("" or "s") and {name}."""
    one: str
    change: Callable[[int], Call]
    set: Row | None


SWEEPS = {
    "refund": Sweep("orders", {"status": "late"}, {"status": "paid"}, "late order",
                    "Refund the {n}late order{s} of {name}.", "Refund order {id}.",
                    lambda number: ("refund", {"order": number}), {"status": "refunded"}),
    "close": Sweep("tickets", {"status": "open"}, {"status": "closed"}, "open ticket",
                   "Close the {n}open ticket{s} of {name}.", "Close ticket {id}.",
                   lambda number: ("close", {"ticket": number}), {"status": "closed"}),
    "delete": Sweep("tickets", {"subject": "spam"}, {}, "spam ticket",
                    "Delete the {n}spam ticket{s} of {name}.", "Delete ticket {id}.",
                    lambda number: ("delete", {"id": number}), None),
    "raise": Sweep("tickets", {"priority": "low"}, {"priority": "high"}, "low ticket",
                   "Set the {n}low ticket{s} of {name} to high.", "Set ticket {id} to high.",
                   lambda number: ("update", {"id": number, "field": "priority", "value": "high"}), {"priority": "high"}),
}  # fmt: skip


def sweep(draft: Draft, kind: Sweep, count: int) -> Job:
    """`count` records to treat, found by a search; 0: one record, named by its id."""
    customer = draft.customer(kind.table)
    put = draft.order if kind.table == "orders" else draft.ticket
    targets = [put(customer, **kind.target) for _ in range(count or 1)]
    put(customer, **kind.decoy)
    numbers = sorted(map(int, targets))
    name, n, s = draft.name(customer), f"{count} " if count > 1 else "", "s" if count > 1 else ""
    text = kind.many.format(n=n, s=s, name=name) if count else kind.one.format(id=numbers[0])
    find: list[Call] = [("search", {"text": f"{name} {kind.query}"})] if count else []
    plan = [*find, ("read", {"id": numbers[0]}), *map(kind.change, numbers)]
    return Job(text, plan, [{"table": kind.table, "id": str(number), "set": kind.set} for number in numbers])


def create(draft: Draft) -> Job:
    customer = draft.customer("tickets")
    name, subject, priority = draft.name(customer), draft.rng.choice(SUBJECTS), draft.rng.choice(("low", "high"))
    fields = {"customer": int(customer), "subject": subject, "priority": priority}
    plan: list[Call] = [
        ("search", {"text": f"{name} customer"}),
        ("read", {"id": int(customer)}),
        ("create", fields),
    ]
    row = {**fields, "status": "open", "note": ""}
    return Job(f"Create a ticket for {name}: {subject}, {priority}.", plan, [{"table": "tickets", "id": None, "set": row}])


def phone(draft: Draft) -> Job:
    customer, number = draft.customer("customers"), new_phone(draft)
    name = draft.name(customer)
    plan: list[Call] = [
        ("search", {"text": f"{name} customer"}),
        ("read", {"id": int(customer)}),
        ("update", {"id": int(customer), "field": "phone", "value": number}),
    ]
    return Job(f"Set the phone of {name} to {number}.", plan, [_set("customers", customer, phone=number)])


def asked(draft: Draft) -> Job:
    """What to do stands in a record, not in the prompt: it must be read and carried over."""
    customer, number = draft.customer("customers", "tickets"), new_phone(draft)
    ticket = draft.ticket(customer, subject="phone", status="open", note=number)
    draft.ticket(customer, status="open")
    name = draft.name(customer)
    plan: list[Call] = [
        ("search", {"text": f"{name} phone ticket"}),
        ("read", {"id": int(ticket)}),
        ("update", {"id": int(customer), "field": "phone", "value": number}),
        ("close", {"ticket": int(ticket)}),
    ]
    wanted = [_set("customers", customer, phone=number), _set("tickets", ticket, status="closed")]
    return Job(f"Set the phone of {name} to the note of the phone ticket, then close it.", plan, wanted)


def new_phone(draft: Draft) -> str:
    """Above every phone that a desk starts with, so that it is always a change."""
    return str(draft.rng.randrange(5000, 10000))


def _set(table: str, number: str, **fields: Any) -> Row:
    return {"table": table, "id": number, "set": fields}


KINDS = (*SWEEPS, "create", "phone", "asked")


def shapes(kinds: Sequence[str], queue: bool = False, by_id: bool = False) -> list[tuple[str, int, int]]:
    """(kind, count, length of its plan, with the done() of its own in a queue) of all jobs of these kinds."""
    plain = {"create": 3, "phone": 3, "asked": 4}
    return [
        (kind, count, (plain.get(kind) or (2 + count if count else 2)) + queue)
        for kind in kinds
        for count in (range(4) if kind in SWEEPS and not by_id else (0,))
    ]


def reachable(lengths: set[int], most: int) -> set[int]:
    """All sums up to `most` of one or more of these lengths, and 0."""
    sums = {0}
    for total in range(1, most + 1):
        if any(total - length in sums for length in lengths):
            sums.add(total)
    return sums


class DrawnRow(TypedDict):
    prompt: str
    """Of a queue: the first job."""
    later: list[str]
    """The other jobs of a queue."""
    records: dict[str, dict[str, Row]]
    """Table → id → row, without what the seed of `reset` decides."""
    wanted: list[Row]
    """Changes: table, id (None: a new row), set (None: deleted)."""
    plan: list[list[Any]]
    """Calls of the gold policy: name, arguments."""
    steps: int
    kinds: list[str]
    forbidden: list[str]


class DeskRow(DrawnRow):
    terse: bool


def generate(
    size: int,
    seed: int,
    *,
    min_steps: int = 3,
    max_steps: int = 6,
    num_records: int = 20,
    kinds: Sequence[str] | str = KINDS,
    terse: bool = False,
    forbid: float = 0.3,
    queue: bool = False,
    by_id: bool = False,
) -> Iterator[DeskRow]:
    """`size` rows with different prompts (in a `queue`: different desks).

    `min_steps`, `max_steps`: calls of the gold policy, done() included.
    `num_records`: at least so many, bystanders included. `terse`: observations of at most 25 tokens instead of 60.
    `forbid`: share of the tasks in which a tool they do not need is forbidden. `queue`: jobs are handed out one by one.
    `by_id`: they name records by their ids, so that nothing is searched for. `kinds`: a list, or a text with commas.
    Raises RecipeError.
    """
    kinds = [kind.strip() for kind in kinds.split(",")] if isinstance(kinds, str) else kinds
    kinds = [kind for kind in kinds if kind in SWEEPS] if by_id and kinds == KINDS else kinds
    check(size, min_steps, max_steps, num_records, kinds, forbid, by_id)
    rng = random.Random(f"desk {seed}")
    options, last = shapes(kinds, queue, by_id), 0 if queue else 1  # one done() for all jobs
    sums = reachable({length for *_, length in options}, max_steps - last)
    steps = [total + last for total in sorted(sums) if min_steps <= total + last and total]
    if not steps:
        raise RecipeError(f"desk: no job of kinds {list(kinds)} takes {min_steps} to {max_steps} steps; widen the range")
    known: set[str] = set()
    for number in range(size):
        for _ in range(100):
            row = make_row(rng, rng.choice(steps), options, sums, num_records, forbid, queue)
            what = row["prompt"] + str(row["records"]) * queue  # a queue's first job comes with many a desk
            if what not in known:
                break
        else:
            raise RecipeError(
                f"desk: size = {size} is more than there are different prompts ({number}); raise max_steps or add kinds"
            )
        known.add(what)
        yield {**row, "terse": terse}


def check(
    size: int, min_steps: int, max_steps: int, num_records: int, kinds: Sequence[str], forbid: float, by_id: bool
) -> None:
    if size < 0:
        raise RecipeError(f"desk: size = {size} must be 0 or more")
    if not 3 <= min_steps <= max_steps <= MAX_STEPS:
        raise RecipeError(f"desk: {min_steps} to {max_steps} steps must lie between 3 and {MAX_STEPS}, min_steps first")
    if not 1 <= num_records <= 300:
        raise RecipeError(f"desk: num_records = {num_records} must be 1 to 300; 20 works")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise RecipeError(f"desk: kinds = {list(kinds)} must be one or more of {', '.join(KINDS)}")
    if by_id and not {*kinds} <= {*SWEEPS}:
        raise RecipeError(f"desk: by_id leaves only the kinds {', '.join(SWEEPS)}; name some of these, or leave kinds out")
    if not 0 <= forbid <= 1:
        raise RecipeError(f"desk: forbid = {forbid} is a share of the tasks, 0 to 1; 0.3 works")


def make_row(
    rng: random.Random,
    steps: int,
    options: Sequence[tuple[str, int, int]],
    sums: set[int],
    num_records: int,
    forbid: float,
    queue: bool,
) -> DrawnRow:
    """A task whose plan has exactly this many steps."""
    draft, jobs, kinds, left = Draft(rng), [], [], steps if queue else steps - 1
    for _ in range(rng.randint(1, 3)):
        draft.add("customers", {"name": next(draft.names)})
    while left:
        fitting = [one for one in options if left - one[2] in sums]
        kind = rng.choice(sorted({one[0] for one in fitting}))
        _, count, length = rng.choice([one for one in fitting if one[0] == kind])
        jobs.append(sweep(draft, SWEEPS[kind], count) if kind in SWEEPS else _PLAIN[kind](draft))
        kinds.append(kind)
        left -= length
    fill(draft, num_records)
    done: Call = ("done", {})
    plan = [call for job in jobs for call in (*job.plan, *([done] if queue else []))] + ([] if queue else [done])
    used = {name for name, _ in plan}
    spare = [tool for tool in ("delete", "refund", "create") if tool not in used]
    forbidden = [rng.choice(spare)] if spare and rng.random() < forbid else []
    texts, rules = [job.text for job in jobs], [f"You must not {tool}." for tool in forbidden]
    return {
        "prompt": " ".join([*(texts[:1] if queue else texts), *rules]),
        "later": texts[1:] if queue else [],
        "records": {
            table: dict(sorted(rows.items(), key=lambda item: int(item[0]))) for table, rows in draft.tables.items()
        },
        "wanted": [*chain.from_iterable(job.wanted for job in jobs)],
        "plan": [[name, arguments] for name, arguments in plan],
        "steps": steps,
        "kinds": kinds,
        "forbidden": forbidden,
    }


_PLAIN: Mapping[str, Callable[[Draft], Job]] = {"create": create, "phone": phone, "asked": asked}


def fill(draft: Draft, num_records: int) -> None:
    """Bystanders: nobody asks for them, and some look just like what somebody asks for."""
    while draft.num_records < num_records:
        table = draft.rng.choice(("orders", "tickets"))
        free = [one for one in draft.tables["customers"] if (one, table) not in draft.taken]
        crowded = 5 * len(draft.tables["customers"]) > draft.num_records
        if not free or (not crowded and draft.rng.random() < 0.5):
            if (name := next(draft.names, None)) is None:
                return
            draft.add("customers", {"name": name})
        elif table == "orders":
            draft.order(draft.rng.choice(free))
        else:
            draft.ticket(draft.rng.choice(free), subject=draft.rng.choice([*SUBJECTS, "spam"]))


def compare(task: Task, start: State, now: State) -> tuple[list[bool], set[tuple[str, str]]]:
    """(for each wanted change whether its row is exactly as wanted, rows that differ in a way nobody asked for).

    Looks at every row of every table. A row on its way (one of two wanted fields set) is neither.
    """
    wanted = task.columns["wanted"]
    made, unwanted = [False] * len(wanted), set()
    before, after = start["tables"], now["tables"]
    for table in sorted({*before, *after}):
        old, new = before.get(table, {}), after.get(table, {})
        for number in sorted({*old, *new}, key=int):
            if old.get(number) != new.get(number):
                at, holds, stray = judge(wanted, made, table, number, old.get(number), new.get(number))
                if holds:
                    made[at] = True
                elif stray:
                    unwanted.add((table, number))
    return made, unwanted


def judge(
    wanted: Sequence[Mapping[str, Any]], made: Sequence[bool], table: str, number: str, old: Row | None, new: Row | None
) -> tuple[int, bool, bool]:
    """(which change explains this row, it is exactly as wanted, it is different in a way nobody asked for)."""
    for at, change in enumerate(wanted):
        if change["table"] != table or made[at]:
            continue
        if change["id"] is None and old is None and new == change["set"]:
            return at, True, False
        if change["id"] == number and old is not None:
            goal = None if change["set"] is None else {**old, **change["set"]}
            stray = goal is None or new is None or any(new[key] != old[key] and new[key] != goal[key] for key in new)
            return at, new == goal, stray
    return -1, False, True
