"""Small damages of a file, as disks, transfers, editors and attackers cause them."""

import re
from collections.abc import Callable
from random import Random

#: What parsers of numbers, text and brackets fail on.
WORDS = (
    *(b"9" * 400, b"1e999", b"-1e999", b"NaN", b"Infinity", b"-1", b"0", b"null", b'"', b"[", b"{", b"\\ud800"),
    *(b"[" * 5000, b'{"a":' * 5000, b"\xff\xfe", b"\0", b"\n", b"\r\n", b"(" * 300, b"a." * 3000 + b"a = 1\n"),
)

#: Sizes and offsets, little and big endian.
NUMBERS = (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)


def mutated(data: bytes, random: Random) -> bytes:
    """Return the data with one to three damages."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        data = random.choice(MUTATIONS)(data, random)
    return data


def _place(data: bytes, random: Random) -> int:
    """Choose a place, often near the beginning or the end, where formats have their headers and directories."""
    reach = random.choice((16, 64, 256, len(data)))
    distance = random.randrange(min(reach, len(data)) + 1)
    return distance if random.random() < 0.7 else len(data) - distance


def _flip(data: bytes, random: Random) -> bytes:
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 4, 16))):
        if changed:
            changed[min(_place(data, random), len(data) - 1)] ^= 1 << random.randrange(8)
    return bytes(changed)


def _overwrite(data: bytes, random: Random) -> bytes:
    place, length = _place(data, random), random.choice((1, 2, 4, 8))
    value = (random.choice(NUMBERS) % 256**length).to_bytes(length, random.choice(("little", "big")))
    return data[:place] + value + data[place + length :]


def _cut(data: bytes, random: Random) -> bytes:
    return data[: _place(data, random)]


def _remove(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    return data[:place] + data[place + random.choice((1, 2, 8, 100)) :]


def _insert(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    return data[:place] + random.randbytes(random.choice((1, 2, 8, 100))) + data[place:]


def _repeat(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    return data[:place] + data[place : place + random.choice((1, 8, 100))] * 2 + data[place:]


def _word(data: bytes, random: Random) -> bytes:
    place = _place(data, random)
    return data[:place] + random.choice(WORDS) + data[place:]


def _token(data: bytes, random: Random) -> bytes:
    """Return another value instead of a number or a word of a text."""
    found = list(re.finditer(rb"[-+.\w]+", data[:100_000]))
    if not found:
        return data
    chosen = random.choice(found)
    other = random.choice((*WORDS, random.choice(found)[0]))
    return data[: chosen.start()] + other + data[chosen.end() :]


MUTATIONS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(_flip, _flip, _overwrite, _overwrite, _cut, _remove, _insert, _repeat, _word, _token, _token),
)
