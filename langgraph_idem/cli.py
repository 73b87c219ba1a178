"""The command line of those who settle unknown outcomes: list, show, resolve."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import getpass
import json
import shlex
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from langgraph_idem import keys
from langgraph_idem.admin import LedgerAdmin, ddl, key_of, result_text
from langgraph_idem.decisions import Word, lease_end
from langgraph_idem.effects import BY_A_PERSON, Effect, Kind, State
from langgraph_idem.errors import ConfigurationError, IdempotencyError, InvalidCall
from langgraph_idem.protocols import shell_words
from langgraph_idem.resolving import check_allowed, is_open

if TYPE_CHECKING:
    from collections.abc import Callable

    from langgraph_idem.decisions import Seen
    from langgraph_idem.effects import EffectRecord

URL_VARIABLE: Final = "LANGGRAPH_IDEM_URL"
OUTCOMES: Final = tuple(sorted(str(state) for state in BY_A_PERSON))

_SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
_REASON_WIDTH: Final = 60

_FOLLOWS: Final = {
    State.SUCCEEDED: (
        "It counts as done. Whoever asks for it gets the result below; the provider is not called "
        "again. This is final."
    ),
    State.FAILED: (
        "It counts as refused. Whoever asks for it is told so; the provider is not called again. "
        "This is final."
    ),
    State.RELEASED: (
        "It counts as not done. The next one who asks for it CALLS THE PROVIDER AGAIN: say this "
        "only if you know that it did not happen and cannot happen any more."
    ),
}


@click.group(context_settings=_SETTINGS)
@click.version_option(package_name="langgraph-idem")
def cli() -> None:
    """Look at the effects of a ledger, and settle those whose outcome is unknown."""


def _on_a_ledger(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that say which ledger, and open it."""

    @click.option(
        *("--url", "url"),
        envvar=URL_VARIABLE,
        show_envvar=True,
        required=True,
        help="Database URL of the ledger, like sqlite:///shop.db.",
    )
    @click.option(
        "--prefix", default="idem_", show_default=True, help="What its tables begin with."
    )
    @click.option("--schema", help="Database schema of its tables.")
    @functools.wraps(command)
    def opened(url: str, prefix: str, schema: str | None, **rest: Any) -> Any:
        with LedgerAdmin(url, prefix=prefix, schema=schema) as admin:
            return command(admin, **rest)

    return opened


def _of_one_effect(command: Callable[..., Any]) -> Callable[..., Any]:
    scope = click.option(
        *("--scope", "scope"), default=keys.GLOBAL, show_default=True, help="Whose effect it is."
    )
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    return scope(as_json(command))


# --- list -----------------------------------------------------------------------------------------


