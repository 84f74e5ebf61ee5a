"""Time BPE trainers side by side: python tools/bench_bpe.py TEXT [--vocab 10000] [--runs 3]

Each trainer goes from the file's path to its merges in a process of its own, in turns, and the median counts: this
library in Python with two workers and compiled by numba, Hugging Face's tokenizers, rustbpe. Then encoding, from a cold
start: this library both ways, tiktoken, tokenizers. A text is made first by ``--make words MEGABYTES``, which samples
wordfreq's 30,000 most frequent English words at power 1.15 with a fixed seed, or by ``--make documents MEGABYTES``,
which strings together the programs, manuals and licences that are installed beside this Python; any other text will do
too.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

END = "<|endoftext|>"
TRAINERS = ("python", "numba", "rustbpe", "tokenizers")
ENCODERS = ("python", "numba", "tiktoken", "tokenizers")


def train(name: str, path: str, vocab: int) -> int:
    """Merges found by one trainer."""
    from infrabook import bpe

    if name in ("python", "numba"):
        return len(bpe.train(path, vocab, [END], workers=2, compiled=name == "numba")[1])
    if name == "rustbpe":
        import rustbpe

        made = rustbpe.Tokenizer()
        texts = Path(path).read_text("utf-8").split(END)
        made.train_from_iterator(iter(texts), vocab_size=vocab - 1, pattern=bpe.PATTERNS["gpt2"])
        return len(made.get_mergeable_ranks()) - 256
    import tokenizers

    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train(
        [path],
        tokenizers.trainers.BpeTrainer(
            vocab_size=vocab, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        ),
    )
    return made.get_vocab_size() - 257


def encode(name: str, path: str, vocab: int) -> int:
    """Tokens of a text, by one encoder with the same merges, which are trained on its first megabytes."""
    from infrabook import bpe

    text = Path(path).read_text("utf-8", "replace")[:20_000_000]
    made = bpe.Tokenizer(*bpe.train([text[:4_000_000]], vocab, [END]), [END])
    other = {"tiktoken": made.to_tiktoken, "tokenizers": made.to_tokenizers}.get(name)
    ready = other() if other else bpe.Tokenizer(made.vocab, made.merges, [END], compiled=name == "numba")
    texts = text.split(END)
    begin = time.perf_counter()
    if name == "tokenizers":
        count = sum(len(one.ids) for one in ready.encode_batch(texts))
    else:
        count = sum(len(ready.encode_ordinary(one)) for one in texts)
    print(json.dumps({"seconds": time.perf_counter() - begin, "count": count, "bytes": len(text.encode())}))
    return count


def one(kind: str, name: str, path: str, vocab: int) -> dict[str, float]:
    """One run in a process of its own."""
    command = [sys.executable, __file__, path, "--vocab", str(vocab), "--only", f"{kind}:{name}"]
    environment = os.environ | {"RAYON_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def make_words(path: str, megabytes: float) -> None:
    """A text of words in the proportions of English, the same every time."""
    import numpy as np
    import wordfreq

    table = wordfreq.get_frequency_dict("en", "large")
    words = sorted(table, key=lambda word: (-table[word], word))[:30_000]
    weights = np.array([table[word] for word in words]) ** 1.15
    bounds = np.cumsum(weights / weights.sum())
    forms = [" {}", ", {}", ". {}", ".\n\n{}", f".\n{END}\n{{}}"]
    table_of = [form.format(word if at < 2 else word.capitalize()) for at, form in enumerate(forms) for word in words]
    kinds = np.cumsum([0.86, 0.05, 0.075, 0.0125, 0.0025])
    rng, written = np.random.default_rng(0), 0
    with open(path, "w", encoding="utf-8", newline="") as file:
        while written < megabytes * 1e6:
            ids = np.minimum(np.searchsorted(bounds, rng.random(500_000)), len(words) - 1)
            ids += len(words) * np.minimum(np.searchsorted(kinds, rng.random(500_000)), 4)
            text = "".join(map(table_of.__getitem__, ids.tolist()))
            file.write(text)
            written += len(text.encode())


def make_documents(path: str, megabytes: float) -> None:
    """Text of many kinds with many different words: what the installed packages are written in."""
    import sysconfig

    written = 0
    with open(path, "w", encoding="utf-8", newline="") as file:
        for one in sorted(Path(sysconfig.get_paths()["purelib"]).rglob("*")):
            if one.suffix not in (".py", ".pyi", ".rst", ".md", ".txt", ".h", ".js", "") or not one.is_file():
                continue
            try:
                text = one.read_text("utf-8")
            except UnicodeDecodeError:
                continue
            file.write(text + END)
            written += len(text.encode()) + len(END)
            if written >= megabytes * 1e6:
                return
    raise SystemExit(f"the installed packages have {written / 1e6:.0f} MB of text, and {megabytes:.0f} were asked for")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--vocab", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--make", nargs=2, metavar=("KIND", "MEGABYTES"), help="make the text first: words, documents")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        kind, _, name = options.only.partition(":")
        if kind == "encode":
            encode(name, options.text, options.vocab)
            return
        begin = time.perf_counter()
        count = train(name, options.text, options.vocab)
        seconds = time.perf_counter() - begin
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps({"seconds": seconds, "count": count, "peak_mib": peak}))
        return
    if options.make:
        makers = {"words": make_words, "documents": make_documents}
        if options.make[0] not in makers:
            parser.error(f"--make can be words or documents, and is {options.make[0]}")
        Path(options.text).parent.mkdir(parents=True, exist_ok=True)
        makers[options.make[0]](options.text, float(options.make[1]))
    size = os.path.getsize(options.text) / 1e6
    print(f"{options.text}: {size:,.0f} MB, a vocabulary of {options.vocab:,}, medians of {options.runs}")
    one("train", "numba", options.text, 300)  # compiles, if that has not been done
    for kind, names in (("train", TRAINERS), ("encode", ENCODERS)):
        runs = {name: [] for name in names}
        for _ in range(options.runs):
            for name in names:
                runs[name].append(one(kind, name, options.text, options.vocab))
        for name, found in runs.items():
            seconds = statistics.median(run["seconds"] for run in found)
            done = found[0].get("bytes", size * 1e6) / 1e6
            held = f", {found[0]['peak_mib']:.0f} MiB in its own process" if kind == "train" else ""
            print(
                f"{kind:7}{name:11}{seconds:8.2f} s  {done / seconds:7.1f} MB/s  {found[0]['count']:,}{held}",
                flush=True,
            )


if __name__ == "__main__":
    main()
