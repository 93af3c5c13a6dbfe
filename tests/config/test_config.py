"""Run files: what they accept, what they refuse, and that a resolved run loads as itself."""

import contextlib
import dataclasses
import re
import tomllib
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daskxml.config import load_run_config
from daskxml.config.run import SECTIONS
from daskxml.config.sections import ClusterSection, EvaluationSection, TrainingSection
from daskxml.config.toml import decode, encode
from daskxml.core.errors import ConfigError
from daskxml.core.fields import type_hints
from daskxml.data.settings import DataSection
from daskxml.strategies import STRATEGIES

LIMIT = {"training": {"megabatches": 3}}


def write(tmp_path, text):
    path = tmp_path / "run.toml"
    path.write_text(text)
    return path


def refusal(*arguments):
    with pytest.raises(ConfigError) as caught:
        load_run_config(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "held", "stored"),
    [("auto", "auto", "auto"), ("2048KiB", 2 << 20, "2MiB"), (1000, 1000, 1000)],
)
def test_a_size_or_auto(written, held, stored):
    config = load_run_config({"training": {"epochs": 1, "logits_budget": written}})
    assert config.training.logits_budget == held
    assert encode(config.training)["logits_budget"] == stored
    assert load_run_config({"training": {"epochs": 1}}).training.logits_budget == "auto"


def test_values_of_a_file_reach_their_sections(tmp_path):
    config = load_run_config(
        write(
            tmp_path,
            """
            [data]
            train = "a.txt"
            feature_base = 1
            block_bytes = "2MiB"
            [model]
            hidden = [64, 32]
            [training]
            minutes = 2
            """,
        )
    )
    assert config.data.train == ("a.txt",)
    assert config.data.feature_base == 1
    assert config.data.block_bytes == 2 << 20
    assert config.model_spec(10, 5).hidden == (64, 32)
    assert (config.model_spec(10, 5).features, config.model_spec(10, 5).labels) == (10, 5)
    assert type(config.training.minutes) is float


@pytest.mark.parametrize(
    ("section", "key", "value", "expected"),
    [
        ("training", "megabatches", -1, "megabatches = -1: must be at least 0"),
        ("training", "megabatches", 1.5, "megabatches = 1.5: must be an integer"),
        ("training", "epochs", "many", "epochs = 'many': must be a number"),
        ("training", "epochs", float("nan"), "epochs = nan: must be a finite number, at least 0"),
        ("training", "target", 1.5, "target = 1.5: must be from 0 to 1"),
        ("training", "target_metric", "accuracy", "target_metric = 'accuracy': must be one of P,"),
        ("training", "logits_budget", "all", "write it like 256MiB, 1.5GB or 4096, or auto"),
        ("training", "logits_budget", 0, "logits_budget = 0: must be at least 1"),
        ("training", "logits_budget", 1.5, "logits_budget = 1.5: must be an integer or one of"),
        ("data", "block_bytes", "auto", "block_bytes: 'auto' is not a size"),
        ("data", "residency", "shared", "residency = 'shared': must be one of 'auto', 'replicate'"),
        ("data", "residency", "shards", ", did you mean 'shard'?"),
        ("data", "feature_base", 2, "feature_base = 2: must be one of 'auto', 0, 1"),
        ("data", "feature_base", True, "feature_base = true: must be one of 'auto', 0, 1"),
        ("data", "train", [1], "train = [1]: must be a list, each item a text"),
        ("data", "card", "delicous", "delicous: no such dataset card; did you mean 'delicious'?"),
        ("evaluation", "k", [], "k = []: must be ranks in ascending order"),
        ("evaluation", "k", [3, 1], "k = [3, 1]: must be ranks in ascending order"),
        ("evaluation", "k", [0], "must be from 1 to 1000"),
        ("model", "features", 3, "unknown key 'features': it is [data] features"),
        ("model", "hidden", [-3], "hidden"),
        ("strategy", "name", "adaptive-sdg", "no such strategy, did you mean 'adaptive-sgd'?"),
        ("strategy", "learning_rate", 3, "unknown key 'learning_rate', did you mean 'lr'?"),
        ("strategy", "batch_mx", 3, "unknown key 'batch_mx', did you mean 'batch_max'?"),
        ("model", "output", "x", "unknown key 'output'; removed: output layers are no longer"),
        ("strategy", "output", 1, "unknown key 'output'; valid for 'adaptive-sgd' are name, lr"),
        ("strategy", "scale_every", "auto", "must be an integer; removed: give it as a number; ru"),
        ("strategy", "pieces", 3, "unknown key 'pieces'; removed: label trees are cut by the numb"),
        ("strategy", "name", "label-tree", "no such strategy; removed: label trees are tasks; ta"),
        ("dashboard", "control", True, "is not a section; removed: a run is ended by `daskxml sto"),
        ("sampling", "shortlist", 9, "unknown key 'shortlist'; removed: negatives by chance are"),
        ("sampling", "model", "run", "unknown key 'model'; removed: negatives by chance are as go"),
    ],
)
def test_refusals_name_place_and_value(section, key, value, expected):
    tables = {"training": {"megabatches": 3}}
    tables.setdefault(section, {})[key] = value
    message = refusal(tables)
    assert message.startswith(f"run configuration: [{section}] ")
    assert expected in message


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_removed_key_is_called_that_under_every_strategy(name):
    strategy = {"name": name, "pieces": 3}
    assert "'pieces'; removed: label trees are cut" in refusal(LIMIT | {"strategy": strategy})


