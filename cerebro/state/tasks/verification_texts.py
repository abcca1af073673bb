"""Results of verifications, as text."""

from __future__ import annotations

from collections import Counter

from cerebro.state.tasks.verifications import TOLERANCE, Audit, Audits, AuditState


def result_text(audit: Audit) -> str:
    """Describe the result of one verification."""
    match audit.state:
        case AuditState.WAITING:
            return "waits to be done again"
        case AuditState.EQUAL:
            redo = audit.redos[0]
            return f"equal {'to the bit' if redo.is_exact else f'up to {TOLERANCE:g}'} on {redo.worker}"
        case AuditState.DIFFERS:
            redo = audit.redos[0]
            return f"{audit.note} on {redo.worker}; no third worker has told which of the two is wrong"
        case _:
            return audit.note


def findings(audits: Audits) -> list[Audit]:
    """Return the verifications to show: a re-execution gave another result."""
    states = (AuditState.DIFFERS, AuditState.JUDGED)
    return [audit for audit in audits.known.values() if audit.state in states]


def lines(audits: Audits) -> list[str]:
    """Describe all verifications, counts first; no lines without any."""
    counts = Counter(audit.state for audit in audits.known.values())
    nouns = {
        AuditState.EQUAL: "equal",
        AuditState.WAITING: "not done yet",
        AuditState.DROPPED: "came to nothing",
    }
    parts = [f"{counts[state]} {noun}" for state, noun in nouns.items() if counts[state]]
    if differing := findings(audits):
        parts.append(f"{len(differing)} {'differs' if len(differing) == 1 else 'differ'}")
    parts += [f"{number} not verified ({why})" for why, number in audits.unaudited.items()]
    if not parts:
        return []
    found = [f"verification: {', '.join(parts)}"]
    found += [f"{audit.sub_epoch}: {result_text(audit)}" for audit in differing]
    if audits.is_hopeless:
        found.append("no further sub-epoch is verified: the code gives another result each time")
    return found
