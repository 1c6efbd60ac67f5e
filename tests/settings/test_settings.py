"""Settings: flags and configuration to one value, or to an error that a user can act on."""

import pathlib
import queue
from collections.abc import Mapping
from typing import Any

import dask.config
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from guild_dask.plan.resources import Request, request_for_spec
from guild_dask.settings.cluster_spec import WorkerCount
from guild_dask.settings.readers import READERS
from guild_dask.settings.settings import BadSetting, DashboardAddress, Settings, section_of, settings_for

checked = settings(deadline=None, max_examples=200)

LOCAL = "127.0.0.1"

# What is accepted, as in the error for any other value.
ACCEPTED = {
    "workers": "a whole number of at least 1",
    "poll-interval": "a number of seconds above 0",
    "run-once": "yes or no",
    "fail": "yes or no",
    "wait-for-running": "yes or no",
    "cluster": "local, the address of a Dask scheduler",
    "lease": "a number of seconds",
    "dry-run": "yes or no",
    "warm": "yes or no",
    "preload": "names of modules such as",
    "gpus": "auto, the numbers or ids of devices",
    "time-limit": "a time such as 90m",
    "retries": "a whole number of at least 0",
    "dashboard-address": "a port (8787), an address (0.0.0.0:8787), 0 for any free port, or no for none",
    "dashboard-token": "yes or no",
    "loglevel": "one of debug, info, warn, error",
    "progress": "auto, yes or no",
    "notify": "a command such as",
}


def with_flag(name: str, text: str) -> Settings:
    return settings_for({name: text}, {})


def with_configured(name: str, value: object) -> Settings:
    section, _ = section_of({"guild-dask": {name: value}})
    return settings_for({}, section)


def problem_with(flags: Mapping[str, str], configuration: Mapping[str, Any]) -> str | None:
    try:
        settings_for(flags, configuration)
    except BadSetting as e:
        return str(e)
    return None


