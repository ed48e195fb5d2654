"""Figures of the reports: lines, colors, and their HTML. Colors of text and grid lines are in the style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import plotly.io as pio

# Distinguishable with color blindness and readable on white and on black: muted Okabe-Ito colors.
COLORS = ("#2f7fc1", "#d9822b", "#3a9d78", "#b86aa5", "#c2a12c", "#7d8896", "#cf5c4b")
_HEIGHT = 230


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as HTML, with title, unit, caption and legend."""

    title: str
    unit: str
    caption: str
    legend: tuple[tuple[str, str], ...]
    """Name and color of each line; empty for a single line."""
    html: str


def new_figure() -> go.Figure:
    """Figure in the style of the reports: no legend, no background, axes from zero."""
    figure = go.Figure()
    figure.update_layout(
        height=_HEIGHT,
        margin={"l": 48, "r": 12, "t": 8, "b": 36},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        hovermode="x unified",
        showlegend=False,
    )
    figure.update_xaxes(
        title={"text": "step", "standoff": 4}, zeroline=False, showgrid=False, rangemode="tozero"
    )
    # The axis starts at zero, so that noise is not exaggerated.
    figure.update_yaxes(zeroline=False, nticks=6, rangemode="tozero", exponentformat="e")
    return figure


def add_line(
    figure: go.Figure,
    steps: Sequence[int],
    values: Sequence[float],
    label: str,
    color: str,
    *,
    opacity: float = 1.0,
    width: float = 2.0,
) -> None:
    """Draw one line; a short one with a mark at each value."""
    figure.add_scatter(
        x=steps,
        y=values,
        name=label,
        mode="lines+markers" if len(values) <= 40 else "lines",
        line={"color": color, "width": width},
        marker={"size": 5},
        opacity=opacity,
        hovertemplate="%{y:.4g}",
    )


def figure_html(figure: go.Figure, first: bool) -> str:
    """HTML of a figure; that of a page's first figure includes the plotly library."""
    html: str = pio.to_html(
        figure,
        full_html=False,
        include_plotlyjs=first,
        default_height=f"{_HEIGHT}px",
        config={"displayModeBar": False, "responsive": True},
    )
    return html
