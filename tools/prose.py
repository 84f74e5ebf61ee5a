"""The prose lint: python tools/prose.py [page ...]

Rules, by the name under which a line can be excused:

typed     a result written by hand: a number with a unit, a percentage, "13 times", 6,738,415,616 (not 2,048: a power
          of two is a setting)
unit      FLOPs for a rate, Gb for GB, a quoted key that ends in _gib beside GB
symbol    a letter in a formula that is neither in book/notation.md nor introduced on the page
term      a {term} that the glossary lacks; in a chapter, a glossary term that is never linked
word      words that say nothing, headings that say nothing, emoji
skeleton  a chapter without its guess and answer, explorer, "Where this breaks", "Exercises", "Sources", citation

An exemption is a comment that names what it excuses, and why: ``<!-- typed: 80 GB is the card's label -->``
in the paragraph or on the line before it (for symbol, term and skeleton: anywhere on the page). One that excuses
nothing is an error too. Code, formulas, roles, links, words in double quotes (a source's own), titles and exercises
are not read for ``typed``. A symbol is introduced by "$q$ is", "$q$ for", "$q$ be" ... or by "called $q$" and
"call it $q$".
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = ("typed", "unit", "symbol", "term", "word", "skeleton")
PAGE_RULES = ("symbol", "term", "skeleton")  # excused anywhere on the page

PROSE_DIRECTIVES = {
    "labfig", "figure", "dropdown", "note", "tip", "warning", "important", "admonition", "margin", "glossary",
    "seealso",
}  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """``what`` on ``line`` breaks ``rule``; ``words`` say what to do."""

    line: int
    rule: str
    what: str
    words: str


@dataclass
class Exemption:
    """``<!-- rule: reason -->``, and whether something needed it."""

    line: int
    rule: str
    reason: str
    used: bool = False


@dataclass
class Block:
    """A paragraph, heading, list or table: its first line, its text, and the exemptions that cover it."""

    line: int
    text: str
    exemptions: list[Exemption] = field(default_factory=list)

    def at(self, offset: int, text: str) -> int:
        """The line on which ``offset`` of ``text`` (this block's, with as many line ends) stands."""
        return self.line + text.count("\n", 0, offset)


@dataclass
class Page:
    """A page as the rules see it."""

    name: str
    blocks: list[Block]
    formulas: list[tuple[int, str]]
    directives: list[tuple[int, str, str]]  # line, name, argument
    exemptions: list[Exemption]

    @property
    def chapter(self) -> bool:
        """Whether the page is a chapter, which the skeleton and the terms are for."""
        return re.match(r"\d[\w-]*/", self.name) is not None


# -- reading a page ------------------------------------------------------------------------------------------
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
FENCE = re.compile(r"\s*(`{3,}|~{3,}|:{3,})\s*(?:\{([\w:-]+)\}\s*(.*?)|([\w-]*))\s*$")


def keep_lines(text: str, instead: str = "") -> str:
    """``instead`` with the line ends of ``text``, so that an offset still tells the line."""
    return instead + "\n" * text.count("\n")


def read(source: str, name: str) -> Page:
    """Blocks, formulas, directives and exemptions of a MyST page."""
    page = Page(name, [], [], [], [])
    lines = source.splitlines()
    number = 0
    if lines and lines[0] == "---":
        number = lines.index("---", 1) + 1
    fences: list[tuple[str, str]] = []  # (marker, what it holds: prose, math or code)
    pending: list[str] = []
    began, options = 0, False
    waiting: list[Exemption] = []

    def flush() -> None:
        nonlocal pending, waiting
        if not pending:
            return
        text, found = "\n".join(pending), list(waiting)
        for match in COMMENT.finditer(text):
            note = re.match(r"\s*([a-z]+):\s*(.+?)\s*$", match[1], re.DOTALL)
            if note and note[1] in RULES:
                found.append(Exemption(began + text.count("\n", 0, match.start()), note[1], " ".join(note[2].split())))
        text = COMMENT.sub(lambda match: keep_lines(match[0]), text)
        pending = []
        page.exemptions += [one for one in found if one not in page.exemptions]
        if text.strip():
            page.blocks.append(Block(began, text, found))
            waiting = []
        else:
            waiting = found

    while number < len(lines):
        line, number = lines[number], number + 1
        fence = FENCE.match(line)
        holds = fences[-1][1] if fences else "prose"
        if fence:
            marker, directive = fence[1], fence[2] or fence[4]
            if fences and marker[0] == fences[-1][0][0] and len(marker) >= len(fences[-1][0]) and not directive:
                flush()
                fences.pop()
                continue
            if holds == "prose":
                flush()
                kind = "code"
                if fence[2]:
                    page.directives.append((number, fence[2], fence[3]))
                    kind = "math" if fence[2] == "math" else "prose" if fence[2] in PROSE_DIRECTIVES else "code"
                    if fence[2] == "dropdown":
                        page.blocks.append(Block(number, fence[3]))
                fences.append((marker, kind))
                options = True
                continue
        if holds == "code" or (options and re.match(r"\s*:[\w-]+:", line)):
            continue
        options = False
        if holds == "math":
            page.formulas.append((number, line))
        elif not line.strip():
            flush()
        elif line.startswith("#"):
            flush()
            began, pending = number, [line]
            flush()
        else:
            if not pending:
                began = number
            pending.append(line)
            if re.fullmatch(r"\s*<!--.*-->\s*", line) and len(pending) == 1:
                flush()
    flush()
    for block in page.blocks:
        page.formulas += [(block.at(m.start(), block.text), m[1] or m[2]) for m in MATH.finditer(no_code(block.text))]
    return page


# -- what is not prose ---------------------------------------------------------------------------------------
MATH = re.compile(r"\$\$(.+?)\$\$|(?<![\\$])\$([^$\n]+?)\$(?!\$)", re.DOTALL)
ROLE = re.compile(r"\{([\w:-]+)\}`([^`]*)`")
ROLE_OR_CODE = re.compile(r"(\{[\w:-]+\}`[^`]*`)|(`+)(?:.+?)\2", re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])")
QUOTE = re.compile(r'"[^"]{1,400}?"|“[^”]{1,400}?”', re.DOTALL)
QUANTITY = re.compile(
    r"\{num\}`[\w/.-]*:([a-z][a-z0-9_]*)(?::[^`]*)?`|\\labnum\{[\w/.-]*:([a-z][a-z0-9_]*)(?::[^}]*)?\}"
)


