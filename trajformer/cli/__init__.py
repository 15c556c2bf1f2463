"""The command line, `trajformer COMMAND --help`.

`commands.py` lists the commands. It is imported when `main` runs, because Ctrl-C during an import
would end with a traceback.
"""

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status. Default: the arguments of this process."""
    try:
        from trajformer.cli.commands import run_program

        return run_program(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:  # before the command has begun
        print("trajformer: interrupted; run the same command again", file=sys.stderr)
        return 130
