"""The messages between server and sites, and nothing else.

What comes in: records and arrays, or bytes from outside. What goes out: headers and arrays within
bounds, or a refusal by a fixed code.
"""

from fl_dpbayes.protocol.arrays import Arrays, SentArray, prefixed, read_sent_arrays, without_prefix
from fl_dpbayes.protocol.card import SiteCard
from fl_dpbayes.protocol.evaluate import (
    MAPPED,
    MAX_GROUPS,
    PRIOR_CORRECTED,
    RECALIBRATED,
    EvaluateReply,
    EvaluateRequest,
    Group,
    PredictorName,
    Weights,
    most_groups,
    subgroup_prefix,
)
from fl_dpbayes.protocol.passes import MOST_PASSES, MOST_SLOWER, StatedPass, StatedPasses
from fl_dpbayes.protocol.recalibrate import RecalibrateReply, RecalibrateRequest
from fl_dpbayes.protocol.refusal import Refusal, RefusalCode
from fl_dpbayes.protocol.train import (
    MAX_HISTORY,
    MAX_REPLY_BYTES,
    Digest,
    EpsilonMethod,
    PrivacyStatement,
    RunId,
    StageReply,
    StageRequest,
    StepsReply,
    TrainReply,
    TrainRequest,
    reply_bytes,
)
from fl_dpbayes.protocol.wire import (
    MessageT,
    arrays_digest,
    plan_digest,
    plan_text,
    read_header,
    request_digest,
    write_header,
)