@cli.command("list")
@click.option("--scope", help="Only effects of this scope.")
@click.option("--operation", help="Only effects of this operation.")
@click.option("--thread", "thread_id", help="Only effects that this LangGraph thread asked for.")
@click.option(
    "--state",
    type=click.Choice(["waiting", "all", *(str(state) for state in State)]),
    default="waiting",
    show_default=True,
    help="waiting: unknown outcomes, and claims whose lease is over.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 100_000),
    default=50,
    show_default=True,
    help="At most so many.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_on_a_ledger
def list_effects(
    admin: LedgerAdmin, *, state: str, limit: int, as_json: bool, **filters: str | None
) -> None:
    """List effects: by default those that wait for a person."""
    found = _found(admin, state, limit + 1, filters)
    shown, more = found[:limit], len(found) > limit
    if as_json:
        click.echo(_json([_as_dict(seen) for seen in shown]))
        return
    if not shown:
        click.echo(_nothing(state, filters))
        return
    click.echo("\n".join(_table([_row(seen) for seen in shown])))
    if more:
        click.echo(f"\nThere are more than {limit}: see them with --limit.")
    if any(is_open(seen) for seen in shown):
        click.echo(f"\nLook at one: langgraph-idem show {_name_of(shown[0].record)}")


def _found(
    admin: LedgerAdmin, state: str, limit: int, filters: dict[str, str | None]
) -> list[Seen]:
    if state == "waiting":
        return admin.waiting(limit, **filters)
    return admin.effects(limit, state=None if state == "all" else state, **filters)


def _nothing(state: str, filters: dict[str, str | None]) -> str:
    among = " among those you asked for" if any(filters.values()) else ""
    if state == "waiting":
        return f"Nothing waits for a person{among}. (--state all lists every effect.)"
    return f"There are no effects{among}." if state == "all" else f"No effect is {state}{among}."


_HEAD: Final = ("OPERATION", "KEY", "SCOPE", "STATE", "SINCE (UTC)", "TRIES", "THREAD", "REASON")


def _row(seen: Seen) -> tuple[str, ...]:
    record = seen.record
    reason = _clean(record.reason or "")
    return (
        _clean(record.operation),
        _clean(record.key),
        _clean(record.scope),
        _standing(seen),
        f"{record.began_at:%Y-%m-%d %H:%M:%S}",
        str(record.attempts),
        _clean(record.origin.thread_id or "-"),
        reason if len(reason) <= _REASON_WIDTH else f"{reason[: _REASON_WIDTH - 1]}…",
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    """Lay rows out in columns; one that says the same of all is left out, but not the key."""
    columns = [
        column
        for column in zip(_HEAD, *rows, strict=True)
        if column[0] not in {"SCOPE", "THREAD", "REASON"} or set(column[1:]) - {"global", "-", ""}
    ]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]


# --- show -----------------------------------------------------------------------------------------


@cli.command()
@click.argument("operation")
@click.argument("key", nargs=-1, required=True)
@_of_one_effect
@_on_a_ledger
def show(
    admin: LedgerAdmin, *, operation: str, key: tuple[str, ...], scope: str, as_json: bool
) -> None:
    """Show all that is known of one effect. Several KEY words are the parts of one key."""
    seen = _sought(admin, scope, operation, key_of(key))
    if as_json:
        click.echo(_json(_as_dict(seen)))
        return
    click.echo("\n".join(_described(seen)))
    click.echo(f"\n{_advice(seen)}")


def _sought(admin: LedgerAdmin, scope: str, operation: str, key: str) -> Seen:
    """Find an effect, or say where else there is one of that name."""
    seen = admin.effect(scope, operation, key)
    if seen is not None:
        return seen
    if others := admin.scopes_of(operation, key):
        hint = f"but in {', '.join(others)}: add --scope {shlex.quote(others[0])}."
    else:
        hint = "nor in any other. `langgraph-idem list --state all` shows what there is."
    raise _refusal(f"There is no effect {operation} for {key} in the scope {scope}, {hint}")


def _described(seen: Seen) -> list[str]:
    record = seen.record
    told = {name: value for name, value in _facts(seen).items() if value is not None}
    width = max(map(len, told))
    lines = [f"  {name.ljust(width)}  {value}" for name, value in told.items()]
    return [
        f"{_clean(record.operation)} for {_clean(record.key)} is {_standing(seen).upper()}",
        *lines,
    ]


def _facts(seen: Seen) -> dict[str, str | None]:
    record, remote = seen.record, seen.record.kind is Kind.REMOTE
    effect = Effect(record.scope, record.operation, record.key)
    return {
        "scope": _clean(record.scope),
        "arguments": _arguments(record),
        "first tried": _when(record.began_at, seen.now),
        "last tried": _when(record.sent_at, seen.now) if _was_sent_again(record) else None,
        "attempts": str(record.attempts),
        "lease": _lease(seen) if record.state is State.CLAIMED else None,
        ("unknown since" if record.state is State.UNKNOWN else "settled"): (
            _when(record.settled_at, seen.now) if record.settled_at else None
        ),
        "reason": _text(record.reason),
        "late answer": _text("it happened" if record.evidence == "" else record.evidence),
        "result": _text(record.result),
        "asked for by": _origin(record),
        "resolved by": _text(record.resolved_by),
        "note": _text(record.note),
        "idempotency key": effect.idempotency_key if remote else None,
        "the same as UUID": str(effect.idempotency_uuid) if remote else None,
    }


def _was_sent_again(record: EffectRecord) -> bool:
    """Tell whether a later attempt set out to do it, rather than only look it up."""
    return record.sent_at - record.began_at >= dt.timedelta(seconds=1)


def _arguments(record: EffectRecord) -> str:
    if record.arguments is None:
        return "not kept (the ledger was made with keep_arguments=False)"
    arguments = json.loads(record.arguments)
    return _clean(
        ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()
        )
    )