HALF = {"training": {"epochs": 1}, "gpu": {"output_dtype": "float16"}}


@pytest.mark.parametrize(
    ("tables", "expected"),
    [
        ({"trainning": {}}, "[trainning] is not a section, did you mean 'training'?"),
        ({"epochs": 3}, "'epochs' stands outside a section"),
        ({"training": {}}, "give at least one"),
        ({}, "give at least one"),
        (LIMIT | {"strategy": {"name": "mirrored"}, "cluster": {"pools": 1}},
         "[cluster] pools = 1: the workers of strategy 'mirrored' step together, which pools do "
         "not; take one that leases batches, like adaptive-sgd or hogbatch"),
        (LIMIT | {"gpu": {"exact": True}, "cluster": {"device": "cpu"}},
         "[gpu] is for GPUs, but [cluster] device = 'cpu': leave the section out, or let device be "
         "'auto' or 'cuda'"),
        (HALF | {"gpu": {"output_dtype": "float16", "exact": True}},
         "[gpu] output_dtype = 'float16': needs float32 products off"),
        (HALF | {"sampling": {"method": "random"}},
         "[gpu] output_dtype = 'float16': needs all labels"),
        (HALF | {"gpu": {"output_dtype": "bfloat16"}}, "removed: take 'float16', which is faster"),
    ],
)  # fmt: skip
def test_tables_that_are_refused(tables, expected):
    assert expected in refusal(tables)


def test_missing_and_unreadable_files_are_refused(tmp_path):
    assert "no such run file" in refusal(tmp_path / "absent.toml")
    assert "did you mean 'crossbow'?" in refusal("crosbow")
    assert "a directory" in refusal(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "not a text file" in refusal(tmp_path / "binary.toml")


TREES = "[model]\nkind = 'trees'\n"
BOUNDS = "[strategy]\nname = 'adaptive-hogbatch'\n"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[strategy]\nname = 'hogbatch'\n[combine]\norder = 'tree'\nrule = 'sum'", "7: [combine]"),
        ("[strategy]\nname = 'central'\n[combine]\nouter = 'nesterov'", "6: [combine] outer ="),
        ("[strategy]\nname = 'mirrored'\n[cluster]\nworkers = 2\npools = 1", "7: [cluster] pools"),
        ("[strategy]\nname = 'crossbow'\n[sampling]\nk = 3\nmethod = 'simhash'", "7: [sampling]"),
        ("[optimizer]\nclip_norm = 1\n[sampling]\nmethod = 'random'", "6: [sampling] method = 'r"),
        ("[strategy]\nname = 'crossbow'\n[combine]\nquorum = 0.5", "6: [combine] quorum = 0.5: "),
        ("class_weight = [1, 2]\n[cluster]\ndevice = 'cuda'", "3: [training] class_weight = [1"),
        ("[cluster]\ndevice = 'cpu'\n[gpu]\nexact = true", "5: [gpu] is for GPUs"),
        ("[gpu]\nexact = true\noutput_dtype = 'float16'", "5: [gpu] output_dtype = 'float16': "),
        ("target = 0.5\n[evaluation]\nk = [3]", "1: [training] target_metric = 'P@1': is ne"),
        (TREES + "[evaluation]\ntraining_loss = true", "6: [evaluation] training_loss = true: "),
        (TREES + "[data]\nresidency = 'shard'", "6: [data] residency = 'shard': [model] kind ="),
        ("trees = 3", "3: [training] trees = 3: networks have none: give [training] epochs"),
        (TREES + "[strategy]\nname = 'elastic'", "5: [strategy] is for networks: leave it out"),
        ("\n[data]\n  partitions = -4", "5: [data] partitions = -4: must be"),
        ("[strategy]\nmomentum = 0.5\nlr = -1.0", "5: [strategy] lr = -1.0"),
        ("trees = = 1", "3: not valid TOML"),
        ("[cluster]\ndevice = 'cpu'\n[gpu]\nzzz = 1", "5: [gpu] is for GPUs, but [cluster]"),
        (BOUNDS + "batch_max = 64\nbatch_min = 65",
         "6: [strategy] batch_min = 65: must be at most batch_max = 64"),
        (BOUNDS + "pool_batch_max = 4\npool_batch_min = 5",
         "6: [strategy] pool_batch_min = 5: must be at most pool_batch_max = 4"),
    ],
)  # fmt: skip
def test_refusals_of_a_file_name_its_line(tmp_path, text, place):
    number = "trees" if text.startswith(TREES) else "epochs"
    path = write(tmp_path, f"[training]\n{number} = 2\n{text}\n")
    assert refusal(path).startswith(f"{path}:{place}")


