"""`--help` of commands with many options: options by theme, and examples at the end."""

from __future__ import annotations

import click

OTHER = "Options"
THEMES: dict[str, tuple[str, ...]] = {
    "What to run": (
        "--modes", "--reference", "--overlap", "--workloads", "--batch-size", "--image-size", "--seq-len", "--dtype",
        "--optimizer", "--seed", "--dataset", "--seeds", "--epochs", "--samples", "--lr", "--config", "--check",
        "--base", "--baseline", "--layer", "--job", "--resume", "--workers",
    ),
    "Links and devices": (
        "--fabric", "--rates", "--hosts", "--held-out", "--device", "--backend", "--copies", "--compress", "--topology",
        "--rate", "--latency", "--compute-scale",
    ),
    "Measurement": (
        "--launches", "--rounds", "--steps", "--quick", "--rigorous", "--minutes", "--margin", "--cell-minutes",
        "--pairs", "--budget", "--strict", "--no-confirm", "--error-band",
    ),
    "Output": (
        "--all", "--verbose", "--emit", "--mode", "--json", "--csv", "--markdown", "--junit", "--html", "--trace",
        "--keep", "--output",
    ),
    "Expert": ("--timeout", "--nvtx", "--inject", "--debug", "--help"),
}  # fmt: skip
"""Options by heading. Options that are not listed here appear under `OTHER`, which comes first."""


def examples(*lines: str) -> str:
    """Return the end of a command's help: one example a line, as it is typed."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


class ThemedCommand(click.Command):
    """Command whose help groups its options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See `click.Command.format_options`."""
        heading_of = {name: heading for heading, names in THEMES.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in (OTHER, *THEMES)}
        for parameter in self.get_params(ctx):
            row = parameter.get_help_record(ctx)
            if row is not None and isinstance(parameter, click.Option):
                heading = next((heading_of[name] for name in parameter.opts if name in heading_of), OTHER)
                rows[heading].append(row)
        for heading, found in rows.items():
            if found:
                with formatter.section(heading):
                    formatter.write_dl(found)
