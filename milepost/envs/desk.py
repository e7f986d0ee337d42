"""`desk`: a service desk over a real SQLite database, one per episode. Tasks of 3 to 40 steps and more. Torch-free.

    Refund the 2 late orders of Anna.    the first message
    > search("Anna late order")          order 17 Anna lamp late; order 63 Anna pen late      terse: order 17, order 63
    > read(17)                           order 17: customer Anna 12, item lamp, status late, total 48
    > refund(17)                         order 17 refunded
    > refund(63)                         order 63 refunded
    > done()                             done

Success is a row-level difference: exactly the wanted rows are as wanted, every other row of every table is as it was, and
the policy has said that it is done. Deleting a customer deletes the orders and tickets too; a refund is final.

In a queue (`queue = true` makes such tasks) the first message is the first job alone, and done() answers with the next.
"""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise, repeat
from typing import Any

from milepost.env import Cost, Environment, EnvSpec, Goal, Milestone, Observation, State, Tool
from milepost.envs.desk_tasks import MAX_CHANGES, PHRASES, compare, generate
from milepost.tools import Refused, ToolEnv, render_call
from milepost.types import DataError, Task

SYSTEM = (
    "Service desk. search takes words, such as Anna late order. update sets phone, priority or status. "
    "Change nothing that is not asked for, then call done."
)
TOOLS = (
    Tool("search", {"text": (str, True)}),
    Tool("read", {"id": (int, True)}),
    Tool("create", {"customer": (int, True), "subject": (str, True), "priority": (str, True)}),
    Tool("update", {"id": (int, True), "field": (str, True), "value": (str, True)}),
    Tool("refund", {"order": (int, True)}),
    Tool("close", {"ticket": (int, True)}),
    Tool("delete", {"id": (int, True)}),
    Tool("done", {}),
)
BY_NAME = {tool.name: tool for tool in TOOLS}

# Small pages: a snapshot is a few kB. All ids are of one series, so an id alone names a record.
SCHEMA = """
PRAGMA page_size = 1024;
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, phone TEXT NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers ON DELETE CASCADE,
    item TEXT NOT NULL, status TEXT NOT NULL CHECK (status IN ('paid', 'late', 'refunded')), total INTEGER NOT NULL);
CREATE TABLE tickets (id INTEGER PRIMARY KEY AUTOINCREMENT,
    customer INTEGER NOT NULL REFERENCES customers ON DELETE CASCADE,
    subject TEXT NOT NULL, priority TEXT NOT NULL CHECK (priority IN ('low', 'high')),
    status TEXT NOT NULL CHECK (status IN ('open', 'closed')), note TEXT NOT NULL);
CREATE VIEW lines AS
    SELECT id, 'customer' AS kind, 'customer ' || id || ' ' || name AS line FROM customers
    UNION ALL SELECT o.id, 'order', 'order ' || o.id || ' ' || name || ' ' || item || ' ' || status
        FROM orders o JOIN customers c ON c.id = o.customer
    UNION ALL SELECT t.id, 'ticket', 'ticket ' || t.id || ' ' || name || ' ' || subject || ' ' || priority || ' ' || status
        FROM tickets t JOIN customers c ON c.id = t.customer;
"""
FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "customers": {"name": (), "phone": ()},
    "orders": {"item": (), "status": ("paid", "late")},
    "tickets": {"subject": (), "priority": ("low", "high"), "status": ("open", "closed"), "note": ()},
}
"""What update may set, and to what; (): any short text."""

WORDS = " ".join([SYSTEM, *(tool.signature() for tool in TOOLS), PHRASES])
"""Every word of prompts, calls and observations of this desk: texts for a policy that knows words."""

HITS, TERSE_HITS = 4, 3
"""Records that a search shows. No job treats more than three alike."""
MAX_VALUE = 16
MAX_CREATED = 30
"""More than any task wants; without it a loop could fill the memory."""


