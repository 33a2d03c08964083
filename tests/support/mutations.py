"""Damaged files: broken disks, incomplete copies, other programs, and malicious edits.

Each function takes the bytes of a valid file and a random generator. It returns a description of
the change, for the message of a failing trial, and the changed bytes.
"""

_WORDS = [
    b"", b"0", b"-1", b"-99999999999", b"1.5", b"nan", b"inf", b"1e308", b"1e3", b"0x10", b"1_000",
    b"9223372036854775808", b"1180591620717411303424", b"9" * 5000, "١".encode(), "²".encode(),
    b"../../../etc/passwd", b"/etc/passwd", b"..", b".", b"a\0b", b"x" * 5000, b"\xff\xfe",
    b"1,1", b"1 1", b"'", b'"a b"', b"%s", b"None", b"True", b"\xc3", b"\r", b"\x1b[31m",
    "\u2028".encode(),
]  # fmt: skip
"""Replacements of a word: wrong numbers, paths to other places, several words, and bytes that are
not text."""


def cut(content, rng):
    """Cut off the end of the file, possibly all of it."""
    size = int(rng.integers(len(content)))
    return f"cut to {size} bytes", content[:size]


def flipped(content, rng):
    """Flip a few bits."""
    changed = bytearray(content)
    places = rng.integers(len(content), size=rng.integers(1, 5))
    for place in places:
        changed[place] ^= 1 << int(rng.integers(8))
    return f"bits flipped at {sorted(map(int, places))}", bytes(changed)


def overwritten(content, rng):
    """Overwrite a piece in the middle with noise, zeros, or 0xFF."""
    start = int(rng.integers(len(content)))
    size = int(rng.integers(1, 64))
    kind = rng.choice(["noise", "zeros", "ones"])
    noise = {"noise": rng.bytes(size), "zeros": bytes(size), "ones": b"\xff" * size}[str(kind)]
    return f"{size} bytes of {kind} at {start}", content[:start] + noise + content[start + size :]


def repeated(content, rng):
    """Repeat or remove a piece."""
    end, start = map(int, rng.integers(len(content) + 1, size=2))
    return f"the first {end} bytes, and those from byte {start}", content[:end] + content[start:]


def other_word(content, rng):
    """Replace one word of a line or of a column."""
    lines = content.split(b"\n")
    number = int(rng.integers(len(lines)))
    separator = b"," if b"," in lines[number] else b" "
    words = lines[number].split(separator)
    place = int(rng.integers(len(words)))
    words[place] = _WORDS[rng.integers(len(_WORDS))]
    lines[number] = separator.join(words)
    return f"line {number + 1}, word {place + 1} is {words[place][:30]!r}", b"\n".join(lines)


def other_lines(content, rng):
    """Repeat, remove, or replace a line."""
    lines = content.splitlines(keepends=True)
    first, second = map(int, rng.integers(len(lines), size=2))
    instead = [[], [lines[second]], [lines[first]] * 2][rng.integers(3)]
    said = f"{len(instead)} lines in place of line {first + 1}"
    return said, b"".join([*lines[:first], *instead, *lines[first + 1 :]])


def other_ends(content, rng):
    """Change the line ends to another system's, or the encoding."""
    ways = {
        "crlf": content.replace(b"\n", b"\r\n"),
        "cr": content.replace(b"\n", b"\r"),
        "bom": b"\xef\xbb\xbf" + content,
        "utf-16": content.decode(errors="replace").encode("utf-16"),
        "tabs": content.replace(b" ", b"\t"),
        "no last end": content.rstrip(b"\n"),
        "blank lines": content.replace(b"\n", b"\n\n"),
    }
    what = str(rng.choice(list(ways)))
    return what, ways[what]


OF_BYTES = (cut, flipped, flipped, overwritten, repeated, repeated)
"""Mutations of any file."""

OF_TEXT = (cut, flipped, overwritten, repeated, *4 * [other_word], other_lines, other_ends)
"""Mutations of a list of lines."""


def mutated(content, rng, mutations):
    """Apply one or two mutations in a row."""
    said = []
    for _ in range(1 if rng.random() < 0.75 else 2):
        if not content:
            break
        what, content = mutations[rng.integers(len(mutations))](content, rng)
        said.append(what)
    return "; ".join(said), content
