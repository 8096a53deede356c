"""Metaphone (Philips 1990): a phonetic key that English words share if they sound alike.

A shorter set of rules of our own: consonants by class, silent letters dropped, all vowels as one mark, none at the end.
"""

import re
import unicodedata
from functools import lru_cache

RULES = [
    (re.compile(pattern), sound)
    for pattern, sound in (
        (r"^(?:ae|[aeiouy])", "A"),
        (r"^(?:kn|gn|pn)", "n"),
        (r"^wr", "r"),
        (r"^ps", "s"),
        (r"^x", "s"),
        (r"^wh", "w"),
        (r"mb$", "m"),
        (r"sch", "sk"),
        (r"tch|c[hz](?=[aeiouy])|ch", "C"),
        (r"[st]i(?=on|ous|al|an)|sh|ssi(?=on)|ci(?=ous|al|an)", "S"),
        (r"ph", "f"),
        (r"(?<=[aou])ugh(?=$|t)|igh", "y"),
        (r"gh", "g"),
        (r"dge|dg(?=[iey])|j|g(?=[iey])", "J"),
        (r"th", "0"),
        (r"x", "ks"),
        (r"c(?=[iey])", "s"),
        (r"ck|q|c", "k"),
        (r"z", "s"),
        (r"d", "t"),
        (r"v", "f"),
        (r"b", "p"),
        (r"[aeiouyhw']+$", ""),
        (r"[aeiouyhw']+", "."),
        (r"(.)\1+", r"\1"),
    )
]


@lru_cache(maxsize=1 << 18)
def phonetic_key(word: str) -> str:
    """Return the phonetic key of a word."""
    plain = unicodedata.normalize("NFD", word.lower())
    key = "".join(c for c in plain if not unicodedata.combining(c))
    for pattern, replacement in RULES:
        key = pattern.sub(replacement, key)
    return key