def test_an_option_that_the_run_file_does_not_allow_names_the_place_of_either(tmp_path):
    path = write(tmp_path, "[training]\nepochs = 1\n[sampling]\nmethod = 'random'\n")
    problem = "[sampling] method = 'random': needs a CPU: give [cluster] device"
    assert refusal(path, [], {"cluster.device": "cuda"}) == f"{path}:4: {problem}"
    joint = ["strategy.name=central", "combine.quorum=0.75"]
    assert refusal(LIMIT, joint).startswith("--set combine.quorum: quorum = 0.75: the workers of")


SOME = [True, False, 3, 0.5, 1, 2, 64, "adam", "P@3", "delicious", "16MiB", [1, 2], ["m:f"]]


def offered(tables, section):
    """Return the keys, or without a section the sections, that an error calls valid."""
    unknown = {section: {**tables.get(section, {}), "zzzz": 1}} if section else {"zzzz": {}}
    return re.split(r"; valid (?:for .* )?are ", refusal(tables | unknown))[1].split(", ")


def can_be_set(tables, section, field, hint):
    """Return whether some value other than the default is accepted."""
    with_pool = {"pools": 1} if field.name == "pool_threads" else {}
    words = [word for each in (hint, *get_args(hint)) for word in get_args(each)]
    for value in [word for word in words if isinstance(word, str)] + SOME:
        given = {**tables.get(section, {}), **with_pool, field.name: value}
        with contextlib.suppress(ConfigError):
            run = load_run_config(tables | {section: given})
            if getattr(getattr(run, section), field.name) != field.default:
                return True
    return False


ALL = (
    {"model": {"kind": "network"}},
    {"model": {"kind": "trees"}},
    {"cluster": {"device": "cuda"}},
)
SHARING = ("strategy", "combine", "optimizer", "sampling", "cluster")


@pytest.mark.parametrize(
    ("given", "sections"),
    [(given, SECTIONS) for given in ALL]
    + [({"strategy": {"name": name}}, SHARING) for name in STRATEGIES],
    ids=str,
)
def test_keys_are_called_valid_that_are_accepted_in_this_run_file_and_no_others(given, sections):
    number = "trees" if given == {"model": {"kind": "trees"}} else "epochs"
    tables = {"training": {number: 2}} | given
    run = load_run_config(tables)
    for section in offered(tables, ""):
        if section not in sections:
            continue
        kind = type(getattr(run, section))
        hints = type_hints(kind)
        valid = {
            field.name
            for field in dataclasses.fields(kind)
            if can_be_set(tables, section, field, hints[field.name])
        }
        chosen_by = {{"model": "kind", "strategy": "name"}.get(section)}
        assert set(offered(tables, section)) - chosen_by == valid


def test_sections_are_called_valid_that_are_accepted_in_this_run_file():
    trees = LIMIT | {"model": {"kind": "trees"}, "cluster": {"device": "cpu"}}
    assert set(SECTIONS) - set(offered(trees, "")) == {"strategy", "gpu"}
    assert set(SECTIONS) == set(offered(LIMIT, ""))


def test_target_must_be_measured():
    tables = {"training": {"target": 0.5, "target_metric": "P@7"}}
    assert "add 7 to [evaluation] k" in refusal(tables)
    assert load_run_config(tables, {"evaluation.k": [1, 7]}).evaluation.k == (1, 7)


def test_overrides_win_and_are_named_in_refusals():
    config = load_run_config(LIMIT, ["training.megabatches = 7", "run.name=first run"])
    assert (config.training.megabatches, config.run.name) == (7, "first run")
    assert refusal(LIMIT, ["run.seed=-1"]) == (
        "--set run.seed: seed = -1: must be from 0 to 9223372036854775807"
    )
    assert "must be section.key=value" in refusal(LIMIT, ["seed=1"])
    assert "must be section.key=value" in refusal(LIMIT, ["run.seed"])
    assert "is not a section" in refusal(LIMIT, ["rum.seed=1"])


