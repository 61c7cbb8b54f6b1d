"""Who trains in which round: sites that join late, come back, fall silent or have finished."""

from collections.abc import Sequence

from pydantic import NonNegativeInt, PositiveInt

from fl_dpbayes.config import RunWarning, TrainingPlan, warning
from fl_dpbayes.files import Config
from fl_dpbayes.protocol import RefusalCode
from server.check_reply import CheckedReply
from server.roster import NO_NODE, Member, Roster
from server.round_outcomes import NO_REPLY, Answer

# With these a site says that it will not train again in this run.
FINAL_REFUSALS = frozenset(
    {
        RefusalCode.BUDGET_EXHAUSTED,
        RefusalCode.POLICY_DENIED,
        RefusalCode.ROLE_DENIED,
        RefusalCode.PLAN_CHANGED,
        RefusalCode.NOT_REPEATABLE,
        RefusalCode.POLICY_EXPIRED,
        RefusalCode.COHORT_CLOSED,
    }
)


def least_sites(min_sites: int | None, unfinished: int) -> int:
    """Return how many training sites a round needs.

    Args:
        min_sites: As the scenario gives it; None is more than half.
        unfinished: Number of training sites that have steps left.
    """
    return unfinished // 2 + 1 if min_sites is None else min_sites


class ParticipationState(Config):
    """What `Participation` knows between two rounds, for a checkpoint.

    Attributes:
        joined: Site -> the round in which it joined, of those that came late.
        silent: Site -> rounds in a row without a reply.
        finished: Sites that will not train again in this run, by their own word.
    """

    joined: dict[str, PositiveInt]
    silent: dict[str, NonNegativeInt]
    finished: tuple[str, ...]


class Participation:
    """Keeps count of the training sites between rounds."""

    def __init__(self, silent_rounds: int) -> None:
        """Start with all sites present.

        Args:
            silent_rounds: Rounds in a row without a reply after which a site is given up.
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
        self._joined = dict(state.joined)
        self._silent = dict(state.silent)
        self._finished = set(state.finished)

    def has_finished(self, site: str) -> bool:
        """Say whether a site will never train again in this run, by its own word.

        One that was given up may.
        """
        return site in self._finished

    def members_to_train(self, roster: Roster) -> list[Member]:
        """Return the members that get a training request."""
        return [
            member
            for member in roster.training
            if member.has_node
            and not self.has_finished(member.card.name)
            and not self._is_given_up(member.card.name)
        ]

    def _is_given_up(self, site: str) -> bool:
        return self._silent.get(site, 0) >= self._silent_rounds

    def admit(self, server_round: int, before: Roster, after: Roster) -> list[RunWarning]:
        """Note who has come since the last round.

        Args:
            server_round: The round that begins.
            before: The roster of the last round.
            after: The roster of this one.

        Returns:
            A warning of each member that joined or came back.
        """
        nodes_before = {member.card.name: member.node_id for member in before.members}
        returned_nodes = before.away - after.away
        warnings = []
        for member in after.members:
            site = member.card.name
            node_before = nodes_before.get(site)
            has_same_node = node_before == member.node_id
            if has_same_node and member.node_id not in returned_nodes:
                continue
            was_silent = self._silent.pop(site, 0) > 0
            if has_same_node and not was_silent:
                # It was gone for an instant between two rounds, and has missed nothing.
                continue
            if has_same_node or node_before == NO_NODE:
                warnings.append(warning("came-back", site, round=server_round))
            elif site in nodes_before:
                warnings.append(warning("came-back-elsewhere", site, round=server_round))
            elif member.card.role == "train":
                self._joined[site] = server_round
                warnings.append(warning("joined", site, round=server_round))
        return warnings

    def count(self, answers: Sequence[Answer[CheckedReply]]) -> list[RunWarning]:
        """Note how a round went; return a warning for each site that is now given up."""
        warnings = []
        for answer in answers:
            silent = 0
            if answer.detail == NO_REPLY:
                silent = self._silent.get(answer.site, 0) + 1
            self._silent[answer.site] = silent
            if answer.refusal is not None and answer.refusal.code in FINAL_REFUSALS:
                self._finished.add(answer.site)
            if silent >= self._silent_rounds:
                warnings.append(warning("silent", answer.site, silent=silent))
        return warnings

    def first_step(self, plan: TrainingPlan, site: str, server_round: int) -> int:
        """Return the first step of the plan that a site runs in a round.

        A chain of a site's own has its burn-in before it whenever it starts, so a site that joins
        runs the schedule from its beginning and ends it early. Averaged chains go on where they
        are. A step that a site may have run is never asked for again (its ledger would refuse it):
        a round that it missed is a gap in its schedule.
        """
        chain, round_of_chain = divmod(server_round - 1, plan.rounds)
        joined_in_chain, rounds_late = divmod(self._joined.get(site, 1) - 1, plan.rounds)
        if plan.chain_start == "own_last" and joined_in_chain == chain:
            round_of_chain -= rounds_late
        return chain * plan.chain_steps + round_of_chain * plan.steps_per_round
