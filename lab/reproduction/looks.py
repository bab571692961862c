"""When a training reached a quality: looks at its newest version, whose noise is averaged."""

Looks = list[tuple[float, float]]  # (seconds, accuracy)


def reached(run: Looks, quality: float) -> float | None:
    """Return the seconds until the mean of three looks in a row was there; None: never."""
    return next((run[i][0] for i in range(2, len(run)) if mean(run[i - 2:i + 1]) >= quality), None)


def mean(run: Looks) -> float:
    return sum(accuracy for _, accuracy in run) / len(run)
