"""Whether work that came to no end is gone on with under its old reservation, or charged again.

Work that did not complete is charged again when it is repeated, with one exception. A reservation that is still open
although the process that worked on it is known to be dead (a power cut, a kill) is taken over by the process that gets
the same request again, at no further cost:

- Nothing of the cut attempt left the site. A reply is sent only after `commit`, and a reservation is committed once, by
  the process that holds it: of all attempts under it, at most one is ever released, and that one is charged.
- That holds only while no `commit` is forgotten. A power cut may take the last entries of a ledger of `normal`
  durability with it, and the reply was sent: so under `normal` the death of the machine is charged again.
- What ended the cut attempt is taken to be independent of the records and the noise. An end that depends on them (a
  chain that diverged, an exception) is caught and recorded as failed; its repetition is charged. So whoever operates a
  site must not interrupt it because of what a trace or its speed shows: that would be a choice among attempts, paid
  for once.
- A process can also die of its own work, and that it died can be seen. So a reservation is taken over at most
  `MOST_TAKEOVERS` times; after that the repetition is charged like any other.
- What cannot be known is not taken for dead: a holder in another container of the same machine, or a /proc that hides
  it, is charged again.

A process that was interrupted and goes on living gave its work up: that is charged again, too.
"""

from fl_dpbayes.privacy.ledger.running_process import process_status
from fl_dpbayes.privacy.ledger.state import Reservation

MOST_TAKEOVERS = 3


def is_worked_on(reservation: Reservation) -> bool:
    """Say whether a reservation is open and the process that holds it is known to be at work on it."""
    if reservation.state != "reserved" or reservation.interrupted:
        return False
    return process_status(reservation.process) == "running"


def may_take_over(reservation: Reservation) -> bool:
    """Say whether a reservation is open, its holder is known to be dead, and no reply of it can have been sent."""
    if reservation.state != "reserved" or reservation.takeovers >= MOST_TAKEOVERS:
        return False
    status = process_status(reservation.process)
    return status == "dead" or (status == "machine restarted" and reservation.durability == "full")
