"""What the tests of explanations share: the command, called in this process."""

from collections.abc import Callable

import pytest

from typedshmap.tools.cli.main import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """``typedshmap explain`` with these arguments: its exit code, and what it prints as its result and as errors."""

    def called(*arguments: object) -> tuple[int, str, str]:
        code = main(["explain", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return called