def no_code(text: str) -> str:
    """``text`` without inline code; roles stay."""
    return ROLE_OR_CODE.sub(lambda match: match[1] or keep_lines(match[0], "□"), text)


def plain(text: str, *, links: bool = True, quotes: bool = True) -> str:
    """The words of ``text``: code, formulas and roles give way to a box; links and quotes too where asked."""
    text = no_code(text)
    text = MATH.sub(lambda match: keep_lines(match[0], "□"), text)
    text = ROLE.sub(lambda match: keep_lines(match[0], "□"), text)
    text = LINK.sub((lambda m: m[1]) if links else (lambda m: keep_lines(m[0], "□")), text)
    text = re.sub(r"<?https?://[^\s>)]+>?", "□", text)
    return text if quotes else QUOTE.sub(lambda match: keep_lines(match[0], "□"), text)


# -- typed results -------------------------------------------------------------------------------------------
NUMBER = r"(?<![\w.,/])\d[\d,]*(?:\.\d+)?"
UNITS = (  # no bare B: 7B is a model's name
    r"[kKMGTPE]i?B(?:/s)?|[kKMGT]b(?:/s)?|[kKMGTPE]?FLOPs?(?:/s)?|[kMGT]?Hz|bytes?|tokens/s|ns|[µμ]s|ms|s|"
    r"seconds?|minutes?|hours?|days?|[km]?W|millions?|billions?|trillions?"
)
TYPED = re.compile(
    rf"({NUMBER})(?:[\s ]?(?:{UNITS})(?![\w-])|[\s ]?(?:%|per ?cent)|[\s ]?×|[\s -]?(?:times|fold)\b|x\b)"
    r"|(?<![\w.,/])(\d{1,3}(?:,\d{3})+)(?![\w,]*\d)"
)


