"""A small crawl with everything in it that a web crawl has, the same on every machine: what ``dataset`` makes text of.

Originals are the sections of this book's own prose (``data/corpus.txt``), cut into pages. Copies and rubbish are made
of them by the rules below, with a fixed seed. Each page carries the truth about itself, which a funnel may not look
at and which tells afterwards whether the funnel was right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import resources

SEED = 5
PAGE_WORDS = 36  # a page ends with the paragraph in which it reaches so many words

HOSTS = ("mirror-a.example", "mirror-b.example", "mirror-c.example", "mirror-d.example")
HEADERS = (
    "Reading list, entry {day}. Saved for later by the staff of {host}.",
    "You are here: home, articles, computing. Text size: small, medium, large.",
    "{host} copies good articles so that you do not have to look for them.",
    "Posted on day {day}.",
)
FOOTERS = (
    "All rights remain with their owners. Write to us at {host} if this copy is yours.",
    "Share this page. Print this page. Next article.",
    "We use cookies to remember that you do not like cookies. Accept, or read our policy of {day} pages.",
    "Comments are closed.",
)
MENU = ("Home", "Articles", "About us", "Contact", "Log in", "Search", "Archive", "Subscribe", "Terms", "Help", "Jobs")
RUBBISH = ("keyboard noise", "numbers", "word salad", "menu", "one line again and again")
KEYS = "asdfghjkl qwertyuiop zxcvbnm asdf jkl"

# Article 1 of the Universal Declaration of Human Rights (United Nations, 1948).
ARTICLE_1 = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason and "
    "conscience and should act towards one another in a spirit of brotherhood.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt "
    "und sollen einander im Geiste der Brüderlichkeit begegnen.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y "
    "conciencia, deben comportarse fraternalmente los unos con los otros.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati di ragione e di "
    "coscienza e devono agire gli uni verso gli altri in spirito di fratellanza.",
    "pt": "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão e de "
    "consciência, devem agir uns para com os outros em espírito de fraternidade.",
    "nl": "Alle mensen worden vrij en gelijk in waardigheid en rechten geboren. Zij zijn begiftigd met verstand en "
    "geweten, en behoren zich jegens elkander in een geest van broederschap te gedragen.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью и "
    "должны поступать в отношении друг друга в духе братства.",
    "zh": "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。",
}


@dataclass(frozen=True)
class Page:
    """What a crawler brings home: an address, the day it was fetched, bytes. The rest is the truth, kept apart.

    ``kind`` says by which rule the page was made, ``origin`` names the text it is a copy of (its own address for an
    original, nothing for what is no text), ``chapter`` where that text stands in the book, counted from 0 (-1: none).
    """

    url: str
    day: int
    raw: bytes
    kind: str
    origin: str = ""
    chapter: int = -1


def originals() -> list[Page]:
    """The book's prose as pages of one or a few paragraphs; chapter i was published from day 30 i on."""
    text = (resources.files("infrabook") / "data" / "corpus.txt").read_text("utf-8")
    pages = []
    for chapter, document in enumerate(text.split("<|endoftext|>")):
        for number, part in enumerate(_parts(document)):
            url = f"book.example/{chapter}/{number}"
            pages.append(Page(url, 30 * chapter + number, part.encode(), "original", url, chapter))
    return pages


def _parts(document: str) -> Iterator[str]:
    """Paragraphs together until they are a page; headings, exercises and sources are no prose."""
    held: list[str] = []
    prose = True
    for paragraph in document.strip().split("\n\n"):
        if len(paragraph.split()) < 12 and not paragraph.endswith((".", "?", ":")):  # a heading
            prose = paragraph not in ("Exercises", "Sources")
        elif prose:
            held.append(paragraph)
        if sum(len(one.split()) for one in held) >= PAGE_WORDS:
            yield "\n\n".join(held)
            held = []


def pages(seed: int = SEED) -> list[Page]:
    """The whole crawl, in the order in which it was fetched.

    >>> crawl = pages()
    >>> crawl == pages(), crawl == pages(6)
    (True, False)
    """
    chance = random.Random(seed)
    first = originals()
    found = list(first)
    for page in first:
        found += _copies(page, chance)
    found += _rubbish(first, chance)
    return sorted(found, key=lambda page: (page.day, page.url))


