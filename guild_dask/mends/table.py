"""Every mend of guildai 0.9.0. To add one, add it to `MENDS`, and a test to tests/mends/ that fails without it."""

import ast
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from guild_dask.mends.mend import PYTHON, Mend, Range


class View(ModuleType):
    """A module that has some names of its own, and all other names of another module."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        super().__init__(module.__name__, module.__doc__)
        vars(self).update(names)
        vars(self)["__getattr__"] = lambda name: getattr(module, name)


def _imp() -> ModuleType:
    from guild_dask.mends import stand_in_imp

    return stand_in_imp


def _pkg_resources() -> ModuleType:
    from guild_dask.mends import stand_in_pkg_resources

    return stand_in_pkg_resources


def _numpy() -> ModuleType:
    import numpy

    return numpy


class _Constants(type):
    """The class of a class whose instances are the constants that Guild knows: numbers, texts, truth values, None."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, ast.Constant) and isinstance(value.value, (int, float, complex, str, type(None)))


class _Constant(metaclass=_Constants):
    pass


class _Never:
    """Nothing is an instance of it."""


def _ast() -> ModuleType:
    # Guild returns the value of a NameConstant after it has asked for numbers and texts.
    return View(ast, Num=_Never, Str=_Never, NameConstant=_Constant)


def _mend_signs(module: Any) -> None:
    def signed(value: ast.UnaryOp) -> Any:
        signs: dict[type, Callable[[Any], Any]] = {ast.USub: lambda x: -x, ast.UAdd: lambda x: +x}
        operand = value.operand
        if (
            isinstance(operand, ast.Constant)
            and type(operand.value) in (int, float, complex)
            and type(value.op) in signs
        ):
            return signs[type(value.op)](operand.value)
        raise TypeError(value)

    module._unary_val = signed


def _mend_importer(module: Any) -> None:
    if not hasattr(module.ModelImporter, "find_spec"):
        module.ModelImporter.find_spec = staticmethod(lambda _fullname, _target=None: None)


def _mend_text_files(module: Any) -> None:
    is_text_file = module.is_text_file

    def mended(path: str, ignore_ext: bool = False) -> bool:
        try:
            return bool(is_text_file(path, ignore_ext))
        except TypeError:  # decodes with the encoding None
            return False

    module.is_text_file = mended


def _plain_default(parameter: Any) -> None:
    """Gives an option the default that it has in click 8.2 and before, if it was declared without one."""
    from click.core import UNSET  # type: ignore[attr-defined]  # since 8.3

    if parameter.default is UNSET:
        off = () if parameter.multiple else False
        parameter.default = off if getattr(parameter, "is_flag", False) and not parameter.required else None


def _mend_run_defaults(module: Any) -> None:
    for each in module.run.params:
        _plain_default(each)


def _mend_click_flags(module: Any) -> None:
    apply_flag = module._maybe_apply_flag

    def mended(parameter: Any, flags: Any) -> None:
        _plain_default(parameter)
        apply_flag(parameter, flags)

    module._maybe_apply_flag = mended


def _mend_doubled_options(module: Any) -> None:
    """Takes an option's name from all but the last parameter that has it, which click uses."""
    import click

    for command in [each for each in vars(module).values() if isinstance(each, click.Command)]:
        taken: set[str] = set()
        for parameter in reversed(command.params):
            if isinstance(parameter, click.Option):
                parameter.opts[:] = [each for each in parameter.opts if each not in taken]
            taken.update(parameter.opts)


def _mend_regressors(module: Any) -> None:
    from sklearn.base import RegressorMixin

    def is_regressor(estimator: object) -> bool:
        kind = estimator if isinstance(estimator, type) else type(estimator)
        return issubclass(kind, RegressorMixin)

    module.is_regressor = is_regressor


def _mend_forests(module: Any) -> None:
    for each in (module.RandomForestRegressor, module.ExtraTreesRegressor):
        defaults = each.__init__.__defaults__
        each.__init__.__defaults__ = tuple(1.0 if value == "auto" else value for value in defaults)


def _mend_gradient_boosting(module: Any) -> None:
    module.np = View(module.np, in1d=module.np.isin)


def _mend_preview(module: Any) -> None:
    is_optimizer = module._is_likey_optimizer
    module._is_likey_optimizer = lambda op: is_optimizer(op) or op.opref.model_name == "dask"


def _refuse_second_starts(module: Any) -> None:
    init_run = module.init_run

    def mended(op: Any, run_dir: str | None = None) -> Any:
        existing = run_dir or op.run_dir
        if existing and os.path.isdir(existing):
            from guild_dask.home.second_start import refusal_for

            why = refusal_for(existing)
            if why:
                raise SystemExit(why, 1)  # as Guild reports an error of the user's
        return init_run(op, run_dir)

    module.init_run = mended


def _skip_runs_in_the_making(module: Any) -> None:
    def has_opref(run_dir: str) -> bool:
        from guild_dask.home import layout

        try:
            return os.path.getsize(layout.opref(run_dir)) > 0
        except OSError:
            return False

    module._opref_exists = has_opref


def _keep_equal_oprefs(module: Any) -> None:
    write = module.Run.write_encoded_opref

    def mended(run: Any, encoded: str) -> None:
        if run._read_opref() != encoded:
            write(run, encoded)

    module.Run.write_encoded_opref = mended


