"""The International Stroke Trial: 19,435 patients with acute stroke, shipped here.

They were treated at 466 hospitals in 36 countries. Licence: Open Data Commons Attribution 1.0. The
file names its authors, its origin and what was changed.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fl_dpbayes.config import BuiltIn, OfficialPart, damaged
from fl_dpbayes.data.records import Records

PATH = Path(__file__).with_name("stroke.json")
SHA256 = "dcb8799ae990f65351a0f0ceb7c9f730c57ece5b9d6c54e8fbefd9111ff73e2c"
# Centre and scale: round values that were known before the trial's records, none computed from
# them.
CENTERS_AND_SCALES = {
    # Years.
    "age": ("AGE", 70.0, 10.0),
    # The trial took patients up to 48 hours.
    "hours since onset": ("RDELAY", 24.0, 12.0),
    # mmHg; 160 and more is moderate hypertension.
    "systolic blood pressure": ("RSBP", 160.0, 25.0),
}
# 1 where the column holds the letter, 0 elsewhere.
INDICATORS = {
    "male": ("SEX", "M"),
    "drowsy": ("RCONSC", "D"),
    "unconscious": ("RCONSC", "U"),
    "symptoms on waking": ("RSLEEP", "Y"),
    "scanned before": ("RCT", "Y"),
    "infarct visible": ("RVISINF", "Y"),
    "atrial fibrillation": ("RATRIAL", "Y"),
    "atrial fibrillation not recorded": ("RATRIAL", "-"),
    "aspirin before": ("RASP3", "Y"),
    "heparin before": ("RHEP24", "Y"),
    "lacunar stroke": ("STYPE", "L"),
    "posterior stroke": ("STYPE", "P"),
    "total anterior stroke": ("STYPE", "T"),
    "other stroke": ("STYPE", "O"),
}
# 1 present, 0 absent, one half where it could not be assessed.
AFFECTED = (
    "face",
    "arm or hand",
    "leg or foot",
    "speech",
    "sight",
    "spatial",
    "brainstem",
    "other",
)
DEFICITS = {f"{part} deficit": f"RDEF{number}" for number, part in enumerate(AFFECTED, start=1)}
FEATURE_NAMES = (*CENTERS_AND_SCALES, *INDICATORS, *DEFICITS)
COUNTRIES = {
    "ARGE": "argentina",
    "AUSL": "australia",
    "AUST": "austria",
    "BELG": "belgium",
    "BRAS": "brazil",
    "CANA": "canada",
    "CHIL": "chile",
    "CZEC": "czech-republic",
    "DENM": "denmark",
    "EIRE": "ireland",
    "FINL": "finland",
    "FRAN": "france",
    "GREE": "greece",
    "HONG": "hong-kong",
    "HUNG": "hungary",
    "INDI": "india",
    "ISRA": "israel",
    "ITAL": "italy",
    "JAPA": "japan",
    "NETH": "netherlands",
    "NEW": "new-zealand",
    "NORW": "norway",
    "POLA": "poland",
    "PORT": "portugal",
    "ROMA": "romania",
    "SING": "singapore",
    "SLOK": "slovakia",
    "SLOV": "slovenia",
    "SOUT": "south-africa",
    "SPAI": "spain",
    "SRI": "sri-lanka",
    "SWED": "sweden",
    "SWIT": "switzerland",
    "TURK": "turkey",
    "UK": "uk",
    "USA": "usa",
}


def load(source: BuiltIn, part: OfficialPart) -> Records:
    """Load the 19,285 patients whose outcome at six months is known.

    Label 1: dead or dependent at six months. 3 features are centred and scaled by public constants,
    14 are indicators, 8 deficits are 1, 0 or one half. Each patient is one privacy unit;
    `natural_site` is the hospital, for example `uk-134`; `groups` are sex and age; `published` is
    the trial's own predicted risk, fitted on these patients.

    Args:
        source: The trial.
        part: The official part; there is one only.

    Raises:
        UserError: If the shipped file was changed.

    Source:
        Sandercock, Niewada and Czlonkowska, Trials 12:101, 2011.
    """
    text = PATH.read_bytes()
    if hashlib.sha256(text).hexdigest() != SHA256:
        raise damaged(PATH, "its SHA-256 is another", "a new installation of fl-dpbayes")
    content: dict = json.loads(text)
    columns = {name: np.array(list(values)) for name, values in content["columns"].items()}
    has_outcome = np.isin(columns["OCCODE"], list("1234"))
    records = Records(
        features=_features(columns),
        labels=np.isin(columns["OCCODE"], list("12")).astype(np.int64),
        units=np.arange(1, len(has_outcome) + 1),
        natural_site=_hospitals(columns["HOSPNUM"], content["countries"]),
        task=source.task,
        unit="patient",
        feature_names=FEATURE_NAMES,
        published=columns["EXPDD"],
        groups={
            "sex": np.where(columns["SEX"] == "M", "male", "female"),
            "age": np.where(columns["AGE"] < 75, "under 75", "75 and over"),
        },
    )
    return records.subset(has_outcome)


def _features(columns: Mapping[str, npt.NDArray]) -> npt.NDArray[np.float32]:
    """Return the features, (N, 25), in the order of FEATURE_NAMES."""
    features = []
    for name, center, scale in CENTERS_AND_SCALES.values():
        features.append((columns[name] - center) / scale)
    for name, letter in INDICATORS.values():
        features.append(columns[name] == letter)
    for name in DEFICITS.values():
        features.append((columns[name] == "Y") + 0.5 * (columns[name] == "C"))
    return np.stack(features, axis=1).astype(np.float32)


def _hospitals(numbers: npt.NDArray, countries: Mapping[str, list[int]]) -> npt.NDArray:
    """Name each patient's hospital by its country and number, (N,)."""
    names = {}
    for code, country_numbers in countries.items():
        for number in country_numbers:
            names[number] = f"{COUNTRIES[code]}-{number}"
    return np.array([names[number] for number in numbers])
