"""A hospital of made-up records for the audit, and the attacker's view of what its training releases."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas
import torch
from PIL import Image

from fl_dpbayes.data.site_file import LedgerSettings, Policy, SiteFile, Split
from fl_dpbayes.data.site_ledger import create_ledger
from fl_dpbayes.data.specs import ImageFolder, Source, Table
from fl_dpbayes.errors import UserError
from fl_dpbayes.models.build import build_model, model_shapes
from fl_dpbayes.models.parameters import arrays_to_vector
from fl_dpbayes.models.priors import prior_gradient
from fl_dpbayes.privacy.events import read_history
from fl_dpbayes.privacy.filter import noise_of_steps
from fl_dpbayes.protocol.arrays import Arrays, prefixed, without_prefix
from fl_dpbayes.protocol.plan import NoPrivacyPlan, PrivacyPlan, TrainingPlan
from fl_dpbayes.protocol.task import Model, Task
from fl_dpbayes.protocol.train import TrainReply, TrainRequest
from fl_dpbayes.protocol.wire import arrays_digest
from fl_dpbayes.run.inline_engine import task_identity
from fl_dpbayes.schedules.planned import planned_step_sizes

Array = npt.NDArray[np.float64]

# The audited plan decides what is spent; the ledger must only not stand in the way of a second run of it.
LEDGER_RUNS = 100
GREY_LEVELS = 255.0


@dataclass(frozen=True)
class MadeUpRecords:
    """Records of an audited site: features are whole levels over `scale`, so that every file format holds them exactly.

    Attributes:
        levels: shape (N, *shape), 0 to 255.
        labels: shape (N,).
        scale: what the levels are divided by; 255 where the records are images.
    """

    levels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    scale: float = GREY_LEVELS


@dataclass(frozen=True)
class Release:
    """What an attacker learns from one training request.

    Attributes:
        noisy_sums: G_t + sigma_t C xi_t of each step, read from the released states, shape (steps, d).
        states: the states before each step, shape (steps, d).
        noise_multipliers: sigma_t of each step, as the site's ledger accounts for it, shape (steps,).
        step_sizes: a_t of each step, shape (steps,).
        reply: the site's reply.
    """

    noisy_sums: Array
    states: Array
    noise_multipliers: Array
    step_sizes: Array
    reply: TrainReply


def write_site(
    folder: Path,
    name: str,
    records: MadeUpRecords,
    task: Task,
    privacy: PrivacyPlan | NoPrivacyPlan,
    *,
    units: int,
    insecure_seed: int | None,
    device: str = "cpu",
) -> SiteFile:
    """Write made-up records as a hospital would hold them, describe the site and make its ledger.

    Every record is a privacy unit. The last record comes last among the site's units if its label is the highest.

    Args:
        folder: an empty or absent folder of the site's own.
        name: of the site.
        records: its records; none is kept for testing.
        task: shape of a record and number of classes.
        privacy: what the ledger and the policy shall allow.
        units: n, the declared number of units, within 20 % of the real one.
        insecure_seed: makes noise and sampling repeatable; None for the operating system's entropy.
        device: where the site computes.

    Returns:
        The site file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    site_file = SiteFile(
        name=name,
        role="train",
        source=_write_records(folder, records, task),
        units=units,
        split=Split(test_fraction=0.0, key="0" * 32),
        ledger=LedgerSettings(
            path=folder / "ledger.sqlite",
            witness=folder / "witness" / "ledger.json",
            cohort="audit",
            epsilon=LEDGER_RUNS * privacy.epsilon,
            delta=privacy.delta,
            adjacency=privacy.adjacency,
            durability="normal",
        ),
        policy=Policy(max_run_epsilon=privacy.epsilon, max_clip_norm=max(1.0, privacy.noise_unit)),
        device=device,
        insecure_seed=insecure_seed,
    )
    create_ledger(site_file).close()
    return site_file