def typed(page: Page) -> Iterator[tuple[Block, Finding]]:
    """Results written by hand."""
    exercises = False
    for block in page.blocks:
        if re.match(r"#+\s", block.text):
            exercises = page.chapter and block.text.lstrip("# ").strip() == "Exercises"
        if exercises or block.text.startswith("# "):  # a question's givens; the title, which is the curriculum's
            continue
        text = plain(block.text, links=False, quotes=False)
        for match in TYPED.finditer(text):
            what = (match[1] or match[2]).rstrip(",")
            if match[2] and int(what.replace(",", "")).bit_count() == 1:
                continue  # a power of two is a setting, such as 2,048 tokens
            words = f"{match[0].strip()!r} is typed: quote it from the lab with {{num}}, or say why not"
            yield block, Finding(block.at(match.start(), text), "typed", what, words)


# -- units ---------------------------------------------------------------------------------------------------
MISUSED: tuple[tuple[str, str], ...] = (
    (r"\b[KMGTPE]?FLOPS\b", "write FLOP for work and FLOP/s for a rate"),
    (r"\b[KMGTPE]FLOPs\b", "write TFLOP for work and TFLOP/s for a rate"),
    (r"\bFLOPs?(?:\s+(?:per|a)\s+second|\s*/\s*sec\w*)", "write FLOP/s"),
    (r"\bFLOPs(?:/s)?(?![\w-])", "the plural of FLOP is FLOP, and a rate is FLOP/s"),
    (r"\b[KMGT]b(?!/s)\b", "b is bits: write GB for bytes, and Gb/s for a rate in bits"),
    (r"\b(?:kB|[KMGT]Bs|[KMGT]i?Bps|[KMGT]bps)\b", "write KB, GB, GB/s or Gb/s"),
    (r"\d[\s ]?(?:kb|mb|gb|tb)\b", "write KB, MB, GB"),
    (r"\b[KMGT]i?B/sec\w*", "write GB/s"),
)
SUFFIX_UNITS: dict[str, tuple[str, ...]] = {
    **{unit.lower(): (unit,) for unit in ("KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB")},
    "bytes": ("bytes", "byte"), "percent": ("%", "percent", "per cent"), "ms": ("ms", "milliseconds"),
}  # fmt: skip
NEAR = re.compile(r"(?<![\w/])(?:[KMGT]i?B(?!/s)|bytes?|%|per ?cent|ms|milliseconds)(?!\w)")


def misused_units(page: Page) -> Iterator[tuple[Block, Finding]]:
    """FLOPs as a rate, bits for bytes, and a quoted amount beside another unit than its key's."""
    for block in page.blocks:
        text = plain(block.text, quotes=False)
        taken: set[int] = set()
        for pattern, words in MISUSED:
            for match in re.finditer(pattern, text):
                if match.start() not in taken:
                    taken.add(match.start())
                    what = match[0].strip()
                    yield block, Finding(block.at(match.start(), text), "unit", what, f"{what!r}: {words}")
        yield from ((block, finding) for finding in quoted_units(block))


