"""Small meters that decisions rest on."""


class SlowestMeter:
    """Who is slowest, by an exponential moving average of the seconds a step takes.

    A worker without a measurement counts as the slowest, so that nothing is decided before
    everyone was heard.
    """

    def __init__(self, smoothing: float = 0.3):
        self._smoothing = smoothing
        self._seconds: dict[int, float] = {}  # worker -> average seconds a step

    def join(self, worker: int) -> None:
        self._seconds[worker] = float("inf")

    def leave(self, worker: int) -> None:
        self._seconds.pop(worker, None)

    def update(self, worker: int, seconds: float) -> None:
        old = self._seconds[worker]
        first = old == float("inf")
        self._seconds[worker] = seconds if first else old + self._smoothing * (seconds - old)

    @property
    def slowest(self) -> int | None:
        """The slowest worker (ties: the lowest index); None without workers."""
        return max(self._seconds, key=lambda w: (self._seconds[w], -w), default=None)