class Desk(ToolEnv):
    """One desk. The task holds the records; `seed` decides what no task depends on: phones and totals."""

    tools = TOOLS
    _connection: sqlite3.Connection | None = None

    def reset(self, task: Task, seed: int) -> Observation:
        if missing := [column for column in ("records", "wanted") if column not in task.columns]:
            raise DataError(f"desk: task {task.key} has no column {missing[0]}; take its rows from desk's own generator")
        self._connect()
        self.opened: set[int] = set()
        self.num_calls = self.num_handed = 0
        records, rng = task.columns["records"], random.Random(f"desk {seed} {task.key}")
        self._db.executescript(SCHEMA)
        for table in FIELDS:
            for number, row in records[table].items():
                self._insert(table, {"id": int(number), **row, **_by_chance(table, rng)})
        used = max((int(number) for rows in records.values() for number in rows), default=0)
        # New ids begin at a power of ten, so that they say nothing about how many records there are.
        self._db.execute("INSERT OR REPLACE INTO sqlite_sequence (rowid, name, seq) VALUES (1, 'tickets', ?)",
                         (10 ** len(str(used)) - 1,))  # fmt: skip
        self._db.commit()
        return super().reset(task, seed)

    def state(self) -> State:
        """tables: table → id → row, of every table in the database. read: ids of records looked at. calls: carried out.
        handed: later jobs of a queue that were handed out."""
        names = self._db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
        tables = {name: self._rows(name) for (name,) in names}
        facts = {"read": sorted(self.opened), "done": self.over, "calls": self.num_calls, "next_id": self._next_id(),
                 "handed": self.num_handed}  # fmt: skip
        return {"tables": tables, **facts}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def snapshot(self) -> bytes:
        """A line of JSON (the task, what was read), then the database itself."""
        assert self.task is not None, "snapshot before reset"
        task = {"key": self.task.key, "prompt": self.task.prompt, "columns": self.task.columns}
        facts = {"task": task, "read": sorted(self.opened), "calls": self.num_calls, "over": self.over,
                 "handed": self.num_handed}  # fmt: skip
        return json.dumps(facts).encode() + b"\n" + self._db.serialize()

    def restore(self, saved: bytes) -> None:
        line, _, database = saved.partition(b"\n")
        facts = json.loads(line)
        self._open(Task(**facts["task"]))
        self._connect()
        self._db.deserialize(database)
        self.opened, self.num_calls, self.over = set(facts["read"]), facts["calls"], facts["over"]
        self.num_handed = facts["handed"]

    # --- tools: everything is checked first, then one transaction changes the world --------------------------------------

    def do_search(self, text: str) -> str:
        words = [_SINGULAR.get(word, word) for word in text.lower().split()]
        if not 1 <= len(words) <= 8:
            raise Refused("give 1 to 8 words")
        self.num_calls += 1
        tests = " AND ".join(["instr(' ' || lower(line) || ' ', ?)"] * len(words))
        query = f"SELECT id, kind, line FROM lines WHERE {tests} ORDER BY id"
        hits = self._db.execute(query, [f" {word} " for word in words]).fetchall()
        most = TERSE_HITS if self._terse else HITS
        shown = [f"{kind} {number}" if self._terse else line for number, kind, line in hits[:most]]
        more = f" +{len(hits) - most}" if len(hits) > most else ""
        return (", " if self._terse else "; ").join(shown) + more or "nothing found"

    def do_read(self, id: int) -> str:
        table, row = self._find(id)
        self.num_calls += 1
        self.opened.add(id)
        name = self._find(row["customer"])[1]["name"] if "customer" in row else ""
        return _shown(table, id, row, name, self._terse)

    def do_create(self, customer: int, subject: str, priority: str) -> str:
        self._find(customer, "customers")
        _check_value("tickets", "subject", subject)
        _check_value("tickets", "priority", priority)
        assert self.task is not None
        if len(self._rows("tickets")) >= len(self.task.columns["records"]["tickets"]) + MAX_CREATED:
            raise Refused("too many tickets")
        number = self._next_id()
        row = {"customer": customer, "subject": subject, "priority": priority, "status": "open", "note": ""}
        self._insert("tickets", {"id": number, **row})
        return self._changed(f"ticket {number} created")

    def do_update(self, id: int, field: str, value: str) -> str:
        table, row = self._find(id)
        if field not in FIELDS[table]:
            raise Refused(f"the fields of {id} are {', '.join(FIELDS[table])}")
        _check_value(table, field, value)
        if row[field] == value:
            raise Refused(f"{field} of {id} is {value} already")
        if table == "orders" and field == "status" and row["status"] == "refunded":
            raise Refused("a refund is final")
        return self._set(table, id, field, value)

    def do_refund(self, order: int) -> str:
        return self._set("orders", order, "status", "refunded")

    def do_close(self, ticket: int) -> str:
        return self._set("tickets", ticket, "status", "closed")

    def do_delete(self, id: int) -> str:
        table, _ = self._find(id)
        self._db.execute(f"DELETE FROM {table} WHERE id = ?", (id,))
        return self._changed(f"{_KIND[table]} {id} deleted")

    def do_done(self) -> str:
        self.num_calls += 1
        assert self.task is not None
        later = self.task.columns.get("later", ())
        if self.num_handed < len(later):
            self.num_handed += 1
            return str(later[self.num_handed - 1])
        self.over = True
        return "done"

    # --- the database ----------------------------------------------------------------------------------------------------

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise RuntimeError("this desk is closed; reset it first")
        return self._connection

    @property
    def _terse(self) -> bool:
        return self.task is not None and bool(self.task.columns.get("terse"))

    def _connect(self) -> None:
        self.close()
        # Calls come one after the other, but from whichever thread enforces their deadline.
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._connection.execute("PRAGMA foreign_keys = ON")

    def _insert(self, table: str, row: dict[str, Any]) -> None:
        marks = ", ".join("?" * len(row))
        self._db.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])

    def _set(self, table: str, number: int, field: str, value: str) -> str:
        _, row = self._find(number, table)
        if row[field] == value:
            raise Refused(f"{_KIND[table]} {number} is {value} already")
        self._db.execute(f"UPDATE {table} SET {field} = ? WHERE id = ?", (value, number))
        return self._changed(f"{_KIND[table]} {number} {value if field == 'status' else 'updated'}")

    def _changed(self, answer: str) -> str:
        self._db.commit()
        self.num_calls += 1
        return answer

    def _find(self, number: int, table: str | None = None) -> tuple[str, dict[str, Any]]:
        """(table, row without its id) of a record. Refused if there is none, or it is of another table than this."""
        for name in FIELDS:
            found = self._db.execute(f"SELECT * FROM {name} WHERE id = ?", (number,))
            row = found.fetchone()
            if row and table in (None, name):
                return name, {column[0]: value for column, value in zip(found.description, row) if column[0] != "id"}
            if row:
                raise Refused(f"{number} is in {name}, not in {table}")
        raise Refused(f"there is no record {number}")

    def _rows(self, table: str) -> dict[str, dict[str, Any]]:
        found = self._db.execute(f'SELECT rowid, * FROM "{table}" ORDER BY rowid')
        columns = [column[0] for column in found.description]
        return {str(row[0]): {key: value for key, value in zip(columns[1:], row[1:]) if key != "id"} for row in found}

    def _next_id(self) -> int:
        return self._db.execute("SELECT seq + 1 FROM sqlite_sequence WHERE name = 'tickets'").fetchone()[0]


