"""Which partition a key belongs to: murmur2, as Kafka's Java client computes it."""

from __future__ import annotations

SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit hash of `data`, unsigned."""
    length = len(data)
    hashed = (SEED ^ length) & _MASK
    whole = length - length % 4
    for place in range(0, whole, 4):
        word = int.from_bytes(data[place : place + 4], "little")
        word = (word * MULTIPLIER) & _MASK
        word ^= word >> 24
        word = (word * MULTIPLIER) & _MASK
        hashed = ((hashed * MULTIPLIER) & _MASK) ^ word
    if whole < length:
        hashed ^= int.from_bytes(data[whole:], "little")
        hashed = (hashed * MULTIPLIER) & _MASK
    hashed ^= hashed >> 13
    hashed = (hashed * MULTIPLIER) & _MASK
    return hashed ^ (hashed >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key among `partitions`."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