def collected(folder: pathlib.Path, text: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Returns Dask's configuration for a YAML file and an environment, as Dask itself reads them."""
    (folder / "guild-dask.yaml").write_text(text)
    configuration: dict[str, Any] = dask.config.collect(paths=[str(folder)], env=environ)
    return configuration


def test_defaults_are_those_of_the_help() -> None:
    assert settings_for({}, {}) == Settings(
        workers=None,
        resources=Request({}),
        poll_interval=10,
        run_once=False,
        wait_for_running=False,
        dashboard_address=DashboardAddress(LOCAL, 8787),
        loglevel="warn",
    )


@pytest.mark.parametrize("text", ["no", "No", "none", "false", "off", "n", "0", ""])
def test_no_is_written_in_the_same_ways_for_every_flag(text: str) -> None:
    values = {"time-limit": None, "preload": (), "warm": False, "fail": False, "dashboard-token": False}
    # 0 is a value of these: the first GPU, and any free port.
    values |= {} if text == "0" else {"gpus": None, "dashboard-address": None}
    assert {name: READERS[name](text) for name in values} == values
    assert READERS["gpus"]("0") == ("0",)
    assert READERS["dashboard-address"]("0").port == 0


def test_flag_that_is_not_given_is_a_default() -> None:
    assert settings_for(dict.fromkeys(READERS), {}) == Settings()


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("workers", "1", WorkerCount(1, 1)),
        ("workers", " 64 ", WorkerCount(64, 64)),
        ("poll-interval", "0.5", 0.5),
        ("poll-interval", "10", 10),
        ("run-once", "yes", True),
        ("run-once", "TRUE", True),
        ("run-once", "1", True),
        ("run-once", "no", False),
        ("run-once", "", False),  # how Guild passes `no` for a flag without a type
        ("wait-for-running", "on", True),
        ("wait-for-running", "off", False),
        ("dashboard-address", "8788", DashboardAddress(LOCAL, 8788)),
        ("dashboard-address", "0", DashboardAddress(LOCAL, 0)),
        ("dashboard-address", "0.0.0.0:8787", DashboardAddress("0.0.0.0", 8787)),
        ("dashboard-address", ":8787", DashboardAddress("0.0.0.0", 8787)),
        ("dashboard-address", "my-node.example.org:0", DashboardAddress("my-node.example.org", 0)),
        ("dashboard-address", "no", None),
        ("dashboard-address", "", None),
        ("gpus", "auto", ("auto",)),
        ("gpus", "0, 1,2", ("0", "1", "2")),
        ("gpus", "GPU-8f6e-11, MIG-3/1/0", ("GPU-8f6e-11", "MIG-3/1/0")),
        ("gpus", "no", None),
        ("time-limit", "90m", 5400),
        ("time-limit", "no", None),
        ("preload", "numpy, sklearn.ensemble,,numpy", ("numpy", "sklearn.ensemble")),
        ("preload", "no", ()),
        ("filter", "op = train", "op = train"),
        ("filter", "", None),
        ("loglevel", "debug", "debug"),
        ("loglevel", "WARNING", "warn"),
        ("progress", "Auto", "auto"),
        ("progress", "on", "yes"),
        ("notify", "send 'to me'", ("send", "to me")),
        ("progress", "", "no"),
        ("resources", "gpu=2 mem=8GB", request_for_spec("gpu=2 mem=8GB")),
    ],
)
def test_good_value_is_read(name: str, text: str, expected: object) -> None:
    assert getattr(with_flag(name, text), name.replace("-", "_")) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("workers", "0"),
        ("workers", "x"),
        ("workers", "-1"),
        ("workers", "1.5"),
        ("workers", ""),
        pytest.param("workers", "9" * 5000, id="long"),  # more digits than Python reads as a number
        ("poll-interval", "-1"),
        ("poll-interval", "0"),
        ("poll-interval", "nan"),
        ("poll-interval", "inf"),
        ("poll-interval", "1e300"),  # longer than the operating system can wait
        ("poll-interval", "ten"),
        ("run-once", "maybe"),
        ("wait-for-running", "2"),
        ("dashboard-address", "65536"),
        ("dashboard-address", "-1"),
        ("dashboard-address", "localhost"),
        ("dashboard-address", "http://localhost:8787"),
        ("dashboard-address", "a b:8787"),
        ("dashboard-address", "::1:8787"),
        ("dashboard-address", "localhost:"),
        ("gpus", "atuo"),
        ("gpus", "-1"),
        ("gpus", "0,none"),
        ("gpus", "0,0"),
        ("loglevel", "loud"),
        ("progress", "some"),
        ("notify", "'no end"),
        ("preload", "numpy,train.py,2x"),
        ("preload", "sklearn..ensemble"),
    ],
)
def test_error_for_a_bad_flag_names_flag_value_and_what_is_accepted(name: str, text: str) -> None:
    with pytest.raises(BadSetting) as error:
        with_flag(name, text)
    assert str(error.value).startswith(f"invalid value {name}={text}: use {ACCEPTED[name]}")


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("workers", 0, "0"),
        ("workers", True, "yes"),
        ("poll-interval", [1], "[1]"),
        ("run-once", "perhaps", "perhaps"),
        ("dashboard-address", 70000, "70000"),
        ("loglevel", 3, "3"),
    ],
)
def test_error_for_a_bad_key_says_that_it_is_in_the_configuration(name: str, value: object, shown: str) -> None:
    with pytest.raises(BadSetting) as error:
        with_configured(name, value)
    source = f"invalid value {name}={shown} in Dask's configuration (guild-dask): "
    assert str(error.value).startswith(f"{source}use {ACCEPTED[name]}")


def test_error_is_one_line() -> None:
    with pytest.raises(BadSetting, match=r"invalid value workers='1\\n2': use a whole number"):
        with_flag("workers", "1\n2")


def test_unreadable_resources_are_no_error() -> None:
    # The scheduler logs a warning, and starts without them.
    assert with_flag("resources", "foo").resources.unreadable
    assert with_configured("resources", "foo").resources.unreadable


def test_longest_accepted_poll_interval_can_be_waited_for() -> None:
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    events.put("event")
    assert events.get(timeout=with_flag("poll-interval", "1e9").poll_interval) == "event"


def test_resources_of_the_configuration_may_be_a_mapping() -> None:
    assert with_configured("resources", {"gpu": 2, "mem": "8GB"}).resources.amounts == {"gpu": 2, "mem": 8e9}


def test_modules_of_the_configuration_may_be_a_list() -> None:
    assert with_configured("preload", ["numpy", "torch.nn"]).preload == ("numpy", "torch.nn")


def test_words_that_yaml_reads_as_booleans_are_accepted(tmp_path: pathlib.Path) -> None:
    text = "guild-dask: {run-once: yes, wait-for-running: off, dashboard-address: no}"
    section, unknown = section_of(collected(tmp_path, text, {}))
    found = settings_for({}, section)
    assert (found.run_once, found.wait_for_running, found.dashboard_address, unknown) == (True, False, None, [])


def test_key_without_a_value_is_a_default() -> None:
    assert with_configured("dashboard-address", None) == Settings()


@pytest.mark.parametrize("section", ["guild-dask", "guild_dask"])
@pytest.mark.parametrize("key", ["poll-interval", "poll_interval"])
def test_section_and_keys_may_have_hyphens_or_underscores(tmp_path: pathlib.Path, section: str, key: str) -> None:
    # For Dask itself, both are the same.
    assert section_of(collected(tmp_path, f"{section}: {{{key}: 3}}", {})) == ({"poll-interval": 3}, [])


