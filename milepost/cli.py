"""The command line. Heavy imports happen inside the commands, so that `--help` is instant.

Exit codes: 0 done, 1 training stopped itself, 2 something the user can fix (one sentence says what), 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import atexit
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from milepost import __version__
from milepost.kept import refused_exits
from milepost.tune import tune_process
from milepost.types import MilepostError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    args = parse(argv)
    tune_process()
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may know ASCII only, and a text half a character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with refused_exits():
            return args.run(args)
    except SystemExit as error:  # of a function that a recipe names, where nobody turned it into a fact
        print(
            f"milepost: a function of yours called sys.exit({error.code!r}), which ends the command; raise an exception",
            file=sys.stderr,
        )
        return 1
    except MilepostError as error:
        print(f"milepost: {error}", file=sys.stderr)
        return 1 if type(error).__name__ == "RunStopped" else 2
    except BrokenPipeError:  # the reader of our output, such as head, has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno is None:
            raise
        print(f"milepost: {error.filename or 'the system'}: {os.strerror(error.errno)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # runs first: no other farewell is cut short
        return 130


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Overrides may stand anywhere after the recipe; argparse alone takes them only before the first flag."""
    parser = make_parser()
    args, rest = parser.parse_known_args(argv)
    strange = [word for word in rest if word.startswith("-") or "=" not in word or not hasattr(args, "overrides")]
    if strange:
        parser.error(f"unrecognized arguments: {' '.join(strange)}")
    if rest:
        args.overrides = [*args.overrides, *rest]
    return args


def make_parser() -> argparse.ArgumentParser:
    """All commands. A recipe command takes dotted overrides after the recipe: `milepost run r.toml grpo.steps=20`."""
    parser = argparse.ArgumentParser(prog="milepost", description="Trains language models and agents with GRPO.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    from milepost.explain import add_explain_parser, run_explain

    add_explain_parser(commands).set_defaults(run=run_explain)
    _recipe_commands(commands)
    _check_commands(commands)
    _run_commands(commands)
    _episode_commands(commands)
    _other_commands(commands)
    return parser


def _recipe_commands(commands: argparse._SubParsersAction) -> None:
    for name, stages, text in (
        ("run", ("sft", "grpo", "test"), "the whole recipe: warm start, GRPO, test, report"),
        ("sft", ("sft",), "the supervised warm start alone"),
        ("train", ("grpo",), "GRPO alone, from the recipe's model"),
    ):
        command = commands.add_parser(name, help=text)
        _add_recipe(command)
        command.add_argument("--profile", metavar="FILE", help="write a Perfetto trace of the run (slows it down)")
        command.set_defaults(run=run_stages, stages=stages)
    command = commands.add_parser("preflight", help="samples before training: is there anything to learn from?")
    _add_recipe(command)
    command.add_argument("--tasks", type=int, default=64, help="training tasks to sample")
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.set_defaults(run=run_preflight)
    command = commands.add_parser("eval", help="held-out success of a recipe's model, or a paired comparison within a run")
    command.add_argument("target", help="a recipe, or a run directory with --paired")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="dotted overrides of the recipe")
    command.add_argument("--split", choices=("validation", "test"), default="validation")
    command.add_argument("--paired", action="store_true", help="judge a run's test reports by the standard bar")
    command.add_argument("--before", default="", help="stage to compare from (default: sft, else base)")
    command.add_argument("--after", default="grpo", help="stage to compare to")
    command.add_argument("--control", default="", help="run directory whose last test report is the control")
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.set_defaults(run=run_eval)
    command = commands.add_parser("sweep", help="a small paired sweep: one setting's values × seeds")
    _add_recipe(command)
    command.add_argument("--over", required=True, metavar="KEY=V1,V2", help="for example optimizer.lr=5e-6,1e-5,2e-5")
    command.add_argument("--seeds", default="0,1", help="comma-separated seeds")
    command.set_defaults(run=run_sweep)
    command = commands.add_parser(
        "ablate", help="is a part of the recipe worth anything? with and without it over paired seeds"
    )
    _add_recipe(command)
    command.add_argument("--without", action="append", default=[], metavar="NAME",
                         help="a part of the reward or any key: milestones, milestones.step, kl.beta, sft")  # fmt: skip
    command.add_argument("--with", action="append", default=[], metavar="KEY=VALUE", dest="with_",
                         help="the other way round: the recipe has it not, the other arm has")  # fmt: skip
    command.add_argument("--seeds", default="0-9", help="such as 0-9 or 0,1,5; fewer than 6 show nothing")
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.set_defaults(run=run_ablate)