def _lease(seen: Seen) -> str:
    end = lease_end(seen.record)
    if end is None:
        return "has no end: nobody takes this up again by itself"
    over = "ended" if end <= seen.now else "the attempt is presumed alive until"
    return f"{over} {end:%Y-%m-%d %H:%M:%S} UTC"


def _origin(record: EffectRecord) -> str | None:
    origin = record.origin
    parts = {
        "thread": origin.thread_id,
        "message": origin.message_id,
        "tool call": origin.tool_call_id,
    }
    return _clean(", ".join(f"{name} {value}" for name, value in parts.items() if value)) or None


def _advice(seen: Seen) -> str:
    """Say what can be done about an effect."""
    record = seen.record
    name = _name_of(record)
    if is_open(seen):
        return (
            "Find out at the provider (look for the idempotency key, the arguments, the time), "
            f"then say what you found:\n  langgraph-idem resolve {name} succeeded    it happened\n"
            f"  langgraph-idem resolve {name} failed       it did not, and shall not\n"
            f"  langgraph-idem resolve {name} released     it did not, and may be tried again"
        )
    if record.state is State.CLAIMED:
        return "An attempt may be alive: wait until its lease is over."
    if record.state is State.RELEASED:
        return "Nothing is to be done: the next one who asks for it tries again."
    return "Nothing is to be done: this is final."


# --- resolve --------------------------------------------------------------------------------------