@pytest.mark.parametrize("section", ["guild-dask", "guild_dask"])
@pytest.mark.parametrize("key", ["poll-interval", "poll_interval"])
def test_flag_wins_over_environment_and_that_over_files(tmp_path: pathlib.Path, section: str, key: str) -> None:
    text = f"{section}: {{{key}: 3, workers: 3, loglevel: info}}"
    environ = {"DASK_GUILD_DASK__POLL_INTERVAL": "4", "DASK_GUILD_DASK__WORKERS": "4"}
    configuration, unknown = section_of(collected(tmp_path, text, environ))
    found = settings_for({"workers": "5", "poll-interval": None}, configuration)
    assert (found.workers, found.poll_interval, found.loglevel, unknown) == (WorkerCount(5, 5), 4, "info", [])


def test_number_of_workers_is_marked_when_a_flag_gives_it() -> None:
    # The number is logged only then.
    assert with_flag("workers", "2").workers_given
    assert not with_configured("workers", 2).workers_given


def test_bad_value_in_the_configuration_is_no_error_when_a_flag_gives_a_good_one() -> None:
    assert settings_for({"workers": "2"}, {"workers": "many"}).workers == WorkerCount(2, 2)


def test_unknown_keys_are_named() -> None:
    known, unknown = section_of(
        {"guild-dask": {"wokers": 8, "loglevel": "info"}, "guild_dask": {"run_one": True, 3: 4}}
    )
    assert known == {"loglevel": "info"}
    assert unknown == ["wokers", "run_one", "3"]


def test_other_sections_are_ignored() -> None:
    assert section_of({"distributed": {"workers": 8}, "workers": 9}) == ({}, [])


@pytest.mark.parametrize("section", ["8", 8, 0, "", [], ["workers"], False])
def test_section_that_is_not_a_mapping_is_reported_as_unknown(section: object) -> None:
    assert section_of({"guild-dask": section}) == ({}, [str(section)])


def test_empty_section_has_no_settings() -> None:
    assert section_of({"guild-dask": None}) == ({}, [])


@checked
@given(st.sampled_from(tuple(READERS)), st.text() | st.from_regex(r"[-+0-9.e_:\[\]]{1,8}", fullmatch=True))
def test_any_text_for_a_flag_is_a_setting_or_a_one_line_error(name: str, text: str) -> None:
    # With a job queue, no flag is rejected only because it needs one.
    problem = problem_with({"cluster": "slurm", name: text}, {})
    assert problem is None or (problem.isprintable() and name in problem and ACCEPTED[name] in problem)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary()
VALUES = st.recursive(SCALARS, lambda some: st.lists(some) | st.dictionaries(SCALARS, some), max_leaves=8)


@checked
@given(VALUES | st.dictionaries(st.sampled_from(tuple(READERS)) | SCALARS, VALUES))
def test_any_configuration_gives_settings_or_a_one_line_error(section: object) -> None:
    known, unknown = section_of({"guild-dask": section})
    assert all(isinstance(key, str) for key in [*known, *unknown])
    problem = problem_with({}, known)
    assert problem is None or problem.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "&a [*a]",  # contains itself
        pytest.param("0x" + "f" * 5000, id="long"),  # more digits than Python writes as a text
    ],
)
def test_value_that_python_cannot_show_is_an_error_like_any_other(text: str) -> None:
    value = yaml.safe_load(text)
    with pytest.raises(BadSetting, match="use a whole number"):
        with_configured("workers", value)
    assert with_configured("resources", {"gpu": value}).resources.unreadable
    assert len(section_of({"guild-dask": value})[1]) == 1


def test_only_one_pool_may_be_local() -> None:
    # Both would have a worker of the same name, and each would use the whole machine.
    pools = {"a": {"cluster": "local", "workers": 2}, "b": {"cluster": "local", "workers": 4}}
    with pytest.raises(BadSetting, match="only one pool can have cluster: local"):
        settings_for({}, {"pools": pools})


@pytest.mark.parametrize(
    ("given", "meant"), [("slrum", "slurm"), ("SLUM", "slurm"), ("locla", "local"), ("pool", "pools")]
)
def test_misspelt_cluster_gets_a_hint(given: str, meant: str) -> None:
    with pytest.raises(BadSetting, match=rf"cluster={given}: use .*; did you mean {meant}\?$"):
        settings_for({"cluster": given}, {})


def test_cluster_that_resembles_none_gets_no_hint() -> None:
    with pytest.raises(BadSetting, match=r"pools as configured$"):
        settings_for({"cluster": "xyzzy"}, {})
