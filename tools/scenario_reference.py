"""Writes docs/scenario.md from the schema: `python -m tools.scenario_reference`."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fl_dpbayes.config import Scenario, SiteFile

PAGE = Path(__file__).parents[1] / "docs" / "scenario.md"
INTRODUCTION = """# Scenario and site file: every key

A **scenario** is a TOML file that describes a whole run. \
Only the server, or the command line, reads it. A **site
file** describes one site and stays there; in a simulation one is written for each site. \
This page is generated from
the schema by `python -m tools.scenario_reference`, and a test checks that it is up to date. \
A key without a default
must be given. Where a section has a `kind`, `rule` or `method`, \
that key says which of the tables below applies.

`--set key.sub_key=value` changes a key of a scenario on the command line, \
and `--set key.sub_key=` removes it."""


def _alternatives(schema: dict[str, Any], records: dict[str, Any]) -> list[dict[str, Any]]:
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return [leaf for part in schema[key] for leaf in _alternatives(part, records)]
    named = records.get(schema.get("$ref", "").rsplit("/", 1)[-1], {})
    return [schema] if "properties" in named or not named else _alternatives(named, records)


def _range(schema: dict[str, Any]) -> str:
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return " and ".join(f"{sign} {schema[key]}" for key, sign in bounds.items() if key in schema)


def _values(schema: dict[str, Any], records: dict[str, Any]) -> str:
    texts = []
    for part in _alternatives(schema, records):
        if "$ref" in part:
            name = part["$ref"].rsplit("/", 1)[1]
            texts.append(f"[{name}](#{name.lower()})")
        elif "const" in part or "enum" in part:
            texts += [f"`{value}`" for value in part.get("enum", [part.get("const")])]
        elif part.get("type") == "array":
            inner = part.get("items") or {"anyOf": part.get("prefixItems", [{}])}
            texts.append(f"list of {_values(inner, records)}")
        elif part.get("type") == "object":
            inner = part.get("additionalProperties") or next(
                iter(part.get("patternProperties", {"": {}}).values())
            )
            has_schema = isinstance(inner, dict) and bool(inner)
            texts.append(f"table of {_values(inner, records)}" if has_schema else "table")
        elif part.get("type") != "null":
            words = {"integer": "whole number", "boolean": "`true`, `false`", "string": "text"}
            word = (
                "path"
                if part.get("format") == "path"
                else words.get(part.get("type", ""), part.get("type", "any"))
            )
            texts.append(f"{word} {_range(part)}".strip())
    return ", ".join(dict.fromkeys(texts))


def _default(name: str, field: dict[str, Any], required: list[str]) -> str:
    if name in required:
        return "must be given"
    value = field.get("default")
    if isinstance(value, dict):
        return f"`{value['kind']}`" if set(value) == {"kind"} else "its defaults"
    return "none" if value is None else f"`{json.dumps(value)}`"


def _section(name: str, schema: dict[str, Any], records: dict[str, Any]) -> str:
    fields = schema.get("properties", {})
    lines = [f"### {name}", "", inspect.cleandoc(schema.get("description", "")), ""]
    if fields:
        lines += ["| key | values | default |", "|---|---|---|"]
    for key, field in fields.items():
        # A key that can only be none, such as the features of a network without any, is not shown.
        values = _values(field, records).replace("|", "\\|")
        if values:
            default = _default(key, field, schema.get("required", []))
            lines.append(f"| `{key}` | {values} | {default} |")
    return "\n".join(lines)


def _in_order(
    schema: dict[str, Any], records: dict[str, Any], sections: dict[str, Any]
) -> dict[str, Any]:
    """Add the records that a schema leads to, in the order of its keys."""
    for name in re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)):
        if name not in sections:
            if "properties" in records[name]:
                sections[name] = records[name]
            _in_order(records[name], records, sections)
    return sections


def reference() -> str:
    """Return the page, one table for each record of the schema."""
    parts = [INTRODUCTION]
    written = set[str]()
    roots: list[tuple[str, type[BaseModel]]] = [
        ("The scenario", Scenario),
        ("The site file", SiteFile),
    ]
    for heading, root in roots:
        schema = root.model_json_schema()
        records = schema.pop("$defs")
        sections = _in_order(schema, records, {})
        parts.append(f"## {heading}\n\n{_section(root.__name__, schema, records)}")
        for name, section in sections.items():
            if name not in written:
                parts.append(_section(name, section, records))
        written |= set(sections)
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
