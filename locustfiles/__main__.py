"""`python -m locustfiles`: the suite's options. Locust answers `--help` before it has loaded a locustfile's."""

from __future__ import annotations

import configargparse  # type: ignore[import-untyped]

from locustfiles.options import add_options


def main() -> None:
    """Prints the options, beside Locust's own (`locust --help`), with the variables that may give them."""
    parser = configargparse.ArgumentParser(
        prog="locust -f locustfiles/chat.py",
        usage="%(prog)s -H URL [Locust's options] [these options]",
        add_help=False,
    )
    add_options(parser)
    parser.print_help()


if __name__ == "__main__":
    main()
