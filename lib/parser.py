"""A parser whose errors are one line. Nothing slow is imported, so that --help is quick."""

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help lists the flags)\n")
