"""The live display from its first moment to its last event."""

import io

from rich.console import Console

from fl_dpbayes.run.progress import Display

EVENTS = [
    {"event": "roster", "sites": [["north", "train"], ["island", "held_out"]], "left_out": []},
    {"event": "train", "round": 1, "rounds": 2, "sites": ["north"]},
    {"event": "site", "round": 1, "site": "north", "status": "OK", "detail": "", "epsilon": 0.5, "budget": 2.0},
    {"event": "evaluate", "round": 2, "rounds": 2, "sites": ["north", "island"]},
    {"event": "evaluated", "site": "island", "problem": ""},
    {"event": "finished"},
]


def test_display_renders_before_and_after_every_event_in_a_terminal() -> None:
    file = io.StringIO()
    console = Console(force_terminal=True, file=file, width=100)
    display = Display(console, 2)
    console.print(display.render())
    for event in EVENTS:
        display.show(event)
        console.print(display.render())
    shown = file.getvalue()
    assert "round 1/2" in shown
    assert "0.500 of 2" in shown
    assert "evaluating" in shown
    assert "left" in shown
