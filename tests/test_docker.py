"""The image and its neighbours: what the files name is there, and what is pinned is enough."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from daskxml.cli.arguments import build_parser

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())
SERVICES = COMPOSE["services"]
IGNORE = (ROOT / ".dockerignore").read_text().split()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
LOCKS = sorted((ROOT / "docker").glob("*.lock"))
OWN = ("scheduler", "worker", "train")


def pinned(path):
    """Return names and versions of a lock file, and check that every one has a hash."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    found = [line for line in lines if line and not line.lstrip().startswith("#")]
    assert all("--hash=sha256:" in line for line in found)
    return [Requirement(line.split("--hash")[0]) for line in found]


def is_in_context(path):
    """Tell whether .dockerignore, which begins by leaving all out, lets a path in."""
    kept = [pattern[1:] for pattern in IGNORE if pattern.startswith("!")]
    return any(path.match(pattern) or Path(pattern) in [path, *path.parents] for pattern in kept)


IMAGES = {"cpu": "serve", "cuda12": "cuda12", "cuda13": "cuda13", "extras": "test"}


@pytest.mark.parametrize("image", IMAGES)
def test_a_lock_pins_all_that_an_image_needs(image):
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    optional = project["optional-dependencies"]
    needed = project["dependencies"] + optional["cluster"] + optional[IMAGES[image]]
    versions = {}
    for requirement in pinned(ROOT / f"docker/{image}.lock"):
        [specifier] = requirement.specifier
        assert specifier.operator == "=="
        versions.setdefault(requirement.name, []).append(specifier.version)
    for requirement in map(Requirement, needed):
        if requirement.name == project["name"]:
            continue
        assert requirement.name in versions, f"{requirement.name}: run `make lock`"
        assert all(requirement.specifier.contains(v) for v in versions[requirement.name])


def test_the_images_of_the_dockerfile_have_locks():
    named = re.findall(r"EXTRA=(\w+)", DOCKERFILE)
    assert {*named} == {"cpu", "cuda12"}
    assert {f"{name}.lock" for name in (*IMAGES, "build")} == {path.name for path in LOCKS}


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_names_no_index(path):
    assert pinned(path)
    assert not re.search(r"https?:|--index|--extra-index|--find-links|@ ", path.read_text())


def test_what_the_dockerfile_copies_is_there_and_in_the_context():
    for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE):
        for source in line.split()[:-1]:
            paths = sorted(ROOT.glob(source))
            assert paths, source
            for path in paths:
                inside = path.relative_to(ROOT)
                inner = [p.relative_to(ROOT) for p in path.rglob("*.py")] if path.is_dir() else []
                assert is_in_context(inside) or any(map(is_in_context, inner)), source
    assert is_in_context(Path("benchmarks/suites/smoke.toml"))
    assert not is_in_context(Path("benchmarks/speed/step.py"))
    assert not is_in_context(Path(".git"))


def test_the_image_runs_the_command_as_nobody_special():
    assert DOCKERFILE.rpartition("\nFROM ")[2].strip() == "run"
    [final] = re.findall(r"^FROM \S+ AS run\n(.*?)^FROM ", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert 'ENTRYPOINT ["daskxml"]' in final
    assert re.search(r"^USER daskxml$", final, re.MULTILINE)
    assert "--mount" not in final  # the secret is the building stage's


def test_the_image_that_serves_answers_where_it_says():
    final = DOCKERFILE.partition("\nFROM run AS serve\n")[2]
    [entry] = re.findall(r"^ENTRYPOINT (.*)$", final, re.MULTILINE)
    options = build_parser().parse_args(json.loads(entry)[1:])
    assert (options.model, options.host) == ("/model", "0.0.0.0")
    assert f"EXPOSE {options.port}\n" in final
    assert f"127.0.0.1:{options.port}/ready" in final


def test_every_service_of_ours_is_the_image():
    assert {name for name, service in SERVICES.items() if "build" in service} == set(OWN)
    for name in OWN:
        args = SERVICES[name]["build"]["args"]
        assert set(args) <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    assert SERVICES["worker"]["deploy"]["replicas"] == "${DASKXML_WORKERS:-2}"


def test_services_name_services_volumes_and_files_that_exist():
    for name, service in SERVICES.items():
        assert set(service.get("depends_on", {})) <= SERVICES.keys(), name
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-(.+?)\}", r"\1", volume).split(":")[0]
            if not source.startswith("."):
                assert source in COMPOSE["volumes"]
            elif source != "../data":  # made by the user
                assert (ROOT / "docker" / source).exists(), source


def test_commands_in_the_files_are_understood():
    text = (ROOT / "docker/compose.yaml").read_text() + DOCKERFILE
    joined = re.sub(r"\\\n#\s+", " ", text)
    runs = re.findall(r"docker compose run --rm train (.+)", joined)
    runs = [f"train {run}" for run in runs] + re.findall(
        r"daskxml (bench .+|train train.+)", joined
    )
    assert len(runs) == 3
    for run in runs:
        build_parser().parse_args(shlex.split(run))