@cli.command()
@click.argument("operation")
@click.argument("words", nargs=-1, required=True, metavar="KEY... OUTCOME")
@click.option("--result", "result", help="JSON: what the tool would have returned.")
@click.option("--note", help="Why; kept with the effect.")
@click.option("--by", help="Who says so; kept with the effect.  [default: your user's name]")
@click.option("--yes", is_flag=True, help="Do not ask before writing.")
@_of_one_effect
@_on_a_ledger
def resolve(
    admin: LedgerAdmin,
    *,
    operation: str,
    words: tuple[str, ...],
    scope: str,
    result: str | None,
    note: str | None,
    by: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Settle an unknown outcome by your word.

    OUTCOME is the last word: succeeded (it happened), failed (it did not, and shall not) or
    released (it did not, and may be tried again). The words before it are the parts of the key.
    """
    *parts, said = words
    word = Word(_outcome(said, parts), _result(operation, said, result), by or _user(), note)
    key = key_of(tuple(parts))
    seen = _sought(admin, scope, operation, key)
    check_allowed(seen, operation, key, word)
    if not yes:
        _ask(seen, word)
    settled = admin.resolve(seen.record, word)
    if as_json:
        click.echo(_json(_record_as_dict(settled)))
        return
    click.echo(f"{_clean(f'{operation} for {key}')} is {settled.state} now.")
    if settled.origin.thread_id:
        thread = _clean(settled.origin.thread_id)
        click.echo(f"The thread {thread} goes on from it when it is resumed or recovered.")


def _outcome(said: str, parts: list[str]) -> State:
    if said not in OUTCOMES:
        raise click.UsageError(
            f"The last word is the outcome: {', '.join(OUTCOMES)}; {said!r} is none of them."
        )
    if not parts:
        raise click.UsageError(f"Of which effect? Write its key before {said!r}.")
    return State(said)


def _result(operation: str, said: str, given: str | None) -> str | None:
    if given is None:
        return None
    if said != State.SUCCEEDED.value:
        raise click.UsageError(f"--result is for what succeeded; what {said} has no result.")
    try:
        value = json.loads(given, parse_constant=_no_json)
    except ValueError:
        example = shlex.quote(json.dumps(given, ensure_ascii=False))
        raise click.UsageError(
            f"--result is JSON, and this is none: {given}. A text has quotes of its own: --result "
            f"{example}"
        ) from None
    return result_text(operation, value)


def _no_json(constant: str) -> NoReturn:
    raise ValueError(constant)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name; the latter since Python 3.13
        raise click.UsageError("Your user has no name here; say who you are with --by.") from None


def _ask(seen: Seen, word: Word) -> None:
    """Show the effect and what will follow, and ask; leave if the answer is no."""
    for line in _described(seen):
        click.echo(line, err=True)
    click.echo(f"\nYou say that it {_said(word.outcome)}. {_FOLLOWS[word.outcome]}", err=True)
    if word.outcome is State.SUCCEEDED:
        click.echo(
            f"  result  {_clean(word.result or 'none given: the tool returns None')}", err=True
        )
    click.echo(
        f"  by      {_clean(word.by or '')}\n  note    {_clean(word.note or '-')}\n", err=True
    )
    try:
        agreed = click.confirm("Write this down?", err=True)
    except click.Abort:
        click.echo(err=True)
        agreed = False
    if not agreed:
        raise _refusal("Nothing was changed. (--yes answers the question beforehand.)")


def _said(outcome: State) -> str:
    return {State.SUCCEEDED: "happened", State.FAILED: "did not happen, and shall not"}.get(
        outcome, "did not happen, and may be tried again"
    )


# --- tables ---------------------------------------------------------------------------------------


@cli.command()
@_on_a_ledger
def migrate(admin: LedgerAdmin) -> None:
    """Make the ledger's tables, or bring older ones up to date."""
    before, now = admin.migrate()
    if before == now:
        click.echo(f"The ledger's tables are at version {now} already.")
    else:
        made = "made" if before == 0 else f"brought from version {before}"
        click.echo(
            f"The ledger's tables are {made}{' at' if before == 0 else ' to'} version {now}."
        )


@cli.command("schema")
@click.argument("dialect", type=click.Choice(["sqlite", "postgresql", "mysql", "mariadb"]))
@click.option("--prefix", default="idem_", show_default=True, help="What the tables begin with.")
@click.option("--schema", help="Database schema of the tables.")
def print_schema(dialect: str, prefix: str, schema: str | None) -> None:
    """Print the SQL that makes a ledger's tables, without touching a database."""
    for statement in ddl(dialect, prefix=prefix, schema=schema):
        click.echo(f"{statement}\n")


# --- words ----------------------------------------------------------------------------------------


def _standing(seen: Seen) -> str:
    record = seen.record
    if record.state is not State.CLAIMED:
        return str(record.state)
    if record.lease_seconds is None:
        return "claimed, no lease"
    return "claimed, lease over" if is_open(seen) else "claimed"


def _name_of(record: EffectRecord) -> str:
    return _clean(shell_words(record))


def _when(instant: dt.datetime, now: dt.datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC ({_ago(now - instant)} ago)"


def _ago(passed: dt.timedelta) -> str:
    seconds = max(0, int(passed.total_seconds()))
    for name, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {name}"
    return f"{seconds} seconds"


def _text(text: str | None) -> str | None:
    return None if text is None else _clean(text)


def _clean(text: str) -> str:
    """Write control characters as escapes: keys and reasons come from models and providers."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _as_dict(seen: Seen) -> dict[str, Any]:
    return {**_record_as_dict(seen.record), "waits_for_a_person": is_open(seen)}


def _record_as_dict(record: EffectRecord) -> dict[str, Any]:
    """Return a record as plain JSON values."""
    told = dataclasses.asdict(record)
    told |= told.pop("origin")
    effect = Effect(record.scope, record.operation, record.key)
    remote = record.kind is Kind.REMOTE
    parsed = {
        name: json.loads(told[name]) if told[name] else None
        for name in ("arguments", "result", "evidence")
    }
    parsed["has_evidence"] = record.evidence is not None  # it may say no more than "it happened"
    return {**told, **parsed, "idempotency_key": effect.idempotency_key if remote else None}


def _json(value: Any) -> str:
    def plain(other: Any) -> str:
        return other.isoformat() if isinstance(other, dt.datetime) else str(other)

    return json.dumps(value, ensure_ascii=False, indent=2, default=plain)


def _refusal(words: str) -> click.ClickException:
    return click.ClickException(_clean(words))


def main() -> None:
    """Run the command line; every error is one line and an exit code.

    0: fine. 1: refused, not found, or the database failed. 2: wrongly used.
    """
    try:
        cli()
    except IdempotencyError as error:
        click.echo(f"Error: {_clean(str(error).splitlines()[0])}", err=True)
        sys.exit(2 if isinstance(error, (ConfigurationError, InvalidCall)) else 1)