def quoted_units(block: Block) -> Iterator[Finding]:
    """A quoted key that ends in _gb stands before GB, or leans on a GB before it ("12.1 GB, and later 14.2").

    With "12.1 or 14.2 GB" the unit may follow in the same sentence.
    """
    text = QUANTITY.sub(lambda m: f"\0{m[1] or m[2]}\0", no_code(block.text))
    text = ROLE.sub(lambda m: keep_lines(m[0], "□"), text).replace("\\%", "%").replace("$", " ")
    for match in re.finditer("\0([a-z0-9_]+)\0", text):
        line = block.at(match.start(), text)
        wanted = SUFFIX_UNITS.get(match[1].rsplit("_", 1)[-1])
        before, rest = text[: match.start()], text[match.end() :]
        at_once = re.match(rf"(?:[\s \\,~]|\\text\{{)*({NEAR.pattern})", rest)
        if wanted is None:
            if at_once and at_once[1].lower() in SUFFIX_UNITS and at_once[1] not in ("bytes", "percent"):
                words = f"{match[1]} stands before {at_once[1]}: end the key in _{at_once[1].lower()}"
                yield Finding(line, "unit", match[1], words)
            continue
        if at_once:
            near = [at_once[1]]
        else:
            sentence = re.split(r"[.!?](?=[\s)\]\"*])|\n\s*[-|]", rest, maxsplit=1)[0]
            near = [m[0] for m in (NEAR.search(sentence), *list(NEAR.finditer(before))[-1:]) if m]
        if not at_once and "bytes" in wanted:
            continue  # "16 or, with accumulation, 20 bytes": bytes are what is counted where nothing else is said
        if not set(near) & set(wanted):
            beside = " and ".join(near) or "no unit"
            yield Finding(line, "unit", match[1], f"{match[1]} stands beside {beside}: write {wanted[0]}")


# -- symbols -------------------------------------------------------------------------------------------------
def notation(source: str) -> set[str]:
    """The symbols of the notation page's table."""
    rows = re.findall(r"^\|\s*((?:\$[^$]+\$(?:,\s*)?)+)\s*\|", source, re.MULTILINE)
    return {symbol for row in rows for symbol in re.findall(r"\$([^$]+)\$", row)}


GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|kappa|lambda|mu|nu|xi|rho|sigma|tau|phi|varphi|chi|psi|"
    "omega|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell"
)


def symbols(formula: str) -> set[str]:
    """The letters that stand for something in a formula.

    >>> sorted(symbols(r"34\\,sbh + \\frac{as}{h}\\text{ bytes} + \\sigma_{\\text{max}}"))
    ['\\\\sigma', 'a', 'b', 'h', 's']
    """
    text = re.sub(
        r"\\(?:text|textbf|textit|mathrm|mathtt|operatorname\*?|labnum|begin|end|tag|label)\{[^{}]*\}", " ", formula
    )
    greek = {"\\" + name for name in re.findall(rf"\\({GREEK})(?![A-Za-z])", text)}
    text = re.sub(r"\\[A-Za-z]+", " ", text)
    return greek | (set(re.findall("[A-Za-z]", re.sub(r"O(?=\s*\()", " ", text))))


def introduced(page: Page, symbol: str) -> bool:
    """Whether the page says what ``symbol`` is."""
    one = r"\$" + re.escape(symbol) + r"\$"
    phrase = rf"{one},? (?:is|are|be|for|counts?|means?|stands for)\b|\bcall(?:s|ed)? (?:(?:it|them|this|these) )?{one}"
    return any(re.search(phrase, block.text) for block in page.blocks)


def undefined_symbols(page: Page, known: set[str]) -> Iterator[tuple[Block, Finding]]:
    """Letters that a reader would have to guess, each once."""
    seen: set[str] = set()
    for line, formula in sorted(page.formulas):
        for symbol in sorted(symbols(formula) - known - seen):
            seen.add(symbol)
            if not introduced(page, symbol):
                words = f"${symbol}$ is not in book/notation.md: add it there, or introduce it here (${symbol}$ is ...)"
                yield Block(line, ""), Finding(line, "symbol", symbol, words)


# -- terms ---------------------------------------------------------------------------------------------------
def glossary(source: str) -> set[str]:
    """The terms of the glossary page."""
    inside = re.search(r":::\{glossary\}\n(.*?)\n:::", source, re.DOTALL)
    return (
        {line.strip() for line in inside[1].splitlines() if line.strip() and not line[0].isspace()} if inside else set()
    )