def _copies(page: Page, chance: random.Random) -> Iterator[Page]:
    """What becomes of an original on other people's machines."""
    text = page.raw.decode()

    def copy(kind: str, raw: bytes) -> Page:
        name = f"{_pick(HOSTS, chance)}/{kind}/{page.url.removeprefix('book.example/')}"
        return replace(page, url=name, day=page.day + 5 + int(200 * chance.random()), kind=kind, raw=raw)

    if chance.random() < 0.12:
        yield copy("same bytes", page.raw)
    if chance.random() < 0.08:
        yield copy("other line ends", text.replace("\n", "\r\n").encode() + b"\r\n")
    for kind, rate in (("framed", 0.0), ("framed, few words changed", 0.02), ("framed, more changed", 0.08),
                       ("rewritten", 0.25)):  # fmt: skip
        if chance.random() < 0.24:
            made = copy(kind, b"")
            words = _changed(text, rate, chance)
            which = int(len(HEADERS) * chance.random())
            head, foot = (part.format(day=made.day, host=made.url.split("/")[0]) for part in
                          (HEADERS[which], FOOTERS[which]))  # fmt: skip
            yield replace(made, raw=f"{head}\n\n{words}\n\n{foot}".encode())
    if chance.random() < 0.12:
        words_kept = text.split()
        kept = words_kept[: int(len(words_kept) * (0.55 + 0.4 * chance.random()))]
        yield copy("cut off", (" ".join(kept) + " ... Read more").encode())
    if "’" in text and "”" not in text and "µ" not in text:
        if chance.random() < 0.2:
            yield copy("mojibake", text.encode().decode("cp1252").encode())
        if chance.random() < 0.2:
            yield copy("Windows-1252", text.encode("cp1252"))
    if chance.random() < 0.04:
        yield copy("UTF-16", b"\xff\xfe" + text.encode("utf-16-le"))
    if chance.random() < 0.04:
        yield copy("broken", text.encode("utf-16-le")[1 : len(text)])  # its first byte and second half are missing


def _changed(text: str, rate: float, chance: random.Random) -> str:
    """``text`` with that share of its words, each by chance, replaced by another of its words."""
    words = text.split(" ")
    return " ".join(_pick(words, chance) if chance.random() < rate else word for word in words)


def _rubbish(originals: list[Page], chance: random.Random) -> Iterator[Page]:
    """Pages that never were articles, and articles in languages that nobody asked for."""

    def page(kind: str, number: int, text: str, origin: str = "") -> Page:
        name = f"{_pick(HOSTS, chance)}/{kind.replace(' ', '-')}/{number}"
        return Page(name, int(400 * chance.random()), text.encode(), kind, origin)

    for number, (language, text) in enumerate(ARTICLE_1.items()):
        kind = "short" if language == "en" else "other language"
        yield page(kind, number, text, f"article 1, {language}")
        yield page(kind, number + 100, text, f"article 1, {language}")
    yield page("other language", 200, "\n".join(ARTICLE_1.values()), "article 1, all")
    for number in range(16):
        yield page("keyboard noise", number, "".join(_pick(KEYS, chance) for _ in range(420)))
    for number in range(16):
        rows = ("  ".join(f"{1000 * chance.random():.2f}" for _ in range(6)) for _ in range(24))
        yield page("numbers", number, "Table of the results and of what they have in common with the others.\n" +
                   "\n".join(rows))  # fmt: skip
    for number, original in enumerate(originals[::20]):
        words = original.raw.decode().split()
        yield page("word salad", number, " ".join(_pick(words, chance) for _ in words))
    for number in range(12):
        yield page("menu", number, "\n".join(_pick(MENU, chance) for _ in range(30)))
    for number in range(12):
        line = f"This is the best of the {_pick(MENU, chance).lower()} pages that you can find on the web today."
        yield page("one line again and again", number, "\n".join([line] * 14))


def _pick(items: str | tuple[str, ...] | list[str], chance: random.Random) -> str:
    return items[int(len(items) * chance.random())]
