"""`xbench schema`: print the record's JSON Schema, for other programs that read results."""

from __future__ import annotations

import json

import click


@click.command(name="schema", short_help="Print the JSON Schema of the result files.")
def schema() -> None:
    """Print the JSON Schema of the result files.

    It is draft 2020-12 and describes every kind of record: profile, comparison, scaling, validation, tuned,
    convergence, baseline, noise, regression, cluster, live, restart.
    """
    from xbench.records import json_schema

    click.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))
