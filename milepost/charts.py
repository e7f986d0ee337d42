"""Line charts as inline SVG, and sparklines as text. Colours come from the page, so that light and dark both work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

Points = Sequence[tuple[float, float]]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 360, 176, 44, 10, 8, 22
MAX_POINTS = 240
SPARKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Series:
    """One line. `band` holds (x, low, high); values that are not finite leave a gap."""

    label: str
    points: Points
    band: Sequence[tuple[float, float, float]] = ()


def line_chart(series: Sequence[Series], *, percent: bool = False, floor: float | None = None, smooth: bool = False) -> str:
    """An SVG of up to four lines over a shared x axis; "" when there is nothing finite to draw.

    With `smooth`, long noisy lines are drawn faint beneath their moving mean. `floor` is a value the y axis must reach
    down to.
    """
    drawn = [(index, one, _finite(one.points)) for index, one in enumerate(series)]
    drawn = [(index, one, points) for index, one, points in drawn if len(points)]
    if not drawn:
        return ""
    xs = np.concatenate([points[:, 0] for _, _, points in drawn])
    ys = np.concatenate([points[:, 1] for _, _, points in drawn] + [_edges(one) for _, one, _ in drawn])
    low = float(ys.min()) if floor is None else min(floor, float(ys.min()))
    ticks = nice_ticks(low, float(ys.max()))
    low, high = min(low, ticks[0]), max(float(ys.max()), ticks[-1])
    place = _Scale(float(xs.min()), float(xs.max()), low, high)
    parts = [_grid(place, ticks, percent), _x_axis(place)]
    for index, one, points in drawn:
        parts.append(_band(place, one, index))
        parts.append(_line(place, points, index, smooth))
    names = ", ".join(one.label for _, one, _ in drawn)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(names)}">{"".join(parts)}</svg>'


def sparkline(values: Sequence[float], width: int = 32) -> str:
    """One character per bucket of values; "" without any finite one."""
    points = _thinned(_finite(list(enumerate(values))), width)
    if not len(points):
        return ""
    ys = points[:, 1]
    span = float(ys.max() - ys.min())
    level = (ys - ys.min()) / span * (len(SPARKS) - 1) if span > 0 else np.full(len(ys), 3.0)
    return "".join(SPARKS[round(float(v))] for v in level)


def nice_ticks(low: float, high: float, num: int = 4) -> list[float]:
    """Round values that cover [low, high], about `num` of them."""
    if high - low <= 1e-12 * max(1.0, abs(low), abs(high)):
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad if low < 0 else max(0.0, low - pad), high + pad
    rough = (high - low) / num
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) if step > 1e-6 else i * step for i in range(first, last + 1)]


def short(value: float, percent: bool = False) -> str:
    """A number for people: 3 significant digits at most."""
    if not math.isfinite(value):
        return str(value)
    if percent:
        return f"{100 * value:.3g} %"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e5):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True)
class _Scale:
    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, value: float) -> float:
        share = (value - self.x0) / (self.x1 - self.x0) if self.x1 > self.x0 else 0.5
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM), 1)


def _finite(points: Points) -> np.ndarray:
    """float64 [n, 2] of the points with finite values."""
    array = np.array(points, np.float64).reshape(-1, 2)
    return array[np.isfinite(array).all(axis=1)]


def _edges(one: Series) -> np.ndarray:
    edges = np.array([edge for _, *pair in one.band for edge in pair], np.float64)
    return edges[np.isfinite(edges)]


def _thinned(points: np.ndarray, most: int) -> np.ndarray:
    """Means of equal buckets: a long run keeps its shape and the page its size."""
    if len(points) <= most:
        return points
    return np.array([bucket.mean(axis=0) for bucket in np.array_split(points, most)])


def _moving_mean(points: np.ndarray) -> np.ndarray:
    """Centred; the window shrinks at both ends so that nothing is invented there."""
    half = max(2, len(points) // 30)
    rows = [points[max(0, i - half) : i + half + 1, 1].mean() for i in range(len(points))]
    return np.column_stack([points[:, 0], rows])


def _line(place: _Scale, points: np.ndarray, index: int, smooth: bool) -> str:
    if len(points) == 1:
        x, y = points[0]
        return f'<circle class="s{index}" cx="{place.x(x)}" cy="{place.y(y)}" r="2.5"/>'
    noisy = smooth and len(points) >= 20
    lines = [(points, " faint"), (_moving_mean(points), "")] if noisy else [(points, "")]
    parts = []
    for some, style in lines:
        path = " ".join(f"{place.x(x)},{place.y(y)}" for x, y in _thinned(some, MAX_POINTS))
        parts.append(f'<polyline class="s{index}{style}" points="{path}"/>')
    if len(points) <= 40 and not noisy:
        for x, y in points:
            title = f"<title>{short(x)}: {short(y)}</title>"
            parts.append(f'<circle class="s{index}" cx="{place.x(x)}" cy="{place.y(y)}" r="1.8">{title}</circle>')
    return "".join(parts)


def _band(place: _Scale, one: Series, index: int) -> str:
    rows = [row for row in one.band if all(map(math.isfinite, row))]
    if not rows:
        return ""
    corners = [(x, high) for x, _, high in rows] + [(x, low) for x, low, _ in reversed(rows)]
    path = " ".join(f"{place.x(x)},{place.y(y)}" for x, y in corners)
    return f'<polygon class="s{index} band" points="{path}"/>'


def _grid(place: _Scale, ticks: Sequence[float], percent: bool) -> str:
    parts = []
    for tick in ticks:
        y = place.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 3.5}" text-anchor="end">{short(tick, percent)}</text>')
    return "".join(parts)


def _x_axis(place: _Scale) -> str:
    ticks = [t for t in nice_ticks(place.x0, place.x1) if place.x0 <= t <= place.x1 and t == int(t)] or [place.x0]
    texts = []
    for tick in ticks:
        x = place.x(tick)
        anchor = "end" if x > WIDTH - RIGHT - 12 else "middle"
        texts.append(f'<text x="{x}" y="{HEIGHT - 6}" text-anchor="{anchor}">{short(tick)}</text>')
    return "".join(texts)
