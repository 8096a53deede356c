"""R15 (templates): hostile chat templates run nothing, reach nothing, and are stopped within a second and a megabyte.

This file is also the victim: run as a program, it renders what it is given and tells how that went.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from heddle.core import HeddleError
from heddle.text.template import Template, trusted, value_of

MESSAGES = [{"role": "user", "content": "Hi " * 10}, {"role": "assistant", "content": "{{ 7 * 7 }}"}]
TELLTALE = ("<class", "<function", "<module", "<built-in", "object at 0x", "bound method", "root:", "49", "Traceback")

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'] }}{{ messages['__class__'] }}",
    "{{ messages.__class__.__init__.__globals__['os'].system('touch CANARY') }}",
    "{{ range.__globals__ }}{{ range['__globals__'] }}",
    "{{ namespace.__init__.__globals__['os'].system('touch CANARY') }}",
    "{{ raise_exception.__globals__['__builtins__']['open']('CANARY', 'w') }}",
    "{{ strftime_now.__globals__['os'].popen('touch CANARY').read() }}",
    "{{ self.__init__.__globals__.__builtins__.open('CANARY', 'w') }}",
    "{{ cycler.__init__.__globals__.os.popen('touch CANARY').read() }}",
    "{{ joiner.__init__.__globals__.os.system('touch CANARY') }}",
    "{{ lipsum.__globals__['os'].system('touch CANARY') }}",
    "{{ ''|attr('__class__')|attr('__mro__') }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ messages|selectattr('__class__')|list }}{{ messages|map(attribute='__class__.__init__')|list }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "{{ '{x.__class__}'.format_map({'x': messages}) }}",
    "{{ '%s %r' % (messages, range) }}",
    "{{ '%s'|format(range) }}",
    "{% set n = namespace(__class__=1) %}{{ n.__class__ }}",
    "{% set n = namespace() %}{% set n.__dict__ = messages %}{{ n.__dict__ }}",
    "{% set n = namespace({'__init__': 1}) %}{{ n.__init__ }}",
    "{% import 'os' as os %}{{ os.system('touch CANARY') }}",
    "{% from 'os' import system %}{{ system('touch CANARY') }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{% block x %}{{ self.x.__globals__ }}{% endblock %}",
    "{{ open('CANARY', 'w').write('x') }}",
    "{{ eval('open(\"CANARY\", \"w\")') }}{{ exec('1') }}",
    "{{ __import__('os').system('touch CANARY') }}",
    "{{ ().__class__.__base__.__subclasses__() }}{{ {}.__class__ }}{{ (1).__class__ }}",
    "{{ messages[0].update({'role': 'system'}) }}",
    "{{ messages.append(1) }}{{ messages.pop() }}{{ messages.clear() }}",
    "{% do messages.clear() %}",
    "{% for m in messages %}{{ loop.__class__.__init__.__globals__ }}{{ loop._iterator }}{% endfor %}",
    "{% macro f() %}{% endmacro %}{{ f.__globals__ }}{{ f.__code__ }}{{ f }}",
    "{% call(x) range(3) %}{{ caller.__globals__ }}{% endcall %}",
    "{{ 'a'.join.__self__ }}{{ 'a'.strip }}{{ messages[0].get }}",
    "{{ dict.fromkeys([1]) }}{{ dict.__subclasses__() }}",
    "{{ ''.encode().decode() }}{{ 'x'.maketrans('a', 'b') }}",
    "{{ messages.__getitem__(0) }}{{ messages.__len__() }}",
    "{{ config }}{{ request.application.__globals__ }}{{ environment }}{{ context }}",
    "{{ [].__reduce_ex__(2) }}{{ messages|pprint }}",
    "{{ messages|sort(attribute='__class__')|first }}{{ messages|groupby('__class__') }}",
    "{{ strftime_now('%s')|int + 1 }}{{ strftime_now('\\x00') }}",
]
GROWTH = [
    "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) if j is string %}{% endfor %}{% endfor %}",
    "{{ 'a' * 2000000000 }}",
    "{{ [1] * 2000000000 }}{{ (1, 2) * 999999999 }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{% set x = 'a' * 900000 %}{% for i in range(99999) %}{% set y = x | upper %}{% endfor %}",
    "{% set x = 'a' * 900000 %}{% for i in range(99999) %}{% set y = x[1:] + 'b' %}{% endfor %}",
    "{% set x = 'a' * 900000 %}{% for i in range(99999) %}{% if 'b' in x %}{% endif %}{% endfor %}",
    "{% set x = 'a' * 900000 %}{{ x.replace('a', 'a' * 1000) }}",
    "{% set x = 'a' * 1000 %}{{ x.join(x.join(x | list) | list) }}",
    "{% set x = 'ab' * 400000 %}{% for i in range(9999) %}{% set y = x.split('a') %}{% endfor %}",
    "{% set x = 'ab ' * 30000 %}{% for i in range(9999) %}{% set y = x.split() | join %}{% endfor %}",
    "{% set x %}{% for i in range(9000) %}{{ i }} {% endfor %}{% endset %}{% for i in range(99) %}{{ x }}{% endfor %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(25) }}",
    "{% macro f(n) %}{{ n }}{{ n }}{% endmacro %}{{ f(f(f(f(f(f(f(f(f(f(f(f(f('abcdefgh' * 99))))))))))))) }}",
    "{{ range(10 ** 14) }}{{ range(999999999999) | list }}{{ range(0, -999999999999, -1) | sum }}",
    "{{ 9 ** 9 ** 9 }}",
    "{% set n = namespace(x=9) %}{% for i in range(9999) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
    "{% set n = namespace(x=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=1, y=1) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% set n.y = [n.y, n.y] %}"
    "{% endfor %}{{ n.x == n.y }}{{ n.x in [n.y] }}",
    "{% set n = namespace(x=1) %}{% for i in range(5000) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=1) %}{% for i in range(5000) %}{% set n.x = {'a': n.x} %}{% endfor %}{{ n.x | tojson }}",
    "{% set n = namespace() %}{% set n.x = n %}{{ n.x.x.x }}{{ [n] }}{{ n | tojson }}",
    "{{ messages | tojson(indent=1000000000) }}",
    "{{ 'a'.center(1000000000) }}{{ 'a'.ljust(99999999) }}{{ 'a'.zfill(99999999) }}",
    "{{ 'a' | indent(1000000000) }}{{ 'a' | center(99999999) }}",
    "{{ strftime_now('%999999999Y') }}",
    "{{ strftime_now('%Y' * 300000) }}",
    "{% for i in range(9999) %}{{ range(90000) | sort(reverse=true) | first }}{% endfor %}",
    "{{ range(90000) | unique | list | length }}",
    "{% set x = range(90000) | list %}{% for i in x %}{% if -1 in x %}{% endif %}{% endfor %}",
    "{% set x %}{% for i in range(60000) %}{{ i }}{% endfor %}{% endset %}{% for i in range(9999) %}"
    "{% set y = x.strip(x) %}{% endfor %}",
    "{{ ('a' * 999999).split('') }}{{ ('9' * 999999) | int }}{{ ('9' * 999999) | float }}",
    "{{ " + "(" * 60000 + "1" + ")" * 60000 + " }}",
    "{{ " + "[" * 60000 + "]" * 60000 + " }}",
    "{% if 1 %}" * 9000 + "{% endif %}" * 9000,
    "{{ " + "not " * 30000 + "1 }}",
    "{{ " + "-" * 100000 + "1 }}",
    "{{ 1" + " + 1" * 30000 + " }}",
    "{{ messages" + ".x" * 50000 + " }}",
    "{{ 1" + " | string" * 10000 + " }}",
    "{{ 1" + " if 1 else 1" * 9000 + " }}",
    "{{ '" + "\\\\" * 60000 + " }}",
    "{%" + " " * 120000 + "raw",
    "{# " * 40000,
    "x" * 200000,
    "{{ 'x' * 1000 }}" * 8000,
    "{% raw %}{% endraw %}" * 6000 + "{% raw %}",
]


def render(source: str) -> dict[str, Any]:
    """Render one template; tell what came of it, in how long."""
    start = time.process_time()  # which other work on the machine does not lengthen
    try:
        text = Template(source).render(
            {"messages": value_of(MESSAGES), "add_generation_prompt": True, "bos_token": trusted("<s>")}
        )
        told, size = [mark for mark in TELLTALE if mark in text.plain], len(text.plain.encode())
    except HeddleError as error:
        told, size = (["a second line"] if "\n" in str(error) or len(str(error)) > 500 else []), 0
    return {"seconds": time.process_time() - start, "told": told, "size": size, "debug": __debug__}


def peak() -> float:
    """Return the most memory held so far, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def all_of(templates: list[str]) -> list[dict[str, Any]]:
    """Render templates one after the other."""
    found = []
    for source in templates:
        before = peak()
        found.append(render(source) | {"megabytes": peak() - before})
    return found


