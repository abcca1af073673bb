"""The procedures, by the names that requests give them."""

from __future__ import annotations

from cerebro.contract.search import (
    ASHA,
    PBT,
    FixedProcedure,
    Hyperband,
    OwnProcedure,
    ProcedureChoice,
    Random,
)
from cerebro.errors import SearchError
from cerebro.search.procedure import Procedure
from cerebro.search.procedures.asha import AshaSearch
from cerebro.search.procedures.hyperband import HyperbandSearch
from cerebro.search.procedures.pbt import PbtSearch
from cerebro.search.procedures.whole import FixedSearch, RandomSearch

VERSION = 1
"""Of all that they decide: whoever changes what a procedure orders gives it a new version."""


def procedure_of(choice: ProcedureChoice, own: Procedure | None = None) -> Procedure:
    """A procedure as a request asks for it, which has not begun.

    Args:
        own: the user's, or what stands for it, where one is asked for.

    Raises:
        SearchError: its version is not the one that is here; or it is the user's own, and not given.
    """
    if choice.version != VERSION:
        raise SearchError(
            f"the search uses version {choice.version} of the procedure {choice.kind!r}, here is version {VERSION}: go "
            "on with the version of Cerebro that began the run, or start a new run"
        )
    match choice:
        case FixedProcedure():
            return FixedSearch()
        case Random():
            return RandomSearch(choice)
        case Hyperband():
            return HyperbandSearch(choice)
        case ASHA():
            return AshaSearch(choice)
        case PBT():
            return PbtSearch(choice)
        case OwnProcedure():
            if own is None:
                raise SearchError(f"the procedure {choice.name!r} is user code, which only workers open")
            return own
