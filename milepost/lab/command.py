"""The command `milepost lab credit`. Heavy imports happen inside, so that `--help` is instant."""

from __future__ import annotations

import argparse
import shlex


def add_lab_parser(commands: argparse._SubParsersAction) -> argparse.ArgumentParser:
    labs = commands.add_parser("lab", help="experiments that answer a question with paired evidence").add_subparsers(
        required=True, metavar="WHAT"
    )
    command: argparse.ArgumentParser = labs.add_parser(
        "credit", help="which rule of credit is worth its cost? all of them over paired seeds at equal sampled tokens"
    )
    command.add_argument("--small", action="store_true", help="minutes instead of nights, and too little to show anything")
    command.add_argument("--out", default="", help="folder; finished runs in it are never made again "
                         "(runs/lab-credit, with --small runs/lab-credit-small)")  # fmt: skip
    command.add_argument("--worlds", default="", help="of corridor,maze (all)")
    command.add_argument("--horizons", default="", help="of 10,30,100 (all)")
    command.add_argument("--rules", default="", help="of episode,discounted,turn,anchor,branch,value,critic "
                         "(all; critic at horizon 10 alone)")  # fmt: skip
    command.add_argument("--seeds", default="", help="such as 0-9 (ten; from horizon 100 on five, which only describe)")
    command.add_argument("--jobs", type=int, default=0, help="runs at a time; 0: one for each core")
    command.add_argument("--keep", action="store_true", help="keep every run's folder, not its result alone")
    command.add_argument("--tell", action="store_true", help="make nothing, and tell what is finished")
    command.add_argument("--json", action="store_true", help="machine-readable")
    return command


def run_lab_credit(args: argparse.Namespace) -> int:
    import json

    from milepost.lab.arms import plan_of
    from milepost.lab.credit import read_lab, run_lab
    from milepost.lab.page import text, write_page
    from milepost.lab.table import facts, write_files

    out = args.out or ("runs/lab-credit-small" if args.small else "runs/lab-credit")
    plan = plan_of(out, small=args.small, horizons=args.horizons, rules=args.rules, seeds=args.seeds, worlds=args.worlds)
    found = read_lab(plan) if args.tell else run_lab(plan, jobs=args.jobs or None, keep=args.keep)
    command = written(args)
    write_files(found, command)
    page = write_page(found, command)
    print(json.dumps(facts(found, command), indent=2, ensure_ascii=False) if args.json
          else f"{command}\n\n{text(found)}\nreport: {page}")  # fmt: skip
    return 0


def written(args: argparse.Namespace) -> str:
    """The command that makes these results, without what changes none of them."""
    flags = [f"--{name} {shlex.quote(value)}" for name in ("worlds", "horizons", "rules", "seeds", "out")
             if (value := getattr(args, name))]  # fmt: skip
    return " ".join(["milepost lab credit", *(["--small"] if args.small else []), *flags])
