"""Reasons of decisions: sentences with registered codes, each saying what the user can do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from lamina.base.plurals import counted

__all__ = ["Code", "Codes", "Reason", "registered"]


class Reason(str):
    """The ground of one decision in words; ``code`` names its kind ("LM5012"), ``remedy`` says what a user can do.

    It is a string, so that it joins other texts; what is made of it by string operations has no code.
    """

    __slots__ = ("code", "remedy")

    code: str
    remedy: str

    def __new__(cls, text: str, code: str = "", remedy: str = "") -> Self:
        """``text`` with a code and a remedy, both empty where there are none."""
        made = super().__new__(cls, text)
        made.code, made.remedy = code, remedy
        return made


@dataclass(frozen=True, slots=True)
class Code:
    """One registered kind of reason.

    ``number`` is its name for users ("LM5012") and never changes its meaning; ``says`` the sentence and ``remedy`` what
    a user can do, both with ``{names}`` of what the calls fill in (other braces stay; ``{count:kernel}`` is "1 kernel"
    or "2 kernels"); ``meaning`` explains it at
    length for the documentation. An empty ``remedy`` means that nothing need be done.
    """

    number: str
    says: str
    meaning: str
    remedy: str = ""

    def __call__(self, **words: object) -> Reason:
        """The reason with ``words`` filled in; a word that cannot be written as text leaves its name there.

        Raises ``KeyError`` where a name of the sentence is missing.
        """
        return Reason(_filled(self.says, words), self.number, _filled(self.remedy, words))


def _filled(text: str, words: Mapping[str, object]) -> str:
    """``text`` with the words for the names in braces; other braces are as they stand."""
    return _NAME.sub(lambda name: _word(words, *name.groups()), text) if "{" in text else text


def _word(words: Mapping[str, object], name: str, noun: str | None) -> str:
    said = _text(words[name], name)
    return said if noun is None else counted(said, noun)


def _text(word: object, name: str) -> str:
    try:
        return str(word)
    except Exception:  # a reason must not keep what it is the reason of from being done
        return name


_NAME = re.compile(r"\{(\w+)(?::([a-z ]+))?\}")


_SECTIONS: dict[int, Codes] = {}
"""The codes of each package by section; no more than there are packages, as each registers once when it is loaded."""


class Codes:
    """The codes of one package, by number; every package that decides has one, in its module ``reasons``."""

    def __init__(self, section: int, title: str) -> None:
        """Take numbers ``section`` * 100 to ``section`` * 100 + 99. Raises ``ValueError`` if the section is taken."""
        if section in _SECTIONS:
            raise ValueError(f"section {section} of the codes is registered already")
        self.first, self.title = section * 100, title
        self._codes: dict[int, Code] = {}
        _SECTIONS[section] = self

    def add(self, number: int, says: str, meaning: str, remedy: str = "") -> Code:
        """Register the code ``number`` (0 to 99) of this section. Raises ``ValueError`` if it is taken."""
        if number in self._codes or not 0 <= number < 100:
            raise ValueError(f"code {number} of {self.title} is taken or not within 0 to 99")
        self._codes[number] = code = Code(f"LM{self.first + number:04d}", says, meaning, remedy)
        return code

    def __iter__(self) -> Iterator[Code]:
        """The codes by ascending number."""
        return iter(self._codes[number] for number in sorted(self._codes))


def registered() -> tuple[Codes, ...]:
    """The sections of all modules that are loaded, by number."""
    return tuple(_SECTIONS[section] for section in sorted(_SECTIONS))
