"""The one list of what a site's messages hold and why each of it is public."""

from dataclasses import dataclass
from typing import Literal

from fl_dpbayes.files import Message
from fl_dpbayes.protocol import EvaluateReply, RecalibrateReply, SiteCard, TrainReply

# machine: what computes, and how fast it does on made-up rows. echo: said in the request. site
# file: a constant that the hospital wrote. account: what the ledger has counted, nothing of
# records. head: a hash of the ledger's entries. plan: follows from the plan and the account.
# noised: paid for by noise, which the parts named audit. public: exact sums of test data that the
# site declares public.
Origin = Literal["machine", "echo", "site file", "account", "head", "plan", "noised", "public"]


@dataclass(frozen=True)
class Declared:
    """What makes a field of a reply public.

    Attributes:
        origin: Where it comes from.
        looked_at: Parts of an audit that look at it, parted by ", ".
    """

    origin: Origin
    looked_at: str = "replies"


# Message kind -> header of its reply.
REPLIES: dict[str, type[Message]] = {
    "query": SiteCard,
    "train": TrainReply,
    "train.recalibrate": RecalibrateReply,
    "evaluate": EvaluateReply,
}
ECHO = Declared("echo")
SITE_FILE = Declared("site file")
ACCOUNT = Declared("account")

OF_EVERY_REPLY = {
    "protocol": ECHO,
    "run": ECHO,
    "round": ECHO,
    "request": ECHO,
    "ledger_head": Declared("head"),
    "passes": Declared("machine"),
}
STATEMENT = {
    "privacy.cohort": SITE_FILE,
    "privacy.unit": SITE_FILE,
    "privacy.units": SITE_FILE,
    "privacy.adjacency": SITE_FILE,
    "privacy.delta": SITE_FILE,
    "privacy.budget": SITE_FILE,
    "privacy.seeded": SITE_FILE,
    "privacy.epsilon": ACCOUNT,
    "privacy.epsilon_method": ACCOUNT,
    "privacy.mu": ACCOUNT,
    "privacy.mu_kind": ACCOUNT,
    "privacy.steps": ACCOUNT,
    "privacy.history": ACCOUNT,
}
STEPS = {"status": ACCOUNT, "first_step": ECHO, "steps": ACCOUNT}

# Message kind -> field of the reply's header -> where it comes from.
HEADERS: dict[str, dict[str, Declared]] = {
    "query": {
        "protocol": SITE_FILE,
        "name": SITE_FILE,
        "role": SITE_FILE,
        "task": SITE_FILE,
        "data_schema": SITE_FILE,
        "units": SITE_FILE,
        "unit": SITE_FILE,
        "shift": SITE_FILE,
        "evaluation_release": SITE_FILE,
        "prevalence": SITE_FILE,
        "seeded": SITE_FILE,
        "code": SITE_FILE,
    },
    "train": {**OF_EVERY_REPLY, **STATEMENT, **STEPS},
    "train.recalibrate": {
        **OF_EVERY_REPLY,
        **STATEMENT,
        **STEPS,
        "parameters": Declared("noised", "recalibration by descent"),
        "noise_std": Declared("plan"),
    },
    "evaluate": {
        **OF_EVERY_REPLY,
        **STATEMENT,
        "release": SITE_FILE,
        "groups": Declared("public", "public evaluation"),
        "groups_left_out": Declared("public", "public evaluation"),
        "noise_std": Declared("plan"),
    },
}

# Message kind -> arrays, by the first part of their name -> where they come from.
ARRAYS: dict[str, dict[str, Declared]] = {
    "query": {},
    "train": {
        "last": Declared("noised", "noise of training, noise within a request"),
        "samples": Declared("noised", "noise of training, noise within a request"),
    },
    "train.recalibrate": {"noised": Declared("noised", "isotonic recalibration")},
    "evaluate": {"posterior": Declared("noised", "noised evaluation, public evaluation")},
}

# Flower's metrics of a training reply, which its logs show.
METRICS: dict[str, Declared] = {
    "units": SITE_FILE,
    "steps": ACCOUNT,
    "epsilon": ACCOUNT,
    "temperature": Declared("plan"),
}

# What leaves where no message is answered: purpose of a release -> the part of an audit that looks
# at it.
OWN_RELEASES = {
    "update": "a new hospital's releases",
    "sets": "a new hospital's releases",
}
