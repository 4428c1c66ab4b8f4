"""Quorum: ensemble size, write quorum and ack quorum, written `3/3/2` as in BookKeeper."""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_on_spark.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Quorum:
    """The numbers E >= Qw >= Qa >= 1: an entry is written to Qw of E paths, and acknowledged by Qa durable copies."""

    ensemble: int
    write: int
    ack: int

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise InvalidArgumentError(
                f"Quorum {self} is not possible: give ENSEMBLE/WRITE/ACK, none above the one before it, such as 3/3/2."
            )

    def __str__(self) -> str:
        return f"{self.ensemble}/{self.write}/{self.ack}"

    @classmethod
    def parse(cls, text: str) -> Quorum:
        """Parse `E/W/A`.

        Raises:
            InvalidArgumentError: the text is not three whole numbers, none greater than the one before it.
        """
        parts = text.split("/")
        if len(parts) != 3 or not all(part.strip().isdigit() for part in parts):
            raise InvalidArgumentError(f"Quorum {text!r} is not ENSEMBLE/WRITE/ACK: give three numbers, such as 3/3/2.")
        return cls(*(int(part) for part in parts))


DEFAULT_QUORUM = Quorum(3, 3, 2)
