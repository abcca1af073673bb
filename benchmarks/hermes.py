"""Hermes: time until good models reach 90% of their decrease of the loss, by policy, in virtual time.

16 jobs on 4 GPUs, 4 or 12 good, four networks, on seeds that no rule was tuned on (`research.hermes`; docs/hermes.md
separates the paper's numbers from assumptions). Hermes as published binds a job to a GPU and preempts it at any time.
`promising` preempts here, too, with one queue for all GPUs. Then, without preemption, the controller's core dispatches
sub-epochs by `promising` and by the default policy.
"""

from __future__ import annotations

from benchmarks.figure import Figure
from cerebro.scheduling.policies import DEFAULT_POLICY
from research.hermes.comparison import SCENARIOS, Row, compare
from research.hermes.job_simulation import run
from research.hermes.jobs import VARIANTS

SEEDS = range(50, 60)
FEW_BAR, MANY_BAR, VARIANT_BAR = 1.4, 1.15, 1.1
SOONER_BAR, MAKESPAN_BAR = 2.0, 1.10


def benchmark() -> list[Figure]:
    """Measure all bars."""
    found = {name: _against_hermes(name) for name in SCENARIOS}
    plain = [_figure(good, *found[f"hermes-{good}"], bar=bar) for good, bar in ((4, FEW_BAR), (12, MANY_BAR))]
    return [*plain, _variants(found), *_at_sub_epochs()]


def _against_hermes(name: str) -> tuple[Row, Row]:
    hermes, promising = compare(SCENARIOS[name], ("hermes", "promising"), seeds=SEEDS)
    return hermes, promising


def _figure(good: int, hermes: Row, promising: Row, *, bar: float) -> Figure:
    sooner = sum(theirs > ours for theirs, ours in zip(hermes.ratios, promising.ratios, strict=True))
    return Figure(
        what=f"Hermes's jobs, {good} of 16 good: time to their goal by Hermes as printed over that by promising",
        measured=f"{hermes.mean:.2f} of an oracle's, promising {promising.mean:.2f}",
        ratio=hermes.mean / promising.mean,
        bar=bar,
        sense="at least",
        notes=(f"{good} of 16: promising is sooner in {sooner} of {len(hermes.ratios)} runs",),
    )


def _variants(found: dict[str, tuple[Row, Row]]) -> Figure:
    ratios = {name: hermes.mean / promising.mean for name, (hermes, promising) in found.items()}
    varied = {name: ratio for name, ratio in ratios.items() if name.count("-") > 1}
    worst = min(varied, key=varied.__getitem__)
    note = "; ".join(
        f"{variant} {ratios[f'hermes-4-{variant}']:.2f}, {ratios[f'hermes-12-{variant}']:.2f}"
        for variant in VARIANTS
        if variant
    )
    return Figure(
        what=f"the same where jobs are otherwise, the worst of {len(VARIANTS) - 1} variants with 4 and with 12 good",
        measured=f"{worst}: {found[worst][0].mean:.2f} of an oracle's, promising {found[worst][1].mean:.2f}",
        ratio=varied[worst],
        bar=VARIANT_BAR,
        sense="at least",
        notes=(f"4 of 16, 12 of 16: {note}",),
    )


def _at_sub_epochs() -> list[Figure]:
    default, promising = compare(
        SCENARIOS["hermes-4"], (DEFAULT_POLICY, "promising"), seeds=SEEDS, engine=run
    )
    return [
        Figure(
            what=f"the same jobs by the controller's core, sub-epoch by sub-epoch, 4 of 16 good: {DEFAULT_POLICY} "
            f"over promising",
            measured=f"{default.mean:.2f} of an oracle's, promising {promising.mean:.2f}",
            ratio=default.mean / promising.mean,
            bar=SOONER_BAR,
            sense="at least",
        ),
        Figure(
            what=f"the same: makespan by promising over that by {DEFAULT_POLICY}",
            measured=f"{promising.makespan:.3f} of the work over the GPUs, {DEFAULT_POLICY} {default.makespan:.3f}",
            ratio=promising.makespan / default.makespan,
            bar=MAKESPAN_BAR,
            sense="at most",
        ),
    ]


def main() -> None:
    """Print the figures."""
    for figure in benchmark():
        print(figure)


if __name__ == "__main__":
    main()
