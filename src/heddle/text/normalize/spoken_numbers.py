"""Numbers as English speaks them: cardinals, ordinals, years, decimals, fractions, money, times, Roman numerals."""

import re
from collections.abc import Callable

# fmt: off
UNITS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
# fmt: on
TENS = ("zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ("", "thousand", "million", "billion", "trillion", "quadrillion")
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
MAX_DIGITS = 18  # digits that are read as one number; longer strings are read digit by digit
COINS = {"$": ("dollar", "cent"), "£": ("pound", "penny"), "€": ("euro", "cent")}
PLURALS = {"penny": "pence"}
ROMAN = {"M": 1000, "CM": 900, "D": 500, "CD": 400, "C": 100, "XC": 90, "L": 50, "XL": 40}
ROMAN |= {"X": 10, "IX": 9, "V": 5, "IV": 4, "I": 1}


def cardinal(number: int) -> str:
    """Say how many: 42 is forty two."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number >= 10**MAX_DIGITS:
        return digits(str(number))
    if number < 100:
        return _below_hundred(number)
    if number < 1000:
        rest = f" {cardinal(number % 100)}" if number % 100 else ""
        return f"{UNITS[number // 100]} hundred{rest}"
    words: list[str] = []
    for place in range(len(SCALES) - 1, -1, -1):
        group = number // 1000**place % 1000
        if group:
            words += [cardinal(group), SCALES[place]]
    return " ".join(words).strip()


def _below_hundred(number: int) -> str:
    if number < 20:
        return UNITS[number]
    return TENS[number // 10] + (f" {UNITS[number % 10]}" if number % 10 else "")


def ordinal(number: int) -> str:
    """Say which one: 42 is forty second."""
    before, _, last = cardinal(number).rpartition(" ")
    usual = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return f"{before} {ORDINALS.get(last, usual)}".strip()


def year(number: int) -> str:
    """Say a year: 1861 is eighteen sixty one, 1905 nineteen oh five, 2004 two thousand four."""
    century, rest = divmod(number, 100)
    if not 1010 <= number <= 2099 or number // 10 == 200:
        return cardinal(number)
    if rest == 0:
        return f"{_below_hundred(century)} hundred"
    return f"{_below_hundred(century)} {f'oh {UNITS[rest]}' if rest < 10 else _below_hundred(rest)}"


def digits(text: str) -> str:
    """Say digit after digit: 007 is zero zero seven."""
    return " ".join(UNITS[int(digit)] for digit in text)


def roman(text: str) -> int | None:
    """Return the number that capital letters stand for as a Roman numeral; None where they are none."""
    left, number = text, 0
    for letters, value in ROMAN.items():
        while left.startswith(letters):
            left, number = left[len(letters) :], number + value
    return number if number and not left and _as_roman(number) == text else None


def _as_roman(number: int) -> str:
    written = ""
    for letters, value in ROMAN.items():
        times, number = divmod(number, value)
        written += letters * times
    return written


# --- in a text --------------------------------------------------------------------------------------------------------

COUNT = rf"\d{{1,3}}(?:,\d{{3}}){{1,5}}(?!,?\d)|\d{{1,{MAX_DIGITS}}}(?!\d)"
RULES: list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = []


def _rule(pattern: str) -> Callable[[Callable[[re.Match[str]], str]], Callable[[re.Match[str]], str]]:
    """Register how to speak the matches of a pattern; rules apply in the order of this file."""

    def register(speak: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
        RULES.append((re.compile(pattern), speak))
        return speak

    return register


def spoken(text: str) -> str:
    """Write the numbers of a text as words."""
    if not DIGIT.search(text):
        return text
    for pattern, speak in RULES:
        text = pattern.sub(lambda found, speak=speak: f" {speak(found)} ", text)  # type: ignore[misc]
    return text


DIGIT = re.compile(r"\d")


@_rule(
    rf"([$£€])\s?(?=\.?\d)({COUNT})?(?:\.(\d\d)(?!\d)|(\.\d+))?(?:\s(hundred|thousand|million|billion|trillion))?(?!\w)"
)
def _money(found: re.Match[str]) -> str:
    """$5.50 is five dollars and fifty cents, £2 million two million pounds."""
    coin, small = COINS[found[1]]
    written = found[2] or "0"
    scale, whole = found[5], _int(written)
    if scale or found[4]:
        fraction = found[4] or (f".{found[3]}" if found[3] else "")
        return f"{_decimal(written, fraction[1:])} {scale or ''} {_many(coin, 2)}"
    cents = int(found[3] or 0)
    parts = [f"{cardinal(whole)} {_many(coin, whole)}"] if whole or not cents else []
    return " and ".join([*parts, *([f"{cardinal(cents)} {_many(small, cents)}"] if cents else [])])


@_rule(r"(?<![\w.,])(\d{1,2}):([0-5]\d)(?![\w:])")
def _time(found: re.Match[str]) -> str:
    """10:30 is ten thirty, 10:05 ten oh five, 10:00 ten o'clock."""
    hour, minute = int(found[1]), int(found[2])
    if not minute:
        return f"{cardinal(hour)} o'clock"
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"


@_rule(rf"(?<!\w)({COUNT})(st|nd|rd|th|d)(?!\w)")
def _ordinal(found: re.Match[str]) -> str:
    """21st is twenty first; 2d and 3d, as old books write, second and third."""
    number = _int(found[1])
    if found[2] == "d" and number % 10 not in (2, 3):
        return f"{cardinal(number)} d"
    return ordinal(number)


@_rule(r"(?<![\w.,])(\d{1,2}|1\d{3}|20\d{2})['’]?s(?!\w)")
def _decade(found: re.Match[str]) -> str:
    """1860s is eighteen sixties, 1800s eighteen hundreds."""
    before, _, last = year(int(found[1])).rpartition(" ")
    plural = f"{last[:-1]}ies" if last.endswith("y") else f"{last}es" if last.endswith("x") else f"{last}s"
    return f"{before} {plural}".strip()


@_rule(rf"(?<![\w.,/])(?:(\d{{1,{MAX_DIGITS}}})\s)?(\d{{1,3}})[/⁄](\d{{1,3}})(?![\w/⁄])")
def _fraction(found: re.Match[str]) -> str:
    """1/2 is one half, 2 3/4 two and three quarters."""
    top, bottom = int(found[2]), int(found[3])
    if bottom < 2:
        return f"{cardinal(top)} over {cardinal(bottom)}"
    part = {2: "half", 4: "quarter"}.get(bottom) or ordinal(bottom)
    part = part if top == 1 else "halves" if part == "half" else f"{part}s"
    return f"{cardinal(int(found[1]))} and {cardinal(top)} {part}" if found[1] else f"{cardinal(top)} {part}"


@_rule(rf"(?<![\w.,])({COUNT})?\.(\d++)(?![\w.]*?\d)")
def _point(found: re.Match[str]) -> str:
    """3.14 is three point one four, .5 zero point five."""
    return _decimal(found[1] or "0", found[2])


@_rule(r"(?<!\w)([12]\d{3})(?![\w,]*?\d)")
def _year(found: re.Match[str]) -> str:
    """Four digits without a comma are most often a year."""
    return year(int(found[1]))


@_rule(r"\d{1,3}(?:,\d{3})+(?!\d)|\d+")
def _count(found: re.Match[str]) -> str:
    """1,861 is one thousand eight hundred sixty one; 007 is read digit by digit."""
    bare = found[0].replace(",", "")
    return digits(bare) if len(bare) > MAX_DIGITS or (len(bare) > 1 and bare[0] == "0") else cardinal(int(bare))


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _decimal(whole: str, fraction: str) -> str:
    return f"{cardinal(_int(whole))} point {digits(fraction)}" if fraction else cardinal(_int(whole))


def _many(coin: str, count: int) -> str:
    return coin if count == 1 else PLURALS.get(coin, f"{coin}s")