def test_overrides_may_not_smuggle_in_other_keys():
    with pytest.raises(ConfigError, match=r"name = '1\\nseed = 5': must be at most 100 printable"):
        load_run_config(LIMIT, ["run.name=1\nseed = 5"])
    config = load_run_config(LIMIT, ["data.train=1\nseed = 5"])
    assert (config.data.train, config.run.seed) == (("1\nseed = 5",), 0)


def test_a_card_speaks_where_the_run_file_is_silent():
    config = load_run_config(LIMIT, {"data.card": "amazon-670k", "data.propensity_b": 2.0})
    assert (config.data.propensity_a, config.data.propensity_b) == (0.6, 2.0)


def test_resolved_run_holds_every_value():
    tables = load_run_config(LIMIT).as_dict()
    assert "k = [1, 3, 5]\n" in load_run_config(LIMIT).to_toml()
    assert tables["strategy"]["name"] == "adaptive-sgd"
    assert tables["data"]["replicate_budget"] == "1GiB"
    assert "features" not in tables["model"]
    assert set(tables["evaluation"]) == {"every", "k", "batch_rows", "training_loss"}


SHARED = ["hogbatch", "cpu-gpu-hogbatch", "adaptive-hogbatch"]


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("combine", "rule", "adasum", "[combine] rule = 'adasum': strategy {} takes auto, mean"),
        ("combine", "rule", "sum", "[combine] rule = 'sum': strategy {} takes auto, mean"),
        (
            "combine", "outer", "nesterov",
            "[combine] outer = 'nesterov': needs a strategy that merges models by their mean, "
            "like adaptive-sgd or elastic",
        ),
        (
            "optimizer", "on_merge", "average",
            "[optimizer] on_merge = 'average': strategy {} updates one shared model and merges "
            "nothing; leave it at 'keep'",
        ),
        (
            "optimizer", "on_merge", "reset",
            "[optimizer] on_merge = 'reset': strategy {} updates one shared model and merges "
            "nothing; leave it at 'keep'",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_with_a_shared_model(name, section, key, value, message):
    given = {"training": {"epochs": 1}, "strategy": {"name": name}, section: {key: value}}
    assert refusal(given) == "run configuration: " + message.format(repr(name))


@pytest.mark.parametrize("name", SHARED)
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_moments_are_allowed_with_a_shared_model(name, optimizer):
    given = {"training": {"epochs": 1}, "strategy": {"name": name}}
    config = load_run_config(given | {"optimizer": {"name": optimizer}, "cluster": {"pools": 1}})
    assert config.rule == "mean"


def test_a_section_for_gpus_is_read():
    assert load_run_config(LIMIT | {"gpu": {"exact": True}}).gpu.exact


def test_float16_goes_with_any_strategy_and_optimizer():
    for more in ({"strategy": {"name": "mirrored"}}, {"optimizer": {"name": "lamb"}}):
        assert load_run_config(HALF | more).gpu.output_dtype == "float16"


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    name=st.text(st.characters(codec="utf-8"), max_size=100).filter(
        lambda name: name.isprintable() and "/" not in name
    ),
    files=st.lists(st.text(), max_size=3),
    epochs=st.floats(0, 1e300, exclude_min=True),
    hidden=st.lists(st.integers(1, 10_000), max_size=3),
    budget=st.integers(1, 2**62),
)
def test_resolved_run_round_trips_exactly(seed, name, files, epochs, hidden, budget):
    config = load_run_config(
        {
            "run": {"seed": seed, "name": name},
            "training": {"epochs": epochs},
            "model": {"hidden": hidden},
            "data": {"replicate_budget": budget, "train": files},
        }
    )
    assert load_run_config(tomllib.loads(config.to_toml())) == config
    assert load_run_config(config) == config


@pytest.mark.parametrize("bounds", [{"max_df": 1}, {"min_df": 1.0}])
def test_one_document_is_not_a_share_of_one(bounds):
    config = load_run_config(LIMIT | {"text": bounds})
    assert repr(config.changes()["text"]) == repr(bounds)
    again = load_run_config(tomllib.loads(config.to_toml())).text
    assert repr(again) == repr(config.text)
    assert config.text != load_run_config(LIMIT).text


@pytest.mark.parametrize("kind", [DataSection, EvaluationSection, ClusterSection])
def test_defaults_are_in_range(kind):
    assert decode(kind, {}) == kind()


def test_sections_refuse_on_their_own_too():
    with pytest.raises(ConfigError, match=re.escape("minutes = -1: must be at least 0")):
        TrainingSection(minutes=-1)


def test_a_packaged_run_file_is_meant_beside_a_folder_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "best").mkdir()  # such as of `daskxml train best rows.txt --out best`
    assert load_run_config("best") == load_run_config("best.toml")
    with pytest.raises(ConfigError, match="best: a directory, not a run file"):
        load_run_config("./best")
