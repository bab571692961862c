"""The overview: models in order, seconds and colors of cells, cells without the target reached."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from wbsp.figures import overview, style
from wbsp.figures.overview import Cell, draw_overview

CELLS = {("slow", "near"): Cell(40.0, 0.6), ("fast", "near"): Cell(2.0, 0.6),
         ("never", "near"): Cell(None, 0.25), ("slow", "far"): Cell(30.0, 0.6),
         ("fast", "far"): Cell(20.0, 0.6)}


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """The axes of CELLS' figure, and its file."""
    figures: list[Figure] = []
    monkeypatch.setattr(style, "save", lambda figure, path: (
        figures.append(figure), figure.savefig(path), path)[-1])
    path = draw_overview(["slow", "never", "fast"], ["near", "far"], CELLS,
                         tmp_path / "overview.png", "seconds")
    return figures[0].axes[0], path


def test_models_come_in_the_order_of_how_little_they_are_beaten(drawn):
    axes, path = drawn
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fast", "slow", "never"]
    assert path.stat().st_size > 5_000


def test_a_cell_shows_seconds_and_its_color_the_ratio_to_the_fastest(drawn):
    axes, _ = drawn
    texts = {text.get_position(): text for text in axes.texts}
    assert {at: text.get_text() for at, text in texts.items()} == {
        (0, 0): "2 s", (1, 0): "20 s", (0, 1): "40 s", (1, 1): "30 s", (0, 2): "25 %"}
    assert {at for at, text in texts.items() if text.get_fontweight() == "bold"} == {(0, 0), (1, 0)}
    ratios = axes.images[0].get_array()
    np.testing.assert_allclose(ratios[:2].filled(np.nan), [[1, 1], [overview.SLOWEST, 1.5]])
    assert ratios.mask[2].all() and len(axes.patches) == 1
