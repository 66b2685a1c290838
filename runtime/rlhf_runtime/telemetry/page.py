"""The report's page: one HTML file with its style, its script and its data inside. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

# Content security policy: the page may load nothing.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

SCRIPTS = ("report.js", "samples.js")


@dataclass(frozen=True)
class Stat:
    """A number of the headline."""

    label: str
    value: str
    before: str = ""
    """Initial value; shown as `before → value`."""
    detail: str = ""


@dataclass(frozen=True)
class Headline:
    """Title, outcome and main numbers of the page."""

    title: str
    tags: Sequence[str]
    outcome: str
    """One of the outcomes; chooses the colour of its tag. Empty: no tag."""
    subtitle: str
    alerts: Sequence[str]
    """Warnings about the numbers; empty if nothing went wrong."""
    stats: Sequence[Stat]


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading and an entry in the contents."""

    anchor: str
    title: str
    html: str


def page(headline: Headline, sections: Sequence[Section], data: Sequence[Mapping[str, Any]]) -> str:
    """Build the page; `data` is the data of the charts' read-outs, in order of the charts."""
    folder = files("rlhf_runtime.telemetry")
    # Style and script are part of the page: it is one file, and works offline.
    style = folder.joinpath("report.css").read_text(encoding="utf-8")
    scripts = [folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS]
    links = "".join(f'<a href="#{s.anchor}">{escape(s.title)}</a>' for s in sections)
    body = "".join(_section(section) for section in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(headline.title)} – run report</title>\n<style>\n{style}</style>\n"
        f'</head>\n<body>\n<a class="skip" href="#main">Skip to the report</a>\n'
        f'{_header(headline)}\n<nav aria-label="Contents"><div>{links}</div></nav>\n'
        f'<main id="main">{body}</main>\n'
        f'<script type="application/json" id="data">{_embedded(data)}</script>\n'
        f"<script>\n{''.join(scripts)}</script>\n</body>\n</html>\n"
    )


def _header(headline: Headline) -> str:
    tags = "".join(f'<span class="tag">{escape(tag)}</span>' for tag in headline.tags)
    outcome = escape(headline.outcome)
    outcome_tag = f'<span class="tag {outcome}">{outcome}</span>' if outcome else ""
    texts = "".join(f"<p>{escape(text)}</p>" for text in headline.alerts)
    alert = f'<div class="alert {outcome}" role="note">{texts}</div>' if texts else ""
    stats = "".join(_stat(stat) for stat in headline.stats)
    return (
        f'<header><p class="tags">{outcome_tag}{tags}</p>'
        f"<h1>{escape(headline.title)}</h1>"
        f'<p class="subtitle">{escape(headline.subtitle)}</p>{alert}'
        f'<dl class="stats">{stats}</dl></header>'
    )


def _stat(stat: Stat) -> str:
    before = f"<small>{escape(stat.before)} → </small>" if stat.before else ""
    detail = f'<dd class="detail">{escape(stat.detail)}</dd>' if stat.detail else ""
    return (
        f'<div><dt>{escape(stat.label)}</dt><dd class="number">{before}{escape(stat.value)}</dd>'
        f"{detail}</div>"
    )


def _section(section: Section) -> str:
    return (
        f'<section id="{section.anchor}" aria-labelledby="{section.anchor}-title">'
        f'<h2 id="{section.anchor}-title">{escape(section.title)}</h2>{section.html}</section>\n'
    )


def _embedded(data: Sequence[Mapping[str, Any]]) -> str:
    # An unescaped "</script>" in the data would end the script element.
    # JSON has no NaN: charts contain None instead.
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
