"""A generator whose numbers are those of the stream cipher ChaCha20.

It is for all that must not be guessed from what is released. It takes the place of numpy's where
batches are drawn and noise is made, with the few methods that these use.
"""

import math
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

KEY_BYTES = 32
# The cipher counts 2^32 blocks of 64 bytes for a nonce, and then raises.
NONCE_BYTES = 2**38
Shape = int | tuple[int, ...] | None


class CipherGenerator(np.random.Generator):
    """Draws bytes, uniforms, whole words and N(0, 1) numbers of one ChaCha20 stream, in turn.

    Nonce 0 gives the first 2^38 bytes, then nonce 1, and so on. Whatever else numpy's generator
    offers raises TypeError, and so does a copy: it would draw the same numbers again.

    Source:
        RFC 8439, section 2.3.
    """

    def __init__(self, key: bytes) -> None:
        """Begin the stream of a key of 32 bytes, which is used for nothing else."""
        # The methods that would draw from it are those that raise.
        super().__init__(np.random.Philox(0))
        self._key = key
        self._nonce = -1
        self._begin_next_nonce()

    def bytes(self, length: int) -> bytes:  # type: ignore[override]
        """Return so many bytes of the stream.

        What does not fit behind a nonce begins with the next one.
        """
        if length > self._bytes_left:
            self._begin_next_nonce()
        self._bytes_left -= length
        return self._cipher.update(b"\0" * length)

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or pickled: numpy's copy would have numbers that everyone knows."""
        raise TypeError("a stream of ChaCha20 is never copied: what is drawn twice cancels out")

    def _begin_next_nonce(self) -> None:
        self._nonce += 1
        self._bytes_left = NONCE_BYTES
        counter = bytes(4)
        start = counter + self._nonce.to_bytes(12, "little")
        self._cipher = Cipher(algorithms.ChaCha20(self._key, start), None).encryptor()

    def random(  # type: ignore[override]
        self, size: Shape = None, dtype: Any = np.float64, out: None = None
    ) -> Any:
        """Draw multiples of 2^-53 in [0, 1), each as probable, float64."""
        _require(dtype is np.float64 and out is None, "random() draws float64 only")
        return _shaped((self._words(size) >> np.uint64(11)) * 2.0**-53, size)

    def integers(  # type: ignore[override]
        self,
        low: int,
        high: int,
        size: Shape = None,
        dtype: Any = np.uint64,
        endpoint: bool = False,
    ) -> Any:
        """Draw whole numbers in [0, 2^k), each as probable, for k from 1 to 64.

        Other ranges raise TypeError.
        """
        bits = high.bit_length() - 1
        is_power_of_two = high == 2**bits and 1 <= bits <= 64
        _require(
            low == 0 and is_power_of_two and not endpoint,
            "integers() draws 0 to 2^k - 1",
        )
        return _shaped((self._words(size) >> np.uint64(64 - bits)).astype(dtype), size)

    def standard_normal(  # type: ignore[override]
        self, size: Shape = None, dtype: Any = np.float64, out: None = None
    ) -> Any:
        """Draw N(0, 1) numbers, up to 9.4 standard deviations.

            (x, y) = sqrt(-2 log u) (cos a, sin a),   u = (i + 1/2) / 2^63,   a = 2 pi j / 2^53

        i and j are whole numbers of 63 and 53 bits.

        Source:
            Box and Muller (1958).
        """
        _require(out is None, "standard_normal() takes no array to write into")
        count = _count(size)
        pairs = (count + 1) // 2
        words = np.frombuffer(self.bytes(16 * pairs), "<u8").reshape(2, pairs)
        radius = np.sqrt(-2 * np.log(((words[0] >> np.uint64(1)) + 0.5) * 2.0**-63))
        angle = (words[1] >> np.uint64(11)) * (2 * math.pi * 2.0**-53)
        drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
        return _shaped(drawn.astype(dtype), size)

    def _words(self, size: Shape) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self.bytes(8 * _count(size)), "<u8")


def _count(size: Shape) -> int:
    if size is None:
        return 1
    return math.prod(size) if isinstance(size, tuple) else size


def _shaped(values: npt.NDArray, size: Shape) -> Any:
    return values[0] if size is None else values.reshape(size)


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise TypeError(f"{rule}: ask a generator of numpy for what hides nothing")


def _refusing_method(name: str) -> Any:
    def refuse(self: CipherGenerator, *arguments: object, **options: object) -> None:
        _require(False, f"there is no {name}() of ChaCha20")

    return refuse


for _name in dir(np.random.Generator):
    if not _name.startswith("_") and _name not in vars(CipherGenerator):
        setattr(CipherGenerator, _name, _refusing_method(_name))