_KIND = {"customers": "customer", "orders": "order", "tickets": "ticket"}
_SINGULAR = dict(_KIND)


def _shown(table: str, number: int | str, row: Mapping[str, Any], name: str, terse: bool) -> str:
    """One record as reading it shows it; `name`: its customer's."""
    fields = {field: value for field, value in row.items() if value != ""}
    if "customer" in fields:
        fields = {"customer": f"{name} {fields.pop('customer')}".strip(), **fields}
    head = f"{_KIND[table]} {number}"
    if terse:
        return " ".join([head, *map(str, fields.values())])
    return f"{head}: " + ", ".join(f"{field} {value}" for field, value in fields.items())


def _by_chance(table: str, rng: random.Random) -> dict[str, Any]:
    """What the seed decides. Phones stay below those that tasks ask for."""
    if table == "customers":
        return {"phone": str(rng.randrange(1000, 5000))}
    return {"total": rng.randrange(10, 100)} if table == "orders" else {}


def _check_value(table: str, field: str, value: str) -> None:
    choices = FIELDS[table][field]
    if choices and value not in choices:
        raise Refused(f"{field} is {' or '.join(choices)}")
    if not (value.isascii() and value.isprintable() and value.strip() and len(value) <= MAX_VALUE):
        raise Refused(f"{field} is 1 to {MAX_VALUE} plain characters")


