"""From a site file to a site's records, and from a scenario to its virtual sites.

What comes in: a source of records, a partition, a shift. What goes out: a `Site` with parts for
training, recalibration and test.
"""

from fl_dpbayes.data.feature_cache import cached_features
from fl_dpbayes.data.public_records import MAX_VALUES, read_public_records, synthetic_inputs
from fl_dpbayes.data.records import Records, load_unscaled, magnitude_warnings
from fl_dpbayes.data.simulation import (
    BASELINES,
    PARTITION,
    SCENARIO_FILE,
    SITES_FOLDER,
    check_task,
    plan_sites,
    prepare_simulation,
    read_partition,
    run_identifier,
)
from fl_dpbayes.data.site import (
    MAX_DECLARATION_ERROR,
    Site,
    SiteSplit,
    is_delta_allowed,
    load_site,
    most_declared,
    prepared,
    recalibration_units,
    shift_label,
    site_of,
)
from fl_dpbayes.data.site_ledger import (
    create_ledger,
    delta_problem,
    ledger_place,
    open_ledger,
    with_path,
)
from fl_dpbayes.data.snapshot import (
    DataChangedError,
    DataUncheckedError,
    source_files,
    write_snapshot,
)
from fl_dpbayes.data.virtual_sites import SitePlan
