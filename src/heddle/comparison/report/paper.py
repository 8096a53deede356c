"""Against a publication: how our order and our signs agree with its figures, in words."""

from html import escape

from heddle.comparison.report.drawings import ENOUGH, shared_losses
from heddle.comparison.statistics import Agreement, SignAgreement, decided_signs, rank_agreement, sign_agreement
from heddle.comparison.suites import Figure
from heddle.comparison.verdicts import Compared

CLOSE = 0.03  # nats from the base, within which a publication's rows are close


def words(compared: Compared) -> dict[str, list[str]]:
    """Return paragraphs for each column of the publication that has enough of our variants."""
    found = {}
    for column, published in compared.plan.suite.paper.items():
        theirs = {name: figure.loss for name, figure in published.items()}
        ours = shared_losses(compared, theirs)
        if len(ours) >= ENOUGH:
            found[column] = [_order(rank_agreement(ours, theirs), f"all {len(ours)} rows", column)]
            found[column] += _close(compared, theirs, column) + _signs(compared, dict(published), column)
    return found


def _order(one: Agreement, which: str, column: str) -> str:
    low, high = one.spearman_interval
    return (
        f"<p>Order by the published {escape(column)}, {which}: Spearman {one.spearman:.2f} [{low:.2f}, {high:.2f}], "
        f"Kendall {one.kendall:.2f} [{one.kendall_interval[0]:.2f}, {one.kendall_interval[1]:.2f}] "
        "(95 % intervals by bootstrap over variants and seeds).</p>"
    )


def _close(compared: Compared, theirs: dict[str, float], column: str) -> list[str]:
    base = compared.plan.suite.base_name
    if base not in theirs:
        return []
    near = {name: loss for name, loss in theirs.items() if abs(loss - theirs[base]) <= CLOSE}
    ours = shared_losses(compared, near)
    if len(ours) < ENOUGH:
        return []
    return [_order(rank_agreement(ours, near), f"the {len(ours)} rows within {CLOSE:g} nats of the base there", column)]


def _signs(compared: Compared, published: dict[str, Figure], column: str) -> list[str]:
    found = paper_signs(compared, published)
    if found is None:
        return []
    low, high = found.interval
    rest = f" Not so: {escape(', '.join(found.opposite))}." if found.opposite else ""
    return [
        f"<p>{found.decided} of these rows are decided by the published {escape(column)} itself (Welch's test over its "
        f"runs, Holm's correction); {found.same} of them have the same sign here: {found.same / found.decided:.0%} "
        f"[{low:.0%}, {high:.0%}].{rest}</p>"
    ]


def paper_signs(compared: Compared, published: dict[str, Figure]) -> SignAgreement | None:
    """Return how many of our effects have the sign that the publication decides; None: it gives no deviations."""
    base, runs = compared.plan.suite.base_name, min(figure.runs for figure in published.values())
    known = {n: (figure.loss, figure.deviation) for n, figure in published.items() if figure.deviation is not None}
    if runs < 2 or base not in known:
        return None
    given = {name: (loss, deviation or 0.0) for name, (loss, deviation) in known.items()}
    effects = {one.variant: one.effect for one in compared.comparisons}
    return sign_agreement(effects, decided_signs(given, base, runs))