def terms(page: Page, known: set[str]) -> Iterator[tuple[Block, Finding]]:
    """Roles that lead nowhere; in a chapter, terms that are never linked."""
    linked: set[str] = set()
    lower = {term.lower() for term in known}
    for block in page.blocks:
        for match in re.finditer(r"\{term\}`(?:[^`<]*<([^>`]+)>|([^`]+))`", block.text):
            term = (match[1] or match[2]).strip()
            linked.add(term.lower())
            if term.lower() not in lower:
                line = block.at(match.start(), block.text)
                yield block, Finding(line, "term", term, f"the glossary has no {term!r}")
    if not page.chapter:
        return
    for term in sorted(known, key=str.lower):
        if term.lower() in linked:
            continue
        pattern = re.compile(rf"(?<![\w-]){re.escape(term)}(?![\w-])", 0 if re.search("[A-Z]", term) else re.IGNORECASE)
        for block in page.blocks:
            text = plain(block.text, links=False, quotes=False)
            used = None if block.text.startswith("#") else pattern.search(text)
            if used:
                words = f"{term!r} is in the glossary: link its first use with {{term}}`{term}`"
                yield block, Finding(block.at(used.start(), text), "term", term, words)
                break


# -- words ---------------------------------------------------------------------------------------------------
BANNED = (
    r"huge(?:ly)?", r"blazing(?:ly)?", r"simply", r"obvious(?:ly)?", r"trivially", r"massive(?:ly)?", r"insane(?:ly)?",
    r"seamless(?:ly)?", r"effortless(?:ly)?", r"cutting[- ]edge", r"game[- ]chang\w+", r"state[- ]of[- ]the[- ]art",
    r"delve\w*", r"deep[- ]dive\w*", r"dive into", r"let['’]s dive", r"needless to say", r"it is worth noting",
    r"it should be noted", r"as we (?:all )?know", r"in this (?:chapter|section|lab|post|article),? (?:we|you|i)\b",
    r"without further ado", r"in a nutshell", r"supercharg\w+", r"unleash\w*", r"revolutioni[sz]\w+",
)  # fmt: skip
EMPTY_HEADINGS = {"introduction", "background", "conclusion", "conclusions", "summary", "overview", "motivation"}
EMOJI = re.compile("(?![✓✗])[\U0001f000-\U0001faff☀-➿⭐⬅-⬇️]")


def banned_words(page: Page) -> Iterator[tuple[Block, Finding]]:
    """What the voice leaves out."""
    for block in page.blocks:
        text = plain(block.text, quotes=False)
        for match in re.finditer(rf"\b(?:{'|'.join(BANNED)})", text, re.IGNORECASE):
            yield block, Finding(block.at(match.start(), text), "word", match[0], f"leave out {match[0]!r}")
        for match in EMOJI.finditer(text):
            yield block, Finding(block.at(match.start(), text), "word", match[0], f"no emoji: {match[0]}")
        heading = re.match(r"#+\s+(.*)", text)
        if heading and heading[1].strip().lower() in EMPTY_HEADINGS:
            words = f"a heading states something; {heading[1]!r} does not"
            yield block, Finding(block.line, "word", heading[1], words)


# -- skeleton ------------------------------------------------------------------------------------------------
SECTIONS = ("Where this breaks", "Exercises", "Sources")


def skeleton(page: Page, lab_cells: str | None) -> Iterator[tuple[Block, Finding]]:
    """What every chapter has; ``lab_cells`` is its lab's code, or None without a lab."""
    if not page.chapter:
        return

    def missing(what: str, words: str, line: int = 1) -> tuple[Block, Finding]:
        return Block(line, ""), Finding(line, "skeleton", what, words)

    headings = [block for block in page.blocks if re.match(r"#+\s", block.text)]
    titles = [block for block in headings if block.text.startswith("# ")]
    if len(titles) != 1 or headings[0] is not titles[0]:
        yield missing("title", "a chapter has one first-level heading, at its top")
    if not any(name == "dropdown" and "answer" in argument.lower() for _, name, argument in page.directives):
        yield missing("answer", "a guess comes with its answer: :::{dropdown} The answer")
    if not any(name == "explorer" for _, name, _ in page.directives):
        yield missing("explorer", "a chapter has an explorer")
    order = [block.text.lstrip("# ").strip() for block in headings]
    for section in SECTIONS:
        if section not in order:
            yield missing(section, f'a chapter has a section "{section}"')
    if [name for name in order if name in SECTIONS] != [name for name in SECTIONS if name in order]:
        yield missing("order", f"the last sections are {', '.join(SECTIONS)}, in that order")
    if not any("{cite" in block.text for block in page.blocks):
        yield missing("citation", "a chapter cites its sources with {cite:t} or {cite:p}")
    count = exercises(page)
    slug = page.name.split("/")[-1]
    if "Exercises" in order and not count:
        yield missing("Exercises", "the section Exercises numbers its questions: 1. ...")
    for number in range(1, count + 1):
        if lab_cells is not None and f'check("{slug}/{number}"' not in lab_cells:
            yield missing(f"{slug}/{number}", f'exercise {number} has no lab cell with check("{slug}/{number}", ...)')


