"""Networks whose rows do not see each other, fixed features and priors.

What comes in: a model's record and a task, or a module of one's own. What goes out: a module that
is known to give a row the same bits whatever stands beside it.
"""

from fl_dpbayes.models.backbone import stored_weights
from fl_dpbayes.models.build import build_model, model_input_shape, model_shapes
from fl_dpbayes.models.conditional_reproducibility import reproducible_branch
from fl_dpbayes.models.dropout import DropoutModule
from fl_dpbayes.models.feature_map import feature_shape
from fl_dpbayes.models.frozen_body import body_size, records_per_pass
from fl_dpbayes.models.gaussian import normal_vectors
from fl_dpbayes.models.module_checks import check_records_apart, check_unmoved, validate_module
from fl_dpbayes.models.on_device import keep_share, moved, release_memory, uploaded
from fl_dpbayes.models.own_module import given_object, provided, unbuilt_size
from fl_dpbayes.models.parameters import (
    Shapes,
    arrays_to_vector,
    called,
    parameter_shapes,
    to_vector,
    trainable_parameters,
    vector_loader,
    vector_to_arrays,
    vector_views,
)
from fl_dpbayes.models.priors import log_prior, prior_gradient
from fl_dpbayes.models.processor import product_library
from fl_dpbayes.models.products import Products, computing, linear, product
from fl_dpbayes.models.row_wise import RowWise, is_chain_of_known_layers
from fl_dpbayes.models.rows import (
    ROWS,
    PassShape,
    RowsDependError,
    Trial,
    checked_shape,
    drawn_modules,
    failing_rows,
    keep_freed_memory,
    note,
    noted_shapes,
    pieces,
    repeatable,
    shapes_so_far,
    structure,
    training_rows,
)
from fl_dpbayes.models.strokes import draw_strokes
from fl_dpbayes.models.variational import VariationalModule
