"""The figure of class-probability histograms."""

import numpy as np

from fl_dpbayes.run.reproduce.class_histogram_figure import class_histogram_figure


def test_a_panel_per_image_and_method_with_the_true_class_marked() -> None:
    generator = np.random.default_rng(0)
    draws = [(name, generator.dirichlet(np.ones(10), size=(100, 2))) for name in ("SGLD", "DP-SGLD")]
    figure = class_histogram_figure(generator.uniform(size=(2, 28, 28)), np.array([3, 5]), draws)
    panels = [axes for axes in figure.axes if axes.axison]
    assert len(figure.axes) == 6
    assert [axes.get_title() for axes in panels] == ["SGLD", "DP-SGLD", "", ""]
    marked = [[label.get_text() for label in axes.get_yticklabels() if label.get_weight() == "bold"] for axes in panels]
    assert marked == [["3"], ["3"], ["5"], ["5"]]
    shares = np.square(panels[0].images[0].get_array())
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
