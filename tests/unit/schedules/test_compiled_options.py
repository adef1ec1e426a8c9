"""Options of modes under torch.compile, as users type them."""

from __future__ import annotations

import pytest

from xbench.errors import SpecError
from xbench.schedules import parse_mode


def test_the_python_reducer_is_an_option_of_ddp() -> None:
    mode = parse_mode("ddp+compile:reducer=python")
    assert (mode.carrier, mode.options) == ("ddp+compile", (("reducer", "python"),))
    assert parse_mode("ddp+compile").options == ()


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("ddp+compile:reducer=c", "reducer=c is not allowed", "reducer=python"),
        ("ddp+compile:reduce=python", "unknown option 'reduce'", "did you mean 'reducer'"),
        ("fsdp+compile:reducer=python", "takes no options", "write fsdp"),
    ],
)
def test_other_options_are_refused(text: str, message: str, hint: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_mode(text)
    assert (caught.value.hint or "").startswith(hint)
