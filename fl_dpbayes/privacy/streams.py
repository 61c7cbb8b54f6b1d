"""Random streams for noise and sampling: one for each purpose, never handed out twice.

Each is keyed with 128 bits or more.
"""

import hashlib
import json
import os

import numpy as np

from fl_dpbayes.privacy.cipher_generator import KEY_BYTES, CipherGenerator
from fl_dpbayes.schedules import ChainStreams

MASTER_BYTES = 32
PHILOX_KEY_BYTES = 16


class Streams:
    """The random streams of one message: each purpose has its own generator, and gets it once.

        key = BLAKE2b(purpose; key = master secret)

    so streams of different purposes, messages, rounds, sites and runs are independent as far as
    BLAKE2b is a pseudo-random function. Asking for a purpose a second time is an error: noise that
    is drawn twice cancels out in the difference of two releases.

    `cipher` hands out a stream of the cipher ChaCha20, for all that hides a record: who joins a
    batch, the noise on sums, on tables and before the clip. `generator` hands out numpy's
    Philox4x64-10, which is statistical and not cryptographic, for weights and masks of stochastic
    models, which hide nothing.

    Attributes:
        seeded: Whether the master secret follows from a seed; what is released is then not private.

    Source:
        RFC 8439; Salmon et al. (2011), Parallel random numbers: as easy as 1, 2, 3; RFC 7693 for
        keyed BLAKE2b.
    """

    def __init__(self, master: bytes, *, seeded: bool) -> None:
        """Derive streams from a master secret of 32 bytes."""
        if len(master) != MASTER_BYTES:
            raise ValueError(
                f"the master secret has {len(master)} bytes: it must have {MASTER_BYTES}"
            )
        self._master = master
        self._handed_out: set[str] = set()
        self.seeded = seeded

    @classmethod
    def from_entropy(cls) -> "Streams":
        """Make streams from 256 bits of the operating system's entropy: the only private choice."""
        return cls(os.urandom(MASTER_BYTES), seeded=False)

    @classmethod
    def from_insecure_seed(cls, seed: int, context: str) -> "Streams":
        """Make streams that equal seed and context repeat, for simulation and tests.

        Nothing that is released with them is private.

        Args:
            seed: Any whole number.
            context: Tells messages, sites and runs of one seed from each other.

        Returns:
            The streams, marked as seeded.
        """
        text = json.dumps([int(seed), context])
        digest = hashlib.blake2b(text.encode(), digest_size=MASTER_BYTES, person=b"insecure seed")
        return cls(digest.digest(), seeded=True)

    def cipher(self, purpose: str) -> CipherGenerator:
        """Hand out the secret stream of a purpose, such as "noise".

        Raises:
            ValueError: If it was handed out before.
        """
        return CipherGenerator(self._key(purpose, KEY_BYTES))

    def generator(self, purpose: str) -> np.random.Generator:
        """Hand out the stream of a purpose that hides nothing.

        Raises:
            ValueError: If it was handed out before.
        """
        key = int.from_bytes(self._key(purpose, PHILOX_KEY_BYTES), "little")
        return np.random.Generator(np.random.Philox(key=key))

    def of_chain(self) -> ChainStreams:
        """Hand out the four streams of a chain."""
        return ChainStreams(
            sampling=self.cipher("sampling"),
            noise=self.cipher("noise"),
            pre_noise=self.cipher("pre-noise"),
            model=self.generator("model"),
        )

    def _key(self, purpose: str, length: int) -> bytes:
        if purpose in self._handed_out:
            raise ValueError(
                f"the stream {purpose!r} was handed out before: a stream is never used twice"
            )
        self._handed_out.add(purpose)
        return hashlib.blake2b(purpose.encode(), key=self._master, digest_size=length).digest()