def exercises(page: Page) -> int:
    """How many exercises a chapter lists."""
    count, inside = 0, False
    for block in page.blocks:
        if re.match(r"#+\s", block.text):
            inside = block.text.lstrip("# ").strip() == "Exercises"
        elif inside:
            count += len(re.findall(r"^\d+\.\s", block.text, re.MULTILINE))
    return count


# -- all of it -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Book:
    """What pages are held against."""

    symbols: set[str]
    terms: set[str]

    @classmethod
    def at(cls, folder: Path) -> Book:
        """The notation and the glossary below ``folder``."""
        return cls(
            *(
                f((folder / name).read_text("utf8"))
                for f, name in ((notation, "notation.md"), (glossary, "glossary.md"))
            )
        )


def lint(source: str, name: str, book: Book, lab_cells: str | None = None) -> list[Finding]:
    """What is wrong with a page; ``name`` is its path below ``book/``, without the ending."""
    page = read(source, name)
    rules: list[Callable[[], Iterator[tuple[Block, Finding]]]] = [
        lambda: typed(page),
        lambda: misused_units(page),
        lambda: undefined_symbols(page, book.symbols),
        lambda: terms(page, book.terms),
        lambda: banned_words(page),
        lambda: skeleton(page, lab_cells),
    ]
    left = []
    for rule in rules:
        for block, finding in rule():
            candidates = page.exemptions if finding.rule in PAGE_RULES else block.exemptions
            excuse = [one for one in candidates if one.rule == finding.rule and names(one.reason, finding.what)]
            for one in excuse:
                one.used = True
            if not excuse:
                left.append(finding)
    for one in page.exemptions:
        if len(one.reason.split()) < 3:
            left.append(Finding(one.line, one.rule, one.reason, "an exemption gives a reason"))
        elif not one.used:
            left.append(Finding(one.line, one.rule, one.reason, f"this exemption excuses nothing: {one.reason!r}"))
    return sorted(left, key=lambda finding: (finding.line, finding.rule))


def names(reason: str, what: str) -> bool:
    """Whether ``reason`` names ``what``, as a word of its own.

    >>> names("2,048 tokens are the input", "2,048"), names("2,048 tokens are the input", "48")
    (True, False)
    """
    return re.search(rf"(?<![\w.,]){re.escape(what)}(?![\w])(?![.,]\d)", reason, re.IGNORECASE) is not None


def lab_code(lab: Path) -> str | None:
    """The code cells of a lab, or None if there is none."""
    if not lab.is_file():
        return None
    cells = json.loads(lab.read_text("utf8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def lint_file(path: Path, root: Path = ROOT) -> list[Finding]:
    """What is wrong with the page at ``path``."""
    name = path.relative_to(root / "book").with_suffix("").as_posix()
    return lint(path.read_text("utf8"), name, Book.at(root / "book"), lab_code(root / "notebooks" / (name + ".ipynb")))


def pages(root: Path = ROOT) -> list[Path]:
    """Every page of the book."""
    return sorted((root / "book").rglob("*.md"))


def main() -> int:
    found = 0
    for path in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        for finding in lint_file(path):
            found += 1
            print(f"{path.relative_to(ROOT)}:{finding.line}: {finding.rule}: {finding.words}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
