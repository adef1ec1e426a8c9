"""Variables of NCCL that a rank sets, and those of its environment, which it leaves alone."""

from __future__ import annotations

from xbench.modes import MODES
from xbench.rank.session import keep_order_of_launches


def test_the_order_of_launches_is_kept_for_all_modes_and_the_record_says_so() -> None:
    environ: dict[str, str] = {}
    remark = keep_order_of_launches(environ)
    assert environ == {"NCCL_LAUNCH_ORDER_IMPLICIT": "1"}
    assert "every mode" in str(remark)


def test_an_order_that_the_environment_has_stays() -> None:
    environ = {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}
    assert keep_order_of_launches(environ) is None
    assert environ == {"NCCL_LAUNCH_ORDER_IMPLICIT": "0"}


def test_a_mode_with_communicators_of_its_own_asks_for_it() -> None:
    assert MODES.entry("spb").own_groups
    assert not MODES.entry("ddp").own_groups
