"""Predictors of a worker's speed in its next step, from its earlier ones.

A predictor receives each measured speed with the shares of the processors and of the memory in use
at that time; `value` is its prediction of the next speed. Speeds are examples a second, but any
positive series is possible.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

_LEAST_BUSY = 0.1  # share of a step that is taken to depend on the batch, at the least


class Predictor(Protocol):
    """The interface of all predictors."""

    @property
    def value(self) -> float:
        """Predicted next speed."""

    def observe(self, speed: float, cpu: float | None = None, memory: float | None = None) -> None:
        """Note a measured speed and the shares (0..1) of processors and memory in use."""


class Last:
    """v_{k+1} = v_k"""

    def __init__(self) -> None:
        self.value = 0.0

    def observe(self, speed: float, cpu: float | None = None, memory: float | None = None) -> None:
        self.value = speed


class Ema:
    """m_k = m_{k-1} + 0.3 (v_k - m_{k-1}); v_{k+1} = m_k"""

    SMOOTHING = 0.3

    def __init__(self) -> None:
        self.value = 0.0
        self._first = True

    def observe(self, speed: float, cpu: float | None = None, memory: float | None = None) -> None:
        self.value += (1.0 if self._first else self.SMOOTHING) * (speed - self.value)
        self._first = False


class Narx:
    """A nonlinear autoregression with exogenous inputs: a network of one small hidden layer.

        v_{k+1} = b + w tanh(A u_k + a),  u_k = (v, cpu, memory) of the steps k and k - 1

    Speeds are in units of their mean. Each observation makes one Levenberg-Marquardt step of the
    weights on the newest `WINDOW` of them, a fraction of a millisecond [ours: the paper names the
    method, not its sizes]. `value` is the network's prediction only while its predictions have been
    better than the moving average's; otherwise it is the moving average. It stays within a factor
    of two of the observed speeds.
    """

    LAGS, HIDDEN, WINDOW = 2, 4, 50
    LEAST = 20  # observations before training, and predictions before they are used
    DECAY = 1e-3  # of the weights, against fits to noise

    def __init__(self) -> None:
        # One seed for all workers: equal pasts give equal predictions.
        draw = np.random.default_rng(0).standard_normal
        inputs = 3 * self.LAGS
        self._weights = np.concatenate([  # A [HIDDEN, inputs], a [HIDDEN], w [HIDDEN], b
            draw(self.HIDDEN * inputs) / inputs ** 0.5, np.zeros(self.HIDDEN),
            draw(self.HIDDEN) / self.HIDDEN ** 0.5, [1.0]])
        self._damping = 1.0
        self._seen: deque[tuple[float, float, float]] = deque(maxlen=self.WINDOW + self.LAGS)
        self._average = Ema()
        self._guess: float | None = None  # the network's, of the next speed
        self._misses: deque[float] = deque(maxlen=self.LEAST)  # squared: network's less average's

    @property
    def value(self) -> float:
        guess, average = self._guess, self._average.value
        return guess if guess is not None and self.believed else average

    @property
    def believed(self) -> bool:
        """True while the network has predicted better than the moving average."""
        return len(self._misses) == self.LEAST and sum(self._misses) < 0

    def observe(self, speed: float, cpu: float | None = None, memory: float | None = None) -> None:
        if self._guess is not None:
            self._misses.append((self._guess - speed) ** 2 - (self._average.value - speed) ** 2)
        self._average.observe(speed)
        self._seen.append((speed, cpu or 0.0, memory or 0.0))
        if len(self._seen) >= self.LEAST + self.LAGS:
            self._learn()

    def _learn(self) -> None:
        """Train one step, then predict."""
        seen = np.array(self._seen)  # [n, 3]
        mean, lowest, highest = (f(seen[:, 0]) for f in (np.mean, np.min, np.max))
        seen[:, 0] /= mean
        lagged = np.concatenate([seen[lag:len(seen) - self.LAGS + 1 + lag]
                                 for lag in range(self.LAGS)], axis=1)  # [n - LAGS + 1, inputs]
        inputs, target = lagged[:-1], seen[self.LAGS:, 0]
        output, slopes = self._run(self._weights, inputs)
        miss = target - output
        downhill = slopes.T @ miss - self.DECAY * self._weights
        curvature = slopes.T @ slopes
        curvature.flat[::len(curvature) + 1] += self.DECAY + self._damping
        weights = self._weights + np.linalg.solve(curvature, downhill)
        if self._cost(weights, inputs, target) < self._cost(self._weights, inputs, target):
            self._weights, self._damping = weights, max(self._damping / 4, 1e-6)
        else:
            self._damping = min(self._damping * 4, 1e6)
        guess = self._run(self._weights, lagged[-1:])[0][0]
        self._guess = float(np.clip(guess * mean, lowest / 2, highest * 2))

    def _cost(self, weights: np.ndarray, inputs: np.ndarray, target: np.ndarray) -> float:
        miss = target - self._run(weights, inputs)[0]
        return float(miss @ miss + self.DECAY * (weights @ weights))

    def _run(self, weights: np.ndarray, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return outputs [n] and their derivatives [n, weights] for inputs [n, inputs]."""
        inner, bias, outer, offset = np.split(weights, np.cumsum(
            [self.HIDDEN * inputs.shape[1], self.HIDDEN, self.HIDDEN]))
        hidden = np.tanh(inputs @ inner.reshape(self.HIDDEN, -1).T + bias)  # [n, HIDDEN]
        back = (1 - hidden ** 2) * outer  # d output / d (A u + a)
        slopes = np.concatenate([
            (back[:, :, None] * inputs[:, None, :]).reshape(len(inputs), -1), back, hidden,
            np.ones((len(inputs), 1))], axis=1)
        return hidden @ outer + offset, slopes


class Overhead:
    """Seconds of a step that do not depend on its batch: q of t(x) = x / v + q [ours].

    Two steps in a row, of x examples in s seconds and x' in s', lie on a line of intercept
    (x s' - x' s) / (x - x'). `seconds` is the mean of these with weights (x - x')^2 that fade by
    0.9 a pair: the speed may drift, the intercept stays. `seconds` is 0 until two sizes were
    measured, and is limited so that a worker's speed is overestimated ten times at most. A step
    that is shorter than the overhead shows that the mean is wrong; then all pairs are discarded.
    """

    FADE = 0.9

    def __init__(self) -> None:
        self.seconds = 0.0
        self._intercepts = self._weights = 0.0  # sums
        self._before: tuple[float, float] | None = None

    def observe(self, batch: float, seconds: float) -> None:
        batch_before, seconds_before = self._before or (batch, seconds)
        self._before = batch, seconds
        change = batch_before - batch
        if change:
            intercept = (batch_before * seconds - batch * seconds_before) / change
            self._intercepts = self.FADE * self._intercepts + change ** 2 * intercept
            self._weights = self.FADE * self._weights + change ** 2
        if self._intercepts >= seconds * self._weights:
            self._intercepts = self._weights = 0.0
        found = max(0.0, self._intercepts / self._weights) if self._weights else 0.0
        self.seconds = min(found, (1 - _LEAST_BUSY) * seconds)


PREDICTORS: dict[str, Callable[[], Predictor]] = {"last": Last, "ema": Ema, "narx": Narx}