def _check_commands(commands: argparse._SubParsersAction) -> None:
    checks = commands.add_parser("check", help="checks before any model is loaded").add_subparsers(
        required=True, metavar="WHAT"
    )
    command = checks.add_parser("reward", help="can a failure outscore a success, is a bad answer paid? exit code 1 if so")
    _add_recipe(command)
    command.add_argument("--n", type=int, default=200, help="tasks whose answers are attacked (reward functions)")
    command.add_argument("--tasks", type=int, default=2, help="training tasks on which scripts are played")
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.set_defaults(run=run_check_reward)
    command = checks.add_parser("env", help="whether an environment keeps the contract; exit code 1 if not")
    command.add_argument("env", help="calc, desk, maze, repair, corridor, or your own as module:object or file.py:object")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="difficulty of the tasks, such as rooms=9")
    command.add_argument("--tasks", type=int, default=20, help="tasks that every policy plays")
    command.add_argument("--episodes", type=int, default=200, help="episodes that are played eight at once")
    command.add_argument("--seed", type=int, default=0, help="of the tasks")
    command.add_argument("--step-seconds", type=float, default=10.0, help="deadline of a step")
    command.add_argument("--reset-seconds", type=float, default=60.0, help="deadline of a reset")
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.set_defaults(run=run_check_env)


def _add_recipe(command: argparse.ArgumentParser) -> None:
    command.add_argument("recipe", help="TOML file; `milepost init` writes one")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="dotted overrides, such as grpo.steps=20")


def _run_commands(commands: argparse._SubParsersAction) -> None:
    for name, function, text in (
        ("resume", run_resume, "continues an interrupted run"),
        ("show", run_show, "a run on one terminal screen"),
        ("report", run_report, "writes the run's self-contained HTML report"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("folder", help="run directory")
        command.set_defaults(run=function)
    command = commands.add_parser("control", help="what a finished run's warm start becomes without GRPO, at equal cost")
    command.add_argument("folder", help="run directory")
    command.add_argument("--random", action="store_true", help="GRPO on coin-toss rewards as well")
    command.set_defaults(run=run_control)


def _episode_commands(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("replay", help="one stored episode turn by turn, or a list to choose from")
    command.add_argument("folder", help="run directory")
    command.add_argument("episode", nargs="?", help="its row, or phase/step/task/member/attempt; none: the list")
    _add_commit(command)
    won = command.add_mutually_exclusive_group()
    won.add_argument("--success", dest="success", action="store_true", default=None, help="list successes")
    won.add_argument("--failed", dest="success", action="store_false", help="list what did not succeed")
    command.add_argument("--stop", metavar="REASON", help="list episodes that ended so, such as tokens or turns")
    command.add_argument("--limit", type=int, default=20, help="most episodes listed; 0: all")
    command.add_argument("--full", action="store_true", help="long contexts and state changes in whole")
    command.set_defaults(run=run_replay)
    command = commands.add_parser("rescore", help="judges a run's stored episodes again under another reward")
    command.add_argument("folder", help="run directory")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="such as reward.milestone_cap=0.2")
    command.add_argument("--reward", metavar="TOML", help="a recipe, or a file with a [reward] section")
    _add_commit(command)
    command.add_argument("--write", metavar="NAME", help="keep the new verdicts in the run under this name")
    command.set_defaults(run=run_rescore)


def _add_commit(command: argparse.ArgumentParser) -> None:
    command.add_argument("--phase", help="only of this stage or split, such as grpo or validation")
    command.add_argument("--step", type=int, help="only of this step")


def _other_commands(commands: argparse._SubParsersAction) -> None:
    command = commands.add_parser("demo", help="the main job end to end on the embedded model")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="dotted overrides of the demo's recipe")
    command.add_argument("--controls", action="store_true", help="then the two controls at equal CPU time")
    command.set_defaults(run=run_demo)
    command = commands.add_parser("init", help="writes a commented recipe")
    command.add_argument("path", nargs="?", default="recipe.toml")
    command.set_defaults(run=run_init)
    policy = commands.add_parser("policy", help="small policies from scratch").add_subparsers(required=True, metavar="WHAT")
    command = policy.add_parser("new", help="a small random transformer with its own tokenizer, as a Hugging Face folder")
    command.add_argument("folder")
    command.add_argument("--size", default="tiny", help="tiny (0.5 M), small (1 M), medium (4 M) or large (15 M)")
    command.add_argument("--texts", help="JSONL with prompt and answer or completion: its characters are the vocabulary")
    command.add_argument("--charset", help="the characters, if not those of --texts")
    command.add_argument("--tokens", choices=("characters", "words", "pairs"), default="characters")
    command.add_argument("--seed", type=int, default=0)
    command.set_defaults(run=run_policy_new)
    bench = commands.add_parser("bench", help="what a step or a test of code costs, against its ideal")
    steps = bench.add_subparsers(required=True, metavar="WHAT")
    command = steps.add_parser("step", help="CPU-seconds per stage, memory, executed over ideal work of one GRPO step")
    command.add_argument("--model", default="smollm2-135m")
    sizes = {"--prompts": 8, "--group": 8, "--prompt-tokens": 256, "--completion-tokens": 64, "--steps": 1}
    for flag, default in sizes.items():
        command.add_argument(flag, type=int, default=default)
    command.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto", help="of the working copy")
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.set_defaults(run=run_bench_step)
    command = steps.add_parser("sandbox", help="short tests of code judged per second, against a bare interpreter for each")
    command.add_argument("--runs", type=int, default=200)
    command.add_argument("--cells", type=int, default=0, help="tests judged at once; 0: one per core")
    command.add_argument("--allow-plain", action="store_true", help="measure mere limits where nothing else works")
    command.add_argument("--json", action="store_true", help="machine-readable")
    command.set_defaults(run=run_bench_sandbox)
    command = steps.add_parser("verify", help="the mathematics verifier against bare math-verify, on labelled answers")
    command.add_argument("--workers", type=int, default=0, help="answers judged at once; 0: one per core")
    command.add_argument("--json", action="store_true", help="machine-readable, with the answers that were misjudged")
    command.set_defaults(run=run_bench_verify)
    command = commands.add_parser("play", help="a person plays one task of an environment by hand")
    command.add_argument("env", help="calc, desk, maze, repair, corridor, or your own as module:object or file.py:object")
    command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="difficulty of the task, such as rooms=9")
    command.add_argument("--seed", type=int, default=0, help="of the tasks")
    command.add_argument("--task", type=int, default=0, metavar="N", help="the N-th task of that seed, from 0")
    command.add_argument("--gold", action="store_true", help="let the environment's gold script play")
    command.set_defaults(run=run_play)
    from milepost.lab.command import add_lab_parser, run_lab_credit
    from milepost.verify import add_verify_parser, run_verify

    add_lab_parser(commands).set_defaults(run=run_lab_credit)
    add_verify_parser(commands).set_defaults(run=run_verify)
    command = commands.add_parser("info", help="versions, devices, the embedded model")
    command.set_defaults(run=run_info)