def release(
    site_file: SiteFile,
    model: Model,
    task: Task,
    plan: TrainingPlan,
    start: Arrays,
    *,
    run: str,
    round_number: int,
    first_step: int,
    steps: int,
) -> Release:
    """Have a site train, keep all its states, and read the noisy sums off them.

        G_t + sigma_t C xi_t = (w_t - w_{t+1}) B / a_t + (B s / n) grad log p(w_t)

    Args:
        site_file: the site.
        model: the model.
        task: the task.
        plan: the plan, with thinning 1 and no burn-in, so that every state is released.
        start: the state before the first step, parameter name -> array.
        run: the run's identifier.
        round_number: the round.
        first_step: number of the first step within the run.
        steps: how many.

    Returns:
        What the attacker learns.

    Raises:
        UserError: if the site does not train.
    """
    reply, arrays = request_training(
        site_file,
        model,
        task,
        plan,
        prefixed("parameters", start),
        run=run,
        round_number=round_number,
        first_step=first_step,
        steps=steps,
    )
    released = without_prefix("samples", arrays)
    module = build_model(model, task, seed=0)
    vectors = [arrays_to_vector({key: array[i] for key, array in released.items()}, module) for i in range(reply.steps)]
    states = torch.stack([arrays_to_vector(start, module), *vectors]).double()
    sizes = planned_step_sizes(plan)[first_step : first_step + reply.steps]
    batch_size = plan.privacy.sampling_rate * site_file.units
    prior = torch.stack([prior_gradient(plan.prior, state) for state in states[:-1]]).numpy()
    before, after = states[:-1].numpy(), states[1:].numpy()
    return Release(
        noisy_sums=(before - after) * (batch_size / sizes)[:, None]
        + prior * (batch_size * plan.prior_share / site_file.units),
        states=before,
        noise_multipliers=noise_of_steps(read_history(reply.privacy.history))[-reply.steps :],
        step_sizes=sizes,
        reply=reply,
    )


def request_training(
    site_file: SiteFile,
    model: Model,
    task: Task,
    plan: TrainingPlan,
    start: Arrays,
    *,
    run: str,
    round_number: int,
    first_step: int,
    steps: int,
) -> tuple[TrainReply, dict[str, npt.NDArray]]:
    """Send a site the request that a server would send, to the function that the site's app runs.

    Args:
        site_file: the site.
        model: the model.
        task: the task.
        plan: the plan.
        start: the state before the first step, `<slot>/<parameter name>` -> array.
        run: the run's identifier.
        round_number: the round.
        first_step: number of the first step within the run.
        steps: how many.

    Returns:
        The site's reply and its arrays.

    Raises:
        UserError: if the site does not train.
    """
    from clients.refused import RefusedError
    from clients.train import train_chain
    from fl_dpbayes.samplers.chain import ChainDivergedError
    from server.messages import encoded, request_message

    request = TrainRequest(
        run=run,
        round=round_number,
        task=task,
        model=model,
        plan=plan,
        first_step=first_step,
        steps=steps,
        start=arrays_digest(start),
    )
    with task_identity():
        message = request_message(
            request,
            encoded(prefixed("start", start)),
            node_id=1,
            message_type="train",
            round_number=round_number,
            time_to_live=3600.0,
            simulation_folder="",
        )
        try:
            return train_chain(site_file, request, message)
        except (RefusedError, ChainDivergedError) as error:
            raise UserError(f"the audited site {site_file.name!r} did not train: {error}") from None


def start_of(model: Model, task: Task, values: Arrays | None = None) -> Arrays:
    """Return a start state: the given parameters, zero where none is given.

    Args:
        model: the model.
        task: the task.
        values: parameter name -> array of that parameter's shape.

    Returns:
        Parameter name -> float32 array.
    """
    zeros = {name: np.zeros(shape, np.float32) for name, shape in model_shapes(model, task).items()}
    return zeros | (values or {})


def _write_records(folder: Path, records: MadeUpRecords, task: Task) -> Source:
    if len(task.input_shape) == 3 and task.input_shape[0] in (1, 3):
        return _write_images(folder / "records", records, task)
    rows = records.levels.reshape(len(records.labels), -1)
    names = tuple(f"x{column}" for column in range(rows.shape[1]))
    table = pandas.DataFrame(rows, columns=list(names))
    table["label"] = records.labels
    path = folder / "records.csv"
    table.to_csv(path, index=False)
    return Table(path=path, label="label", classes=task.classes, features=names, scales=(records.scale,) * len(names))


def _write_images(folder: Path, records: MadeUpRecords, task: Task) -> Source:
    channels, height, width = task.input_shape
    for label in range(task.classes):
        (folder / f"{label:04d}").mkdir(parents=True)
    for position, (pixels, label) in enumerate(zip(records.levels, records.labels, strict=True)):
        image = Image.fromarray(pixels[0] if channels == 1 else pixels.transpose(1, 2, 0))
        image.save(folder / f"{label:04d}" / f"{position:06d}.png")
    return ImageFolder(path=folder, height=height, width=width, channels=1 if channels == 1 else 3)
