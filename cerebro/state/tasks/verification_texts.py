"""Results of verifications, as text."""

from __future__ import annotations

from collections import Counter

from cerebro.state.tasks.verifications import TOLERANCE, Verification, Verifications, VerificationState


def result_text(verification: Verification) -> str:
    """Describe the result of one verification."""
    match verification.state:
        case VerificationState.WAITING:
            return "waits to be done again"
        case VerificationState.EQUAL:
            reexecution = verification.reexecutions[0]
            return f"equal {'to the bit' if reexecution.is_exact else f'up to {TOLERANCE:g}'} on {reexecution.worker}"
        case VerificationState.DIFFERS:
            reexecution = verification.reexecutions[0]
            return f"{verification.note} on {reexecution.worker}; no third worker has decided which of the two is wrong"
        case _:
            return verification.note


def findings(verifications: Verifications) -> list[Verification]:
    """Return the verifications to show: a re-execution gave another result."""
    states = (VerificationState.DIFFERS, VerificationState.JUDGED)
    return [verification for verification in verifications.known.values() if verification.state in states]


def lines(verifications: Verifications) -> list[str]:
    """Describe all verifications, counts first; no lines without any."""
    counts = Counter(verification.state for verification in verifications.known.values())
    nouns = {
        VerificationState.EQUAL: "equal",
        VerificationState.WAITING: "not done yet",
        VerificationState.DROPPED: "came to nothing",
    }
    parts = [f"{counts[state]} {noun}" for state, noun in nouns.items() if counts[state]]
    if differing := findings(verifications):
        parts.append(f"{len(differing)} {'differs' if len(differing) == 1 else 'differ'}")
    parts += [f"{number} not verified ({why})" for why, number in verifications.unverified.items()]
    if not parts:
        return []
    found = [f"verification: {', '.join(parts)}"]
    found += [f"{verification.sub_epoch}: {result_text(verification)}" for verification in differing]
    if verifications.is_hopeless:
        found.append("no further sub-epoch is verified: the code gives another result each time")
    return found