def read_recipe(args: argparse.Namespace) -> tuple:
    """(recipe, its text as given)."""
    from milepost.recipe import load_recipe

    recipe = load_recipe(args.recipe, args.overrides)
    return recipe, Path(args.recipe).read_text(encoding="utf-8")


def run_stages(args: argparse.Namespace) -> int:
    recipe, toml = read_recipe(args)  # what is wrong with it is said at once, before torch is imported
    from milepost.launch import open_session
    from milepost.profile import profiled
    from milepost.stages.pipeline import check_stages, run_pipeline

    check_stages(recipe, args.stages)
    with open_session(recipe, toml=toml, stages=args.stages) as session, profiled(args.profile):
        run_pipeline(session, stages=args.stages)
    return _finished(session.run.path)


def run_resume(args: argparse.Namespace) -> int:
    from milepost.store import Run

    with Run.open(args.folder) as run:
        recipe, stages, status = run.recipe, tuple(run.meta().get("stages", ("sft", "grpo", "test"))), run.status
    if status == "finished":
        print(f"{args.folder} is finished, so there is nothing to do; `milepost show {args.folder}` shows it")
        return 0
    from milepost.launch import open_session
    from milepost.stages.pipeline import run_pipeline

    with open_session(recipe, resume=Path(args.folder), stages=stages) as session:
        run_pipeline(session, stages=stages)
    return _finished(session.run.path)


def run_control(args: argparse.Namespace) -> int:
    from milepost.stages.controls import CONTROLS, add_controls

    add_controls(args.folder, CONTROLS if args.random else CONTROLS[:1])
    return _finished(Path(args.folder))


def _finished(path: Path) -> int:
    from milepost.report import show, write_report

    print(show(path, color=sys.stdout.isatty()))
    print(f"report: {write_report(path)}")
    return 0


def run_show(args: argparse.Namespace) -> int:
    from milepost.report import show

    print(show(args.folder, color=sys.stdout.isatty()))
    return 0


def run_replay(args: argparse.Namespace) -> int:
    from milepost.replay import episode_list, replay
    from milepost.terminal import screen

    width, color = screen(sys.stdout)
    place = {"phase": args.phase, "step": args.step, "width": width}
    if args.episode is None:
        lines = episode_list(args.folder, success=args.success, stop=args.stop, limit=args.limit, **place)
    else:
        lines = replay(args.folder, args.episode, color=color, full=args.full, **place)
    for line in lines:
        print(line)
    return 0


def run_rescore(args: argparse.Namespace) -> int:
    from milepost.rescore import rescore
    from milepost.terminal import screen

    width, _ = screen(sys.stdout)
    print(rescore(args.folder, args.reward, args.overrides, phase=args.phase, step=args.step, write=args.write,
                  width=width))  # fmt: skip
    return 0