def _clear_pending_once(module: Any) -> None:
    from weakref import WeakSet

    op_util = module.op_util
    staged: WeakSet[Any] = WeakSet()

    def set_run_staged(run: Any) -> None:
        op_util.set_run_staged(run)
        staged.add(run)

    def clear_run_pending(run: Any) -> None:
        if run not in staged:
            op_util.clear_run_pending(run)

    module.op_util = View(op_util, set_run_staged=set_run_staged, clear_run_pending=clear_run_pending)


MENDS: tuple[Mend, ...] = (
    Mend(
        "imp",
        where=("guild.op_main", "guild.python_util"),
        why="every command fails: Python has no module imp",
        needed=(Range(PYTHON, "3.12"),),
        imports={"imp": _imp},
    ),
    Mend(
        "pkg_resources",
        where=(
            "guild.commands.check_impl",
            "guild.commands.init_impl",
            "guild.entry_point_util",
            "guild.guildfile",
            "guild.model",
            "guild.pip_util",
            "guild.python_util",
            "guild.util",
            "tensorboard.data.server_ingester",
            "tensorboard.default",
        ),
        why="run, stage and check fail without pkg_resources, or warn about it",
        needed=(Range("setuptools", "80.9", or_missing=True),),
        imports={"pkg_resources": _pkg_resources},
    ),
    Mend(
        "ast",
        where=("guild.python_util",),
        why="every command fails: ast has no Num and Str",
        needed=(Range(PYTHON, "3.12"),),  # from 3.12 to 3.13 they are deprecated
        imports={"ast": _ast},
        change=_mend_signs,
    ),
    Mend(
        "find_spec",
        where=("guild.model",),
        why="steps, staged pipelines and 'python -m guild...' fail: Python calls only find_spec",
        needed=(Range(PYTHON, "3.12"),),
        change=_mend_importer,
    ),
    Mend(
        "protobuf",
        where=("guild",),
        why="its C part does not work on this Python, and scalars of runs are lost",
        needed=(Range(PYTHON, "3.14"), Range("protobuf", before="5")),
        refuses="google._upb._message",
    ),
    Mend(
        "umath_tests",
        where=("guild.plugins.skopt_forest_main", "guild.plugins.skopt_gbrt_main", "guild.plugins.skopt_util"),
        why="ranges and optimizers fail: numpy has no umath_tests, which Guild imports and does not use",
        needed=(Range("numpy", "1.25"),),
        imports={"numpy.core.umath_tests": _numpy},
    ),
    Mend(
        "is_regressor",
        where=("guild._skopt.optimizer.optimizer", "guild._skopt.utils"),
        why="optimizers fail: scikit-learn takes only instances",
        needed=(Range("scikit-learn", "1.6"),),
        change=_mend_regressors,
    ),
    Mend(
        "max_features",
        where=("guild._skopt.learning.forest",),
        why="the optimizer forest fails: scikit-learn has no max_features='auto'",
        needed=(Range("scikit-learn", "1.3"),),
        change=_mend_forests,
    ),
    Mend(
        "in1d",
        where=("guild._skopt.learning.gbrt",),
        why="the optimizer gbrt fails: numpy has no in1d",
        needed=(Range("numpy", "2.4"),),
        change=_mend_gradient_boosting,
    ),
    Mend(
        "chardet",
        where=("guild.util",),
        why="run fails where a project has a binary file of unknown type",
        needed=(Range("chardet", "6"),),
        change=_mend_text_files,
    ),
    Mend(
        "click-steps",
        where=("guild.commands.run",),
        why="steps warn about parameters that were not given: options without default have click's UNSET",
        needed=(Range("click", "8.3"),),
        change=_mend_run_defaults,
    ),
    Mend(
        "click-flags",
        where=("guild.plugins.click_flags",),
        why="scripts with click get the text Sentinel.UNSET for options without default",
        needed=(Range("click", "8.3"),),
        change=_mend_click_flags,
    ),
    Mend(
        "click-doubled",
        where=("guild.commands.api_merge", "guild.commands.merge", "guild.commands.runs_merge"),
        why="merge warns that -S is used more than once",
        needed=(Range("click", "8.2"),),
        change=_mend_doubled_options,
    ),
    Mend(
        "second-start",
        where=("guild.op",),
        why="'guild run --start' and '--restart' start a second copy of a run that a scheduler runs, in its directory",
        # Guild calls no plugin when it starts a run that exists.
        change=_refuse_second_starts,
    ),
    Mend(
        "preview",
        where=("guild.commands.run_impl",),
        why="the preview of dask:random does not name its objective: Guild takes every operation 'random' for its own",
        change=_mend_preview,
    ),
    Mend(
        "new-run",
        where=("guild.var",),
        why="'guild runs' fails at the instant in which a run is made: its file opref is still empty",
        change=_skip_runs_in_the_making,
    ),
    Mend(
        "started-run",
        where=("guild.run",),
        why="'guild runs' fails at the instant in which a staged run is started: its file opref is being rewritten",
        change=_keep_equal_oprefs,
    ),
    Mend(
        "staged-run",
        where=("guild.op",),
        why="a run that a scheduler takes in the instant in which it is staged is shown as error until it starts",
        # Guild removes the marker PENDING twice: the second one may be the scheduler's.
        change=_clear_pending_once,
    ),
)
