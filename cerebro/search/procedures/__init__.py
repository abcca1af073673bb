"""Cerebro's own procedures, one file each. `procedure_of` creates the procedure of a request, for `Search`."""

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
from cerebro.search.procedures.fixed import FixedSearch, RandomSearch
from cerebro.search.procedures.hyperband import HyperbandSearch
from cerebro.search.procedures.pbt import PbtSearch

VERSION = 1
"""Version of all procedures. Increase it with every change to their actions."""


def procedure_of(choice: ProcedureChoice, user_procedure: Procedure | None = None) -> Procedure:
    """Return a new procedure for a request.

    Args:
        user_procedure: the user's procedure or its stand-in, for an `OwnProcedure` request.

    Raises:
        SearchError: the version differs from `VERSION`, or `user_procedure` is missing.
    """
    if choice.version != VERSION:
        raise SearchError(
            f"the search uses version {choice.version} of the procedure {choice.kind!r}, here is version {VERSION}: "
            "continue with the version of Cerebro that began the run, or start a new run"
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
            if user_procedure is None:
                raise SearchError(f"the procedure {choice.name!r} is user code, which only workers open")
            return user_procedure
