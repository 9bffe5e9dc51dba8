"""The documents against the code: links, commands, tables of settings, printed output."""

import ast
import inspect
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import click
import pytest
import typer.main

import fedacg
from fedacg import models
from fedacg.cli.program import app
from fedacg.config.experiment import Experiment, flatten
from fedacg.config.fields import Section
from fedacg.config.methods import GROUPS
from fedacg.config.parameters import KEYS, NAMES
from fedacg.config.recipe import find, override, recipe_names, with_method
from fedacg.data import catalogue, origins
from fedacg.methods import METHODS, MODIFIERS, Entry, Modifier
from fedacg.runs.build import traffic_of
from support.command import Command

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedacg"
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")],
    key=lambda path: str(path),
)
PRINTED = {"fedacg --version", "fedacg methods", "fedacg recipes"}
"""Commands whose output in a document must be what they print; errors are compared too."""


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table whose heading row starts like this."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(heading))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return table


def anchors(text: str) -> set[str]:
    """The anchors of a document's headings, as they are made on a web page."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def transcripts() -> Iterator[tuple[str, tuple[str, ...], str, str]]:
    """(document, commands before it in the block, command, output) of every console block."""
    for path in DOCUMENTS:
        for block in blocks(path.read_text(encoding="utf-8"), "console"):
            before: tuple[str, ...] = ()
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield named(path), before, command, output
                before += (command,)


def commands() -> Iterator[tuple[str, str]]:
    """Every command in a document that is not shown for its error, with the document."""
    for path in DOCUMENTS:
        for block in blocks(path.read_text(encoding="utf-8"), "bash"):
            yield from ((named(path), line) for line in block.splitlines() if line.strip())
    yield from ((document, command) for document, _, command, output in transcripts() if not fails(output))


def fails(output: str) -> bool:
    return output.startswith("error: ")


# Links


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        if not place.exists() or (anchor and anchor not in anchors(place.read_text(encoding="utf-8"))):
            broken.append(target)
    assert broken == []


def test_every_guide_is_in_the_index() -> None:
    index = read("docs/README.md")
    guides = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [str(guide) for guide in guides if guide.name != "README.md" and f"({guide})" not in index] == []


# Commands


@pytest.mark.parametrize(("document", "line"), list(commands()))
def test_a_command_in_a_document_can_be_typed(document: str, line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    match Path(program).name:
        case "fedacg":
            check_fedacg(arguments)
        case "make":
            targets = re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE)
            assert set(arguments) <= set(targets)
        case "python":
            files = [argument for argument in arguments if argument.endswith(".py")]
            assert arguments[:2] == ["-m", "pytest"] or files
            assert all((ROOT / file).is_file() for file in files)
        case "pip":
            assert arguments[0] == "install"
        case other:
            pytest.fail(f"{other}: not a program that documents use")


def check_fedacg(arguments: list[str]) -> None:
    """The subcommand and its options are there, the recipe, the method and the settings are valid."""
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, f"no command {name}"
        command = found
    try:
        given = command.make_context(command.name, list(arguments)).params
    except click.exceptions.Exit:
        return  # --help and --version end there
    recipe = given.get("recipe")
    if recipe in recipe_names():
        for method in (given.get("methods") or given.get("method") or "fedacg").split(","):
            Experiment.parse(override(with_method(find(recipe), method), given["settings"] or []))
    elif recipe is not None:
        assert recipe.endswith(".toml")


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for sub, below in command.commands.items():
            yield from leaves(below, f"{name} {sub}")
    else:
        yield name, command


@pytest.mark.parametrize(
    ("name", "command"),
    [pytest.param(*leaf, id=leaf[0]) for leaf in leaves(typer.main.get_command(app), "fedacg")],
)
def test_every_command_and_option_is_documented(name: str, command: click.Command) -> None:
    text = read("docs/command-line.md")
    heading = " ".join(name.split()[:2])
    section = re.split(r"^## ", text.split(f"\n## {heading}\n", 1)[1], flags=re.MULTILINE)[0]
    assert name in section
    options = [option for p in command.params if isinstance(p, click.Option) for option in p.opts]
    assert [option for option in options if option != "--help" and f"`{option}`" not in section] == []


@pytest.mark.parametrize(
    ("document", "before", "command", "output"),
    [each for each in transcripts() if each[2] in PRINTED or fails(each[3])],
)
def test_printed_output_is_what_the_program_prints(
    document: str, before: tuple[str, ...], command: str, output: str, fedacg: Command
) -> None:
    for earlier in before:
        fedacg(*shlex.split(earlier)[1:])
    outcome = fedacg(*shlex.split(command)[1:])
    printed = [line.rstrip() for line in (outcome.out + outcome.err).rstrip().splitlines()]
    assert output.rstrip().splitlines() == printed, f"{document}: now\n" + "\n".join(printed)


# Settings


def allowed(annotation: Any, bounds: list[Any]) -> str:
    """What a key admits, in the words of the table."""
    if get_origin(annotation) is Literal:
        *first, last = (f"`{value}`" for value in get_args(annotation))
        return f"{', '.join(first)} or {last}"
    if get_origin(annotation) is tuple:
        inner = get_args(annotation)[0]
        if get_origin(inner) is Annotated:
            kind, field = get_args(inner)
            return f"list of {allowed(kind, field.metadata).replace('number', 'numbers', 1)}"
        if issubclass(inner, Section):
            return "list of names or tables"
        return f"list of {allowed(inner, [])}s"
    words = {bool: "true or false", str: "text", int: "whole number", float: "number"}[annotation]
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {getattr(bound, name):g}"
        for bound in bounds
        for name, sign in signs.items()
        if getattr(bound, name, None) is not None
    ]
    return f"{words} {', '.join(limits)}".strip()


def settings(section: type[Section], prefix: str = "") -> Iterator[list[str]]:
    """[key, default, allowed] of every key of an experiment."""
    for name, field in section.model_fields.items():
        if inspect.isclass(field.annotation) and issubclass(field.annotation, Section):
            yield from settings(field.annotation, f"{name}.")
        else:
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            yield [f"`{prefix}{name}`", f"`{json.dumps(default)}`", allowed(field.annotation, field.metadata)]


def test_the_table_of_settings_is_that_of_the_code() -> None:
    assert [row[:3] for row in rows(read("docs/command-line.md"), "| key |")] == list(settings(Experiment))


def test_the_tables_name_all_data_sets_splits_and_networks() -> None:
    text = read("docs/command-line.md")
    meaning = {row[0]: row[3] for row in rows(text, "| key |")}
    assert set(re.findall(r"`([\w-]+)`", meaning["`data.name`"])) == set(catalogue.NAMES)
    assert set(catalogue.SPLITS) <= set(re.findall(r"`([\w-]+)`", meaning["`data.split`"]))
    assert [row[0] for row in rows(text, "| `model.name` | what")] == [f"`{name}`" for name in models.NAMES]
    assert [row[0] for row in rows(read("docs/data.md"), "| name | examples")] == [
        f"`{name}`" for name in catalogue.NAMES
    ]


def method_rows() -> Iterator[list[str]]:
    parts = {f"+{name}": modifier for name, modifier in MODIFIERS.items()}
    for name, entry in {**METHODS, **parts}.items():
        for option, spec in entry.options.items():
            yield [f"`{name}`", f"`{option}`", f"{spec.default:g}", f"`{spec}`"]


def test_the_table_of_methods_is_that_of_the_code() -> None:
    table = [row[:4] for row in rows(read("docs/command-line.md"), "| method | option")]
    expected = list(method_rows())
    now = "\n".join(f"| {' | '.join(row)} | |" for row in expected)
    assert table == expected, f"docs/command-line.md: now\n{now}"


def test_the_page_of_methods_is_that_of_the_code() -> None:
    text = read("docs/methods.md")
    for group, entries in GROUPS.items():
        section = text.partition(f"\n## {group}\n")[2].partition("\n## ")[0]
        expected = []
        for entry in entries:
            traffic = traffic_of(entry.name)
            vectors = [f"{traffic.down:.2g}/{traffic.up:.2g}", f"{traffic.kept:.2g}"]
            expected.append([f"`{entry.name}`", in_a_table(entry), listed(entry), *vectors, cited(entry)])
        assert rows(section, "| method") == expected, group
    parts = [[f"`+{part.name}`", in_a_table(part), listed(part), cited(part)] for part in MODIFIERS.values()]
    assert rows(text, "| part |") == parts


def in_a_table(owner: Entry | Modifier) -> str:
    return owner.equation.replace("|", "\\|")


def listed(owner: Entry | Modifier) -> str:
    return "<br>".join(f"`{option}` {spec.default:g}, `{spec}`" for option, spec in owner.options.items())


def cited(owner: Entry | Modifier) -> str:
    return f"[{owner.reference}]({owner.link})"


def test_the_page_of_what_is_included_names_all_methods_and_parts() -> None:
    table = {row[0]: row[1] for row in rows(read("docs/features.md"), "| | included")}
    assert re.findall(r"`(\w+)`", table["methods"]) == list(METHODS)
    assert set(re.findall(r"`\+([\w-]+)`", table["parts"])) == set(MODIFIERS)


@pytest.mark.parametrize("document", ["docs/command-line.md", "docs/data.md"])
def test_an_experiment_in_a_document_is_valid(document: str, tmp_path: Path) -> None:
    for block in blocks(read(document), "toml"):
        (tmp_path / "block.toml").write_text(block)
        Experiment.parse(find(str(tmp_path / "block.toml")))


def test_every_parameter_of_run_is_documented_with_its_default() -> None:
    documented = {
        name: row[1] for row in rows(read("docs/bring-your-own.md"), "| parameter") for name in row[0].split(", ")
    }
    defaults = flatten(Experiment().model_dump())
    for name, parameter in inspect.signature(fedacg.run).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            assert documented.pop(f"`{name}`") == f"`{parameter.default!r}`"
    for name in NAMES:
        key, shown = KEYS.get(name, name), documented.pop(f"`{name}`")
        if key in defaults and name != "name":
            default = defaults[key]
            assert shown == f"`{json.dumps(default) if isinstance(default, str) else repr(default)}`"
        else:
            assert shown == ""
    assert documented == {}


# Data, randomness, the architecture


def test_downloads_are_documented_with_address_and_checksum() -> None:
    text = read("docs/data.md")
    for remotes in origins.REMOTES.values():
        for remote in remotes:
            assert remote.url.rpartition("/")[0] + "/" in text
            assert f"`{remote.place}` | `{remote.md5}`" in text


def test_every_stream_of_randomness_is_documented() -> None:
    pattern = re.compile(r'(?:generator|stream_seed|random|seed_layers)\((?:[\w.]+, )?"([\w ]+)"')
    purposes = {purpose for path in SOURCE.rglob("*.py") for purpose in pattern.findall(path.read_text())}
    assert {row[0].strip("`") for row in rows(read("docs/reproducibility.md"), "| purpose")} == purposes


def test_algorithm_1_stands_in_the_code() -> None:
    table = rows(read("docs/concepts.md"), "| Algorithm 1")
    assert [row[1] for row in table if row[1].strip("`") not in (SOURCE / row[2]).read_text()] == []


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    required = [re.split(r"[<>=\[]", dependency)[0] for dependency in project["dependencies"]]
    text = read("docs/developers/architecture.md")
    assert [row[0] for row in rows(text, "| package")] == required
    extras = [
        re.split(r"[<>=\[]", name)[0] for group in project["optional-dependencies"].values() for name in group
    ]
    paragraph = text.split("\nExtras:")[1].split("\n\n")[0]
    assert [name for name in extras if name != "fedacg" and not re.search(rf"\b{name}\b", paragraph)] == []


def imports(path: Path) -> Iterator[str]:
    """The modules of this project that a file imports, inside functions too, such as `core.plugins`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            if node.module == "fedacg":
                yield from (alias.name for alias in node.names)
            elif (node.module or "").startswith("fedacg."):
                yield str(node.module).removeprefix("fedacg.")
        elif isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("fedacg.") for alias in node.names if "fedacg." in alias.name)


def layers() -> dict[str, int]:
    return {
        package: int(row[0])
        for row in rows(read("docs/developers/architecture.md"), "| layer")
        for package in re.findall(r"`(\w+)`", row[1])
    }


def test_every_package_has_its_layer() -> None:
    assert set(layers()) == {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_packages_import_from_lower_layers_only() -> None:
    layer, anywhere = layers(), {"errors", "__version__"}
    known_to_config = {"core.plugins", "core.files"}
    upward = []
    for path in SOURCE.glob("*/**/*.py"):
        package = path.relative_to(SOURCE).parts[0]
        for module in imports(path):
            other = module.split(".")[0]
            if other == package or other in anywhere or (package == "config" and module in known_to_config):
                continue
            if layer[other] >= layer[package]:
                upward.append(f"{path.relative_to(SOURCE)} → {module}")
    assert upward == []
