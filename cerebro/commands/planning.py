"""Plans of fit and evaluation runs: models, partitions, parallel plans, from a request and the state. Pure.

The controller computes them when a run begins. A client computes them before it requests a run, so that an impossible
request fails at once with the same message. The plan of an ETL run needs the metadata: see
`controller.preparation.preparation`. When and where each sub-epoch runs is decided later, by `cerebro.scheduling`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from cerebro.contract.parallel_plans import FUSED, SINGLE, ParallelPlan, Params, TechniqueChoice
from cerebro.contract.records import Hyperparameters
from cerebro.contract.runs import EvaluatePlan, EvaluateRequest, FitPlan, FitRequest
from cerebro.contract.search import ChoiceOf, RandInt, Space
from cerebro.errors import DataError, NotFoundError, SearchSpaceError, SpecError
from cerebro.scheduling.policies import POLICIES
from cerebro.state import Dataset, ExperimentState, Run
from cerebro.state.runs.folds import divided, models_of
from cerebro.state.runs.pruning import is_removed, removal_text


def plan_fit(state: ExperimentState, request: FitRequest, devices: Mapping[str, int]) -> FitPlan:
    """Name the models of a fit and check them against the newest data set.

    Args:
        devices: training worker -> number of devices, if known.

    Raises:
        DataError: the data set or its training rows are missing.
        SearchSpaceError: a ``batch_size`` is missing, not a positive integer, or larger than a partition. For a
            search: the smallest one in its space.
        SpecError: no worker has the requested number of devices.
    """
    dataset = _dataset(state)
    partitions = dataset.partitions("train")
    if not partitions:
        raise DataError(
            f"the data set of experiment {state.name!r} has no training rows: give a locator for the split 'train' "
            "and call run_etl"
        )
    if request.scheduler not in POLICIES:
        raise SearchSpaceError(
            f"no scheduler {request.scheduler!r}: choose one of {', '.join(sorted(POLICIES))}"
        )
    width = max(2, len(str(len(request.models) - 1)))
    models = {f"m{number:0{width}}": hyperparams for number, hyperparams in enumerate(request.models)}
    for name, hyperparams in models.items():
        _check_batch_size(f"of model {name}", hyperparams, partitions)
    if request.search is not None and request.search.space:
        _check_batch_size("of the search space", _smallest_batch(request.search.space), partitions)
    parallel_plans = parallel_plans_of(
        request.techniques, request.gpus, devices, has_gpus=_has_gpus(state), gang_size=request.gang
    )
    for partition in partitions:
        holders = {w.name: devices[w.name] for w in state.holders(dataset.id, partition) if w.name in devices}
        _check_reach(partition, holders, parallel_plans)
    folds = _folds(request, partitions, dataset)
    return FitPlan(
        dataset=dataset.id,
        models=models_of(models, len(folds)) if folds else models,
        folds=folds,
        partitions=partitions,
        valid_partitions=tuple(sorted(dataset.partitions("valid"))),
        parallel_plans=parallel_plans,
    )


def _folds(
    request: FitRequest, partitions: Mapping[int, int], dataset: Dataset
) -> tuple[tuple[int, ...], ...]:
    """Divide the partitions into the requested folds; none without a cross-validation."""
    if request.folds is None:
        return ()
    if request.folds > len(partitions):
        raise DataError(
            f"folds={request.folds}, but the data set has {len(partitions)} training partitions, and a fold needs at "
            f"least one: set folds={len(partitions)} or less, or preprocess with more workers"
        )
    if dataset.fitted is not None:
        raise DataError(
            "ETLSpec.fit() has read the rows of all folds, so every model would know the rows that it validates on: "
            "preprocess without fit() for a cross-validation"
        )
    return divided(partitions, request.folds)


_FUSED: Params = {"models": 16}
"""Maximum size of a fused group without measurements: larger groups are hardly faster."""
_CHECKPOINTED: Params = {"checkpointing": True}
_OFFLOADS: tuple[Params, ...] = ({}, _CHECKPOINTED, {**_CHECKPOINTED, "activations": True})


def parallel_plans_of(
    techniques: Sequence[TechniqueChoice] | None,
    gpus: Collection[int],
    devices: Mapping[str, int],
    *,
    has_gpus: bool = True,
    gang_size: int = 1,
) -> tuple[ParallelPlan, ...]:
    """Return the parallel plans of a fit, in the order in which they are tried if no measurements exist.

    Named techniques keep their order, fewer devices first, but `fused` precedes `single`. Without names a sub-epoch
    runs on one device, as user code is written. After running out of memory it uses the next plan: first plans that
    need less memory on one device, cheapest in time first, then plans that split batches and model state across
    devices.

    Args:
        techniques, gpus: as in `FitRequest`.
        devices: training worker -> number of devices, if known.
        has_gpus: True if a worker may have GPUs. Without GPUs, offloading to the host saves nothing.
        gang_size: workers that train a sub-epoch together. Their plans come first; the others are for models that
            these cannot train.

    Raises:
        SpecError: no worker has the requested number of devices, or there are fewer workers than `gang_size`.
    """
    gang_plans = _gang_parallel_plans(techniques, gpus, devices, gang_size)
    most = max(devices.values(), default=1)
    known_devices = (
        ", ".join(f"{name}: {count}" for name, count in sorted(devices.items())) or "none is known"
    )
    if devices and gpus and max(gpus) > most:
        raise SpecError(
            f"gpus names {max(gpus)}, but no worker has as many devices: choose at most {most}. The workers "
            f"and their devices: {known_devices}"
        )
    sizes = sorted(gpus) or sorted({most, *(1 << bit for bit in range(most.bit_length()))})
    if techniques is None:
        return (*gang_plans, *_default_plans(sizes, has_gpus=has_gpus))
    found = [
        ParallelPlan(
            technique=each.name,
            version=each.version,
            params=each.params or (_FUSED if each.name == FUSED and each.code is None else {}),
            size=size,
            processes=each.processes,
            code=each.code,
        )
        for each in techniques
        for size in sizes
        if each.least <= size <= each.most
    ]
    if not found and gang_plans:
        return (*gang_plans, SINGLE)
    if not found:
        needs = "; ".join(
            f"{each.name} takes {each.least}"
            if each.least == each.most
            else f"{each.name} {each.least} or more"
            for each in techniques
        )
        raise SpecError(
            f"none of the techniques can be used on {_alternatives(sizes)} devices ({needs}): name others, or "
            f"other numbers in gpus. The workers and their devices: {known_devices}"
        )
    if any(plan.fused_models for plan in found):
        if SINGLE not in found:
            found.append(SINGLE)  # for models without partners, and models that fail in a group
        # A named `single` doesn't exclude stacks: the controller measures both.
        place = found.index(SINGLE)
        found[place:] = sorted(found[place:], key=lambda plan: not plan.fused_models)
    return (*gang_plans, *found)


def _gang_parallel_plans(
    techniques: Sequence[TechniqueChoice] | None,
    gpus: Collection[int],
    devices: Mapping[str, int],
    gang_size: int,
) -> tuple[ParallelPlan, ...]:
    """Return plans for gangs, on all devices of each worker unless `gpus` names numbers."""
    if gang_size == 1:
        return ()
    if devices and len(devices) < gang_size:
        raise SpecError(
            f"gang is {gang_size}, but {len(devices)} worker{'s train' if len(devices) > 1 else ' trains'} "
            f"({', '.join(sorted(devices))}): choose at most as many, or add workers"
        )
    named = techniques or [TechniqueChoice(name=name, least=2) for name in ("ddp", "fsdp")]
    # The largest number of devices that `gang_size` workers have.
    most = sorted(devices.values(), reverse=True)[gang_size - 1] if devices else max(gpus, default=1)
    size = max((number for number in gpus if number <= most), default=0) if gpus else most
    if not size:
        known_devices = ", ".join(f"{name}: {count}" for name, count in sorted(devices.items()))
        raise SpecError(
            f"gang is {gang_size}, but fewer workers have {min(gpus)} devices, the least that gpus names ("
            f"{known_devices}): name a smaller number"
        )
    found = tuple(
        ParallelPlan(
            technique=each.name,
            version=each.version,
            params=each.params,
            size=size,
            workers=gang_size,
            code=each.code,
        )
        for each in named
        if each.processes == "ranks" and each.least <= gang_size * size <= each.most
    )
    if not found:
        raise SpecError(
            f"none of the techniques can be used by a gang of {gang_size} workers: name one that shares the rows of a "
            "batch between devices, such as 'ddp', too"
        )
    return found


def _check_reach(
    partition: int, holders: Mapping[str, int], parallel_plans: Collection[ParallelPlan]
) -> None:
    """Raise `SpecError` if no holder of a partition has enough devices for any plan."""
    least = min(parallel_plan.size for parallel_plan in parallel_plans if parallel_plan.workers == 1)
    if holders and max(holders.values()) < least:
        known_devices = ", ".join(f"{name}: {count}" for name, count in sorted(holders.items()))
        raise SpecError(
            f"partition {partition} of the training data is held by workers with fewer than {least} devices "
            f"({known_devices}), and each parallel plan takes {least} or more: name a technique that takes fewer, such "
            "as 'single', too"
        )


def _default_plans(sizes: list[int], *, has_gpus: bool) -> Iterator[ParallelPlan]:
    several = [size for size in sizes if size > 1]
    if 1 in sizes:
        yield SINGLE
        yield ParallelPlan(technique="checkpointing", processes="one")
        if has_gpus:
            yield from (
                ParallelPlan(technique="offload", params=params, processes="one") for params in _OFFLOADS
            )
    for size in several:
        yield ParallelPlan(technique="ddp", size=size)
        yield ParallelPlan(technique="fsdp", size=size)
        yield ParallelPlan(technique="fsdp", params=_CHECKPOINTED, size=size)


def _has_gpus(state: ExperimentState) -> bool:
    """Return True if a training worker has GPUs, or devices of unknown kind, or if no worker is known."""
    workers = [worker for worker in state.workers.values() if worker.trains and not worker.is_removed]
    return not workers or any(w.device is None or w.device.kind == "gpu" for w in workers)


def _alternatives(sizes: list[int]) -> str:
    return " or ".join(map(str, sizes))


def etl_weights(state: ExperimentState) -> dict[str, float]:
    """Return the weights of the workers that share the rows of a new data set.

    The ETL worker of a volume prepares data for all workers on it, so it gets the largest of their weights.
    """
    alive = [worker for worker in state.workers.values() if worker.is_alive]
    return {
        worker.name: max(other.weight for other in alive if other.volume == worker.volume)
        for worker in sorted(alive, key=lambda worker: worker.name)
        if "etl" in worker.kinds
    }


def _testable_models(fit: Run) -> str:
    """List up to five models with a checkpoint of their best epoch, best first, in brackets."""
    testable = [
        model.id
        for model in fit.best_models(len(fit.models))
        if not is_removed(model, fit.best_epoch(model) or 0)
    ]
    return f" ({', '.join(testable[:5])})" if testable else ""


def plan_evaluation(
    state: ExperimentState, request: EvaluateRequest, *, has_misc: bool = True
) -> EvaluatePlan:
    """Choose models, epochs and partitions of a test or prediction.

    A test runs each model on the whole split at once.

    Args:
        has_misc: False if the experiment has no `misc` files.

    Raises:
        NotFoundError: the fit run or a model does not exist, or its best epoch is unknown.
        DataError: the newest data set lacks the split, or differs from the models' own one in more than its rows.
    """
    fit = state.runs.get(request.fit)
    if fit is None or not isinstance(fit.request, FitRequest):
        known = ", ".join(run.id for run in state.runs.values() if run.kind == "fit") or "none"
        raise NotFoundError(f"no fit run {request.fit!r} in experiment {state.name!r}; there is: {known}")
    best = fit.best_model()
    names = request.models or ((best.id,) if best else ())
    if not names:
        raise NotFoundError(f"{fit.id} has no best model: no model finished an epoch")
    models: dict[str, int] = {}
    for name in names:
        if name not in fit.models:
            raise NotFoundError(f"no model {name!r} in {fit.id}: it has {', '.join(fit.models)}")
        epoch = fit.best_epoch(fit.models[name])
        if epoch is None:
            raise NotFoundError(
                f"model {name!r} of {fit.id} has no completed epoch with the metric {fit.request.metric!r}"
            )
        if is_removed(fit.models[name], epoch):
            removal = removal_text(fit, fit.models[name], epoch)
            raise NotFoundError(
                f"{removal}: name a model that has its checkpoints{_testable_models(fit)}, or clone it cold"
            )
        models[name] = epoch
    dataset = _readable_dataset(state, fit, names, has_misc=has_misc)
    partitions = dataset.partitions(request.split)
    if not partitions:
        raise DataError(
            f"the data set of experiment {state.name!r} has no rows of split {request.split!r}: "
            "give a new experiment a locator for it, and call run_etl and run_fit there"
        )
    return EvaluatePlan(
        kind=request.kind,
        dataset=dataset.id,
        fit=fit.id,
        models=models,
        partitions=partitions,
        # No worker has all training data.
        is_whole=request.kind == "test" and request.split != "train",
    )


def _readable_dataset(state: ExperimentState, fit: Run, models: Sequence[str], *, has_misc: bool) -> Dataset:
    """Return the newest data set, after checking that models of a fit can read it.

    They can if the same spec made it with the same `misc` files and result of `ETLSpec.fit`: then it prepares a row in
    the same way.
    """
    newest = _dataset(state)
    if not isinstance(fit.plan, FitPlan) or fit.plan.dataset == newest.id:
        return newest
    known = state.datasets[fit.plan.dataset]
    requests = state.etl_request(known.id), state.etl_request(newest.id)
    codes = [request.code_fingerprint if request else "" for request in requests]
    results = [dataset.fitted.checksum if dataset.fitted else "" for dataset in (known, newest)]
    misc = [dataset.plan.misc for dataset in (known, newest)]
    if not has_misc or newest.plan.misc == "":  # locators never change once a data set exists
        misc = ["", ""]
    if codes[0] != codes[1]:
        difference = "another ETL spec or other package versions"
    elif None in misc:
        difference = "possibly other `misc` files, which version 0.3.0 did not record,"
    elif misc[0] != misc[1]:
        difference = "other `misc` files"
    elif results[0] != results[1]:
        difference = "another result of ETLSpec.fit"
    else:
        return newest
    fit_etl, newest_etl = (state.etl_runs(dataset.id)[-1].id for dataset in (known, newest))
    repetition = (
        f", or repeat {fit_etl}: call run_etl with its spec, package versions, training rows, seed and fraction"
        # A `misc` file has another version even if it is written again with its former content.
        if misc[0] == misc[1] or None in misc
        else ""
    )
    named = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
    raise DataError(
        f"{'models' if len(models) > 1 else 'model'} {named} of {fit.id} cannot read the newest data set: "
        f"{newest_etl} made {newest.id} with {difference} than {fit_etl}, which made {known.id}, the data set "
        f"of {fit.id}. Call run_fit to train on the newest data set{repetition}"
    )


def _dataset(state: ExperimentState) -> Dataset:
    dataset = state.newest_dataset()
    if dataset is None:
        raise DataError(f"experiment {state.name!r} has no preprocessed data: call run_etl first")
    return dataset


def _smallest_batch(space: Space) -> Hyperparameters:
    """Return the smallest ``batch_size`` of a search space."""
    match space.get("batch_size"):
        case ChoiceOf(values=values):
            numbers = [size for size in values if isinstance(size, int)]
            return {"batch_size": min(numbers, default=values[0])}
        case RandInt(low=low):
            return {"batch_size": low}
        case _:
            return {}


def _check_batch_size(owner: str, hyperparams: Hyperparameters, partitions: dict[int, int]) -> None:
    size = hyperparams.get("batch_size")
    if size is None:
        raise SearchSpaceError(f"no hyperparameter 'batch_size' {owner}: add it to the search space")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise SearchSpaceError(f"batch_size {owner} is {size!r}, expected a positive integer")
    smallest = min(partitions, key=lambda p: partitions[p])
    if size > partitions[smallest]:
        raise SearchSpaceError(
            f"batch_size {size} {owner} is larger than partition {smallest}, which has "
            f"{partitions[smallest]} rows: "
            f"choose at most {partitions[smallest]}, or preprocess more data"
        )
