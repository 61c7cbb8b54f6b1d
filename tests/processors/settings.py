"""The settings of the arithmetic under which tests of rows are run again, one process each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

NONE: Mapping[str, str] = MappingProxyType({})
# Rows, passes, features and amplification.
TESTS = (
    "tests/processors/test_setting.py",
    "tests/models/test_rows.py",
    "tests/models/test_products.py",
    "tests/models/test_feature_map.py",
    "tests/models/test_frozen_body.py",
    "tests/samplers/test_pass_shape.py",
    "tests/calibration/test_row_check.py",
    "tests/posterior/test_predictive.py",
    "tests/audit/test_amplification.py",
    "tests/clients/test_amplified_predictions.py",
)
# What holds whichever way rows stand alone. The others say themselves which way shall be taken, or
# take minutes where records go one by one.
BRANCH_TESTS = (
    "tests/models/test_rows.py",
    "tests/models/test_feature_map.py",
    "tests/models/test_frozen_body.py",
    "tests/samplers/test_pass_shape.py",
)
# Of memory, whatever the processor.
LEFT_OUT = "tests/models/test_rows.py::test_memory_that_a_step_freed_is_not_asked_for_again"


@dataclass(frozen=True)
class Setting:
    """One way in which all arithmetic of a process is done.

    Attributes:
        name: What is set.
        variables: The environment, beside that of this process without MKL_CBWR.
        plugins: Pytest plugins that are loaded before any test.
        another_maker: Whether the processor is taken for one of another maker.
        mkl: MKL's branch that must be in force, or several with "or" between them.
        threads: Of torch.
        tests: Which files are run.
        marks: Which of their tests.
    """

    name: str
    variables: Mapping[str, str] = field(default_factory=lambda: NONE)
    plugins: tuple[str, ...] = ()
    another_maker: bool = False
    mkl: str = "AUTO"
    threads: int = 1
    tests: tuple[str, ...] = TESTS
    marks: str = "not deploy and not gpu"

    def __post_init__(self) -> None:
        """Settle the threads."""
        threads = {"OMP_NUM_THREADS": str(self.threads)}
        object.__setattr__(self, "variables", MappingProxyType({**self.variables, **threads}))


def branch(name: str) -> Setting:
    """Return the setting in which only one way lets rows stand alone."""
    return Setting(
        f"only {name.replace('_', ' ')}",
        {"ROWS_STAND_ALONE": name},
        plugins=("tests.processors.one_branch",),
        tests=BRANCH_TESTS,
        marks="not deploy and not gpu and not slow",
    )


LATE = ("tests.processors.early_product",)
OF_ONE_THREAD = (
    Setting("MKL_CBWR deleted", plugins=LATE, mkl="off"),
    Setting("MKL_CBWR=COMPATIBLE", {"MKL_CBWR": "COMPATIBLE"}, mkl="COMPATIBLE"),
    Setting("MKL_CBWR=AVX2", {"MKL_CBWR": "AVX2"}, mkl="AVX2 or AUTO"),
    Setting("ATEN_CPU_CAPABILITY=default", {"ATEN_CPU_CAPABILITY": "default"}),
    Setting("ONEDNN_MAX_CPU_ISA=AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    Setting("another maker", another_maker=True),
    Setting("another maker, MKL_CBWR deleted", plugins=LATE, mkl="off", another_maker=True),
)


def settings() -> Iterator[Setting]:
    """Yield every setting, of one thread first, then of two, then each way alone that rows may stand."""
    yield from OF_ONE_THREAD
    for setting in (Setting("as it is"), *OF_ONE_THREAD):
        yield replace(setting, name=f"{setting.name}, two threads", threads=2)
    yield from map(branch, ("aligned", "separate", "one_by_one"))