# --- what counts ---------------------------------------------------------------------------------------------------------


def finished(task: Task, start: State, now: State) -> bool:
    """Said to be done, every wanted row exactly as wanted, and no other row of any table different."""
    made, unwanted = compare(task, start, now)
    return bool(now["done"]) and all(made) and not unwanted


def _read_right(task: Task, before: State, after: State) -> bool:
    """A record was opened that is to be changed, or the customer for whom one is to be created."""
    right = {int(change["id"] or change["set"]["customer"]) for change in task.columns["wanted"]}
    return bool(right & {*after["read"]} - {*before["read"]})


def _change(index: int) -> Milestone:
    def made(task: Task, start: State, now: State) -> bool:
        return index < len(task.columns["wanted"]) and compare(task, start, now)[0][index]

    return Milestone(f"change_{index + 1}", made, kind="state")


def _calls(task: Task, states: Sequence[State]) -> float:
    return states[-1]["calls"] - states[0]["calls"]


def _damage(task: Task, states: Sequence[State]) -> float:
    """Rows that came to differ in a way nobody asked for; one that is repaired and damaged again counts twice."""
    unwanted = [compare(task, states[0], state)[1] for state in states]
    return float(sum(len(after - before) for before, after in pairwise(unwanted)))


def summed_up(task: Task, start: State, now: State) -> str:
    """The job of a queue that is under way, the records that were read, and all that was changed, by the policy that is
    told. What it may never have seen is left out: the name behind a ticket's number that it wrote, records that went with
    their customer.

    read: order 17: customer Anna 12, item lamp, status late, total 48
    updated: order 63 status refunded
    created: ticket 100: customer 12, subject login, priority high, status open
    """
    said: dict[str, list[str]] = {"job": [], "read": [], "updated": [], "created": [], "deleted": []}
    said["job"] += task.columns.get("later", [])[: now["handed"]][-1:]
    customers, terse = now["tables"]["customers"], bool(task.columns.get("terse"))
    for table, rows in now["tables"].items():
        for number, row in rows.items():
            before = start["tables"][table].get(number)
            if int(number) in now["read"]:
                name = customers[str(row["customer"])]["name"] if "customer" in row else ""
                said["read"].append(_shown(table, number, row, name, terse))
            if before is None:
                said["created"].append(_shown(table, number, row, "", terse))
            elif fields := [f"{field} {value}" for field, value in row.items() if value != before[field]]:
                said["updated"].append(f"{_KIND[table]} {number} {', '.join(fields)}")
        said["deleted"] += [f"{_KIND[table]} {number}" for number, row in start["tables"][table].items()
                            if number not in rows and str(row.get("customer", "")) in ("", *customers)]  # fmt: skip
    return "\n".join(f"{what}: {'; '.join(records)}" for what, records in said.items() if records) or "nothing updated"


# --- scripted policies ---------------------------------------------------------------------------------------------------


def _say(name: str, **arguments: Any) -> str:
    return render_call(name, arguments, tool=BY_NAME[name])


