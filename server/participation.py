"""Who trains in which round: sites that join late, come back, fall silent or have finished."""

from collections.abc import Sequence

from pydantic import NonNegativeInt, PositiveInt

from fl_dpbayes.config import RunWarning, TrainingPlan, warning
from fl_dpbayes.files import Config
from fl_dpbayes.protocol import RefusalCode
from server.check_reply import CheckedReply
from server.exchange import NO_REPLY, Answer
from server.roster import NO_NODE, Member, Roster

# With these a site says that it will not train again in this run.
_CODES = (
    "BUDGET_EXHAUSTED",
    "POLICY_DENIED",
    "ROLE_DENIED",
    "PLAN_CHANGED",
    "NOT_REPEATABLE",
    "POLICY_EXPIRED",
    "COHORT_CLOSED",
)
FINAL_REFUSALS = frozenset(map(RefusalCode, _CODES))


def least_sites(min_sites: int | None, left: int) -> int:
    """Return how many training sites a round needs, of so many that have steps left: more than half, or as given."""
    return left // 2 + 1 if min_sites is None else min_sites


class ParticipationState(Config):
    """What `Participation` knows between two rounds, for a checkpoint: all but `finished` by site."""

    joined: dict[str, PositiveInt]
    silent: dict[str, NonNegativeInt]
    finished: tuple[str, ...]


class Participation:
    """Keeps count of the training sites between rounds."""

    def __init__(self, silent_rounds: int) -> None:
        """Start with all sites present.

        One is given up after `silent_rounds` rounds in a row without a reply.
        """
        self._silent_rounds = silent_rounds
        self._joined: dict[str, int] = {}
        self._silent: dict[str, int] = {}
        self._finished: set[str] = set()

    def state(self) -> ParticipationState:
        """Return what is known so far."""
        silent = {site: rounds for site, rounds in self._silent.items() if rounds}
        return ParticipationState(
            joined=self._joined, silent=silent, finished=tuple(sorted(self._finished))
        )

    def restore(self, state: ParticipationState) -> None:
        """Go on from what was known after an earlier round of the same run."""
        self._joined, self._silent, self._finished = (
            dict(state.joined),
            dict(state.silent),
            set(state.finished),
        )

    def has_finished(self, site: str) -> bool:
        """Say whether a site will never train again in this run, by its own word.

        One that was given up may.
        """
        return site in self._finished

    def asked(self, roster: Roster) -> list[Member]:
        """Return the members that get a training request."""
        given_up = {name for name, rounds in self._silent.items() if rounds >= self._silent_rounds}
        out = given_up | self._finished
        return [
            member for member in roster.training if member.has_node and member.card.name not in out
        ]

    def admit(self, server_round: int, before: Roster, after: Roster) -> list[RunWarning]:
        """Note who has come since the roster of the last round, before that of this one."""
        nodes, found = (
            {member.card.name: member.node_id for member in before.members},
            list[RunWarning](),
        )
        for member in after.members:
            name = member.card.name
            returned = member.node_id in before.away - after.away
            if nodes.get(name) == member.node_id and not returned:
                continue
            silent = self._silent.pop(name, 0)
            if nodes.get(name) == NO_NODE or (nodes.get(name) == member.node_id and silent):
                found.append(warning("came-back", name, round=server_round))
            elif nodes.get(name) == member.node_id:
                # It was gone for an instant between two rounds, and has missed nothing.
                continue
            elif name in nodes:
                found.append(warning("came-back-elsewhere", name, round=server_round))
            elif member.card.role == "train":
                self._joined[name] = server_round
                found.append(warning("joined", name, round=server_round))
        return found

    def count(self, answers: Sequence[Answer[CheckedReply]]) -> list[RunWarning]:
        """Note how a round went; return a warning for each site that is now given up."""
        given_up = []
        for answer in answers:
            silent = self._silent.get(answer.site, 0) + 1 if answer.detail == NO_REPLY else 0
            self._silent[answer.site] = silent
            if answer.refusal is not None and answer.refusal.code in FINAL_REFUSALS:
                self._finished.add(answer.site)
            if silent >= self._silent_rounds:
                given_up.append(warning("silent", answer.site, silent=silent))
        return given_up

    def first_step(self, plan: TrainingPlan, site: str, server_round: int) -> int:
        """Return the first step of the plan that a site runs in a round.

        A chain of a site's own has its burn-in before it whenever it starts, so a site that joins
        runs the schedule from its beginning and ends it early. Averaged chains go on where they
        are. A step that a site may have run is never asked for again (its ledger would refuse it):
        a round that it missed is a gap in its schedule.
        """
        chain, number = divmod(server_round - 1, plan.rounds)
        joined_in, late = divmod(self._joined.get(site, 1) - 1, plan.rounds)
        if plan.chain_start == "own_last" and joined_in == chain:
            number -= late
        return chain * plan.chain_steps + number * plan.steps_per_round