def run_report(args: argparse.Namespace) -> int:
    from milepost.report import write_report

    print(write_report(args.folder))
    return 0


def run_check_reward(args: argparse.Namespace) -> int:
    recipe = read_recipe(args)[0]
    from milepost.health.order import check_recipe
    from milepost.health.verifier_audit import audit_recipe

    order = check_recipe(recipe, num_tasks=args.tasks)
    audit = None if recipe.env.name else audit_recipe(recipe, num_tasks=args.n)  # environments: their scripts are played
    if args.json:
        print(order.json(verifier=audit.facts() if audit else None))
    else:
        print(order.text() + (f"\n\n{audit.text()}" if audit else ""))
    return 0 if order.ok and (audit is None or audit.ok) else 1


def run_preflight(args: argparse.Namespace) -> int:
    recipe, toml = read_recipe(args)
    from milepost.health.preflight import preflight
    from milepost.launch import open_session

    recipe = recipe.model_copy(update={"name": f"{recipe.name}-preflight"})  # the plain name is for the training run
    with open_session(recipe, toml=toml, stages=()) as session:
        found = preflight(session, num_tasks=args.tasks)
    print(found.json() if args.json else found.text())
    return 0


def run_eval(args: argparse.Namespace) -> int:
    from milepost.stages.compare import compare_run, evaluate_recipe

    if args.paired:
        verdict = compare_run(args.target, before=args.before, after=args.after, control=args.control)
        print(verdict.json() if args.json else verdict.text)
        return 0 if verdict.passed else 1
    from milepost.recipe import load_recipe

    report = evaluate_recipe(load_recipe(args.target, args.overrides), args.split)
    print(report.text() if not args.json else report.json())
    return 0


def run_sweep(args: argparse.Namespace) -> int:
    from milepost.stages.sweep import sweep

    print(sweep(args.recipe, args.overrides, args.over, args.seeds))
    return 0


def run_ablate(args: argparse.Namespace) -> int:
    import json

    from milepost.ablation_report import text, write_page
    from milepost.stages.ablate import ablate, facts

    result = ablate(args.recipe, args.overrides, without=args.without, with_=args.with_, seeds=args.seeds)
    page = write_page(result)
    print(json.dumps(facts(result), indent=2, ensure_ascii=False) if args.json else f"{text(result)}\nreport: {page}")
    return 0


def run_demo(args: argparse.Namespace) -> int:
    from milepost.demo import demo

    return demo(args.overrides, controls=args.controls)


def run_init(args: argparse.Namespace) -> int:
    from milepost.init import write_recipe

    print(write_recipe(Path(args.path)))
    return 0


def run_policy_new(args: argparse.Namespace) -> int:
    from milepost.policy import new_policy
    from milepost.sources import texts_of

    texts = texts_of(args.texts) if args.texts else None
    count = new_policy(args.folder, texts=texts, charset=args.charset, tokens=args.tokens, size=args.size, seed=args.seed)
    print(f"{args.folder}: {count / 1e6:.2f} M parameters; set model.path = {args.folder!r}")
    return 0


def run_bench_step(args: argparse.Namespace) -> int:
    from milepost.bench import bench_step

    result = bench_step(
        args.model, num_prompts=args.prompts, group_size=args.group, prompt_tokens=args.prompt_tokens,
        completion_tokens=args.completion_tokens, steps=args.steps, precision=args.precision,
    )  # fmt: skip
    print(result.json() if args.json else result.text())
    return 0


def run_bench_sandbox(args: argparse.Namespace) -> int:
    from milepost.bench_sandbox import bench_sandbox

    result = bench_sandbox(args.runs, args.cells, allow_plain=args.allow_plain)
    print(result.json() if args.json else result.text())
    return 0


def run_bench_verify(args: argparse.Namespace) -> int:
    from milepost.bench_verify import bench_verify

    result = bench_verify(args.workers)
    print(result.json() if args.json else result.text())
    return 0 if result.ok else 1


def run_check_env(args: argparse.Namespace) -> int:
    from milepost.health.env_check import check_env, read_difficulty

    report = check_env(
        args.env, num_tasks=args.tasks, num_episodes=args.episodes, seed=args.seed, step_seconds=args.step_seconds,
        reset_seconds=args.reset_seconds, difficulty=read_difficulty(args.overrides),
    )  # fmt: skip
    print(report.json() if args.json else report.text())
    return 0 if report.ok else 1


def run_play(args: argparse.Namespace) -> int:
    from milepost.play import play

    play(args.env, seed=args.seed, number=args.task, overrides=args.overrides, gold=args.gold)
    return 0


def run_info(args: argparse.Namespace) -> int:
    from milepost.info import info

    print(info())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