def _gold(task: Task, env: Environment) -> Iterator[str]:
    return (_say(name, **arguments) for name, arguments in task.columns["plan"])


def _empty(task: Task, env: Environment) -> Iterator[str]:
    return repeat("", 5)


def _claim(task: Task, env: Environment) -> Iterator[str]:
    yield from repeat("Step 1 done. All records were changed as asked; success.\n" + _say("done"), 40)


def _loop(task: Task, env: Environment) -> Iterator[str]:
    return repeat(_say("search", text="late order"), 40)


def _half(task: Task, env: Environment) -> Iterator[str]:
    yield from islice(_gold(task, env), len(task.columns["plan"]) // 2)
    yield _say("done")


def _touch(task: Task, env: Environment) -> Iterator[str]:
    """All that is asked, and one thing more: no task asks for a name."""
    yield from islice(_gold(task, env), len(task.columns["plan"]) - 1)
    yield _say("update", id=_ids(env, "customers")[-1], field="name", value="Nobody")
    yield _say("done")


def _undo_redo(task: Task, env: Environment) -> Iterator[str]:
    """Makes a wanted change (or any, if none can be undone) and takes it back, again and again."""
    changes = [(int(one["id"]), one["set"]) for one in task.columns["wanted"] if one["id"] and one["set"]]
    undoable = [(number, fields) for number, fields in changes if "refunded" not in fields.values()]
    number, fields = next(iter(undoable), (_ids(env, "customers")[0], {"phone": "9999"}))
    field, value = next(iter(fields.items()))
    old = next(rows[str(number)][field] for rows in _state(env)["tables"].values() if str(number) in rows)
    for _ in range(6):
        yield _say("update", id=number, field=field, value=value)
        yield _say("update", id=number, field=field, value=old)
    yield _say("done")


def _delete_all(task: Task, env: Environment) -> Iterator[str]:
    for number in [*_ids(env, "tickets"), *_ids(env, "orders"), *_ids(env, "customers")]:
        yield _say("delete", id=number)
    yield _say("done")


def _random(task: Task, env: Environment) -> Iterator[str]:
    """30 calls that can be carried out, most of them changes."""
    rng = random.Random(f"desk random {task.key}")
    for _ in range(30):
        pick = {table: rng.choice(numbers) for table in FIELDS if (numbers := _ids(env, table))}
        any_id, word = rng.choice([*pick.values()] or [0]), rng.choice(("late order", "open ticket", "customer"))
        calls = [
            _say("search", text=word),
            _say("read", id=any_id),
            _say("create", customer=pick.get("customers", 0), subject="noise", priority=rng.choice(("low", "high"))),
            _say("update", id=pick.get("customers", 0), field="phone", value=str(rng.randrange(1000, 10000))),
            _say("refund", order=pick.get("orders", 0)),
            _say("close", ticket=pick.get("tickets", 0)),
            _say("delete", id=any_id),
        ]
        yield rng.choice(calls)
    yield _say("done")


def _state(env: Environment) -> State:
    return env.state()


def _ids(env: Environment, table: str) -> list[int]:
    return [int(number) for number in _state(env)["tables"][table]]


KNOWN_BAD = {"empty": _empty, "random": _random, "claim": _claim, "loop": _loop, "half": _half, "touch": _touch,
             "undo_redo": _undo_redo, "delete_all": _delete_all}  # fmt: skip

SPEC = EnvSpec(
    name="desk",
    version="2",
    make=Desk,
    generate=generate,
    goal=Goal(finished, ends=False),
    tools=TOOLS,
    milestones=(Milestone("read", _read_right), *map(_change, range(MAX_CHANGES))),
    costs=(Cost("calls", "call", _calls), Cost("damage", "row", _damage)),
    gold=_gold,
    known_bad=KNOWN_BAD,
    volatile=("calls", "next_id"),
    summary=summed_up,
    system=SYSTEM,
    seeded=True,
)
