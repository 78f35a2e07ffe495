"""Write what people know about changes into the history: intended ones (`annotate`) and acknowledged ones (`ack`)."""

from __future__ import annotations

import argparse

from keras_matrix.records.appended import checked_note
from keras_matrix.runner.errors import UsageError
from keras_matrix.runner.service.notes import USES, Note


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the flags of these uses."""
    group = parser.add_argument_group("with annotate and ack")
    group.add_argument("--run", metavar="RUN", help="the first run with the change")
    group.add_argument("--note", metavar="TEXT", help="annotate: what was changed on purpose")
    group.add_argument("--reason", metavar="TEXT", help="ack: why the change is accepted")
    group.add_argument("--withdraw", action="store_true", help="remove the note of this run")


def asked(args: argparse.Namespace) -> Note | None:
    """Return the note that is asked for, if any. Raises `UsageError` for flags that do not go together."""
    use = args.words[0] if args.words[:1] and args.words[0] in USES else None
    texts = {"--note": args.note, "--reason": args.reason}
    given = {"--run": args.run, **texts, "--withdraw": args.withdraw or None}
    for flag in (flag for flag, value in given.items() if value is not None):
        users = [name for name, (_, text, _) in USES.items() if flag not in texts or flag == text]
        if use not in users:
            shown = " or ".join(f"runner history {name} CELL --run RUN {USES[name][1]} TEXT" for name in users)
            raise UsageError(f"{flag}: belongs to: {shown}")
    if use is None:
        return None
    text = texts[USES[use][1]]
    if not (args.words[1:] and args.run and (text is None) == args.withdraw):
        raise UsageError(f"{use}: needs CELL, --run RUN, and one of {USES[use][1]} TEXT and --withdraw")
    try:
        return Note(use, args.run, None if text is None else checked_note(text))
    except ValueError as error:
        raise UsageError(f"{USES[use][1]}: {error}") from error