def elsewhere(templates: list[str], folder: Path, *flags: str) -> list[dict[str, Any]]:
    """Render templates in a process of their own."""
    file = folder / "templates.json"
    file.write_text(json.dumps(templates))
    command = [sys.executable, *flags, __file__, str(file)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=folder, check=True)
    found: list[dict[str, Any]] = json.loads(answer.stdout)
    assert all(one["debug"] is ("-O" not in flags) for one in found)
    return found


def check(templates: list[str], found: list[dict[str, Any]], canary: Path) -> None:
    """Check that nothing came of templates, and print the row's number."""
    assert len(found) == len(templates)
    bad = [source[:120] for source, one in zip(templates, found, strict=True) if one["told"]]
    slowest, largest = max(one["seconds"] for one in found), max(one["size"] for one in found)
    memory = max(one["megabytes"] for one in found)
    print(
        f"R15: {len(bad)} of {len(templates)} hostile templates executed; at most {slowest:.2f} s, "
        f"{largest:,} bytes rendered, {memory:.0f} MB held"
    )
    assert not bad and not canary.exists()
    assert slowest < 1
    assert largest < 1_000_000
    assert memory < 200


def test_the_telltale_would_be_seen() -> None:
    """Show that the check has teeth: what leaks, executes or floods is told."""
    assert render("{{ 7 * 7 }}")["told"] == ["49"]
    assert render("<function f at 0x1>")["told"] == ["<function"]
    assert render("{{ 'a' * 999 }}")["size"] == 999


def test_hostile_templates_run_nothing(tmp_path: Path, frozen_heap: None) -> None:
    assert len(ESCAPES) + len(GROWTH) >= 60
    templates = [source.replace("CANARY", str(tmp_path / "canary")) for source in [*ESCAPES, *GROWTH[::3]]]
    check(templates, all_of(templates), tmp_path / "canary")


@pytest.mark.full
@pytest.mark.parametrize("flags", [(), ("-O",)], ids=["plain", "optimized"])
def test_every_hostile_template_runs_nothing(flags: tuple[str, ...], tmp_path: Path) -> None:
    templates = [source.replace("CANARY", str(tmp_path / "canary")) for source in [*ESCAPES, *GROWTH]]
    check(templates, elsewhere(templates, tmp_path, *flags), tmp_path / "canary")


if __name__ == "__main__":
    print(json.dumps(all_of(json.loads(Path(sys.argv[1]).read_text()))))
